"""Batches into the log table.

Rule 1: a plan bets that nobody else writes; the unique indexes are what makes losing the bet harmless.
Rule 2: whoever cannot be planned for is taken alone, by reading before writing. Only that decides between conflict,
        repetition and a reused id.
Rule 3: what is remembered of a channel is believed only until the first doubt, and kept only after a commit.
Rule 4: nothing is recorded behind an end that is not tied to the record before it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt, UsageError
from antiphon.core.instants import Instant
from antiphon.core.state import ENDED
from antiphon.store import sqlite_index as index
from antiphon.store.protocol import Appended
from antiphon.store.records import is_stamped, judged, link
from antiphon.store.rows import MOVES_A_ROW
from antiphon.store.sqlite_connection import Connection, Damaged, Value, is_damage, is_nobodys_fault
from antiphon.store.sqlite_reads import Head, find_envelope, read_end

REMEMBERED = 10_000
"""How many channels' heads are remembered."""
AT_ONCE = 96
"""The most rows that go into one statement; each number of rows is a statement that the driver caches."""

_INTO = "INSERT INTO log (tenant, channel, seq, id, kind, body, hash, at) VALUES "
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT = _INTO + _ROW

Outcome = Appended | AntiphonError
Row = tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Append:
    """A batch on its way to the log, and whoever waits for it."""

    channel: str
    batch: Sequence[Envelope]
    records: Sequence[bytes]
    expected: int
    due: Instant | None
    done: asyncio.Future[Appended]

    def moves_a_row(self) -> bool:
        """Whether the listing shows the channel differently afterwards."""
        if self.expected == 0 or self.due is not None:
            return True
        return any(envelope.event_type in MOVES_A_ROW for envelope in self.batch)


@dataclass(slots=True, eq=False)
class Plan:
    """What is to be written for some appends, and what they will be told. None is for reading to decide."""

    appends: Sequence[Append]
    outcomes: list[Outcome | None] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    moving: list[Append] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)
    written: int = 0

    def is_plain(self) -> bool:
        """Whether there is nothing to do but to insert a few rows."""
        return bool(self.rows) and not self.moving and len(self.rows) <= AT_ONCE and None not in self.outcomes

    def start_again(self) -> None:
        """Leave everything to reading, but for the ends that are known to be damaged."""
        self.outcomes = [outcome if isinstance(outcome, LogCorrupt) else None for outcome in self.outcomes]
        self.rows, self.moving, self.heads, self.written = [], [], {}, 0

    def told(self) -> list[Outcome]:
        """What everybody is told, once all is decided."""
        return [outcome for outcome in self.outcomes if outcome is not None]


class Appender:
    """Writes the batches of one tenant."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._kept: dict[str, Head] = {}

    def keep(self, plan: Plan) -> None:
        """The plan is committed: remember where its channels end."""
        for channel, head in plan.heads.items():
            self._kept.pop(channel, None)
            self._kept[channel] = head
        while len(self._kept) > REMEMBERED:
            del self._kept[next(iter(self._kept))]

    def forget(self) -> None:
        """Something is in doubt: believe only what is read again."""
        self._kept.clear()

    def planned(self, connection: Connection, appends: Sequence[Append]) -> Plan:
        """The plan for some appends. It writes nothing."""
        plan = Plan(appends)
        for append in appends:
            head = self._head(connection, plan, append)
            if not isinstance(head, Head):
                plan.outcomes.append(head)
                continue
            if append.expected != head.sequence or not is_stamped(append.batch, append.expected):
                plan.outcomes.append(None)
                continue
            plan.outcomes.append(Appended(append.expected + 1, append.expected + len(append.batch)))
            plan.rows.extend(self._linked(plan, append, head))
            if append.moves_a_row() or head.status in ENDED:
                plan.moving.append(append)
        return plan

    def write_at_once(self, connection: Connection, plan: Plan) -> None:
        """Write a plain plan as one statement, which is a transaction by itself."""
        connection.execute(_insert(len(plan.rows)), list(chain.from_iterable(plan.rows)))
        plan.written = len(plan.rows)

    def write(self, connection: Connection, plan: Plan) -> None:
        """Write a plan inside a transaction, and decide what was left to reading."""
        if plan.rows:
            connection.executemany(_INSERT, plan.rows)
            plan.written = len(plan.rows)
        for append in plan.moving:
            self._project(connection, plan, append)
        for place, append in enumerate(plan.appends):
            if plan.outcomes[place] is None:
                plan.outcomes[place] = self._alone(connection, plan, append)

    def _alone(self, connection: Connection, plan: Plan, append: Append) -> Outcome:
        written = plan.written
        connection.execute("SAVEPOINT alone")
        try:
            outcome: Outcome = self._decided(connection, plan, append)
        except Exception as error:
            if is_nobodys_fault(error):
                raise
            self._kept.pop(append.channel, None)
            plan.heads.pop(append.channel, None)
            outcome = _blamed(append, error)
            if is_damage(error):
                raise Damaged(append, outcome) from error
            connection.execute("ROLLBACK TO alone")
            plan.written = written
        connection.execute("RELEASE alone")
        return outcome

    def _decided(self, connection: Connection, plan: Plan, append: Append) -> Appended:
        def find(envelope_id: str) -> Envelope | None:
            return find_envelope(connection, self._tenant, append.channel, envelope_id=envelope_id)

        plan.heads[append.channel] = head = read_end(connection, self._tenant, append.channel)
        appended = judged(append.batch, expected=append.expected, head=head.sequence, find=find)
        if not appended.duplicate:
            rows = self._linked(plan, append, head)
            connection.executemany(_INSERT, rows)
            plan.written += len(rows)
            if append.moves_a_row() or head.status in ENDED:
                self._project(connection, plan, append)
        return appended

    def _linked(self, plan: Plan, append: Append, head: Head) -> list[Row]:
        """The rows of a batch behind a head, and the head behind them."""
        tenant, channel, digest, sequence = self._tenant, append.channel, head.hash, head.sequence
        rows: list[Row] = []
        for said, body in zip(append.batch, append.records, strict=True):
            sequence += 1
            digest = link(digest, body)
            rows.append((tenant, channel, sequence, said.envelope_id, said.event_type, body, digest, said.created_at))
        plan.heads[channel] = Head(sequence, digest, head.status)
        return rows

    def _project(self, connection: Connection, plan: Plan, append: Append) -> None:
        head = plan.heads[append.channel]
        moved = index.Projected(append.channel, append.batch, append.due, head.sequence)
        row = index.project(connection, self._tenant, moved)
        plan.heads[append.channel] = head._replace(status=row.status)

    def _head(self, connection: Connection, plan: Plan, append: Append) -> Head | AntiphonError | None:
        """Where a channel ends, or what is wrong with its end; None if that cannot be told from here."""
        head = plan.heads.get(append.channel) or self._kept.get(append.channel)
        if head is not None:
            return head
        try:
            return read_end(connection, self._tenant, append.channel)
        except Exception as error:
            if is_nobodys_fault(error):
                raise
            return _blamed(append, error) if is_damage(error) or isinstance(error, LogCorrupt) else None


@cache
def _insert(rows: int) -> str:
    return _INTO + ", ".join([_ROW] * rows)


def _blamed(append: Append, error: Exception) -> AntiphonError:
    """What an error says about the one batch that met it."""
    match error:
        case AntiphonError():
            return error
        case sqlite3.ProgrammingError() | sqlite3.InterfaceError() | sqlite3.DataError():
            return UsageError(f"the batch for channel {append.channel!r} cannot be recorded: {error}")
        case _:
            return LogCorrupt(append.channel, append.expected + 1, str(error))
