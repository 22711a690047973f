"""Edges of teams, steps and tasks that a user may come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    DEFAULT_TOOLS,
    Agent,
    Finish,
    Handoff,
    Hub,
    Limits,
    Progress,
    Reply,
    Request,
    RulesInvalid,
    ScriptedModel,
    Steps,
    ToolResponseEvent,
    TransitionGraph,
    Usage,
    UsageError,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run, soon


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as opened:
        yield opened


@tool
async def leave() -> Finish:
    """Say goodbye."""
    return Finish("bye")


@tool
async def to_legal() -> Handoff:
    """Ask the lawyers."""
    return Handoff("legal")


# Steps


@pytest.mark.parametrize("replaced", [True, False])
async def test_what_a_step_does_to_what_it_is_given_counts_when_it_gives_it_back(hub: Hub, replaced: bool) -> None:
    seen: list[tuple[object, int]] = []

    def writes(progress: Progress) -> Progress:
        progress.notes["x"] = 1
        progress.history.append(("user", "extra"))  # type: ignore[attr-defined]  # it is a list
        return progress.replace(notes=progress.notes, history=progress.history) if replaced else progress

    def reads(progress: Progress) -> None:
        seen.append((progress.notes, len(progress.history)))

    def patcher(steps: Steps) -> Steps:
        return steps.insert_before("call_model", writes).insert_before("call_model", reads)

    model = ScriptedModel(["So."])
    await Agent("bob", model, patcher=patcher).invoke("Hi.", hub=hub)
    assert seen == [({"x": 1}, 2)]
    assert model.requests[0].messages[-1] == ("user", "extra")


def never(progress: Progress) -> Progress | None:
    """Sends back whatever would end the turn before the model has said so."""
    return progress.replace(answer=None) if progress.asked < 2 else None


async def test_who_takes_an_answer_away_takes_the_end_of_the_channel_away(hub: Hub) -> None:
    model = ScriptedModel([calls("leave"), "Not yet.", "Still here."])
    agent = Agent("bob", model, tools=[leave], patcher=lambda steps: steps.insert_after("call_tools", never))
    assert (await agent.invoke("Go?", thread_id="t", hub=hub)).text == "Not yet."
    assert (await agent.invoke("And now?", thread_id="t", hub=hub)).text == "Still here."


async def test_who_takes_an_answer_away_takes_the_handoff_away(hub: Hub) -> None:
    model = ScriptedModel([calls("to_legal"), "I thought again."])
    bob = Agent("bob", model, tools=[to_legal], patcher=lambda steps: steps.insert_after("call_tools", never))
    ann = await hub.register("ann")
    await hub.register(bob)
    await hub.register(Agent("legal", ScriptedModel([])))
    graph = TransitionGraph.sequence(["ann", "bob"])
    channel = await ann.open(type="workflow", target=["bob", "legal"], knobs={"graph": graph.to_dict()})
    await channel.send("Hello.")
    assert await channel.closed(5) == "sequence_complete"
    [packet] = [each for each in await hub.log(channel.channel_id) if each.event_type == "ag2.packet"]
    assert (packet.event_data["body"], packet.event_data["routing"]) == ("I thought again.", {})


# Who answers


async def test_the_lead_is_not_asked_for_its_prompt_when_another_answers(hub: Hub) -> None:
    rendered: list[str] = []

    def prompt(messages: object) -> str:
        rendered.append("lead")
        return "Lead."

    below = Agent("billing", ScriptedModel(["One.", "Two."]))
    lead = Agent("support", ScriptedModel([calls("transfer_to_billing")]), prompt, agents=[below])
    for text in ("Hi.", "And?"):
        assert (await lead.invoke(text, thread_id="t", hub=hub)).agent == "billing"
    assert rendered == ["lead"]


async def test_whoever_is_active_may_be_addressed_and_stays_where_it_is(hub: Hub) -> None:
    shared = Agent("shared", ScriptedModel(["One.", "Two."]))
    two = Agent("two", ScriptedModel([calls("transfer_to_shared")]), agents=[shared])
    lead = Agent("lead", ScriptedModel([]), agents=[Agent("one", ScriptedModel([]), agents=[shared]), two])
    await lead.invoke("@two Hi.", thread_id="t", hub=hub)
    await lead.invoke("@shared And?", thread_id="t", hub=hub)
    assert (await lead.channel("t", hub)).state.active == {"lead": "lead/two/shared"}


def test_a_team_has_only_so_many_places() -> None:
    def grown(levels: int) -> None:
        pair = [Agent(f"a{levels}", ScriptedModel([])), Agent(f"b{levels}", ScriptedModel([]))]
        for level in reversed(range(levels)):
            pair = [Agent(f"{name}{level}", ScriptedModel([]), agents=pair) for name in "ab"]

    grown(7)
    with pytest.raises(UsageError, match="has more than 1000 places; let fewer agents share others"):
        grown(10)


class OnlyTalks:
    calls_tools = False

    async def __call__(self, request: Request) -> Reply:
        return calls("leave", text="I would like to leave.")


async def test_a_model_that_is_told_of_no_tools_calls_none(hub: Hub) -> None:
    below = Agent("shy", OnlyTalks(), "Be shy.", tools=[leave])
    reply = await Agent("support", ScriptedModel([]), agents=[below]).invoke("@shy Well?", hub=hub)
    assert (reply.text, reply.stopped) == ("I would like to leave.", None)
    assert [row.status for row in await hub.channels()] == ["active"]


# What is told beside the end


async def test_handoffs_beside_the_end_are_told_that_it_is_the_end(hub: Hub) -> None:
    below = Agent("billing", ScriptedModel([]))
    model = ScriptedModel([[calls("transfer_to_billing"), calls("leave")]])
    lead = Agent("support", model, tools=[leave], agents=[below], without=DEFAULT_TOOLS)
    told = [event async for event in lead.stream_invoke("Bye.", hub=hub) if isinstance(event, ToolResponseEvent)]
    assert sorted((event.tool, event.text, event.failed) for event in told) == [
        ("leave", "Finished: bye.", False),
        ("transfer_to_billing", "Ignored: it is finished.", True),
    ]


async def test_an_answer_of_another_type_than_is_wanted_now_says_so(hub: Hub) -> None:
    model = ScriptedModel(["7"])
    assert (await Agent("bob", model, output=int).invoke("?", thread_id="t", message_id="m", hub=hub)).output == 7
    changed = Agent("bob", model, output=list[str])
    hub.core.agents["bob"] = changed  # as if the program had been changed and started again
    again = await changed.invoke("?", thread_id="t", message_id="m", hub=hub)
    assert (again.text, again.stopped, again.output) == ("7", "invalid_output", None)


# Tasks


async def test_an_agent_that_is_made_again_with_its_tasks_is_the_same(hub: Hub) -> None:
    below, model = Agent("below", ScriptedModel([])), ScriptedModel(["One.", "Two."])
    for text in ("One.", "Two."):
        lead = Agent("lead", model, tools=[delegate(below), delegate(below, name="slowly", ttl=60)])
        assert (await lead.invoke("Hi.", hub=hub)).text == text


async def test_a_task_without_a_time_of_its_own_ends_before_the_turn_that_waits_for_it(
    hub: Hub, clock: ManualClock
) -> None:
    thinking = asyncio.Event()

    async def thinks(request: Request) -> Reply:
        thinking.set()
        await asyncio.Event().wait()
        raise AssertionError

    below = Agent("below", thinks, limits=Limits(model_seconds=None))
    model = ScriptedModel([calls("delegate_to_below", {"task": "Think."}), says("No news.", usage=Usage(1, 1))])
    lead = Agent("lead", model, tools=[delegate(below)])
    asked = asyncio.create_task(lead.invoke("Well?", thread_id="t", hub=hub))
    await soon(thinking.wait())
    await clock.advance(599)
    await let_others_run(20)
    assert not asked.done()
    await clock.advance(1)
    reply = await soon(asked)
    assert (reply.text, reply.stopped) == ("No news.", None)
    assert model.requests[1].messages[-1].text == "TurnFailed: expectation_violated:reply_within"


async def test_nobody_but_the_hub_says_that_a_channel_is_a_task(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("bob")
    for given in ({"parent": "x", "turn": "1/bob", "depth": 0}, 5):
        with pytest.raises(RulesInvalid, match="the knob 'task' is the hub's own"):
            await ann.open(type="consulting", target="bob", knobs={"task": given})
    assert await hub.channels() == []
