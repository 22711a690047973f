"""Authentication: the participant and scopes of a request, by its key, or by the token of a server without keys.

Rule 1: the participant is that of the key. A request cannot name another.
Rule 2: until the first key is made the server answers this machine alone, to requests with its token, as participant
        `user`. An open server needs no token. From the first key on neither is accepted, even if all keys are revoked.
Rule 3: a key is sent in a header, never in a URL, where it would be logged.
Rule 4: a refusal says no more than that a key is wrong; that it is expired or revoked, only if the secret was right.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon._net import is_loopback
from antiphon.core.envelope import Instant
from antiphon.hub.clock import Clock
from antiphon.server.api_keys import KEY_SCOPES, KeyRing
from antiphon.server.problems import RequestRefused
from antiphon.server.server_token import ServerToken

BEARER_PREFIX = "bearer "


class Principal(msgspec.Struct, frozen=True):
    """The authenticated participant of a request."""

    name: str
    kind: str
    scopes: frozenset[str]
    key_id: str = ""
    """Its key; "" on a server without keys."""

    def may(self, scope: str | None) -> bool:
        """Whether it has this scope."""
        return scope is None or scope in self.scopes


NO_PRINCIPAL = Principal("", "service", frozenset())
"""The principal of a route without a scope."""
KEYLESS_PRINCIPAL = Principal("user", "human", frozenset(KEY_SCOPES))
"""The principal of a server without keys."""


def authenticate(
    headers: Mapping[str, str], ring: KeyRing, at: Instant, *, token: ServerToken | None = None
) -> Principal:
    """The principal of a request, by the key or token in its headers; `RequestRefused` if there is none."""
    if not ring.guarded:
        _check_keyless(headers, token)
        return KEYLESS_PRINCIPAL
    secret = key_in_headers(headers)
    if not secret:
        raise RequestRefused(401, "no_key", "show a key in the header Authorization: Bearer …")
    key = ring.find(secret)
    if key is None:
        raise RequestRefused(401, "bad_key", "the key in the header Authorization opens nothing here")
    status = key.status(at)
    if status != "active":
        raise RequestRefused(401, f"key_{status}", f"the key {key.key_id} is {status}; have another made")
    return Principal(key.participant, key.kind, frozenset(key.scopes), key.key_id)


def _check_keyless(headers: Mapping[str, str], token: ServerToken | None) -> None:
    """`RequestRefused` unless a server without keys takes the request; one without a token is open to this machine."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_own_name(host) or (origin is not None and origin.partition("://")[2] != host):
        said = "without keys this server answers this machine alone, by the name localhost"
        raise RequestRefused(401, "no_key", f"{said}; make a key: antiphon keys make")
    secret = key_in_headers(headers)
    if token is not None and not secret:
        said = "show the server's token in the header Authorization: Bearer …"
        raise RequestRefused(401, "no_key", f"{said}; {token.whereabouts}")
    if token is not None and not token.opens(secret):
        said = "the header Authorization does not hold the server's token"
        raise RequestRefused(401, "bad_key", f"{said}; {token.whereabouts}")


def is_still_admitted(principal: Principal, ring: KeyRing, clock: Clock) -> bool:
    """Whether the principal would still be authenticated now."""
    if not principal.key_id:
        return not ring.guarded
    at = clock.now()
    return any(key.key_id == principal.key_id and key.status(at) == "active" for key in ring.keys)


def key_in_headers(headers: Mapping[str, str]) -> str:
    """The key or token in the headers; "" if there is none."""
    given = headers.get("authorization", "")
    return (
        given[len(BEARER_PREFIX) :].strip() if given.lower().startswith(BEARER_PREFIX) else headers.get("x-api-key", "")
    )


def is_own_name(host: str) -> bool:
    """Whether the Host header names this machine, such as localhost.

    A web page can point its own domain at this machine (DNS rebinding), but cannot forge this header.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]"))
