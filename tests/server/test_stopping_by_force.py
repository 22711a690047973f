"""SIGTERM ends `antiphon serve` in the time that it is given, whatever its tools do, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon import Hub
from tests.server.processes import Process, started
from tests.server.wire import raw, request, send
from tests.support.served_hub import PATIENCE, opened, poll_until

LARGE = "x" * 200_000
PROGRAM = str(Path(__file__).with_name("stuck.py"))
ANSWER = ("support", "ag2.msg.text")
SLACK = 2.0
"""How many seconds longer than it should a process may take on a machine that is busy."""


@asynccontextmanager
async def served(folder: Path, seconds: float) -> AsyncIterator[Process]:
    """`antiphon serve`, which has so many seconds to stop. What it complains of is in a file."""
    store, complaints = str(folder / "team.db"), folder / "complaints"
    command = [sys.executable, "-m", "antiphon", "serve", PROGRAM, "--store", store, "--port", "0", "--json"]
    command += ["--stop-within", str(seconds), "--open"]
    run = "import os, sys; os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2); "
    run += "os.execv(sys.argv[2], sys.argv[2:])"
    async with started("-c", run, str(complaints), *command) as begun:
        yield begun


async def called(ledger: Path, name: str) -> None:
    """Return when the tool of this name runs."""
    await poll_until(lambda: ledger.exists() and name in ledger.read_text().split(), f"{name} runs")


async def told(client: httpx2.AsyncClient, *names: str) -> list[str]:
    """Have the agent call each of these tools, in a channel of its own, and wait for none."""
    channels = [await opened(client, "support") for _ in names]
    for channel_id, name in zip(channels, names, strict=True):
        response = await client.post(f"/channels/{channel_id}/messages", json={"text": name})
        assert response.status_code in (200, 201), response.text
    return channels


async def answer(client: httpx2.AsyncClient, channel_id: str) -> str:
    """What the agent has answered there, as soon as it has."""
    async with asyncio.timeout(PATIENCE):
        while True:
            log = (await client.get(f"/channels/{channel_id}/log")).json()["envelopes"]
            said = [each["event_data"]["text"] for each in log if (each["sender_id"], each["event_type"]) == ANSWER]
            if said:
                return str(said[-1])
            await asyncio.sleep(0.02)


async def stopped(server: Process, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
    """The exit code after a signal, and how many seconds it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    server.signal(number)
    return await server.ended(), loop.time() - began


async def resumed(folder: Path, channels: list[str]) -> list[str]:
    """What is answered after a restart."""
    async with served(folder, 8) as server, httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        return [await answer(client, channel_id) for channel_id in channels]


async def test_tools_that_do_not_stop_hold_up_neither_the_end_nor_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("ANTIPHON_TEST_LEDGER", str(ledger))
    async with served(tmp_path, 8) as server, httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        channels = await told(client, "swallow", "sleep")
        await called(ledger, "swallow")
        await called(ledger, "sleep")
        code, seconds = await stopped(server)
    assert (code, seconds < 8 + SLACK) == (0, True)
    complaints = (tmp_path / "complaints").read_text()
    assert f"tool 'swallow' of agent 'support' in channel {channels[0]} was cancelled and still runs" in complaints
    assert f"tool 'sleep' of agent 'support' in channel {channels[1]} was cancelled and still runs in its" in complaints
    assert await resumed(tmp_path, channels) == ["swallowed", "slept"]


@pytest.mark.parametrize(
    "name", ["block", pytest.param("pool", marks=pytest.mark.proof)], ids=["event loop", "thread of the loop"]
)
async def test_a_server_that_cannot_stop_is_ended_by_force_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("ANTIPHON_TEST_LEDGER", str(ledger))
    async with served(tmp_path, 2) as server, httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        channels = await told(client, name)
        await called(ledger, name)
        code, seconds = await stopped(server)
    assert (code, 2 <= seconds < 2 + SLACK) == (1, True)
    complaints = (tmp_path / "complaints").read_text()
    assert "the server did not stop within 2 seconds of SIGTERM and is ended by force (exit code 1)" in complaints
    if name == "block":
        assert f"still running: tool 'block' of agent 'support' in channel {channels[0]}; " in complaints
        assert f"the main thread is at {PROGRAM}:" in complaints
    assert await resumed(tmp_path, channels) == [f"{name}ed"]


async def recorded(folder: Path) -> str:
    """A channel in the store of the server, with more in its log than connections that are not read can hold."""
    async with Hub.open(f"sqlite:///{folder / 'team.db'}", engine=None) as hub:
        await hub.register("bob")
        channel = await (await hub.register("ann")).open(type="conversation", target="bob")
        for _ in range(10):
            await channel.send(LARGE)
        return channel.channel_id


def arrived(sock: socket.socket) -> bytes:
    """What has arrived of the answer. Nothing of it is taken."""
    try:
        return sock.recv(65536, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("path", ["log", "subscribe"], ids=["an answer", "a stream"])
async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("ANTIPHON_TEST_LEDGER", str(tmp_path / "ledger"))
    channel_id = await recorded(tmp_path)
    async with served(tmp_path, 4) as server, raw(server.port, window=4096) as sock:
        await send(sock, request("GET", f"/channels/{channel_id}/{path}?view=operator"))
        await poll_until(lambda: len(arrived(sock)) >= 4096, "the server sends more than the client takes")
        code, seconds = await stopped(server)
    assert (code, seconds < 4 + SLACK) == (0, True)
    assert "ended by force" not in (tmp_path / "complaints").read_text()
