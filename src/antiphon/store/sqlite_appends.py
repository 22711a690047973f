"""Batches into the log table, inside a transaction that somebody else begins and ends.

Rule 1: `together` bets that nobody else writes; the unique indexes are what makes losing the bet harmless.
Rule 2: `one_by_one` reads before it writes. It alone decides between conflict, repetition and a reused id.
Rule 3: what is remembered of a channel is believed only until the first doubt, and kept only after a commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.core.codec import as_type
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError
from antiphon.core.instants import Instant
from antiphon.store import sqlite_index as index
from antiphon.store.protocol import Appended
from antiphon.store.records import genesis, is_stamped, judged, link, opened
from antiphon.store.rows import ENDED, MOVES_A_ROW
from antiphon.store.sqlite_connection import Connection, Value, damage_in, one

REMEMBERED = 10_000

_INSERT = "INSERT INTO log (tenant, channel, seq, id, kind, body, hash, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_HEAD = """
    SELECT seq, hash, coalesce((SELECT status FROM channel WHERE tenant = ?1 AND channel = ?2), '')
    FROM log WHERE tenant = ?1 AND channel = ?2 ORDER BY seq DESC LIMIT 1
"""
_FIND = "SELECT seq, body FROM log WHERE tenant = ? AND channel = ? AND id = ?"

Outcome = Appended | AntiphonError


@dataclass(slots=True, eq=False)
class Append:
    """A batch on its way to the log, and whoever waits for it."""

    channel: str
    batch: Sequence[Envelope]
    records: Sequence[bytes]
    expected: int
    due: Instant | None
    done: asyncio.Future[Appended]

    @property
    def moves_a_row(self) -> bool:
        return (
            self.expected == 0
            or self.due is not None
            or any(envelope.event_type in MOVES_A_ROW for envelope in self.batch)
        )


class Head(NamedTuple):
    """Where a channel's log ends."""

    sequence: int
    hash: bytes
    status: str


class Appender:
    """Writes batches of one tenant."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._kept: dict[str, Head] = {}
        self._planned: dict[str, Head] = {}
        self.written = 0

    def begin(self) -> None:
        """A transaction has begun."""
        self._planned = {}
        self.written = 0

    def committed(self) -> None:
        """The transaction holds: remember where its channels end."""
        for channel, head in self._planned.items():
            self._kept.pop(channel, None)
            self._kept[channel] = head
        while len(self._kept) > REMEMBERED:
            del self._kept[next(iter(self._kept))]

    def forget(self, channel: str | None = None) -> None:
        """A channel, or everything, is in doubt: believe only what is read again."""
        if channel is None:
            self._kept.clear()
            self._planned.clear()
        else:
            self._kept.pop(channel, None)
            self._planned.pop(channel, None)

    def together(self, connection: Connection, appends: Sequence[Append]) -> list[Outcome]:
        """Record all of them at once. Any `sqlite3.Error` means: roll back and take them one by one."""
        outcomes: list[Outcome | None] = []
        rows: list[tuple[Value, ...]] = []
        moving: list[Append] = []
        for append in appends:
            head = self._head(connection, append.channel)
            if append.expected != head.sequence or not is_stamped(append.batch, append.expected):
                outcomes.append(None)
                continue
            rows.extend(self._rows(append, head))
            outcomes.append(Appended(append.expected + 1, append.expected + len(append.batch)))
            if append.moves_a_row or head.status in ENDED:
                moving.append(append)
        if rows:
            connection.executemany(_INSERT, rows)
        for append in moving:
            self._project(connection, append)
        self.written += len(rows)
        return [
            outcome or self._alone(connection, append)
            for outcome, append in zip(outcomes, appends, strict=True)
        ]

    def one_by_one(self, connection: Connection, appends: Sequence[Append]) -> list[Outcome]:
        """Record each for itself: what goes wrong with one leaves the others alone."""
        return [self._alone(connection, append) for append in appends]

    def _alone(self, connection: Connection, append: Append) -> Outcome:
        connection.execute("SAVEPOINT alone")
        try:
            with damage_in(append.channel, append.expected + 1):
                outcome: Outcome = self._decided(connection, append)
        except AntiphonError as error:
            connection.execute("ROLLBACK TO alone")
            self.forget(append.channel)
            outcome = error
        connection.execute("RELEASE alone")
        return outcome

    def _decided(self, connection: Connection, append: Append) -> Appended:
        channel = append.channel

        def find(envelope_id: str) -> Envelope | None:
            found = one(connection, _FIND, (self._tenant, channel, envelope_id))
            if found is None:
                return None
            sequence, body = as_type(found, tuple[int, bytes])
            return opened(channel, sequence, body, envelope_id=envelope_id)

        self._planned[channel] = head = self._read_head(connection, channel)
        appended = judged(append.batch, expected=append.expected, head=head.sequence, find=find)
        if not appended.duplicate:
            rows = self._rows(append, head)
            connection.executemany(_INSERT, rows)
            self.written += len(rows)
            if append.moves_a_row or head.status in ENDED:
                self._project(connection, append)
        return appended

    def _rows(self, append: Append, head: Head) -> list[tuple[Value, ...]]:
        rows: list[tuple[Value, ...]] = []
        tenant, channel, digest = self._tenant, append.channel, head.hash
        sequence = append.expected
        for envelope, record in zip(append.batch, append.records, strict=True):
            sequence += 1
            digest = link(digest, record)
            rows.append(
                (
                    tenant,
                    channel,
                    sequence,
                    envelope.envelope_id,
                    envelope.event_type,
                    record,
                    digest,
                    envelope.created_at,
                )
            )
        self._planned[channel] = Head(sequence, digest, head.status)
        return rows

    def _project(self, connection: Connection, append: Append) -> None:
        head = self._planned[append.channel]
        moved = index.Projected(append.channel, append.batch, append.due, head.sequence)
        row = index.project(connection, self._tenant, moved)
        self._planned[append.channel] = head._replace(status=row.status)

    def _head(self, connection: Connection, channel: str) -> Head:
        return (
            self._planned.get(channel) or self._kept.get(channel) or self._read_head(connection, channel)
        )

    def _read_head(self, connection: Connection, channel: str) -> Head:
        found = one(connection, _HEAD, (self._tenant, channel))
        return Head(0, genesis(self._tenant, channel), "") if found is None else as_type(found, Head)
