"""What an agent's answer must be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass
from dataclasses import field as kept
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from antiphon import UsageError
from antiphon.agents.output_spec import OutputSpec, output_spec_of

LIBRARIES = ["jsonschema_rs", "jsonschema"]
BEGINNING = "The answer is not what was asked for: "
END = ". Give the whole JSON again, and it alone."


class Line(pydantic.BaseModel):
    price: int


class Invoice(pydantic.BaseModel):
    customer: str
    lines: list[Line] = []

    @pydantic.field_validator("customer")
    @classmethod
    def known(cls, name: str) -> str:
        match name:
            case "nobody":
                raise ValueError("is not a customer")
            case "zero":
                raise ZeroDivisionError("no such luck")
            case "exit":
                raise SystemExit("bye")
            case "cancel":
                raise asyncio.CancelledError
            case "stop":
                raise KeyboardInterrupt
            case _:
                return name


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("and this as well")


class Point(msgspec.Struct):
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x == 13:
            raise ValueError("not \x00 and \udc80")
        if self.x > 100:
            raise ValueError("x is too far away.")
        if self.x < -100:
            raise Unspeakable


@dataclass
class Address:
    street: str
    near: list[Address] = kept(default_factory=list)


class Options(TypedDict):
    deep: bool


class Pair(NamedTuple):
    left: int
    right: str


@pydantic.dataclasses.dataclass
class Checked:
    size: int


class Connection:
    pass


class Waiting(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    connection: Connection


POINTS: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}, "required": ["x"]}},
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the libraries that can check a schema, as if no other were installed."""
    name = str(request.param)
    for other in LIBRARIES:
        if other != name:
            monkeypatch.setitem(sys.modules, other, None)
    return name


# What is right


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (Invoice, '{"customer": "Ada", "lines": [{"price": 3}]}', Invoice(customer="Ada", lines=[Line(price=3)])),
        (Point, '{"x": 1}', Point(1)),
        (Address, '{"street": "A", "near": [{"street": "B"}]}', Address("A", [Address("B")])),
        (Options, '{"deep": true}', {"deep": True}),
        (Pair, '[1, "a"]', Pair(1, "a")),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, Point], '{"a": {"x": 1, "y": 2}}', {"a": Point(1, 2)}),
        (list[Invoice], '[{"customer": "Ada"}]', [Invoice(customer="Ada")]),
        (Point | None, "null", None),
        (Literal["yes", "no"], '"yes"', "yes"),
        (int, "7", 7),
        (Any, '{"a": [1.5]}', {"a": [1.5]}),
    ],
    ids=str,
)
def test_a_type_and_an_answer_that_fits(wanted: object, text: str, value: object) -> None:
    output = output_spec_of(wanted, "clerk")
    assert output.complaint(text) is None
    assert output.read(text) == value
    assert type(output.read(text)) is type(value)


@pytest.mark.parametrize(
    "text", ['{"name": "a"}', '{"name": "", "points": []}', '{"points": [{"x": 9, "y": null}], "name": "\u00e9"}']
)
def test_a_schema_and_an_answer_that_fits(library: str, text: str) -> None:
    output = output_spec_of(POINTS, "clerk")
    assert output.complaint(text) is None
    assert output.read(text) == msgspec.json.decode(text)


FENCED = [
    "{}",
    "\n\t {} \r\n",
    "```json\n{}\n```",
    "```JSON\r\n{}\r\n```",
    "  ```\n{}\n```\n\n",
    "```json {} ```",
    "``` json\n\n{}\n\n```",
    "```{}```",
    "````javascript\n{}\n````",
]


@pytest.mark.parametrize("around", FENCED)
@pytest.mark.parametrize("wanted", [Invoice, Point, {"required": ["x"]}], ids=["pydantic", "msgspec", "schema"])
def test_what_may_stand_around_an_answer(wanted: object, around: str) -> None:
    inner = '{"x": 1, "customer": "```json"}'
    output = output_spec_of(wanted, "clerk")
    assert output.complaint(around.replace("{}", inner)) is None
    assert output.read(around.replace("{}", inner)) == output.read(inner)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "```",
        "``````",
        "```json\n```",
        '{"x": 1, "customer": "a"} That is it.',
        'Here it is: {"x": 1, "customer": "a"}',
        'Here it is:\n```json\n{"x": 1, "customer": "a"}\n```',
        '```json\n{"x": 1, "customer": "a"}\n```\nThat is it.',
        '```json\n{"x": 1, "customer": "a"}\n```\n```json\n{"x": 1, "customer": "a"}\n```',
        '```json\n{"x": 1, "customer": "a"}',
        '{"x": 1, "customer": "a"}\n```',
        '{"x": 1, "customer": "a"',
        "{'x': 1, 'customer': 'a'}",
        "\ud800",
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("wanted", [Invoice, Point, {"required": ["x"]}], ids=["pydantic", "msgspec", "schema"])
def test_what_is_no_json(wanted: object, text: str) -> None:
    refused(output_spec_of(wanted, "clerk"), text)


def refused(output: OutputSpec, text: str) -> str:
    """What the model is told of this answer, without what it is always told."""
    complaint = output.complaint(text)
    assert complaint is not None
    with pytest.raises(ValueError, match=r"^The answer is not what was asked for: ") as caught:
        output.read(text)
    assert str(caught.value) == complaint
    assert complaint.startswith(BEGINNING)
    assert complaint.endswith(END)
    assert len(complaint) <= 520
    assert "\n" not in complaint
    complaint.encode()
    return complaint.removeprefix(BEGINNING).removesuffix(END)


# What is wrong


@pytest.mark.parametrize(
    ("wanted", "text", "complaint"),
    [
        (Invoice, "{}", "customer: Field required"),
        (Invoice, "[]", "Input should be an object"),
        (Invoice, '{"customer": "nobody"}', "customer: Value error, is not a customer"),
        (Invoice, '{"customer": "zero"}', "ZeroDivisionError: no such luck"),
        (Invoice, '{"customer": "exit"}', "SystemExit: bye"),
        (Invoice, '{"customer": "cancel"}', "CancelledError: "),
        (
            Invoice,
            '{"customer": "a", "lines": [{"price": 1}, {"price": null}, {}]}',
            "lines[1].price: Input should be a valid integer; lines[2].price: Field required",
        ),
        (Invoice, "Sure!", "Invalid JSON: expected value at line 1 column 1"),
        (Point, "{}", "Object missing required field `x`"),
        (Point, '{"x": "1"}', "x: Expected `int`, got `str`"),
        (Point, '{"x": 101}', "x is too far away"),
        (Point, '{"x": -101}', "Unspeakable"),
        (Point, "Sure!", "JSON is malformed: invalid character (byte 0)"),
        (dict[str, list[Point]], '{"a": [{"x": 1}, {"x": 101}]}', "[...][1]: x is too far away"),
        (Address, '{"street": "a", "near": [{"street": 5}]}', "near[0].street: Expected `str`, got `int`"),
        (Options, "{}", "Object missing required field `deep`"),
        (list[int], '[1, "2"]', "[1]: Expected `int`, got `str`"),
        (
            list[Invoice],
            '[{"customer": "a"}, {"lines": [{}]}]',
            "[1].customer: Field required; [1].lines[0].price: Field required",
        ),
        (Literal["yes", "no"], '"maybe"', "Invalid enum value 'maybe'"),
    ],
    ids=str,
)
def test_a_type_and_an_answer_that_does_not_fit(wanted: object, text: str, complaint: str) -> None:
    assert refused(output_spec_of(wanted, "clerk"), text) == complaint.strip()


def test_a_check_that_raises_an_interrupt_is_a_complaint_too() -> None:
    assert "KeyboardInterrupt" in refused(output_spec_of(Invoice, "clerk"), '{"customer": "stop"}')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "'name' is a required property"),
        ("[]", "[] is not of type 'object'"),
        ('{"name": 5}', "name: 5 is not of type 'string'"),
        ('{"name": "", "points": [{"x": 1}, {"x": 10}]}', "points[1].x: 10 is greater than the maximum of 9"),
        ('{"name": "", "more": 1}', "Additional properties are not allowed ('more' was unexpected)"),
        (
            '{"name": 5, "points": [{"x": 10}, {}]}',
            "name: 5 is not of type 'string'; points[0].x: 10 is greater than the maximum of 9; "
            "points[1]: 'x' is a required property",
        ),
        ("Sure!", "JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_a_schema_and_an_answer_that_does_not_fit(library: str, text: str, complaint: str) -> None:
    assert refused(output_spec_of(POINTS, "clerk"), text).replace('"', "'") == complaint


def test_no_more_than_five_things_are_wrong_at_once(library: str) -> None:
    text = '{"lines": [' + ", ".join(['{"price": "a"}'] * 8) + "]}"
    for wanted in (Invoice, {"properties": {"lines": {"items": {"required": ["cost"]}}}, "required": ["customer"]}):
        said = refused(output_spec_of(wanted, "clerk"), text).split("; ")
        assert said[-1] == "and 4 more"
        assert len(said) == 6


def test_a_long_complaint_keeps_its_beginning_and_its_end(library: str) -> None:
    output = output_spec_of({"items": {"type": "object", "properties": {"a": {"type": "integer"}}}}, "clerk")
    said = refused(output, '[{"a": "' + "long " * 1000 + '"}]')
    assert said.startswith("[0].a: ")
    assert "…" in said
    assert said.replace('"', "'").endswith("long ' is not of type 'integer'")
    assert 390 <= len(said) <= 400


def test_what_no_store_takes_is_written_out() -> None:
    assert refused(output_spec_of(Point, "clerk"), '{"x": 13}') == "not \\x00 and \\udc80"


# What the model is told


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        (Invoice, Invoice.model_json_schema()),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Point, {
            "title": "Point", "type": "object", "required": ["x"],
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        }),
        (Options, {
            "title": "Options", "type": "object", "required": ["deep"], "properties": {"deep": {"type": "boolean"}},
        }),
        (Address, {"$ref": "#/$defs/Address", "$defs": {"Address": {
            "title": "Address", "type": "object", "required": ["street"],
            "properties": {
                "street": {"type": "string"},
                "near": {"type": "array", "items": {"$ref": "#/$defs/Address"}},
            },
        }}}),
        (POINTS, POINTS),
        ({}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_the_schema(wanted: object, schema: dict[str, object]) -> None:
    assert output_spec_of(wanted, "clerk").schema == schema


def test_a_schema_that_is_changed_later_changes_nothing(library: str) -> None:
    inner: dict[str, object] = {"type": "integer"}
    output = output_spec_of({"items": inner}, "clerk")
    inner["type"] = "string"
    assert output.schema == {"items": {"type": "integer"}}
    assert output.read("[1]") == [1]


# What makes no sense


ADVICE = "give a pydantic model, a msgspec.Struct, a dataclass, a TypedDict, a type such as list[int], or a JSON schema"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (5, "is 5: Type '5' is not supported"),
        ("Invoice", "is 'Invoice': Type ''Invoice'' is not supported"),
        (None, "is None: an answer is something"),
        (True, "is True: Type 'True' is not supported"),
        ([Point], "Point'>]: Type '[<class 'tests.agents.test_output.Point'>]' is not supported"),
        (Point(1), "is Point(x=1, y=0): Type 'Point(x=1, y=0)' is not supported"),
        (Invoice(customer="a"), "is Invoice(customer='a', lines=[]): Type "),
        (complex, "is <class 'complex'>: no JSON is a complex"),
        (Connection, "Connection'>: no JSON is a Connection"),
        (list[Connection], "Connection]: no JSON is a Connection"),
        (Address | Point, "more than one "),
        (Waiting, "Waiting'>: PydanticInvalidForJsonSchema: "),
        (Checked, "Checked'>: of a pydantic dataclass the validators would not be asked; a BaseModel asks them"),
    ],
    ids=str,
)
def test_a_type_that_makes_no_sense(wanted: object, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        output_spec_of(wanted, "clerk")
    assert str(caught.value).startswith("the output of agent 'clerk' is ")
    assert why in str(caught.value)
    assert str(caught.value).endswith(f"; {ADVICE}")


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strin"}, "is {'type': 'strin'}: type: 'strin' is not valid under any"),
        ({"properties": {"a": {"minimum": "0"}}}, ": properties.a.minimum: '0' is not of type 'number'"),
        ({"$ref": 5}, "$ref: 5 is not of type 'string'"),
        ({"pattern": "("}, "'(' is not a 'regex'"),
        ({"$schema": "https://example.com/own"}, "https://example.com/own"),
        ({"$schema": 5}, "5"),
        ({"$ref": "#/$defs/missing"}, "'/$defs/missing' does not exist"),
        ({"default": float("nan")}, "nan is no JSON number"),
        ({"enum": [{1, 2}]}, "set is no JSON value"),
        ({1: 2}, "a key is 1"),
    ],
    ids=str,
)
def test_a_schema_that_is_none(library: str, schema: dict[object, object], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        output_spec_of(schema, "clerk")
    assert str(caught.value).startswith(f"the output of agent 'clerk' is {str(schema)[:80]}")
    assert why in str(caught.value).replace('"', "'")
    assert str(caught.value).endswith("; give a JSON schema that is valid and refers to nothing outside itself")


OUTSIDE = "https://example.com/other.json"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": OUTSIDE},
        {"$ref": f"{OUTSIDE}#/$defs/a"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "other.json"},
        {"$id": "https://example.com/this.json", "properties": {"a": {"$ref": "other.json"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"items": {"$ref": OUTSIDE}}]}}},
        {"$defs": {"never used": {"$ref": OUTSIDE}}},
        {"$ref": "#/own/a", "own": {"a": {"properties": {"b": {"$ref": OUTSIDE}}}}},
        {"properties": {"a": {"$dynamicRef": f"{OUTSIDE}#here"}}},
        {"$schema": DRAFT_7, "definitions": {"a": {"$ref": OUTSIDE}}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "if": {"$ref": OUTSIDE}},
    ],
    ids=str,
)
def test_what_is_outside_is_refused(library: str, schema: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"other\.json|hostname") as caught:
        output_spec_of(schema, "clerk")
    assert str(caught.value).endswith("; give a JSON schema that is valid and refers to nothing outside itself")


def test_nothing_is_fetched_though_it_could_be(library: str, tmp_path: Path) -> None:
    """A library that is not written in Python would not be noticed by the guard that every test runs under."""
    (tmp_path / "other.json").write_text('{"type": "integer"}')
    asked: list[str] = []

    class Here(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), partial(Here, directory=str(tmp_path))) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            for place in (f"http://127.0.0.1:{server.server_port}", tmp_path.as_uri()):
                with pytest.raises(UsageError, match=r"other\.json"):
                    output_spec_of({"properties": {"a": {"$ref": f"{place}/other.json"}}}, "clerk")
        finally:
            server.shutdown()
            serving.join()
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$id": OUTSIDE, "$ref": "a", "$defs": {"a": {"$id": "a", "type": "integer"}}}, "1", '"1"'),
        (
            {"items": {"$id": "https://example.com/in/", "$ref": "a", "$defs": {"a": {"$id": "a", "type": "integer"}}}},
            "[1]",
            '["1"]',
        ),
        ({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "integer"}}}, "1", '"1"'),
        ({"$schema": DRAFT_7, "$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}}, "1", '"1"'),
        ({"enum": [{"$ref": OUTSIDE}]}, f'{{"$ref": "{OUTSIDE}"}}', "{}"),
        ({"properties": {"$ref": {"type": "integer"}}}, '{"$ref": 1}', '{"$ref": "1"}'),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, '{"type": "object"}', '{"type": "objec"}'),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, '{"a": {"b": {}}}', '{"a": {"b": 1}}'),
    ],
    ids=str,
)
def test_what_a_schema_may_refer_to(library: str, schema: dict[str, object], right: str, wrong: str) -> None:
    output = output_spec_of(schema, "clerk")
    assert output.complaint(right) is None
    refused(output, wrong)


@pytest.mark.parametrize(
    ("version", "accepted"), [("https://json-schema.org/draft/2020-12/schema", False), (DRAFT_7, True), (None, False)]
)
def test_the_version_of_a_schema(library: str, version: str | None, accepted: bool) -> None:
    """What comes first in a list is a matter of `prefixItems` since the version of 2020; before, it means nothing."""
    schema: dict[str, object] = {"prefixItems": [{"type": "integer"}]}
    output = output_spec_of(schema if version is None else {"$schema": version, **schema}, "clerk")
    assert (output.complaint('["1"]') is None) == accepted


def test_a_format_is_for_the_model_to_know(library: str) -> None:
    for version in ({}, {"$schema": DRAFT_7}):
        assert output_spec_of({**version, "type": "string", "format": "date"}, "clerk").complaint('"today"') is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$dynamicRef": "#"},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_goes_round_in_circles(schema: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(UsageError, match="RecursionError: a reference leads back to itself"):
        output_spec_of(schema, "clerk")


# What is installed


@pytest.mark.parametrize("missing", [("jsonschema_rs", "jsonschema"), ("jsonschema_rs", "referencing")])
def test_nothing_to_check_a_schema_with(missing: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError) as caught:
        output_spec_of({"type": "object"}, "clerk")
    assert str(caught.value).startswith("the output of agent 'clerk' is {'type': 'object'}, a JSON schema")
    assert 'pip install "antiphon[schema]"' in str(caught.value)
    assert output_spec_of(Point, "clerk").read('{"x": 1}') == Point(1)


LOADED = """
import sys
from antiphon.agents.output_spec import output_spec_of
for wanted in (list[int], {wanted}):
    output_spec_of(wanted, "clerk").read("[1]")
print(*sorted({{"jsonschema", "jsonschema_rs", "pydantic"}} & sys.modules.keys()))
"""


@pytest.mark.parametrize(("wanted", "loaded"), [("list[str | int]", ""), ("{'type': 'array'}", "jsonschema_rs")])
def test_what_is_loaded(wanted: str, loaded: str) -> None:
    command = [sys.executable, "-c", LOADED.format(wanted=wanted)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == loaded
