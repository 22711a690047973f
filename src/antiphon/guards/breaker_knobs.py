"""The fields of a circuit breaker: what they may be, and which limits they set.

Rule 1: what cannot be is a `RulesInvalid` that names the field, its value, and what to give instead.
"""

from __future__ import annotations

from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.text import describe
from antiphon.guards.run_limits import UNLIMITED

ESCALATE = "escalate"
COUNTED_FIELDS = ("schema", "identical", "invariant", "transport", "max_trips")
POSITIVE_FIELDS = ("error_share", "least_calls", "cooldown", "max_cooldown", "lease")

LIMIT_NAMES = {
    "schema": "schema",
    "identical": "streak",
    "invariant": "invariant",
    "transport": "transport",
    "error_share": "share",
    "least_calls": "least_calls",
    "cooldown": "cooldown",
    "max_cooldown": "max_cooldown",
    "max_trips": "max_trips",
    "lease": "lease",
}
"""The limit that each field sets."""


def said_limits(fields: Json) -> Json:
    """The limits that these fields set."""
    return {limit: fields[field] for field, limit in LIMIT_NAMES.items() if fields[field] is not None}


def check_breaker_fields(fields: Json) -> None:
    """`RulesInvalid` if a field cannot be what it is."""
    for field in COUNTED_FIELDS:
        _check_count(field, fields[field])
    for field in POSITIVE_FIELDS:
        _check_positive(field, fields[field])
    _check_fallback(fields["fallback"])


def _check_count(field: str, limit: object) -> None:
    if limit is not None and limit != UNLIMITED and (type(limit) is not int or limit < 1):
        raise RulesInvalid(f"{field} of breaker is {describe(limit)}; give a number, 1 or more, or {UNLIMITED!r}")


def _check_positive(field: str, number: object) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise RulesInvalid(f"{field} of breaker is {describe(number)}; give a number above 0")
    if field == "error_share" and number > 1:
        raise RulesInvalid(f"error_share of breaker is {describe(number)}; give a number above 0, at most 1")


def _check_fallback(fallback: object) -> None:
    if fallback is None or fallback == ESCALATE:
        return
    if isinstance(fallback, dict) and len(fallback) == 1 and fallback.keys() <= {"model", "say"}:
        [given] = fallback.values()
        if isinstance(given, str) and given:
            return
    wanted = f"{{'model': name}}, {{'say': text}} or {ESCALATE!r}"
    raise RulesInvalid(f"fallback of breaker is {describe(fallback)}; give {wanted}")


def check_regulated_breaker(fields: Json) -> None:
    """`RulesInvalid` if the regulated tier does not allow this."""
    fallback = fields["fallback"]
    if isinstance(fallback, dict) and "model" in fallback:
        raise RulesInvalid(
            f"fallback of breaker is {describe(fallback)}, and the regulated tier does not change models; "
            f"give {ESCALATE!r} or {{'say': text}}"
        )
    unlimited = next((field for field in COUNTED_FIELDS if fields[field] == UNLIMITED), None)
    if unlimited is not None:
        raise RulesInvalid(f"{unlimited} of breaker is {UNLIMITED!r}, which the regulated tier refuses; give a number")
