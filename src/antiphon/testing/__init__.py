"""Tools for testing what you build: a clock that you move, and checks that any store must pass."""

from antiphon.testing.clock import ManualClock

__all__ = ["ManualClock"]
