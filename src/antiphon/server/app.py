"""The application: from a request to its route's answer.

Rule 1: an `HttpRoute` is everything there is to know of a route. Routing, permission, parsing, the OpenAPI document and
        the tests are made from the same rows.
Rule 2: every route names the scope that it needs; one that needs none says so.
Rule 3: a request is authenticated before its query or body is read.
Rule 4: the query and the body are decoded to the types of the row. Invalid ones are refused with their
        place and what is expected there, before the route is called. A repeated key is invalid.
Rule 5: a body is counted while it arrives. One that is too large is refused before all of it is read.
Rule 6: every error is an answer with a reason. No internal text gets out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.core.codec import Malformed, check_json, check_unique_keys, check_value_count, decode_plain_json, to_json
from antiphon.core.text import explain_decode_error
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import ensure_person_registered
from antiphon.server.api_keys import KeyRing, KeyScope
from antiphon.server.auth import NO_PRINCIPAL, Principal, authenticate
from antiphon.server.chat_protocol import ChatMemory
from antiphon.server.connections import address_holder, connection_of
from antiphon.server.event_streams import EventStream, first_ended, wait_for_disconnect
from antiphon.server.limits import ServerLimits, StreamSlots
from antiphon.server.problems import JSON_TYPE, Fault, RequestRefused, error_response, problem_response
from antiphon.server.schemas import StrictParams
from antiphon.server.server_token import ServerToken

T = TypeVar("T")

EVENT_STREAM_TYPE = "text/event-stream"


class AppState(msgspec.Struct, frozen=True):
    """What all requests of a server share."""

    hub: Hub
    limits: ServerLimits
    streams: StreamSlots
    keys: KeyRing
    token: ServerToken | None = None
    """The credential while there are no keys; None if the server is open, or there are keys."""
    memory: ChatMemory = msgspec.field(default_factory=ChatMemory)


class RequestContext(msgspec.Struct, frozen=True):
    """One request, authenticated and decoded."""

    app_state: AppState
    principal: Principal
    holder: str
    """What limits apply to: the key, or without one the client's address."""
    request: Request
    query: object
    body: object

    @property
    def hub(self) -> Hub:
        return self.app_state.hub

    @property
    def keys(self) -> KeyRing:
        return self.app_state.keys

    def query_as(self, kind: type[T]) -> T:
        """The query, as the type that the route names."""
        assert isinstance(self.query, kind), "it was decoded so"
        return self.query

    def body_as(self, kind: type[T]) -> T:
        """The body, as the type that the route names."""
        assert isinstance(self.body, kind), "it was decoded so"
        return self.body


RouteHandler = Callable[[RequestContext], Awaitable[object]]
"""Returns a value of the type that its route names, or a response."""


class HttpRoute(msgspec.Struct, frozen=True):
    """One route: a method and a path, and all there is to know of them."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handle: RouteHandler
    scope: KeyScope | None
    """The scope that a key must have; None if no key is needed."""
    gives: type
    takes: type | None = None
    """The type of the body; None if there is none."""
    query: type = StrictParams
    status: int = 200
    refuses: tuple[int, ...] = ()
    """The statuses of its refusals, besides those of every route."""
    streams: bool = False
    """Whether it answers with a stream of events."""
    waits: bool = False
    """Whether it may wait for an agent, so that it needs a place, and ends when the server stops."""
    always: bool = False
    """Whether it is answered even if there are too many connections."""
    is_signed: bool = False
    """Whether a signature authenticates the body, so that the route reads it as it was sent."""

    @property
    def name(self) -> str:
        """The name of its handler, unique among routes."""
        return str(getattr(self.handle, "__name__", ""))

    @property
    def summary(self) -> str:
        """The first line of its handler's docstring."""
        return (self.handle.__doc__ or "").partition("\n")[0].removesuffix(".")


STATUS_REASONS = {404: "not_found", 405: "wrong_method"}


def app_of(app_state: AppState, routes: Sequence[HttpRoute]) -> Starlette:
    """The application with these routes."""
    paths: dict[str, list[HttpRoute]] = {}
    for route in routes:
        paths.setdefault(route.path, []).append(route)
    app = Starlette(
        routes=[_starlette_route(path, rows, app_state) for path, rows in paths.items()],
        exception_handlers={HTTPException: _http_exception_response},
    )
    app.router.redirect_slashes = False  # a path is what the document says
    return app


Endpoint = Callable[[Request], Awaitable[ASGIApp]]


def _starlette_route(path: str, rows: Sequence[HttpRoute], app_state: AppState) -> Route:
    """One route for all methods of a path, so that Starlette answers a wrong one with those allowed."""
    endpoints: dict[str, Endpoint] = {row.method: _make_endpoint(row, app_state) for row in rows}

    async def endpoint(request: Request) -> ASGIApp:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    route = Route(path, endpoint, methods=list(endpoints))
    if route.methods and any(row.streams for row in rows):
        route.methods.discard("HEAD")  # a stream has no head without a body
    return route


def _make_endpoint(route: HttpRoute, app_state: AppState) -> Endpoint:
    async def answer(request: Request) -> ASGIApp:
        try:
            ctx = await _request_context(route, app_state, request)
            given = await (_handle_waiting(route, ctx) if route.waits else route.handle(ctx))
        except Exception as error:
            closing = app_state.hub.core.closing.is_set() or app_state.streams.stopping.is_set()
            return error_response(error, path=request.url.path, closing=closing)
        if isinstance(given, Response | EventStream):
            return given
        return Response(to_json(given), route.status, media_type=JSON_TYPE)

    return answer


async def _handle_waiting(route: HttpRoute, ctx: RequestContext) -> object:
    """The answer of a route that takes a place while it waits."""
    places, holder = ctx.app_state.streams.waiting, ctx.holder
    if not places.has_place_for(holder):
        raise RequestRefused(429, "too_many_waiting", "there are too many requests that wait; wait for an answer first")
    with places.taken(holder):
        return await _result_unless_late(route.handle(ctx), ctx)


async def _result_unless_late(work: Awaitable[object], ctx: RequestContext) -> object:
    """The result, unless the server stops or the client disconnects first. The turn goes on all the same."""
    doing = asyncio.ensure_future(work)
    left = asyncio.ensure_future(wait_for_disconnect(ctx.request.receive))
    ended = await first_ended(doing, left, ctx.app_state.streams.late.wait())
    if doing in ended:
        return doing.result()
    if left in ended:
        raise RequestRefused(400, "gone", "the client has left")
    raise RequestRefused(503, "stopping", "the server stops; ask again soon, with the same message_id")


async def _request_context(route: HttpRoute, app_state: AppState, request: Request) -> RequestContext:
    connection = connection_of(request.scope)
    if not route.always:
        connection.check_space()
    principal, holder = NO_PRINCIPAL, ""
    if route.scope is not None:
        principal = await _admit_principal(route, app_state, request)
        address = request.client.host if request.client else ""
        holder = f"key {principal.key_id}" if principal.key_id else address_holder(address)
        connection.pool.move(connection, holder)
    query: object = parse_query(request.query_params, route.query)
    takes = None if route.is_signed else route.takes
    body: object = None if takes is None else await read_body(request, takes, app_state.limits)
    return RequestContext(app_state, principal, holder, request, query, body)


async def _admit_principal(route: HttpRoute, app_state: AppState, request: Request) -> Principal:
    """The principal of a request, registered in the hub; `RequestRefused` if it may not use this route."""
    core = app_state.hub.core
    principal = authenticate(request.headers, app_state.keys, core.clock.now(), token=app_state.token)
    if not principal.may(route.scope):
        raise RequestRefused(403, "wrong_scope", f"this needs a key with the scope {route.scope!r}")
    # The store may know an agent of this name that is not registered in this hub.
    known = core.directory.find(principal.name).kind if core.directory.knows(principal.name) else ""
    if principal.name in core.agents or known == "agent":
        raise RequestRefused(403, "not_a_person", f"{principal.name!r} is an agent, which no key can speak for")
    await ensure_person_registered(core, principal.name, principal.kind)
    return principal


def _http_exception_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it handles nothing else"
    fault = Fault(STATUS_REASONS.get(error.status_code, "refused"), error.detail)
    said = problem_response(error.status_code, fault, path=request.url.path)
    said.headers.update(error.headers or {})
    return said


LIMIT_COMPLAINT = re.compile(r"Expected `(\w+)` (?P<limit>[^`]+) - at `\$\.?(?P<place>[^`]*)`\Z")
ENUM_COMPLAINT = re.compile(r"Invalid enum value (?P<value>.+) - at `\$\.?(?P<place>[^`]*)`\Z", re.S)
BYTE_POSITION = re.compile(r"\(byte (\d+)\)")

MAX_BODY_VALUES = 32_000
MAX_BODY_DEPTH = 180
"""A body may hold the knobs of a channel, such as a graph of a thousand transitions, and its context. Its parts have
tighter limits of their own."""


async def read_body(request: Request, kind: type[T], limits: ServerLimits) -> T:
    """The body as a value of this type; `RequestRefused` if it is invalid."""
    return decode_body(await read_raw_body(request, limits), kind)


async def read_raw_body(request: Request, limits: ServerLimits) -> bytes:
    """The body as it was sent; `RequestRefused` if it is no JSON by its headers, too large, or too slow."""
    _check_body_headers(request.headers, limits)
    end = asyncio.get_running_loop().time() + limits.body_seconds
    try:
        async with asyncio.timeout_at(end) as patience:
            return await _read_body_chunks(request, limits, patience, end=end)
    except TimeoutError:
        late = f"the body did not come within {limits.body_seconds:g} seconds"
        stalled = f"nothing of the body came for {limits.body_stalled_seconds:g} seconds"
        raise RequestRefused(408, "too_slow", late if patience.when() == end else stalled, close=True) from None
    except ClientDisconnect:
        raise RequestRefused(400, "gone", "the client has left") from None


def decode_body(raw: bytes, kind: type[T]) -> T:
    """JSON as a value of this type."""
    try:
        check_value_count(raw, most=MAX_BODY_VALUES)
        plain: object = decode_plain_json(raw)
        check_json(plain, most=MAX_BODY_VALUES, deepest=MAX_BODY_DEPTH)
        check_unique_keys(raw)
        return msgspec.convert(plain, type=kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(422, "bad_body", f"the body: {_explain_complaint(str(error))}") from error
    except Malformed as error:
        reason = "bad_body" if error.reason == "malformed" else error.reason
        raise RequestRefused(413 if reason == "too_large" else 422, reason, f"the body: {error}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        found = BYTE_POSITION.search(str(error))
        where = f" from byte {found[1]} on" if found else ""
        raise RequestRefused(400, "no_json", f"the body is no JSON{where}; send JSON in UTF-8") from error


def _explain_complaint(complaint: str) -> str:
    """A decoder's complaint, as a sentence for clients."""
    if limited := LIMIT_COMPLAINT.match(complaint):
        return f"{limited['place'] or 'it'} must be {limited[1]} {limited['limit']}"
    if choice := ENUM_COMPLAINT.match(complaint):
        return f"{choice['place'] or 'it'} is {choice['value']}, which is none of its values"
    plain = explain_decode_error(complaint)
    return plain if plain != complaint else "it does not have the right shape; GET /openapi.json describes it"


def parse_query(given: Mapping[str, str], kind: type[T]) -> T:
    """The query as a value of this type; `RequestRefused` if it is invalid."""
    try:
        return msgspec.convert(dict(given), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(422, "bad_query", f"the query: {_explain_complaint(str(error))}") from error


def page_bytes_of(value: object) -> int:
    """The bytes that a value takes on a page, with the comma behind it."""
    return len(to_json(value)) + 1


def _check_body_headers(headers: Mapping[str, str], limits: ServerLimits) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise RequestRefused(415, "not_json", f"the body is {kind or 'of no type'}; send {JSON_TYPE}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(415, "encoded", "the body is encoded; send it as it is")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.body_bytes:
        raise _body_too_large(limits.body_bytes)


async def _read_body_chunks(request: Request, limits: ServerLimits, patience: asyncio.Timeout, *, end: float) -> bytes:
    """The body, awaited until this time, and no longer than a pause may be without a chunk."""
    body, now = bytearray(), asyncio.get_running_loop().time
    patience.reschedule(min(end, now() + limits.body_stalled_seconds))
    async for chunk in request.stream():
        patience.reschedule(min(end, now() + limits.body_stalled_seconds))
        body += chunk
        if len(body) > limits.body_bytes:
            raise _body_too_large(limits.body_bytes)
    return bytes(body)


def _body_too_large(most: int) -> RequestRefused:
    return RequestRefused(413, "too_large", f"the body has more than {most} bytes")
