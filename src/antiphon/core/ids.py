"""Ids: time-ordered for what is new, derived for what must be the same each time.

Time and randomness come in as arguments; see `hub.ids` for the source that draws them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from antiphon.core.errors import BadName
from antiphon.core.words import shown

IdSource = Callable[[], str]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}\Z")
CHANNEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:.@-]{0,127}\Z")
FREE_BITS = 74
"""How many bits of a version 7 UUID say nothing of the time."""
TAKEN = frozenset({"hub", "human", "system"})


def uuid7(milliseconds: int, random_bits: int) -> str:
    """An RFC 9562 version 7 UUID from a time and 74 random bits; ids of later milliseconds sort later."""
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | random_bits & 0x3FFF_FFFF_FFFF_FFFF
    return _dashed(f"{value:032x}")


def is_time_ordered(envelope_id: str) -> bool:
    """Whether this is a version 7 UUID, which sorts by the time it was drawn at."""
    return len(envelope_id) == 36 and envelope_id[14] == "7"


def sorted_behind(drawn: str, newest: str) -> str:
    """The id that was drawn, if it sorts behind the newest; otherwise one that does, a little behind the newest."""
    if drawn > newest or not is_time_ordered(drawn):
        return drawn
    milliseconds, bits = _parts(newest)
    bits += 1 + (_parts(drawn)[1] & 0xFFFF_FFFF)
    milliseconds += bits >> FREE_BITS
    return drawn if milliseconds >> 48 else uuid7(milliseconds, bits & (1 << FREE_BITS) - 1)


def _parts(envelope_id: str) -> tuple[int, int]:
    """The milliseconds of a version 7 UUID, and its other bits."""
    value = int(envelope_id.replace("-", ""), 16)
    return value >> 80, (value >> 64 & 0xFFF) << 62 | value & 0x3FFF_FFFF_FFFF_FFFF


def derived_id(*parts: str) -> str:
    """The same id for the same parts, in the form of an RFC 9562 version 8 UUID."""
    digest = hashlib.sha256("\x1f".join(f"{len(part)}:{part}" for part in parts).encode()).digest()
    value = int.from_bytes(digest[:16], "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    value = value & ~(0b11 << 62) | 0b10 << 62
    return _dashed(f"{value:032x}")


def _dashed(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_name(name: object) -> None:
    """Refuse what cannot be a participant's name."""
    if not isinstance(name, str) or not NAME.match(name):
        raise BadName(f"{shown(name)} is no name; use 1 to 48 of A-Z a-z 0-9 _ - and begin with a letter or digit")
    if name.lower() in TAKEN:
        raise BadName(f"the name {name!r} is taken by the hub itself")
