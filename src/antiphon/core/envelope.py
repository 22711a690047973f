"""The envelope: one immutable recorded fact, and the names, ids and instants that it carries.

Rule 1: exactly these ten fields. Anything else belongs in `event_data`.
Rule 2: the hub stamps `envelope_id`, `created_at` and `sequence`, once. An envelope without them is a draft.
Rule 3: who may see an envelope is answered by `visible_to` and by nothing else.
Rule 4: ids are time-ordered for what is new, and derived for what must be the same each time.
Rule 5: an instant is ISO 8601 in UTC with microseconds and a Z, always 27 characters, so that instants compare as text.
Rule 6: nothing here reads a clock or draws random bits; both come in as arguments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import lru_cache

from antiphon.core.errors import BadName
from antiphon.core.text import describe

HUB = "hub"
"""The sender of everything the hub says itself."""

OPERATORS = "hub:operators"
"""An audience that no participant is part of: bookkeeping that only the operator's view shows."""


class Priority(IntEnum):
    """Orders drafts that wait for admission. It never reorders a log."""

    BACKGROUND = 0
    NORMAL = 1
    URGENT = 2


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who said what to whom, because of which other envelope. A draft until the hub has stamped it."""

    envelope_id: str = ""
    channel_id: str = ""
    sender_id: str = ""
    audience: list[str] | None = None
    """None is everybody in the channel; otherwise only those named, and the sender."""
    event_type: str = ""
    event_data: dict[str, object] = field(default_factory=dict)
    causation_id: str | None = None
    """The envelope this one answers."""
    priority: Priority = Priority.NORMAL
    created_at: str = ""
    sequence: int = 0


def with_event_data(envelope: Envelope, event_data: dict[str, object]) -> Envelope:
    """The envelope with other data. `dataclasses.replace` takes several times as long, and each call needs this."""
    return Envelope(
        envelope.envelope_id,
        envelope.channel_id,
        envelope.sender_id,
        envelope.audience,
        envelope.event_type,
        event_data,
        envelope.causation_id,
        envelope.priority,
        envelope.created_at,
        envelope.sequence,
    )


def visible_to(envelope: Envelope, agent_id: str) -> bool:
    """Whether this participant of the channel may see the envelope. A sender sees its own."""
    audience = envelope.audience
    return audience is None or agent_id in audience or envelope.sender_id == agent_id


IdSource = Callable[[], str]

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}\Z")
CHANNEL_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:.@-]{0,127}\Z")
UUID7_FREE_BITS = 74
"""How many bits of a version 7 UUID say nothing of the time."""
RESERVED_NAMES = frozenset({"hub", "human", "system"})


def uuid7(milliseconds: int, random_bits: int) -> str:
    """An RFC 9562 version 7 UUID from a time and 74 random bits; ids of later milliseconds sort later."""
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | random_bits & 0x3FFF_FFFF_FFFF_FFFF
    return _format_uuid(f"{value:032x}")


def is_uuid7(envelope_id: str) -> bool:
    """Whether this is a version 7 UUID, which sorts by the time it was drawn at."""
    return len(envelope_id) == 36 and envelope_id[14] == "7"


def id_after(drawn: str, newest: str) -> str:
    """The id that was drawn, if it sorts behind the newest; otherwise one that does, a little behind the newest."""
    if drawn > newest or not is_uuid7(drawn):
        return drawn
    milliseconds, bits = _uuid7_parts(newest)
    bits += 1 + (_uuid7_parts(drawn)[1] & 0xFFFF_FFFF)
    milliseconds += bits >> UUID7_FREE_BITS
    return drawn if milliseconds >> 48 else uuid7(milliseconds, bits & (1 << UUID7_FREE_BITS) - 1)


def _uuid7_parts(envelope_id: str) -> tuple[int, int]:
    """The milliseconds of a version 7 UUID, and its other bits."""
    value = int(envelope_id.replace("-", ""), 16)
    return value >> 80, (value >> 64 & 0xFFF) << 62 | value & 0x3FFF_FFFF_FFFF_FFFF


def derived_id(*parts: str) -> str:
    """The same id for the same parts, in the form of an RFC 9562 version 8 UUID."""
    digest = hashlib.sha256("\x1f".join(f"{len(part)}:{part}" for part in parts).encode()).digest()
    value = int.from_bytes(digest[:16], "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    value = value & ~(0b11 << 62) | 0b10 << 62
    return _format_uuid(f"{value:032x}")


def _format_uuid(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_name(name: object) -> None:
    """Refuse what cannot be a participant's name."""
    if not isinstance(name, str) or not NAME_PATTERN.match(name):
        raise BadName(f"{describe(name)} is no name; use 1 to 48 of A-Z a-z 0-9 _ - and begin with a letter or digit")
    if name.lower() in RESERVED_NAMES:
        raise BadName(f"the name {name!r} is taken by the hub itself")


def match_name(name: object, known: Collection[str]) -> str | None:
    """The known name that this is, in any case; None if there is none."""
    if not isinstance(name, str):
        return None
    return next((each for each in known if each == name), None) or next(
        (each for each in known if each.lower() == name.lower()), None
    )


def spelling_advice(name: object, known: Collection[str]) -> str:
    """Advice on a name that differs from a known one only in case; "" if it does not."""
    found = match_name(name, known)
    return "" if found is None or found == name else f"did you mean {found!r}?"


Json = dict[str, object]
"""Plain data: what JSON has, under names."""
Instant = str

NEVER: Instant = ""
SECONDS_PER_DAY = 86_400
LAST_DATETIME = datetime.max.replace(tzinfo=UTC)


def to_instant(moment: datetime) -> Instant:
    """Write a moment down. It must be aware of its time zone."""
    moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def to_datetime(at: Instant) -> datetime:
    """Read an instant back. What is no instant raises ValueError."""
    return datetime.fromisoformat(at).astimezone(UTC)


@lru_cache(maxsize=1024)
def _later_second(at: str, seconds: int) -> str | None:
    """The second so many seconds after one that is written as in an instant; None if it is on another day."""
    try:
        begun = datetime.fromisoformat(at)
        later = begun + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None
    is_same_day = later.date() == begun.date() and begun.isoformat() == at
    return later.isoformat() if is_same_day else None


def _add_within_day(at: Instant, seconds: float) -> Instant | None:
    """The instant this many seconds later, if it is on the same day; None to have the calendar asked.

    Deadlines are computed with every append, many of them from the same second. Reading and writing datetimes would be
    most of the cost.
    """
    micros = at[20:26]
    is_plain = len(at) == 27 and at[19] == "." and at[26] == "Z" and micros.isascii() and micros.isdecimal()
    if not is_plain or not -SECONDS_PER_DAY < seconds < SECONDS_PER_DAY:
        return None
    whole = int(seconds)
    if whole == seconds:
        later = _later_second(at[:19], whole)
        return None if later is None else later + at[19:]
    whole, rest = divmod(int(micros) + round(seconds * 1e6), 10**6)
    later = _later_second(at[:19], whole)
    return None if later is None else f"{later}.{rest:06d}Z"


def add_seconds(at: Instant, seconds: float) -> Instant:
    """The instant this many seconds later; beyond the calendar it is the last one there is."""
    same_day = _add_within_day(at, seconds)
    return _add_by_calendar(at, seconds) if same_day is None else same_day


@lru_cache(maxsize=1024)
def _add_by_calendar(at: Instant, seconds: float) -> Instant:
    try:
        return to_instant(to_datetime(at) + timedelta(seconds=seconds))
    except OverflowError:
        return to_instant(LAST_DATETIME)


def seconds_between(earlier: Instant, later: Instant) -> float:
    """How many seconds lie between two instants; negative if they are the other way round."""
    return (to_datetime(later) - to_datetime(earlier)).total_seconds()


def expiry(at: Instant, ttl: float | None) -> Instant:
    """When a time to live that began at an instant is over; never, if there is none, or no such date."""
    try:
        return NEVER if ttl is None else add_seconds(at, ttl)
    except ValueError:
        return NEVER


ERASED = "erased"
"""The mark in the data of a tombstone, and the close reason of an erased channel."""


def is_tombstone(envelope: Envelope) -> bool:
    """Whether this is a tombstone."""
    return envelope.sender_id == HUB and envelope.event_data.get(ERASED) is True
