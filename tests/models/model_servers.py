"""Model servers on this machine: they answer by a script, as badly as is wanted, and remember what they were asked.

The bytes of an answer are written by hand, so that they can be cut anywhere. That these servers speak the protocols is
proved in `test_peers.py`, where the providers' own clients ask them.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

Json = dict[str, object]

PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass
class Seen:
    """A request that came in."""

    path: str
    headers: dict[str, str]
    body: Json


@dataclass
class Connection:
    """One that somebody opened, and what can be done to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    broken: bool = False

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        """End it in the middle, without a word."""
        self.broken = True

    async def gone(self) -> None:
        """Wait for the other side to leave."""
        while await self.reader.read(1024):
            pass


Answer = Callable[[Connection], Awaitable[None]]


class Server:
    """Answers by a script; the last answer of it is given again and again."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[Seen] = []
        self.connections: int = 0
        self.open: set[Connection | int] = set()
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this holds of the server; far too long is an error."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(holds)

    async def told(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        number = self.connections
        self.open.add(number)
        try:
            await self.serve(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # they left
        finally:
            self.open.discard(number)
            self.tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            await self.told()

    async def serve(self, connection: Connection) -> None:
        while not connection.broken:
            head = await connection.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await connection.reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(Seen(first.split()[1], headers, json.loads(body)))
            await self.told()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await answer(connection)


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Server]:
    """A server that gives these answers."""
    server = Server(answers)
    listening = await asyncio.start_server(server.meet, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        await listening.wait_closed()


def head(status: int, kind: str, headers: dict[str, str]) -> bytes:
    lines = {"content-type": kind, **headers}
    written = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    phrase = PHRASES.get(status, "Odd")
    return f"HTTP/1.1 {status} {phrase}\r\n{written}\r\n".encode()


def plain(
    body: bytes | Json, status: int = 200, *, headers: dict[str, str] | None = None, kind: str = "application/json"
) -> Answer:
    """A whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(connection: Connection) -> None:
        await connection.send(head(status, kind, {"content-length": str(len(data)), **(headers or {})}) + data)

    return answer


def cut_body(body: Json, at: int) -> Answer:
    """An answer that says how long it is, and is not."""
    data = json.dumps(body).encode()

    async def answer(connection: Connection) -> None:
        await connection.send(head(200, "application/json", {"content-length": str(len(data))}) + data[:at])
        connection.cut()

    return answer


def endless(body: bytes) -> Answer:
    """An answer that ends where the connection does, as HTTP/1.0 had them."""

    async def answer(connection: Connection) -> None:
        await connection.send(head(200, "application/json", {"connection": "close"}) + body)
        connection.cut()

    return answer


def streamed(parts: Iterable[bytes], *, cut: bool = False, size: int | None = None, linger: bool = False) -> Answer:
    """A stream of events, each part a chunk, or in chunks of a size. Cut, it lacks its end; lingering, it has none."""
    whole = list(parts)
    if size is not None:
        joined = b"".join(whole)
        whole = [joined[at : at + size] for at in range(0, len(joined), size)]

    async def answer(connection: Connection) -> None:
        await connection.send(head(200, "text/event-stream; charset=utf-8", {"transfer-encoding": "chunked"}))
        for part in whole:
            await connection.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        if cut:
            connection.cut()
        elif linger:
            await connection.gone()
        else:
            await connection.send(b"0\r\n\r\n")

    return answer


@dataclass
class Held:
    """An answer that does not come before it is released; it notices when nobody waits any more."""

    then: Answer | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, connection: Connection) -> None:
        leaving = asyncio.ensure_future(connection.gone())
        releasing = asyncio.ensure_future(self.released.wait())
        try:
            await asyncio.wait({leaving, releasing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            releasing.cancel()
            if not leaving.done():
                leaving.cancel()
            await asyncio.gather(leaving, releasing, return_exceptions=True)
        if self.released.is_set() and self.then is not None:
            await self.then(connection)
        else:
            self.left.set()
            connection.cut()


async def hang_up(connection: Connection) -> None:
    """Leaves before a word is said."""
    connection.cut()
