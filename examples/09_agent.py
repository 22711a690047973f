"""An agent with a tool, asked twice on one thread. What the model was sent shows that a thread remembers."""

import asyncio

from antiphon import Agent, Hub, ScriptedModel, calls, says, tool

PRICES = {"7": 4200}


@tool
def price(order: str) -> int:
    """The price of an order.

    Args:
        order: the number of the order
    """
    return PRICES[order]


async def main() -> None:
    model = ScriptedModel(  # it stands in for a model: one entry for each time that it is asked
        [calls("price", {"order": "7"}), says("Order 7 costs 42 euros."), says("You are welcome.")]
    )
    agent = Agent("support", model=model, system_prompt="You help customers.", tools=[price])
    async with Hub.open("memory:") as hub:
        reply = await agent.invoke("What does order 7 cost?", thread_id="ann", hub=hub)
        print(f"{reply.agent}: {reply.text}")
        reply = await agent.invoke("Thank you!", thread_id="ann", hub=hub)
        print(f"{reply.agent}: {reply.text}")

        print("Within its turn the model was told what the tool returned:")
        for role, text in model.requests[1].messages:
            print(f"  {role:9} {text}")
        print("In the next turn it was shown what had been said:")
        for role, text in model.requests[2].messages:
            print(f"  {role:9} {text}")


asyncio.run(main())
