"""Every route of the server in one table, and the OpenAPI document that is made from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import cast

import msgspec

from antiphon.core.envelope import CHANNEL_ID_PATTERN, NAME_PATTERN, Envelope, Json
from antiphon.hub.system_channels import REGISTRY_CHANNEL
from antiphon.runtime.channel_lifecycle import Erasure
from antiphon.server import schemas
from antiphon.server.agent_routes import invoke, list_agents, stream_invoke
from antiphon.server.api_keys import Key
from antiphon.server.app import EVENT_STREAM_TYPE, HttpRoute, RequestContext
from antiphon.server.channel_routes import (
    cancel_turns,
    change_context,
    close_channel,
    delete_channel,
    list_channels,
    open_channel,
    post_message,
    read_log,
    release_channel,
    show_channel,
    subscribe,
)
from antiphon.server.chat_protocol import ChatCompletion, ChatRequest, ModelList, ModelRow
from antiphon.server.chat_routes import complete_chat, list_models, show_model
from antiphon.server.operator_routes import decide, list_approvals, list_keys, make_key, revoke_key
from antiphon.server.problems import CHAT_PATH, JSON_TYPE, ChatProblem, Problem
from antiphon.server.transport_routes import receive_message
from antiphon.transports.signed_messages import (
    ID_HEADER,
    SIGNATURE_HEADER,
    SIGNED_ID_PATTERN,
    TIMESTAMP_HEADER,
    TIMESTAMP_PATTERN,
    InboundBody,
)

OpenApiDocument = dict[str, object]

REF_TEMPLATE = "#/components/schemas/{name}"
PATH_PARAM_PATTERN = re.compile(r"{(\w+)}")
PATH_PARAM_SCHEMAS: dict[str, Json] = {
    "name": {"type": "string", "pattern": NAME_PATTERN.pattern.replace(r"\Z", "$").join(("^", ""))},
    "channel_id": {"type": "string", "pattern": CHANNEL_ID_PATTERN.pattern.replace(r"\Z", "$").join(("^", ""))},
    "approval_id": {"type": "string", "minLength": 1, "maxLength": 300, "pattern": "^[A-Za-z0-9_:.@-]+$"},
    "key_id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
}
STATUS_DESCRIPTIONS = {
    400: "The body is no JSON",
    401: "No key or signature, or one that opens nothing",
    403: "The key is not good for this",
    404: "There is no such thing, or the key may not see it",
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
EVENT_SCHEMA: Json = {
    "description": "One event: its name, its data as JSON, and the id to resume from, if it has one",
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": JSON_TYPE},
        "id": {"type": "string"},
    },
    "required": ["data"],
}


LAST_ID_PARAMETER: Json = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that was seen: the stream goes on behind it",
    "schema": {"type": "string", "maxLength": 200},
}


SIGNATURE_PARAMETERS: list[Json] = [
    {"name": name, "in": "header", "required": True, "schema": {"type": "string", "pattern": f"^{pattern}$"}}
    for name, pattern in (
        (ID_HEADER, SIGNED_ID_PATTERN.pattern),
        (TIMESTAMP_HEADER, TIMESTAMP_PATTERN.pattern),
        (SIGNATURE_HEADER, "v1=[0-9a-f]{64}"),
    )
]


def openapi_document(routes: Sequence[HttpRoute]) -> OpenApiDocument:
    """The document of these routes."""
    named = [kind for route in routes for kind in (route.takes, route.gives, route.query)]
    problems = [Problem, ChatProblem] if any(route.path.startswith(CHAT_PATH) for route in routes) else [Problem]
    types = [*(kind for kind in named if kind not in (None, bytes, dict)), *problems]
    _, components = msgspec.json.schema_components(types, schema_hook=_any_json_schema, ref_template=REF_TEMPLATE)
    queries = {route.query.__name__ for route in routes}
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _route_operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": version("antiphon"), "description": "A hub of agents over HTTP."},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _any_json_schema(kind: type) -> Json:
    """The schema of any JSON."""
    if kind is not object:
        raise TypeError(f"there is no schema of {kind.__name__}")
    return {"description": "any JSON"}


def _route_operation(route: HttpRoute, components: dict[str, Json]) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_parameters(route, components.get(route.query.__name__, {}))],
        "responses": {str(route.status): _success_response(route), **_problem_responses(route)},
    }
    if route.scope is not None:
        operation["security"] = [{"key": []}]
        operation["x-scope"] = route.scope
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": _schema_ref(route.takes)}}}
    if route.streams:
        if route.method == "GET":
            cast("Json", operation["responses"])["204"] = {"description": "Nothing will ever come behind the last id"}
        cast("list[Json]", operation["parameters"]).append(LAST_ID_PARAMETER)
    if route.is_signed:
        cast("list[Json]", operation["parameters"]).extend(SIGNATURE_PARAMETERS)
    return operation


def _parameters(route: HttpRoute, query: Json) -> Iterable[Json]:
    for name in PATH_PARAM_PATTERN.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": PATH_PARAM_SCHEMAS[name]}
    for name, schema in cast("dict[str, Json]", query.get("properties", {})).items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _success_response(route: HttpRoute) -> Json:
    if route.streams:
        return {"description": route.summary, "content": {EVENT_STREAM_TYPE: {"schema": EVENT_SCHEMA}}}
    content: Json = {JSON_TYPE: {"schema": _schema_ref(route.gives)}}
    if "stream" in getattr(route.takes, "__struct_fields__", ()):
        content[EVENT_STREAM_TYPE] = {"schema": EVENT_SCHEMA}
    return {"description": route.summary, "content": content}


def _problem_responses(route: HttpRoute) -> Json:
    content = {JSON_TYPE: {"schema": _schema_ref(ChatProblem if route.path.startswith(CHAT_PATH) else Problem)}}
    statuses = {422, 503, *route.refuses}
    statuses |= {401, 403, 429} if route.scope is not None else set()
    statuses |= {404} if "{" in route.path else set()
    statuses |= {400, 408, 413, 415} if route.takes is not None else set()
    return {str(each): {"description": STATUS_DESCRIPTIONS[each], "content": content} for each in sorted(statuses)}


def _schema_ref(kind: type) -> Json:
    if kind is OpenApiDocument or kind is dict:
        return {"type": "object"}
    return {"$ref": REF_TEMPLATE.format(name=kind.__name__)}


async def show_health(ctx: RequestContext) -> schemas.Health:
    """Check that the server runs and its store can be used."""
    await ctx.hub.core.store.head(REGISTRY_CHANNEL)
    return schemas.Health("ok", version("antiphon"))


async def show_document(ctx: RequestContext) -> OpenApiDocument:
    """Show this document."""
    return openapi_document(ROUTES)


AGENT, CHANNEL, CHAT = "/agents/{name}", "/channels/{channel_id}", "/v1/chat/completions"
TURN_REFUSALS = (409, 500, 502, 504)
CHAT_REFUSALS = (404, 429, *TURN_REFUSALS)
INBOUND_REFUSALS = (401, 403, 409, 500)

ROUTES: tuple[HttpRoute, ...] = (
    HttpRoute("GET", "/health", show_health, None, schemas.Health, always=True),
    HttpRoute("GET", "/openapi.json", show_document, None, OpenApiDocument),
    HttpRoute("GET", "/agents", list_agents, "invoke", schemas.AgentList),
    HttpRoute(
        "POST", f"{AGENT}/invoke", invoke, "invoke", schemas.Answer, schemas.Question, refuses=TURN_REFUSALS, waits=True
    ),
    HttpRoute(
        "POST",
        f"{AGENT}/stream_invoke",
        stream_invoke,
        "invoke",
        bytes,
        schemas.Question,
        schemas.TokensQuery,
        refuses=(409,),
        streams=True,
    ),
    HttpRoute("GET", "/channels", list_channels, "read", schemas.ChannelList, query=schemas.ChannelQuery),
    HttpRoute(
        "POST", "/channels", open_channel, "write", schemas.ChannelState, schemas.Opening, status=201, refuses=(409,)
    ),
    HttpRoute("GET", CHANNEL, show_channel, "read", schemas.ChannelState),
    HttpRoute("DELETE", CHANNEL, delete_channel, "operate", Erasure, refuses=(409,)),
    HttpRoute("GET", f"{CHANNEL}/log", read_log, "read", schemas.LogPage, query=schemas.LogQuery),
    HttpRoute("GET", f"{CHANNEL}/subscribe", subscribe, "read", bytes, query=schemas.SubscribeQuery, streams=True),
    HttpRoute(
        "POST", f"{CHANNEL}/messages", post_message, "write", Envelope, schemas.MessageBody, status=201, refuses=(409,)
    ),
    HttpRoute(
        "POST", f"{CHANNEL}/context", change_context, "write", schemas.ChannelState, schemas.Changes, refuses=(409,)
    ),
    HttpRoute(
        "POST", f"{CHANNEL}/release", release_channel, "write", schemas.ChannelState, schemas.Release, refuses=(409,)
    ),
    HttpRoute("POST", f"{CHANNEL}/close", close_channel, "write", schemas.ChannelEnd, schemas.Reason, refuses=(409,)),
    HttpRoute("POST", f"{CHANNEL}/cancel", cancel_turns, "write", schemas.Cancelled, schemas.Reason, refuses=(409,)),
    HttpRoute("GET", "/approvals", list_approvals, "approve", schemas.ApprovalList, query=schemas.ApprovalQuery),
    HttpRoute("POST", "/approvals/{approval_id}", decide, "approve", schemas.Decided, schemas.Choice, refuses=(409,)),
    HttpRoute("GET", "/keys", list_keys, "operate", schemas.KeyList),
    HttpRoute("POST", "/keys", make_key, "operate", schemas.KeyMade, schemas.KeyWish, status=201),
    HttpRoute("DELETE", "/keys/{key_id}", revoke_key, "operate", Key),
    HttpRoute(
        "POST",
        "/transports/{name}",
        receive_message,
        None,
        schemas.Received,
        InboundBody,
        is_signed=True,
        status=202,
        refuses=INBOUND_REFUSALS,
    ),
    HttpRoute("GET", "/v1/models", list_models, "invoke", ModelList),
    HttpRoute("GET", "/v1/models/{name}", show_model, "invoke", ModelRow),
    HttpRoute("POST", CHAT, complete_chat, "invoke", ChatCompletion, ChatRequest, refuses=CHAT_REFUSALS, waits=True),
)
