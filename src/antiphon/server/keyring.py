"""Keys over HTTP, for operators: to list, to make, to revoke."""

from __future__ import annotations

from antiphon.core.errors import UsageError
from antiphon.hub.keys import Key, check_key_id
from antiphon.runtime.keys import keys_of
from antiphon.server.problems import Refused
from antiphon.server.shapes import KeyList, KeyMade, KeyWish
from antiphon.server.tokens import remove_token, store_of
from antiphon.server.verbs import Visit


async def list_keys(visit: Visit) -> KeyList:
    """Every key that was ever made."""
    return KeyList(keys_of(visit.hub).keys)


async def make_key(visit: Visit) -> KeyMade:
    """Make a key, for a participant and some scopes."""
    wish, desk = visit.said(KeyWish), visit.hub._desk
    if wish.participant in desk.agents:
        raise UsageError(f"{wish.participant!r} is an agent, for whom nobody else speaks; name a person or a program")
    secret, key = await keys_of(visit.hub).make(
        wish.participant,
        kind=wish.kind,
        scopes=wish.scopes,
        at=desk.clock.now(),
        expires_at=wish.expires_at,
        label=wish.label,
        by=visit.principal.name,
    )
    remove_token(store_of(visit.hub))  # a key counts from here on, and the token no longer does
    return KeyMade(secret, key)


async def revoke_key(visit: Visit) -> Key:
    """Let a key open nothing any more. Its streams end soon."""
    ring, key_id = keys_of(visit.hub), visit.places["key_id"]
    check_key_id(key_id)
    if all(key.key_id != key_id for key in ring.keys):
        raise Refused(404, "unknown_key", f"there is no key {key_id!r}")
    return await ring.revoke(key_id, by=visit.principal.name)
