"""What every answer has, and how large it gets: headers that keep it private, and pages with an end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Hub, Reply, Request, TransitionGraph, UsageError, calls, tool
from antiphon.core.codec import to_json
from antiphon.server.limits import ServerLimits
from antiphon.server.routes import ROUTES
from tests.server.wire import answer, events_of, raw, send
from tests.support.served_hub import echo, opened, poll_until, served_hub

MEBIBYTE = 1024 * 1024
PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
BIG = "x" * 200_000
JSON = {"content-type": "application/json"}


# Headers


def is_private(response: httpx2.Response) -> bool:
    return all(response.headers.get_list(name) == [value] for name, value in PRIVATE.items())


async def test_no_answer_is_kept_or_guessed_at() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.known("ann")
        channel_id = await opened(client, "support")
        places = {"name": "support", "channel_id": channel_id, "key_id": "0" * 12, "approval_id": "x"}
        seen = set()
        for verb in ROUTES:
            body = None if verb.takes is None else {"text": "Hello"}
            async with client.stream(verb.method, verb.path.format(**places), json=body) as response:
                assert is_private(response), verb.name
                seen.add(response.status_code)
        for path in ("/nowhere", "/health"):
            assert is_private(await client.delete(path))
        said = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
        for stream in (False, True):
            assert is_private(await client.post("/v1/chat/completions", json={**said, "stream": stream}))
        assert is_private(await (await here.client()).get("/agents"))
        assert {200, 404, 422} <= seen
        async with raw(here.port) as sock:
            await send(sock, b"no http at all\r\n\r\n")
            _, told = await answer(sock)
            assert all(f"{name}: {value}".encode() in told for name, value in PRIVATE.items())


# Names in JSON

DOUBLED = {
    "at the top": b'{"target": ["bob"], "target": ["eve"]}',
    "in knobs": b'{"target": ["bob"], "knobs": {"tier": "batch", "tier": "interactive"}}',
    "in a list": b'{"target": ["bob"], "context_vars": {"rows": [{"a": 1}, {"a": 1, "b": {"c": 1, "c": 1}}]}}',
    "spelt otherwise": rb'{"target": ["bob"], "context_vars": {"a": 1, "\u0061": 2}}',
    "in a graph": b'{"target": ["bob"], "type": "workflow", "knobs": {"graph": {"max_turns": 1, "max_turns": 9}}}',
}


@pytest.mark.parametrize("body", DOUBLED.values(), ids=DOUBLED)
async def test_a_name_that_is_given_twice_is_refused(body: bytes) -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        refused = await client.post("/channels", content=body, headers=JSON)
        error = refused.json()["error"]
        assert (refused.status_code, error["reason"]) == (422, "bad_body")
        assert "twice" in error["message"]
        assert await here.hub.channels() == []


async def test_a_name_that_is_given_twice_is_refused_in_chats_too() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()
        body = b'{"model": "support", "messages": [{"role": "user", "role": "system", "content": "Hi"}]}'
        refused = await client.post("/v1/chat/completions", content=body, headers=JSON)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_body")
        assert "'role' twice" in refused.json()["error"]["message"]


async def test_the_same_name_in_two_objects_is_fine() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        rows = {"rows": [{"a": 1}, {"a": {"a": '{"a": 1, "a": 2}'}}]}
        channel_id = await opened(client, "bob", context_vars=rows)
        assert (await client.get(f"/channels/{channel_id}")).json()["context_vars"] == rows


def test_a_graph_as_text_has_every_name_once() -> None:
    text = to_json(TransitionGraph.sequence(["ann", "bob"]).to_dict()).decode()
    assert TransitionGraph.loads(text)
    with pytest.raises(UsageError, match="'max_turns' twice"):
        TransitionGraph.loads(text[:-1] + ', "max_turns": 1, "max_turns": 2}')


# Pages


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_page_of_a_log_is_no_larger_than_a_mebibyte(url: str, tmp_path: Path) -> None:
    async with served_hub(url=f"sqlite:///{tmp_path / 'log.db'}" if url == "sqlite" else url) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        for number in range(12):
            body = {"text": f"{number} {BIG}"}
            assert (await client.post(f"/channels/{channel_id}/messages", json=body)).status_code == 201
        found, after, pages = [], 0, 0
        while after is not None:
            response = await client.get(f"/channels/{channel_id}/log", params={"after": after, "limit": 1000})
            page = response.json()
            assert len(response.content) <= MEBIBYTE + 100
            assert page["envelopes"]
            found += page["envelopes"]
            after, pages = page["next"], pages + 1
            assert after in (None, found[-1]["sequence"])
        assert pages == 3
        whole = await here.hub.log(channel_id)
        assert [each["sequence"] for each in found] == [each.sequence for each in whole if each.audience is None]


async def test_a_page_has_at_least_one_envelope() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        text = "\u0001" * 40_000  # each character takes six bytes
        await client.post(f"/channels/{channel_id}/messages", json={"text": text})
        page = (await client.get(f"/channels/{channel_id}/log", params={"limit": 1, "after": 4})).json()
        assert (page["envelopes"][0]["event_data"]["text"], page["next"]) == (text, None)


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_store_reads_no_more_than_a_mebibyte_at_once(url: str, tmp_path: Path) -> None:
    async with Hub.open(f"sqlite:///{tmp_path / 'log.db'}" if url == "sqlite" else url) as hub:
        ann = await hub.register("ann")
        await hub.register("bob")
        channel = await ann.open(target="bob")
        for _ in range(12):
            await channel.send(BIG)
        sizes, after = [], 0
        while (page := await hub.core.store.read(channel.channel_id, after=after)).envelopes:
            sizes.append(sum(len(to_json(each)) for each in page.envelopes))
            after = page.envelopes[-1].sequence
            assert page.more == (after < channel._live.state.sequence)
        assert max(sizes) <= MEBIBYTE + len(BIG) + 1000
        assert len(await hub.log(channel.channel_id)) == 16


async def every(client: httpx2.AsyncClient, path: str, name: str) -> list[list[dict[str, object]]]:
    """All pages of a listing."""
    pages, after = [], ""
    while after is not None:
        page = (await client.get(path, params={"after": after})).json()
        pages.append(page[name])
        after = page["next"]
    return pages


async def test_other_listings_are_no_larger_either() -> None:
    @tool(idempotency="unsafe", timeout=0.01)
    async def pay(note: str) -> str:
        """Pay, which takes longer than it may."""
        await asyncio.Event().wait()
        return note

    async def model(asked: Request) -> Reply:
        return calls("pay", {"note": "x" * 600})

    async with served_hub(Agent("support", model, tools=[pay]), limits=ServerLimits(page_bytes=2000)) as here:
        client = await here.client()
        for _ in range(5):
            assert (await client.post("/agents/support/invoke", json={"text": "Pay."})).status_code == 409
        rows = await every(client, "/channels", "channels")
        waiting = await every(client, "/approvals", "approvals")
        assert sum(map(len, rows)) == 5
        assert all(0 < len(to_json(page)) <= 2000 for page in waiting)
        assert len({each["channel_id"] for page in waiting for each in page}) == 5
        assert len(waiting) >= 3
    async with served_hub(limits=ServerLimits(page_bytes=1)) as here:
        await here.hub.register("bob")
        client = await here.client()
        ids = [await opened(client, "bob") for _ in range(4)]
        assert [[row["channel_id"] for row in page] for page in await every(client, "/channels", "channels")] == [
            [channel_id] for channel_id in ids
        ]


async def test_a_late_subscriber_gets_everything_in_order() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        for number in range(12):
            await client.post(f"/channels/{channel_id}/messages", json={"text": f"{number} {BIG}"})
        heard = []
        async with client.stream("GET", f"/channels/{channel_id}/subscribe") as stream:
            async for event in events_of(stream):
                heard.append(event.data["sequence"])
                if event.data["sequence"] == 16:
                    break
        assert heard == list(range(heard[0], 17))
        await poll_until(lambda: here.served.streams.open.count == 0, "the stream has ended")
