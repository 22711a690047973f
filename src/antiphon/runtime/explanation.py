"""Why a channel is in the state it is in: an explanation of a log, as a value.

Rule 1: an explanation is made of recorded facts and of rules that the channel brings along. Where a rule cannot be read
        here, what was recorded about it is given instead.
Rule 2: it is for operators: it shows what only they see. Of what calls returned it shows errors alone.
Rule 3: commands in it name the store as `store`, which is what the reader calls it.
"""

from __future__ import annotations

import msgspec

from antiphon.core.approval_rules import Approval
from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import SPEECH_TYPES, TurnAssigned
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import CallFailed, CallFinished, CallStarted
from antiphon.core.state import TASK_KNOB, State
from antiphon.runtime.causal_chain import CausalLog, is_turn_detail
from antiphon.runtime.decision_reasons import DecisionReasons
from antiphon.runtime.envelope_text import describe_envelope
from antiphon.runtime.event_wording import format_arguments
from antiphon.runtime.pending_waits import PossibleAction, damage_wait, pending_waits, possible_actions
from antiphon.runtime.reason_meanings import explain_reason

MAX_TOLD_REFUSALS = 5
"""How many refusals an explanation lists, the last ones."""


class ExplainedStep(msgspec.Struct, frozen=True):
    """One envelope on the way to what is explained."""

    sequence: int
    """0 for a refused draft, which is in no log."""
    at: Instant
    who: str
    event_type: str
    what: str
    """A sentence without its subject, which is `who`; of speech, what was said."""


class Explanation(msgspec.Struct, frozen=True):
    """Why something happened in a channel."""

    channel_id: str
    type: str
    status: str
    close_reason: str
    participants: dict[str, str]
    """Name to kind."""
    sequence: int
    """The envelope that is explained."""
    because: list[str]
    """The reasons, the most direct one first."""
    steps: list[ExplainedStep]
    """The chain of causes, from the message that began it to what is explained."""
    waits: list[str]
    """What waits for whom now."""
    actions: list[PossibleAction]
    """What can be done."""
    refused: list[ExplainedStep] = []
    """The last drafts that were refused in this channel."""
    parent: str = ""
    """The channel in which this task was given; "" if it is no task."""


class ExplanationSources(msgspec.Struct, frozen=True):
    """What an explanation is made of."""

    log: list[Envelope]
    """The whole log of the channel, in order."""
    approvals: list[Approval] = []
    """What waits for a person in it."""
    refusals: list[Envelope] = []
    """The records of the audit channel about it."""
    store: str = "STORE"
    """What the reader calls the store, for commands."""
    damage: str = ""
    """Why the log cannot be read any further; "" if it is whole."""


def explain(sources: ExplanationSources, at: int | None = None) -> Explanation:
    """Explain the envelope of a sequence; without one, why the channel is in the state it is in."""
    causal = CausalLog(sources.log)
    state = State()
    for envelope in sources.log:
        state = evolve(state, envelope)
    subject = _subject(causal, sources, at)
    reasons = DecisionReasons(causal, state)
    trail = causal.trail(subject)
    if at is None and state.ended:
        trail += causal.undone_after(subject)
    task = state.knobs.get(TASK_KNOB)
    waits = pending_waits(causal.log, state, sources.approvals)
    if sources.damage:
        waits = [damage_wait(sources.damage)]
    return Explanation(
        state.channel_id or subject.channel_id,
        state.type,
        "quarantined" if sources.damage else state.status,
        state.close_reason,
        dict(state.participants),
        subject.sequence,
        reasons.of(subject),
        [_step(causal, reasons, envelope) for envelope in trail],
        [wait.told for wait in waits],
        possible_actions(waits, state, trail=trail, store=sources.store),
        [_refusal_step(each) for each in sources.refusals[-MAX_TOLD_REFUSALS:]],
        str(task.get("parent", "")) if isinstance(task, dict) else "",
    )


def _subject(causal: CausalLog, sources: ExplanationSources, at: int | None) -> Envelope:
    if at is None:
        waiting = causal.waiting_since([approval.turn_id for approval in sources.approvals])
        found = waiting or causal.last_decisive()
    else:
        found = causal.at(at)
    if found is None:
        last = len(causal.log)
        raise UsageError(f"the channel has no envelope {at}; it has 1 to {last}" if last else "the channel is empty")
    return found


def _step(causal: CausalLog, reasons: DecisionReasons, envelope: Envelope) -> ExplainedStep:
    what = describe_envelope(envelope)
    match event_of(envelope):
        case TurnAssigned() as assigned:
            what = f"gives the turn to {', '.join(assigned.speakers) or 'nobody'}: {reasons.assignment(envelope)}"
        case CallFailed() | CallFinished() as outcome if is_turn_detail(envelope):
            what = _outcome_text(causal, envelope, outcome)
        case _ if envelope.event_type in SPEECH_TYPES:
            what = f"says: {what}"
        case _ if what.startswith(f"{envelope.event_data.get('index')}: "):
            what = f"call {what}"
    return ExplainedStep(envelope.sequence, envelope.created_at, envelope.sender_id, envelope.event_type, what)


def _outcome_text(causal: CausalLog, envelope: Envelope, outcome: CallFailed | CallFinished) -> str:
    """How a call ended: denied, failed, or with an error as its result."""
    started = causal.call(envelope)
    call = event_of(started) if started is not None else None
    name = "a call"
    if isinstance(call, CallStarted):
        name = "a call of the model" if call.args is None else f"the call {call.name}({format_arguments(call.args)})"
    if not isinstance(outcome, CallFailed) or not outcome.denied:
        _, _, error = describe_envelope(envelope).partition("failed: ")
        return f"gets no result of {name}, which failed: {error}"
    by = f"the guard {outcome.guard} " if outcome.guard else ""
    ending = "; the turn ends with it" if outcome.final else ""
    read = outcome.error.rstrip(".")
    return f"{by}denies {name}: {explain_reason(outcome.denied)}; the agent reads: {read}{ending}"


def _refusal_step(record: Envelope) -> ExplainedStep:
    data = record.event_data
    what = f"was refused {data.get('event_type', 'a draft')}: {explain_reason(str(data.get('reason', '?')))}"
    return ExplainedStep(0, record.created_at, str(data.get("sender_id", "?")), record.event_type, what)
