"""Compensations that are stuck, over HTTP: operators see them and decide."""

from __future__ import annotations

import pytest

from antiphon import Agent, Channel, ScriptedModel, calls, says, tool
from antiphon.guards.saga import saga_memory_of
from antiphon.server.api_keys import KEY_SCOPES
from tests.support.served_hub import ServedHub, poll_until, served_hub
from tests.support.waiting import wait_until


async def stuck(here: ServedHub, **knobs: object) -> Channel:
    """A run whose compensation is known nowhere."""

    @tool(compensate="nowhere_to_be_found")
    async def make(what: str) -> str:
        return what

    model = ScriptedModel([calls("make", {"what": "a"}), says("Made.")])
    await here.hub.register(Agent("maker", model=model, tools=[make]))
    bea = await here.hub.register("bea", kind="human")
    channel = await bea.open(target="maker", say="Make", knobs=knobs)
    await wait_until(lambda: channel.state.turn_count == 2)
    await channel.abort()
    await wait_until(lambda: bool(saga_memory_of(channel._live.fold).stuck))
    return channel


@pytest.mark.parametrize(("decision", "recorded"), [("reject", "skipped"), ("respond", "done")])
async def test_an_operator_lists_what_is_stuck_and_decides(decision: str, recorded: str) -> None:
    async with served_hub() as here:
        channel = await stuck(here)
        operator, person = await here.known("dana"), await here.known("ann", *(set(KEY_SCOPES) - {"operate"}))
        assert (await person.get("/approvals")).json()["approvals"] == []
        [waiting] = (await operator.get("/approvals", params={"view": "operator"})).json()["approvals"]
        assert (waiting["kind"], waiting["why"]) == ("compensation", "compensation_missing")
        path = f"/approvals/{waiting['approval_id']}"
        choice = {"decision": decision, "digest": waiting["digest"], "text": "by hand"}
        assert (await person.post(path, json=choice)).status_code == 404
        decided = await operator.post(path, json=choice)
        assert (decided.status_code, decided.json()["decision"]) == (200, decision)
        await poll_until(lambda: saga_memory_of(channel._live.fold).finished, "the saga goes on")
        statuses = [
            each.event_data.get("status")
            for each in await here.hub.log(channel.channel_id)
            if each.event_type == "antiphon.saga.compensation"
        ]
        assert statuses == ["stuck", recorded]
        again = await operator.post(path, json=choice)
        assert (again.status_code, again.json()["error"]["reason"]) == (409, "decided")


async def test_a_person_that_the_channel_names_sees_what_is_stuck_and_decides() -> None:
    async with served_hub() as here:
        await stuck(here, approvers=["fay"])
        scopes = set(KEY_SCOPES) - {"operate"}
        person, other = await here.known("fay", *scopes), await here.known("gus", *scopes)
        assert (await other.get("/approvals")).json()["approvals"] == []
        [waiting] = (await person.get("/approvals")).json()["approvals"]
        path, choice = f"/approvals/{waiting['approval_id']}", {"decision": "reject", "digest": waiting["digest"]}
        assert (await other.post(path, json=choice)).status_code == 404
        assert (await person.post(path, json=choice)).status_code == 200
