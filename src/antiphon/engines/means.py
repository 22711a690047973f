"""What the calls of one attempt at a turn need, and how an attempt may end before its turn does."""

from __future__ import annotations

import asyncio

import msgspec

from antiphon.agents.context import Judge
from antiphon.agents.progress import Path
from antiphon.agents.tasks import Delegates
from antiphon.agents.team import Team, shown_path
from antiphon.agents.wanted import CallTool
from antiphon.core.codec import digest_of
from antiphon.core.events import (
    EV_AGENT_WARNED,
    EV_CALL_CONFLICTED,
    EV_CALL_STARTED,
    AgentWarned,
    CallConflicted,
    CallStarted,
)
from antiphon.core.journal import NO_ENTRY, Entry, Journal
from antiphon.core.turns import Failure
from antiphon.engines.alarms import Alarms
from antiphon.engines.notes import Notes
from antiphon.hub.clock import Clock
from antiphon.hub.feed import Feed


class Failing(Exception):
    """The turn cannot be finished."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.failure = Failure(reason, detail)


class InDoubt(Exception):
    """A person must settle a call first. That is recorded."""


class Stopped(Exception):
    """The engine stops, and no further call is begun."""


class Means(msgspec.Struct, frozen=True):
    """What the calls of an attempt need."""

    alarms: Alarms
    clock: Clock
    feed: Feed
    judge: Judge
    delegates: Delegates
    stopping: asyncio.Event
    tenant: str


class Book:
    """The journal of a turn, as one attempt reads it and writes on."""

    def __init__(self, team: Team, notes: Notes, *, journal: Journal, means: Means) -> None:
        self.team, self.notes, self.means = team, notes, means
        self._journal = journal

    @property
    def turn_id(self) -> str:
        return self.notes.turn.turn_id

    @property
    def channel_id(self) -> str:
        return self.notes.live.state.channel_id

    async def claim(self) -> None:
        """Make sure that the turn is ours before anything of the agent's own runs."""
        if not self.notes.claimed:
            await self.notes.claim()

    def warn(self, code: str, path: Path, message: str) -> None:
        """Have it recorded, together with whatever is next, that something is not as it should be."""
        data = AgentWarned(self.turn_id, shown_path(path), code, message)
        self.notes.keep(EV_AGENT_WARNED, data)

    def entry(self, index: int) -> Entry:
        """What is known of the call at this position."""
        return self._journal.get(index, NO_ENTRY)

    async def start(self, calls: list[CallStarted]) -> None:
        """Write down that these are about to leave. They are on disk when this returns."""
        if self.means.stopping.is_set():
            raise Stopped
        await self.notes.write(EV_CALL_STARTED, *calls)

    def differs(self, index: int, digest: str) -> bool:
        """Note, once, that something else is asked for than is recorded; True if so."""
        entry = self.entry(index)
        started = entry.started
        if started is None or started.digest == digest:
            return False
        if not entry.conflicted:
            conflict = CallConflicted(self.turn_id, index, started.name, started.digest, digest)
            self.notes.keep(EV_CALL_CONFLICTED, conflict)
        return True

    def named(self, path: Path) -> str:
        """Who makes a call, as the journal keeps it: nothing, if that is whoever has the turn."""
        return shown_path(path) if len(path) > 1 else ""


def digest_of_call(wanted: CallTool) -> str:
    """What a tool is asked, as one number."""
    return digest_of([wanted.call.name, wanted.call.args])
