"""A hub made of dicts: what should be in every log, whose turn it is, and what nobody has read yet.

It knows no store, no fold and no event but by its short name; it is what the real hub is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon import Envelope
from tests.laws.script_strategies import KINDS

OPERATORS = "hub:operators"
OFF = [{"name": name, "seconds": 0} for name in ("acks_within", "reply_within", "max_silence", "turn_within")]


@dataclass(frozen=True)
class Said:
    """One envelope, as far as the model knows it."""

    sender: str
    type: str
    audience: tuple[str, ...] | None
    data: object

    def seen_by(self, name: str) -> bool:
        return self.audience is None or name in self.audience or name == self.sender


def said_of(envelope: Envelope) -> Said:
    audience = None if envelope.audience is None else tuple(envelope.audience)
    data: object = envelope.event_data
    match envelope.event_type:
        case "ag2.channel.invite" | "antiphon.channel.created":
            data = None
        case "antiphon.turn.assigned":
            data = tuple(envelope.event_data["speakers"])  # type: ignore[arg-type]  # a list of names
        case "ag2.channel.closed":
            data = envelope.event_data["reason"]
    return Said(envelope.sender_id, envelope.event_type, audience, data)


@dataclass
class Room:
    """One channel."""

    type: str
    people: list[str]
    expires: float | None
    status: str = "active"
    reason: str = ""
    speakers: tuple[str, ...] = ()
    queue: list[str] = field(default_factory=list)
    """In a conversation, whose turns are owed: one for each message to an agent."""
    turns: int = 0
    last: str | None = None
    context: dict[str, object] = field(default_factory=dict)
    log: list[Said] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    messages: dict[tuple[str, str], tuple[int, object, object]] = field(default_factory=dict)
    """By sender and message id: the place in the log, the text, and the audience."""

    def begin(self) -> None:
        guests = self.people[1:]
        self._hub("antiphon.channel.created", None, (OPERATORS,))
        for guest in guests:
            self._hub("ag2.channel.invite", None, (guest,))
        for guest in guests:
            self.log.append(Said(guest, "ag2.channel.invite.ack", None, {}))
        self._hub("ag2.channel.opened", {})
        if self.type != "conversation":
            self._assign(self.people[0])

    def refusal(self, who: str, audience: tuple[str, ...] | None, *, speaks: bool) -> str | None:
        """Why this may not be recorded now."""
        if who not in self.people:
            return "not_a_participant"
        if self.status != "active":
            return "channel_closed"
        if any(name not in self.people for name in audience or ()):
            return "unknown_audience"
        if speaks and self.type != "conversation" and who not in self.speakers and KINDS[who] != "human":
            return "not_expected_speaker"
        return None

    def note(self, who: str, event_type: str, data: object, audience: tuple[str, ...] | None) -> None:
        self.log.append(Said(who, event_type, audience, data))

    def spoken(self, who: str, audience: tuple[str, ...] | None = None) -> None:
        """What follows when somebody has spoken."""
        if self.type != "conversation" and who not in self.speakers:
            if any(KINDS[name] == "agent" for name in self.speakers):  # who has not begun, and is to hear it
                self._assign(*self.speakers)
            return
        self.turns, self.last = self.turns + 1, who
        self.speakers = tuple(name for name in self.speakers if name != who)
        place = self.people.index(who)
        match self.type:
            case "conversation":
                self._converse(who, audience)
            case "consulting" if place == 1:
                self.end("answered")
            case _:
                self._assign(self.people[(place + 1) % len(self.people)])

    def _converse(self, who: str, audience: tuple[str, ...] | None) -> None:
        """What was said may answer a message, and is one to every agent that may see it."""
        if who in self.queue:
            self.queue.remove(who)
        self.speakers = tuple(dict.fromkeys((*self.speakers, *self.queue)))
        owing = [name for name in self.people if KINDS[name] == "agent" and name != who]
        owing = [name for name in owing if audience is None or name in audience]
        if owing:
            before = self.speakers if self.queue else ()
            self._assign(*owing)
            self.speakers = tuple(dict.fromkeys((*before, *owing)))
            self.queue.extend(owing)

    def end(self, reason: str) -> None:
        self._hub("ag2.channel.closed", reason)
        self.status, self.reason, self.speakers, self.queue = "closed", reason, (), []

    def expire(self) -> None:
        self._hub("ag2.channel.expired", {})
        self.end("expired")
        self.status = "expired"

    def unread(self, name: str) -> list[int]:
        """The sequences of what is addressed to somebody and not acknowledged."""
        if name not in self.people:
            return []
        behind = enumerate(self.log[self.read.get(name, 0) :], self.read.get(name, 0) + 1)
        return [place for place, said in behind if said.seen_by(name) and said.sender != name]

    def _assign(self, *speakers: str) -> None:
        unaware = tuple(name for name in speakers if not self.log[-1].seen_by(name))
        self._hub("antiphon.turn.assigned", speakers, (OPERATORS, *unaware))
        self.speakers = speakers

    def _hub(self, event_type: str, data: object, audience: tuple[str, ...] | None = None) -> None:
        self.log.append(Said("hub", event_type, audience, data))
