"""The OpenAPI document, made from the table of verbs and the types that they take and give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import cast

import msgspec

from antiphon.core.events import Json
from antiphon.core.ids import CHANNEL_ID, NAME
from antiphon.server.problems import CHAT, JSON, ChatProblem, Problem
from antiphon.server.verbs import STREAM, Verb

Document = dict[str, object]

TEMPLATE = "#/components/schemas/{name}"
PLACE = re.compile(r"{(\w+)}")
PLACES: dict[str, Json] = {
    "name": {"type": "string", "pattern": NAME.pattern.replace(r"\Z", "$").join(("^", ""))},
    "channel_id": {"type": "string", "pattern": CHANNEL_ID.pattern.replace(r"\Z", "$").join(("^", ""))},
    "approval_id": {"type": "string", "minLength": 1, "maxLength": 300, "pattern": "^[A-Za-z0-9_:.@-]+$"},
    "key_id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
}
STATUSES = {
    400: "The body is no JSON",
    401: "No key, or none that opens anything",
    403: "The key is not good for this",
    404: "There is no such thing, or not for whoever asks",
    408: "The body did not come in time",
    409: "Not possible as things are",
    413: "Too large",
    415: "The body is not JSON by its type",
    422: "What was sent does not have the right shape, or makes no sense",
    429: "Too many streams, connections or waiting requests",
    500: "Something went wrong inside",
    502: "The model failed",
    503: "The server stops, or its store cannot be used now",
    504: "The model took too long",
}
READING = (400, 408, 413, 415)
EVENT: Json = {
    "description": "One event: its name, its data as JSON, and the id to resume from, if it has one",
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": JSON},
        "id": {"type": "string"},
    },
    "required": ["data"],
}


def document_of(verbs: Sequence[Verb]) -> Document:
    """The document of these verbs."""
    types = [kind for verb in verbs for kind in (verb.takes, verb.gives, verb.query) if kind not in (None, bytes, dict)]
    problems = [Problem, ChatProblem] if any(verb.path.startswith(CHAT) for verb in verbs) else [Problem]
    _, components = msgspec.json.schema_components([*types, *problems], schema_hook=_anything, ref_template=TEMPLATE)
    queries = {verb.query.__name__ for verb in verbs}
    paths: dict[str, Json] = {}
    for verb in verbs:
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": version("antiphon"), "description": "A hub of agents over HTTP."},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _anything(kind: type) -> Json:
    """The schema of whatever JSON there is."""
    if kind is not object:
        raise TypeError(f"there is no schema of {kind.__name__}")
    return {"description": "any JSON"}


def _operation(verb: Verb, components: dict[str, Json]) -> Json:
    operation: Json = {
        "operationId": verb.name,
        "summary": verb.summary,
        "parameters": [*_places(verb.path), *_parameters(components.get(verb.query.__name__, {}))],
        "responses": {str(verb.status): _given(verb), **_problems(verb)},
    }
    if verb.scope is not None:
        operation["security"] = [{"key": []}]
        operation["x-scope"] = verb.scope
    if verb.takes is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _schema(verb.takes)}}}
    if verb.streams:
        operation["responses"] = {**cast("Json", operation["responses"]), **_ended(verb)}
        operation["parameters"] = [*cast("list[Json]", operation["parameters"]), _last_id()]
    return operation


def _places(path: str) -> Iterable[Json]:
    for name in PLACE.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": PLACES[name]}


def _parameters(query: Json) -> Iterable[Json]:
    for name, schema in cast("dict[str, Json]", query.get("properties", {})).items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _last_id() -> Json:
    return {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "The id of the last event that was seen: the stream goes on behind it",
        "schema": {"type": "string", "maxLength": 200},
    }


def _ended(verb: Verb) -> Json:
    return {"204": {"description": "Nothing will ever come behind the last id"}} if verb.method == "GET" else {}


def _refusals(verb: Verb) -> set[int]:
    found = {422, 503, *verb.refuses}
    found |= {401, 403, 429} if verb.scope is not None else set()
    found |= {404} if "{" in verb.path else set()
    found |= set(READING) if verb.takes is not None else set()
    return found


def _given(verb: Verb) -> Json:
    if verb.streams:
        return {"description": verb.summary, "content": {STREAM: {"schema": EVENT}}}
    content: Json = {JSON: {"schema": _schema(verb.gives)}}
    if "stream" in getattr(verb.takes, "__struct_fields__", ()):
        content[STREAM] = {"schema": EVENT}
    return {"description": verb.summary, "content": content}


def _problems(verb: Verb) -> Json:
    schema = _schema(ChatProblem if verb.path.startswith(CHAT) else Problem)
    refusals = sorted(_refusals(verb))
    return {str(each): {"description": STATUSES[each], "content": {JSON: {"schema": schema}}} for each in refusals}


def _schema(kind: type) -> Json:
    return {"type": "object"} if kind is Document or kind is dict else {"$ref": TEMPLATE.format(name=kind.__name__)}
