"""Who asks: the participant that a key speaks for, and what the key is good for.

Rule 1: the sender is whoever the key is of. Nobody says in a request who they are.
Rule 2: while no key was ever made the server is open, to this machine alone, and whoever asks is `user`. Once there has
        been one, nobody is let in without, even if all of them are gone.
Rule 3: a key travels in a header, never in an address, where it would be logged.
Rule 4: of a key that does not open, nobody is told why, except that it has expired or was revoked, if it was right.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon.core.hosts import is_loopback
from antiphon.core.instants import Instant
from antiphon.hub.keys import SCOPES, Key, KeyRing

USER = "user"
BEARER = "bearer "


class Principal(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    """The participant that speaks."""
    kind: str
    scopes: frozenset[str]
    key_id: str = ""
    """The key that was shown; "" on a server that is open."""

    def may(self, scope: str | None) -> bool:
        """Whether this is permitted."""
        return scope is None or scope in self.scopes


NOBODY = Principal("", "service", frozenset())
"""Somebody who showed no key that opens anything."""
ANYBODY = Principal(USER, "human", frozenset(SCOPES))
"""Whoever asks a server that is open."""


class NoEntry(msgspec.Struct, frozen=True):
    """Why somebody is not let in."""

    reason: str
    message: str


def admitted(headers: Mapping[str, str], ring: KeyRing, at: Instant) -> Principal | NoEntry:
    """Who asks, by the key in the headers; why they are not let in, otherwise."""
    secret = shown_key(headers)
    if not ring.guarded:
        return ANYBODY if is_own_name(headers.get("host", "")) and is_own_origin(headers) else STRANGE_PLACE
    if not secret:
        return NoEntry("no_key", "show a key in the header Authorization: Bearer …")
    key = ring.find(secret)
    if key is None:
        return NoEntry("bad_key", "the key in the header Authorization opens nothing here")
    status = key.status(at)
    if status != "active":
        return NoEntry(f"key_{status}", f"the key {key.key_id} is {status}; have another made")
    return principal_of(key)


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
