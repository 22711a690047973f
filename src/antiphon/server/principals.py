"""Who asks: the participant that a key speaks for, and what the key is good for.

Rule 1: the sender is whoever the key is of. Nobody says in a request who they are.
Rule 2: while no key was ever made the server answers this machine alone, to requests that show its token, and the
        sender is `user`. A server that was told to be open wants no token. From the first key on neither counts, even
        if all keys are gone.
Rule 3: a key travels in a header, never in an address, where it would be logged.
Rule 4: of a key that does not open, nobody is told why, except that it has expired or was revoked, if it was right.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon.core.hosts import is_loopback
from antiphon.core.instants import Instant
from antiphon.hub.keys import SCOPES, Key, KeyRing
from antiphon.server.tokens import Token

USER = "user"
BEARER = "bearer "


class Principal(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    """The participant that speaks."""
    kind: str
    scopes: frozenset[str]
    key_id: str = ""
    """The key that was shown; "" on a server without keys."""

    def may(self, scope: str | None) -> bool:
        """Whether this is permitted."""
        return scope is None or scope in self.scopes


NOBODY = Principal("", "service", frozenset())
"""Somebody who showed no key that opens anything."""
ANYBODY = Principal(USER, "human", frozenset(SCOPES))
"""The principal of a server without keys."""


class NoEntry(msgspec.Struct, frozen=True):
    """Why somebody is not let in."""

    reason: str
    message: str


def admitted(
    headers: Mapping[str, str], ring: KeyRing, at: Instant, *, token: Token | None = None
) -> Principal | NoEntry:
    """Who asks, by the key or token in the headers; why the request is refused, otherwise."""
    if not ring.guarded:
        return _without_keys(headers, token)
    secret = shown_key(headers)
    if not secret:
        return NoEntry("no_key", "show a key in the header Authorization: Bearer …")
    key = ring.find(secret)
    if key is None:
        return NoEntry("bad_key", "the key in the header Authorization opens nothing here")
    status = key.status(at)
    if status != "active":
        return NoEntry(f"key_{status}", f"the key {key.key_id} is {status}; have another made")
    return principal_of(key)


def _without_keys(headers: Mapping[str, str], token: Token | None) -> Principal | NoEntry:
    """The principal of a request to a server without keys; one without a token is open to this machine."""
    if not is_own_name(headers.get("host", "")) or not is_own_origin(headers):
        return STRANGE_PLACE
    if token is None:
        return ANYBODY
    secret = shown_key(headers)
    if not secret:
        return NoEntry("no_key", f"show the server's token in the header Authorization: Bearer …; {token.whereabouts}")
    if not token.opens(secret):
        return NoEntry("bad_key", f"the header Authorization does not hold the server's token; {token.whereabouts}")
    return ANYBODY


STRANGE_PLACE = NoEntry(
    "no_key",
    "without keys this server answers this machine alone, by the name localhost; make a key: antiphon keys make",
)


def principal_of(key: Key) -> Principal:
    """Whom a key speaks for."""
    return Principal(key.participant, key.kind, frozenset(key.scopes), key.key_id)


def still_good(principal: Principal, ring: KeyRing, at: Instant) -> bool:
    """Whether whoever was let in would be now."""
    if not principal.key_id:
        return not ring.guarded
    return any(key.key_id == principal.key_id and key.status(at) == "active" for key in ring.keys)


def shown_key(headers: Mapping[str, str]) -> str:
    """The key that a request shows; "" if it shows none."""
    given = headers.get("authorization", "")
    return given[len(BEARER) :].strip() if given.lower().startswith(BEARER) else headers.get("x-api-key", "")


def is_own_name(host: str) -> bool:
    """Whether a request was addressed to this machine by a name that nobody else can claim.

    A page from elsewhere can have its own name lead here, but not change this.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]"))


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Whether no page from elsewhere makes this request."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")
