"""Models: what answers the requests of agents."""
