"""What a request may ask for: one row for each verb.

Rule 1: a row is everything there is to know of a verb. Routing, permission, reading, the OpenAPI document and the tests
        are made from the same rows.
Rule 2: every verb names the scope that it needs; one that needs none says so.
Rule 3: what a verb takes and gives are types. What does not fit them is refused before the verb is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar

import msgspec
from starlette.requests import Request

from antiphon.runtime.hub import Hub
from antiphon.server.chat_memory import Memory
from antiphon.server.connections import address_of
from antiphon.server.limits import Limits
from antiphon.server.principals import Principal
from antiphon.server.streams import Streams
from antiphon.server.tokens import Token

T = TypeVar("T")

Method = Literal["GET", "POST", "PUT", "DELETE"]
Scope = Literal["invoke", "read", "write", "approve", "operate"]
STREAM = "text/event-stream"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields at all."""


class House(msgspec.Struct, frozen=True):
    """What all requests share."""

    hub: Hub
    limits: Limits
    streams: Streams
    token: Token | None = None
    """What a request shows while there are no keys; None if the server is open, or there are keys."""
    memory: Memory = msgspec.field(default_factory=Memory)
    """Which conversations of chat clients it knows."""


def holder_of(principal: Principal, request: Request) -> str:
    """Who has a share of connections and places: the key, or without one the address that the request comes from."""
    if principal.key_id:
        return f"key {principal.key_id}"
    return address_of(request.client.host if request.client else "")


class Visit(msgspec.Struct, frozen=True):
    """One request: who asks, and for what, all of it checked."""

    house: House
    principal: Principal
    request: Request
    places: Mapping[str, str]
    """What stands in the path."""
    query: object
    body: object

    @property
    def holder(self) -> str:
        """The key that the request shows, or the address it comes from: what has a share of connections and places."""
        return holder_of(self.principal, self.request)

    @property
    def hub(self) -> Hub:
        return self.house.hub

    def asked(self, kind: type[T]) -> T:
        """What the path asks for behind the `?`."""
        assert isinstance(self.query, kind), "it was read as the verb says"
        return self.query

    def said(self, kind: type[T]) -> T:
        """What the body holds."""
        assert isinstance(self.body, kind), "it was read as the verb says"
        return self.body


Handle = Callable[[Visit], Awaitable[object]]
"""Does what was asked, and gives a value of the type that its verb names, or a response."""


class Verb(msgspec.Struct, frozen=True):
    """One thing that can be asked for."""

    method: Method
    path: str
    handle: Handle
    scope: Scope | None
    """What a key must be good for; None if everybody may ask."""
    summary: str
    gives: type
    takes: type | None = None
    """The type of the body; None if there is none."""
    query: type = Nothing
    """What may stand behind the `?`."""
    status: int = 200
    refuses: tuple[int, ...] = ()
    """Beside what every verb may answer: the statuses of its refusals."""
    streams: bool = False
    """Whether it answers with events for as long as they come."""
    waits: bool = False
    """Whether it may wait for long, so that it needs a place, and must be told when the server stops."""
    always: bool = False
    """Whether it is answered also when there are too many connections."""

    @property
    def name(self) -> str:
        """A name that no other verb has."""
        handle = getattr(self.handle, "__name__", "")
        return str(handle)
