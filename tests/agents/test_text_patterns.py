"""Patterns of texts in types, `msgspec.Meta(pattern=…)`: they are matched without backtracking."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Hub, ScriptedModel, UsageError, tool
from antiphon.agents import type_schemas
from antiphon.agents.call_results import Call, Reply
from antiphon.agents.output_spec import output_spec_of
from antiphon.agents.tool import BadArguments, Tool, bind_arguments
from antiphon.agents.type_schemas import without_patterns
from antiphon.core.linear_regex import is_linear_with_backtracking

Evil = Annotated[str, msgspec.Meta(pattern="^(a|a)*$")]
"""With backtracking, a text of 60 characters takes longer than there is time."""
Short = Annotated[str, msgspec.Meta(pattern="^a+$", max_length=3, description="some a")]
Alias = NewType("Alias", Evil)
LONG = "a" * 60 + "!"


@dataclass
class Line:
    code: Short


class Row(msgspec.Struct):
    codes: dict[str, list[Short]]


class Typed(TypedDict):
    code: Short


class Pair(NamedTuple):
    code: Short


def taking(hint: object) -> Tool:
    """A tool with one parameter of this type."""

    def take(value: Any) -> str:
        return str(value)

    take.__annotations__["value"] = hint
    return tool(take)


def complaint(hint: object, value: object) -> str | None:
    try:
        bind_arguments(taking(hint), {"value": value})
    except BadArguments as error:
        return str(error).removeprefix("The arguments of take do not fit: ").removesuffix(".")
    return None


@pytest.mark.parametrize(
    ("hint", "right", "wrong", "place"),
    [
        (Evil, "aa", LONG, "value: {}"),
        (Alias, "aa", LONG, "value: {}"),
        (Evil | None, None, LONG, "value: {}"),
        (Evil | int, 7, LONG, "value: {}"),
        (list[Evil], ["a", ""], ["a", LONG], "value[1]: {}"),
        (set[Evil], ["a"], [LONG], "value[0]: {}"),
        (frozenset[Evil], ["a"], [LONG], "value[0]: {}"),
        (tuple[int, Evil], [1, "a"], [1, LONG], "value[1]: {}"),
        (tuple[Evil, ...], ["a", "a"], ["a", LONG], "value[1]: {}"),
        (Sequence[Evil], ["a"], [LONG], "value[0]: {}"),
        (dict[str, Evil], {"b": "a"}, {"b": LONG}, "value[...]: {}"),
        (dict[Evil, int], {"a": 1}, {LONG: 1}, "{} - at `key` in `$.value`"),
        (Mapping[str, list[Evil]], {"b": ["a"]}, {"b": [LONG]}, "value[...][0]: {}"),
        (list[dict[str, Evil | None]] | None, [{"b": None}], [{"b": LONG}], "value[0][...]: {}"),
        (Annotated[list[Evil], msgspec.Meta(max_length=2)], ["a"], [LONG], "value[0]: {}"),
    ],
)
def test_a_pathological_pattern_takes_no_time(hint: object, right: object, wrong: object, place: str) -> None:
    assert complaint(hint, right) is None
    assert complaint(hint, wrong) == place.format("Expected `str` matching regex '^(a|a)*$'")


@pytest.mark.parametrize(
    ("hint", "wrong"),
    [
        (Short, "b"),
        (Short, "aaaa"),
        (list[Short], ["a", "b"]),
        (dict[Short, Short], {"a": "b"}),
        (dict[Short, Short], {"b": "a"}),
        (tuple[int, Short] | None, [1, "b"]),
        (Annotated[list[Short], msgspec.Meta(max_length=1)], ["a", "a"]),
        (Line, {"code": "b"}),
        (Row, {"codes": {"x": ["a", "b"]}}),
        (Typed, {"code": "b"}),
        (Pair, ["b"]),
    ],
)
def test_what_is_wrong_is_said_as_msgspec_says_it(hint: object, wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError) as expected:
        msgspec.convert({"value": wrong}, msgspec.defstruct("Take", [("value", hint)]), str_keys=True)
    what, _, place = str(expected.value).rpartition(" - at `$.")
    said = str(complaint(hint, wrong))
    assert said in (f"{place.rstrip('`')}: {what}", str(expected.value))


def test_the_model_is_told_of_the_pattern() -> None:
    assert taking(list[Short]).parameters["properties"] == {
        "value": {
            "type": "array",
            "items": {"type": "string", "pattern": "^a+$", "maxLength": 3, "description": "some a"},
        }
    }


def test_patterns_mean_what_they_mean_in_a_schema() -> None:
    digits = Annotated[str, msgspec.Meta(pattern=r"^\d+$")]
    assert complaint(digits, "12") is None
    assert complaint(digits, "12\n") is not None
    assert complaint(digits, "\u0665") is not None


def test_a_text_that_takes_too_much_work_is_refused_by_name() -> None:
    heavy = Annotated[str, msgspec.Meta(pattern="(a|b)*a(a|b){600}x")]
    noise = "".join(Random(7).choices("ab", k=20_000))
    why = "a text of 20000 characters is too long for the pattern '(a|b)*a(a|b){600}x'"
    assert complaint(list[heavy], [noise]) == f"{why}: matching takes more than 500000 steps"


async def test_the_model_reads_what_is_wrong_with_its_argument() -> None:
    model = ScriptedModel([Reply(calls=(Call("take", {"value": LONG}, "1"),)), "done"])
    async with Hub.open("memory:") as hub:
        await Agent("bob", model, tools=[taking(Evil)]).invoke("go", hub=hub)
    assert "value: Expected `str` matching regex '^(a|a)*$'" in str(model.requests[1].messages[-1])


def test_the_output_of_an_agent() -> None:
    output = output_spec_of(dict[str, list[Evil]], "bob")
    assert output.read('{"x": ["aa"]}') == {"x": ["aa"]}
    assert "[...][1]: Expected `str` matching regex '^(a|a)*$'" in str(output.complaint(f'{{"x": ["a", "{LONG}"]}}'))
    plain = output_spec_of(Evil, "bob")
    assert plain.read('"aa"') == "aa"
    assert "for: Expected `str` matching regex '^(a|a)*$'. Give" in str(plain.complaint(f'"{LONG}"'))


# What is refused where it is declared


@dataclass
class Hidden:
    codes: list[Evil]


class Deeper(msgspec.Struct):
    hidden: Hidden | None = None
    more: list[Deeper] = []


@pytest.mark.parametrize("hint", [Hidden, list[Hidden], Deeper | None, dict[str, Deeper]])
def test_a_pattern_inside_a_class_that_could_take_long_is_refused(hint: object) -> None:
    why = r"the pattern '\^\(a\|a\)\*\$' is inside a class, where it is matched with backtracking"
    with pytest.raises(UsageError, match=rf"the parameter 'value' of take\(\): {why}"):
        taking(hint)
    with pytest.raises(UsageError, match=why):
        output_spec_of(hint, "bob")


def test_a_pattern_that_needs_backtracking_is_refused() -> None:
    ahead = Annotated[str, msgspec.Meta(pattern="a(?=b)")]
    with pytest.raises(UsageError, match=r"the parameter 'value' of take\(\): pattern 'a\(\?=b\)': look-around"):
        taking(ahead)
    with pytest.raises(UsageError, match="look-around"):
        output_spec_of(list[ahead], "bob")


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "a", "^a$", "a?", "[a-z]+", ".*", "^.*$", r"\S", "^(GET|POST|PUT|PATCH)$", "^(foo|foobar)$"),
        *(r"^\d{3}-\d{4}$", r"^\+?[1-9]\d{1,14}$", "^#[0-9a-fA-F]{6}$", r"^v?\d+\.\d+\.\d+(-[a-z]+)?$"),
        *("^[a-z0-9]+(?:-[a-z0-9]+)*$", r"^\w+( \w+)*$", r"^[^@]+@[^@.]+\.[a-z]+$", "^(a|b)*c$", "^[^a]+a$"),
    ],
)
def test_patterns_that_may_stand_in_a_class(pattern: str) -> None:
    assert is_linear_with_backtracking(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("^(a+)+$", "^(a*)*$", "^(a|a)*$", "^(a|ab)*$", "(x+x+)+y", "^.+@.+$", r"^\s*\S", "^a*a*$", "^(a?b?)*$"),
        *("[a-z]+$", "(a|b)*c", "a{1,1000}b", "a?" * 30 + "a" * 30, "^(a{1,9}){1,9}$", "^(.|a)*$"),
        *(r"^(\w+é)+$", r"^(\d+\u0665)+$", r"^(\s+\x1c)+$", r"^([^\w]+é)+$", "^([]a]+])+$", "(?=a)b", r"^(a)\1$", "("),
    ],
)
def test_patterns_that_may_not(pattern: str) -> None:
    """Among them some that Python reads differently: its `\\w` has more letters, and its sets may begin with ]."""
    assert not is_linear_with_backtracking(pattern)


# For any type

TEXTS = st.sampled_from([str, Short, Evil, Alias, int, None])
HINTS = st.recursive(
    TEXTS,
    lambda inner: st.one_of(
        st.builds(lambda part: list[part], inner),
        st.builds(lambda part: tuple[int, part], inner),
        st.builds(lambda part: dict[Short, part], inner),
        st.builds(lambda part: part | bool, inner.filter(lambda part: part is not None)),
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    st.sampled_from(["", "a", "aaaa", "b", 1, None, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(HINTS, VALUES)
def test_what_fits_a_type_is_what_msgspec_says_fits(hint: object, value: object) -> None:
    """The patterns and texts are such that Python's `re` is quick and agrees."""
    try:
        msgspec.convert(value, hint, str_keys=True)
        expected = True
    except msgspec.ValidationError:
        expected = False
    assert (complaint(hint, value) is None) == expected


def test_no_pattern_is_left_in_the_type_that_msgspec_gets() -> None:
    hint = dict[Short, list[tuple[Evil, ...] | Alias | None]]
    left = re.findall("pattern='[^']+'", str(msgspec.inspect.type_info(without_patterns(hint))))
    assert left == []


@pytest.mark.parametrize("large", [list[int], list[int | str | None], dict[str, list[int]]])
def test_a_large_part_without_a_pattern_is_not_looked_into(large: object, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []
    parts_in = type_schemas._parts_in

    def counted(info: object, value: object, place: str) -> Iterator[object]:
        for part in parts_in(info, value, place):
            looked_at.append(part)
            yield part

    monkeypatch.setattr(type_schemas, "_parts_in", counted)
    spec = output_spec_of(tuple[Short, large], "clerk")
    numbers = json.dumps({"n": [1] * 1000} if large == dict[str, list[int]] else [1] * 1000)
    assert spec.complaint(f'["aa", {numbers}]') is None
    assert "matching regex '^a+$'" in (spec.complaint(f'["b", {numbers}]') or "")
    assert len(looked_at) < 10
