"""A draft and everything it causes, as one batch.

Rule 1: a decision is recorded with its cause, or neither is.
Rule 2: nothing here waits, stores or publishes. Time and ids come in as arguments.
Rule 3: what follows from an envelope are a few more (`consequences`), each of which may have some of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from antiphon.core.envelope import (
    HUB,
    NEVER,
    OPERATORS,
    Envelope,
    IdSource,
    Instant,
    Json,
    derived_id,
    id_after,
    seconds_between,
    visible_to,
)
from antiphon.core.event_data import Deny, data_of, event_of
from antiphon.core.events import (
    ASIDE_FIELD,
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_OPENED,
    EV_CHANNEL_PAUSED,
    EV_DEADLINE_EXTENDED,
    EV_RULE_FAILED,
    EV_TEXT,
    EV_TURN_ASSIGNED,
    EV_TURN_FAILED,
    JOURNAL_TYPES,
    OTHER_EVENT,
    RESERVED_PREFIXES,
    ChannelCreated,
    ChannelExpired,
    ChannelOpened,
    Event,
    ExpectationViolated,
    FailedTurn,
    InviteAccepted,
    InviteRejected,
    Packet,
    Text,
)
from antiphon.core.evolve import CLOCK_SET_REASON
from antiphon.core.guard import NO_TIME_BREAKS, Deadline, Later, TimeBreaks
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import Assign, Close, Decision, RelatedFact, State, Turn, Wait
from antiphon.core.text import describe

REFUSAL_TYPES = (Deny, Later)
MOOT_TYPES = frozenset({EV_TURN_ASSIGNED, EV_CHANNEL_PAUSED, EV_CHANNEL_CLOSED})
"""What is not recorded in a channel that was closed, if it only follows from something else."""
FIRST_WORDS_ID = "first words"
"""From which the id of a channel's first words is derived."""


class Admitted(msgspec.Struct, frozen=True):
    """A batch that may be recorded, whole or not at all, and the fold it would lead to. Nothing is stored yet."""

    batch: tuple[Envelope, ...]
    fold: Fold
    copied: int = 0
    """How many of its envelopes, from the first on, are copies of recorded ones: they were checked before."""


def step(fold: Fold, draft: Envelope, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted | Deny | Later:
    """The batch that this draft makes if its guards admit it; else why not, or that it must wait."""
    judged = ruleset.judge(fold, draft)
    if isinstance(judged, REFUSAL_TYPES):
        return judged
    return record(fold, judged, ruleset=ruleset, at=at, new_id=new_id)


def record(fold: Fold, draft: Envelope, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted:
    """The batch that a draft makes, stamped, with all that follows from it. It was judged before, or is the hub's own.

    Nothing is written here: `ChannelLog.record` appends the batch.
    """
    batch: list[Envelope] = []
    at = max(fold.state.updated_at, at)
    following = [draft]
    for each in following:  # which grows meanwhile
        if each is not draft and fold.state.status == "closed" and each.event_type in MOOT_TYPES:
            continue  # a guard has closed the channel because of the envelope from which this follows
        said = each if each is draft or each.sender_id == HUB else _judge_first_words(ruleset, fold, each)
        envelope = stamp_draft(said, fold.state, at=at, new_id=new_id)
        fold = ruleset.fold(fold, envelope)
        batch.append(envelope)
        if ruleset.noticing and (facts := ruleset.notices(fold, envelope)):
            following += fact_drafts(facts, envelope.envelope_id)
        following += consequences(ruleset, fold, envelope)
    return Admitted(tuple(batch), fold)


def record_all(fold: Fold, drafts: Iterable[Envelope], *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted:
    """The batch of several such drafts, one after the other."""
    batch: list[Envelope] = []
    for draft in drafts:
        admitted = record(fold, draft, ruleset=ruleset, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold)


def tick(
    fold: Fold, *, ruleset: Ruleset, at: Instant, new_id: IdSource, breaks: TimeBreaks = NO_TIME_BREAKS
) -> Admitted | None:
    """The batch of what has fallen due by now; None if nothing has. What began to count before a break is extended."""
    batch: list[Envelope] = []
    while (deadline := ruleset.due(fold, only_recorded=True)) is not None and deadline.at <= at:
        draft = _extension_draft(deadline, breaks) or _due_draft(deadline, at)
        admitted = record(fold, draft, ruleset=ruleset, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold) if batch else None


def _due_draft(deadline: Deadline, at: Instant) -> Envelope:
    """The draft of a deadline that has come, which may say how late it is."""
    draft = deadline.make_draft()
    if not deadline.late_field or at == deadline.at:
        return draft
    late = round(seconds_between(deadline.at, at) * 1000)
    return replace(draft, event_data={**draft.event_data, deadline.late_field: late})


def _extension_draft(deadline: Deadline, breaks: TimeBreaks) -> Envelope | None:
    """A fact that lets the time for this count from the last break; None if no break concerns it."""
    opened = breaks.opened if deadline.is_default else NEVER
    since, reason = (opened, breaks.outage) if opened > breaks.clock_set else (breaks.clock_set, CLOCK_SET_REASON)
    if not NEVER < deadline.since < since:
        return None
    data: Json = {
        "since": since,
        "reason": reason,
        "expectation": deadline.make_draft().event_data.get("expectation", ""),
    }
    return hub_draft(EV_DEADLINE_EXTENDED, data, audience=[OPERATORS])


def pending_turns(state: State) -> tuple[Turn, ...]:
    """The turns to be run now: of each agent its oldest, unless it waits for a person's decision."""
    if state.status != "active" or not state.owed:
        return ()
    first: dict[str, Turn] = {}
    for turn in state.owed:
        first.setdefault(turn.speaker, turn)
    return tuple(turn for turn in first.values() if not turn.waits_for_person)


def owed_turn(state: State, turn_id: str) -> Turn | None:
    """The turn of this id, if it is still owed."""
    return next((turn for turn in state.owed if turn.turn_id == turn_id), None)


def stamp_draft(draft: Envelope, state: State, *, at: Instant, new_id: IdSource) -> Envelope:
    """The draft as the next envelope of the log. An id that it is given sorts behind all that were given before.

    The source of ids does not know the log: its clock may have been set back, or be that of another machine.
    """
    return Envelope(
        draft.envelope_id or id_after(new_id(), state.newest_id),
        state.channel_id,
        draft.sender_id,
        draft.audience,
        draft.event_type,
        draft.event_data,
        draft.causation_id,
        draft.priority,
        at,
        state.sequence + 1,
    )


def dated_draft(draft: Envelope, state: State, *, at: Instant) -> Envelope:
    """The draft as it would be recorded now. It is only looked at, so that no id is drawn for it."""
    return Envelope(
        draft.envelope_id,
        state.channel_id,
        draft.sender_id,
        draft.audience,
        draft.event_type,
        draft.event_data,
        draft.causation_id,
        draft.priority,
        at,
        state.sequence + 1,
    )


def hub_draft(event_type: str, data: Json, *, cause: str | None = None, audience: list[str] | None = None) -> Envelope:
    """A draft in the hub's own name."""
    return Envelope(sender_id=HUB, event_type=event_type, event_data=data, causation_id=cause, audience=audience)


def journal_draft(event_type: str, event: Json | msgspec.Struct, *, cause: str | None = None) -> Envelope:
    """A draft for the journal: in the hub's name, for operators."""
    data = data_of(event) if isinstance(event, msgspec.Struct) else event
    return hub_draft(event_type, data, cause=cause, audience=[OPERATORS])


def consequences(ruleset: Ruleset, fold: Fold, envelope: Envelope) -> tuple[Envelope, ...]:
    """What follows from an envelope that was just folded, as drafts."""
    if envelope.event_type in JOURNAL_TYPES:
        return ()
    cause, state, event = envelope.envelope_id, fold.state, event_of(envelope)
    asked = asks_adapter(ruleset, envelope, event)
    match event:
        case Text() | Packet() as said if state.ordered and state.speakers and not state.interjected:
            # The rules are read when the last of them has spoken; but a speaker that finishes ends it for all of them.
            finishes = asked and isinstance(said, Packet) and said.routing.finish is not None
            decision = ruleset.decide(fold, envelope) if finishes else None
            return (_closing_draft(decision.reason, cause),) if isinstance(decision, Close) else ()
        case Text() | Packet() | ChannelOpened():
            decided = _decision_drafts(_decide_next(ruleset, fold, envelope), state, envelope) if asked else ()
            return decided if state.prepared is None else (*decided, first_words_draft(state, state.prepared))
        case ChannelCreated() | InviteAccepted() if not state.awaiting and state.status == "invited":
            return (hub_draft(EV_CHANNEL_OPENED, {}, cause=cause),)
        case InviteRejected() if not state.ended:
            return (_closing_draft(f"invite_rejected:{envelope.sender_id}", cause),)
        case FailedTurn() as failed:
            return _decision_drafts(ruleset.recover(fold, failed), state, envelope)
        case ExpectationViolated(handler="fail") if state.owed:
            late = state.owed[0]  # the oldest: expectations count from its assignment, see `_remove_turn` in evolve
            return (turn_failed_draft(late, *_overdue_reason(late), cause=cause, agent=starting_agent(state, late)),)
        case ExpectationViolated(expectation=name, handler="auto_close"):
            return (_closing_draft(f"expectation_violated:{name}", cause),)
        case ChannelExpired():
            return (_closing_draft("expired", cause),)
        case _:  # `reacts` holds no other events of the hub: see `check_adapter_class`
            return _decision_drafts(ruleset.decide(fold, envelope), state, envelope) if asked else ()


def asks_adapter(ruleset: Ruleset, envelope: Envelope, event: Event) -> bool:
    """Whether `decide` is called for this envelope. Data that does not have the shape of its type moves nothing."""
    kind = envelope.event_type
    return kind in ruleset.traits.reacts and (event is not OTHER_EVENT or not kind.startswith(RESERVED_PREFIXES))


def first_words_draft(state: State, text: str) -> Envelope:
    """What the creator of a channel says first, as a draft. It is known by its id."""
    words: Json = {"text": text}
    return Envelope(derived_id(state.channel_id, FIRST_WORDS_ID), "", state.creator_id, None, EV_TEXT, words)


def _judge_first_words(ruleset: Ruleset, fold: Fold, words: Envelope) -> Envelope:
    """The first words, judged like everything that is said.

    They were judged when they were prepared. If rules that have changed since refuse them, the channel ends.
    """
    judged = ruleset.judge(fold, words)
    return _closing_draft(f"refused:{judged.reason}", None) if isinstance(judged, Deny) else words


def _decide_next(ruleset: Ruleset, fold: Fold, envelope: Envelope) -> Decision:
    """What the rules say. They are not asked about an interjection by a participant that has the turn.

    An agent that has the turn, and has not begun, is given it again after an interjection.
    """
    state = fold.state
    decision = Wait() if envelope.event_data.get(ASIDE_FIELD) is True else ruleset.decide(fold, envelope)
    if not state.interjected or not state.owed or not isinstance(decision, Wait) or decision.reason:
        return decision
    begun = any(turn.epoch for turn in state.owed)
    return decision if begun else Assign(state.speakers, "interjection", errors=decision.errors)


def _decision_drafts(decision: Decision, state: State, cause: Envelope) -> tuple[Envelope, ...]:
    outcome, because = _outcome_draft(decision, state, cause), cause.envelope_id
    errors = [
        hub_draft(EV_RULE_FAILED, {"rule": each.rule, "error": each.error}, cause=because, audience=[OPERATORS])
        for each in decision.errors
    ]
    facts = fact_drafts(decision.facts, because) if decision.facts else ()
    return (*errors, *facts, outcome) if outcome is not None else (*errors, *facts)


def fact_drafts(facts: Iterable[RelatedFact], cause: str | None) -> tuple[Envelope, ...]:
    """Facts that belong to an envelope, as drafts."""
    return tuple(
        hub_draft(fact.event_type, fact.data, cause=cause, audience=None if fact.audience is None else [*fact.audience])
        for fact in facts
    )


def _outcome_draft(decision: Decision, state: State, cause: Envelope) -> Envelope | None:
    because = cause.envelope_id
    match decision:
        case Wait(reason=""):
            return None
        case Wait(reason=reason):
            return hub_draft(EV_CHANNEL_PAUSED, {"reason": reason}, cause=because)
        case Assign(speakers=()):
            return _closing_draft("nobody_is_next", because)
        case Assign(speakers=speakers) if not state.participants.keys() >= set(speakers):
            stranger = next(name for name in speakers if name not in state.participants)
            return _closing_draft(f"unknown_speaker:{stranger}", because)
        case Assign():
            return _assignment_draft(decision, cause)
        case Close(reason=reason):
            return _closing_draft(reason, because)
        case _:
            raise TypeError(f"decide returned {describe(decision)}; return Assign, Wait or Close")


def _assignment_draft(decision: Assign, cause: Envelope) -> Envelope:
    """Who has the turn. A speaker that may not see what it is to answer sees at least this."""
    data: Json = {"speakers": list(decision.speakers), "reason": decision.reason}
    if decision.rule is not None:
        data["rule"] = decision.rule
    message = decision.answers
    if message is not None:  # the speakers may see it: else they would not be asked to answer it
        data["shown"] = message.sequence
        if message.audience is not None:
            data["audience"] = list(message.audience)
        return hub_draft(EV_TURN_ASSIGNED, data, cause=message.envelope_id, audience=[OPERATORS])
    unaware = (name for name in decision.speakers if not visible_to(cause, name))
    return hub_draft(EV_TURN_ASSIGNED, data, cause=cause.envelope_id, audience=[OPERATORS, *unaware])


def _closing_draft(reason: str, cause: str | None) -> Envelope:
    return hub_draft(EV_CHANNEL_CLOSED, {"reason": reason}, cause=cause)


def turn_failed_draft(turn: Turn, reason: str, detail: str, *, cause: str | None, agent: str = "") -> Envelope:
    """The failure of a turn, for all that heard what it was to answer."""
    data: Json = {"turn": turn.turn_id, "speaker": turn.speaker, "reason": reason, "detail": detail}
    if agent:
        data["agent"] = agent
    return hub_draft(EV_TURN_FAILED, data, cause=cause, audience=turn_audience(turn))


def turn_audience(turn: Turn) -> list[str] | None:
    """Who sees the answer and the failure of a turn; None for all participants."""
    return None if turn.audience is None else list(turn.audience)


def starting_agent(state: State, turn: Turn) -> str:
    """The agent of a team that a turn would begin with; "" for the speaker itself, and once the turn was claimed."""
    return "" if turn.epoch else state.active.get(turn.speaker, "")


def _overdue_reason(turn: Turn) -> tuple[str, str]:
    if not turn.epoch:
        return "not_run", f"no hub in which {turn.speaker!r} is registered has run it"
    return "deadline", "it was not finished in time"
