"""An answer that is a value: checked, put right once, and read back as the type that was asked for."""

import asyncio
from dataclasses import dataclass

from antiphon import Agent, Hub, ScriptedModel


@dataclass
class Order:
    item: str
    count: int


async def main() -> None:
    model = ScriptedModel(['{"item": "lamp", "count": "two"}', '```json\n{"item": "lamp", "count": 2}\n```'])
    agent = Agent("clerk", model, "Write orders down.", output=Order)
    async with Hub.open("memory:") as hub:
        reply = await agent.invoke("Two lamps, please.", hub=hub)
    print("the model was told:", model.requests[1].messages[-1].text)
    print("the order:", reply.output)


asyncio.run(main())
