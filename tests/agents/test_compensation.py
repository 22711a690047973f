"""Compensations by name: where they are found, and what they are called with."""

from __future__ import annotations

import pytest

from antiphon import Agent, ScriptedModel, TurnChannel, UsageError, register_compensation, tool
from antiphon.agents.compensation import compensation_arguments, find_compensation
from antiphon.agents.tool import BadArguments, as_tool


@tool
async def undo(order: str) -> str:
    """Of the agent's own tools."""
    return "own"


@tool(name="undo")
async def given(order: str) -> str:
    """Given with the tool."""
    return "given"


def agent(name: str, *tools: object) -> Agent:
    return Agent(name, model=ScriptedModel([]), tools=list(tools))


@tool(compensate=given)
async def do(order: str) -> str:
    return order


@tool(compensate="undo")
async def do_by_name(order: str) -> str:
    return order


def test_the_nearest_compensation_of_a_name_counts() -> None:
    bob, bea = agent("bob", do, undo), agent("bea", do_by_name)
    agents = {"bob": bob, "bea": bea}
    assert find_compensation(agents, "undo", speaker="bob", tool="do") is given
    assert find_compensation(agents, "undo", speaker="bob", tool="another") is undo
    assert find_compensation(agents, "undo", speaker="bea", tool="do_by_name") is undo
    assert find_compensation({"bea": bea}, "undo", speaker="bea", tool="do_by_name") is None


def test_a_registered_compensation_is_the_last_that_is_looked_for() -> None:
    @register_compensation(name="tests_registered")
    def takes_back(order: str) -> None:
        """Take it back."""

    found = find_compensation({}, "tests_registered", speaker="bob", tool="do")
    assert found is not None
    assert found.function is takes_back
    assert register_compensation(undo) is undo
    assert find_compensation({}, "undo", speaker="bob", tool="do") is undo


def test_a_name_stands_for_one_compensation_and_none_takes_a_channel() -> None:
    @register_compensation(name="tests_taken")
    def one(order: str) -> None: ...

    with pytest.raises(UsageError, match="a compensation 'tests_taken' is registered already"):

        @register_compensation(name="tests_taken")
        def another(order: str) -> None: ...

    with pytest.raises(UsageError, match="the compensation 'in_channel' takes a channel"):

        @register_compensation
        def in_channel(order: str, channel: TurnChannel) -> None: ...


def test_it_gets_the_arguments_of_its_parameters_and_the_result() -> None:
    def take_back(order: str, cents: int = 0) -> None: ...
    def with_text(order: str, result: str) -> None: ...
    def with_value(order: str, result: dict[str, int]) -> None: ...
    def with_more(order: str, reason: str) -> None: ...

    args = {"order": "7", "cents": 5, "note": "x"}
    assert compensation_arguments(as_tool(take_back), args, "paid") == {"order": "7", "cents": 5}
    assert compensation_arguments(as_tool(with_text), args, "paid") == {"order": "7", "result": "paid"}
    assert compensation_arguments(as_tool(with_value), args, '{"id": 3}') == {"order": "7", "result": {"id": 3}}
    with pytest.raises(BadArguments, match="reason is missing"):
        compensation_arguments(as_tool(with_more), args, "paid")
    with pytest.raises(BadArguments, match="not recorded any more"):
        compensation_arguments(as_tool(take_back), None, "")
