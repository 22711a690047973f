"""The hub as its users meet it: what it records, whom it tells, what it refuses, when it acts by itself."""
