"""The adapters of conversations, consultations and discussions, and what adapters are given that declare no more.

Rule 1: after a failed turn the adapter says who continues. `recover_from_failure` is what every adapter does that does
        not say otherwise.
Rule 2: `traits_of` is the one place where what an adapter leaves out is filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import replace

from antiphon.core.envelope import Envelope, Json, visible_to
from antiphon.core.event_data import data_of, event_of
from antiphon.core.events import EV_CHANNEL_OPENED, EV_PACKET, FailedTurn, Packet, Routing
from antiphon.core.ruleset import NO_TRAITS, REACTS_BY_DEFAULT, Adapter, AdapterTraits, Expectation, Seats, TurnEnd
from antiphon.core.state import WAIT, Assign, Close, Decision, State, Wait
from antiphon.core.views import view_by_size

ACKS_WITHIN = Expectation("acks_within", 30, "auto_close")
RUNS_WITHIN = Expectation("turn_within", 600, "fail")
"""The default for agents, so that no turn is owed for ever."""
ORDERED_EXPECTATIONS = (
    ACKS_WITHIN,
    Expectation("turn_within", 120, "warn"),
    Expectation("turn_within", 600, "auto_close"),
)
"""What discussions and workflows expect."""
MAX_UNATTENDED_TURNS = 20
AfterGroup = Callable[[State, Envelope], Decision]
"""What the rules say when a whole group has failed. The envelope stands for the answer of the last that failed."""
MAX_GROUP_FAILURES = 3
"""How often in a row a group may fail as a whole before its rules are asked no more."""


def recover_from_failure(
    adapter: Adapter, state: State, failed: FailedTurn, *, memory: object = None, after_group: AfterGroup | None = None
) -> Decision:
    """Who continues after a failed turn: in a free channel any other speaker, in an ordered one a person.

    If others who were given the turn with the speaker have answered, the rules continue from the last answer. If all
    have failed, `after_group` decides; its `Wait()` means that the rules say nothing of it. A group that fails as a
    whole again and again is given up.
    """
    reason = f"turn_failed:{failed.reason}"
    if not state.ordered:
        attended = any(kind != "agent" for kind in state.participants.values())
        return Wait("" if attended or state.owed else reason)
    if state.speakers:
        return WAIT
    if state.turn_count > state.assigned_turns and state.last_speaker_id is not None:
        answer = _stand_in(
            state, state.last_speaker_id, envelope_id=state.last_envelope_id or "", routing=state.routing
        )
        return adapter.decide(memory, replace(state, interjected=False), answer)
    recovered: Decision = WAIT
    if after_group is not None and state.group and state.failures < MAX_GROUP_FAILURES * len(state.group):
        recovered = after_group(state, _stand_in(state, failed.speaker))
    if not isinstance(recovered, Wait):
        return recovered
    person = next((name for name, kind in state.participants.items() if kind == "human"), None)
    errors = recovered.errors
    return Close(reason, errors=errors) if person is None else Assign((person,), reason, errors=errors)


def _stand_in(state: State, speaker: str, *, envelope_id: str = "", routing: Routing | None = None) -> Envelope:
    """An envelope for the rules to be asked about, in place of an answer that is missing or not at hand."""
    data: Json = {"body": ""} if routing is None else {"body": "", "routing": data_of(routing)}
    at, place = state.updated_at, state.sequence
    return Envelope(envelope_id, state.channel_id, speaker, None, EV_PACKET, data, created_at=at, sequence=place)


def ends_in(adapter: Adapter | type[Adapter]) -> TurnEnd:
    """What a turn ends in: as `ends_in` says, or `packets = True`, or a text."""
    declared: TurnEnd | None = getattr(adapter, "ends_in", None)
    return declared or ("packet" if getattr(adapter, "packets", False) else "text")


def traits_of(adapter: Adapter) -> AdapterTraits:
    """What an adapter declares beside what it must, with the defaults for what it does not."""

    def recover(memory: object, state: State, failed: FailedTurn) -> Decision:
        return recover_from_failure(adapter, state, failed, memory=memory)

    return AdapterTraits(
        ends_in(adapter),
        getattr(adapter, "reacts", REACTS_BY_DEFAULT),
        getattr(adapter, "routing_tools", None),
        getattr(adapter, "view", view_by_size),
        getattr(adapter, "threaded", False),
        getattr(adapter, "handoffs", None),
        getattr(adapter, "promised", NO_TRAITS.promised),
        getattr(adapter, "recover", recover),
    )


def finish_decision(envelope: Envelope) -> Close | None:
    """The end of the channel, if this is a packet that says the work is finished; None otherwise."""
    # Most packets do not: their data is not decoded for that.
    routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
    event = event_of(envelope) if isinstance(routing, dict) and routing.get("finish") is not None else None
    if not isinstance(event, Packet) or event.routing.finish is None:
        return None
    return Close(event.routing.finish or "finished")


class Conversation:
    """Two talk freely. What is said to an agent is a turn it owes."""

    name: ClassVar[str] = "conversation"
    seats: ClassVar[Seats] = Seats(2, 2)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = (ACKS_WITHIN, RUNS_WITHIN)

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_CHANNEL_OPENED:
            return WAIT
        finished = finish_decision(envelope)
        if finished is not None:
            return finished
        speaker = envelope.sender_id
        owing = [name for name, kind in state.participants.items() if kind == "agent" and name != speaker]
        owing = [name for name in owing if visible_to(envelope, name)]
        if owing and state.unattended >= MAX_UNATTENDED_TURNS:
            return Wait(f"unattended:{state.unattended}")
        return Assign(tuple(owing)) if owing else WAIT


class Consulting:
    """The creator asks once, the other answers once, and the channel ends."""

    name: ClassVar[str] = "consulting"
    seats: ClassVar[Seats] = Seats(2, 2)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset({"task"})
    """From where a task was given."""
    expectations: ClassVar[tuple[Expectation, ...]] = (
        ACKS_WITHIN,
        Expectation("reply_within", 120, "warn"),
        Expectation("reply_within", 600, "auto_close"),
    )

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        asker, consultant = state.participant_order
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((asker,), "asks")
        if state.interjected:
            return WAIT
        answer = Assign((consultant,), "answers") if envelope.sender_id == asker else Close("answered")
        return finish_decision(envelope) or answer


class Discussion:
    """Two or more speak in turn, round and round, until one closes the channel."""

    name: ClassVar[str] = "discussion"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ORDERED_EXPECTATIONS

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        order = state.participant_order
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((order[0],), "opens")
        if state.interjected:
            return WAIT
        place = order.index(envelope.sender_id)
        return finish_decision(envelope) or Assign((order[(place + 1) % len(order)],), "next in the round")


class SystemAdapter:
    """A channel in which nothing follows from anything: the hub's own, and those that can only be read."""

    recorded_as: ClassVar[str] = "Quiet"
    name: ClassVar[str] = "system"
    seats: ClassVar[Seats] = Seats(0, 0)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return WAIT
