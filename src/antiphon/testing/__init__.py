"""Tools for testing what you build: a model that follows a script, a clock that you move, faults, and checks."""

from antiphon.agents.messages import calls, says
from antiphon.models.scripted import ScriptedModel
from antiphon.testing.adapter_checks import check_adapter, check_guard
from antiphon.testing.digest import canonical_digest
from antiphon.testing.engine_checks import check_engine
from antiphon.testing.manual_clock import ManualClock
from antiphon.testing.store_checks import check_store
from antiphon.testing.store_fixtures import Faults, with_faults

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
