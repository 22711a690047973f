"""Context-aware routing: what an agent has found out decides who comes next, and only that agent may write it down."""

import asyncio

from antiphon import (
    EV_TEXT,
    Agent,
    AgentTarget,
    ContextEquals,
    ContextThreshold,
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

PARTICIPANTS = ["applicant", "intake", "clerk", "director"]
GRAPH = TransitionGraph(
    initial_speaker="applicant",
    transitions=[
        Transition(FromSpeaker("applicant"), AgentTarget("intake")),
        Transition(FromSpeaker("intake") & ContextEquals("amount", None), AgentTarget("applicant")),
        Transition(FromSpeaker("intake") & ContextThreshold("amount", ">", 10_000), AgentTarget("director")),
        Transition(FromSpeaker("intake"), AgentTarget("clerk")),
    ],
    default_target=TerminateTarget("decided"),
)
WRITERS = {"amount": ["intake"]}


@tool
def note(amount: int, channel: TurnChannel) -> str:
    """Write down how much is asked for."""
    set_context(channel, amount=amount)
    return "noted"


INTAKE = [says("How much?"), calls("note", {"amount": 25_000}), says("A large one."), says("A small one.")]
CLERK = [calls("note", {"amount": 1}), says("I only wanted to help.")]


async def main() -> None:
    async with Hub.open("memory:") as hub:
        applicant = await hub.register("applicant")
        await hub.register(Agent("intake", model=ScriptedModel(INTAKE), tools=[note]))
        await hub.register(Agent("director", model=ScriptedModel(["Granted."])))
        clerk = ScriptedModel(CLERK)
        await hub.register(Agent("clerk", model=clerk, tools=[note]))
        knobs = {"graph": GRAPH.to_dict(), "writers": WRITERS}

        channel = await applicant.open(type="workflow", target=PARTICIPANTS[1:], knobs=knobs)
        await channel.send("I need a loan.")
        async for envelope in hub.subscribe(channel.channel_id):
            data = envelope.event_data
            if envelope.event_type == "antiphon.turn.assigned":  # operators see which rule decided, and why
                print(f"  {data['speakers'][0]} is next: {data['reason']}")
            elif "body" in data or envelope.event_type == EV_TEXT:
                print(f"{envelope.sender_id}: {data.get('body') or data['text']}")
            if data.get("body") == "How much?":
                await channel.send("25,000.")
        print("closed:", channel.state.close_reason, channel.state.context_vars)

        small = await applicant.open(type="workflow", target=PARTICIPANTS[1:], knobs=knobs, context_vars={"amount": 50})
        await small.send("And a small one.")
        await small.closed(timeout=10)
        print("the clerk's tool said:", clerk.requests[-1].messages[-1].text.rpartition(": ")[2])


if __name__ == "__main__":
    asyncio.run(main())
