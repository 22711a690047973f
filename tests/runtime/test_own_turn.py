"""A tool that would wait for the end of its own turn is told so at once."""

from __future__ import annotations

from antiphon import Agent, Hub, ScriptedModel, TransitionGraph, calls, says, tool
from tests.support.waiting import soon


async def test_a_tool_cannot_put_in_a_word_in_its_own_channel() -> None:
    async with Hub.open("memory:") as hub:
        dana = await hub.register("dana", kind="human")
        held = []

        @tool
        async def shout() -> str:
            """Speak for dana."""
            await held[0].send("Listen!")
            return "said"

        model = ScriptedModel([calls("shout"), says("as you wish")])
        await hub.register(Agent("bob", model=model, tools=[shout]))
        graph = TransitionGraph.sequence(["dana", "bob"])
        held.append(await dana.open(type="workflow", target=["bob"], knobs={"graph": graph.to_dict()}))
        await held[0].send("Begin.")
        assert await soon(held[0].closed()) == "sequence_complete"
        answer = model.requests[1].messages[-1].text
        assert "'dana' cannot interject from inside of a turn of 'bob' here" in answer
