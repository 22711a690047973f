"""Protections, each a small pure machine folded from a channel's log."""
