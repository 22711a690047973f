"""Amounts that guards limit: dollars as texts, counted in whole millionths, and numbers of calls and tokens.

Rule 1: no amount of money passes through a binary fraction: `"2.50"` is two and a half dollars, and 2.5 is refused.
Rule 2: what is no amount is a `RulesInvalid` that names the value and what to give instead.
"""

from __future__ import annotations

import re

from antiphon.core.errors import RulesInvalid
from antiphon.core.text import describe
from antiphon.guards.run_limits import UNLIMITED, Limit, check_limit

MICRO = 1_000_000
"""Millionths of a dollar in a dollar."""
DOLLARS_PATTERN = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?", re.ASCII)
DOLLARS_ADVICE = "give a text with at most six decimal places, such as '2.50', a whole number, or 'unlimited'"

Dollars = int | str
"""An amount of dollars: a text such as `"2.50"`, a whole number, or `unlimited`."""


def parse_dollars(given: object, what: str) -> Limit:
    """The amount in millionths of a dollar, or `unlimited`."""
    if given == UNLIMITED:
        return UNLIMITED
    if type(given) is int and given >= 0:
        return given * MICRO
    found = DOLLARS_PATTERN.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise RulesInvalid(f"{what} is {describe(given)}; {DOLLARS_ADVICE}")
    return int(found[1]) * MICRO + int((found[2] or "").ljust(6, "0"))


def check_count(given: object, what: str) -> None:
    """`RulesInvalid` if this is no limit of a number; None is one that is not given."""
    if given is not None:
        check_limit(given, what)


def refuse_unlimited(guard: str, **amounts: object) -> None:
    """`RulesInvalid` if one of these is unlimited, as nothing may be in the tier `regulated`."""
    name = next((name for name, amount in amounts.items() if amount == UNLIMITED), None)
    if name is not None:
        raise RulesInvalid(
            f"{name} of {guard} is 'unlimited', which the tier 'regulated' does not allow; give a number"
        )


def check_choice(given: object, what: str, known: tuple[str | None, ...]) -> None:
    """`RulesInvalid` if this is none of the known words."""
    if given not in known:
        words = ", ".join(repr(word) for word in known if word is not None)
        raise RulesInvalid(f"{what} is {describe(given)}; give one of {words}")


def format_dollars(micro: int) -> str:
    """An amount as a person reads it: `$2.50`, and as many decimal places as it needs."""
    whole, rest = divmod(abs(micro), MICRO)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micro < 0 else ''}${whole:,}.{decimals}"
