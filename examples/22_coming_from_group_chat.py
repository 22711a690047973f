"""A group chat as a graph: everybody in turn up to a cap, or a host who says who speaks next.

Both are checked before anybody speaks, and can be drawn.
"""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    ContextEquals,
    FromSpeaker,
    Hub,
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

PARTICIPANTS = ["user", "host", "coder", "critic"]
IN_TURN = TransitionGraph.round_robin(PARTICIPANTS, max_turns=8)
GRAPH = TransitionGraph(
    initial_speaker="user",
    transitions=[
        Transition(FromSpeaker("host") & ContextEquals("next", "nobody"), TerminateTarget("agreed")),
        Transition(FromSpeaker("host") & ContextEquals("next", "coder"), AgentTarget("coder")),
        Transition(FromSpeaker("host") & ContextEquals("next", "critic"), AgentTarget("critic")),
    ],
    default_target=AgentTarget("host"),
    max_turns=20,
)


@tool
def choose(name: str, channel: TurnChannel) -> str:
    """Say who speaks next: coder, critic, or nobody when the work is done."""
    set_context(channel, next=name)
    return "noted"


HOST = [
    calls("choose", {"name": "coder"}),
    says("Coder, please."),
    calls("choose", {"name": "critic"}),
    says("What do you think of it?"),
    calls("choose", {"name": "nobody"}),
    says("Then we are done."),
]


async def main() -> None:
    for name, graph in {"in turn": IN_TURN, "chosen": GRAPH}.items():
        print(f"{name}:", [f"{found.code}: {found.message}" for found in graph.check(PARTICIPANTS)])
    print(GRAPH.to_mermaid())

    async with Hub.open("memory:") as hub:
        user = await hub.register("user")
        await hub.register(Agent("host", model=ScriptedModel(HOST), tools=[choose]))
        await hub.register(Agent("coder", model=ScriptedModel(["def double(x): return 2 * x"])))
        await hub.register(Agent("critic", model=ScriptedModel(["Short and right."])))
        knobs = {"graph": GRAPH.to_dict(), "writers": {"next": ["host"]}}
        channel = await user.open(type="workflow", target=PARTICIPANTS[1:], knobs=knobs)
        await channel.send("A function that doubles, please.")
        print("closed:", await channel.closed(timeout=10))
        for envelope in await hub.log(channel.channel_id):
            if envelope.event_type == EV_PACKET:
                print(f"{envelope.sender_id}: {envelope.event_data['body']}")


if __name__ == "__main__":
    asyncio.run(main())
