"""Tools whose result is too long for the log: the model is told so, and tries again in the same turn."""

from __future__ import annotations

import asyncio

from antiphon import Agent, FromSpeaker, Hub, ScriptedModel, TerminateTarget, Transition, TransitionGraph, calls, tool
from antiphon.agents.call_results import Finish, Handoff, Reply
from antiphon.core.targets import AgentTarget
from antiphon.engines.tool_invocation import MAX_ROUTING_BYTES
from antiphon.testing.manual_clock import ManualClock

GRAPH = TransitionGraph(
    "ann",
    [Transition(FromSpeaker("ann"), AgentTarget("desk")), Transition(FromSpeaker("law"), TerminateTarget("advised"))],
    TerminateTarget("nobody is left"),
)
SECONDS = 5
"""The limit of a test whose turn has failed, so that the channel waits for a person."""
LIMIT_ADVICE = f"bytes of JSON; the limit is {MAX_ROUTING_BYTES}. Say it in fewer words."
AROUND_HANDOFF = len('{"target":"law","reason":"contract","summary":"","phase":"","escalation":""}')
AROUND_FINISH = len('{"reason":""}')


@tool
async def pass_on(briefing: int) -> Handoff:
    """Hand over to law, with a briefing of so many characters."""
    return Handoff("law", "contract", "ä" * briefing)


@tool
async def end(reason: int) -> Finish:
    """End with a reason of so many characters."""
    return Finish("x" * reason)


@tool
async def look() -> str:
    """Look something up."""
    return "It is there."


async def closed_with(*replies: Reply | list[Reply]) -> tuple[str, list[str]]:
    """The reason that the channel ends with, and what the desk's model was told by its tools."""
    model = ScriptedModel(list(replies))
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register(Agent("desk", model, tools=[pass_on, end, look]))
        await hub.register(Agent("law", ScriptedModel(["Sign it."])))
        knobs = {"graph": GRAPH.to_dict()}
        channel = await ann.open(type="workflow", target=["desk", "law"], knobs=knobs, say="May I sign?")
        reason = await asyncio.wait_for(channel.closed(), SECONDS)
    return reason, [text for role, text in model.requests[-1].messages if role == "tool"]


async def test_a_handoff_that_is_too_long_is_made_again() -> None:
    size = AROUND_HANDOFF + MAX_ROUTING_BYTES
    told = await closed_with(calls("pass_on", {"briefing": MAX_ROUTING_BYTES // 2}), calls("pass_on", {"briefing": 9}))
    assert told == ("advised", [f"The Handoff has {size} {LIMIT_ADVICE}"])


async def test_a_finish_that_is_too_long_is_made_again() -> None:
    too_long = MAX_ROUTING_BYTES - AROUND_FINISH + 1
    told = await closed_with(calls("end", {"reason": too_long}), calls("end", {"reason": 3}))
    assert told == ("xxx", [f"The Finish has {MAX_ROUTING_BYTES + 1} {LIMIT_ADVICE}"])


async def test_other_calls_of_the_message_are_answered() -> None:
    both = [calls("look"), calls("end", {"reason": MAX_ROUTING_BYTES})]
    reason, told = await closed_with(both, calls("end", {"reason": 3}))
    assert (reason, told[0], told[1].endswith(LIMIT_ADVICE)) == ("xxx", "It is there.", True)


async def test_the_longest_ones_end_the_turn() -> None:
    """Their text is in the packet twice, which has room for both."""
    briefing, reason = (MAX_ROUTING_BYTES - AROUND_HANDOFF) // 2, MAX_ROUTING_BYTES - AROUND_FINISH
    assert await closed_with(calls("pass_on", {"briefing": briefing})) == ("advised", [])
    assert await closed_with(calls("end", {"reason": reason})) == ("x" * reason, [])


async def test_control_characters_count_as_the_log_has_them() -> None:
    @tool
    async def read() -> str:
        """Read a file that is no text."""
        return "\x01" * 50_000

    model = ScriptedModel([calls("read"), "It is no text."])
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        reply = await Agent("desk", model, tools=[read]).invoke("Read it.", hub=hub)
    told = "The result has 300000 bytes of JSON; the limit is 262144. It should be text without control characters."
    assert (reply.text, model.requests[-1].messages[-1]) == ("It is no text.", ("tool", told))
