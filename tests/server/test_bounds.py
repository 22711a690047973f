"""How much of anything is taken: large, deep, slow and broken requests are refused by name, and cost little."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx2
import pytest

from antiphon import Agent, AgentTarget, FromSpeaker, Reply, TerminateTarget, Transition, TransitionGraph, says
from antiphon.server.limits import ServerLimits
from tests.server.processes import MEBIBYTE, process
from tests.server.wire import answer, ended, raw, request, send
from tests.support.served_hub import ServedHub, echo, opened, poll_until, served_hub

GIBIBYTE = 1024 * MEBIBYTE
SENT = GIBIBYTE if os.environ.get("ANTIPHON_PROOF") == "1" else 48 * MEBIBYTE
"""How much of a body of a gibibyte is really sent."""
MOST_GROWTH = 64 * MEBIBYTE
INVOKE = "/agents/support/invoke"
JSON = "content-type: application/json"
QUICK = ServerLimits(body_seconds=0.3, request_seconds=0.4, stalled_seconds=0.5)


# Bodies


def announced(kind: str) -> tuple[str, bytes]:
    """The header that announces a body of a gibibyte, and the piece that it is sent in."""
    if kind == "chunked":
        return "transfer-encoding: chunked", b"100000\r\n" + b"x" * MEBIBYTE + b"\r\n"
    return f"content-length: {GIBIBYTE}", b"x" * MEBIBYTE


async def test_a_gibibyte_is_refused_and_takes_no_memory() -> None:
    async with process() as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.post(INVOKE, json={"text": "x" * 100_000})).status_code == 200
        before = server.peak()
        for kind in ("length", "chunked", "text"):
            header, piece = announced(kind)
            async with raw(server.port) as sock:
                await send(sock, request("POST", INVOKE, JSON, header))
                if kind == "text":
                    await send(sock, b'{"text": "')
                answering = asyncio.create_task(answer(sock, seconds=120))
                await send(sock, *[piece] * (SENT // MEBIBYTE))
                status, said = await answering
                assert (status, b"too_large" in said) == (413, True), kind
        nested = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert (await client.post(INVOKE, content=nested, headers={"content-type": "application/json"})).is_client_error
        assert server.peak() - before < MOST_GROWTH
        assert (await client.get("/health")).json()["status"] == "ok"
        assert await server.stop() == 0


BAD = {
    "a deep list": (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "no_json"),
    "a deep object": (b'{"text": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, 400, "no_json"),
    "a list just too deep": (b'{"text": ' + b"[" * 200 + b"]" * 200 + b"}", 422, "too_deep"),
    "a long number": (b'{"text": ' + b"9" * 5000 + b"}", 422, "bad_body"),
    "a long number where anything may stand": (b'{"data": {"n": ' + b"9" * 5000 + b"}}", 422, "bad_body"),
    "a number just too long": (b'{"data": {"n": ' + b"9" * 101 + b"}}", 422, "bad_number"),
    "a number that is none": (b'{"text": NaN}', 400, "no_json"),
    "many small things": (b'{"text": [' + b"1," * 40_000 + b"1]}", 413, "too_large"),
    "bad UTF-8": (b'{"text": "\xff\xfe"}', 400, "no_json"),
    "half a character": (rb'{"text": "\ud800"}', 400, "no_json"),
    "a NUL": (rb'{"text": "a\u0000b"}', 422, "bad_text"),
    "nothing": (b"", 400, "no_json"),
    "a list": (b"[]", 422, "bad_body"),
    "a field too many": (b'{"text": "x", "txet": "y"}', 422, "bad_body"),
    "a field twice": (b'{"text": "x", "text": 1}', 422, "bad_body"),
    "more than one": (b'{"text": "x"}{"text": "y"}', 400, "no_json"),
    "half of one": (b'{"text": "x', 400, "no_json"),
}


async def test_a_body_that_is_no_good_is_refused_by_name() -> None:
    async with served_hub(Agent("support", echo)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        for name, (body, status, reason) in BAD.items():
            path = f"/channels/{channel_id}/messages" if b'"data"' in body else INVOKE
            refused = await client.post(path, content=body, headers={"content-type": "application/json"})
            assert (refused.status_code, refused.json()["error"]["reason"]) == (status, reason), name
            assert len(refused.content) < 1000
        assert [each.sequence for each in await here.hub.log(channel_id)][-1] == 4


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"content-type": "text/plain"}, "not_json"),
        ({"content-type": "application/x-www-form-urlencoded"}, "not_json"),
        ({"content-type": "application/jsonx"}, "not_json"),
        ({}, "not_json"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "encoded"),
        ({"content-type": "application/json", "content-encoding": "deflate, gzip"}, "encoded"),
        ({"content-type": "application/json", "content-encoding": "br"}, "encoded"),
    ],
)
async def test_a_body_of_another_kind_is_refused(headers: dict[str, str], reason: str) -> None:
    async with served_hub(Agent("support", echo)) as here:
        bomb = gzip.compress(b'{"text": "' + b"x" * MEBIBYTE + b'"}')
        refused = await (await here.client()).post(INVOKE, content=bomb, headers=headers)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (415, reason)


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with served_hub(Agent("support", echo), limits=QUICK) as here:
        async with raw(here.port) as sock:
            await send(sock, request("POST", INVOKE, JSON, "content-length: 100"), b'{"te')
            status, said = await answer(sock)
            assert (status, b"too_slow" in said) == (408, True)
            assert await ended(sock) == b""  # and the connection is gone, although the body is still owed
        await still_answers(here)


async def test_whoever_drips_a_body_is_not_waited_for() -> None:
    async with served_hub(Agent("support", echo), limits=QUICK) as here, raw(here.port) as sock:
        await send(sock, request("POST", INVOKE, JSON, "transfer-encoding: chunked"))
        dripping = asyncio.create_task(drip(sock, b"1\r\n \r\n"))
        try:
            assert (await answer(sock))[0] == 408
        finally:
            await dripping
        await still_answers(here)


async def drip(sock: socket.socket, piece: bytes) -> None:
    """Send a little again and again, until the other side has had enough."""
    loop = asyncio.get_running_loop()
    try:
        for _ in range(1000):
            await loop.sock_sendall(sock, piece)
            await asyncio.sleep(0.02)
    except (ConnectionResetError, BrokenPipeError):
        return
    raise AssertionError("somebody was listened to for ever")


async def test_an_answer_that_was_given_in_time_is_taken_to_be_one() -> None:
    async with served_hub(Agent("support", echo), limits=QUICK) as here, raw(here.port) as sock:
        body = b'{"text": "x"}'
        await send(sock, request("POST", INVOKE, JSON, f"content-length: {len(body)}"), body[:5])
        await asyncio.sleep(0)
        await send(sock, body[5:])
        assert (await answer(sock))[0] == 200


# Heads of requests


async def test_a_head_without_end_is_refused() -> None:
    async with served_hub() as here, raw(here.port) as sock:
        await send(sock, b"GET /health HTTP/1.1\r\n", *[b"x-more: " + b"y" * 1000 + b"\r\n"] * 500)
        assert (await answer(sock))[0] == 400
        await still_answers(here)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET\r\n\r\n", b"\r\nx\r\n\r\n"])
async def test_what_is_no_http_is_refused(garbage: bytes) -> None:
    async with served_hub(limits=QUICK) as here, raw(here.port) as sock:
        await send(sock, garbage)
        assert (await answer(sock))[0] in (0, 400)
        await still_answers(here)


@pytest.mark.parametrize("first", [b"", b"GET /heal", request("GET", "/health") + b"GET /"])
async def test_whoever_asks_for_nothing_is_let_go(first: bytes) -> None:
    async with served_hub(limits=QUICK) as here, raw(here.port) as sock:
        await send(sock, first)
        await ended(sock)
        await still_answers(here)


async def test_whoever_drips_a_head_is_let_go() -> None:
    async with served_hub(limits=QUICK) as here, raw(here.port) as sock:
        await send(sock, b"GET /health HTTP/1.1\r\n")
        await drip(sock, b"x: y\r\n")
        await still_answers(here)


async def test_whoever_asks_again_and_again_is_not_let_go() -> None:
    async with served_hub(limits=QUICK) as here:
        client = await here.client(limits=httpx2.Limits(max_connections=1))
        loop = asyncio.get_running_loop()
        until, ports = loop.time() + 3 * QUICK.request_seconds, set()
        while loop.time() < until:
            response = await client.get("/health")
            assert response.status_code == 200
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
            await asyncio.sleep(0.01)
        assert len(ports) == 1


async def test_whoever_waits_for_an_answer_is_not_let_go() -> None:
    thinking = asyncio.Event()

    async def slow(request: object) -> Reply:
        await thinking.wait()
        return says("Here it is.")

    async with served_hub(Agent("support", slow), limits=QUICK) as here:
        client = await here.client()
        waiting = asyncio.create_task(client.post(INVOKE, json={"text": "x"}))
        await asyncio.sleep(3 * QUICK.request_seconds)
        thinking.set()
        assert (await waiting).json()["text"] == "Here it is."


async def still_answers(here: ServedHub) -> None:
    """Somebody else is answered."""
    async with raw(here.port) as sock:
        await send(sock, request("GET", "/health", "connection: close"))
        assert (await answer(sock))[0] == 200


async def test_an_answer_comes_at_once() -> None:
    """Whoever lets the system hold back the second half of an answer waits some 40 ms for each."""
    async with served_hub() as here:
        client = await here.client()
        took = []
        for _ in range(10):
            began = time.perf_counter()
            await client.get("/health")
            took.append(time.perf_counter() - began)
        assert sorted(took)[5] < 0.03


# Streams and connections


async def test_too_many_streams_are_refused() -> None:
    async with served_hub(limits=ServerLimits(streams=5, streams_each=3)) as here:
        ann, bob, carl = [await here.known(name) for name in ("ann", "bob", "carl")]
        channel_id = await opened(ann, "bob")
        others = await opened(ann, "carl")
        async with AsyncExitStack() as stack:
            for client, channel, status in (
                [(ann, channel_id, 200)] * 3
                + [(ann, channel_id, 429)]
                + [
                    (bob, channel_id, 200),
                    (bob, channel_id, 200),
                    (carl, others, 429),
                ]
            ):
                response = await stack.enter_async_context(client.stream("GET", f"/channels/{channel}/subscribe"))
                assert response.status_code == status
                if status == 429:
                    assert json.loads(await response.aread())["error"]["reason"] == "too_many_streams"
        await poll_until(lambda: here.served.streams.open.count == 0, "all have left")
        async with carl.stream("GET", f"/channels/{others}/subscribe") as response:
            assert response.status_code == 200


async def test_a_thousand_idle_connections_stop_nobody() -> None:
    async with process(ServerLimits(request_seconds=1.5)) as server, httpx2.AsyncClient(base_url=server.url) as client:
        await client.get("/health")
        before = server.open_files()
        async with AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(raw(server.port)) for _ in range(1000)]
            for place, sock in enumerate(idle):
                await send(sock, b"GET /health HTTP/1.1\r\nx: y\r\n" if place % 2 else b"")
            took = []
            for number in range(50):
                began = time.perf_counter()
                assert (await client.post(INVOKE, json={"text": str(number)})).status_code == 200
                took.append(time.perf_counter() - began)
            assert sorted(took)[25] < 0.5
            await asyncio.gather(*map(ended, idle))
        await poll_until(lambda: server.open_files() <= before + 1, "its files are closed again")


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * 1000


async def test_a_body_in_pieces_is_a_body() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()

        async def body() -> AsyncIterator[bytes]:
            async for piece in pieces(10):
                yield piece
            yield b'{"text": "x"}'

        headers = {"content-type": "application/json; charset=utf-8"}
        response = await client.post(INVOKE, content=body(), headers=headers)
        assert response.json()["text"] == "You said: x"


async def test_a_silent_stream_shows_that_it_lives() -> None:
    async with served_hub(limits=ServerLimits(heartbeat_seconds=0.05)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        async with client.stream("GET", f"/channels/{channel_id}/subscribe") as response:
            lines = response.aiter_lines()
            while await anext(lines) != ":":
                pass
            said = await client.post(f"/channels/{channel_id}/messages", json={"text": "There."})
            found = await anext(events_of_lines(lines))
            assert found == said.json()


async def events_of_lines(lines: AsyncIterator[str]) -> AsyncIterator[object]:
    async for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_a_graph_of_a_thousand_transitions_opens_a_channel() -> None:
    """A body may hold more values than a message, which is held to its own limit."""
    rules = [Transition(FromSpeaker(name), AgentTarget("bob")) for name in ["ann", "bob"] * 500]
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.known("ann")
        knobs = {"graph": TransitionGraph("ann", rules, TerminateTarget("done"), max_turns=9).to_dict()}
        response = await client.post("/channels", json={"target": ["bob"], "type": "workflow", "knobs": knobs})
        assert response.status_code == 201, response.text
        path = f"/channels/{response.json()['channel_id']}/context"
        refused = await client.post(path, json={"set": {"rows": [0] * 10_001}})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (413, "too_large")
