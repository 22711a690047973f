"""The scenes whose events are kept as golden files: an agent, its team, and what a person says to it, turn by turn.

Rule 1: a scene is made anew each time, so that it can be played in several ways and must come to the same.
Rule 2: nothing in a scene depends on time, threads or chance.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from antiphon import Agent, Intent, Limits, calls, delegate, says
from tests.acceptance.agent_flow import add, agent, look_up, receipt


class Scene(msgspec.Struct, frozen=True):
    """Who is asked, and what."""

    agent: Agent
    said: tuple[str, ...]


SCENES: dict[str, Callable[[], Scene]] = {}


def scene(make: Callable[[], Scene]) -> Callable[[], Scene]:
    """Have it played under the name of its function."""
    SCENES[make.__name__] = make
    return make


@scene
def plain_answer() -> Scene:
    return Scene(agent("support", says("Good morning to you.")), ("Good morning.",))


@scene
def one_tool() -> Scene:
    script = [calls("look_up", {"order": "7"}), says("It costs 42 euros.")]
    return Scene(agent("support", *script, tools=[look_up]), ("What does order 7 cost?",))


@scene
def tool_error_then_answer() -> Scene:
    script = [calls("look_up", {"order": "8"}, text="One moment."), says("There is no order 8.")]
    return Scene(agent("support", *script, tools=[look_up]), ("What does order 8 cost?",))


@scene
def return_direct() -> Scene:
    script = [calls("receipt", {"order": "7"}), says("With pleasure.")]
    return Scene(agent("support", *script, tools=[receipt]), ("A receipt, please.", "Thank you."))


@scene
def return_direct_that_fails() -> Scene:
    script = [calls("receipt", {"order": "8"}), says("There is no receipt.")]
    return Scene(agent("support", *script, tools=[receipt]), ("A receipt, please.",))


@scene
def mixed_parallel_calls() -> Scene:
    """A tool, one that fails, one that is not there, one whose result would be the answer, and a handoff, at once."""
    message = [
        calls("add", {"a": 1, "b": 2}),
        calls("look_up", {"order": "8"}),
        calls("refund", {"order": "7"}),
        calls("receipt", {"order": "7"}),
        calls("transfer_to_billing", {"reason": "money"}),
    ]
    billing = agent("billing", "It is all settled.")
    return Scene(agent("support", message, tools=[add, look_up, receipt], agents=[billing]), ("Everything, please.",))


@scene
def transfer() -> Scene:
    billing = agent("billing", calls("look_up", {"order": "7"}), "You owe 42 euros.", tools=[look_up])
    return Scene(agent("support", calls("transfer_to_billing"), agents=[billing]), ("What do I owe?",))


@scene
def transfer_with_text() -> Scene:
    billing = agent("billing", "You owe nothing.")
    lead = agent("support", calls("transfer_to_billing", text="I hand you over."), agents=[billing])
    return Scene(lead, ("What do I owe?",))


@scene
def three_levels_down_and_up() -> Scene:
    tax = agent("tax", calls("request_help", {"reason": "the year is missing"}, text="Hm."))
    script = [calls("transfer_to_tax"), calls("request_help", {"reason": "ask for the year"})]
    billing = agent("billing", *script, agents=[tax])
    lead = agent("support", calls("transfer_to_billing"), says("Which year do you mean?"), agents=[billing])
    return Scene(lead, ("How much tax?",))


@scene
def several_handoffs_in_one_message() -> Scene:
    message = [calls("transfer_to_legal"), calls("transfer_to_billing"), calls("add", {"a": 1, "b": 1})]
    legal, billing = agent("legal", "I am the lawyer."), agent("billing")
    return Scene(agent("support", message, tools=[add], agents=[billing, legal]), ("Help!",))


@scene
def mention() -> Scene:
    tax = agent("tax", "Tax speaking.")
    billing = agent("billing", "Billing speaking.", agents=[tax])
    lead = agent("support", "Support speaking.", agents=[billing])
    return Scene(lead, ("@billing hello", "@TAX\nhello", "@lead hello"))


@scene
def stored_active_agent() -> Scene:
    billing = agent("billing", "You owe 42 euros.", "Until Friday.")
    lead = agent("support", calls("transfer_to_billing"), agents=[billing])
    return Scene(lead, ("What do I owe?", "Until when?"))


@scene
def intent_with_an_answer() -> Scene:
    return Scene(agent("support", intents=[Intent("opening hours", answer="9 to 5")]), ("Opening hours?",))


@scene
def intent_with_a_tool() -> Scene:
    intents = [
        Intent("my order", tool="look_up", args={"order": "7"}),
        Intent("my receipt", tool="receipt", args={"order": "7"}),
    ]
    lead = agent("support", "It costs 42 euros.", tools=[look_up, receipt], intents=intents)
    return Scene(lead, ("My order!", "My receipt!"))


@scene
def intent_with_an_agent() -> Scene:
    billing = agent("billing", "You owe nothing.")
    return Scene(agent("support", agents=[billing], intents=[Intent("my bill", agent="billing")]), ("My bill?",))


@scene
def task() -> Scene:
    clerk = agent("clerk", calls("look_up", {"order": "7"}), "Order 7 costs 42 euros.", tools=[look_up])
    script = [calls("delegate_to_clerk", {"task": "the price of order 7"}), says("The clerk says 42 euros.")]
    return Scene(agent("support", *script, tools=[delegate(clerk)]), ("What does order 7 cost?",))


@scene
def limit_of_model_calls() -> Scene:
    script = [calls("add", {"a": 1, "b": number}, text=f"Step {number}.") for number in range(3)]
    lead = agent("support", *script, says("Here I am."), tools=[add], limits=Limits(model_calls=2))
    return Scene(lead, ("Count.",))


@scene
def limit_of_handoffs() -> Scene:
    billing = agent("billing", calls("request_help", {"reason": "not mine"}), calls("request_help", {"reason": "no"}))
    lead = agent(
        "support", calls("transfer_to_billing", text="To billing."), agents=[billing], limits=Limits(handoffs=1)
    )
    return Scene(lead, ("What do I owe?",))


@scene
def failure() -> Scene:
    """The sub-agent's model fails: nothing of the turn stays, and the lead answers the next."""
    billing = agent("billing", RuntimeError("no capacity"))
    lead = agent("support", calls("transfer_to_billing"), "Support again.", agents=[billing])
    return Scene(lead, ("What do I owe?", "Hello?"))
