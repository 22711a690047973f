"""What an agent's answer must be: JSON that makes a value of one type, or that fits one schema.

Rule 1: what is wanted is checked where the agent is declared. A mistake there is a `UsageError`, not a bad answer.
Rule 2: whatever a type's own checks raise about an answer becomes a complaint for the model; nothing else leaves.
Rule 3: only a schema given as a dict needs a library to check it, so only then is one loaded. Nothing is ever fetched:
        a schema that refers to something outside itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeGuard, cast

import msgspec

from antiphon.agents.patterns import TooMuchWork
from antiphon.agents.schema import from_model, schema_of
from antiphon.agents.schema_checks import Fault, Misfit, Steps, check_of, place_of
from antiphon.agents.signature import Visible
from antiphon.agents.text_patterns import TextPatterns, without_patterns
from antiphon.core.codec import Malformed, check_json, copied, parsed
from antiphon.core.errors import UsageError
from antiphon.core.events import Json
from antiphon.core.words import shown, storable, told

MOST = 5
"""How many things are said to be wrong at once."""
LONGEST = 400
"""How many characters they share."""
FENCE = "```"
LANGUAGE = re.compile(r"[ \t]*(?:[a-z][\w+-]*[ \t\r]*\n|json\s)", re.IGNORECASE)
TYPES = "give a pydantic model, a msgspec.Struct, a dataclass, a TypedDict, a type such as list[int], or a JSON schema"
SCHEMAS = "give a JSON schema that is valid and refers to nothing outside itself"


class Output(msgspec.Struct, frozen=True):
    """What an agent's answer must be. A code fence and blank space around an answer do no harm; other text does."""

    schema: Json
    """The JSON schema, as a model is told of it."""
    _value: Callable[[str], object]

    def complaint(self, text: str) -> str | None:
        """What is wrong with an answer, in sentences for the model that gave it; None, if nothing is."""
        try:
            self.read(text)
        except ValueError as error:
            return str(error)
        return None

    def read(self, text: str) -> object:
        """The value that the answer stands for; `ValueError` with the complaint, if it stands for none."""
        try:
            return self._value(_bare(text))
        except BaseException as error:  # the checks of a type are anybody's code
            raise ValueError(_said(_faults(error))) from error


def output_of(wanted: object, agent: str) -> Output:
    """What the agent of this name is to answer: a type, or a JSON schema as a dict.

    A type is a pydantic model, or whatever msgspec can decode. `UsageError` if it is neither.
    """
    owner = f"the output of agent {agent!r} is {shown(wanted)}"
    try:
        if isinstance(wanted, dict):
            return _of_schema(wanted, owner)
        return _of_model(wanted) if _is_model(wanted) else _of_type(wanted)
    except UsageError:
        raise
    except Exception as error:  # a type is anybody's code, and so is a schema
        [(place, why), *_] = _faults(error)
        why = f"{place}: {why}" if place else why.removeprefix("TypeError: ")
        raise UsageError(f"{owner}: {why}; {SCHEMAS if isinstance(wanted, dict) else TYPES}") from error


# Types


class Described(Protocol):
    """A class that describes itself and makes its own values, as pydantic's models do."""

    def model_json_schema(self) -> Json: ...

    def model_validate_json(self, text: str, /) -> object: ...


def _is_model(wanted: object) -> TypeGuard[Described]:
    return isinstance(wanted, type) and hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate_json")


def _of_model(model: Described) -> Output:
    return Output(cast("Json", msgspec.to_builtins(model.model_json_schema())), model.model_validate_json)


def _of_type(kind: object) -> Output:
    if kind is None:
        raise TypeError("an answer is something")
    if isinstance(kind, type) and hasattr(kind, "__pydantic_validator__"):
        raise TypeError("of a pydantic dataclass the validators would not be asked; a BaseModel asks them")
    msgspec.json.Decoder(cast("type[object]", kind), dec_hook=from_model)  # raises what is wrong with the type as given
    patterns = TextPatterns({"": kind})
    decoder = msgspec.json.Decoder(cast("type[object]", without_patterns(kind)), dec_hook=from_model)

    def value(text: str) -> object:
        read = decoder.decode(text)
        if patterns:
            patterns.check({"": parsed(text)})
        return read

    described = schema_of({"answer": Visible(kind)}, {})
    schema = cast("dict[str, Json]", described["properties"])["answer"]
    return Output({**schema, "$defs": described["$defs"]} if "$defs" in described else schema, value)


# Schemas


def _of_schema(given: Json, owner: str) -> Output:
    check_json(given)
    schema = copied(given)
    check = check_of(schema, owner)
    list(check(None))  # a schema that only goes round in circles shows it here

    def value(text: str) -> object:
        read: object = parsed(text)
        if faults := list(check(read)):
            raise Misfit(faults)
        return read

    return Output(schema, value)


# What is wrong, in words


class Listing(Protocol):
    """An error that tells several faults apart, as pydantic's does."""

    def errors(self, *, include_url: bool) -> Sequence[Mapping[str, object]]: ...


def _faults(error: BaseException) -> Sequence[Fault]:
    """What an error says is wrong. It may be anybody's: what it does not tell apart is told as it is."""
    match error:
        case Misfit():
            return error.faults
        case msgspec.ValidationError():
            what, _, place = str(error).partition(" - at `$")
            place = place.removesuffix("`")
            cause = error.__cause__ or error
            return _listed(cause, place) or [Fault(place_of((), place), what or told(cause))]
        case msgspec.DecodeError() | Malformed() | TooMuchWork():
            return [Fault("", str(error))]
        case _:
            return _listed(error) or [Fault("", told(error))]


def _listed(error: BaseException, within: str = "") -> list[Fault]:
    try:
        listed = cast("Listing", error).errors(include_url=False)
        return [Fault(place_of(cast("Steps", each["loc"]), within), str(each["msg"])) for each in listed]
    except Exception:  # it is no such error
        return []


def _said(faults: Sequence[Fault]) -> str:
    share = LONGEST // min(len(faults), MOST)
    lines = [_short(f"{place}: {what}" if place else what, share) for place, what in faults[:MOST]]
    more = [f"and {len(faults) - MOST} more"] if len(faults) > MOST else []
    return f"The answer is not what was asked for: {'; '.join(lines + more)}. Give the whole JSON again, and it alone."


def _short(text: str, share: int) -> str:
    """The text in one line. What is cut is the middle: a value comes first, and what is wrong with it last."""
    text = storable(" ".join(text.split())).rstrip(".")
    return text if len(text) <= share else f"{text[: share // 2]}…{text[1 - share // 2 :]}"


def _bare(text: str) -> str:
    """The JSON without the code fence around it."""
    text = text.strip()
    if not (text.startswith(FENCE) and text.endswith(FENCE)):
        return text
    inner = text.strip("`")  # no JSON begins or ends with one
    language = LANGUAGE.match(inner)
    return inner[language.end() :] if language else inner
