"""Who looks after what: leases, and channels that are due. All hints; nothing is lost if everybody holds everything.

Everything here runs inside a transaction, or on a reading connection, that somebody else holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from antiphon.core.codec import Malformed, as_type
from antiphon.core.instants import NEVER, Instant
from antiphon.core.instants import after as later
from antiphon.store.protocol import SKEW, Due, Lease
from antiphon.store.sqlite_connection import Connection, one, text_of

log = logging.getLogger("antiphon.store")

_LEASE = "SELECT owner, epoch, until FROM lease WHERE tenant = ? AND name = ?"
_PUT_LEASE = """
    INSERT INTO lease (tenant, name, owner, epoch, until) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, name) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, until = excluded.until
"""
_RELEASE = "UPDATE lease SET until = '' WHERE tenant = ? AND name = ? AND epoch = ?"
_FREE = """
    SELECT CAST(channel AS BLOB), CAST(due AS BLOB) FROM channel
    WHERE tenant = ? AND due <> '' AND due <= ? AND (held <= ? OR held > ?)
    ORDER BY due, channel LIMIT ?
"""
_HOLD = "UPDATE channel SET held = ? WHERE tenant = ? AND channel = ?"
_NEXT_FREE = """
    SELECT coalesce(min(due), '') FROM channel WHERE tenant = ? AND due <> '' AND held = ''
"""
_NEXT_HELD = """
    SELECT coalesce(min(max(due, held)), '') FROM channel WHERE tenant = ? AND due <> '' AND held <> ''
"""


ATTENDANCE = "hubs"
"""The name of the note that hubs are open."""


class Claim(NamedTuple):
    """Somebody wants something, until some time after now."""

    owner: str
    now: Instant
    ttl: float


def take_lease(connection: Connection, tenant: str, name: str, *, claim: Claim) -> Lease | None:
    """Take or renew; None while somebody else holds it."""
    found = one(connection, _LEASE, (tenant, name))
    epoch = 1
    if found is not None:
        owner, epoch, until = as_type(found, tuple[str, int, str])
        if owner != claim.owner and claim.now < until <= later(claim.now, claim.ttl + SKEW):
            return None
        epoch += owner != claim.owner
    lease = Lease(name, claim.owner, epoch, later(claim.now, claim.ttl))
    connection.execute(_PUT_LEASE, (tenant, name, lease.owner, lease.epoch, lease.until))
    return lease


def release_lease(connection: Connection, tenant: str, lease: Lease) -> None:
    """Let go, if it is still held in this epoch."""
    connection.execute(_RELEASE, (tenant, lease.name, lease.epoch))


def take_due(connection: Connection, tenant: str, due_at: Instant, *, claim: Claim, limit: int) -> list[Due]:
    """Channels due at an instant that nobody holds, earliest first."""
    too_late = later(claim.now, claim.ttl + SKEW)
    found = connection.execute(_FREE, (tenant, due_at, claim.now, too_late, limit)).fetchall()
    taken = list(_readable(as_type(found, list[tuple[bytes, bytes]])))
    until = later(claim.now, claim.ttl)
    connection.executemany(_HOLD, [(until, tenant, due.channel_id) for due in taken])
    return taken


def attend(connection: Connection, tenant: str, now: Instant, *, ttl: float) -> Instant:
    """Note that a hub is open; since when one has been, without a break.

    The note is a row of the lease table, with the instant of the opening in the place of an owner.
    """
    since = now
    found = one(connection, _LEASE, (tenant, ATTENDANCE))
    if found is not None:
        noted, _, lasts = as_type(found, tuple[str, int, str])
        since = noted if now <= lasts <= later(now, ttl + SKEW) else now
    connection.execute(_PUT_LEASE, (tenant, ATTENDANCE, since, 0, later(now, ttl)))
    return since


def _readable(found: Sequence[tuple[bytes, bytes]]) -> Iterator[Due]:
    for channel, at in found:
        try:
            yield Due(text_of(channel), text_of(at))
        except Malformed as error:
            log.warning("a channel is due, but its row cannot be read (%s); rebuild the listing", error)


def read_next_due(connection: Connection, tenant: str) -> Instant:
    """The earliest instant at which a channel is due and nobody holds it."""
    (free,) = as_type(one(connection, _NEXT_FREE, (tenant,)), tuple[str])
    (held,) = as_type(one(connection, _NEXT_HELD, (tenant,)), tuple[str])
    return min(filter(None, (free, held)), default=NEVER)
