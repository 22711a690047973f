"""Measurements. `make bench` runs them all and prints ratios; none of them is a test."""
