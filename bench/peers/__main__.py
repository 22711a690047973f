"""The comparison alone: `python -m bench.peers`, or `python -m bench.peers WORD` for the matches whose title has it."""

import sys

from bench.peers import section

print(section(*sys.argv[1:]))
