"""The application: every verb behind the same door.

Rule 1: who may ask is settled before anything of the request is read.
Rule 2: whatever goes wrong is an answer with a reason. Nothing of the inside gets out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.core.codec import to_json
from antiphon.runtime.desk import Desk
from antiphon.runtime.invoking import seat_person
from antiphon.runtime.keys import keys_of
from antiphon.server.connections import held
from antiphon.server.principals import NOBODY, NoEntry, Principal, admitted
from antiphon.server.problems import JSON, Refused, problem, problem_of
from antiphon.server.reading import body_of, query_of
from antiphon.server.sse import EventStream, gone
from antiphon.server.verbs import House, Nothing, Verb, Visit, holder_of

REASONS = {404: "not_found", 405: "wrong_method"}


def app_of(house: House, verbs: Sequence[Verb]) -> Starlette:
    """The application that answers these verbs."""
    app = Starlette(
        routes=[_route(path, rows, house) for path, rows in _by_path(verbs).items()],
        exception_handlers={HTTPException: _not_there},
    )
    app.router.redirect_slashes = False  # a path is what the document says, and nobody is sent elsewhere
    return app


Answer = Response | EventStream
Door = Callable[[Request], Awaitable[ASGIApp]]


def _by_path(verbs: Sequence[Verb]) -> dict[str, list[Verb]]:
    paths: dict[str, list[Verb]] = {}
    for verb in verbs:
        paths.setdefault(verb.path, []).append(verb)
    return paths


def _route(path: str, rows: Sequence[Verb], house: House) -> Route:
    doors: dict[str, Door] = {verb.method: _door(verb, house) for verb in rows}
    route = Route(path, _chosen(doors), methods=list(doors))
    if route.methods and any(verb.streams for verb in rows):
        route.methods.discard("HEAD")  # it would be a stream of nothing
    return route


def _chosen(doors: dict[str, Door]) -> Callable[[Request], Awaitable[Response]]:
    """One endpoint for all methods of a path, so that a wrong one is told the right ones."""

    async def endpoint(request: Request) -> ASGIApp:
        return await doors["GET" if request.method == "HEAD" else request.method](request)

    return endpoint  # type: ignore[return-value]  # any application will do as an answer


def _door(verb: Verb, house: House) -> Door:
    async def answer(request: Request) -> ASGIApp:
        try:
            visit = await _visit(verb, house, request)
            given = await (_waited(verb, visit) if verb.waits else verb.handle(visit))
        except Exception as error:
            closing = house.hub._desk.closing.is_set() or house.streams.stopping.is_set()
            return problem_of(error, path=request.url.path, closing=closing)
        if isinstance(given, Response | EventStream):
            return given
        return Response(to_json(given), verb.status, media_type=JSON)

    return answer


async def _waited(verb: Verb, visit: Visit) -> object:
    """The answer of a verb that takes a place while it waits."""
    places, holder = visit.house.streams.waiting, visit.holder
    if not places.has_place_for(holder):
        raise Refused(429, "too_many_waiting", "there are too many requests that wait; wait for an answer first")
    with places.taken(holder):
        return await _unless_late(verb.handle(visit), visit)


async def _unless_late(work: Awaitable[object], visit: Visit) -> object:
    """The result, unless the server has to stop, or the client leaves, before. The turn goes on all the same."""
    doing = asyncio.ensure_future(work)
    late = asyncio.ensure_future(visit.house.streams.late.wait())
    left = asyncio.ensure_future(gone(visit.request.receive))
    tasks = (doing, late, left)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        if left.done():
            raise Refused(400, "gone", "the client has left")
        raise Refused(503, "stopping", "the server stops; ask again soon, with the same message_id")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _visit(verb: Verb, house: House, request: Request) -> Visit:
    connection = held(request.scope)
    if not verb.always:
        connection.check_space()
    principal = await _let_in(verb, house, request) if verb.scope is not None else NOBODY
    if verb.scope is not None:
        connection.belongs_to(holder_of(principal, request))
    query: object = query_of(request.query_params, verb.query)
    body: object = Nothing() if verb.takes is None else await body_of(request, verb.takes, house.limits)
    return Visit(house, principal, request, request.path_params, query, body)


async def _let_in(verb: Verb, house: House, request: Request) -> Principal:
    """Who asks, seated in the hub; `Refused` if they may not."""
    desk = house.hub._desk
    principal = admitted(request.headers, keys_of(house.hub), desk.clock.now(), token=house.token)
    if isinstance(principal, NoEntry):
        raise Refused(401, principal.reason, principal.message)
    if not principal.may(verb.scope):
        raise Refused(403, "wrong_scope", f"this needs a key with the scope {verb.scope!r}")
    if principal.name in desk.agents or _is_agent(desk, principal.name):
        raise Refused(403, "not_a_person", f"{principal.name!r} is an agent, for whom nobody else speaks")
    await seat_person(house.hub, principal.name, principal.kind)
    return principal


def _is_agent(desk: Desk, name: str) -> bool:
    """Whether the store knows an agent of this name, who may be absent today."""
    return desk.directory.knows(name) and desk.directory.find(name).kind == "agent"


def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it handles nothing else"
    said = problem(error.status_code, REASONS.get(error.status_code, "refused"), error.detail, path=request.url.path)
    said.headers.update(error.headers or {})
    return said
