"""Values and errors as text for messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

MAX_DESCRIBED_CHARS = 80
MAX_ERROR_CHARS = 500
MAX_GROUP_ERRORS = 3
"""How many errors of a group are listed."""
QUOTED_WORD = re.compile(r"`([^`]+)`")
PYTHON_TYPE_NAMES = {"object": "dict", "array": "list", "null": "None"}


def describe(value: object) -> str:
    """The value as it would be written in a program, cut short. Anything at all can be shown."""
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # a value that cannot even be shown is bad input like any other
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_DESCRIBED_CHARS else f"{text[:MAX_DESCRIBED_CHARS]}…"


def describe_error(error: BaseException) -> str:
    """`Type: message`, cut at 500 characters; the type alone if `str()` fails."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # an error that fails over itself, also by SystemExit, is still an error
        return type(error).__name__
    if isinstance(error, BaseExceptionGroup):  # which says only how many errors it holds
        text = f"{text}: {'; '.join(describe_error(each) for each in islice(_leaf_errors(error), MAX_GROUP_ERRORS))}"
    return sanitize(text[:MAX_ERROR_CHARS])


def _leaf_errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors that a group and the groups within it hold, in their order."""
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(reversed(error.exceptions))
        else:
            yield error


def sanitize(text: str) -> str:
    """The text with escapes for what no store takes: lone surrogates and NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def explain_decode_error(complaint: str) -> str:
    """A validation error of the decoder, with the names of JSON types replaced by those of Python."""
    what, _, place = complaint.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    match [PYTHON_TYPE_NAMES.get(word, word) for word in QUOTED_WORD.findall(what)]:
        case [wanted, given]:
            return f"{place or 'it'} is {given}, not {wanted}"
        case [field] if "missing" in what:
            return f"{place}.{field} is missing".removeprefix(".")
        case [field] if "unknown" in what:
            return f"{place or 'it'} has no field {field!r}"
        case _:
            return complaint
