"""The arguments of a tool call, as a model wrote them.

Rule 1: arguments are one JSON object. Anything else is a fault of that call alone: the call carries the reason, which
        the model reads as the result, and the other calls of the message are made.
Rule 2: a call with a fault has the arguments `{}`, so that every provider accepts it when it is sent back.
Rule 3: nothing is guessed: no missing bracket is added, and of two values for one key neither is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from antiphon.agents.messages import Call
from antiphon.core.codec import Malformed, check_json, parsed
from antiphon.core.events import Json
from antiphon.core.words import shown, storable

EMPTY = "they are empty"
"""The fault of a call without arguments; not one for a tool without parameters, where some servers write nothing."""
OUT_OF_TOKENS = "the model ran out of tokens in them"


class _Faulty(ValueError):
    """What was written is no JSON object; the message says why."""


def written_call(name: str, written: object, call_id: str = "", *, cut: bool = False) -> Call:
    """A call with what a model wrote as its arguments: a JSON text, or plain data. `cut`: it ran out of tokens."""
    try:
        return Call(name, _object(written, cut=cut), call_id)
    except _Faulty as error:
        return faulty_call(name, str(error), call_id)


def faulty_call(name: str, why: str, call_id: str = "") -> Call:
    """A call that cannot be made, for this reason."""
    return Call(name, {}, call_id, storable(why))


def checked_call(call: Call) -> Call:
    """The call as it came, if its arguments are a dict; else read as a text that a model wrote."""
    given: object = call.args
    return call if isinstance(given, dict) else written_call(call.name, given, call.call_id)


def _object(written: object, *, cut: bool) -> Json:
    if written is None or (isinstance(written, str) and not written.strip()):
        raise _Faulty(EMPTY)
    value = _value(written, cut=cut) if isinstance(written, str) else written
    if not isinstance(value, dict):
        raise _Faulty(f"{shown(written)} is {_kind(value)}, not a JSON object")
    try:
        check_json(value)
    except Malformed as error:
        raise _Faulty(f"{shown(written)} cannot be recorded: {error}") from error
    return value


def _value(text: str, *, cut: bool) -> object:
    try:
        value: object = parsed(text)
    except Malformed as error:
        why = OUT_OF_TOKENS if cut else str(error)
        raise _Faulty(f"{shown(text)} is no JSON: {why}") from error
    try:
        json.loads(text, object_pairs_hook=_distinct_keys)  # the decoder above takes the last of several values
    except RecursionError as error:
        raise _Faulty(f"{shown(text)} is nested too deep") from error
    return value


def _distinct_keys(pairs: Sequence[tuple[str, object]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise _Faulty(f"they name {shown(key)} twice")
        found[key] = value
    return found


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
