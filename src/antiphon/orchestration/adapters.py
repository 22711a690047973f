"""The adapters for two people talking, one question and one answer, and a round of equals."""

from __future__ import annotations

from typing import ClassVar

from antiphon.core.decision import WAIT, Assign, Close, Decision, Wait
from antiphon.core.envelope import Envelope, visible_to
from antiphon.core.events import EV_CHANNEL_OPENED, EV_PACKET, Json, Packet, event_of
from antiphon.core.rules import Expectation, Seats
from antiphon.core.state import State

ACKS = Expectation("acks_within", 30, "auto_close")
RUNS = Expectation("turn_within", 600, "fail")
"""What is expected of agents where nothing else is: no turn is owed for ever."""
MOST_UNATTENDED = 20


def closed_by(envelope: Envelope) -> Close | None:
    """The end of the channel, if this is a packet that says the work is finished; None otherwise."""
    event = event_of(envelope) if envelope.event_type == EV_PACKET else None
    if not isinstance(event, Packet) or event.routing.finish is None:
        return None
    return Close(event.routing.finish or "finished")


class Conversation:
    """Two talk freely. What is said to an agent is a turn it owes."""

    name: ClassVar[str] = "conversation"
    seats: ClassVar[Seats] = Seats(2, 2)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = (ACKS, RUNS)

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_CHANNEL_OPENED:
            return WAIT
        finished = closed_by(envelope)
        if finished is not None:
            return finished
        speaker = envelope.sender_id
        owing = [name for name, kind in state.participants.items() if kind == "agent" and name != speaker]
        owing = [name for name in owing if visible_to(envelope, name)]
        if owing and state.unattended >= MOST_UNATTENDED:
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
        ACKS,
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
        return closed_by(envelope) or answer


class Discussion:
    """Two or more speak in turn, round and round, until somebody closes."""

    name: ClassVar[str] = "discussion"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = (
        ACKS,
        Expectation("turn_within", 120, "warn"),
        Expectation("turn_within", 600, "auto_close"),
    )

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        order = state.participant_order
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((order[0],), "opens")
        if state.interjected:
            return WAIT
        place = order.index(envelope.sender_id)
        return closed_by(envelope) or Assign((order[(place + 1) % len(order)],), "next in the round")


class Quiet:
    """A channel in which nothing follows from anything: the hub's own, and those that can only be read."""

    name: ClassVar[str] = "system"
    seats: ClassVar[Seats] = Seats(0, 0)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return WAIT
