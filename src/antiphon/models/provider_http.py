"""One exchange with a provider over HTTP: JSON is sent; JSON, or a stream of server-sent events, comes back.

Rule 1: a request is sent once. Redirects are not followed, and nothing is retried: the caller decides about that.
Rule 2: a response that is left early, cancelled or failed, closes its connection; one read to its end returns it.
Rule 3: an answer, an event and a line have a maximum size, checked before they are kept.
Rule 4: an event without its closing empty line is not an event: the stream broke off. Only whole lines are decoded, so
        no character is split between chunks.
Rule 5: connections are opened on first use, per event loop, and shared by all calls on it. Closed during a call, they
        end with the last call; a later call opens new ones.
Rule 6: the environment's proxies and certificates are used, except for this machine, where a proxy would only listen.
Rule 7: an answer has no timeout here. The caller has one, and cancels.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from antiphon.core.codec import to_json
from antiphon.core.errors import ModelError
from antiphon.models.provider_errors import (
    error_of_status,
    error_text_in_body,
    malformed_answer_error,
    retry_after_in,
    unreachable_provider_error,
)
from antiphon.models.provider_settings import ProviderAddress

if TYPE_CHECKING:
    import ssl

    from httpx2 import AsyncClient, Response

MAX_SSE_BYTES = 1024 * 1024
"""Of a line, or of the data of an event."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SSE_LINE_END = re.compile(rb"\r\n|\n|\r")


class OverlongEvent(ValueError):
    """A line or an event is too large."""


class SseEvent(NamedTuple):
    """One event."""

    kind: bytes
    """Its name; empty if it has none."""
    data: bytes
    """Its lines of data, joined by line ends."""


class SseDecoder:
    """Decodes the events of one stream, however it is cut into chunks."""

    def __init__(self, largest: int = MAX_SSE_BYTES) -> None:
        self._largest = largest
        self._line = bytearray()
        self._after_return = False
        self._first = True
        self._kind = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """The events that this chunk completes; `OverlongEvent` if one is too large."""
        if not chunk:
            return
        halved, self._after_return = self._after_return, chunk.endswith(b"\r")
        if halved:
            chunk = chunk.removeprefix(b"\n")  # the second half of a line end split between chunks
        *whole, rest = SSE_LINE_END.split(chunk)
        for line in whole:
            self._keep(line)
            event = self._read(bytes(self._line))
            self._line.clear()
            if event is not None:
                yield event
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        self._check(len(self._line) + len(part))
        self._line += part

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise OverlongEvent(f"an event has more than {self._largest} bytes")

    def _read(self, line: bytes) -> SseEvent | None:
        """The event that this line completes, if any."""
        if self._first:
            self._first, line = False, line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            event = SseEvent(self._kind, b"\n".join(self._data)) if self._data else None
            self._kind, self._data, self._size = b"", [], 0
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._kind = value
        elif field == b"data":
            self._size += len(value) + 1
            self._check(self._size)
            self._data.append(value)
        return None  # a comment, or another field


CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 1000
"""Waiting for a connection would not be seen as such, so there are enough."""
MAX_IDLE_CONNECTIONS = 20
IDLE_SECONDS = 30.0


class PooledClient:
    """A client of one event loop, and how many calls use it."""

    def __init__(self, client: AsyncClient) -> None:
        self.client, self.users, self.closing = client, 0, False

    async def settle(self) -> None:
        """Close, if that is wanted and no call uses it."""
        if self.closing and not self.users:
            await self.client.aclose()


class ClientPool:
    """The HTTP clients of one model, by event loop."""

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, PooledClient]] = WeakKeyDictionary()

    @asynccontextmanager
    async def client(self, *, is_local: bool) -> AsyncIterator[AsyncClient]:
        """A client for one call."""
        lines = self._clients.setdefault(asyncio.get_running_loop(), {})
        line = lines.get(is_local)
        if line is None:
            line = lines[is_local] = PooledClient(_make_client(is_local))
        line.users += 1
        try:
            yield line.client
        finally:
            line.users -= 1
            await line.settle()

    async def close(self) -> None:
        """Close the connections of this event loop, at once or with the last call."""
        for line in self._clients.pop(asyncio.get_running_loop(), {}).values():
            line.closing = True
            await line.settle()


def _make_client(is_local: bool) -> AsyncClient:
    import httpx2

    return httpx2.AsyncClient(
        verify=_ssl_context(),
        trust_env=not is_local,
        follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
        ),
    )


@cache
def _ssl_context() -> ssl.SSLContext:
    """The trusted certificates, loaded once: that takes longer than an answer from this machine."""
    import httpx2

    return httpx2.create_ssl_context()


MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
STREAM_END_SECONDS = 0.5
"""How long the end of a stream is waited for after the answer's, so that its connection can be reused."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """A request to a provider."""

    address: ProviderAddress
    path: str
    headers: dict[str, str] = field(repr=False)
    body: dict[str, object] = field(repr=False)


class ProviderResponse:
    """A response that is open for reading."""

    def __init__(self, response: Response, address: ProviderAddress, chunks: AsyncIterator[bytes]) -> None:
        self._response, self._address, self._chunks = response, address, chunks

    @property
    def is_whole(self) -> bool:
        """Whether it is plain JSON; some servers never stream."""
        kind: str = self._response.headers.get("content-type", "")
        return kind.partition(";")[0].strip().lower() == "application/json"

    async def whole(self) -> bytes:
        return b"".join([chunk async for chunk in self._chunks])

    async def events(self) -> AsyncGenerator[list[SseEvent], None]:
        """Its events, in the batches in which they arrive."""
        reader = SseDecoder()
        async for chunk in self._chunks:
            try:
                events = list(reader.feed(chunk))
            except OverlongEvent as error:
                raise malformed_answer_error(str(error), self._address) from error
            yield events

    async def finish(self) -> None:
        """Wait a moment for the end, so that the connection can be reused; it is closed if none comes."""
        with suppress(TimeoutError, ModelError):  # the answer is complete already
            async with asyncio.timeout(STREAM_END_SECONDS):
                async for _ in self._chunks:
                    pass


async def _read_chunks(response: Response, address: ProviderAddress) -> AsyncGenerator[bytes, None]:
    import httpx2

    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise malformed_answer_error(f"it has more than {MAX_ANSWER_BYTES} bytes", address)
            yield chunk
    except httpx2.DecodingError as error:
        raise malformed_answer_error(f"it cannot be unpacked: {error}", address) from error
    except httpx2.HTTPError as error:
        raise unreachable_provider_error("broke off", error, address) from error


@asynccontextmanager
async def open_response(provider_request: ProviderRequest, pool: ClientPool) -> AsyncIterator[ProviderResponse]:
    """The response to a request, open for reading; a `ModelError` if there is none, or it is an error."""
    import httpx2

    address = provider_request.address
    headers = {"content-type": "application/json", "accept-encoding": "identity", **provider_request.headers}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(pool.client(is_local=address.is_local))
        content = to_json(provider_request.body)
        sending = client.stream("POST", f"{address.url}{provider_request.path}", headers=headers, content=content)
        try:
            response = await stack.enter_async_context(sending)
        except httpx2.ConnectError as error:
            raise unreachable_provider_error("cannot be reached", error, address) from error
        except httpx2.ConnectTimeout as error:
            raise unreachable_provider_error("cannot be reached in time", error, address) from error
        except httpx2.HTTPError as error:
            raise unreachable_provider_error("did not answer", error, address) from error
        if not response.is_success:
            raise await _error_of_response(response, provider_request)
        chunks = await stack.enter_async_context(aclosing(_read_chunks(response, address)))
        yield ProviderResponse(response, address, chunks)


async def _error_of_response(response: Response, provider_request: ProviderRequest) -> ModelError:
    """The error of a response; with its status alone, if its body does not arrive."""
    import httpx2

    said = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            said += chunk
            if len(said) > MAX_ERROR_BODY_BYTES:
                break
    except httpx2.HTTPError as error:
        said = bytearray(str(error).encode())
    detail = error_text_in_body(bytes(said[:MAX_ERROR_BODY_BYTES]))
    if response.is_redirect:
        detail = f"to {response.headers.get('location')}"
    wait, model = retry_after_in(response.headers), str(provider_request.body.get("model"))
    return error_of_status(response.status_code, detail, provider_request.address, model=model, retry_after=wait)
