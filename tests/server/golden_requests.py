"""What is asked over HTTP in the golden files: an agent, what it is asked, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon import Agent, Limits, ScriptedModel, TransitionGraph, calls, says, tool
from antiphon.core.errors import ModelRefused

ASKED = "What does it cost?"


@tool
async def price(order: str) -> str:
    """What an order costs."""
    return f"order {order}: 42 euros"


@tool
async def broken(order: str) -> str:
    """Cannot be used."""
    raise ValueError("the printer is on fire")


@tool(idempotency="unsafe", timeout=0.02)
async def pay(cents: int) -> str:
    """Pay, which takes longer than anybody waits."""
    from asyncio import Event

    await Event().wait()
    return "never"


@dataclass(frozen=True)
class Scene:
    """One request, and who answers it."""

    agent: Agent
    query: dict[str, str] = field(default_factory=dict)
    text: str = ASKED


def plain() -> Scene:
    return Scene(Agent("support", ScriptedModel([says("It costs\n42 euros.\n\nAnything else?")])))


def tools() -> Scene:
    both = [calls("price", {"order": "7"}), calls("broken", {"order": "8"})]
    return Scene(Agent("support", ScriptedModel([both, says("42 euros.")]), tools=[price, broken]))


def handoff() -> Scene:
    billing = Agent(
        "billing",
        ScriptedModel([calls("price", {"order": "7"}), says("42 euros.")]),
        tools=[price],
        description="Bills.",
    )
    lead = ScriptedModel([calls("transfer_to_billing", text="One moment.")])
    return Scene(Agent("support", lead, agents=[billing]))


def limit() -> Scene:
    asks = [calls("price", {"order": str(number)}) for number in range(3)]
    return Scene(Agent("support", ScriptedModel(asks), tools=[price], limits=Limits(model_calls=2)))


def failure() -> Scene:
    refusing = ScriptedModel([calls("price", {"order": "7"}), ModelRefused("the key is wrong", status=401)])
    return Scene(Agent("support", refusing, tools=[price]))


def in_doubt() -> Scene:
    return Scene(Agent("support", ScriptedModel([calls("pay", {"cents": 4200})]), tools=[pay]))


def tokens() -> Scene:
    script = [calls("price", {"order": "7"}, text="Let me see."), says("It costs\n42 euros.")]
    return Scene(Agent("support", ScriptedModel(script), tools=[price]), {"tokens": "true"})


INVOKED = {each.__name__: each for each in (plain, tools, handoff, limit, failure, in_doubt, tokens)}

GRAPH = TransitionGraph.sequence(["user", "writer", "reader"])


def workflow_agents() -> list[Agent]:
    return [
        Agent("writer", ScriptedModel([calls("price", {"order": "7"}), says("It is 42.")]), tools=[price]),
        Agent("reader", ScriptedModel([says("Fine.")])),
    ]
