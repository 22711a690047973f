"""A star: a coordinator asks whom it needs, and everybody answers to the coordinator.

Which specialist gets the turn is said by the tool that the coordinator calls. When it calls none, it has its answer.
"""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    FromSpeaker,
    Hub,
    ScriptedModel,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)

PARTICIPANTS = ["user", "coordinator", "weather", "trains"]
GRAPH = TransitionGraph(
    initial_speaker="user",
    transitions=[
        Transition(FromSpeaker("user"), AgentTarget("coordinator")),
        Transition(FromSpeaker("coordinator") & ToolCalled("ask_weather"), AgentTarget("weather")),
        Transition(FromSpeaker("coordinator") & ToolCalled("ask_trains"), AgentTarget("trains")),
        Transition(FromSpeaker("weather") | FromSpeaker("trains"), AgentTarget("coordinator")),
    ],
    default_target=TerminateTarget("answered"),
)


@tool(return_direct=True)
def ask_weather(question: str) -> str:
    """Ask the one who knows the weather."""
    return question


@tool(return_direct=True)
def ask_trains(question: str) -> str:
    """Ask the one who knows the timetable."""
    return question


COORDINATOR = [  # one entry for each time that the model is asked
    calls("ask_weather", {"question": "Will it be dry in Bergen on Sunday?"}),
    calls("ask_trains", {"question": "When is there a train to Bergen on Saturday?"}),
    says("Take the 8:25 on Saturday, and a coat."),
]


async def main() -> None:
    async with Hub.open("memory:") as hub:
        user = await hub.register("user")
        await hub.register(Agent("coordinator", model=ScriptedModel(COORDINATOR), tools=[ask_weather, ask_trains]))
        await hub.register(Agent("weather", model=ScriptedModel(["No. It rains, as ever."])))
        await hub.register(Agent("trains", model=ScriptedModel(["At 8:25."])))

        channel = await user.open(type="workflow", target=PARTICIPANTS[1:], knobs={"graph": GRAPH.to_dict()})
        await channel.send("I would like to see Bergen on Sunday.")
        print("closed:", await channel.closed(timeout=10))
        for envelope in await hub.log(channel.channel_id):
            if envelope.event_type == EV_PACKET:
                asked = envelope.event_data["routing"].get("tool", "")
                print(f"{envelope.sender_id:12} {asked:12} {envelope.event_data['body']}")


if __name__ == "__main__":
    asyncio.run(main())
