"""A server that is told to stop does so in good order: nothing is lost, nothing is done twice, and others resume."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Reply, Request, says
from antiphon.server.limits import ServerLimits
from tests.server.processes import Process, started
from tests.server.wire import Event, answer, events_in, events_of, raw, request, send
from tests.support.served_hub import ServedHub, opened, poll_until, served_hub

INVOKE, STREAM = "/agents/support/invoke", "/agents/support/stream_invoke"
STOPS = 20 if os.environ.get("ANTIPHON_PROOF") == "1" else 6
PROGRAM = str(Path(__file__).with_name("program.py"))


class Gate:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.open.wait()
        return says("Here it is.")


# A server in this process


async def test_what_is_under_way_is_finished_if_it_can_be() -> None:
    gate = Gate()
    async with served_hub(Agent("support", gate)) as here:
        client = await here.client()
        asking = asyncio.create_task(client.post(INVOKE, json={"text": "x"}))
        await gate.asked.wait()
        here.served.streams.stopping.set()
        gate.open.set()
        assert (await asking).json()["text"] == "Here it is."


@pytest.mark.usefixtures("impatient")
async def test_what_takes_too_long_is_told_to_come_again_and_goes_on(tmp_path: Path) -> None:
    url, gate = f"sqlite:///{tmp_path / 'team.db'}", Gate()
    question = {"text": "x", "thread_id": "t", "message_id": "m"}
    async with served_hub(Agent("support", gate), url=url, limits=ServerLimits(stop_seconds=0.2)) as here:
        client = httpx2.AsyncClient(base_url=here.served.url, timeout=20)
        asking = asyncio.create_task(client.post(INVOKE, json=question))
        await gate.asked.wait()
    refused = await asking
    await client.aclose()
    assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "stopping")
    assert int(refused.headers["retry-after"]) >= 1
    gate.open.set()
    async with served_hub(Agent("support", gate), url=url) as here:
        again = await (await here.client()).post(INVOKE, json=question)
        assert again.json()["text"] == "Here it is."
        log = await here.hub.log(again.json()["channel_id"])
        assert [each.event_type for each in log].count("ag2.msg.text") == 2


async def test_streams_end_between_two_events() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = httpx2.AsyncClient(base_url=here.served.url, timeout=20)
        channel_id = await opened(client, "bob")
        reading = asyncio.create_task(client.get(f"/channels/{channel_id}/subscribe"))
        await poll_until(lambda: here.served.streams.open.count == 1, "it is followed")
    events = events_in((await reading).text)  # which ends behind an event
    await client.aclose()
    assert [event.event for event in events] == ["envelope"] * len(events)


@pytest.mark.parametrize(
    "said", [b"", b"GET /hea", request("POST", INVOKE, "content-type: application/json", "content-length: 9")]
)
async def test_nobody_who_says_nothing_holds_up_the_end(said: bytes) -> None:
    loop = asyncio.get_running_loop()
    async with raw_beside(ServerLimits(stop_seconds=0.2)) as (here, sock):
        await send(sock, said)
        async with raw(here.port) as other:
            await send(other, request("GET", "/health", "connection: close"))
            assert (await answer(other))[0] == 200
        began = loop.time()
    assert loop.time() - began < 5


async def test_nobody_who_reads_nothing_holds_up_the_end() -> None:
    loop = asyncio.get_running_loop()
    async with raw_beside(ServerLimits(stop_seconds=1)) as (here, sock):
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        await send(sock, request("GET", f"/channels/{channel_id}/subscribe"))
        await poll_until(lambda: here.served.streams.open.count == 1, "it is followed")
        for _ in range(10):
            await client.post(f"/channels/{channel_id}/messages", json={"text": "x" * 200_000})
        began = loop.time()
    assert loop.time() - began < 5


@asynccontextmanager
async def raw_beside(limits: ServerLimits) -> AsyncIterator[tuple[ServedHub, object]]:
    """A server, and a connection that stays open while it stops."""
    async with AsyncSocket() as held, served_hub(Agent("support", Gate()), limits=limits) as here:
        yield here, await held.to(here.port)


class AsyncSocket:
    """A connection that outlives whom it leads to."""

    async def __aenter__(self) -> AsyncSocket:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave.__aexit__(None, None, None)

    async def to(self, port: int) -> object:
        self._leave = raw(port, window=4096)
        return await self._leave.__aenter__()


# The command, as a process


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Process]:
    """`antiphon serve`, over a store in a folder."""
    store = str(folder / "team.db")
    async with started(
        "-m", "antiphon", "serve", PROGRAM, "--store", store, "--port", "0", "--json", "--open"
    ) as begun:
        yield begun


async def asked(client: httpx2.AsyncClient, number: int) -> httpx2.Response | None:
    """The answer to a question that is asked under an id of its own; None if the server is not there."""
    question = {"text": f"order{number}", "thread_id": f"t{number}", "message_id": "m"}
    try:
        return await client.post(INVOKE, json=question)
    except httpx2.TransportError:
        return None


async def followed(client: httpx2.AsyncClient, seen: list[Event], last: str | None) -> None:
    """Follow a turn as far as the server goes on; whatever comes is whole."""
    question = {"text": "followed", "thread_id": "followed", "message_id": "m"}
    headers = {} if last is None else {"last-event-id": last}
    async with client.stream("POST", STREAM, json=question, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for event in events_of(response):
            seen.append(event)


async def test_a_server_that_is_stopped_again_and_again_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("ANTIPHON_TEST_LEDGER", str(ledger))
    asked_so_far, answered, seen = 0, dict[int, str](), list[Event]()
    for stop in range(STOPS + 1):
        async with served(tmp_path) as server, httpx2.AsyncClient(base_url=server.url, timeout=20) as client:
            missing = [number for number in range(asked_so_far) if number not in answered]
            new = [*missing, *range(asked_so_far, asked_so_far + 3)] if stop < STOPS else missing
            asked_so_far = max(asked_so_far, *(number + 1 for number in new), 0)
            asking = {number: asyncio.create_task(asked(client, number)) for number in new}
            following = None
            if not seen or seen[-1].event != "done":
                following = asyncio.create_task(followed(client, seen, seen[-1].id if seen else None))
            if stop < STOPS:
                await asyncio.sleep(0.03 * (1 + stop % 5))
                server.signal(signal.SIGTERM if stop % 2 else signal.SIGINT)
                assert await server.ended() == 0
            for number, task in asking.items():
                response = await task
                if response is not None and response.status_code == 200:
                    answered[number] = response.json()["text"]
                elif response is not None:
                    assert response.status_code == 503, response.text
            if following is not None:
                await asyncio.gather(following, return_exceptions=True)
    assert answered == {number: f"Paid order{number}." for number in range(asked_so_far)}
    paid = Counter(line.split()[0] for line in set(ledger.read_text().splitlines()))
    orders = [f"order{number}" for number in range(asked_so_far)] + ["followed"]
    assert paid == {f"{order}-{step}": 1 for order in orders for step in range(3)}  # each under one key
    told = ["tool_usage", "tool_response"] * 3
    assert [event.event for event in seen] == [*told, "ai_message", "message", "done"]
    assert len({event.id for event in seen}) == len(seen)
