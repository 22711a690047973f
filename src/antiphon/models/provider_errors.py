"""Errors of a provider's model.

Rule 1: a transient error is `ModelUnavailable`, one that needs a change `ModelRefused`, and an invalid answer
        `ReplyMalformed`.
Rule 2: an error names the provider and quotes its message, truncated. It never holds a secret.
Rule 3: the delay before a retry is the provider's, capped; an invalid one is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

from antiphon.core.codec import Malformed, parse_json
from antiphon.core.errors import ModelError, ModelRefused, ModelUnavailable, ReplyMalformed, UsageError
from antiphon.core.text import describe, sanitize
from antiphon.hub.known_secrets import redact_text
from antiphon.models.provider_settings import QUOTE_CUT_MARK, ProviderAddress

RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
"""Statuses of transient errors, besides all from 500."""
MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_QUOTED_CHARS = 300
"""Of a provider's message."""
STATUS_BY_ERROR_TYPE = {
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
"""The statuses of errors that are reported by name, within an answer."""


def error_of_status(
    status: int, said: str, address: ProviderAddress, *, model: str, retry_after: float | None = None
) -> ModelError:
    """The error of a response with this status, or of one reported within a stream."""
    said = f": {said}" if said else ""
    if status in RETRYABLE_STATUSES or status >= 500:
        return ModelUnavailable(f"{address} answered {status}{said}", status=status, retry_after=retry_after)
    if status in (401, 403):
        text = f"{address} does not let us in ({status}){said}; check {address.key_from}"
    elif status == 404:
        text = f"{address} does not know the model {describe(model)} ({status}){said}; check its name and the base_url"
    elif status < 400:
        text = f"{address} sends us elsewhere ({status}), where we do not go{said}; give the right base_url"
    else:
        text = f"{address} refused the request ({status}){said}"
    return ModelRefused(text, status=status)


def error_in_answer(error: object, address: ProviderAddress, *, model: str) -> ModelError:
    """The error that a provider reports within an answer, by its status or its name."""
    fields: Mapping[str, object] = error if isinstance(error, Mapping) else {}
    said = error_text_of(error)
    for key in (fields.get("code"), fields.get("type")):
        status = STATUS_BY_ERROR_TYPE.get(key) if isinstance(key, str) else key
        if isinstance(status, int) and 400 <= status < 600:
            return error_of_status(status, said, address, model=model)
    return ModelUnavailable(f"{address} broke off" + (f": {said}" if said else ""))


def unreachable_provider_error(what: str, error: Exception, address: ProviderAddress) -> ModelUnavailable:
    """A network error: no answer, or not all of it."""
    said = shorten_text(str(error)) or type(error).__name__
    return ModelUnavailable(f"{address} {what}: {said}")


def broken_off_error(address: ProviderAddress) -> ModelUnavailable:
    """An answer that was closed properly, but too early."""
    return ModelUnavailable(f"{address} broke off before its answer was whole")


def malformed_answer_error(what: str, address: ProviderAddress) -> ReplyMalformed:
    """An answer that cannot be decoded."""
    return ReplyMalformed(f"the answer of {address} cannot be used: {what}")


@contextmanager
def redact_raised_errors() -> Iterator[None]:
    """Redact secrets in errors of ours."""
    try:
        yield
    except (ModelError, UsageError) as error:
        error.args = tuple(redact_text(str(arg)) for arg in error.args)
        raise


def error_text_in_body(body: bytes) -> str:
    """The message in the body of an error, if it is the usual JSON; the body, otherwise."""
    try:
        value = parse_json(body)
    except Malformed:
        return shorten_text(body.decode("utf-8", "replace"))
    match value:
        case {"error": said} | {"message": said} | {"detail": said}:
            return error_text_of(said)
        case _:
            return error_text_of(value)


def error_text_of(error: object) -> str:
    """The message of an error in JSON."""
    match error:
        case str():
            return shorten_text(error)
        case {"message": str(said)}:
            return shorten_text(said)
        case None:
            return ""
        case _:
            return describe(error)


def shorten_text(text: str) -> str:
    """A foreign text in one line, truncated."""
    text = sanitize(" ".join(text.split()))
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}{QUOTE_CUT_MARK}"


def retry_after_in(headers: Mapping[str, str]) -> float | None:
    """The seconds before a retry; None if the headers do not say, or are invalid."""
    exact = _parse_seconds(headers.get("retry-after-ms"))
    if exact is not None:
        return min(exact / 1000, MAX_RETRY_AFTER_SECONDS)
    header = headers.get("retry-after")
    seconds = _parse_seconds(header)
    if seconds is None and header is not None:
        seconds = _seconds_until(header)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_SECONDS)


def _parse_seconds(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # one of the formats has no zone
        return max(0.0, moment.timestamp() - time.time())
    except (ValueError, OverflowError, TypeError):
        return None
