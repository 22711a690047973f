"""Patterns of JSON schemas: they match as they should, and never take long."""

from __future__ import annotations

import json
import re
import sys
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Hub, ScriptedModel, UsageError
from antiphon.agents.output_spec import output_spec_of
from antiphon.core.linear_regex import LinearPattern, TooMuchWork, WorkBudget
from antiphon.core.regex_syntax import BadPattern


def found(pattern: str, text: str) -> bool:
    return LinearPattern(pattern).found_in(text, WorkBudget())


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("", ["", "x"], []),
        ("b", ["abc", "b"], ["ac", "B", ""]),
        ("^ab?c$", ["ac", "abc"], ["abbc", "xac", "ac\n", "a"]),
        ("^(?:yes|no|)$", ["yes", "no", ""], ["maybe", "yesno"]),
        ("^[a-c_-]+$", ["abc", "_-", "a-c"], ["d", ""]),
        ("^[^a-c]+$", ["xyz", "é", "\n"], ["a", "xay", ""]),
        ("^[]$", [], ["", "]"]),
        (r"^[\]\\^\b]$", ["]", "\\", "^", "\b"], ["b"]),
        (r"^[\w.-]+@[\w-]+\.[a-z]{2,4}$", ["a.b-c@d-e.org"], ["a@b", "@b.org", "a@b.organ"]),
        (r"^\d{3}-\d{4}$", ["555-1234"], ["555-123", "\u0665\u0665\u0665-1234", "5555-1234"]),
        (r"^\d{2,}$", ["12", "123456"], ["1", ""]),
        (r"^a{0}b{,2}$", ["", "b", "bb"], ["a", "bbb"]),
        (r"^x{a}{1$", ["x{a}{1"], ["x"]),
        (r"^.$", ["a", "é", "\U0001f600"], ["\n", "\r", "\u2028", "ab"]),
        (r"^\s\S$", [" a", "\u00a0a", "\ufeff1"], ["a ", "  "]),
        (r"^\W\D$", ["-a", "éx"], ["_a", "-1"]),
        (r"\bcat\b", ["cat", "a cat.", "éacat".replace("a", " ", 1)], ["concat", "cats"]),
        (r"\Bcat", ["concat"], ["cat", "a cat"]),
        (r"^\x41é\u{1F600}\t\cJ\0\/$", ["A\u00e9\U0001f600\t\n\0/"], ["A"]),
        (r"^\uD83D\uDE00\uD83D?$", ["\U0001f600"], ["\ufffd"]),
        (r"^\p{L}+$", ["é", "ßa", "\u4e2d"], ["a1", "", "_"]),
        (r"^\P{L}\p{Lu}\p{gc=Ll}\p{Letter}$", ["1Aaa"], ["aAaa", "1aaa"]),
        (r"^[\p{Nd}_]+$", ["1_\u0665"], ["a", ""]),
        (r"^[^\p{L}\d]+$", ["-_!"], ["a", "1", "é"]),
        (r"^\p{ASCII}\P{ASCII}\p{Any}\pL\p{LC}$", ["aé\nxX"], ["éé\nxX", "aé\nx1"]),
        (r"^[\w\-]a\-b\/$", ["-a-b/"], ["a-b/"]),
        (r"^(?<year>\d+)(?P<month>-\d+)$", ["2026-1"], ["2026"]),
        (r"\Aab\Z", ["ab"], ["xab", "ab\n"]),
        ("^(a*)*$", ["", "aaa"], ["b", "aab"]),
        ("^(a|b(c|d)*?)+?$", ["a", "bcda"], ["c", ""]),
        ("a^b|c$d", [], ["ab", "cd", "a\nb"]),
    ],
)
def test_a_pattern_matches_what_it_should(pattern: str, fits: list[str], does_not: list[str]) -> None:
    one = LinearPattern(pattern)
    for _ in range(2):  # the second time from what it has kept
        assert [text for text in fits if not one.found_in(text, WorkBudget())] == []
        assert [text for text in does_not if one.found_in(text, WorkBudget())] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(?=b)", "need backtracking"),
        ("a(?!b)", "need backtracking"),
        ("(?<=a)b", "need backtracking"),
        ("(?<!a)b", "need backtracking"),
        (r"(a)\1", "a reference to a group needs backtracking"),
        (r"(?<x>a)\k<x>", "a reference to a group needs backtracking"),
        ("(?i)a", "not of ECMA-262"),
        ("(a", r"a '\)' is missing"),
        ("a)", r"a '\)' without a '\('"),
        ("[a", "ends too early"),
        ("a\\", "ends too early"),
        ("*a", "nothing that '\\*' could repeat"),
        ("a**", "a repetition is repeated"),
        ("a{2,1}", "from more to less"),
        ("a{1001}", "more than 1000 times"),
        ("[b-a]", "backwards"),
        (r"[\w-z]", "from none to none"),
        (r"\p{Script=Greek}", "the property 'Script=Greek' is not known"),
        (r"\p{}", "the property '' is not known"),
        (r"\p{L", "ends too early"),
        (r"\xzz", "has no code"),
        (r"\x4", "has no code"),
        (r"\u12", "has no code"),
        (r"\u{1_0}", "has no code"),
        (r"\u{12", "ends too early"),
        (r"\c1", "has no letter"),
        ("(?<>a)", "is no name"),
        ("(?<x>a)(?<x>b)", "names another group"),
        (r"\u{110000}", "no character"),
        ("(?<x", "ends too early"),
        ("((a{100}){100}){100}", "too large"),
        ("(" * 40 + "){1000}" * 40, "too large"),
        ("(" * 60 + ")" * 60, "more than 50 deep"),
    ],
)
def test_a_pattern_that_cannot_be_matched_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(BadPattern, match=why):
        LinearPattern(pattern)


PIECES = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\d", r"\w", r"\b", "^", "$", "(?:a|b-)", "(a)"])
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "*?"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    def series() -> str:
        parts = draw(st.lists(st.tuples(PIECES, COUNTS), min_size=1, max_size=4))
        return "".join(piece if piece in (r"\b", "^", "$") else piece + count for piece, count in parts)

    ways = [series() for _ in range(draw(st.integers(1, 2)))]
    return f"(?:{'|'.join(ways)}){draw(COUNTS)}{series()}"


@given(patterns(), st.text("ab-1é", max_size=8))
def test_it_agrees_with_python_where_both_mean_the_same(pattern: str, text: str) -> None:
    assert found(pattern, text) == bool(re.search(pattern.replace("$", r"\Z"), text, re.ASCII))


# What takes for ever elsewhere

HEAVY = "(a|b)*a(a|b){600}x"
NOISE = "".join(Random(7).choices("ab", k=20_000))
EVIL = ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", r"^(.*)*x$", "(a*)*b", r"\s+$", "^((a{1,9}){1,9}){1,9}$", "(x+x+)+y"]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pathological_pattern_takes_time_in_proportion_to_the_text(pattern: str) -> None:
    """By count and not by the clock: everything below is within one budget, or refused as a whole."""
    for text in ("a" * 600 + "!", " " * 600 + "!", "x" * 600 + "!"):
        assert not found(pattern, text)


def test_empty_texts_count_as_well() -> None:
    pattern, budget = LinearPattern("(a?){800}"), WorkBudget()
    assert pattern.found_in("", budget)
    assert budget.spent > 800, "the states at the end of a text are looked at, too"
    assert pattern.found_in("", budget)
    assert budget.spent < 2000, "and remembered"


def test_what_would_take_long_all_the_same_is_refused_by_name() -> None:
    with pytest.raises(TooMuchWork, match=r"a text of 20000 characters is too long .* more than 500000 steps"):
        LinearPattern(HEAVY).found_in(NOISE, WorkBudget())


def test_checks_of_one_answer_share_a_budget() -> None:
    heavy, budget = LinearPattern(HEAVY), WorkBudget()
    with pytest.raises(TooMuchWork):
        heavy.found_in(NOISE, budget)
    with pytest.raises(TooMuchWork):
        heavy.found_in("ab", budget)
    assert not heavy.found_in("ab", WorkBudget())


# In schemas


@pytest.fixture
def without_rust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)


CODE = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["code"]}


@pytest.mark.usefixtures("without_rust")
async def test_a_pathological_pattern_of_an_output_holds_nobody_up() -> None:
    began = time.monotonic()
    model = ScriptedModel([f'{{"code": "{"a" * 5000}!"}}', '{"code": "aaa"}'])
    async with Hub.open("memory:") as hub:
        reply = await Agent("bob", model, output=CODE).invoke("go", hub=hub)
    assert reply.output == {"code": "aaa"}
    assert "does not match '^(a+)+$'" in model.requests[1].messages[-1].text
    assert time.monotonic() - began < 20, "with backtracking it would take longer than there is time"


@pytest.mark.usefixtures("without_rust")
@pytest.mark.parametrize(
    ("schema", "fits", "complaint"),
    [
        ({"pattern": "^a$"}, ['"a"', "7"], ('"b"', "'b' does not match '^a$'")),
        ({"patternProperties": {"^x": {"type": "integer"}}}, ['{"x": 1, "y": "z"}'], ('{"xy": "z"}', "xy: 'z' is not")),
        (
            {"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False},
            ['{"a": 1, "x2": 2}', "7"],
            ('{"b": 1}', "Additional properties are not allowed ('b' was unexpected)"),
        ),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": {"type": "integer"}},
            ['{"x": "a", "b": 1}'],
            ('{"b": "a"}', "b: 'a' is not of type 'integer'"),
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"next": {"$ref": "#"}, "name": {"pattern": "^(a+)+$"}},
            },
            ['{"next": {"name": "aa"}}'],
            (f'{{"next": {{"name": "{"a" * 60}!"}}}}', "does not match '^(a+)+$'"),
        ),
        (
            {"$ref": "#/$defs/code", "$defs": {"code": {"anyOf": [{"pattern": "^(a|a)+$"}, {"const": 1}]}}},
            ['"aa"', "1"],
            (f'"{"a" * 60}!"', "is not valid under any of the given schemas"),
        ),
    ],
)
def test_patterns_wherever_a_schema_has_them(
    schema: dict[str, object], fits: list[str], complaint: tuple[str, str]
) -> None:
    output = output_spec_of(schema, "bob")
    assert [output.complaint(text) for text in fits] == [None] * len(fits)
    text, why = complaint
    assert why in str(output.complaint(text))


@pytest.mark.parametrize("installed", ["jsonschema_rs", "jsonschema"])
@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"^\p{L}+$", "é", "1"),
        (r"^[^\p{Lu}]$", "a", "A"),
        (r"^\P{Nd}$", "a", "1"),
        (r"^(?<year>\d{4})$", "2026", "26"),
        (r"^\u{1F600}$", "\U0001f600", "x"),
        (r"^\cA$", "\x01", "A"),
        (r"^a\/b\-c$", "a/b-c", "a/b"),
        (r"^\d$", "1", "\u0665"),
        (r"^\w$", "_", "é"),
        (r"^\s$", "\u00a0", "\x1c"),
        (r"^a$", "a", "a\n"),
        (r"^[\w\-.]+$", "a-b.c", "a b"),
    ],
)
def test_a_legal_pattern_is_accepted_by_either_library(
    installed: str, pattern: str, fits: str, does_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"jsonschema": "jsonschema_rs", "jsonschema_rs": "jsonschema"}[installed], None)
    schemas: list[dict[str, object]] = [
        {"pattern": pattern},
        {"propertyNames": {"pattern": pattern}},
        {"patternProperties": {pattern: {}}, "additionalProperties": False},
    ]
    for schema in schemas:
        output = output_spec_of(schema, "bob")
        for text, expected in ((fits, True), (does_not, False)):
            value: object = text if "pattern" in schema else {text: 1}
            assert (output.complaint(json.dumps(value)) is None) == expected


@pytest.mark.usefixtures("without_rust")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"patternProperties": {r"(a)\1": {}}}, "a reference to a group needs backtracking"),
        ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'|is missing"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "jsonschema-rs alone"),
        (
            {"$defs": {"a": {"$id": "urn:a", "$schema": "http://json-schema.org/draft-07/schema#", "pattern": "a"}}},
            "jsonschema-rs alone",
        ),
    ],
)
def test_a_schema_whose_patterns_could_take_for_ever_is_refused(schema: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        output_spec_of(schema, "bob")


@pytest.mark.usefixtures("without_rust")
def test_what_takes_too_much_work_is_a_complaint() -> None:
    output = output_spec_of({"items": {"pattern": HEAVY}}, "bob")
    assert "too long for the pattern" in str(output.complaint(f'["{NOISE}"]'))
