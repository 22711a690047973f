"""Tasks: an agent has two others do something at the same time, and keeps the conversation; usage is summed."""

import asyncio

from antiphon import Agent, Hub, ScriptedModel, Usage, calls, delegate, says


async def main() -> None:
    trains = Agent(
        "trains", ScriptedModel([says("The 8:25, 30 euros.", usage=Usage(100, 10))]), description="Knows trains."
    )
    weather = Agent("weather", ScriptedModel([says("Rain.", usage=Usage(50, 5))]), description="Knows the weather.")
    model = ScriptedModel(
        [
            [
                calls("delegate_to_trains", {"task": "A train to Bergen on Saturday?"}, usage=Usage(20, 8)),
                calls("delegate_to_weather", {"task": "Bergen on Saturday?"}),
            ],
            says("Take the 8:25, and a coat.", usage=Usage(40, 7)),
        ]
    )
    guide = Agent("guide", model, tools=[delegate(trains), delegate(weather, ttl=60)])
    async with Hub.open("memory:") as hub:
        reply = await guide.invoke("I want to see Bergen on Saturday.", hub=hub)
        print(f"{reply.agent}: {reply.text}")
        print("tokens, tasks included:", reply.usage.input_tokens, "in,", reply.usage.output_tokens, "out")
        for envelope in await hub.log(reply.channel_id):
            if envelope.event_type.startswith("ag2.task."):
                print(envelope.event_type, envelope.event_data["agent"])


asyncio.run(main())
