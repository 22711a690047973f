"""The calls of a turn that can be undone, as the saga of the run knows them: registered before, and with their outcome.

Rule 1: in the channel of the run a call is registered in the batch that records its start. In the channel of a task it
        is registered before that, in the channel of the run, and does not leave if the run has ended.
Rule 2: an outcome that does not reach the channel of the run is read from the journal of the call when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.agents.call_results import ToolOutcome, ToolResult
from antiphon.core.event_data import data_of
from antiphon.core.guard import LedgerEntry
from antiphon.core.saga_events import EV_SAGA_EXECUTED, EV_SAGA_REGISTERED, StepStatus
from antiphon.core.sagas import CallRef
from antiphon.engines.journal import TurnJournal
from antiphon.engines.prepared_calls import PreparedCall, refuse_call
from antiphon.hub.ledgers import RUN_LEDGER


class StepOffer(msgspec.Struct, frozen=True):
    """What is known of a call that can be undone when it is about to leave."""

    step: str
    comp_name: str
    args_ref: str
    tool: str
    turn: str
    index: int


class StepOutcome(msgspec.Struct, frozen=True):
    """What has become of it."""

    step: str
    status: StepStatus
    turn: str
    index: int


async def register_steps(journal: TurnJournal, leaving: Sequence[PreparedCall]) -> dict[int, ToolOutcome]:
    """Have those of these calls registered that can be undone. Returns the results of calls that may not leave.

    One that was in flight is registered already.
    """
    refused: dict[int, ToolOutcome] = {}
    for each in leaving:
        if each.tool.compensate is None or each.in_flight:
            continue
        call, index = _call_of(journal, each), each.wanted.index
        name = call.step_in(journal.run.state.run_id)
        offer = StepOffer(name, each.tool.compensate, str(call), each.tool.name, journal.turn_id, index)
        if _is_run_channel(journal):
            journal.keep(EV_SAGA_REGISTERED, offer)
            continue
        entry = LedgerEntry(RUN_LEDGER, EV_SAGA_REGISTERED, data_of(offer))
        denial = await journal.run.ledgers.offer(entry, f"{call} registered")
        if denial is not None:
            refused[index] = refuse_call(journal, each.wanted, ToolResult(denial.detail, failed=True))
    return refused


def keep_step_outcome(journal: TurnJournal, ready: PreparedCall, status: StepStatus) -> None:
    """Note the outcome of a call behind its entry in the journal, if it can be undone."""
    if ready.tool.compensate is None:
        return
    call = _call_of(journal, ready)
    outcome = StepOutcome(call.step_in(journal.run.state.run_id), status, call.turn, call.index)
    if _is_run_channel(journal):
        journal.keep(EV_SAGA_EXECUTED, outcome)
    else:
        journal.run.ledgers.step_outcomes[call.turn, call.index] = outcome


def _is_run_channel(journal: TurnJournal) -> bool:
    return journal.run.state.run_id == journal.run.channel_id


def _call_of(journal: TurnJournal, ready: PreparedCall) -> CallRef:
    return CallRef(journal.run.channel_id, journal.turn_id, ready.wanted.index)
