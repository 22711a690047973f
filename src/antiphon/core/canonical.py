"""What makes two calls, or two texts, the same.

Rule 1: arguments are compared as JSON values: 1 is 1.0, -0 is 0, true is not 1; the order of names does not count. Case
        does.
Rule 2: text is compared in its composed form (NFC) in arguments; what was said is compared without regard to case,
        width and white space.
Rule 3: numbers and strings are written as RFC 8785 has them. Integers that a double cannot hold exactly are written as
        strings of their digits, so that none is taken for its neighbour.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import lru_cache
from unicodedata import normalize

from antiphon.core.codec import MAX_JSON_DEPTH, Malformed, check_text
from antiphon.core.envelope import Json
from antiphon.core.text import describe

MAX_EXACT_INTEGER = 2**53 - 1
"""Up to here a double holds every integer."""
SMALLEST_PLAIN_EXPONENT = -6
"""Numbers below ten to the power of this are written with an exponent."""
MAX_CACHED_NAME = 64
"""Names of tools and arguments that are no longer are written once."""
NO_DEFAULTS: Json = {}
_TOO_DEEP = f"arguments are nested deeper than {MAX_JSON_DEPTH} levels"
_text_encoder = json.JSONEncoder(ensure_ascii=False)


def call_key(
    tool: str,
    args: Mapping[str, object],
    *,
    volatile: Collection[str] = (),
    unordered: Collection[str] = (),
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> str:
    """The SHA-256 of a call by what counts in it: equal for calls that ask for the same.

    `volatile` arguments do not count, and `unordered` ones are lists whose order does not. One that is null, or that is
    its default, counts like one that is left out. `Malformed` for arguments that are no JSON.
    """
    counted: Json = {}
    for name, value in args.items():
        if name in volatile or value is None:
            continue
        if name in defaults and canonical_json(value) == canonical_json(defaults[name]):
            continue
        counted[name] = value
    parts = {name: _argument_json(value, is_set=name in unordered) for name, value in counted.items()}
    written = f'{{"args":{_join_members(parts)},"tool":{_write_name(tool)}}}'
    return hashlib.sha256(written.encode()).hexdigest()


def canonical_json(value: object) -> str:
    """The one text of a JSON value; `Malformed` if it is none."""
    return _write(value, MAX_JSON_DEPTH)


def normalized_text(text: str) -> str:
    """The text without what does not count in what was said: case, width, and the length of white space."""
    if not text.isascii():
        text = normalize("NFKC", normalize("NFKC", text).casefold())
    return " ".join(text.casefold().split())


def text_key(normalized: str) -> str:
    """The SHA-256 of a normalized text."""
    return hashlib.sha256(normalized.encode("utf-8", "surrogatepass")).hexdigest()


def _argument_json(value: object, *, is_set: bool) -> str:
    if not is_set or not isinstance(value, list):
        return _write(value, MAX_JSON_DEPTH - 1)
    return f"[{','.join(sorted(_write(each, MAX_JSON_DEPTH - 2) for each in value))}]"


def _write(value: object, deepest: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _write_text(value)
    if isinstance(value, int | float):
        return _write_number(value)
    if deepest < 0:
        raise Malformed("too_deep", _TOO_DEEP)
    if isinstance(value, dict):
        return _join_members({name: _write(each, deepest - 1) for name, each in value.items()})
    if isinstance(value, list | tuple):
        return f"[{','.join(_write(each, deepest - 1) for each in value)}]"
    raise Malformed("not_json", f"{describe(value)} is no JSON value")


def _join_members(members: Mapping[str, str]) -> str:
    """An object of these members, each with its value as JSON. Names are in the order of their UTF-16 units."""
    if len(members) == 1:
        [(name, value)] = members.items()
        return f"{{{_write_name(name)}:{value}}}"
    # Names that differ before they are composed stay two members: the second part of the key keeps them in one order.
    named = sorted((_utf16(_composed(name)), _utf16(name), name) for name in members)
    return f"{{{','.join(f'{_write_name(name)}:{members[name]}' for _, _, name in named)}}}"


def _write_name(name: object) -> str:
    return _write_short_name(name) if isinstance(name, str) and len(name) <= MAX_CACHED_NAME else _write_text(name)


@lru_cache(maxsize=1024)
def _write_short_name(name: str) -> str:
    return _write_text(name)


def _write_text(text: object) -> str:
    composed = _composed(text)
    check_text(composed)
    return _text_encoder.encode(composed)


def _composed(text: object) -> str:
    if not isinstance(text, str):
        raise Malformed("not_json", f"a key is {describe(text)}; keys must be text")
    return text if text.isascii() else normalize("NFC", text)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _write_number(number: float) -> str:
    if isinstance(number, int) or number.is_integer():
        whole = int(number)
        return str(whole) if abs(whole) <= MAX_EXACT_INTEGER else f'"{whole}"'
    if number != number or number in (float("inf"), float("-inf")):
        raise Malformed("bad_number", f"{number!r} is no JSON number")
    shortest = repr(number)
    mantissa, has_exponent, exponent = shortest.partition("e")
    if not has_exponent:
        return shortest
    power = int(exponent)
    if power >= SMALLEST_PLAIN_EXPONENT:
        return format(Decimal(shortest), "f")
    return f"{mantissa}e{power}"
