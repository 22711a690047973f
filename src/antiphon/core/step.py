"""A draft and everything it causes, as one batch.

Rule 1: a decision is recorded with its cause, or neither is.
Rule 2: nothing here waits, stores or publishes. Time and ids come in as arguments.
Rule 3: what follows from an envelope are a few more (`consequences`), each of which may have some of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from antiphon.core.decision import Assign, Close, Decision, RuleError, Wait
from antiphon.core.envelope import HUB, OPERATORS, Envelope, visible_to
from antiphon.core.events import (
    ASIDE,
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_OPENED,
    EV_CHANNEL_PAUSED,
    EV_DEADLINE_EXTENDED,
    EV_PACKET,
    EV_RULE_FAILED,
    EV_TEXT,
    EV_TURN_ASSIGNED,
    EV_TURN_FAILED,
    JOURNAL,
    Acknowledged,
    Created,
    Expired,
    Failed,
    Json,
    Opened,
    Packet,
    Rejected,
    Text,
    Violated,
    data_of,
    event_of,
)
from antiphon.core.evolve import CLOCK_SET
from antiphon.core.guard import NO_BREAKS, Breaks, Deadline, Deny, Later
from antiphon.core.ids import IdSource, derived_id, sorted_behind
from antiphon.core.instants import NEVER, Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State, Turn
from antiphon.core.words import shown

REFUSALS = (Deny, Later)
MOST_TRIES = 3
"""How often in a row a group may fail as a whole before its rules are asked no more."""
FIRST = "first words"
"""What the first words of a channel are known by."""


class Admitted(msgspec.Struct, frozen=True):
    """A batch to be recorded whole, and the fold it leads to."""

    batch: tuple[Envelope, ...]
    fold: Fold
    copied: int = 0
    """How many of its envelopes, from the first on, are copies of recorded ones: they were checked before."""


def step(fold: Fold, draft: Envelope, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny | Later:
    """Admit one draft, or say why not, or that it must wait."""
    judged = laws.judge(fold, draft)
    if isinstance(judged, REFUSALS):
        return judged
    return record(fold, judged, laws=laws, at=at, new_id=new_id)


def record(fold: Fold, draft: Envelope, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted:
    """Record a draft that needs no judgement (the hub's own), with all that follows from it."""
    batch: list[Envelope] = []
    at = max(fold.state.updated_at, at)
    following = [draft]
    for each in following:  # which grows meanwhile
        said = each if each is draft or each.sender_id == HUB else _first_said(laws, fold, each)
        envelope = stamped(said, fold.state, at=at, new_id=new_id)
        fold = laws.fold(fold, envelope)
        batch.append(envelope)
        following += consequences(laws, fold, envelope)
    return Admitted(tuple(batch), fold)


def recorded(fold: Fold, drafts: Iterable[Envelope], *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted:
    """Record several drafts that need no judgement, one after the other, as one batch."""
    batch: list[Envelope] = []
    for draft in drafts:
        admitted = record(fold, draft, laws=laws, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold)


def tick(fold: Fold, *, laws: Laws, at: Instant, new_id: IdSource, breaks: Breaks = NO_BREAKS) -> Admitted | None:
    """Record what has fallen due by now; None if nothing has. What began to count before a break is extended."""
    batch: list[Envelope] = []
    while (deadline := laws.due(fold)) is not None and deadline.at <= at:
        draft = _extension(deadline, breaks) or deadline.draft
        admitted = record(fold, draft, laws=laws, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold) if batch else None


def _extension(deadline: Deadline, breaks: Breaks) -> Envelope | None:
    """That the time for this counts from the last break; None if no break concerns it."""
    opened = breaks.opened if deadline.is_default else NEVER
    since, reason = (opened, breaks.outage) if opened > breaks.clock_set else (breaks.clock_set, CLOCK_SET)
    if not NEVER < deadline.since < since:
        return None
    data: Json = {"since": since, "reason": reason, "expectation": deadline.draft.event_data.get("expectation", "")}
    return said_by_hub(EV_DEADLINE_EXTENDED, data, audience=[OPERATORS])


def pending(state: State) -> tuple[Turn, ...]:
    """The turns to be run now: of each agent its oldest, unless it waits for a person's decision."""
    if state.status != "active" or not state.owed:
        return ()
    first: dict[str, Turn] = {}
    for turn in state.owed:
        first.setdefault(turn.speaker, turn)
    return tuple(turn for turn in first.values() if not turn.waits_for_person)


def stamped(draft: Envelope, state: State, *, at: Instant, new_id: IdSource) -> Envelope:
    """The draft as the next envelope of the log. An id that it is given sorts behind all that were given before.

    The source of ids does not know the log: its clock may have been set back, or be that of another machine.
    """
    return Envelope(
        draft.envelope_id or sorted_behind(new_id(), state.newest_id),
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


def said_by_hub(
    event_type: str, data: Json, *, cause: str | None = None, audience: list[str] | None = None
) -> Envelope:
    """A draft in the hub's own name."""
    return Envelope(sender_id=HUB, event_type=event_type, event_data=data, causation_id=cause, audience=audience)


def consequences(laws: Laws, fold: Fold, envelope: Envelope) -> tuple[Envelope, ...]:
    """What follows from an envelope that was just folded, as drafts."""
    if envelope.event_type in JOURNAL:
        return ()
    cause, state = envelope.envelope_id, fold.state
    match event_of(envelope):
        case Text() | Packet() as said if _others_owe(state):
            return _ended_by(laws.decide(fold, envelope), cause) if _finishes(said) else ()
        case Text() | Packet() | Opened():
            decided = _carried_out(_decided(laws, fold, envelope), state, envelope)
            return decided if state.prepared is None else (*decided, first_words(state, state.prepared))
        case Created() | Acknowledged() if not state.awaiting and state.status == "invited":
            return (said_by_hub(EV_CHANNEL_OPENED, {}, cause=cause),)
        case Rejected() if not state.ended:
            return (_closing(f"invite_rejected:{envelope.sender_id}", cause),)
        case Failed() as failed:
            return _carried_out(_after_failure(laws, fold, failed), state, envelope)
        case Violated(handler="fail") if state.owed:
            late = state.owed[0]
            return (turn_failed(late, *_overdue(late), cause=cause, agent=next_to_answer(state, late)),)
        case Violated(expectation=name, handler="auto_close"):
            return (_closing(f"expectation_violated:{name}", cause),)
        case Expired():
            return (_closing("expired", cause),)
        case _:
            return ()


def first_words(state: State, text: str) -> Envelope:
    """What the creator of a channel says first, as a draft. It is known by its id."""
    words: Json = {"text": text}
    return Envelope(derived_id(state.channel_id, FIRST), "", state.creator_id, None, EV_TEXT, words)


def _first_said(laws: Laws, fold: Fold, words: Envelope) -> Envelope:
    """The first words, judged like everything that is said.

    They were judged when they were prepared. If rules that have changed since refuse them, the channel ends.
    """
    judged = laws.judge(fold, words)
    return _closing(f"refused:{judged.reason}", None) if isinstance(judged, Deny) else words


def _others_owe(state: State) -> bool:
    """Whether somebody else who was given the turn has yet to speak, so that the rules are not read again."""
    return state.ordered and bool(state.speakers) and not state.interjected


def _finishes(said: Text | Packet) -> bool:
    return isinstance(said, Packet) and said.routing.finish is not None


def _ended_by(decision: Decision, cause: str) -> tuple[Envelope, ...]:
    """Whoever says that there is nothing left to do ends the channel for the others who have the turn too."""
    return (_closing(decision.reason, cause),) if isinstance(decision, Close) else ()


def _decided(laws: Laws, fold: Fold, envelope: Envelope) -> Decision:
    """What the rules say. They are not asked about a word that was said before its speaker had the turn.

    An agent that has the turn, and has not begun, is given it again when somebody has put in a word before it.
    """
    state = fold.state
    decision = Wait() if envelope.event_data.get(ASIDE) is True else laws.decide(fold, envelope)
    if not state.interjected or not state.owed or not isinstance(decision, Wait) or decision.reason:
        return decision
    begun = any(turn.epoch for turn in state.owed)
    return decision if begun else Assign(state.speakers, "interjection", errors=decision.errors)


def _carried_out(decision: Decision, state: State, cause: Envelope) -> tuple[Envelope, ...]:
    outcome = _outcome(decision, state, cause)
    told = () if outcome is None else (outcome,)
    return (*(_trouble(error, cause.envelope_id) for error in decision.errors), *told) if decision.errors else told


def _outcome(decision: Decision, state: State, cause: Envelope) -> Envelope | None:
    because = cause.envelope_id
    match decision:
        case Wait(reason=""):
            return None
        case Wait(reason=reason):
            return said_by_hub(EV_CHANNEL_PAUSED, {"reason": reason}, cause=because)
        case Assign(speakers=()):
            return _closing("nobody_is_next", because)
        case Assign(speakers=speakers) if not state.participants.keys() >= set(speakers):
            stranger = next(name for name in speakers if name not in state.participants)
            return _closing(f"unknown_speaker:{stranger}", because)
        case Assign():
            return _assignment(decision, cause)
        case Close(reason=reason):
            return _closing(reason, because)
        case _:
            raise TypeError(f"decide returned {shown(decision)}; return Assign, Wait or Close")


def _assignment(decision: Assign, cause: Envelope) -> Envelope:
    """That somebody has the turn. Whoever may not see what they are to answer is told at least that."""
    data: Json = {"speakers": list(decision.speakers), "reason": decision.reason}
    if decision.rule is not None:
        data["rule"] = decision.rule
    unaware = (name for name in decision.speakers if not visible_to(cause, name))
    return said_by_hub(EV_TURN_ASSIGNED, data, cause=cause.envelope_id, audience=[OPERATORS, *unaware])


def _trouble(error: RuleError, cause: str) -> Envelope:
    return said_by_hub(EV_RULE_FAILED, {"rule": error.rule, "error": error.error}, cause=cause, audience=[OPERATORS])


def _closing(reason: str, cause: str | None) -> Envelope:
    return said_by_hub(EV_CHANNEL_CLOSED, {"reason": reason}, cause=cause)


def turn_failed(turn: Turn, reason: str, detail: str, *, cause: str | None, agent: str = "") -> Envelope:
    """That this turn ended without an answer, for everybody who heard what it was to answer."""
    data: Json = {"turn": turn.turn_id, "speaker": turn.speaker, "reason": reason, "detail": detail}
    if agent:
        data["agent"] = agent
    return said_by_hub(EV_TURN_FAILED, data, cause=cause, audience=audience_of(turn))


def audience_of(turn: Turn) -> list[str] | None:
    """Who is told of a turn; None is everybody."""
    return None if turn.audience is None else list(turn.audience)


def next_to_answer(state: State, turn: Turn) -> str:
    """The agent of a team that a turn would begin with; "" for the speaker itself, and once the turn was claimed."""
    return "" if turn.epoch else state.active.get(turn.speaker, "")


def _overdue(turn: Turn) -> tuple[str, str]:
    if not turn.epoch:
        return "not_run", f"no hub in which {turn.speaker!r} is registered has run it"
    return "deadline", "it was not finished in time"


def _after_failure(laws: Laws, fold: Fold, failed: Failed) -> Decision:
    """Who goes on when an agent could not: in a free channel whoever else speaks in it, in an ordered one a person.

    If others who were given the turn with it have answered, the rules go on from the last of them. If they have all
    failed, the rules for that are read; a group that fails again and again is given up.
    """
    state, reason = fold.state, f"turn_failed:{failed.reason}"
    if not state.ordered:
        attended = any(kind != "agent" for kind in state.participants.values())
        return Wait("" if attended or state.owed else reason)
    if state.speakers:
        return Wait()
    if state.turn_count > state.assigned_turns and state.last_speaker_id is not None:
        in_turn = Fold(msgspec.structs.replace(state, interjected=False), fold.memories)
        return laws.decide(in_turn, _stand_in(state, state.last_speaker_id))
    recovered: Decision = Wait()
    if state.group and state.failures < MOST_TRIES * len(state.group):
        recovered = laws.recover(fold, _nothing_said(state, failed.speaker))
    if not isinstance(recovered, Wait):
        return recovered
    person = next((name for name, kind in state.participants.items() if kind == "human"), None)
    errors = recovered.errors
    return Close(reason, errors=errors) if person is None else Assign((person,), reason, errors=errors)


def _nothing_said(state: State, speaker: str) -> Envelope:
    """What stands for the answer that a speaker did not give, so that rules can be asked."""
    blank: Json = {"body": ""}
    at, place = state.updated_at, state.sequence
    return Envelope("", state.channel_id, speaker, None, EV_PACKET, blank, created_at=at, sequence=place)


def _stand_in(state: State, speaker: str) -> Envelope:
    """The last answer, as far as the state remembers it."""
    return Envelope(
        state.last_envelope_id or "",
        state.channel_id,
        speaker,
        None,
        EV_PACKET,
        {"body": "", "routing": data_of(state.routing)},
        sequence=state.sequence,
        created_at=state.updated_at,
    )
