"""What the last event of a turn tells: the limit that ended it, and which agent of a team was active."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Channel,
    Envelope,
    FinalStateEvent,
    FromSpeaker,
    Hub,
    Limits,
    Message,
    ModelError,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnFailed,
    calls,
    says,
    tool,
)
from antiphon.runtime.turn_events import AgentEvent, TurnEvents
from antiphon.runtime.turn_stream import follow_turn
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.served_hub import served_hub
from tests.support.waiting import soon

GRAPH = TransitionGraph("ann", [Transition(FromSpeaker("ann"), AgentTarget("ada"))], TerminateTarget("answered"))
BROKEN = ModelError("the key is wrong")


@tool
def look() -> str:
    return "nothing yet"


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


def tireless() -> Agent:
    """An agent that looks, says so, and wants to look again when its limit is reached."""
    model = ScriptedModel([calls("look", text="Looking."), calls("look")])
    return Agent("ada", model=model, tools=[look], limits=Limits(model_calls=1))


async def final_of(channel: Channel, agent: str, message: Envelope) -> AgentEvent | None:
    """The last event that is told of the turn that answers a message."""
    told = TurnEvents(agent, lambda: channel.state)
    last: AgentEvent | None = None
    async with aclosing(follow_turn(channel, told, message)) as events:
        async for _, event in events:
            last = event
    return last


async def test_limit_of_a_turn_that_ends_in_a_packet_is_told(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register(tireless())
    channel = await ann.open(type="workflow", target="ada", knobs={"graph": GRAPH.to_dict()})
    message = await channel.send("Is it there?")
    final = await soon(final_of(channel, "ada", message))
    assert isinstance(final, FinalStateEvent)
    assert (final.stopped, final.text) == ("max_model_calls", "Looking.")


async def test_limit_of_a_turn_that_ends_in_a_packet_is_told_over_http() -> None:
    async with served_hub(tireless()) as served:
        ann = await served.known("ann")
        opened = await ann.post(
            "/channels", json={"type": "workflow", "target": ["ada"], "knobs": {"graph": GRAPH.to_dict()}}
        )
        channel_id = opened.json()["channel_id"]
        said = await ann.post(f"/channels/{channel_id}/messages", json={"text": "Is it there?"})
        headers = {"last-event-id": f"{channel_id}/{said.json()['sequence']}/0/0"}
        told = await ann.post("/agents/ada/stream_invoke", json={"text": ""}, headers=headers)
    assert '"stopped":"max_model_calls"' in told.text.rpartition("event: done")[2]


def team(*script: object, below: object = BROKEN, **options: object) -> Agent:
    """A lead and one sub-agent, whose model says one thing or raises."""
    billing = Agent("billing", model=ScriptedModel([below, below]), **options)  # type: ignore[arg-type, list-item]
    return Agent("support", model=ScriptedModel(list(script)), agents=[billing])  # type: ignore[arg-type]


async def ask(agent: Agent, hub: Hub, text: str = "hi") -> FinalStateEvent:
    events = [event async for event in agent.stream_invoke(text, thread_id="t", hub=hub)]
    assert isinstance(events[-1], FinalStateEvent)
    return events[-1]


async def test_failure_of_a_sub_agent_is_told_as_its_own(hub: Hub) -> None:
    final = await ask(team(calls("transfer_to_billing")), hub)
    assert (final.stopped, final.agent) == ("model_error", "billing")
    [failed] = [each for each in await hub.log(final.channel_id) if each.event_type == "antiphon.turn.failed"]
    assert failed.event_data["agent"] == "support/billing"


async def test_failure_of_a_sub_agent_before_its_first_call_is_told_as_its_own(hub: Hub) -> None:
    def prompt(messages: list[Message]) -> str:
        raise RuntimeError("no prompt")

    final = await ask(team(calls("transfer_to_billing"), system_prompt=prompt), hub)
    assert (final.stopped, final.agent) == ("prompt_error", "billing")


async def test_failure_of_a_mentioned_sub_agent_is_told_as_its_own(hub: Hub) -> None:
    assert (await ask(team(), hub, "@billing hi")).agent == "billing"


async def test_failure_of_the_lead_to_which_the_turn_has_returned_is_told_as_its_own(hub: Hub) -> None:
    agent = team(calls("transfer_to_billing"), BROKEN, below=calls("request_help", {"reason": "lost"}))
    assert (await ask(agent, hub)).agent == "support"


async def test_error_names_the_agent_that_was_active(hub: Hub) -> None:
    with pytest.raises(TurnFailed) as caught:
        await team(calls("transfer_to_billing")).invoke("hi", hub=hub)
    assert (caught.value.reason, caught.value.agent) == ("model_error", "billing")


async def test_turn_that_is_stopped_by_its_channel_names_the_agent_that_was_active(hub: Hub) -> None:
    @tool
    async def hang_up() -> str:
        [row] = await hub.channels(status="active")
        await (await user.channel(row.channel_id)).close("enough")
        return "closed"

    user = await hub.register("user", kind="human")
    agent = team(calls("transfer_to_billing"), below=calls("hang_up"), tools=[hang_up])
    final = await ask(agent, hub)
    assert (final.stopped, final.agent) == ("channel_closed", "billing")


async def test_turn_that_never_began_names_the_agent_that_would_have_answered() -> None:
    store = KeptStore(clock=ManualClock())
    first = await Hub.over(store)
    channel_id = (await ask(team(calls("transfer_to_billing"), below=says("Paid.")), first)).channel_id
    await first.close()
    idle = await Hub.over(store, engine=None)
    channel = await (await idle.register("user", kind="human")).channel(channel_id)
    await channel.send("And now?")
    await channel.cancel()
    failed = (await idle.log(channel_id))[-1]
    assert (failed.event_data["reason"], failed.event_data["agent"]) == ("cancelled", "support/billing")
    await idle.close()


async def test_failure_of_a_sub_agent_is_told_as_its_own_over_http() -> None:
    async with served_hub(team(calls("transfer_to_billing"), calls("transfer_to_billing"))) as served:
        ann = await served.known("ann")
        failed = await ann.post("/agents/support/invoke", json={"text": "hi"})
        streamed = await ann.post("/agents/support/stream_invoke", json={"text": "hi"})
    assert (failed.status_code, failed.json()["error"]["agent"]) == (502, "billing")
    assert '"agent":"billing"' in streamed.text.rpartition("event: done")[2]
