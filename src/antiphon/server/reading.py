"""A request as its verb wants it: what stands behind the `?`, and the body, within its limits.

Rule 1: a body is counted while it comes. What is too large is refused before it is there.
Rule 2: what has not the right shape is refused with its place and the shape. A name given twice has no right shape.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import accumulate
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from antiphon.core.codec import Malformed, check_count, check_json, check_names, plain_json, to_json
from antiphon.core.words import plainly
from antiphon.server.limits import Limits
from antiphon.server.problems import JSON, Refused

T = TypeVar("T")

LIMITED = re.compile(r"Expected `(\w+)` (?P<limit>[^`]+) - at `\$\.?(?P<place>[^`]*)`\Z")
NO_CHOICE = re.compile(r"Invalid enum value (?P<value>.+) - at `\$\.?(?P<place>[^`]*)`\Z", re.S)
BYTE = re.compile(r"\(byte (\d+)\)")

MAX_BODY_VALUES = 32_000
MAX_BODY_DEPTH = 180
"""A body may hold the knobs of a channel, such as a graph of a thousand transitions, and its context. What becomes of
the parts of a body has tighter limits of its own."""


async def body_of(request: Request, kind: type[T], limits: Limits) -> T:
    """The body as a value of this type; `Refused` if it is none."""
    _check_headers(request.headers, limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            raw = await _read(request, limits)
    except TimeoutError:
        said = f"the body did not come within {limits.body_seconds:g} seconds"
        raise Refused(408, "too_slow", said, close=True) from None
    except ClientDisconnect:
        raise Refused(400, "gone", "whoever asked is gone") from None
    return typed(raw, kind)


def typed(raw: bytes, kind: type[T]) -> T:
    """JSON as a value of this type."""
    try:
        check_count(raw, most=MAX_BODY_VALUES)
        plain: object = plain_json(raw)
        check_json(plain, most=MAX_BODY_VALUES, deepest=MAX_BODY_DEPTH)
        check_names(raw)
        return msgspec.convert(plain, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, "bad_body", f"the body: {_in_our_words(str(error))}") from error
    except Malformed as error:
        reason = "bad_body" if error.reason == "malformed" else error.reason
        raise Refused(413 if reason == "too_large" else 422, reason, f"the body: {error}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refused(400, "no_json", f"the body is no JSON{_where(error)}; send JSON in UTF-8") from error


def _in_our_words(complaint: str) -> str:
    """What is wrong with the shape of a value, from what the decoder says."""
    if limited := LIMITED.match(complaint):
        return f"{limited['place'] or 'it'} must be {limited[1]} {limited['limit']}"
    if choice := NO_CHOICE.match(complaint):
        return f"{choice['place'] or 'it'} is {choice['value']}, which is none of its values"
    plain = plainly(complaint)
    return plain if plain != complaint else "it does not have the right shape; GET /openapi.json describes it"


def _where(error: Exception) -> str:
    """Where a body stops to be JSON, if that is known."""
    found = BYTE.search(str(error))
    return f" from byte {found[1]} on" if found else ""


def query_of(given: Mapping[str, str], kind: type[T]) -> T:
    """What stands behind the `?` as a value of this type."""
    try:
        return msgspec.convert(dict(given), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "bad_query", f"the query: {_in_our_words(str(error))}") from error


def size_of(value: object) -> int:
    """The bytes that a value takes on a page, with the comma behind it."""
    return len(to_json(value)) + 1


def count_within(values: Iterable[object], most_bytes: int) -> int:
    """How many of the first values fit on a page of this size; one at least."""
    return max(1, sum(size <= most_bytes for size in accumulate(map(size_of, values))))


def _check_headers(headers: Mapping[str, str], limits: Limits) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise Refused(415, "not_json", f"the body is {kind or 'of no type'}; send {JSON}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoded", "the body is encoded; send it as it is")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.body_bytes:
        raise _too_large(limits.body_bytes)


async def _read(request: Request, limits: Limits) -> bytes:
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    while (chunk := await _next(stream, limits.body_stalled_seconds)) is not None:
        size += len(chunk)
        if size > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def _next(stream: AsyncIterator[bytes], seconds: float) -> bytes | None:
    """The next piece of a body; None at its end."""
    try:
        async with asyncio.timeout(seconds) as patience:
            return await anext(stream, None)
    except TimeoutError:
        if not patience.expired():
            raise
        raise Refused(408, "too_slow", f"nothing of the body came for {seconds:g} seconds", close=True) from None


def _too_large(most: int) -> Refused:
    return Refused(413, "too_large", f"the body has more than {most} bytes")
