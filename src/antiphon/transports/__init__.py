"""Transports: how replies leave the hub, and how messages arrive."""
