"""Shares: no key and no address takes all connections, streams or waiting requests, and `/health` answers always."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Reply, Request, says
from antiphon.server.connections import address_holder
from antiphon.server.limits import ServerLimits
from tests.server.processes import process
from tests.server.wire import answer, ended, raw, request, send
from tests.support.served_hub import PATIENCE, echo, opened, poll_until, served_hub

INVOKE = "/agents/support/invoke"
JSON = "content-type: application/json"
HEALTH = request("GET", "/health", "connection: close")
STALLED = 240


@dataclass
class Gate:
    """A model that answers when it is let."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def __call__(self, asked: Request) -> Reply:
        self.asked += 1
        await self.open.wait()
        return says("Here it is.")


async def is_healthy(port: int) -> bool:
    async with raw(port) as sock:
        await send(sock, HEALTH)
        return (await answer(sock))[0] == 200


def refusal(response: httpx2.Response) -> tuple[int, str, bool]:
    """The status, the reason, and whether it is said when to try again, in JSON like every other refusal."""
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    return response.status_code, error.get("reason") or error["code"], response.headers["retry-after"].isdecimal()


# Connections


async def test_too_many_connections_are_refused_as_a_problem_and_health_is_not() -> None:
    async with (
        served_hub(Agent("support", echo), limits=ServerLimits(connections=10)) as here,
        AsyncExitStack() as stack,
    ):
        early = [await stack.enter_async_context(raw(here.port)) for _ in range(10)]
        await poll_until(lambda: here.served.connections.count == 10, "they are there")
        client = await here.client()
        assert refusal(await client.get("/agents")) == (503, "too_many_connections", True)
        assert refusal(await client.get("/v1/models")) == (503, "too_many_connections", True)
        assert (await client.get("/health")).status_code == 200
        await send(early[0], request("GET", "/agents"))
        assert (await answer(early[0]))[0] == 200  # whoever was in time is answered
        for sock in early[1:]:
            sock.close()
        await poll_until(lambda: here.served.connections.count <= 9, "they have left")
        assert (await client.get("/agents")).status_code == 200


async def test_beyond_every_limit_connections_that_ask_for_nothing_make_way() -> None:
    async with served_hub(limits=ServerLimits(connections=10)) as here, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw(here.port)) for _ in range(STALLED)]
        assert await is_healthy(here.port)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(ended, silent[:100]))
        assert here.served.connections.count <= here.served.connections.most


async def test_one_key_does_not_take_all_connections() -> None:
    limits = ServerLimits(connections=12, connections_each=4)
    async with served_hub(limits=limits) as here, AsyncExitStack() as stack:
        ann, bob = await here.known("ann"), await here.known("bob")
        channel_id = await opened(ann, "bob")
        path = f"/channels/{channel_id}/subscribe"
        for _ in range(4):
            response = await stack.enter_async_context(ann.stream("GET", path))
            assert response.status_code == 200
        assert refusal(await ann.get("/agents")) == (429, "too_many_connections", True)
        assert (await bob.get("/agents")).status_code == 200
        assert await is_healthy(here.port)
        await stack.aclose()
        await poll_until(lambda: here.served.streams.open.count == 0, "the streams have ended")
        assert (await ann.get("/agents")).status_code == 200


async def test_connections_of_a_key_that_are_idle_make_way_for_its_next() -> None:
    async with served_hub(limits=ServerLimits(connections_each=3)) as here, AsyncExitStack() as stack:
        secret = await here.key("ann")
        asked = request("GET", "/agents", f"authorization: Bearer {secret}")
        socks = []
        for _ in range(6):
            sock = await stack.enter_async_context(raw(here.port))
            await send(sock, asked)
            assert (await answer(sock))[0] == 200
            socks.append(sock)
        for sock in socks[:3]:
            assert await ended(sock) == b""
        await send(socks[-1], asked)
        assert (await answer(socks[-1]))[0] == 200


async def test_one_key_does_not_take_all_connections_whatever_its_share_is_said_to_be() -> None:
    async with served_hub(limits=ServerLimits(connections=8)) as here, AsyncExitStack() as stack:
        ann, bob = await here.known("ann"), await here.known("bob")
        path = f"/channels/{await opened(ann, 'bob')}/subscribe"
        statuses = [(await stack.enter_async_context(ann.stream("GET", path))).status_code for _ in range(8)]
        assert statuses == [200] * 6 + [429] * 2
        assert (await bob.get("/agents")).status_code == 200


async def test_an_address_without_a_key_does_not_take_all_connections() -> None:
    limits = ServerLimits(connections=30, connections_each=5, request_seconds=60)
    async with served_hub(Agent("support", echo), limits=limits) as here, AsyncExitStack() as stack:
        client = await here.known("ann")
        silent = [await stack.enter_async_context(raw(here.port)) for _ in range(40)]
        assert (await client.post(INVOKE, json={"text": "x"})).status_code == 200
        for sock in silent[:30]:
            assert await ended(sock) == b""
        assert here.served.connections.count <= 7


@pytest.mark.parametrize(
    ("host", "holder"),
    [
        ("192.0.2.7", "address 192.0.2.7"),
        ("::ffff:192.0.2.7", "address 192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "address fe80::/64"),
        ("", "address unknown"),
    ],
)
def test_a_machine_with_a_network_of_its_own_is_one_holder(host: str, holder: str) -> None:
    assert address_holder(host) == holder


# Streams and waiting requests


async def test_a_stream_that_is_refused_asks_no_agent() -> None:
    limits = ServerLimits(streams=4, streams_each=1)
    async with served_hub(Agent("support", echo), limits=limits) as here, AsyncExitStack() as stack:
        ann, _ = await here.known("ann"), await here.known("bob")
        path = f"/channels/{await opened(ann, 'bob')}/subscribe"
        await stack.enter_async_context(ann.stream("GET", path))
        channels = len(await here.hub.channels())
        refused = await ann.post("/agents/support/stream_invoke", json={"text": "Hello."})
        assert refusal(refused) == (429, "too_many_streams", True)
        assert len(await here.hub.channels()) == channels


async def test_a_key_is_let_in_from_an_address_whose_share_is_taken_by_others() -> None:
    """Connections without a key that never read their answers hold their address's share, and no more."""
    limits = ServerLimits(connections=16, connections_each=2)
    async with served_hub(Agent("support", echo), limits=limits) as here, AsyncExitStack() as stack:
        ann = await here.known("ann")
        for _ in range(4):
            sock = await stack.enter_async_context(raw(here.port, window=4096))
            await send(sock, request("GET", "/openapi.json") * 40)
        assert (await ann.get("/agents")).status_code == 200
        assert (await (await here.client()).get("/health")).status_code == 200


async def test_streams_are_shared_by_key() -> None:
    async with served_hub(limits=ServerLimits(streams=4, streams_each=2)) as here, AsyncExitStack() as stack:
        first, second, bob = [await here.known(name) for name in ("ann", "ann", "bob")]
        path = f"/channels/{await opened(first, 'bob')}/subscribe"
        for client, status in ((first, 200), (first, 200), (first, 429), (second, 200), (bob, 200), (second, 429)):
            response = await stack.enter_async_context(client.stream("GET", path))
            assert response.status_code == status
            if status == 429:
                await response.aread()
                assert refusal(response) == (429, "too_many_streams", True)


@asynccontextmanager
async def waiting(clients: list[httpx2.AsyncClient], gate: Gate) -> AsyncIterator[list[asyncio.Task[httpx2.Response]]]:
    """Requests that wait for an agent, once all of them do."""
    tasks = [asyncio.create_task(client.post(INVOKE, json={"text": "x"})) for client in clients]
    await poll_until(lambda: gate.asked == len(tasks), "all of them wait")
    try:
        yield tasks
    finally:
        gate.open.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_key_does_not_take_all_places_of_requests_that_wait() -> None:
    gate = Gate()
    async with served_hub(Agent("support", gate), limits=ServerLimits(waiting=3, waiting_each=2)) as here:
        ann, bob, carl = [await here.known(name) for name in ("ann", "bob", "carl")]
        async with waiting([ann, ann, bob], gate) as tasks:
            assert refusal(await ann.post(INVOKE, json={"text": "x"})) == (429, "too_many_waiting", True)
            assert refusal(await carl.post(INVOKE, json={"text": "x"})) == (429, "too_many_waiting", True)
            chat = {"model": "support", "messages": [{"role": "user", "content": "x"}]}
            assert refusal(await ann.post("/v1/chat/completions", json=chat)) == (429, "too_many_waiting", True)
            assert (await ann.get("/agents")).status_code == 200
            gate.open.set()
            assert [(await task).status_code for task in tasks] == [200, 200, 200]
        assert (await carl.post(INVOKE, json={"text": "x"})).status_code == 200
        assert len(await here.hub.channels()) == 4  # nothing was recorded of what was refused


async def test_a_client_that_leaves_gives_its_place_back_and_its_turn_goes_on() -> None:
    gate = Gate()
    async with served_hub(Agent("support", gate), limits=ServerLimits(waiting_each=1)) as here:
        ann = await here.known("ann")
        async with waiting([ann], gate) as [task]:
            task.cancel()
            await poll_until(lambda: here.served.streams.waiting.count == 0, "nobody waits")
            gate.open.set()
        assert (await ann.post(INVOKE, json={"text": "x"})).status_code == 200
        logs = [await here.hub.log(row.channel_id) for row in await here.hub.channels()]
        assert [log[-1].event_data.get("text") for log in logs] == ["Here it is."] * 2


# Sockets that stall


def stalling(number: int) -> bytes:
    """The beginning of a request: none, half of a head, or half of a body."""
    body = request("POST", INVOKE, JSON, "content-length: 100") + b'{"te'
    return (b"", b"GET /health HTTP/1.1\r\nx: y\r\n", body)[number % 3]


async def test_hundreds_of_sockets_that_stall_are_dropped_early_and_hold_up_nobody() -> None:
    limits = ServerLimits(request_seconds=1.0, body_stalled_seconds=1.0)
    async with process(limits) as server, AsyncExitStack() as stack:
        before = server.open_files()
        socks = [await stack.enter_async_context(raw(server.port)) for _ in range(STALLED)]
        for number, sock in enumerate(socks):
            await send(sock, stalling(number))
        async with httpx2.AsyncClient(base_url=server.url) as client:
            for _ in range(10):
                assert (await client.post(INVOKE, json={"text": "x"})).status_code == 200
        told = await asyncio.gather(*map(ended, socks))
        assert all(b"too_slow" in said for said in told[2::3])
        await poll_until(lambda: server.open_files() <= before + 1, "its files are closed again")
        assert await server.stop() == 0


async def test_heads_and_bodies_have_a_few_seconds_if_nothing_else_is_said() -> None:
    usual = ServerLimits()
    assert usual.request_seconds <= 5
    assert usual.body_stalled_seconds <= 5
    assert usual.connections_each * 4 <= usual.connections
    assert usual.streams_each * 4 <= usual.streams
    assert usual.waiting_each * 4 <= usual.waiting


async def test_a_slow_reader_of_a_large_answer_is_not_taken_for_one_that_stalls() -> None:
    limits = ServerLimits(request_seconds=0.2, stalled_seconds=2.0)
    async with served_hub(limits=limits) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        for _ in range(5):
            await client.post(f"/channels/{channel_id}/messages", json={"text": "x" * 200_000})
        async with raw(here.port, window=16_384) as sock:
            await send(sock, request("GET", f"/channels/{channel_id}/log"))
            said, loop = b"", asyncio.get_running_loop()
            while not said.endswith(b"}"):
                part = await asyncio.wait_for(loop.sock_recv(sock, 50_000), PATIENCE)
                assert part, f"cut off after {len(said)} bytes"
                said += part
                await asyncio.sleep(0.03)
        assert json.loads(said.partition(b"\r\n\r\n")[2])["next"] is None


# Files


async def test_accepting_stops_before_there_are_no_files_left_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("ANTIPHON_TEST_LOG", str(log))
    monkeypatch.setenv("ANTIPHON_TEST_FILES", "160")
    limits = ServerLimits(request_seconds=3.0, connections_each=100_000)  # as if each came from another address
    async with process(limits, url=f"sqlite:///{tmp_path / 'team.db'}") as server:
        before = server.open_files()
        async with AsyncExitStack() as stack:
            socks = [await stack.enter_async_context(raw(server.port)) for _ in range(STALLED + 100)]
            for number, sock in enumerate(socks):
                await send(sock, stalling(number % 2))
            assert await is_healthy(server.port)
            assert server.open_files() <= 160 - 32  # there are files left for the store
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*map(ended, socks))
        async with httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.post(INVOKE, json={"text": "x"})).status_code == 200
        await poll_until(lambda: server.open_files() <= before + 2, "its files are closed again")
        told = log.read_text()
        assert "WARNING:antiphon.server:the limit of open files is 160" in told
        assert "no more are accepted" in told
        assert "accepted again" in told
        assert "Too many open files" not in told
        assert await server.stop() == 0


async def test_with_few_files_an_address_has_a_smaller_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("ANTIPHON_TEST_LOG", str(log))
    monkeypatch.setenv("ANTIPHON_TEST_FILES", "160")
    async with process() as server, AsyncExitStack() as stack:
        for number in range(STALLED):
            sock = await stack.enter_async_context(raw(server.port))
            await send(sock, stalling(number % 2))
        async with httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.post(INVOKE, json={"text": "x"})).status_code == 200
        assert server.open_files() < 50
        assert log.read_text().count("address 127.0.0.1 has 16 connections without a key") == 1


# Heads that are read differently by different readers

BODY = b'{"text": "x"}'
SMUGGLED = b"0\r\n\r\nGET /agents HTTP/1.1\r\nhost: localhost\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": ["content-length: 5", "transfer-encoding: chunked"],
    "chunks and length": ["transfer-encoding: chunked", "content-length: 5"],
    "two lengths": [f"content-length: {len(BODY)}", "content-length: 5"],
    "the same length twice": [f"content-length: {len(BODY)}"] * 2,
    "two lengths in one": [f"content-length: {len(BODY)}, {len(BODY)}"],
    "a folded length": [f"content-length: {len(BODY)},\r\n {len(BODY)}"],
    "two encodings": ["transfer-encoding: chunked", "transfer-encoding: chunked"],
    "a length with a sign": [f"content-length: +{len(BODY)}"],
}


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_a_head_that_can_be_read_in_two_ways_is_refused(headers: list[str]) -> None:
    async with served_hub(Agent("support", echo)) as here, raw(here.port) as sock:
        chunked = any("chunked" in header for header in headers)
        await send(sock, request("POST", INVOKE, JSON, *headers) + (SMUGGLED if chunked else BODY))
        said = await ended(sock)
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"content-type: application/json" in head
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["reason"] == "bad_http"
        assert len(re.findall(rb"HTTP/1\.1 \d", said)) == 1
        assert await here.hub.channels() == []


async def test_the_second_request_of_a_connection_is_looked_at_as_closely() -> None:
    async with served_hub(Agent("support", echo)) as here, raw(here.port) as sock:
        doubled = request("POST", INVOKE, JSON, *[f"content-length: {len(BODY)}"] * 2) + BODY
        await send(sock, request("GET", "/health") + doubled)
        said = await ended(sock)
        assert (said.count(b"HTTP/1.1 200 "), said.count(b"HTTP/1.1 400 ")) == (1, 1)
        assert b"Content-Length" in said
