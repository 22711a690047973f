"""What an agent is, and what is refused when it is declared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace

import pytest

from antiphon import (
    Agent,
    BadName,
    FullTranscript,
    Limits,
    Message,
    NamedTranscript,
    NamedWindowedSummary,
    Reply,
    Request,
    ScriptedModel,
    UsageError,
    WindowedSummary,
    says,
    tool,
)
from tests.support.stable_ids import stable_repr


async def model(request: Request) -> Reply:
    return says("So.")


def look(at: int) -> str:
    """Look at something."""
    return f"{at}"


@tool(name="look")
def watch(at: str) -> str:
    """Look at something else."""
    return at


@tool
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def prompt(messages: Sequence[Message]) -> str:
    return f"There are {len(messages)} messages."


def test_an_agent_is_what_it_was_given() -> None:
    agent = Agent("ada", model, "Be kind.", [look, pay], WindowedSummary(20), Limits(model_calls=3))
    assert (agent.name, agent.model, agent.system_prompt) == ("ada", model, "Be kind.")
    assert (agent.memory, agent.limits) == (WindowedSummary(20), Limits(model_calls=3, model_seconds=120))
    assert [each.name for each in agent.toolbox] == ["look", "pay"]
    assert agent.toolbox[1] is pay
    assert [(each.name, each.description) for each in agent.specs] == [
        ("look", "Look at something."),
        ("pay", "Pay an amount."),
    ]
    assert agent.team.lead.specs[:2] == agent.specs


def test_an_agent_needs_a_name_and_a_model() -> None:
    agent = Agent("ada", model)
    assert (agent.system_prompt, agent.tools, agent.memory, agent.limits) == ("", (), None, Limits())
    assert (agent.toolbox, agent.specs) == ((), ())
    assert agent.team.lead.declaration is agent
    assert (Limits().model_calls, Limits().model_seconds, Limits().model_attempts) == (25, 120.0, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ScriptedModel(["Hello."])},
        {"system_prompt": prompt},
        {"tools": (look,)},
        {"memory": FullTranscript()},
        {"memory": NamedTranscript()},
        {"memory": NamedWindowedSummary(0)},
        {"limits": Limits(model_calls=1, model_seconds=None)},
        {"limits": Limits(model_seconds=0.5)},
        {"limits": Limits(model_seconds=1)},
        {"limits": Limits(model_attempts=1)},
    ],
    ids=stable_repr,
)
def test_what_an_agent_may_be(options: dict[str, object]) -> None:
    agent = Agent(**{"name": "ada", "model": model, **options})
    assert agent.name == "ada"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, ["''", "use 1 to 48 of A-Z a-z 0-9 _ - and begin with a letter or digit"]),
        ({"name": "ada lovelace"}, ["'ada lovelace' is no name", "use 1 to 48"]),
        ({"name": "-ada"}, ["'-ada' is no name"]),
        ({"name": "a" * 49}, ["is no name", "use 1 to 48"]),
        ({"name": 7}, ["7 is no name"]),
        ({"name": None}, ["None is no name"]),
        ({"name": "hub"}, ["'hub'", "taken"]),
        ({"name": "Human"}, ["'Human'", "taken"]),
        ({"model": None}, ["'ada'", "None", "give a model, or an async function of the request"]),
        ({"model": "gpt-9"}, ["'ada'", "'gpt-9'", "openai:"]),
        ({"model": 7}, ["'ada'", "7", "says(…) or calls(…)"]),
        ({"system_prompt": None}, ["system_prompt of 'ada' is None", "give a text, or a function of the messages"]),
        ({"system_prompt": ["Be kind."]}, ["system_prompt of 'ada' is ['Be kind.']", "give a text"]),
        ({"tools": look}, ["tools of 'ada' is <function look", "give a list of functions"]),
        ({"tools": "look"}, ["tools of 'ada' is 'look'", "give a list of functions"]),
        ({"tools": None}, ["tools of 'ada' is None", "give a list of functions"]),
        ({"tools": {look}}, ["tools of 'ada' is {", "give a list of functions"]),
        ({"tools": [look, "pay"]}, ["'pay'"]),
        ({"tools": [look, watch]}, ["'ada' has two tools called 'look'", "give one of them another name"]),
        ({"tools": [pay, look, pay]}, ["'ada' has two tools called 'pay'", "another name"]),
        ({"memory": 20}, ["memory of 'ada' is 20", "give a view such as WindowedSummary(20)"]),
        ({"memory": "all"}, ["memory of 'ada' is 'all'", "WindowedSummary(20)"]),
        ({"limits": 3}, ["limits of 'ada' is 3", "give Limits(…)"]),
        ({"limits": {"model_calls": 3}}, ["limits of 'ada' is {'model_calls': 3}", "give Limits(…)"]),
        ({"limits": None}, ["limits of 'ada' is None", "give Limits(…)"]),
    ],
    ids=stable_repr,
)
def test_what_an_agent_may_not_be(options: dict[str, object], told: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        Agent(**{"name": "ada", "model": model, **options})
    assert isinstance(refused.value, BadName) == ("name" in options)
    for words in told:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model_calls": 0}, ["model_calls is 0", "give a number of calls, 1 or more"]),
        ({"model_calls": -1}, ["model_calls is -1", "1 or more"]),
        ({"model_calls": 2.0}, ["model_calls is 2.0", "1 or more"]),
        ({"model_calls": True}, ["model_calls is True", "1 or more"]),
        ({"model_calls": "3"}, ["model_calls is '3'", "1 or more"]),
        ({"model_calls": None}, ["model_calls is None", "1 or more"]),
        ({"model_attempts": 0}, ["model_attempts is 0", "give a number of attempts, 1 or more"]),
        ({"model_attempts": True}, ["model_attempts is True", "1 or more"]),
        ({"model_attempts": 2.0}, ["model_attempts is 2.0", "1 or more"]),
        ({"model_attempts": None}, ["model_attempts is None", "1 or more"]),
        ({"model_seconds": 0}, ["model_seconds is 0", "give seconds above 0, or None for no limit"]),
        ({"model_seconds": -1.5}, ["model_seconds is -1.5", "above 0"]),
        ({"model_seconds": float("nan")}, ["model_seconds is nan", "above 0"]),
        ({"model_seconds": True}, ["model_seconds is True", "above 0"]),
        ({"model_seconds": "60"}, ["model_seconds is '60'", "above 0"]),
    ],
    ids=repr,
)
def test_what_limits_may_not_be(options: dict[str, object], told: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        Limits(**options)
    for words in told:
        assert words in str(refused.value)


@pytest.mark.parametrize("field", ["name", "model", "system_prompt", "tools", "memory", "limits"])
def test_an_agent_does_not_change(field: str) -> None:
    agent = Agent("ada", model)
    with pytest.raises(FrozenInstanceError):
        setattr(agent, field, getattr(agent, field))


def test_limits_do_not_change() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Limits().model_calls = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(3)  # type: ignore[misc]


def test_a_list_of_tools_that_changes_later_changes_nothing() -> None:
    tools: list[object] = [pay]
    agent = Agent("ada", model, tools=tools)
    tools.append(look)
    assert [each.name for each in agent.toolbox] == ["pay"]


def test_equal_declarations_are_equal() -> None:
    def declared(**options: object) -> Agent:
        return Agent(**{"name": "ada", "model": model, "tools": [pay], "memory": WindowedSummary(2), **options})

    assert declared() == declared()
    assert hash(declared()) == hash(declared())
    others: list[dict[str, object]] = [
        {"name": "bob"},
        {"model": ScriptedModel(["Hello."])},
        {"system_prompt": "Be kind."},
        {"tools": []},
        {"tools": [pay, look]},
        {"memory": WindowedSummary(3)},
        {"limits": Limits(model_calls=3)},
    ]
    for options in others:
        assert declared(**options) != declared()


def test_an_agent_like_another() -> None:
    agent = Agent("ada", model, tools=[look])
    twin = replace(agent, name="bob")
    assert (twin.name, twin.tools) == ("bob", agent.tools)
    with pytest.raises(BadName):
        replace(agent, name="hub")
