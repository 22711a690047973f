"""What the envelopes and the pieces of text of a workflow tell."""

import asyncio

from antiphon import (
    Agent,
    AgentsTarget,
    FromSpeaker,
    Hub,
    Reply,
    Request,
    TerminateTarget,
    Transition,
    TransitionGraph,
    says,
)
from antiphon.cli.event_display import DisplayEvent, TurnGiven, UserMessage
from antiphon.cli.workflow_view import WorkflowEvents
from antiphon.core.envelope import Envelope
from antiphon.hub.feed import Signal
from antiphon.runtime.channel import Channel
from antiphon.runtime.turn_events import AIMessageEvent, FinalStateEvent, TokenEvent


async def played() -> tuple[Channel, list[Envelope]]:
    """A channel in which two have answered at the same time, and its log."""
    graph = TransitionGraph(
        "dana", [Transition(FromSpeaker("dana"), AgentsTarget(["ada", "ben"]))], TerminateTarget("done")
    )
    both = asyncio.Barrier(2)

    async def together(request: Request) -> Reply:
        await both.wait()
        return says("I am here.")

    async with Hub.open("memory:") as hub:
        dana = await hub.register("dana", kind="human")
        for name in ("ada", "ben"):
            await hub.register(Agent(name, together))
        channel = await dana.open(type="workflow", target=["ada", "ben"], knobs={"graph": graph.to_dict()})
        await channel.send("Who are you?")
        await channel.closed()
        return channel, await hub.log(channel.channel_id)


async def test_everybody_is_told_in_the_order_of_the_log() -> None:
    channel, log = await played()
    told: list[DisplayEvent] = [
        event for acts in [WorkflowEvents(channel)] for envelope in log for event in acts.of(envelope)
    ]
    assert told[:3] == [
        TurnGiven(["dana"], "", "initial speaker"),
        UserMessage("dana", "Who are you?"),
        TurnGiven(["ada", "ben"], "dana", "from dana", 0),
    ]
    assert set(told[3:5]) == {AIMessageEvent("ada", "I am here."), AIMessageEvent("ben", "I am here.")}
    assert told[5:] == [FinalStateEvent("", stopped="done", channel_id=channel.channel_id)]


async def test_pieces_are_shown_when_their_call_has_been_and_of_one_speaker() -> None:
    channel, log = await played()
    acts = WorkflowEvents(channel)
    [given] = [each.sequence for each in log if each.event_data.get("speakers") == ["ada", "ben"]]
    ada, ben = (Signal(channel.channel_id, name, f"{given}/{name}", 0, "I ") for name in ("ada", "ben"))
    begun: dict[str, bool] = {}
    for envelope in log:
        for _ in acts.of(envelope):
            pass
        if envelope.sequence == given:
            assert not acts.has_begun(ada)
        if envelope.event_type == "antiphon.call.started":
            begun[envelope.event_data["turn"]] = True
            assert [acts.has_begun(each) for each in (ada, ben)] == [each.turn_id in begun for each in (ada, ben)]
        if len(begun) == 2:
            break
    assert list(acts.of_signal(ada)) == [TokenEvent("ada", "I ")]
    assert list(acts.of_signal(ben)) == []
    for envelope in log:
        list(acts.of(envelope))
    assert list(acts.of_signal(ada)) == [], "what is over is not shown again"
