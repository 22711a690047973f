"""What it costs others that some who follow a channel have stopped reading.

The server, those who follow and whoever publishes are three processes, as they would be. Rounds with readers alone and
rounds in which every tenth of them reads nothing take turns.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from antiphon import Hub
from antiphon.server.limits import ServerLimits
from antiphon.server.serving import serving
from bench.figures import Figure

FOLLOWERS, STALLED = 100, 10
MESSAGES, ROUNDS = 400, 4
TEXT = "x" * 1000
WINDOW = 4096
"""How many bytes somebody who reads nothing takes all the same."""
LIMITS = ServerLimits(stalled_seconds=3.0)


async def serve() -> None:
    """A server over a hub in memory, until nobody wants to know any more."""
    async with Hub.open("memory:") as hub:
        await hub.register("bob")
        async with serving(hub, port=0, limits=LIMITS, open=True) as served:
            print(served.port, flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def follow(port: int, channel_id: str, stalled: int) -> None:
    """Many who follow a channel. Says when all are there, and how much they were told in which time."""
    idle = [await _asked(port, channel_id, window=WINDOW) for _ in range(stalled)]
    reading = [await _asked(port, channel_id) for _ in range(FOLLOWERS - stalled)]
    print("ready", flush=True)
    counts = await asyncio.gather(*map(_count, reading))
    for sock in (*idle, *reading):
        sock.close()
    print(sum(counts), flush=True)


async def _asked(port: int, channel_id: str, *, window: int | None = None) -> socket.socket:
    """A connection on which a stream has been asked for, and has begun."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    if window is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = f"GET /channels/{channel_id}/subscribe HTTP/1.1\r\nhost: localhost\r\n\r\n"
    await loop.sock_sendall(sock, head.encode())
    await loop.sock_recv(sock, 1)
    return sock


async def _count(sock: socket.socket) -> int:
    """How many messages somebody is told who reads until the channel ends."""
    loop = asyncio.get_running_loop()
    count, tail = 0, b""
    while not tail.endswith(b"0\r\n\r\n"):
        tail = tail[-20:] + await loop.sock_recv(sock, 1 << 20)
        count += tail.count(b"event: envelope", max(0, min(len(tail), 20) - 14))
    return count


@asynccontextmanager
async def _beside(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "bench.subscribers", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def _round(client: httpx2.AsyncClient, port: int, *, stalled: int) -> tuple[list[float], float]:
    """How long each message took to be acknowledged, and how many events a second readers were told."""
    channel_id = (await client.post("/channels", json={"target": ["bob"]})).json()["channel_id"]
    async with _beside("follow", str(port), channel_id, str(stalled)) as followers:
        await _line(followers)
        took: list[float] = []
        began = time.perf_counter()
        for _ in range(MESSAGES):
            sent = time.perf_counter()
            await client.post(f"/channels/{channel_id}/messages", json={"text": TEXT})
            took.append(time.perf_counter() - sent)
        await client.post(f"/channels/{channel_id}/close", json={})
        told = int(await _line(followers))
    readers = FOLLOWERS - stalled
    assert told >= readers * MESSAGES, f"{told} events for {readers} readers of {MESSAGES} messages"
    return took, told / (time.perf_counter() - began)


async def measured() -> tuple[list[float], list[float], float]:
    """The times of publishing beside readers alone, those beside some who read nothing, and events a second."""
    healthy: list[float] = []
    beside: list[float] = []
    rates: list[float] = []
    async with _beside("serve") as server:
        port = int(await _line(server))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            await _round(client, port, stalled=0)  # warms up
            for _ in range(ROUNDS):
                took, rate = await _round(client, port, stalled=0)
                healthy += took
                rates.append(rate)
                beside += (await _round(client, port, stalled=STALLED))[0]
    return healthy, beside, max(rates)


def p99(times: list[float]) -> float:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def figures() -> list[Figure]:
    """Measure."""
    healthy, beside, rate = asyncio.run(measured())
    alone, others = p99(healthy) * 1e3, p99(beside) * 1e3
    note = f"{others:.1f} ms; {STALLED} of {FOLLOWERS} read nothing"
    return [
        Figure(f"publishing to {FOLLOWERS} subscribers over HTTP, p99", alone, "ms"),
        Figure("… with one in ten of them stalled, against none", others / alone, "×", at_most=1.2, note=note),
        Figure("events delivered", rate, "/s"),
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["follow", port, channel_id, stalled]:
            asyncio.run(follow(int(port), channel_id, int(stalled)))
        case _:
            print(*(f"{each.name}: {each.shown} {each.note}" for each in figures()), sep="\n")
