"""A team to talk to: `antiphon run examples/28_run_me.py`. Run by Python itself, it plays a short chat of its own."""

import asyncio

from antiphon import Agent, Reply, Request, calls, says, tool

PRICES = {"lamp": 42, "chair": 60}


@tool
def price(item: str) -> str:
    """The price of a thing in the shop."""
    return f"{PRICES[item]} euros"


async def greets(request: Request) -> Reply:
    """A model by rules: a customer who wants to buy is handed to the till."""
    wanted = any(item in request.history[-1].text for item in PRICES)
    return calls("transfer_to_till") if wanted else says("Good morning! Ask me for a lamp or a chair.")


async def sells(request: Request) -> Reply:
    """A model by rules: it looks a price up and tells it, or gives the conversation back."""
    if (looked_up := request.messages[-1].text).endswith(" euros"):
        return says(f"That is {looked_up}.")
    wanted = next((item for item in PRICES if item in request.history[-1].text), None)
    return calls("price", {"item": wanted}) if wanted else calls("request_help", {"reason": "we do not have that"})


agents = [Agent("shop", greets, agents=[Agent("till", sells, tools=[price], description="Knows what things cost.")])]


async def main() -> None:
    for text in ("Hello!", "What does a lamp cost?"):
        reply = await agents[0].invoke(text)
        print(f"{reply.agent}: {reply.text}")


if __name__ == "__main__":
    asyncio.run(main())
