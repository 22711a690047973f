"""The demonstration: a team talks, its hub is killed for real, and nothing that was acknowledged is lost.

`story` is what is said, `hub` the process that is killed, `play` the one that kills it, `beats` what passes between
them, `narration` how it looks, `command` what is typed.
"""
