"""What makes two calls, or two texts, the same."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.canonical import call_key, canonical_json, normalized_text
from antiphon.core.codec import Malformed
from tests.support.json_strategies import json_values

E_COMPOSED, E_DECOMPOSED = "caf\u00e9", "cafe\u0301"

SAME = [
    pytest.param({"q": "x", "n": 1}, {"n": 1, "q": "x"}, id="order of names"),
    pytest.param({"n": 1}, {"n": 1.0}, id="1 is 1.0"),
    pytest.param(json.loads('{"n": 1e0}'), {"n": 1}, id="1e0 is 1"),
    pytest.param({"n": -0.0}, {"n": 0}, id="-0 is 0"),
    pytest.param({"n": 1e20}, {"n": 10**20}, id="a double above what doubles count"),
    pytest.param({"n": 2**60}, {"n": str(2**60)}, id="a large integer is its digits"),
    pytest.param({"q": E_COMPOSED}, {"q": E_DECOMPOSED}, id="composed characters"),
    pytest.param({E_COMPOSED: 1}, {E_DECOMPOSED: 1}, id="composed names"),
    pytest.param({"q": "x", "limit": None}, {"q": "x"}, id="null is left out"),
    pytest.param({"q": "x", "limit": 10}, {"q": "x"}, id="the default is left out"),
    pytest.param({"q": "x", "limit": 10.0}, {"q": "x", "limit": None}, id="the default as another number"),
    pytest.param({"q": "x", "why": "first"}, {"q": "x", "why": "second"}, id="volatile"),
    pytest.param({"tags": ["b", "a", "a"]}, {"tags": ["a", "b", "a"]}, id="unordered"),
    pytest.param({"o": {"b": [1], "a": 2}}, {"o": {"a": 2.0, "b": [1.0]}}, id="nested"),
]
DIFFERENT = [
    pytest.param({"n": 1}, {"n": True}, id="true is not 1"),
    pytest.param({"n": 0}, {"n": False}, id="false is not 0"),
    pytest.param({"n": 1}, {"n": "1"}, id="a text is no number"),
    pytest.param({"n": 2**53}, {"n": 2**53 + 1}, id="neighbours that one double stands for"),
    pytest.param({"n": 0.1}, {"n": 0.1 + 1e-17 + 2e-17}, id="neighbouring doubles"),
    pytest.param({"q": "Paris"}, {"q": "paris"}, id="case"),
    pytest.param({"q": "a b"}, {"q": "a  b"}, id="white space"),
    pytest.param({"q": "\uff11"}, {"q": "1"}, id="width"),
    pytest.param({"rows": ["b", "a"]}, {"rows": ["a", "b"]}, id="order of a list"),
    pytest.param({"tags": ["a"]}, {"tags": ["a", "a"]}, id="how often something is in an unordered list"),
    pytest.param({"o": {"a": None}}, {"o": {}}, id="null within a value"),
    pytest.param({"limit": 0}, {}, id="0 is no default"),
    pytest.param({"q": ""}, {}, id="an empty text is not left out"),
    pytest.param({"q": []}, {"q": {}}, id="an empty list is no object"),
]


def key(args: dict[str, object], tool: str = "search") -> str:
    return call_key(tool, args, volatile=("why",), unordered=("tags",), defaults={"limit": 10})


@pytest.mark.parametrize(("one", "other"), SAME)
def test_calls_that_are_the_same(one: dict[str, object], other: dict[str, object]) -> None:
    assert key(one) == key(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_calls_that_differ(one: dict[str, object], other: dict[str, object]) -> None:
    assert key(one) != key(other)


def test_the_tool_counts() -> None:
    assert key({"q": "x"}) != key({"q": "x"}, tool="look_up")
    assert len(key({})) == 64


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (1.25e-10, "1.25e-10"),
        (0.1, "0.1"),
        (-333333333.3333333, "-333333333.3333333"),
        (4.5, "4.5"),
        (2e-3, "0.002"),
        (5e-324, "5e-324"),
        (2**53 - 1, "9007199254740991"),
        (-(2**53), '"-9007199254740992"'),
        ('€$\x0f\nA\'B"\\\\"/', r'''"€$\u000f\nA'B\"\\\\\"/"'''),
        ("\x7f\u2028", '"\x7f\u2028"'),
        ({"\u20ac": 1, "\r": 2, "\uff21": 3, "1": 4, "\U0001f600": 5, "\x80": 6}, None),
        ([None, True, False, [], {}], "[null,true,false,[],{}]"),
    ],
)
def test_the_form_of_values(value: object, written: str | None) -> None:
    if written is None:  # the order of the names is that of UTF-16
        assert list(json.loads(canonical_json(value)).values()) == [2, 4, 6, 1, 5, 3]
    else:
        assert canonical_json(value) == written


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", {1: 2}, "\ud800", {"\ud800": 1}, "\x00"])
def test_what_is_no_json_has_no_form(value: object) -> None:
    with pytest.raises(Malformed):
        canonical_json(value)
    with pytest.raises(Malformed):
        call_key("search", {"q": value})


def test_arguments_have_a_depth() -> None:
    deep: object = []
    for _ in range(64):
        deep = [deep]
    canonical_json(deep)
    with pytest.raises(Malformed):
        canonical_json([deep])


def shuffled(value: object) -> object:
    """The same value with the names of its objects the other way round, and whole numbers as the other type."""
    if isinstance(value, dict):
        return {name: shuffled(each) for name, each in reversed(value.items())}
    if isinstance(value, list):
        return [shuffled(each) for each in value]
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    return value


@given(json_values)
def test_a_value_is_the_same_however_it_is_written(value: object) -> None:
    assert canonical_json(value) == canonical_json(shuffled(value))


@given(json_values)
def test_the_form_reads_back_as_the_value(value: object) -> None:
    again = json.loads(canonical_json(value))
    assert canonical_json(again) == canonical_json(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_has_a_form_of_its_own(number: float) -> None:
    assert float(json.loads(canonical_json(number))) == number


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_composed_and_decomposed_texts_are_the_same_argument(text: str) -> None:
    assert call_key("say", {"text": unicodedata.normalize("NFD", text)}) == call_key(
        "say", {"text": unicodedata.normalize("NFC", text)}
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Please wait.", "please   WAIT."),
        ("Bitte warten\n\nSie", "bitte warten sie"),
        ("Straße", "STRASSE"),
        (E_COMPOSED, E_DECOMPOSED),
        ("\uff28\uff49 there", "hi there"),
        ("\u00a0one\u2003two ", "one two"),
        ("\ufb01nd it", "find it"),
    ],
)
def test_texts_that_are_the_same(one: str, other: str) -> None:
    assert normalized_text(one) == normalized_text(other)


def test_texts_that_differ() -> None:
    assert normalized_text("Please wait.") != normalized_text("Please wait!")
    assert normalized_text("onetwo") != normalized_text("one two")
    assert normalized_text(" \n\t ") == ""
