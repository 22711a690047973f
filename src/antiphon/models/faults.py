"""What goes wrong between here and a provider, as errors.

Rule 1: what may pass by itself is `ModelUnavailable`, what has to be changed `ModelRefused`, and an answer without the
        right shape `ReplyMalformed`.
Rule 2: an error says who did not answer and what they said, in their words, cut short. No secret is ever among these.
Rule 3: after how long to ask again is the provider's word, within reason; a word without sense is no word.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

from antiphon.core.codec import Malformed, parsed
from antiphon.core.errors import ModelError, ModelRefused, ModelUnavailable, ReplyMalformed, UsageError
from antiphon.core.words import shown, storable
from antiphon.hub.redacting import redacted
from antiphon.models.endpoint import CUT_SHORT, Address

PASSING = frozenset({408, 409, 425, 429})
"""What passes by itself, besides everything from 500 on."""
LONGEST_WAIT = 86_400.0
LONGEST = 300
"""How many characters of somebody else's words are repeated."""
KINDS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The statuses of errors that come by name, in the middle of an answer."""


def of_status(status: int, said: str, address: Address, *, model: str, retry_after: float | None = None) -> ModelError:
    """The error of an answer with this status, or of one in the middle of a stream."""
    said = f": {said}" if said else ""
    if status in PASSING or status >= 500:
        return ModelUnavailable(f"{address} answered {status}{said}", status=status, retry_after=retry_after)
    if status in (401, 403):
        text = f"{address} does not let us in ({status}){said}; check {address.key_from}"
    elif status == 404:
        text = f"{address} does not know the model {shown(model)} ({status}){said}; check its name and the base_url"
    elif status < 400:
        text = f"{address} sends us elsewhere ({status}), where we do not go{said}; give the right base_url"
    else:
        text = f"{address} refused the request ({status}){said}"
    return ModelRefused(text, status=status)


def of_error(error: object, address: Address, *, model: str) -> ModelError:
    """The error that a provider tells of in the middle of an answer, by its status or by its name."""
    fields: Mapping[str, object] = error if isinstance(error, Mapping) else {}
    said = words_of(error)
    for key in (fields.get("code"), fields.get("type")):
        status = KINDS.get(key) if isinstance(key, str) else key
        if isinstance(status, int) and 400 <= status < 600:
            return of_status(status, said, address, model=model)
    return ModelUnavailable(f"{address} broke off" + (f": {said}" if said else ""))


def unreachable(what: str, error: Exception, address: Address) -> ModelUnavailable:
    """No answer, or not a whole one, for a reason that lies between here and there."""
    said = short(str(error)) or type(error).__name__
    return ModelUnavailable(f"{address} {what}: {said}")


def broken_off(address: Address) -> ModelUnavailable:
    """An answer that ended in good order, but too early."""
    return ModelUnavailable(f"{address} broke off before its answer was whole")


def malformed(what: str, address: Address) -> ReplyMalformed:
    """An answer without the right shape."""
    return ReplyMalformed(f"the answer of {address} cannot be used: {what}")


@contextmanager
def discreet() -> Iterator[None]:
    """Errors of ours leave without secrets in them."""
    try:
        yield
    except (ModelError, UsageError) as error:
        error.args = tuple(redacted(str(arg)) for arg in error.args)
        raise


def said_in(body: bytes) -> str:
    """What the body of an error says: the message in it, if it is the usual JSON."""
    try:
        value = parsed(body)
    except Malformed:
        return short(body.decode("utf-8", "replace"))
    match value:
        case {"error": said} | {"message": said} | {"detail": said}:
            return words_of(said)
        case _:
            return words_of(value)


def words_of(error: object) -> str:
    """What an error in JSON says."""
    match error:
        case str():
            return short(error)
        case {"message": str(said)}:
            return short(said)
        case None:
            return ""
        case _:
            return shown(error)


def short(text: str) -> str:
    """Somebody else's words in one line, cut short."""
    text = storable(" ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}{CUT_SHORT}"


def wait_told(headers: Mapping[str, str]) -> float | None:
    """After how many seconds to ask again; None if that is not said, or makes no sense."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return min(exact / 1000, LONGEST_WAIT)
    told = headers.get("retry-after")
    seconds = _number(told)
    if seconds is None and told is not None:
        seconds = _seconds_until(told)
    return None if seconds is None else min(seconds, LONGEST_WAIT)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # one form of it does not name its zone
        return max(0.0, moment.timestamp() - time.time())
    except (ValueError, OverflowError, TypeError):
        return None
