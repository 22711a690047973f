"""Short ways to write down envelopes and states."""

from __future__ import annotations

from itertools import count

from antiphon import Envelope, Priority
from antiphon.core.envelope import add_seconds
from antiphon.core.evolve import evolve
from antiphon.core.state import State
from antiphon.testing.manual_clock import MANUAL_CLOCK_START

CREATED, ASSIGNED = "antiphon.channel.created", "antiphon.turn.assigned"


def at(seconds: float) -> str:
    return add_seconds(MANUAL_CLOCK_START, seconds)


def fact(
    sender: str, event_type: str, data: dict[str, object] | None = None, *, audience: list[str] | None = None
) -> Envelope:
    """An envelope that is not yet part of a log."""
    return Envelope("", "here", sender, audience, event_type, {} if data is None else data, None, Priority.NORMAL)


def said(sender: str, text: str = "hello", audience: list[str] | None = None) -> Envelope:
    return fact(sender, "ag2.msg.text", {"text": text}, audience=audience)


def packed(sender: str, body: str = "done", **updates: object) -> Envelope:
    return fact(sender, "ag2.packet", {"body": body, "routing": {}, "context_updates": updates})


def written(sender: str, new: dict[str, object], *gone: str) -> Envelope:
    return fact(sender, "ag2.context.set", {"set": new, "delete": list(gone)})


def created(*people: str, ordered: bool = True, ttl: float | None = None, **context: object) -> Envelope:
    """`name:kind` is somebody of that kind."""
    seats = [dict(zip(("name", "kind"), (*each.split(":"), "service"), strict=False)) for each in people]
    data = {
        "type": "discussion",
        "creator": seats[0]["name"],
        "participants": seats,
        "knobs": {},
        "ordered": ordered,
        "ttl": ttl,
        "context_vars": context,
    }
    return fact("hub", CREATED, data, audience=["hub:operators"])


def acked(name: str) -> Envelope:
    return fact(name, "ag2.channel.invite.ack")


def opened() -> Envelope:
    return fact("hub", "ag2.channel.opened")


def assigned(*speakers: str) -> Envelope:
    return fact("hub", ASSIGNED, {"speakers": list(speakers), "reason": ""}, audience=["hub:operators"])


def closed(reason: str = "done") -> Envelope:
    return fact("hub", "ag2.channel.closed", {"reason": reason})


def log_of(*facts: Envelope) -> list[Envelope]:
    """The facts as a log: numbered, named `e1`, `e2`, …, and one second apart."""
    numbers = count(1)
    return [
        Envelope(
            f"e{number}",
            each.channel_id,
            each.sender_id,
            each.audience,
            each.event_type,
            each.event_data,
            each.causation_id,
            each.priority,
            at(number),
            number,
        )
        for number, each in zip(numbers, facts, strict=False)
    ]


def state_of(*facts: Envelope) -> State:
    state = State()
    for envelope in log_of(*facts):
        state = evolve(state, envelope)
    return state
