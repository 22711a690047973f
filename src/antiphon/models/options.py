"""What a user may say about every request to a model: checked when the model is made.

Rule 1: an option has the name that the provider gives it, and is sent as it is.
Rule 2: what the provider knows and we do not goes into `body`; a value of None there takes something out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from antiphon.core.codec import Malformed, check_json, copied
from antiphon.core.errors import UsageError
from antiphon.core.words import shown
from antiphon.models.endpoint import checked_headers

OutputSchema = Literal["sent", "strict", "told"]
"""How a model learns of the schema of its answer: in the request, there and to be kept to strictly, or in words."""

OUTPUT_SCHEMAS = ("sent", "strict", "told")


class Options(TypedDict, total=False):
    """What any model of a provider takes besides its name, address and key."""

    max_tokens: int
    headers: Mapping[str, str]
    """More headers, for each request."""
    body: Mapping[str, object]
    """More fields of the request, or other values for those that it has; None takes one out."""
    output_schema: OutputSchema
    plain_http: bool
    """Whether an address beyond this machine may be asked without encryption."""


def checked_options(given: Mapping[str, object], known: type[Options]) -> dict[str, object]:
    """A copy of the options; `UsageError` if there is no such option, or it cannot be sent."""
    for name in given:
        if name not in known.__annotations__ and name not in Options.__annotations__:
            raise UsageError(
                f"a model has no option {shown(name)}; what the provider knows goes into body={{{name!r}: …}}"
            )
    options = {name: value for name, value in given.items() if value is not None}
    if "headers" in options:
        options["headers"] = checked_headers(options["headers"])
    body = options.get("body", {})
    if not isinstance(body, Mapping):
        raise UsageError(f"body is {shown(body)}; give a dict of fields")
    schema = options.get("output_schema", "sent")
    if schema not in OUTPUT_SCHEMAS:
        raise UsageError(f"output_schema is {shown(schema)}; give one of {', '.join(OUTPUT_SCHEMAS)}")
    try:
        check_json(dict(options, body=dict(body)))
    except Malformed as error:
        raise UsageError(f"the options of a model are sent as JSON: {error}") from error
    return copied(options)


def checked_name(name: object) -> str:
    """The name of a model; `UsageError` if it is none."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"the name of a model is {shown(name)}; give it as the provider writes it")
    return name


def sent_options(options: Mapping[str, object]) -> dict[str, object]:
    """Those that are sent as they are."""
    ours = ("headers", "body", "output_schema", "plain_http")
    return {name: value for name, value in options.items() if name not in ours}


def with_body(fields: dict[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """The fields of a request, with what the user wants otherwise."""
    more = options.get("body")
    merged = {**fields, **more} if isinstance(more, dict) else fields
    return {name: value for name, value in merged.items() if value is not None}


def headers_of(options: Mapping[str, object]) -> dict[str, str]:
    """The user's own headers."""
    headers = options.get("headers")
    return dict(headers) if isinstance(headers, dict) else {}


def shown_options(options: Mapping[str, object]) -> str:
    """The options as they were written; of headers and of the body only the names, for their values may be secrets."""
    told = {name: sorted(value) if isinstance(value, dict) else value for name, value in options.items()}
    return "".join(f", {name}={shown(value)}" for name, value in told.items())
