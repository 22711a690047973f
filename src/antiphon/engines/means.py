"""What the calls of one attempt at a turn need, and how an attempt may end before its turn does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from antiphon.agents.context import Judge
from antiphon.agents.handing import Refusal
from antiphon.agents.progress import Path
from antiphon.agents.tasks import Delegates, TaskAllowance
from antiphon.agents.team import Team, shown_path
from antiphon.agents.wanted import CallTool
from antiphon.core.codec import digest_of
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    EV_AGENT_WARNED,
    EV_CALL_CONFLICTED,
    EV_CALL_STARTED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TURN_CLAIMED,
    TASK_ENDS,
    CallConflicted,
    CallFailed,
    CallFinished,
    CallStarted,
)
from antiphon.core.journal import NO_ENTRY, Entry, Journal
from antiphon.core.turns import Failure
from antiphon.engines.alarms import Alarms
from antiphon.engines.notes import Notes
from antiphon.engines.protocol import JobRef
from antiphon.engines.resuming import ResumeLimit
from antiphon.engines.tracing import Trace
from antiphon.hub.clock import Clock
from antiphon.hub.feed import Feed

TASK_GOES_ON = frozenset({EV_TASK_STARTED, EV_TASK_PROGRESS})


class AgentWarned(msgspec.Struct, frozen=True):
    """A turn goes on although something about its agent is not as it should be."""

    turn: str
    agent: str
    code: str
    """A stable word to branch on."""
    message: str


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
    refusal: Refusal
    delegates: Delegates
    stopping: asyncio.Event
    limit: ResumeLimit
    trace: Trace
    tenant: str


class Book:
    """The journal of a turn, as one attempt reads it and writes on."""

    def __init__(
        self, team: Team, notes: Notes, *, journal: Journal, means: Means, before: Iterable[Envelope] = ()
    ) -> None:
        self.team, self.notes, self.means = team, notes, means
        before = list(before)
        self._journal, self._warned = journal, warned_in(before, self.turn_id)
        self.allowance = TaskAllowance(team.limits.tasks, tasks_started_in(before, self.turn_id))
        """The tasks that the turn may still give."""
        self.job = JobRef(self.channel_id, notes.turn.speaker, self.turn_id)
        """The turn as the engine knows it."""
        self.resumed = bool(journal)
        """Whether an earlier attempt at the turn has recorded calls."""

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
        """Have it recorded, once a turn and together with whatever is next, that something is not as it should be."""
        who = shown_path(path)
        if (who, code) not in self._warned:
            self._warned.add((who, code))
            self.notes.keep(EV_AGENT_WARNED, AgentWarned(self.turn_id, who, code, message))

    def entry(self, index: int) -> Entry:
        """What is known of the call at this position."""
        return self._journal.get(index, NO_ENTRY)

    def outcome(self, index: int, name: str) -> CallFinished | CallFailed | None:
        """What the call of this name at this position came to, if that is known. Something else there is a conflict."""
        entry = self.entry(index)
        if entry.started is not None and entry.started.name != name:
            raise Failing("idempotency_conflict", f"call {index} was {entry.started.name}, and is {name} now")
        return entry.outcome

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

    def activate(self, path: Path) -> None:
        """Note which agent of a team is active, so that a failure is recorded as its own."""
        if len(self.team.members) > 1:
            self.notes.agent = shown_path(path)

    def caller(self, path: Path) -> str:
        """Who makes a call, as the log of the process names it."""
        return f"agent {path[-1]!r} in channel {self.channel_id}"


def agent_in_journal(path: Path) -> str:
    """The agent that makes a call, as the journal names it: "" for the speaker itself."""
    return shown_path(path) if len(path) > 1 else ""


def digest_of_call(wanted: CallTool) -> str:
    """What a tool is asked, as one number."""
    return digest_of([wanted.call.name, wanted.call.args])


def warned_in(log: Iterable[Envelope], turn_id: str) -> set[tuple[str, str]]:
    """Of whom earlier attempts at a turn have warned, and why."""
    said = (each.event_data for each in log if each.event_type == EV_AGENT_WARNED and each.sender_id == HUB)
    return {(str(data.get("agent")), str(data.get("code"))) for data in said if data.get("turn") == turn_id}


def tasks_started_in(log: Iterable[Envelope], turn_id: str) -> set[str]:
    """The ids of all tasks that earlier attempts at a turn have given."""
    said = (each.event_data for each in log if each.event_type == EV_TASK_STARTED and each.sender_id == HUB)
    return {str(data.get("task")) for data in said if data.get("turn") == turn_id}


class TasksGiven(msgspec.Struct, frozen=True):
    """The tasks of a turn, as far as its log tells."""

    under_way: frozenset[object] = frozenset()
    claims_since: int = 0
    """How often the turn was claimed since anything was told of them, or since it was assigned."""


def tasks_in(log: Iterable[Envelope], turn_id: str) -> TasksGiven:
    """The tasks that earlier attempts at a turn have given."""
    given = TasksGiven()
    for envelope in log:
        if envelope.sender_id != HUB or envelope.event_data.get("turn") != turn_id:
            continue
        task = envelope.event_data.get("task")
        if envelope.event_type == EV_TURN_CLAIMED:
            given = TasksGiven(given.under_way, given.claims_since + 1)
        elif envelope.event_type in TASK_ENDS:
            given = TasksGiven(given.under_way - {task})
        elif envelope.event_type in TASK_GOES_ON:
            given = TasksGiven(given.under_way | {task})
    return given
