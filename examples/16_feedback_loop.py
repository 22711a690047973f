"""A feedback loop: the writer writes and the reviewer reviews, until the reviewer approves or the turns are used up."""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    ContextEquals,
    FromSpeaker,
    Hub,
    Reply,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    says,
    set_context,
    tool,
)

PARTICIPANTS = ["editor", "writer", "reviewer"]
GRAPH = TransitionGraph(
    initial_speaker="editor",
    transitions=[
        Transition(FromSpeaker("reviewer") & ContextEquals("approved", True), TerminateTarget("approved")),
        Transition(FromSpeaker("reviewer"), AgentTarget("writer")),
        Transition(FromSpeaker("writer"), AgentTarget("reviewer")),
    ],
    default_target=AgentTarget("writer"),
    max_turns=7,
)
KNOBS = {"graph": GRAPH.to_dict(), "writers": {"approved": ["reviewer"]}}  # only the reviewer approves


@tool
def approve(channel: TurnChannel) -> str:
    """Say that the text can be printed."""
    set_context(channel, approved=True)  # part of the turn: the rules see it when the turn ends
    return "approved"


CONTENT = [says("Too long."), calls("approve"), says("Print it.")]
NEVER_CONTENT = [says("Too long."), says("Too short."), says("Too dull.")]


async def publish(judgements: list[Reply]) -> None:
    async with Hub.open("memory:") as hub:
        editor = await hub.register("editor")
        drafts = [f"Draft {number}." for number in range(1, 9)]
        await hub.register(Agent("writer", model=ScriptedModel(drafts)))
        await hub.register(Agent("reviewer", model=ScriptedModel(judgements), tools=[approve]))

        channel = await editor.open(type="workflow", target=["writer", "reviewer"], knobs=KNOBS)
        await channel.send("Write about tides.")
        reason = await channel.closed(timeout=10)
        packets = [each for each in await hub.log(channel.channel_id) if each.event_type == EV_PACKET]
        print(*(f"{packet.sender_id}: {packet.event_data['body']}" for packet in packets), sep="\n")
        print(f"closed: {reason}, after {channel.state.turn_count} turns\n")


async def main() -> None:
    await publish(CONTENT)
    await publish(NEVER_CONTENT)


if __name__ == "__main__":
    asyncio.run(main())
