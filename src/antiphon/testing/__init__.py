"""Tools for testing what you build: a model that follows a script, a clock that you move, faults, and checks."""

from antiphon.agents.messages import calls, says
from antiphon.models.scripted import ScriptedModel
from antiphon.testing.checks import check_store
from antiphon.testing.clock import ManualClock
from antiphon.testing.digest import canonical_digest
from antiphon.testing.engine_checks import check_engine
from antiphon.testing.faults import Faults, with_faults
from antiphon.testing.rules import check_adapter, check_guard

__all__ = [
    "Faults",
    "ManualClock",
    "ScriptedModel",
    "calls",
    "canonical_digest",
    "check_adapter",
    "check_engine",
    "check_guard",
    "check_store",
    "says",
    "with_faults",
]
