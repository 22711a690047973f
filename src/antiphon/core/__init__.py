"""The pure core: what a channel is, how facts change it, who speaks next, what may happen.

Nothing in this package reads a clock, draws a random number, or touches the world.
"""
