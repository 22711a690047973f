"""One exchange with a provider: JSON goes out; JSON, or a stream of events, comes back.

Rule 1: a request is sent once. Redirects are not followed.
Rule 2: whatever leaves early, cancelled or failed, gives its connection up; whoever is done gives it back.
Rule 3: an answer has a size. More than that is `ReplyMalformed`, before it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon.core.codec import to_json
from antiphon.core.errors import ModelError
from antiphon.models.endpoint import Address
from antiphon.models.faults import malformed, of_status, said_in, unreachable, wait_told
from antiphon.models.pool import Pool
from antiphon.models.sse import Event, Events, Overlong

if TYPE_CHECKING:
    from httpx2 import Response

LARGEST = 8 * 1024 * 1024
"""How many bytes an answer may have."""
LARGEST_COMPLAINT = 64 * 1024
"""How much of an error is read."""
LINGERING = 0.5
"""For how many seconds the end of a stream is waited for once all is said, so that its connection can be used again."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What is sent, and to whom."""

    address: Address
    path: str
    headers: dict[str, str] = field(repr=False)
    body: dict[str, object] = field(repr=False)


class Answer:
    """What comes back. Everything about it is read while it is open."""

    def __init__(self, response: Response, address: Address, chunks: AsyncIterator[bytes]) -> None:
        self._response, self._address, self._chunks = response, address, chunks

    @property
    def is_whole(self) -> bool:
        """Whether it is plain JSON; some servers answer so whatever was asked."""
        kind: str = self._response.headers.get("content-type", "")
        return kind.partition(";")[0].strip().lower() == "application/json"

    async def whole(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self._chunks])

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Its events as they come. Whoever has heard enough of them says so with `finish`."""
        reader = Events()
        async for chunk in self._chunks:
            try:
                events = list(reader.feed(chunk))
            except Overlong as error:
                raise malformed(str(error), self._address) from error
            yield events

    async def finish(self) -> None:
        """Wait a moment for the end, so that the connection can be used again; it is closed if none comes."""
        with suppress(TimeoutError, ModelError):  # all was said: nothing that mattered is lost
            async with asyncio.timeout(LINGERING):
                async for _ in self._chunks:
                    pass


async def _chunks(response: Response, address: Address) -> AsyncGenerator[bytes, None]:
    import httpx2

    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > LARGEST:
                raise malformed(f"it has more than {LARGEST} bytes", address)
            yield chunk
    except httpx2.DecodingError as error:
        raise malformed(f"it cannot be unpacked: {error}", address) from error
    except httpx2.HTTPError as error:
        raise unreachable("broke off", error, address) from error


@asynccontextmanager
async def sent(letter: Letter, pool: Pool) -> AsyncIterator[Answer]:
    """The answer to a letter, open for reading; a `ModelError` if there is none, or it is a refusal."""
    import httpx2

    address = letter.address
    headers = {"content-type": "application/json", "accept-encoding": "identity", **letter.headers}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(pool.client(is_local=address.is_local))
        content = to_json(letter.body)
        sending = client.stream("POST", f"{address.url}{letter.path}", headers=headers, content=content)
        try:
            response = await stack.enter_async_context(sending)
        except httpx2.ConnectError as error:
            raise unreachable("cannot be reached", error, address) from error
        except httpx2.ConnectTimeout as error:
            raise unreachable("cannot be reached in time", error, address) from error
        except httpx2.HTTPError as error:
            raise unreachable("did not answer", error, address) from error
        if not response.is_success:
            raise await _refusal(response, letter)
        chunks = await stack.enter_async_context(aclosing(_chunks(response, address)))
        yield Answer(response, address, chunks)


async def _refusal(response: Response, letter: Letter) -> ModelError:
    """The error that the answer is; with its status alone, if the rest of it does not come."""
    import httpx2

    said = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            said += chunk
            if len(said) > LARGEST_COMPLAINT:
                break
    except httpx2.HTTPError as error:
        said = bytearray(str(error).encode())
    told = said_in(bytes(said[:LARGEST_COMPLAINT]))
    if response.is_redirect:
        told = f"to {response.headers.get('location')}"
    wait, model = wait_told(response.headers), str(letter.body.get("model"))
    return of_status(response.status_code, told, letter.address, model=model, retry_after=wait)
