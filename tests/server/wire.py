"""What goes over the wire, read without mercy: events as they stand there, sockets that say anything, and answers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    id: str
    event: str
    data: dict[str, object]


def events_in(text: str) -> list[Event]:
    """Every event of a whole stream, which must end behind one. Comments are passed over."""
    assert text == "" or text.endswith("\n\n"), text[-200:]
    return [event_of(block) for block in text.split("\n\n")[:-1] if not block.startswith(":")]


def event_of(block: str) -> Event:
    """One event of its lines: an id if it has one, its name, and its data in one line of JSON."""
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    assert fields.keys() in ({"event", "data"}, {"id", "event", "data"}), block
    return Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))


async def events_of(response: httpx2.Response) -> AsyncIterator[Event]:
    """The events of a stream as they come."""
    block: list[str] = []
    async for line in response.aiter_lines():
        if line:
            block.append(line)
            continue
        if not block[0].startswith(":"):
            yield event_of("\n".join(block))
        block = []


UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HASH = re.compile(r"\b[0-9a-f]{64}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def canonical(text: str) -> str:
    """A stream whose ids, hashes and times are the same every time."""
    known: dict[str, str] = {}

    def name(kind: str, found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"{kind}-{sum(each.startswith(kind) for each in known.values()) + 1}")

    text = HASH.sub(lambda found: name("hash", found), text)
    return TIME.sub("a-time", UUID.sub(lambda found: name("id", found), text))


@asynccontextmanager
async def raw(port: int, *, window: int | None = None) -> AsyncIterator[socket.socket]:
    """A connection that says nothing by itself; with a window it takes no more than about so many bytes unread."""
    with socket.socket() as sock:
        if window is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        yield sock


async def send(sock: socket.socket, *parts: bytes) -> None:
    """Send bytes as they are. Whoever is cut off meanwhile has said enough."""
    loop = asyncio.get_running_loop()
    try:
        for part in parts:
            await loop.sock_sendall(sock, part)
    except (ConnectionResetError, BrokenPipeError):
        pass


async def answer(sock: socket.socket, *, seconds: float = 20.0) -> tuple[int, bytes]:
    """The status and everything else that comes until the other side ends the connection, or has said enough."""
    said = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        while not _is_whole(said):
            try:
                part = await loop.sock_recv(sock, 65536)
            except ConnectionResetError:
                break
            if not part:
                break
            said += part
    return (int(said.split(b" ", 2)[1]) if said else 0), said


async def ended(sock: socket.socket, *, seconds: float = 20.0) -> bytes:
    """Everything that comes until the connection is gone."""
    said, loop = b"", asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        while True:
            try:
                part = await loop.sock_recv(sock, 65536)
            except ConnectionResetError:
                return said
            if not part:
                return said
            said += part


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as it is sent."""
    head = [f"{method} {path} HTTP/1.1", "host: localhost", *headers]
    if body and not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def _is_whole(said: bytes) -> bool:
    head, found, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.I)
    return bool(found and length and len(body) >= int(length[1]))
