"""What makes a function a tool, and what is refused where it is declared."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError

import pytest

from antiphon import UsageError
from antiphon.agents.call_results import NOT_DONE
from antiphon.agents.messages import ToolSpec
from antiphon.agents.tool import Tool, as_tool, tool
from tests.support.stable_ids import stable_repr, stable_str


@tool
async def refund(order: str, cents: int = 0) -> str:
    """Pay money back.

    Args:
        order: Which one.
    """
    return f"{cents} for {order}"


def plain(text: str) -> str:
    """Say it again."""
    return text


def keyed(text: str, idempotency_key: str) -> str:
    return text + idempotency_key


def look(text: str) -> object:
    return NOT_DONE


class Shop:
    def buy(self, what: str) -> str:
        """Buy it."""
        return f"bought {what}"


class Search:
    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, query: str) -> str:
        """Find it."""
        return f"{query} in {self.where}"


def test_a_tool_as_a_model_is_told_of_it() -> None:
    assert refund.spec == ToolSpec(
        "refund",
        "Pay money back.",
        {
            "type": "object",
            "properties": {
                "order": {"type": "string", "description": "Which one."},
                "cents": {"type": "integer", "default": 0},
            },
            "required": ["order"],
            "additionalProperties": False,
        },
    )


async def test_a_tool_is_called_like_its_function() -> None:
    assert await refund("7", cents=5) == "5 for 7"
    assert tool(plain)("hello") == "hello"
    assert inspect.signature(refund) == inspect.signature(refund.function)


def test_what_a_tool_is_without_options() -> None:
    assert isinstance(refund, Tool)
    assert repr(refund) == "<tool refund>"
    assert (refund.return_direct, refund.timeout, refund.idempotency) == (False, 60.0, "natural")
    assert (refund.reconcile, refund.compensate, dict(refund.injected)) == (None, None, {})


def test_a_tool_with_options() -> None:
    @tool(
        name="give-back",
        description="Returns money.",
        return_direct=True,
        timeout=None,
        idempotency="unsafe",
        reconcile=look,
        compensate="charge",
    )
    def made(text: str) -> str:
        """Not this."""
        return text

    assert (made.name, made.description, made.return_direct, made.timeout) == (
        "give-back",
        "Returns money.",
        True,
        None,
    )
    assert (made.idempotency, made.reconcile, made.compensate) == ("unsafe", look, "charge")
    assert made("x") == "x"


@pytest.mark.parametrize("decorate", [tool, tool(), tool(timeout=5)])
def test_ways_to_write_it(decorate: Callable[[object], Tool]) -> None:
    assert decorate(plain).name == "plain"


def test_a_tool_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        refund.name = "other"  # type: ignore[misc]
    assert len({refund, refund, tool(plain)}) == 2


def test_a_plain_function_will_do() -> None:
    assert as_tool(refund) is refund
    assert as_tool(plain).spec == tool(plain).spec
    with pytest.raises(UsageError, match="'plain' is no function"):
        as_tool("plain")  # type: ignore[arg-type]


def named(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "name", "description", "parameter"),
    [
        (Shop().buy, "buy", "Buy it.", "what"),
        (Search("here"), "Search", "Find it.", "query"),
        (functools.partial(plain), "plain", "Say it again.", "text"),
        (named(plain), "plain", "Say it again.", "text"),
        (staticmethod(plain), "plain", "Say it again.", "text"),
    ],
    ids=stable_repr,
)
def test_what_else_is_a_function(function: Callable[..., object], name: str, description: str, parameter: str) -> None:
    made = tool(function)
    assert (made.name, made.description) == (name, description)
    assert made.parameters["properties"] == {parameter: {"type": "string"}}


def test_what_a_partial_presets_is_no_model_s_to_see() -> None:
    def fetch(url: str, token: str, idempotency_key: str) -> None: ...

    made = tool(functools.partial(fetch, token="secret", idempotency_key="k"))
    assert made.parameters["properties"] == {"url": {"type": "string"}}
    assert made.injected == {}


# How often it may be called


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (plain, None, "natural"),
        (keyed, None, "keyed"),
        (plain, "natural", "natural"),
        (plain, "unsafe", "unsafe"),
        (keyed, "keyed", "keyed"),
        (keyed, "natural", "natural"),
        (keyed, "unsafe", "unsafe"),
    ],
)
def test_the_class_of_a_tool(function: Callable[..., object], given: object, expected: str) -> None:
    assert tool(function, idempotency=given).idempotency == expected  # type: ignore[call-overload]


def test_a_key_that_reaches_nobody() -> None:
    with pytest.raises(UsageError, match=r"'plain' is keyed but takes no idempotency_key.*'natural' or 'unsafe'"):
        tool(plain, idempotency="keyed")


@pytest.mark.parametrize("idempotency", [None, "natural", "keyed"])
def test_only_what_is_unsafe_is_looked_up(idempotency: object) -> None:
    with pytest.raises(UsageError, match=f"idempotency={idempotency!r}.*declare idempotency='unsafe'"):
        tool(keyed, idempotency=idempotency, reconcile=look)  # type: ignore[call-overload]


def test_reconcile_takes_what_the_tool_takes() -> None:
    def odd(other: str) -> object: ...

    def nothing() -> object: ...

    def also(text: str, channel: object, idempotency_key: str) -> object: ...

    made = tool(plain, idempotency="unsafe", reconcile=also)
    assert made.reconcile_injected == {"channel": "channel", "idempotency_key": "idempotency_key"}
    with pytest.raises(UsageError, match=r"reconcile of the tool 'plain' takes other; it must take .*: text"):
        tool(plain, idempotency="unsafe", reconcile=odd)
    with pytest.raises(UsageError, match="takes nothing; it must"):
        tool(plain, idempotency="unsafe", reconcile=nothing)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout of a tool is 0; give seconds above 0, or None for no limit"),
        ({"timeout": -1.5}, "timeout of a tool is -1.5; give seconds"),
        ({"timeout": True}, "timeout of a tool is True; give seconds"),
        ({"timeout": "5"}, "timeout of a tool is '5'; give seconds"),
        ({"timeout": float("nan")}, "timeout of a tool is nan; give seconds"),
        ({"timeout": float("inf")}, "timeout of a tool is inf; give seconds"),
        ({"idempotency": "safe"}, "idempotency of a tool is 'safe'; give one of keyed, natural, unsafe"),
        ({"idempotency": ["keyed"]}, "give one of keyed, natural, unsafe"),
        ({"return_direct": "yes"}, "return_direct of a tool is 'yes'; give True or False"),
        ({"name": 5}, "name of a tool is 5; give a text"),
        ({"description": b"x"}, "description of a tool is b'x'; give a text"),
        ({"compensate": look}, "compensate of a tool is <function"),
        ({"approval": "yes"}, "approval of a tool is 'yes'; give True, or a function of the arguments"),
        ({"approvers": "dana", "approval": True}, "approvers of a tool is 'dana'; give a list of names"),
        ({"approvers": ["dana"]}, "has approvers and no approval"),
        ({"once": ["order"]}, "once of the tool 'plain' names 'order'; its parameters are: "),
        ({"once_scope": "world"}, "once_scope of a tool is 'world'; give one of channel, store"),
        ({"volatile": ["nonce"]}, "volatile of the tool 'plain' names 'nonce'"),
        ({"progress_key": 3}, "progress_key of a tool is 3; give a function of the result"),
        ({"poll": 3}, "poll of a tool is 3; give Poll"),
        ({"reconcile": "look"}, "reconcile of a tool is 'look'; give a function"),
        ({"reconcile": Search}, "give a function that takes what the tool takes"),
        ({"retries": 3}, "a tool has no option 'retries'; there are: name, description"),
        ({"name": ""}, "a tool cannot be called ''; give name="),
        ({"name": "a b"}, "a tool cannot be called 'a b'; give name="),
        ({"name": "größe"}, "a tool cannot be called 'größe'"),
        ({"name": "x\n"}, "a tool cannot be called 'x\\n'"),
        ({"name": "x" * 65}, "a tool cannot be called 'xxx"),
    ],
    ids=stable_str,
)
def test_a_wrong_option(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tool(plain, **options)  # type: ignore[call-overload]
    assert message in str(caught.value)


def test_the_longest_name() -> None:
    assert tool(plain, name="x" * 64).name == "x" * 64


def many(*texts: str) -> None: ...


def options(**rest: str) -> None: ...


def first(text: str, /) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (many, "the parameter '*texts' of many(): a model gives arguments by name: take a list instead"),
        (options, "the parameter '**rest' of options(): a model must be told every name: take a dict instead"),
        (first, "the parameter 'text' of first(): a model gives arguments by name: leave out the '/' after it"),
        (Shop.buy, "the parameter 'self' of buy(): no model can give it; use tool(self.buy)"),
        (lambda: 1, "a tool cannot be called '<lambda>'; give name="),
        (yields, "yields() yields; a tool returns one value, such as a list"),
        (yields_later, "yields_later() yields; a tool returns one value"),
        (Shop, "Shop is a class; give a function"),
        (refund, "'refund' is a tool already; give its options where it is declared"),
        ("refund", "'refund' is no function; write @tool above one, options by name: @tool(name=…)"),
        (5, "5 is no function"),
        (dict.fromkeys, "fromkeys()"),
    ],
    ids=stable_str,
)
def test_what_is_no_tool(function: Callable[..., object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tool(function)
    assert message in str(caught.value)


def test_a_lambda_with_a_name() -> None:
    assert tool(lambda: 1, name="one")() == 1
