"""One turn of an agent, played from a list of results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Finish, Handoff, Limits, ScriptedModel, tool
from antiphon.agents.call_results import Call, Reply, ToolResult, Usage
from antiphon.agents.default_tools import OPTIONAL_DEFAULTS
from antiphon.agents.loop import TurnGenerator, TurnResult, drive, take_turn
from antiphon.agents.messages import Answered, Asked, Request, TurnExchange, says
from antiphon.agents.progress import (
    AskModel,
    CallTool,
    Effect,
    EffectResult,
    PreparedPrompt,
    PreparePrompt,
    Progress,
    SettledHandoffs,
)
from antiphon.agents.team import settle_handoffs
from antiphon.core.views import Message


class Way(NamedTuple):
    """How a turn is taken."""

    direct: frozenset[str] = frozenset()
    """The tools whose result is the answer."""
    most: int = 25
    refusal: Callable[[Handoff], str | None] = lambda handoff: None


def agent_of(way: Way) -> Agent:
    def anything() -> None: ...

    tools = [tool(anything, name=name, return_direct=name in way.direct) for name in ("look", "pay", "pass", "quit")]
    return Agent("ann", ScriptedModel([]), tools=tools, limits=Limits(model_calls=way.most), without=OPTIONAL_DEFAULTS)


PLAIN = Way()
HISTORY = [Message("user", "What is there?")]
ENTERED = PreparedPrompt("Be kind.", HISTORY, "p")
ASK = Request("Be kind.", HISTORY, specs=agent_of(PLAIN).team.lead.specs, past="p")
ANN = ("ann",)
LOOK, PAY, PASS, QUIT = (
    Call("look", {"at": 7}, "c1"),
    Call("pay", {}, "c2"),
    Call("pass", {}, "c3"),
    Call("quit", {}, "c4"),
)
TO_BOB = ToolResult("Handed off to bob.", handoff=Handoff("bob", "contract", "Bob, please."))
TO_CAROL = ToolResult("Handed off to carol.", handoff=Handoff("carol"))
DONE = ToolResult("Finished: done.", finish=Finish("done"))


class Played(NamedTuple):
    wanted: list[Effect]
    said: TurnResult | None
    """None if the results did not suffice."""


def begun(way: Way) -> tuple[TurnGenerator, Effect]:
    """A turn that has entered, and what it wants first."""
    turn = take_turn(agent_of(way).team, Progress(ANN))
    assert next(turn) == PreparePrompt(0, ANN)
    return turn, turn.send(ENTERED)


def settled(result: EffectResult | tuple[ToolResult, ...], way: Way) -> EffectResult:
    """What a driver sends: of the results of tools, with at most one handoff left."""
    if not isinstance(result, tuple):
        return result
    return settle_handoffs(agent_of(way).team, ANN, result, hops=0, refusal=way.refusal)


def played(results: Sequence[EffectResult | tuple[ToolResult, ...]], way: Way = PLAIN) -> Played:
    """What a turn wants, one after the other, when it is given these results, and what it comes to."""
    turn, first = begun(way)
    wanted = [first]
    try:
        for result in results:
            wanted.append(turn.send(settled(result, way)))
    except StopIteration as end:
        assert len(wanted) == len(results), "it ended before it was given everything"
        return Played(wanted, end.value)
    return Played(wanted, None)


def asks(*calls: Call, text: str = "") -> Reply:
    return Reply(text, calls)


def exchanged(played: Played, place: int) -> TurnExchange:
    """What the model was shown of this turn when it was asked, at this place among all that was wanted."""
    wanted = played.wanted[place]
    assert isinstance(wanted, AskModel)
    return wanted.request.exchange


def test_a_plain_answer() -> None:
    assert played([says("A cat.")]) == Played([AskModel(0, ASK, ANN)], TurnResult("A cat."))


def test_a_round_of_tools() -> None:
    wanted, said = played([asks(LOOK, text="Wait."), (ToolResult("a cat"),), says("A cat.")])
    again = Request(
        "Be kind.",
        [Message("user", "What is there?")],
        (Asked("Wait.", (LOOK,)), Answered(LOOK, "a cat")),
        ASK.specs,
        "p",
        position=1,
    )
    assert wanted == [AskModel(0, ASK, ANN), (CallTool(1, LOOK, ANN),), AskModel(2, again, ANN)]
    assert said == TurnResult("A cat.", tools=("look",))


def test_tools_of_one_message_may_be_called_at_once() -> None:
    wanted, said = played(
        [asks(LOOK, PAY, LOOK), (ToolResult("a cat"), ToolResult("paid"), ToolResult("a dog")), says("So.")]
    )
    assert wanted[1] == (CallTool(1, LOOK, ANN), CallTool(2, PAY, ANN), CallTool(3, LOOK, ANN))
    assert said == TurnResult("So.", tools=("look", "pay", "look"))


def test_positions_go_on_over_all_rounds() -> None:
    one, two = (ToolResult("x"),), (ToolResult("y"), ToolResult("z"))
    wanted, _ = played([asks(LOOK), one, asks(PAY, LOOK), two, asks(PAY), one, says("So.")])
    positions = [[each.index for each in step] if isinstance(step, tuple) else step.index for step in wanted]
    assert positions == [0, [1], 2, [3, 4], 5, [6], 7]


def test_every_call_is_answered_in_the_next_request() -> None:
    results = (ToolResult("a cat"), ToolResult("No money.", failed=True))
    play = played([asks(LOOK, PAY), results, asks(PAY, text="Hm."), (ToolResult("paid"),), says("So.")])
    first = (Asked("", (LOOK, PAY)), Answered(LOOK, "a cat"), Answered(PAY, "No money.", True))
    assert exchanged(play, 0) == ()
    assert exchanged(play, 2) == first
    assert exchanged(play, 4) == (*first, Asked("Hm.", (PAY,)), Answered(PAY, "paid"))
    assert [each.call.call_id for each in exchanged(play, 4) if isinstance(each, Answered)] == ["c1", "c2", "c2"]


# Results that are the answer


@pytest.mark.parametrize(
    ("calls", "results", "text"),
    [
        ((LOOK,), (ToolResult("a cat"),), "a cat"),
        ((LOOK, LOOK), (ToolResult("a cat"), ToolResult("a dog")), "a cat\n\na dog"),
        ((LOOK,), (ToolResult(""),), ""),
    ],
)
def test_a_direct_result_is_the_answer(calls: tuple[Call, ...], results: tuple[ToolResult, ...], text: str) -> None:
    way = Way(direct=frozenset({"look"}))
    worked = tuple(call.name for call, result in zip(calls, results, strict=True) if not result.failed)
    assert played([asks(*calls, text="Wait."), results], way).said == TurnResult(text, tools=worked)


@pytest.mark.parametrize(
    ("call", "result"),
    [(LOOK, ToolResult("It is dark.", failed=True)), (PAY, ToolResult("paid"))],
)
def test_the_model_is_asked_again_after_a_direct_tool_that_failed_or_another(call: Call, result: ToolResult) -> None:
    way = Way(direct=frozenset({"look"}))
    play = played([asks(call), (result,), says("So.")], way)
    assert play.said == TurnResult("So.", tools=() if result.failed else (call.name,))
    assert exchanged(play, 2)[-1] == Answered(call, result.text, result.failed)


# Where the turn goes


def refusing(*targets: str) -> Way:
    return Way(refusal=lambda handoff: f"No {handoff.target} here." if handoff.target in targets else None)


@pytest.mark.parametrize(
    ("text", "result", "answer"),
    [
        ("", TO_BOB, "Bob, please."),
        ("This is for Bob.", TO_BOB, "This is for Bob."),
        ("", TO_CAROL, ""),
    ],
)
def test_a_handoff_ends_the_turn(text: str, result: ToolResult, answer: str) -> None:
    assert played([asks(PASS, text=text), (result,)]).said == TurnResult(
        answer, handoff=result.handoff, tools=("pass",)
    )


@pytest.mark.parametrize(
    ("way", "results", "target"),
    [
        (PLAIN, (TO_BOB, TO_CAROL), "bob"),
        (PLAIN, (TO_CAROL, TO_BOB), "carol"),
        (refusing("bob"), (TO_BOB, TO_CAROL), "carol"),
        (refusing("carol"), (TO_BOB, TO_CAROL), "bob"),
    ],
)
def test_the_first_handoff_that_is_possible_wins(way: Way, results: tuple[ToolResult, ...], target: str) -> None:
    said = played([asks(PASS, PASS), results], way).said
    assert said is not None
    assert said.handoff is not None
    assert said.handoff.target == target


def test_who_hands_off_to_nobody_is_told_and_goes_on() -> None:
    play = played([asks(PASS, LOOK), (TO_BOB, ToolResult("a cat")), says("So.")], refusing("bob"))
    assert exchanged(play, 2) == (
        Asked("", (PASS, LOOK)),
        Answered(PASS, "No bob here.", True),
        Answered(LOOK, "a cat"),
    )
    assert play.said == TurnResult("So.", tools=("pass", "look"))


def test_every_refused_handoff_is_told_why() -> None:
    play = played([asks(PASS, PASS), (TO_BOB, TO_CAROL), says("So.")], refusing("bob", "carol"))
    assert [each.text for each in exchanged(play, 2)] == ["", "No bob here.", "No carol here."]


def test_what_is_called_beside_a_handoff_is_called_all_the_same() -> None:
    wanted, said = played([asks(PASS, LOOK), (TO_BOB, ToolResult("a cat"))])
    assert wanted[1] == (CallTool(1, PASS, ANN), CallTool(2, LOOK, ANN))
    assert said == TurnResult("Bob, please.", handoff=TO_BOB.handoff, tools=("pass", "look"))


@pytest.mark.parametrize("results", [(TO_BOB, DONE), (DONE, TO_BOB)])
def test_to_finish_wins_over_a_handoff(results: tuple[ToolResult, ...]) -> None:
    said = played([asks(PASS, QUIT), results]).said
    assert said == TurnResult("done", finish="done", tools=("pass", "quit"))


def test_to_finish_with_words_keeps_them() -> None:
    said = played([asks(QUIT, text="That is all."), (DONE,)]).said
    assert said == TurnResult("That is all.", finish="done", tools=("quit",))


@pytest.mark.parametrize("routed", [TO_BOB, DONE])
def test_where_the_turn_goes_wins_over_a_direct_result(routed: ToolResult) -> None:
    said = played([asks(LOOK, PASS), (ToolResult("a cat"), routed)], Way(direct=frozenset({"look"}))).said
    assert said is not None
    assert said.text != "a cat"
    assert (said.handoff is None) != (said.finish is None)


# Limits


def test_an_empty_reply_stops_the_turn() -> None:
    assert played([says("")]).said == TurnResult("", "empty_reply")
    after_tools = played([asks(LOOK, text="Wait."), (ToolResult("a cat"),), says("")])
    assert after_tools.said == TurnResult("", "empty_reply", tools=("look",))


@pytest.mark.parametrize(
    ("texts", "partial"),
    [(["One.", "Two."], "Two."), (["One.", ""], "One."), (["", ""], "")],
)
def test_a_turn_asks_its_model_only_so_often(texts: list[str], partial: str) -> None:
    results: list[EffectResult] = []
    for text in texts:
        results += [asks(LOOK, text=text), (ToolResult("a cat"),)]
    wanted, said = played(results, Way(most=2))
    assert [isinstance(each, AskModel) for each in wanted] == [True, False, True, False]
    assert said == TurnResult(partial, "max_model_calls", tools=("look", "look"))


def test_the_last_answer_a_turn_may_ask_for_counts() -> None:
    assert played([asks(LOOK), (ToolResult("a cat"),), says("So.")], Way(most=2)).said == TurnResult(
        "So.", tools=("look",)
    )


@pytest.mark.parametrize(
    ("results", "usage"),
    [
        ([Reply("So.", usage=Usage(3, 1))], Usage(3, 1)),
        ([Reply("", (LOOK,), Usage(3, 1)), (ToolResult("x"),), Reply("So.", usage=Usage(10, 20))], Usage(13, 21)),
        ([Reply("", (LOOK,), Usage(3, 1)), (TO_BOB,)], Usage(3, 1)),
        ([Reply("", (LOOK,), Usage(3, 1)), (DONE,)], Usage(3, 1)),
        (
            [Reply("", (LOOK,), Usage(3, 1)), (ToolResult("x"),), Reply("", (LOOK,), Usage(4)), (ToolResult("x"),)],
            Usage(7, 1),
        ),
    ],
)
def test_what_was_consumed_is_summed(results: list[EffectResult], usage: Usage) -> None:
    said = played(results, Way(most=2)).said
    assert said is not None
    assert said.usage == usage


# Driven


async def test_a_turn_is_driven_to_its_end() -> None:
    cat = SettledHandoffs((ToolResult("a cat"),))
    results: Iterator[EffectResult] = iter([ENTERED, asks(LOOK), cat, says("A cat.")])
    seen: list[Effect] = []

    async def perform(wanted: Effect) -> EffectResult:
        seen.append(wanted)
        return next(results)

    turn = take_turn(agent_of(PLAIN).team, Progress(ANN))
    assert await drive(turn, perform) == TurnResult("A cat.", tools=("look",))
    assert seen[0] == PreparePrompt(0, ANN)
    assert seen[1:] == played([asks(LOOK), (ToolResult("a cat"),), says("A cat.")]).wanted


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError(), asyncio.CancelledError()])
async def test_what_goes_wrong_in_a_call_ends_the_drive(error: BaseException) -> None:
    performed = 0

    async def perform(wanted: Effect) -> EffectResult:
        nonlocal performed
        performed += 1
        if isinstance(wanted, tuple):
            raise error
        return ENTERED if isinstance(wanted, PreparePrompt) else asks(LOOK)

    with pytest.raises(type(error)) as raised:
        await drive(take_turn(agent_of(PLAIN).team, Progress(ANN)), perform)
    assert raised.value is error
    assert performed == 3


# Laws

tools = st.sampled_from([LOOK, PAY, PASS, QUIT])
outcomes = st.sampled_from(
    [ToolResult("a cat"), ToolResult(""), ToolResult("dark", failed=True), TO_BOB, TO_CAROL, DONE]
)
rounds = st.lists(st.tuples(st.sampled_from(["", "Hm."]), st.lists(st.tuples(tools, outcomes), max_size=3)), max_size=5)
ways = st.builds(
    lambda direct, most, no: Way(frozenset(direct), most, refusing(*no).refusal),
    st.sets(st.sampled_from(["look", "pay"])),
    st.integers(1, 4),
    st.sets(st.sampled_from(["bob", "carol"])),
)


def followed(script: list[tuple[str, list[tuple[Call, ToolResult]]]], way: Way) -> Played:
    """A turn that is given these rounds for as long as it goes on, and a last word if it still does."""
    turn, first = begun(way)
    wanted = [first]
    try:
        for text, pairs in [*script, ("So.", [])]:
            wanted.append(turn.send(Reply(text, tuple(call for call, _ in pairs))))
            wanted.append(turn.send(settled(tuple(result for _, result in pairs), PLAIN)))
    except StopIteration as end:
        return Played(wanted, end.value)
    raise AssertionError("a turn goes on after its last word")


@given(rounds, ways)
def test_the_same_results_lead_to_the_same_turn(
    script: list[tuple[str, list[tuple[Call, ToolResult]]]], way: Way
) -> None:
    one, two = followed(script, way), followed(script, way)
    assert one == two
    positions = [
        index
        for step in one.wanted
        for index in ([each.index for each in step] if isinstance(step, tuple) else [step.index])
    ]
    assert positions == list(range(len(positions)))
    asked = [step for step in one.wanted if isinstance(step, AskModel)]
    assert 1 <= len(asked) <= way.most
    for step in asked:
        _check_answered(step.request.exchange)


def _check_answered(exchange: TurnExchange) -> None:
    """What the model asked for is answered, call by call, before it is asked again."""
    wanted: list[Call] = []
    for each in exchange:
        if isinstance(each, Asked):
            assert wanted == []
            wanted = list(each.calls)
        elif isinstance(each, Answered):
            assert wanted.pop(0) == each.call
    assert wanted == []
