"""How a value is shown to the person who gave it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

LONGEST = 80
LONGEST_STORY = 500
MOST_OF_A_GROUP = 3
"""How many errors of a group are told."""
QUOTED = re.compile(r"`([^`]+)`")
AS_IN_PYTHON = {"object": "dict", "array": "list", "null": "None"}


def shown(value: object) -> str:
    """The value as it would be written in a program, cut short. Anything at all can be shown."""
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # a value that cannot even be shown is bad input like any other
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def spelt(name: object, known: Collection[str]) -> str | None:
    """The known name that this is, whatever its case; None if there is none."""
    if not isinstance(name, str):
        return None
    return next((each for each in known if each == name), None) or next(
        (each for each in known if each.lower() == name.lower()), None
    )


def meant_by(name: object, known: Collection[str]) -> str:
    """Advice on a name that differs from a known one only in case; "" if it does not."""
    found = spelt(name, known)
    return "" if found is None or found == name else f"did you mean {found!r}?"


def told(error: BaseException) -> str:
    """What an error of somebody else's says, cut short; its type, if it cannot even say that."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # an error that fails over itself, also by SystemExit, is still an error
        return type(error).__name__
    if isinstance(error, BaseExceptionGroup):  # which says only how many errors it holds
        text = f"{text}: {'; '.join(told(each) for each in islice(_single(error), MOST_OF_A_GROUP))}"
    return storable(text[:LONGEST_STORY])


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors that a group and the groups within it hold, in their order."""
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(reversed(error.exceptions))
        else:
            yield error


def storable(text: str) -> str:
    """The text with whatever no store takes written out."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def plainly(complaint: str) -> str:
    """What the decoder says of data without the right shape, in the words of somebody who writes Python."""
    what, _, place = complaint.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    match [AS_IN_PYTHON.get(word, word) for word in QUOTED.findall(what)]:
        case [wanted, given]:
            return f"{place or 'it'} is {given}, not {wanted}"
        case [field] if "missing" in what:
            return f"{place}.{field} is missing".removeprefix(".")
        case [field] if "unknown" in what:
            return f"{place or 'it'} has no field {field!r}"
        case _:
            return complaint
