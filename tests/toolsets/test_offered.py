"""Names that models take, whatever the server calls its tools; and tools with a schema of their own."""

from collections.abc import Sequence
from itertools import permutations

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import ToolSpec, UsageError
from antiphon.agents.tool import TOOL_NAME, BadArguments, bind_arguments, tool_from_schema
from antiphon.toolsets.mapping import ToolSelection, fit_names, map_tools


@pytest.mark.parametrize(
    ("names", "prefix", "expected"),
    [
        (["add", "get-it", "a_1"], "", ["add", "get-it", "a_1"]),
        (["add"], "maths", ["maths_add"]),
        (["files.read", "files/read"], "", ["files_read_601e4eb6", "files_read_2b733164"]),
        (["files.read", "files_read"], "", ["files_read_601e4eb6", "files_read"]),
        (["été"], "", ["_t_"]),
        ([""], "", ["tool_e3b0c442"]),
        (["x" * 64], "", ["x" * 64]),
        (["x" * 65], "", ["x" * 55 + "_9537c5fd"]),
    ],
)
def test_names(names: Sequence[str], prefix: str, expected: Sequence[str]) -> None:
    assert fit_names(names, prefix) == dict(zip(names, expected, strict=True))


@given(
    st.lists(st.text(max_size=70) | st.text("a./_", max_size=4), unique=True, max_size=8), st.sampled_from(["", "p"])
)
def test_names_fit_and_differ_in_any_order(names: list[str], prefix: str) -> None:
    fit = fit_names(names, prefix)
    assert len(set(fit.values())) == len(names)
    assert all(TOOL_NAME.match(name) for name in fit.values())
    assert fit_names(names[::-1], prefix) == fit


def test_a_name_that_looks_like_one_made_fit_is_not_taken_twice() -> None:
    names = ["a.b", "a/b", "a_b", fit_names(["a.b", "a_b"])["a.b"]]
    made = [fit_names(order) for order in permutations(names)]
    assert all(each == made[0] for each in made)
    assert len(set(made[0].values())) == 4


async def nothing(tool: str, arguments: dict[str, object]) -> str:
    return f"{tool} {arguments}"


def offered(name: str, **hints: bool) -> mcp_types.Tool:
    annotations = mcp_types.ToolAnnotations(**hints) if hints else None
    return mcp_types.Tool(name=name, input_schema={"type": "object"}, annotations=annotations)


@pytest.mark.parametrize(
    ("tool", "choice", "expected"),
    [
        (offered("x"), ToolSelection(), "unsafe"),
        (offered("x", destructive_hint=False), ToolSelection(), "unsafe"),
        (offered("x", read_only_hint=True), ToolSelection(), "natural"),
        (offered("x", idempotent_hint=True), ToolSelection(), "natural"),
        (offered("x", read_only_hint=False, idempotent_hint=False), ToolSelection(), "unsafe"),
        (offered("x", read_only_hint=True), ToolSelection(idempotency="unsafe"), "unsafe"),
        (offered("x"), ToolSelection(idempotency="natural"), "natural"),
        (offered("x"), ToolSelection(idempotency={"x": "natural"}), "natural"),
    ],
)
def test_class(tool: mcp_types.Tool, choice: ToolSelection, expected: str) -> None:
    [made] = map_tools([tool], choice, call=nothing, label="the MCP server 'x'")
    assert made.idempotency == expected


def test_choice_and_a_name_twice(caplog: pytest.LogCaptureFixture) -> None:
    offer = [offered("a"), offered("b", read_only_hint=True), offered("b"), offered("c")]
    tools = map_tools(offer, ToolSelection(only=("b", "c"), without=("c",)), call=nothing, label="it")
    assert [(tool.name, tool.idempotency) for tool in tools] == [("b", "natural")]
    assert caplog.messages == ["it offers two tools called 'b'; the first is used"]
    with pytest.raises(UsageError, match="it has no tool 'd'; there are: a, b, c"):
        map_tools(offer, ToolSelection(without=("d",)), call=nothing, label="it")


def test_a_tool_with_a_schema_of_its_own_takes_what_the_model_gives() -> None:
    async def anything(**arguments: object) -> object:
        return arguments

    schema = {"properties": {"a-b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}, "required": ["a-b"]}
    made = tool_from_schema(anything, ToolSpec("any-thing", "It.", schema), idempotency="unsafe", timeout=3)
    assert (made.spec.parameters, made.idempotency, made.timeout) == (schema, "unsafe", 3)
    given = {"a-b": [1], "class": None}
    filled = bind_arguments(made, given)
    assert filled == given
    assert filled["a-b"] is not given["a-b"]
    assert bind_arguments(made, {}) == {}
    with pytest.raises(BadArguments, match="The arguments of any-thing do not fit: they are list"):
        bind_arguments(made, [1])
    with pytest.raises(UsageError, match="cannot be called 'any thing'"):
        tool_from_schema(anything, ToolSpec("any thing", "", {}), idempotency="unsafe", timeout=None)
