"""Tools for testing what you build: a clock that you move, faults to inject, checks that any store must pass."""

from antiphon.testing.clock import ManualClock
from antiphon.testing.faults import Faults, with_faults

__all__ = ["Faults", "ManualClock", "with_faults"]
