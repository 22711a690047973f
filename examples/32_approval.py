"""A refund that a person decides about before it is paid: held, changed to less, and paid by the next process."""

import asyncio
from tempfile import TemporaryDirectory

from antiphon import Agent, ApprovalEvent, Hub, Reply, Request, ToolResponseEvent, calls, says, tool

PAID: list[str] = []


@tool(approval=lambda args: args["cents"] > 500, approvers=["finance"])
async def refund(order: str, cents: int, idempotency_key: str) -> str:
    """Pay money back."""
    PAID.append(f"{cents} cents for order {order}")
    return f"refunded {cents} cents"


async def model(request: Request) -> Reply:
    """Stands for a provider's model: it asks for a refund, and says what came of it."""
    if not request.exchange:
        return calls("refund", {"order": "7", "cents": 4200})
    return says(f"The result: {request.messages[-1].text}.")


SUPPORT = Agent("support", model, tools=[refund])
QUESTION = "Please refund order 7."


async def first_process(url: str) -> None:
    """The call waits, and the caller is told so at once."""
    async with Hub.open(url) as hub:
        async for event in SUPPORT.stream_invoke(QUESTION, thread_id="ann", message_id="m1", hub=hub):
            if isinstance(event, ApprovalEvent):
                waiting = event.approval
                print(f"waits: {waiting.tool} {waiting.args}, for {', '.join(waiting.approvers)}")


async def office(url: str) -> None:
    """Fred looks at what waits, in a process that runs no agents, and pays less."""
    async with Hub.open(url, engine=None) as hub:
        fred = await hub.register("fred", kind="human", roles=["finance"])
        for approval in await hub.approvals():
            less = {**approval.args, "cents": 2100}
            await fred.decide(approval.approval_id, "edit", args=less, digest=approval.digest, reason="half was used")
            print("fred decides: half")


async def second_process(url: str) -> None:
    """The same message again: nothing is said twice, and the answer comes."""
    async with Hub.open(url) as hub:
        async for event in SUPPORT.stream_invoke(QUESTION, thread_id="ann", message_id="m1", hub=hub):
            if isinstance(event, ToolResponseEvent):
                print(f"{event.tool}: {event.text}")
        reply = await SUPPORT.invoke(QUESTION, thread_id="ann", message_id="m1", hub=hub)
        print(f"support: {reply.text}")
    print("paid:", PAID)


async def main() -> None:
    with TemporaryDirectory() as folder:
        for process in (first_process, office, second_process):
            await process(f"sqlite:///{folder}/approvals.db")


asyncio.run(main())
