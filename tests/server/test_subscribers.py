"""Many who follow one channel: those who stop reading hold up nobody, are cut off, and resume without a gap."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import httpx2
import pytest

from antiphon.server.limits import ServerLimits
from tests.server.processes import Process, process
from tests.server.wire import Event, ended, event_of, events_in, events_of, raw, request, send
from tests.support.served_hub import opened, poll_until, served_hub

SUBSCRIBERS, STALLED = 100, 10
MESSAGES = 100
TEXT = "x" * 4000
PATIENT = ServerLimits(stalled_seconds=1.0)
MANY = httpx2.Limits(max_connections=300)


def subscribe(channel_id: str) -> str:
    return f"/channels/{channel_id}/subscribe?view=operator"


async def followed(client: httpx2.AsyncClient, channel_id: str) -> list[str]:
    """The ids of everything that is told of a channel, until it ends; each event is as it should be."""
    async with client.stream("GET", subscribe(channel_id)) as response:
        events = [event async for event in events_of(response)]
    assert events[-1].event == "end"
    return [event.id for event in events[:-1]]


async def stalled(sock: socket.socket, channel_id: str) -> None:
    """Ask for a stream, and read nothing of it."""
    await send(sock, request("GET", subscribe(channel_id)))


def whole_events(said: bytes) -> list[Event]:
    """The events of a stream that was cut off somewhere: those that are whole, without the chunks that they came in."""
    text = said.partition(b"\r\n\r\n")[2].replace(b"\r\n", b"\0").decode()
    blocks = "".join(part for part in text.split("\0") if part.startswith(("id: ", "event: "))).split("\n\n")
    return [event_of(block) for block in blocks[:-1]]


async def talk(client: httpx2.AsyncClient, channel_id: str, *, count: int, text: str) -> None:
    for number in range(count):
        said = await client.post(f"/channels/{channel_id}/messages", json={"text": f"{number} {text}"})
        assert said.status_code == 201, said.text


async def resumed(client: httpx2.AsyncClient, channel_id: str, seen: list[Event]) -> list[str]:
    """The ids that somebody has seen who was cut off, and those that come when they ask on from there."""
    ids = [event.id for event in seen if event.id]
    headers = {"last-event-id": ids[-1]} if ids else {}
    rest = events_in((await client.get(subscribe(channel_id), headers=headers)).text)
    return [*ids, *(event.id for event in rest[:-1])]


async def test_those_who_stop_reading_hold_up_nobody_and_are_cut_off() -> None:
    async with process(PATIENT) as server, httpx2.AsyncClient(base_url=server.url, limits=MANY, timeout=60) as client:
        channel_id = await opened(client, "bob")
        before = server.open_files()
        async with AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(raw(server.port, window=4096)) for _ in range(STALLED)]
            for sock in idle:
                await stalled(sock, channel_id)
            following = [asyncio.create_task(followed(client, channel_id)) for _ in range(SUBSCRIBERS - STALLED)]
            await poll_until(lambda: server.open_files() >= before + SUBSCRIBERS - 1, "all of them are there")
            await talk(client, channel_id, count=MESSAGES, text=TEXT)
            await cut_off(server, before + SUBSCRIBERS - STALLED)
            await client.post(f"/channels/{channel_id}/close", json={})
            everything = [str(number) for number in range(1, MESSAGES + 6)]
            for ids in await asyncio.gather(*following):
                assert ids == everything
            for sock in idle:
                seen = whole_events(await ended(sock))
                assert len(seen) < MESSAGES
                assert await resumed(client, channel_id, seen) == everything
        await client.aclose()
        await poll_until(lambda: server.open_files() <= before, "all connections are gone")


async def cut_off(server: Process, left: int) -> None:
    """Those who do not read are gone, although they still hold their ends; others are not."""
    await poll_until(lambda: server.open_files() <= left + 5, "who reads nothing is cut off")


@pytest.mark.parametrize("kernel", [True, False])
async def test_a_stalled_connection_is_cut_with_and_without_the_help_of_the_system(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel and hasattr(socket, "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    async with served_hub(limits=ServerLimits(stalled_seconds=0.5)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        async with raw(here.port, window=4096) as sock:
            await stalled(sock, channel_id)
            await poll_until(lambda: here.served.streams.open.count == 1, "it is followed")
            await talk(client, channel_id, count=40, text="x" * 200_000)
            await poll_until(lambda: here.served.streams.open.count == 0, "who reads nothing is cut off")
            seen = whole_events(await ended(sock))
            await client.post(f"/channels/{channel_id}/close", json={})
            assert await resumed(client, channel_id, seen) == [str(number) for number in range(1, 46)]


async def test_somebody_slow_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a little now and then is waited for, although one event takes longer than nothing may."""
    monkeypatch.setattr("antiphon.server.serving.SEND_BUFFER_BYTES", 16_384)
    async with served_hub(limits=ServerLimits(stalled_seconds=0.5)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        async with raw(here.port, window=8192) as sock:
            await stalled(sock, channel_id)
            talking = asyncio.create_task(talk(client, channel_id, count=3, text="x" * 250_000))
            said, loop = b"", asyncio.get_running_loop()
            async with asyncio.timeout(20):
                while len(said) < 750_000:
                    part = await loop.sock_recv(sock, 8192)
                    assert part, "it was cut off"
                    said += part
                    await asyncio.sleep(0.02)
            await talking
