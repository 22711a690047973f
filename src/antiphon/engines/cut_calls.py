"""Calls that were cut off at a deadline of a guard: how they count, and how they end a turn."""

from __future__ import annotations

from antiphon.core.execution_events import EV_CALL_FAILED, CallFailed, FailureClass
from antiphon.core.ruleset import Ruleset
from antiphon.engines.journal import TurnJournal
from antiphon.guards.deadlines import DEADLINE_REASON, Deadlines, is_step_limit


def keep_deadline_denial(journal: TurnJournal, index: int, seconds: float, *, detail: str) -> CallFailed:
    """The end of a model's call at a deadline, which ends the turn. It is kept for the journal."""
    kind = cut_class(journal.run.live.ruleset, None, seconds)
    failed = CallFailed(
        journal.turn_id, index, detail, denied=DEADLINE_REASON, final=True, guard=Deadlines.name, failure=kind
    )
    journal.keep(EV_CALL_FAILED, failed)
    return failed


def cut_class(ruleset: Ruleset, own: float | None, seconds: float | None) -> FailureClass:
    """How a call counts that was cut off after these seconds, with a time limit of its own or without.

    It does not count against what was called, if the time of the turn or of the run was over.
    """
    if seconds is None or (own is not None and seconds >= own) or is_step_limit(ruleset, seconds):
        return "timeout"
    return "cancelled"
