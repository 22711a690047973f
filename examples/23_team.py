"""A team: a lead hands over to a specialist, who asks for help, and a person addresses one of them by name."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon import Agent, Hub, Intent, ScriptedModel, calls, says, tool


@tool
async def last_invoice(customer: str) -> str:
    """The last invoice of a customer."""
    return f"{customer}: 42 euros, paid twice"


def team() -> Agent:
    legal = Agent(
        "legal", ScriptedModel([says("You may have it back within two weeks.")]), description="Knows the law."
    )
    billing = Agent(
        "billing",
        ScriptedModel(
            [
                calls("last_invoice", {"customer": "ann"}),
                calls("request_help", {"reason": "she was charged twice, and I may not refund"}),
            ]
        ),
        "You know all invoices.",
        tools=[last_invoice],
        description="Knows invoices.",
    )
    lead = ScriptedModel([calls("transfer_to_billing", text="One moment."), says("I have refunded 42 euros.")])
    thanks = Intent("thank you", answer="You are welcome.")
    return Agent("support", lead, "You lead the service desk.", agents=[billing, legal], intents=[thanks])


async def main() -> None:
    with TemporaryDirectory() as folder:
        url, support = f"sqlite:///{Path(folder) / 'desk.db'}", team()
        async with Hub.open(url) as hub:
            async for event in support.stream_invoke("Was I charged twice?", thread_id="ann", hub=hub):
                print(f"{event.agent:8} {type(event).__name__:18} {getattr(event, 'tool', '')}", end=" ")
                print(getattr(event, "text", ""))
            await support.invoke("@legal Can I have it back?", thread_id="ann", hub=hub)
        async with Hub.open(url) as hub:  # who answered last is remembered
            channel = await support.channel("ann", hub)
            print("active after a restart:", channel.state.active["support"])
            reply = await support.invoke("@lead Thank you!", thread_id="ann", hub=hub)
            print(f"{reply.agent}: {reply.text}")


asyncio.run(main())
