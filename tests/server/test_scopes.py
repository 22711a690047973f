"""What a key is good for beyond its verb: nothing said with it makes an agent run unless it has the scope `invoke`."""

from __future__ import annotations

import asyncio

import httpx2

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    BranchFailed,
    FromSpeaker,
    Hub,
    Reply,
    Request,
    TerminateTarget,
    Transition,
    TransitionGraph,
    says,
)
from tests.support.served_hub import ServedHub, echo, opened, poll_until, served_hub

SEQUENCE = ["ann", "bob", "support"]


def reason_of(response: httpx2.Response) -> str:
    return str(response.json()["error"]["reason"])


async def say(client: httpx2.AsyncClient, channel_id: str, **body: object) -> httpx2.Response:
    return await client.post(f"/channels/{channel_id}/messages", json=body if body else {"text": "Go on."})


async def answered(hub: Hub, channel_id: str) -> None:
    live = await hub.core.live(channel_id)
    await poll_until(lambda: not live.state.owed and live.state.last_speaker_id == "support", "the agent has answered")


async def staffed(here: ServedHub) -> None:
    await here.hub.register("bob")


async def test_a_key_that_only_writes_cannot_make_an_agent_answer() -> None:
    async with served_hub(Agent("support", echo)) as here:
        writer, both = await here.known("ann", "write", "read"), await here.known("ann", "write", "invoke")
        channel_id = await opened(writer, "support")
        before = await here.hub.log(channel_id)
        refused = await say(writer, channel_id)
        assert (refused.status_code, reason_of(refused)) == (403, "wrong_scope")
        assert "'support'" in refused.text
        assert "'invoke'" in refused.text
        assert await here.hub.log(channel_id) == before
        assert (await here.hub.log("system:audit"))[-1].event_data["reason"] == "wrong_scope"
        for body in ({"event_type": "myapp.note", "data": {}}, {"text": "Psst."}):
            assert (await say(writer, channel_id, **body)).status_code == (403 if "text" in body else 201)
        assert (await writer.post(f"/channels/{channel_id}/context", json={"set": {"a": 1}})).status_code == 200
        assert (await say(both, channel_id)).status_code == 201
        await answered(here.hub, channel_id)


async def test_a_key_that_only_writes_cannot_cancel_where_an_agent_goes_on() -> None:
    async def hangs(request: Request) -> Reply:
        await asyncio.Event().wait()
        return says("never")

    graph = TransitionGraph(
        initial_speaker="ann",
        transitions=[
            Transition(BranchFailed(), AgentTarget("support")),
            Transition(FromSpeaker("ann"), AgentsTarget(["ada", "ben"])),
        ],
        default_target=TerminateTarget("done"),
    )
    async with served_hub(Agent("support", echo), Agent("ada", hangs), Agent("ben", hangs)) as here:
        writer, both = await here.known("ann", "write", "read"), await here.known("ann", "write", "invoke")
        knobs = {"graph": graph.to_dict()}
        channel_id = await opened(writer, "ada", "ben", "support", type="workflow", knobs=knobs)
        assert (await say(both, channel_id)).status_code == 201
        before = await here.hub.log(channel_id)
        refused = await writer.post(f"/channels/{channel_id}/cancel", json={})
        assert (refused.status_code, reason_of(refused)) == (403, "wrong_scope")
        told = [each.event_type for each in (await here.hub.log(channel_id))[len(before) :]]
        assert "antiphon.turn.failed" not in told
        assert (await both.post(f"/channels/{channel_id}/cancel", json={})).json() == {"turns": 2}


async def test_a_key_that_only_writes_speaks_to_people_and_programs() -> None:
    async with served_hub(Agent("support", echo)) as here:
        await staffed(here)
        ann = await here.known("ann", "write")
        channel_id = await opened(ann, "bob")
        assert (await say(ann, channel_id)).status_code == 201
        assert (await ann.post(f"/channels/{channel_id}/close", json={})).status_code == 200


async def test_what_counts_is_who_gets_the_turn_not_who_is_in_the_channel() -> None:
    async with served_hub(Agent("support", echo)) as here:
        ann, bob = await here.known("ann", "write"), await here.known("bob", "write")
        chief = await here.known("bob", "write", "invoke")
        knobs = {"graph": TransitionGraph.sequence(SEQUENCE).to_dict()}
        channel_id = await opened(ann, "bob", "support", type="workflow", knobs=knobs)
        assert (await say(ann, channel_id)).status_code == 201  # the turn is bob's
        refused = await say(bob, channel_id)
        assert (refused.status_code, reason_of(refused)) == (403, "wrong_scope")
        assert (await say(chief, channel_id)).status_code == 201  # the turn is the agent's


async def test_a_channel_that_an_agent_begins_is_not_opened() -> None:
    async with served_hub(Agent("support", echo)) as here:
        writer, both = await here.known("ann", "write", "read"), await here.known("ann", "write", "invoke")
        body = {
            "target": ["support"],
            "type": "workflow",
            "knobs": {"graph": TransitionGraph.sequence(["support", "ann"]).to_dict()},
        }
        refused = await writer.post("/channels", json=body)
        assert (refused.status_code, reason_of(refused)) == (403, "wrong_scope")
        assert (await writer.get("/channels")).json()["channels"] == []
        assert (await both.post("/channels", json=body)).status_code == 201


async def test_a_channel_that_an_agent_begins_once_a_guest_accepts_is_not_opened() -> None:
    async with served_hub(Agent("support", echo)) as here:
        await here.hub.register("bob", accept=lambda invite: True)
        writer = await here.known("ann", "write")
        graph = TransitionGraph.sequence(["support", "bob", "ann"])
        body = {"target": ["support", "bob"], "type": "workflow", "knobs": {"graph": graph.to_dict()}}
        assert (await writer.post("/channels", json=body)).status_code == 403
        assert await here.hub.channels() == []
