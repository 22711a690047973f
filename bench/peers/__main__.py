"""The comparison alone: `python -m bench.peers`."""

from bench.peers import section

print(section())
