"""What a model is told of a function's parameters."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest

from antiphon import UsageError
from antiphon.agents.signature import parse_docstring
from antiphon.agents.tool import tool

if TYPE_CHECKING:
    from antiphon import Channel


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    city: str = "Ulm"


@dataclass
class Order:
    to: Address
    colour: Colour = Colour.RED


@dataclass
class Tree:
    name: str
    under: list[Tree] = field(default_factory=list)
    at: Address | None = None


class Options(TypedDict, total=False):
    deep: bool


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Profile:
    """Describes and validates itself, the way models of a validation library do."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def model_validate(cls, value: object) -> Profile:
        match value:
            case {"name": str(name)}:
                return cls(name)
            case _:
                raise ValueError("a profile has a name")

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        return {
            "type": "object",
            "properties": {"name": {"$ref": "#/$defs/Name"}},
            "$defs": {"Name": {"type": "string", "minLength": 1}},
        }


class Folder:
    """A class of the same kind that refers to itself."""

    @classmethod
    def model_validate(cls, value: object) -> Folder:
        return cls()

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        inner = {"type": "object", "properties": {"in": {"$ref": "#/$defs/Folder"}}}
        return {"$ref": "#/$defs/Folder", "$defs": {"Folder": inner}}


class Connection:
    pass


class Held:
    __injected__ = "channel"


Cents = NewType("Cents", int)

ADDRESS = {
    "title": "Address",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string", "default": "Ulm"}},
    "required": ["street"],
}
COLOUR = {"title": "Colour", "enum": ["blue", "red"]}


def taking(hint: object) -> Callable[..., object]:
    """A function with one parameter `value` of this type."""

    def function(value: object) -> None:
        pass

    function.__annotations__ = {"value": hint}
    return function


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (object, {}),
        (Any, {}),
        (Cents, {"type": "integer"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, object], {"type": "object", "additionalProperties": {}}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045  # people write it
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Annotated[int, msgspec.Meta(ge=1, description="How many.")],
         {"type": "integer", "minimum": 1, "description": "How many."}),
        (datetime, {"type": "string", "format": "date-time"}),
        (datetime | None, {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
        (list[time], {"type": "array", "items": {"type": "string", "format": "time"}}),
        (tuple[datetime, ...], {"type": "array", "items": {"type": "string", "format": "date-time"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (date, {"type": "string", "format": "date"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Decimal, {"type": "string", "format": "decimal"}),
        (Colour, COLOUR),
        (Address, ADDRESS),
        (Point, {
            "title": "Point", "type": "object", "required": ["x"],
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        }),
        (Options, {"title": "Options", "type": "object", "properties": {"deep": {"type": "boolean"}}, "required": []}),
        (list[Address], {"type": "array", "items": ADDRESS}),
        (Order, {
            "title": "Order", "type": "object", "required": ["to"],
            "properties": {"to": ADDRESS, "colour": {**COLOUR, "default": "red"}},
        }),
        (Profile, {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}}}),
        (Profile | None, {"anyOf": [
            {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}}}, {"type": "null"},
        ]}),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_as_a_model_reads_it(hint: object, expected: dict[str, object]) -> None:
    assert tool(taking(hint)).parameters == {
        "type": "object",
        "properties": {"value": expected},
        "required": ["value"],
        "additionalProperties": False,
    }


def test_a_type_that_holds_itself_is_referred_to() -> None:
    schema = tool(taking(Tree)).parameters
    assert schema["properties"] == {"value": {"$ref": "#/$defs/Tree"}}
    assert schema["$defs"] == {
        "Tree": {
            "title": "Tree",
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "under": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                "at": {"anyOf": [ADDRESS, {"type": "null"}], "default": None},
            },
            "required": ["name"],
        }
    }


def test_a_class_that_describes_itself_may_hold_itself() -> None:
    schema = tool(taking(list[Folder])).parameters
    inner = {"type": "object", "properties": {"in": {"$ref": "#/$defs/Folder.Folder"}}}
    assert schema["properties"] == {"value": {"type": "array", "items": {"$ref": "#/$defs/Folder.Folder"}}}
    assert schema["$defs"] == {"Folder.Folder": inner}


def test_types_with_the_same_part_do_not_share_it() -> None:
    @tool
    def send(first: Address, second: Address) -> None: ...

    assert send.parameters["properties"] == {"first": ADDRESS, "second": ADDRESS}
    assert "$defs" not in send.parameters


def test_defaults_and_what_is_required() -> None:
    @tool
    def find(
        query,  # type: ignore[no-untyped-def]
        limit: int = 10,
        colour: Colour = Colour.BLUE,
        where: list[str] = ["here"],  # noqa: B006
        after: str | None = None,
        odd: object = Connection(),
        *,
        exact: bool,
    ) -> None: ...

    assert find.parameters == {
        "type": "object",
        "properties": {
            "query": {},
            "limit": {"type": "integer", "default": 10},
            "colour": {**COLOUR, "default": "blue"},
            "where": {"type": "array", "items": {"type": "string"}, "default": ["here"]},
            "after": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "odd": {},
            "exact": {"type": "boolean"},
        },
        "required": ["query", "exact"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters() -> None:
    @tool
    def now() -> str:
        return ""

    assert now.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@pytest.mark.parametrize(
    "hint",
    [Connection, Callable[[int], str], Iterator[int], complex, type, list[Connection], Address | Point, Profile | int],
    ids=str,
)
def test_a_type_without_json_is_refused(hint: object) -> None:
    with pytest.raises(UsageError) as caught:
        tool(taking(hint))
    assert str(caught.value).startswith("the parameter 'value' of function(): ")
    assert str(caught.value).endswith("a dataclass, a TypedDict or a msgspec.Struct")


def test_a_type_that_is_not_imported_is_refused() -> None:
    def ask(value: Channel) -> None: ...

    with pytest.raises(UsageError, match=r"'value' of ask\(\) has the type 'Channel'.*NameError.*import"):
        tool(ask)


def test_what_a_function_returns_need_not_be_known_here() -> None:
    def ask(text: str) -> Channel: ...

    assert list(tool(ask).parameters["properties"]) == ["text"]  # type: ignore[call-overload]


# What the runtime gives


@pytest.mark.parametrize(
    ("name", "hint", "given"),
    [
        ("idempotency_key", str, "idempotency_key"),
        ("idempotency_key", int, "idempotency_key"),
        ("channel", None, "channel"),
        ("channel", object, "channel"),
        ("channel", Any, "channel"),
        ("channel", Connection, "channel"),
        ("channel", Connection | None, "channel"),
        ("channel", Address, "channel"),
        ("channel", "Unknown", "channel"),
        ("channel", str, None),
        ("channel", str | None, None),
        ("channel", int, None),
        ("channel", list[str], None),
        ("channel", dict, None),
        ("channel", Literal["a", "b"], None),
        ("channel", Colour, None),
        ("channel", NewType("Name", str), None),
        ("channel", Annotated[str, "where"], None),
        ("context", None, "context"),
        ("context", dict, "context"),
        ("context", dict[str, object], "context"),
        ("context", dict[str, object] | None, "context"),
        ("context", Mapping[str, object], "context"),
        ("context", Options, "context"),
        ("context", Any, "context"),
        ("context", "Unknown", "context"),
        ("context", str, None),
        ("context", float, None),
        ("context", bool, None),
        ("context", list, None),
        ("context", str | dict[str, str], None),
        ("context", Address, None),
        ("context", Point, None),
        ("context", Profile, None),
        ("room", Held, "channel"),
        ("room", Held | None, "channel"),
        ("room", Annotated[Held, "here"], "channel"),
        ("context", Held, "channel"),
        ("room", str, None),
    ],
    ids=str,
)
def test_what_is_hidden_from_the_model(name: str, hint: object, given: str | None) -> None:
    namespace: dict[str, Callable[..., object]] = {}
    exec(f"def function(text, {name}): pass", namespace)
    function = namespace["function"]
    function.__annotations__ = {} if hint is None else {name: hint}
    made = tool(function)
    assert made.injected == ({name: given} if given else {})
    assert list(made.parameters["properties"]) == (["text"] if given else ["text", name])  # type: ignore[call-overload]


# What a docstring says


GOOGLE = """Pay money back.

    Only for orders that were paid.

    Args:
        order: The order's number,
            thus: 2024-7.
        cents (int, optional): How much.

        why:
            The reason.

    Returns:
        order: not this one.
    """
SPHINX = """Pay money back.

    Only for orders that were paid.

    :param order: The order's number,
        thus: 2024-7.
    :type order: str
    :param int cents: How much.
    :param why: The reason.
    :returns: The receipt.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, SPHINX], ids=["google", "sphinx"])
def test_a_docstring_describes_the_parameters(docstring: str) -> None:
    doc = parse_docstring(docstring)
    assert doc.description == "Pay money back.\n\nOnly for orders that were paid."
    assert doc.parameters == {
        "order": "The order's number, thus: 2024-7.",
        "cents": "How much.",
        "why": "The reason.",
    }


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        (None, ""),
        ("", ""),
        ("One line.", "One line."),
        ("Args:\n    x: Something.", ""),
        ("One.\n\nReturns:\n    A text.", "One."),
        ("One.\n\nNote:\n    Not on Sundays.", "One.\n\nNote:\n    Not on Sundays."),
        ("Times: 10:30", "Times: 10:30"),
        ("Args:", ""),
        ("A \udc80 and a \x00.", "A \\udc80 and a \\x00."),
    ],
)
def test_a_docstring_describes_the_function(docstring: str | None, description: str) -> None:
    assert parse_docstring(docstring).description == description


def test_a_description_reaches_its_parameter() -> None:
    @tool
    def refund(order: str, to: Address, other: int) -> None:
        """Pay money back.

        Args:
            order: Which one.
            to: Where to.
            nobody: Is not there.
        """

    assert refund.description == "Pay money back."
    assert refund.parameters["properties"] == {
        "order": {"type": "string", "description": "Which one."},
        "to": {**ADDRESS, "description": "Where to."},
        "other": {"type": "integer"},
    }
