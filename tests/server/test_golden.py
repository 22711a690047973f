"""What streams say, byte for byte, kept as golden files; ids and times are made canonical.

To write the files anew, on purpose, and then to read what has changed:

    ANTIPHON_REWRITE_GOLDEN=1 .venv/bin/python -m pytest tests/server/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, ScriptedModel, says
from antiphon.testing import ManualClock
from tests.server.golden_requests import GRAPH, INVOKED, workflow_agents
from tests.server.wire import Event, canonical, events_in
from tests.support.served_hub import ServedHub, opened, poll_until, served_hub, told

GOLDEN = Path(__file__).parent / "golden"
REWRITE = os.environ.get("ANTIPHON_REWRITE_GOLDEN") == "1"
EVERY_SCENE = pytest.mark.parametrize("name", INVOKED)
WHOLE = ("tool_usage", "tool_response", "ai_message", "message", "done")


def check_golden(name: str, text: str) -> None:
    found, file = canonical(text), GOLDEN / f"{name}.txt"
    if REWRITE:
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


async def streamed(name: str, *, thread_id: str | None = "t") -> httpx2.Response:
    """The whole answer to the request of a scene."""
    scene = INVOKED[name]()
    async with served_hub(scene.agent) as here:
        client = await here.client()
        question = {"text": scene.text, "thread_id": thread_id}
        return await client.post("/agents/support/stream_invoke", params=scene.query, json=question)


# What a turn tells


@EVERY_SCENE
async def test_a_turn_is_told_as_in_the_golden_file(name: str) -> None:
    response = await streamed(name)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    check_golden(f"invoke_{name}", response.text)
    check_told(name, events_in(response.text))


def check_told(name: str, events: list[Event]) -> None:
    """What holds of every stream of a turn."""
    named = [each for each in events if each.event != "token"]
    assert {each.event for each in named} <= set(WHOLE)
    assert [each.event for each in events].count("done") == 1
    assert events[-1].event == "done"
    assert all(isinstance(each.data["agent"], str) and each.data["agent"] for each in events)
    ids = [each.id for each in named]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert all(each.id == "" for each in events if each.event == "token")
    begun = [each.data["call_id"] for each in events if each.event == "tool_usage"]
    ended = [each.data["call_id"] for each in events if each.event == "tool_response"]
    assert len(set(begun)) == len(begun)
    assert sorted(map(str, ended)) == sorted(map(str, begun)) or name == "in_doubt"
    whole = [str(each.data["text"]) for each in events if each.event == "ai_message"]
    lines = [str(each.data["text"]) for each in events if each.event == "message"]
    assert [line for text in whole for line in text.splitlines()] == lines
    assert len(whole) <= 1


async def test_the_pieces_of_an_answer_are_the_answer() -> None:
    events = events_in((await streamed("tokens")).text)
    [whole] = [each for each in events if each.event == "ai_message"]
    pieces = [str(each.data["text"]) for each in events if each.event == "token"]
    assert len(pieces) > 2
    assert "".join(pieces).endswith(str(whole.data["text"]))


async def test_without_a_thread_everybody_begins_anew() -> None:
    agent = Agent("support", ScriptedModel([says("one"), says("two")]))
    async with served_hub(agent) as here:
        client = await here.client()
        found = [await client.post("/agents/support/invoke", json={"text": "x"}) for _ in range(2)]
    assert len({each.json()["channel_id"] for each in found}) == 2


# What a channel tells


async def subscribed(here: ServedHub, channel_id: str, view: str) -> str:
    """The whole stream of a channel that has ended."""
    client = await here.client()
    response = await client.get(f"/channels/{channel_id}/subscribe", params={"view": view})
    assert response.status_code == 200
    events = events_in(response.text)
    assert [each.event for each in events] == ["envelope"] * (len(events) - 1) + ["end"]
    numbers = [int(each.id) for each in events[:-1]]
    assert numbers == sorted(set(numbers))
    seen = [envelope for envelope in await told(here.hub, channel_id) if view == "operator" or visible(envelope)]
    assert numbers == [envelope.sequence for envelope in seen]
    return response.text


def visible(envelope: object) -> bool:
    audience = getattr(envelope, "audience", None)
    return audience is None or "user" in audience or getattr(envelope, "sender_id", "") == "user"


@pytest.mark.parametrize("view", ["own", "operator"])
async def test_a_conversation_is_told_as_in_the_golden_file(view: str) -> None:
    scene = INVOKED["tools"]()
    async with served_hub(scene.agent, clock=ManualClock()) as here:
        client = await here.client()
        answer = await client.post("/agents/support/invoke", json={"text": scene.text, "thread_id": "t"})
        channel_id = answer.json()["channel_id"]
        await client.post(f"/channels/{channel_id}/close", json={"reason": "all said"})
        check_golden(f"conversation_{view}", await subscribed(here, channel_id, view))


@pytest.mark.parametrize("view", ["own", "operator"])
async def test_a_workflow_is_told_as_in_the_golden_file(view: str) -> None:
    async with served_hub(*workflow_agents(), clock=ManualClock()) as here:
        client = await here.client()
        knobs = {"graph": GRAPH.to_dict()}
        channel_id = await opened(client, "writer", "reader", type="workflow", knobs=knobs)
        await client.post(f"/channels/{channel_id}/messages", json={"text": "A price, please."})
        live = await here.hub.core.live(channel_id)
        await poll_until(lambda: live.state.ended, "the workflow ends")
        check_golden(f"workflow_{view}", await subscribed(here, channel_id, view))


def test_every_golden_file_belongs_to_a_scene() -> None:
    names = [f"invoke_{name}" for name in INVOKED]
    names += [f"{kind}_{view}" for kind in ("conversation", "workflow") for view in ("own", "operator")]
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(names)
