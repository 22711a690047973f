"""Where JSON enters and leaves.

Rule 1: what is recorded is plain JSON: no dates, no sets, no NaN, no half characters. It reads back equal.
Rule 2: limits are counted before anything is encoded: depth, nodes, digits, bytes.
Rule 3: a record that does not read back as an envelope raises `Malformed`; nothing is guessed.
Rule 4: plain data is read in a time that depends on its size alone. msgspec by itself takes a hundred times as long for
        a number such as 1e300, and a megabyte of those would stop the event loop for a second.

This is the only file of the core where `Any` may appear.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import isinf
from typing import Any, TypeVar

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.text import describe

T = TypeVar("T")

MAX_EVENT_BYTES = 256 * 1024
MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 10_000
MAX_INTEGER_DIGITS = 100

_INTEGER_LIMIT = 10**MAX_INTEGER_DIGITS
_json_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="sorted")


def _parse_float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError("Number out of range")
    return value


_envelope_decoder = msgspec.json.Decoder(Envelope, strict=True, float_hook=_parse_float)
_plain_decoder = msgspec.json.Decoder(float_hook=_parse_float)


class Malformed(ValueError):
    """A value is no JSON we record. `.reason` is the stable word, the message says what and where."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def encode_envelope(envelope: Envelope) -> bytes:
    """The record of an envelope, as it stands in a log."""
    return _json_encoder.encode(envelope)


def decode_envelope(record: bytes) -> Envelope:
    """The envelope of a record; `Malformed` if it is none."""
    try:
        return _envelope_decoder.decode(record)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Malformed("malformed", f"not an envelope: {error}") from error


def to_json(value: Any) -> bytes:
    """Any of our own values as JSON."""
    return _json_encoder.encode(value)


def from_json(record: bytes, kind: type[T]) -> T:
    """Read a value of ours back; `Malformed` if it is none."""
    try:
        return msgspec.json.Decoder(kind, float_hook=_parse_float).decode(record)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Malformed("malformed", f"not a {kind}: {error}") from error


def decode_plain_json(text: bytes) -> Any:
    """Plain data from JSON of a request or a model; `msgspec.DecodeError` or `ValueError` if it is none."""
    return _plain_decoder.decode(text)


def parse_json(text: str | bytes) -> Any:
    """Plain data from JSON of unknown origin; `Malformed` if it is none."""
    try:
        return decode_plain_json(text.encode() if isinstance(text, str) else text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Malformed("malformed", str(error)) from error


def check_value_count(text: bytes, *, most: int = MAX_JSON_VALUES) -> None:
    """Refuse, with `Malformed`, JSON that has too many values for certain, before any of them takes up memory."""
    if text.count(b",") < most:
        return
    outside = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]  # of strings
    if sum(part.count(b",") for part in outside) >= most:
        raise Malformed("too_large", f"more than {most} values of JSON")


def check_unique_keys(text: str | bytes) -> None:
    """Refuse, with `Malformed`, JSON in which an object has a name twice: readers would differ on which value counts.

    For text that has passed `parse_json` or a decoder, and `check_json`: it must be well-formed and within the limits.
    """
    try:
        json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except RecursionError as error:
        raise Malformed("too_deep", "nested too deeply") from error


def _refuse_duplicate_keys(pairs: Sequence[tuple[str, object]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    names = [name for name, _ in pairs]
    twice = next(name for place, name in enumerate(names) if name in names[:place])
    raise Malformed("malformed", f"an object has the name {describe(twice)} twice; give every name once")


def as_type(value: Any, kind: type[T]) -> T:
    """Plain data as a typed value; `Malformed` if it does not fit."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise Malformed("malformed", str(error)) from error


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. `True` is not 1, 1 is not 1.0; the order of keys does not matter."""
    return _sorting_encoder.encode(one) == _sorting_encoder.encode(other)


def plain_data(value: Any) -> dict[str, object]:
    """A struct of ours as plain JSON data, as it reads back from a log."""
    data: dict[str, object] = _plain_decoder.decode(_json_encoder.encode(value))
    return data


def digest_of(value: Any) -> str:
    """The SHA-256 of a value as JSON; the order of keys does not matter."""
    return digest_of_encoded(_sorting_encoder.encode(value))


def digest_of_encoded(encoded: bytes) -> str:
    """The digest of a value that `encode_sorted` has written."""
    return hashlib.sha256(encoded).hexdigest()


def encode_sorted(value: Any) -> bytes:
    """A value as JSON, its keys in order: as it stands in what `digest_of` digests."""
    return _sorting_encoder.encode(value)


def copy_json(value: T) -> T:
    """A deep copy of plain JSON data, that shares nothing with the original."""
    copy: T = _plain_decoder.decode(_json_encoder.encode(value))
    return copy


def check_json(value: object, *, most: int = MAX_JSON_VALUES, deepest: int = MAX_JSON_DEPTH) -> None:
    """Refuse, with `Malformed`, what would not be recorded and read back as it is."""
    nodes = 0
    layer: list[object] = [value]
    for _ in range(deepest + 1):
        if not layer:
            return
        deeper: list[object] = []
        for item in layer:
            nodes += 1
            _check_node(item, deeper)
            if nodes + len(deeper) > most:
                raise Malformed("too_large", f"more than {most} values of JSON")
        layer = deeper
    if layer:
        raise Malformed("too_deep", f"nested deeper than {deepest} levels")


def count_values(value: object, *, most: int) -> int:
    """How many values of JSON there are in this one, itself included. Counting ends at `most`."""
    found = 0
    left = [value]
    while left and found + len(left) < most:  # what contains itself would never end
        item = left.pop()
        found += 1
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
    return min(found + len(left), most)


def _check_node(item: object, deeper: list[object]) -> None:
    kind = type(item)
    if kind is str:
        check_text(item)  # type: ignore[arg-type]  # its type was compared on the line above
    elif item is None or kind is bool:
        return
    elif kind is dict:
        for key in item:  # type: ignore[attr-defined]  # a dict, by the comparison above
            if type(key) is not str:
                raise Malformed("not_json", f"a key is {describe(key)}; keys must be text")
            check_text(key)
        deeper.extend(item.values())  # type: ignore[attr-defined]  # a dict, by the comparison above
    elif kind is list:
        deeper.extend(item)  # type: ignore[arg-type]  # a list, by the comparison above
    else:
        _check_number(item, kind)


def _check_number(item: object, kind: type) -> None:
    if isinstance(item, int) and kind is int:
        if not -_INTEGER_LIMIT < item < _INTEGER_LIMIT:
            raise Malformed("bad_number", f"an integer has more than {MAX_INTEGER_DIGITS} digits")
    elif isinstance(item, float) and kind is float:
        if item != item or item in (float("inf"), float("-inf")):
            raise Malformed("bad_number", f"{item!r} is no JSON number")
    else:
        raise Malformed("not_json", f"{kind.__name__} is no JSON value; use text, numbers, lists and dicts")


def check_text(text: str) -> None:
    """Refuse text that cannot be stored everywhere: half of a surrogate pair, or a NUL character."""
    if text.isascii():
        if "\x00" in text:
            raise Malformed("bad_text", "a text contains a NUL character")
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Malformed("bad_text", f"a text contains half a surrogate pair at position {error.start}") from error
    if "\x00" in text:
        raise Malformed("bad_text", "a text contains a NUL character")
