"""How much work it is to check a value against a JSON schema."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Hub, ScriptedModel
from antiphon.agents.output_spec import output_spec_of
from antiphon.core.envelope import Json
from antiphon.core.schema_keywords import CHECK_STEPS, CountedKeywords
from antiphon.core.schema_validation import expanded_size, is_deeper

INSTALLED = ["jsonschema", "jsonschema_rs", "both"]
TOO_MUCH = f"checking it takes more than {CHECK_STEPS} steps"


@pytest.fixture(params=INSTALLED)
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name != "both":
        monkeypatch.setitem(sys.modules, "jsonschema" if name == "jsonschema_rs" else "jsonschema_rs", None)
    return name


@pytest.fixture
def without_rust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)


def steps(schema: Json, value: object) -> int:
    """How many steps `jsonschema` takes to find everything that is wrong with a value."""
    library = importlib.import_module("jsonschema")
    dialect = library.Draft202012Validator
    counted = CountedKeywords(library, dialect, own=[schema], remember=True)
    types = dialect.TYPE_CHECKER.redefine("boolean", counted.is_boolean)
    kind = library.validators.extend(dialect, validators=counted.keywords, type_checker=types)
    list(kind(schema).iter_errors(value))
    return counted.budget.spent


def nested(depth: int, inmost: object) -> object:
    value = inmost
    for _ in range(depth):
        value = {"next": value}
    return value


def fits(schema: Json, value: object) -> bool:
    return output_spec_of(schema, "bob").complaint(json.dumps(value)) is None


# Unique items


def test_unique_items_take_steps_in_proportion_to_the_list() -> None:
    few, many = ([{"id": number, "tags": ["a"]} for number in range(count)] for count in (1000, 10_000))
    assert steps({"uniqueItems": True}, few) < 5 * 1000
    assert steps({"uniqueItems": True}, many) < 11 * steps({"uniqueItems": True}, few)


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, None, "", [], {}], True),
        ([[1], [True]], True),
        ([[1], [1.0]], False),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([{"a": 1}, {"a": True}], True),
        ([1, "1"], True),
        (["a", "b", "a"], False),
        ([0.0, -0.0], False),
        ([9007199254740992, 9007199254740993], True),
        ([0.1, 0.10000000000000002], True),
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_counts_as_the_same_item(items: list[object], unique: bool) -> None:
    assert fits({"uniqueItems": True}, items) == unique
    assert fits({"uniqueItems": False}, items)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": [1, "a", None, {"b": [2.0]}]}, [1.0, "a", None, {"b": [2]}], [True, "1", {"b": [True]}, 0]),
        ({"const": True}, [True], [1, "true"]),
        ({"const": {"a": [1, 0]}}, [{"a": [1.0, 0]}], [{"a": [True, False]}, {"a": [0, 1]}]),
    ],
)
def test_which_values_are_equal(schema: Json, right: list[object], wrong: list[object]) -> None:
    assert [value for value in right if not fits(schema, value)] == []
    assert [value for value in wrong if fits(schema, value)] == []


# Schemas that refer to themselves

LINK: Json = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
BRANCHING = {
    keyword: {
        "$ref": "#/$defs/node",
        "$defs": {"node": {keyword: [{**LINK, "required": ["a"]}, {**LINK, "required": ["next"]}, {"const": 1}]}},
    }
    for keyword in ("anyOf", "oneOf")
}
CONDITIONAL: Json = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"if": LINK, "then": {**LINK, "not": {"not": LINK}}, "else": {"const": 1}}},
}
SCHEMAS = [*BRANCHING.values(), CONDITIONAL]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_recursive_schema_that_branches_takes_polynomially_many_steps(schema: Json) -> None:
    for inmost in (1, "x"):
        assert steps(schema, nested(60, inmost)) < 20_000


@pytest.mark.usefixtures("without_rust")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_deep_value_is_checked_against_a_recursive_schema(schema: Json) -> None:
    assert fits(schema, nested(60, 1))
    assert not fits(schema, nested(60, "x"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_with_both_libraries_a_recursive_schema_is_checked_within_the_budget(schema: Json) -> None:
    assert expanded_size(schema) is None
    assert fits(schema, nested(60, 1))
    assert not fits(schema, nested(60, "x"))


@pytest.mark.usefixtures("without_rust")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_depth_of_a_value_that_a_recursive_schema_is_checked_with(schema: Json) -> None:
    output = output_spec_of(schema, "bob")
    assert output.complaint(json.dumps(nested(64, 1))) is None
    assert "it is nested deeper than 64 levels" in str(output.complaint(json.dumps(nested(65, 1))))
    assert fits({"type": "object"}, nested(200, 1)), "a schema that ends goes no deeper than itself"


TWICE: Json = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "allOf": [LINK, LINK]}}}
TWICE["$defs"]["node"] = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize("rust", [False, True])
def test_what_would_take_too_many_steps_is_a_complaint_that_names_the_limit(
    rust: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every level doubles what is wrong."""
    if not rust:
        monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    output = output_spec_of(TWICE, "bob")
    assert TOO_MUCH in str(output.complaint(json.dumps(nested(40, 1))))
    assert "'x' is not of type" in str(output.complaint(json.dumps(nested(2, "x")))), "each answer has its own steps"
    assert output.complaint(json.dumps(nested(40, {}))) is None


@pytest.mark.usefixtures("without_rust")
async def test_the_model_reads_that_its_answer_takes_too_long_to_check() -> None:
    model = ScriptedModel([f"[{','.join('1' * 110_000)}]", "[]"])
    async with Hub.open("memory:") as hub:
        reply = await Agent("bob", model, output={"items": {"type": "integer"}}).invoke("go", hub=hub)
    assert reply.output == []
    assert TOO_MUCH in model.requests[1].messages[-1].text


@pytest.mark.usefixtures("without_rust")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"allOf": [{"type": "object"}] * 1000}, ["some text"] * 10_000),
        ({"allOf": [{"contains": True}] * 1000}, [1] * 10_000),
        ({"allOf": [{"uniqueItems": True}] * 1000}, [*range(10_000)]),
        ({"items": {"required": [f"name {number}" for number in range(5000)]}}, [{}] * 1000),
        ({"items": {"enum": [*range(5000)]}}, ["x"] * 1000),
        ({"contains": {}, "unevaluatedItems": False}, [1] * 20_000),
        ({"properties": {}, "unevaluatedProperties": {}}, {str(number): 1 for number in range(20_000)}),
        ({"propertyNames": {}}, {str(number): 1 for number in range(200_000)}),
    ],
)
def test_other_work_that_counts(schema: Json, value: object) -> None:
    assert TOO_MUCH in str(output_spec_of(schema, "bob").complaint(json.dumps(value)))


@pytest.mark.usefixtures("installed")
def test_what_is_large_and_right_is_accepted() -> None:
    row: Json = {
        "type": "object",
        "properties": {name: {"type": ["string", "null"], "maxLength": 9} for name in "abcde"},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert fits({"type": "array", "items": row}, [dict.fromkeys("abcde", "text")] * 2000)
    assert fits({"items": {"enum": [*range(5000)]}}, [*range(5000)])


async def test_many_faults_are_not_all_collected() -> None:
    """jsonschema-rs would put them all together first: here a million."""
    output = output_spec_of({"items": {"allOf": [{"type": "string"}] * 1000}}, "bob")
    assert output.complaint(json.dumps([1] * 1000)) == (
        'The answer is not what was asked for: [0]: 1 is not of type "string". Give the whole JSON again, and it alone.'
    )


# How large a schema is


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        ({}, 1),
        ({"type": "string"}, 2),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, 7),
        ({"$ref": "#/$defs/a~1b%25/0", "$defs": {"a/b%": [{}]}}, 6),
        ({"$ref": "#/$defs/a", "$defs": {"a": True}}, 5),
        ({"$ref": "#"}, None),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, None),
        ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, None),
        ({"$ref": "#/missing"}, None),
        ({"$defs": {"a": {"$id": "urn:a"}}}, None),
        ({"properties": {"$ref": {"type": "string"}, "$id": {}}}, 5),
    ],
)
def test_the_size_of_a_schema_with_its_references_written_out(schema: Json, size: int | None) -> None:
    assert expanded_size(schema) == size


def test_references_that_multiply_are_large() -> None:
    """Each refers twice to the next."""
    links = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(40)}
    size = expanded_size({"$ref": "#/$defs/a0", "$defs": {**links, "a40": {}}})
    assert size is not None
    assert size > 2**40


def test_the_depth_of_a_value() -> None:
    assert [is_deeper(value, 1) for value in (1, [], [1], {"a": []}, [[1]], [{"a": 1}])] == [False] * 4 + [True] * 2


# Both libraries

LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a", "b"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner), max_leaves=8
)


@st.composite
def schemas(draw: st.DrawFn) -> Json:
    inner = st.deferred(lambda: st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/a"}]) | simple)
    simple = st.one_of(
        st.builds(lambda kind: {"type": kind}, st.sampled_from(["object", "array", "string", "integer", "number"])),
        st.builds(lambda value: {"const": value}, VALUES),
        st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps)),
        st.just({"uniqueItems": True}),
    )
    children = st.one_of(
        simple,
        st.builds(lambda part: {"items": part}, inner),
        st.builds(lambda part: {"contains": part}, inner),
        st.builds(lambda part: {"properties": {"a": part}}, inner),
        st.builds(lambda part: {"additionalProperties": part}, inner),
    )
    keyword = st.sampled_from(["anyOf", "oneOf", "allOf"])
    union = st.builds(lambda word, parts: {word: parts}, keyword, st.lists(children, min_size=1, max_size=3))
    return {**draw(union), **draw(children), "$defs": {"a": draw(union | children)}}


@given(schemas(), VALUES)
def test_both_libraries_give_the_same_verdict(schema: Json, value: object) -> None:
    rust = importlib.import_module("jsonschema_rs").Draft202012Validator(schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "jsonschema_rs", None)
        assert fits(schema, value) == rust.is_valid(value)
