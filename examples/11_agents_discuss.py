"""Two agents and a person discuss. The rules give the turn round; the person may interject at any time."""

import asyncio

from antiphon import EV_TEXT, Agent, Hub, Reply, Request, ScriptedModel, says


async def critic(request: Request) -> Reply:
    """A model is an async function. This one only counts what it has heard, and from whom."""
    speakers = [text.partition(":")[0] for role, text in request.messages if role == "user"]
    return says(f"I have heard {', '.join(speakers)}. Too expensive.")


async def main() -> None:
    async with Hub.open("memory:") as hub:
        dana = await hub.register("dana", kind="human")
        await hub.register(Agent("planner", model=ScriptedModel(["A tower.", "Then a hut."])))
        await hub.register(Agent("critic", model=critic))

        channel = await dana.open(type="discussion", target=["planner", "critic"])
        await channel.send("What shall we build?")
        spoken = 0
        async for envelope in hub.subscribe(channel.channel_id):
            if envelope.event_type == EV_TEXT:
                print(f"{envelope.sender_id}: {envelope.event_data['text']}")
                spoken += 1
            if channel.state.speakers == ("dana",) and spoken == 3:
                await channel.send("Something smaller, please.")
            if spoken == 6:
                break
        print("the turn is with", channel.state.expected_next_speaker)
        print("closed:", await channel.close(reason="agreed"))


asyncio.run(main())
