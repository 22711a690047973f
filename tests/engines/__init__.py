"""Where turns run: engines, leases, deadlines, and what is left of a turn when its process ends."""
