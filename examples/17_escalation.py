"""Escalation: an agent that may not decide gives the turn to a person, who holds it for as long as it takes."""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    FromSpeaker,
    Hub,
    Participant,
    ScriptedModel,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock

PARTICIPANTS = ["customer", "support", "dana"]
GRAPH = TransitionGraph(
    initial_speaker="customer",
    transitions=[
        Transition(FromSpeaker("customer"), AgentTarget("support")),
        Transition(FromSpeaker("support") & ToolCalled("ask_a_person"), AgentTarget("dana")),
        Transition(FromSpeaker("dana"), AgentTarget("support")),
    ],
    default_target=TerminateTarget("answered"),
)


@tool(return_direct=True)
def ask_a_person(question: str) -> str:
    """Let a person decide what you may not."""
    return question


async def until_asked(person: Participant) -> str:
    """Read the inbox until it is this person's turn; the channel in which it is."""
    async for envelope in person.inbox():
        held = await person.channel(envelope.channel_id)
        if envelope.event_type == EV_PACKET and held.state.expected_next_speaker == person.name:
            print(f"{envelope.sender_id}: {envelope.event_data['body']}")
            return envelope.channel_id
    raise RuntimeError("the hub was closed")


async def main() -> None:
    clock = ManualClock()
    model = ScriptedModel([calls("ask_a_person", {"question": "May I refund 900 euros?"}), says("900 euros are back.")])
    async with Hub.open("memory:", clock=clock) as hub:
        customer = await hub.register("customer")
        dana = await hub.register("dana", kind="human")
        await hub.register(Agent("support", model=model, tools=[ask_a_person]))

        channel = await customer.open(type="workflow", target=["support", "dana"], knobs={"graph": GRAPH.to_dict()})
        await channel.send("My boat has sunk. I want my money back.")

        desk = await dana.channel(await until_asked(dana))
        await clock.advance(3 * 86400)
        print(f"three days later the channel is {desk.state.status}, and the turn is with {desk.state.speakers[0]}")
        await desk.send("Yes, with our apologies.")

        print("closed:", await channel.closed(timeout=10))
        print("support was shown:", model.requests[-1].messages[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
