"""Checks of what callers give to the methods of a hub, a channel and a participant. Each raises `UsageError`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from antiphon.core.codec import (
    MAX_EVENT_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    Malformed,
    check_json,
    copy_json,
    count_values,
    to_json,
)
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

MAX_COUNTED_VALUES = 1_000_000
"""How many values are counted for an error that names their number."""
MAX_KNOB_DEPTH = 168
MAX_KNOB_NODES = 20_000
"""A graph of a thousand transitions has more values than any message may have, and deeper ones. More would seldom fit
into the bytes that an envelope may have."""
MAX_TTL_SECONDS = 100 * 366 * 24 * 3600


def check_option_names(options: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse an option with a name that no option has."""
    unknown = options.keys() - known
    if unknown:
        raise UsageError(f"no option is called {describe(min(unknown))}; there are: {', '.join(sorted(known))}")


def check_text_argument(text: object, what: str, advice: str, *, least: int = 0, most: int = sys.maxsize) -> str:
    """A text of so many characters that can be recorded."""
    if not isinstance(text, str) or not least <= len(text) <= most:
        raise UsageError(f"{what} is {describe(text)}; give {advice}")
    check_encodable(text, what)
    return text


def check_encodable(value: object, what: str) -> None:
    """Refuse what is no JSON."""
    try:
        check_json(value)
    except Malformed as error:
        raise UsageError(f"{what}: {error}") from error


def check_cursor(after: object) -> None:
    """Refuse what is no place in a log."""
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise UsageError(f"after is {describe(after)}; give a sequence, or 0 for the beginning")


def check_ttl(ttl: float | None) -> float | None:
    """A time to live as it is recorded."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= MAX_TTL_SECONDS:
        raise UsageError(
            f"ttl is {describe(ttl)}; give a number of seconds above 0, at most {MAX_TTL_SECONDS} (100 years)"
        )
    return float(ttl)


def private_copy(data: Json) -> Json:
    """A copy that its giver cannot change afterwards; what is no JSON is left for the checks to refuse."""
    try:
        check_json(data)
    except (Malformed, TypeError):
        return data
    return copy_json(data)


def copy_context_vars(context_vars: Json | None) -> Json:
    """A copy of the context variables that a channel begins with."""
    return _copy_checked({} if context_vars is None else context_vars, "context_vars")


def copy_knobs(knobs: Json) -> Json:
    """A copy of a channel's knobs, which may have more values than a message, but not more bytes."""
    copied = _copy_checked(knobs, "knobs", most=MAX_KNOB_NODES, deepest=MAX_KNOB_DEPTH)
    if len(to_json(copied)) > MAX_EVENT_BYTES:
        sizes = {name: len(to_json(value)) for name, value in copied.items()}
        raise _too_large_error("knobs", sizes, f"bytes of JSON; the limit is {MAX_EVENT_BYTES}")
    return copied


def _copy_checked(data: Json, what: str, *, most: int = MAX_JSON_VALUES, deepest: int = MAX_JSON_DEPTH) -> Json:
    if type(data) is not dict:
        raise UsageError(f"{what} is {describe(data)}; give a dict")
    try:
        check_json(data, most=most, deepest=deepest)
    except Malformed as error:
        if error.reason != "too_large":
            raise UsageError(f"{what}: {error}") from error
        sizes = {name: count_values(value, most=MAX_COUNTED_VALUES) for name, value in data.items()}
        raise _too_large_error(what, sizes, f"values of JSON; the limit is {most}") from error
    return copy_json(data)


def _too_large_error(what: str, sizes: Mapping[str, int], measured: str) -> UsageError:
    """The error that names what is the largest of all, which is to be made smaller."""
    largest = max(sizes, key=lambda name: sizes[name])
    size = f"at least {MAX_COUNTED_VALUES}" if sizes[largest] == MAX_COUNTED_VALUES else f"{sizes[largest]}"
    advice = "use fewer transitions, or conditions with fewer parts" if largest == "graph" else "make it smaller"
    return UsageError(f"{what}[{describe(largest)}] has {size} {measured} for all {what}: {advice}")
