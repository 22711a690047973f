"""Programs that receive webhooks, on this machine: each answers every request with the same bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass
class Hook:
    """What was received."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """The first line, the headers and the body of each request."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


def answered(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *lines, "", body]).encode()


@asynccontextmanager
async def hook_server(answer: bytes | None = OK, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    """A program that answers so; with None it never does."""
    hook = Hook()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        hook.tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            hook.requests.append((first, headers, body))
            hook.arrived.set()
            if answer is None:
                await reader.read()
            writer.write(answer or b"")
            await writer.drain()
            if answer is not None and b"content-length: 999999" in answer:
                await reader.read()  # the rest never comes
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    listening = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=tls)
    hook.port = listening.sockets[0].getsockname()[1]
    try:
        yield hook
    finally:
        listening.close()
        async with asyncio.timeout(10):  # they end because the other side has left
            await asyncio.gather(*hook.tasks)
        await listening.wait_closed()
