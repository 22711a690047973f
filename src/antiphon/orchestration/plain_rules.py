"""Rules of conversations as plain data: what routers, pipelines and handoff rules share in reading theirs.

Rule 1: an error is a `RulesInvalid` that names the value, where it stands, and what to give instead.
Rule 2: values are not coerced: a text is no set of texts, and 7 is no name.
Rule 3: a text that is kept is of the type `str` itself, so that it can be recorded; a member of a StrEnum is taken too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from antiphon.core.codec import Malformed, check_text, check_unique_keys, parse_json
from antiphon.core.envelope import check_name
from antiphon.core.errors import BadName, RulesInvalid
from antiphon.core.text import describe

MAX_PHASE_CHARS = 100
MAX_CONDITION_CHARS = 500
"""The longest transport, intent or source that a rule can name."""
MAX_LISTED_NAMES = 20
"""How many names a message lists."""


def parse_rules(data: object, what: str) -> object:
    """The value that a JSON text holds; anything else as it is."""
    if not isinstance(data, str | bytes | bytearray):
        return data
    try:
        text = bytes(data) if isinstance(data, bytearray) else data
        value: object = parse_json(text)
        check_unique_keys(text)
    except Malformed as error:
        raise RulesInvalid(f"{what} is no JSON: {error}") from error
    return value


def read_fields(data: object, what: str, known: Sequence[str], *, needed: Sequence[str] = ()) -> Mapping[str, object]:
    """The data as an object that has all the needed fields, and no unknown ones."""
    if not isinstance(data, dict):
        raise RulesInvalid(f"{what} is {describe(data)}; give a dict with {', '.join(known)}")
    strange = next((key for key in data if key not in known), None)
    if strange is not None:
        raise RulesInvalid(f"{what} has no field {describe(strange)}; it has: {', '.join(known)}")
    missing = next((field for field in needed if field not in data), None)
    if missing is not None:
        raise RulesInvalid(f"{what} has no {missing!r}; it needs: {', '.join(needed)}")
    return data


def read_list(data: object, what: str, most: int) -> Sequence[object]:
    """The data as a list that is not too long."""
    if not isinstance(data, list | tuple):
        raise RulesInvalid(f"{what} is {describe(data)}; give a list")
    if len(data) > most:
        raise RulesInvalid(f"{what} has {len(data)} entries; the limit is {most}")
    return data


@contextmanager
def error_prefix(where: str) -> Iterator[None]:
    """Says of an error in the block where it is."""
    try:
        yield
    except RulesInvalid as error:
        raise RulesInvalid(f"{where}: {error}") from error


def check_agent_name(given: object, what: str) -> str:
    """The name of an agent."""
    try:
        check_name(given)
    except BadName as error:
        raise RulesInvalid(f"{what}: {error}") from error
    return str.__str__(given)


def is_phase(given: object) -> bool:
    """Whether this can name a phase."""
    return isinstance(given, str) and _text_fault(given, MAX_PHASE_CHARS) == ""


def check_phase(given: object, what: str) -> str:
    """The name of a phase."""
    return check_short_text(given, what, "the name of a phase", most=MAX_PHASE_CHARS)


def check_text_set(given: object, what: str) -> frozenset[str]:
    """A set of texts, given as a set or a list."""
    if not isinstance(given, set | frozenset | list | tuple):
        raise RulesInvalid(f"{what} is {describe(given)}; give a set of texts, such as {{'billing'}}")
    return frozenset(check_short_text(each, f"an entry of {what}", "a text") for each in given)


def check_phase_set(given: object, what: str) -> frozenset[str]:
    """A set of phases, given as a set or a list."""
    if not isinstance(given, set | frozenset | list | tuple):
        raise RulesInvalid(f"{what} is {describe(given)}; give a set of phases, such as {{'handling'}}")
    return frozenset(check_phase(each, f"an entry of {what}") for each in given)


def list_names(names: Sequence[str]) -> str:
    """Names for a message, those beyond the limit only counted."""
    further = len(names) - MAX_LISTED_NAMES
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    return f"{shown} and {further} more" if further > 0 else shown


def check_short_text(given: object, what: str, wanted: str, *, most: int = MAX_CONDITION_CHARS) -> str:
    """A text that is neither empty nor too long."""
    if not isinstance(given, str):
        raise RulesInvalid(f"{what} is {describe(given)}; give {wanted}")
    fault = _text_fault(given, most)
    if fault:
        raise RulesInvalid(f"{what} is {describe(given)}, {fault}; give {wanted}")
    return str.__str__(given)


def _text_fault(text: str, most: int) -> str:
    if not text.strip():
        return "which is empty"
    if len(text) > most:
        return f"which has more than {most} characters"
    try:
        check_text(text)
    except Malformed as error:
        return f"which cannot be recorded ({error})"
    return ""
