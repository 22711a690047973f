"""Calls that were cut off at a deadline of a guard: how they count, how they end a turn, and what returns late."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from antiphon.agents.call_results import ToolResult
from antiphon.core.errors import AntiphonError, ModelUnavailable
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_RETURNED_LATE,
    CallFailed,
    CallReturnedLate,
    FailureClass,
)
from antiphon.core.ruleset import Ruleset
from antiphon.core.step import journal_draft
from antiphon.engines.environment import TurnRun
from antiphon.engines.journal import TurnJournal
from antiphon.guards.deadlines import DEADLINE_REASON, Deadlines, is_step_limit
from antiphon.hub.admission import RecordDraft
from antiphon.hub.known_secrets import redact_text

logger = logging.getLogger("antiphon.engine")

_recording: set[asyncio.Task[None]] = set()
"""Late results that are about to be recorded: a task without a reference may be collected."""
TIMEOUT_STATUSES = frozenset({408, 504})


def retried_class(error: ModelUnavailable) -> FailureClass:
    """The class of a failure after which a model is asked again."""
    late = error.status in TIMEOUT_STATUSES or "Timeout" in type(error.__cause__).__name__
    return "timeout" if late else "transport"


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


@dataclass(frozen=True)
class LateResult:
    """Records what a tool returns after its call was cut off. Nothing is done with it."""

    run: TurnRun
    index: int
    name: str

    def __call__(self, returned: ToolResult) -> None:
        task = asyncio.get_running_loop().create_task(self._record(returned), name=f"late result of {self.name}")
        _recording.add(task)
        task.add_done_callback(_recording.discard)

    async def _record(self, returned: ToolResult) -> None:
        run, text = self.run, redact_text(returned.text)
        late = CallReturnedLate(run.turn_id, self.index, self.name, text, returned.failed)
        draft = journal_draft(EV_CALL_RETURNED_LATE, late, cause=run.turn.cause)
        try:
            await run.live.submit(RecordDraft(draft, run.environment.new_id))
        except AntiphonError as error:
            logger.info("the late result of %s in %s is not recorded: %s", self.name, run.channel_id, error)
