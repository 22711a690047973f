"""The one list of what waits for a person, and the decisions about it: calls in doubt and suspended turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    Approval,
    Denied,
    FromSpeaker,
    Hub,
    Limits,
    Transition,
    TransitionGraph,
    TurnFailed,
    UnknownApproval,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.core.execution_events import EV_APPROVAL_DECIDED
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import Crashes, Mind, crashes
from tests.support.waiting import let_others_run, wait_until


@tool(idempotency="unsafe")
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@asynccontextmanager
async def in_doubt(*replies: str) -> AsyncIterator[tuple[Crashes, Hub]]:
    """A call that was under way when its process died."""
    async with crashes() as place:
        paying = asyncio.Event()

        @tool(idempotency="unsafe", name="pay")
        async def slow(cents: int) -> str:
            paying.set()
            await asyncio.Event().wait()
            return f"paid {cents}"

        await place.next_hub(Mind(calls("pay", {"cents": 5})), tools=[slow])
        await place.open()
        await wait_until(paying.is_set)
        hub = await place.next_hub(Mind(*(says(reply) for reply in replies)), tools=[pay])
        await place.until("call.doubted")
        yield place, hub


@asynccontextmanager
async def suspended(type: str = "conversation", *replies: str) -> AsyncIterator[tuple[Crashes, Hub]]:
    """A turn whose process died twice, which is its limit, found by a hub with a model that gives these replies."""
    async with crashes() as place:
        place.limits = Limits(model_seconds=None, crashes=2)
        for life in range(2):
            mind = Mind()
            await place.next_hub(mind)
            if life == 0:
                await place.open(type)
            await wait_until(lambda mind=mind: mind.thinks)
        hub = await place.next_hub(Mind(*(says(reply) for reply in replies)))
        await place.until("turn.suspended")
        yield place, hub


async def test_a_call_in_doubt_is_listed_with_what_a_decision_needs() -> None:
    async with in_doubt() as (place, hub):
        [waiting] = await hub.approvals()
        assert isinstance(waiting, Approval)
        assert (waiting.kind, waiting.agent, waiting.tool, waiting.args) == ("call", "bob", "pay", {"cents": 5})
        assert waiting.channel_id == place.channel_id
        assert waiting.options == ["approve", "reject", "respond"]
        assert len(waiting.digest) == 64
        assert "under way when its process ended" in waiting.why
        [asked] = [each for each in await place.told("msg.text") if each.sender_id == "ann"]
        assert (waiting.cause, waiting.decide_by) == (asked.envelope_id, None)
        assert await hub.approvals(place.channel_id) == [waiting]


async def test_a_suspended_turn_is_listed_with_what_a_decision_needs() -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        assert (waiting.kind, waiting.agent, waiting.tool, waiting.args) == ("turn", "bob", "", {})
        assert waiting.turn_id == (await place.state()).owed[0].turn_id
        assert "died 2 times in a row" in waiting.why
        [asked] = await place.told("msg.text")
        assert waiting.cause == asked.envelope_id
        assert await hub.approvals(place.channel_id) == [waiting]


async def test_approve_attempts_the_turn_again_and_counts_from_the_beginning() -> None:
    async with suspended("conversation", "at last") as (place, hub):
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "approve", reason="the disk was full")
        assert await place.answered() == ["at last"]
        assert await hub.approvals() == []
        [decided] = await place.told("approval.decided")
        data = decided.event_data
        assert (data["approval_id"], data["decision"], data["by"]) == (waiting.approval_id, "approve", "ann")
        assert (data["reason"], data["digest"]) == ("the disk was full", waiting.digest)


@pytest.mark.parametrize("type", ["conversation", "discussion", "consulting"])
async def test_respond_is_recorded_as_the_answer_of_the_agent(type: str) -> None:
    async with suspended(type) as (place, hub):
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "respond", text="Order 7 is refunded.")
        [said] = [each for each in await place.told("msg.text") if each.sender_id == "bob"]
        assert (said.event_data["text"], said.event_data["by"]) == ("Order 7 is refunded.", "ann")
        assert said.causation_id == waiting.cause
        assert (await place.state()).owed == ()
        assert await hub.approvals() == []


async def test_reject_ends_the_turn_without_an_answer_and_the_next_message_is_answered() -> None:
    async with suspended("conversation", "better now") as (place, hub):
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "reject", reason="never mind")
        [failed] = await place.told("turn.failed")
        assert (failed.event_data["reason"], failed.event_data["detail"]) == ("rejected", "by ann: never mind")
        await (await place.held_by("ann")).send("And now?")
        assert await place.answered() == ["better now"]


@pytest.mark.parametrize("decision", ["approve", "respond", "reject"])
async def test_each_decision_works_after_a_restart_and_by_somebody_who_is_not_in_the_channel(decision: str) -> None:
    async with suspended() as (place, _):
        await place.next_hub()
        hub = await place.next_hub(Mind(says("at last")))
        dana = await hub.register("dana", kind="human")
        [waiting] = await hub.approvals()
        text = "by hand" if decision == "respond" else None
        await dana.decide(waiting.approval_id, decision, text=text)
        if decision == "reject":
            await place.until("turn.failed")
        else:
            assert await place.answered() == ["by hand" if text else "at last"]


@pytest.mark.parametrize(
    ("decision", "options", "told"),
    [
        ("approve", {}, "paid 5"),
        ("respond", {"text": "receipt 7"}, "receipt 7"),
        ("reject", {"reason": "the till is broken"}, "not to be relied on: the till is broken"),
    ],
)
async def test_decisions_about_a_call(decision: str, options: dict[str, str], told: str) -> None:
    async with in_doubt("so it is") as (place, hub):
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, decision, digest=waiting.digest, **options)  # type: ignore[arg-type]
        assert await place.answered() == ["so it is"]
        finished = (await place.told("call.finished"))[-2].event_data["result"]
        assert told in str(finished)


@pytest.mark.parametrize("name", ["bob", "sue"])
async def test_neither_agents_nor_services_decide(name: str) -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        before = await place.log()
        with pytest.raises(Denied, match="only a person") as denied:
            await place.people[name].decide(waiting.approval_id, "approve")
        assert (denied.value.reason, denied.value.channel_id) == ("not_a_person", place.channel_id)
        assert await place.log() == before


async def test_the_first_decision_wins_and_the_second_is_told_it() -> None:
    async with suspended() as (place, hub):
        dana = await hub.register("dana", kind="human")
        [waiting] = await hub.approvals()
        works = (dana.decide(waiting.approval_id, "respond", text=f"answer {number}") for number in range(5))
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        assert [outcome for outcome in outcomes if outcome is None] == [None]
        with pytest.raises(Denied, match="'dana' decided before: respond") as denied:
            await place.people["ann"].decide(waiting.approval_id, "reject")
        assert denied.value.reason == "decided"
        assert len(await place.answers()) == 1


async def test_what_was_settled_through_the_channel_is_decided() -> None:
    async with in_doubt("so it is") as (place, hub):
        [waiting] = await hub.approvals()
        [turn] = (await place.state()).owed
        await (await place.held_by("ann")).settle(turn.turn_id, turn.doubts[0], result="receipt 7")
        assert await place.answered() == ["so it is"]
        with pytest.raises(Denied, match="'ann' decided before: respond"):
            await place.people["ann"].decide(waiting.approval_id, "approve")


async def test_a_second_suspension_is_another_approval() -> None:
    async with suspended() as (place, hub):
        [first] = await hub.approvals()
        await place.people["ann"].decide(first.approval_id, "approve")
        await place.until("turn.claimed", 3)
        await place.next_hub(mind := Mind())
        await wait_until(lambda: mind.thinks)
        hub = await place.next_hub(Mind())
        await place.until("turn.suspended", 2)
        [second] = await hub.approvals()
        assert second.approval_id != first.approval_id
        with pytest.raises(Denied, match="decided before: approve"):
            await place.people["ann"].decide(first.approval_id, "reject")
        await place.people["ann"].decide(second.approval_id, "reject")


async def test_a_decision_about_something_else_is_refused() -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        with pytest.raises(Denied) as denied:
            await place.people["ann"].decide(waiting.approval_id, "approve", digest="0" * 64)
        assert denied.value.reason == "stale_decision"
        assert await hub.approvals() == [waiting]


@pytest.mark.parametrize(
    ("decision", "options", "message"),
    [
        ("edit", {"args": {}}, "has left already"),
        ("shrug", {}, "no decision is called 'shrug'"),
        ("approve", {"args": {"cents": 1}}, "args belongs to 'edit'"),
        ("approve", {"text": "yes"}, "text belongs to 'respond'"),
        ("respond", {}, "needs text"),
        ("respond", {"text": 7}, "give a text"),
        ("reject", {"reason": 7}, "give a text"),
        ("approve", {"why": "x"}, "no option is called 'why'"),
    ],
)
async def test_a_decision_that_makes_no_sense(decision: str, options: dict[str, object], message: str) -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        with pytest.raises(UsageError, match=message):
            await place.people["ann"].decide(waiting.approval_id, decision, **options)  # type: ignore[arg-type]
        assert await hub.approvals() == [waiting]


@pytest.mark.parametrize(
    "wrong", ["", "x", "a.1.bob.1.turn", "{id}x", "{channel}.6.bob.99.turn", "{channel}.6.bob.2.0"]
)
async def test_an_id_under_which_nothing_waits(wrong: str) -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        approval_id = wrong.format(id=waiting.approval_id, channel=place.channel_id)
        with pytest.raises(UnknownApproval, match="nothing waits under"):
            await place.people["ann"].decide(approval_id, "approve")


async def test_a_cancelled_turn_waits_no_more() -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        await (await place.held_by("ann")).cancel()
        assert await hub.approvals() == []
        with pytest.raises(UnknownApproval):
            await place.people["ann"].decide(waiting.approval_id, "approve")


async def test_whoever_asked_is_told_that_the_turn_waits_and_gets_the_answer_after_the_decision() -> None:
    async with crashes() as place:
        agent = Agent("cleo", model=(mind := Mind()), limits=Limits(model_seconds=None, crashes=1))
        hub = await place.next_hub()
        asking = asyncio.ensure_future(agent.invoke("Well?", thread_id="t", message_id="m", hub=hub))
        await wait_until(lambda: mind.thinks)
        hub = await place.next_hub()
        with pytest.raises(TurnFailed, match="antiphon approvals") as failed:
            await agent.invoke("Well?", thread_id="t", message_id="m", hub=hub)
        assert failed.value.reason == "suspended"
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "respond", text="Well enough.")
        assert (await agent.invoke("Well?", thread_id="t", message_id="m", hub=hub)).text == "Well enough."
        asking.cancel()


async def test_a_packet_channel_takes_the_answer_as_a_packet() -> None:
    async with crashes() as place:
        place.limits = Limits(model_seconds=None, crashes=1)
        await place.next_hub(mind := Mind())
        graph = TransitionGraph.sequence(["ann", "bob"])
        channel = await place.people["ann"].open(type="workflow", target="bob", knobs={"graph": graph.to_dict()})
        place.channel_id = channel.channel_id
        await channel.send("Well?")
        await wait_until(lambda: mind.thinks)
        hub = await place.next_hub(Mind())
        await place.until("turn.suspended")
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "respond", text="Well enough.")
        [packet] = await place.told("packet")
        assert (packet.sender_id, packet.event_data["body"]) == ("bob", "Well enough.")
        assert packet.event_data["by"] == "ann"
        assert (await place.state()).status == "closed"


async def test_the_list_does_not_fold_what_it_has_looked_at_before() -> None:
    """Of a large store, only channels whose turns have changed are looked at again."""
    async with suspended() as (place, hub):
        for _ in range(5):
            await place.people["ann"].open(target="sue")
        core = hub.core
        [waiting] = await hub.approvals()
        asked: list[str] = []
        get = core.channels.get

        async def noted(channel_id: str):  # type: ignore[no-untyped-def]
            asked.append(channel_id)
            return await get(channel_id)

        core.channels.get = noted  # type: ignore[method-assign]
        assert await hub.approvals() == [waiting]
        assert asked == [place.channel_id]


async def test_the_clock_stands_still_whichever_of_several_turns_waits() -> None:
    """Two agents have the turn together, and the second one waits for a person."""
    graph = TransitionGraph(
        "ann", [Transition(FromSpeaker("ann"), AgentsTarget(["left", "right"]))], AgentTarget("ann")
    )
    clock = ManualClock()
    slow = asyncio.Event()

    @tool(idempotency="unsafe", timeout=1)
    async def hang() -> str:
        await slow.wait()
        return "never"

    async with Hub.open(clock=clock) as hub:
        ann = await hub.register("ann", kind="human")
        left = Agent("left", model=Mind(), limits=Limits(model_seconds=None))
        await hub.register(left)
        await hub.register(Agent("right", model=Mind(calls("hang"), says("right")), tools=[hang]))
        expectations = [{"name": "turn_within", "seconds": 60, "handler": "auto_close"}]
        knobs = {"graph": graph.to_dict(), "expectations": expectations}
        channel = await ann.open(type="workflow", target=["left", "right"], knobs=knobs)
        await channel.send("Well?")
        await let_others_run(100)
        await clock.advance(1)
        await wait_until(lambda: any(turn.doubts for turn in channel.state.owed))
        assert [bool(turn.doubts) for turn in channel.state.owed] == [False, True]
        await clock.advance(3600)
        await let_others_run(50)
        assert channel.state.status == "active"
        [waiting] = await hub.approvals()
        await ann.decide(waiting.approval_id, "respond", text="done")
        await wait_until(lambda: len(channel.state.owed) == 1)
        await clock.advance(59)
        await let_others_run(50)
        assert channel.state.status == "active"
        await clock.advance(2)
        assert await channel.closed(timeout=5) == "expectation_violated:turn_within"


async def test_refused_decisions_are_in_the_audit() -> None:
    async with suspended() as (place, hub):
        [waiting] = await hub.approvals()
        with pytest.raises(Denied):
            await place.people["bob"].decide(waiting.approval_id, "approve")
        audit = await hub.log("system:audit")
        data = audit[-1].event_data
        assert (data["reason"], data["sender_id"]) == ("not_a_person", "bob")
        assert data["event_type"] == EV_APPROVAL_DECIDED
