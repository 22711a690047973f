"""What an agent's answer must be: JSON that makes a value of one type, or that fits one schema.

Rule 1: what is wanted is checked where the agent is declared. A mistake there is a `UsageError`, not a bad answer.
Rule 2: an error of a type's own checks becomes a complaint for the model; nothing else leaves.
Rule 3: only a schema given as a dict needs a library to check it, so only then is one loaded. Nothing is ever fetched:
        a schema that refers to something outside itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from antiphon.agents.signature import VisibleParameter
from antiphon.agents.type_schemas import TextPatterns, decode_hook, schema_of, without_patterns
from antiphon.core.codec import Malformed, check_json, copy_json, parse_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.linear_regex import TooMuchWork
from antiphon.core.schema_validation import AnswerFault, SchemaMisfit, build_schema_check, format_instance_path
from antiphon.core.text import describe, describe_error, sanitize

MAX_LISTED_FAULTS = 5
"""How many things are said to be wrong at once."""
MAX_COMPLAINT_CHARS = 400
"""How many characters they share."""
CODE_FENCE = "```"
FENCE_LANGUAGE = re.compile(r"[ \t]*(?:[a-z][\w+-]*[ \t\r]*\n|json\s)", re.IGNORECASE)
OUTPUT_TYPE_ADVICE = (
    "give a pydantic model, a msgspec.Struct, a dataclass, a TypedDict, a type such as list[int], or a JSON schema"
)
OUTPUT_SCHEMA_ADVICE = "give a JSON schema that is valid and refers to nothing outside itself"


class OutputSpec(msgspec.Struct, frozen=True):
    """What an agent's answer must be. A code fence and blank space around an answer do no harm; other text does."""

    schema: Json
    """The JSON schema, as a model sees it."""
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
            return self._value(_strip_code_fence(text))
        except BaseException as error:  # the checks of a type are anybody's code
            raise ValueError(_complaint_text(_faults_of_error(error))) from error


def output_spec_of(wanted: object, agent: str) -> OutputSpec:
    """What the agent of this name is to answer: a type, or a JSON schema as a dict.

    A type is a pydantic model, or any type that msgspec can decode. `UsageError` if it is neither.
    """
    owner = f"the output of agent {agent!r} is {describe(wanted)}"
    try:
        if isinstance(wanted, dict):
            return _output_of_schema(wanted, owner)
        schema_of_model = getattr(wanted, "model_json_schema", None)
        value_of_model = getattr(wanted, "model_validate_json", None)
        if isinstance(wanted, type) and schema_of_model is not None and value_of_model is not None:
            return OutputSpec(cast("Json", msgspec.to_builtins(schema_of_model())), value_of_model)
        return _output_of_type(wanted)
    except UsageError:
        raise
    except Exception as error:  # a type is anybody's code, and so is a schema
        [(place, why), *_] = _faults_of_error(error)
        why = f"{place}: {why}" if place else why.removeprefix("TypeError: ")
        raise UsageError(
            f"{owner}: {why}; {OUTPUT_SCHEMA_ADVICE if isinstance(wanted, dict) else OUTPUT_TYPE_ADVICE}"
        ) from error


# Types


def _output_of_type(kind: object) -> OutputSpec:
    if kind is None:
        raise TypeError("an answer is something")
    if isinstance(kind, type) and hasattr(kind, "__pydantic_validator__"):
        raise TypeError("of a pydantic dataclass the validators would not be asked; a BaseModel asks them")
    # The first raises what is wrong with the type as given.
    msgspec.json.Decoder(cast("type[object]", kind), dec_hook=decode_hook)
    patterns = TextPatterns()
    patterns.add("", kind)
    decoder = msgspec.json.Decoder(cast("type[object]", without_patterns(kind)), dec_hook=decode_hook)

    def value(text: str) -> object:
        read = decoder.decode(text)
        if patterns:
            patterns.check({"": parse_json(text)})
        return read

    described = schema_of({"answer": VisibleParameter(kind)}, {})
    schema = cast("dict[str, Json]", described["properties"])["answer"]
    return OutputSpec({**schema, "$defs": described["$defs"]} if "$defs" in described else schema, value)


# Schemas


def _output_of_schema(given: Json, owner: str) -> OutputSpec:
    check_json(given)
    schema = copy_json(given)
    check = build_schema_check(schema, owner)
    list(check(None))  # a schema that only goes round in circles shows it here

    def value(text: str) -> object:
        read: object = parse_json(text)
        if faults := list(check(read)):
            raise SchemaMisfit(faults)
        return read

    return OutputSpec(schema, value)


# What is wrong, in words


def _faults_of_error(error: BaseException) -> Sequence[AnswerFault]:
    """What an error of any library says is wrong; its plain text, if it has no parts."""
    match error:
        case SchemaMisfit():
            return error.faults
        case msgspec.ValidationError():
            what, _, place = str(error).partition(" - at `$")
            place = place.removesuffix("`")
            cause = error.__cause__ or error
            own = AnswerFault(format_instance_path((), place), what or describe_error(cause))
            return _listed_faults(cause, place) or [own]
        case msgspec.DecodeError() | Malformed() | TooMuchWork():
            return [AnswerFault("", str(error))]
        case _:
            return _listed_faults(error) or [AnswerFault("", describe_error(error))]


def _listed_faults(error: BaseException, within: str = "") -> list[AnswerFault]:
    """The faults that an error tells apart, as pydantic's does."""
    try:
        errors = getattr(error, "errors", None)
        listed = [] if errors is None else errors(include_url=False)
        return [AnswerFault(format_instance_path(each["loc"], within), str(each["msg"])) for each in listed]
    except Exception:  # it is no such error
        return []


def _complaint_text(faults: Sequence[AnswerFault]) -> str:
    share = MAX_COMPLAINT_CHARS // min(len(faults), MAX_LISTED_FAULTS)
    listed = (f"{place}: {what}" if place else what for place, what in faults[:MAX_LISTED_FAULTS])
    lines = [_shorten_middle(text, share) for text in listed]
    if len(faults) > MAX_LISTED_FAULTS:
        lines.append(f"and {len(faults) - MAX_LISTED_FAULTS} more")
    return f"The answer is not what was asked for: {'; '.join(lines)}. Give the whole JSON again, and it alone."


def _shorten_middle(text: str, share: int) -> str:
    """The text in one line. What is cut is the middle: a value comes first, and what is wrong with it last."""
    text = sanitize(" ".join(text.split())).rstrip(".")
    return text if len(text) <= share else f"{text[: share // 2]}…{text[1 - share // 2 :]}"


def _strip_code_fence(text: str) -> str:
    """The JSON without the code fence around it."""
    text = text.strip()
    if not (text.startswith(CODE_FENCE) and text.endswith(CODE_FENCE)):
        return text
    inner = text.strip("`")  # no JSON begins or ends with one
    language = FENCE_LANGUAGE.match(inner)
    return inner[language.end() :] if language else inner
