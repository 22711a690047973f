"""Answers that are cut off because the model was not allowed more tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon import Agent, Call, FinalStateEvent, Hub, Reply, Request, ScriptedModel, calls, tool
from antiphon.agents.loop import TurnResult
from antiphon.agents.progress import TURN_STOP_REASONS
from antiphon.testing import ManualClock
from tests.agents.played_turn import play
from tests.support.waiting import soon

LOOK = Call("look", {"at": 7}, "c1")


@tool
def look(at: int) -> str:
    """Look."""
    return "a cat"


def shaped(output: object = None) -> Agent:
    return Agent("ann", ScriptedModel([]), tools=[look], output=output)


def silent() -> Agent:
    """An agent whose model is told of no tools."""

    async def model(request: Request) -> Reply:
        return Reply()

    model.calls_tools = False  # type: ignore[attr-defined]  # as a model says it
    return Agent("ann", model, tools=[look])


@pytest.mark.parametrize(
    ("agent", "reply", "said"),
    [
        (shaped, Reply("There is a", cut=True), TurnResult("There is a", "max_tokens")),
        (shaped, Reply("", cut=True), TurnResult("", "max_tokens")),
        (silent, Reply("There is a", (LOOK,), cut=True), TurnResult("There is a", "max_tokens")),
        (lambda: shaped(list[int]), Reply("[1, 2", cut=True), TurnResult("[1, 2", "max_tokens")),
        (lambda: shaped(list[int]), Reply("[1, 2]", cut=True), TurnResult("[1, 2]")),
    ],
)
def test_an_answer_that_is_cut_is_a_partial_one(agent: Callable[[], Agent], reply: Reply, said: TurnResult) -> None:
    assert "max_tokens" in TURN_STOP_REASONS
    assert play(agent(), reply).said == said


def test_calls_that_are_whole_are_made_though_the_words_are_cut() -> None:
    played = play(shaped(), Reply("Let me", (LOOK,), cut=True), Reply("A cat."))
    assert played.trace == ["enter ann", "ask ann", "look", "ask ann"]
    assert played.said == TurnResult("A cat.", tools=("look",))


def test_a_repair_that_is_cut_is_stopped_for_that() -> None:
    assert play(shaped(int), Reply("x"), Reply("se", cut=True)).said == TurnResult("se", "max_tokens")


async def test_whoever_asks_gets_what_there_is_and_is_told() -> None:
    async def model(request: Request) -> Reply:
        return Reply("[1, 2", cut=True) if request.exchange else calls("look", {"at": 7})

    bob = Agent("bob", model, tools=[look], output=list[int])
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        reply = await soon(bob.invoke("go", hub=hub))
        assert (reply.text, reply.stopped, reply.output) == ("[1, 2", "max_tokens", None)
        said = (await hub.log(reply.channel_id))[-1]
        assert said.event_data == {"text": "[1, 2", "stopped": "max_tokens"}
        final = [event async for event in bob.stream_invoke("go", hub=hub)][-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, final.stopped) == ("[1, 2", "max_tokens")
