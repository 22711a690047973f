"""A server whose store is gone says so, to those who ask and to those who wait, and acknowledges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Reply, Request, TransitionGraph, says
from tests.server.wire import Event, events_in, events_of
from tests.support.served_hub import PATIENCE, ServedHub, opened, poll_until, served_hub

GONE = {"reason": "store_gone", "message": "the file of the store is gone; the server must be started again"}
QUESTION = {"text": "well?"}
CHAT = {"model": "bob", "messages": [{"role": "user", "content": "well?"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "team.db"


async def test_health_and_requests_answer_503_when_the_file_of_the_store_was_deleted(path: Path) -> None:
    async with served_hub(url=f"sqlite:///{path}") as here:
        await here.hub.register("bob")
        client = await here.client()
        opened = await client.post("/channels", json={"target": ["bob"]})
        channel = opened.json()["channel_id"]
        assert (await client.get("/health")).json()["status"] == "ok"
        path.unlink()
        for answer in (
            await client.get("/health"),
            await client.post(f"/channels/{channel}/messages", json={"text": "hello"}),
            await client.get("/channels"),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["reason"] == "store_gone"
            assert str(path) not in answer.text


class Thinker:
    """A model that thinks until it may answer."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        return says("thought")


@asynccontextmanager
async def thinking(path: Path) -> AsyncIterator[tuple[ServedHub, Thinker]]:
    """A house in which bob thinks when he is asked."""
    model = Thinker()
    async with served_hub(Agent("bob", model=model), url=f"sqlite:///{path}") as here:
        try:
            yield here, model
        finally:
            model.may_answer.set()


@pytest.mark.parametrize(
    ("place", "body"), [("/agents/bob/invoke", QUESTION), ("/v1/chat/completions", CHAT)], ids=["invoke", "chat"]
)
async def test_a_request_that_waits_for_an_answer_is_answered_503(
    path: Path, place: str, body: dict[str, object]
) -> None:
    async with thinking(path) as (here, model):
        asking = asyncio.create_task((await here.client()).post(place, json=body))
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        path.unlink()
        answer = await asyncio.wait_for(asking, PATIENCE)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error.get("reason", error.get("code")) == GONE["reason"]
        assert error["message"] == GONE["message"]


async def test_a_message_that_waits_for_the_end_of_a_turn_is_answered_503(path: Path) -> None:
    async with thinking(path) as (here, model):
        ann, dana = await here.known("ann"), await here.known("dana")
        graph = TransitionGraph.sequence(["ann", "bob"]).to_dict()
        channel = await opened(ann, "bob", "dana", type="workflow", knobs={"graph": graph})
        assert (await ann.post(f"/channels/{channel}/messages", json=QUESTION)).status_code == 201
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        said = asyncio.create_task(dana.post(f"/channels/{channel}/messages", json={"text": "mind the step"}))
        live = await here.hub.core.live(channel)
        await poll_until(lambda: bool(live._deferred), "it waits")
        path.unlink()
        answer = await asyncio.wait_for(said, PATIENCE)
        assert (answer.status_code, answer.json()["error"]) == (503, GONE)


@pytest.mark.parametrize("query", ["", "?tokens=true"])
async def test_a_stream_of_a_turn_ends_with_an_error(path: Path, query: str) -> None:
    async with thinking(path) as (here, model):
        asking = asyncio.create_task((await here.client()).post(f"/agents/bob/stream_invoke{query}", json=QUESTION))
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        path.unlink()
        answer = await asyncio.wait_for(asking, PATIENCE)
        assert events_in(answer.text) == [Event("", "error", GONE)]


async def test_a_stream_of_a_channel_ends_with_an_error_and_cannot_be_resumed_here(path: Path) -> None:
    async with served_hub(url=f"sqlite:///{path}") as here:
        await here.hub.register("bob")
        client = await here.client()
        channel = await opened(client, "bob")
        place = f"/channels/{channel}/subscribe?view=operator"
        head = (await here.hub.core.live(channel)).state.sequence
        async with client.stream("GET", place) as response:
            events = events_of(response)
            told = [await asyncio.wait_for(anext(events), PATIENCE) for _ in range(head)]
            path.unlink()
            async with asyncio.timeout(PATIENCE):
                told += [event async for event in events]
        assert [(event.id, event.event) for event in told] == [
            *((str(number), "envelope") for number in range(1, head + 1)),
            ("", "error"),
        ]
        assert told[-1].data == GONE
        again = await client.get(place, headers={"last-event-id": str(head)})
        assert (again.status_code, again.json()["error"]) == (503, GONE)


async def test_a_chat_completion_in_pieces_ends_with_an_error(path: Path) -> None:
    async with thinking(path) as (here, model):
        client = await here.client()
        asking = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        path.unlink()
        answer: httpx2.Response = await asyncio.wait_for(asking, PATIENCE)
        last = answer.text.split("\n\n")[-2]
        assert '"code":"store_gone"' in last
        assert "[DONE]" not in answer.text
