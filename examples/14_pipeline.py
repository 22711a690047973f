"""A pipeline: one after the other, each once. The next is called when the one before has handed in its work."""

import asyncio

from antiphon import EV_PACKET, EV_TEXT, Agent, Hub, ScriptedModel, TransitionGraph

PARTICIPANTS = ["editor", "researcher", "writer", "proofreader"]
GRAPH = TransitionGraph.sequence(PARTICIPANTS)


async def main() -> None:
    proofreader = ScriptedModel(["Tides follow the moon, twice a day."])
    async with Hub.open("memory:") as hub:
        editor = await hub.register("editor")  # brings the task, so it opens the channel and speaks first
        await hub.register(Agent("researcher", model=ScriptedModel(["The moon pulls; two high waters a day."])))
        await hub.register(Agent("writer", model=ScriptedModel(["Tides folow the moon, twice a day."])))
        await hub.register(Agent("proofreader", model=proofreader))

        channel = await editor.open(type="workflow", target=PARTICIPANTS[1:], knobs={"graph": GRAPH.to_dict()})
        await channel.send("A sentence on tides, please.")
        async for envelope in hub.subscribe(channel.channel_id):  # until the channel ends
            if envelope.event_type in (EV_TEXT, EV_PACKET):  # code and people send texts, agents packets
                said = envelope.event_data.get("text") or envelope.event_data.get("body")
                print(f"{envelope.sender_id}: {said}")
        print("closed:", channel.state.close_reason)

        print("What the last of them was shown:")
        for _, text in proofreader.requests[0].messages:
            print(f"  {text}")


if __name__ == "__main__":
    asyncio.run(main())
