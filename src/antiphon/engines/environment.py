"""The dependencies of turns, with the definitions and histories kept between them, and the run of one attempt.

Rule 1: a turn ends with the definition of its agent that it began with. The next turn begins with the current one.
Rule 2: an earlier definition is kept until no turn runs with it, so that its models are closed once, and not too soon.
Rule 3: a history is a projection of the log: one that was dropped is read again, and is the same.
Rule 4: the histories used longest ago are dropped when there are too many, or when their text is too long.
Rule 5: where several agents take part, the log is read and decoded once for all of them. Each reads of it what was said
        before its turn, and what its own turns have recorded since; not what the others have answered since. So the
        cost of a turn does not grow with the number of agents that have the turn at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

import msgspec

from antiphon.agents.call_results import summary_in
from antiphon.agents.declaration import Declaration
from antiphon.agents.history import History, ShownHistory
from antiphon.agents.messages import Model
from antiphon.agents.progress import MemberPath
from antiphon.agents.team import Team
from antiphon.agents.turn_channel import Delegates, TurnChannel
from antiphon.core.envelope import NEVER, Envelope, IdSource, Instant
from antiphon.core.event_data import Deny
from antiphon.core.events import ContextSet
from antiphon.core.execution_events import EV_CALL_FINISHED
from antiphon.core.guard import Deadline
from antiphon.core.state import Turn
from antiphon.core.views import SHOWN_TYPES, Message
from antiphon.engines.engine import Attempt, ResumeLimit
from antiphon.engines.run_ledgers import RunLedgers
from antiphon.engines.tracing import TurnTrace
from antiphon.hub.clock import Clock, TimerQueue
from antiphon.hub.feed import Feed
from antiphon.hub.ledgers import Ledgers
from antiphon.hub.live import Channels, LiveChannel
from antiphon.hub.system_channels import Audit


class AgentDefinitions:
    """Every definition that is in use in a hub."""

    def __init__(self, current: dict[str, Declaration]) -> None:
        self._current = current
        self._earlier: list[Declaration] = []
        self._turns: dict[int, int] = {}
        """How many turns run with each definition, by its identity."""
        self._ended = asyncio.Event()
        """Set, and a new one made, whenever the last turn of a definition has ended."""

    def all(self) -> list[Declaration]:
        """The current ones, and the earlier ones whose models are not closed yet."""
        return [*self._current.values(), *self._earlier]

    def hold(self, definition: Declaration) -> Declaration | None:
        """Make this the current definition from the agent's next turn. Returns the one it replaces, or None."""
        earlier = self._current.get(definition.name)
        self._current[definition.name] = definition
        self.forget(definition)
        if earlier is None or earlier is definition:
            return None
        self._earlier.append(earlier)
        return earlier

    def is_earlier(self, definition: Declaration) -> bool:
        """Whether it was replaced, and its models are not closed yet."""
        return any(each is definition for each in self._earlier)

    def forget(self, definition: Declaration) -> None:
        """Drop an earlier definition that is not used any more, or is current again."""
        self._earlier = [each for each in self._earlier if each is not definition]

    @contextmanager
    def running(self, definition: Declaration) -> Iterator[None]:
        """Keep the definition in use for as long as a turn runs with it."""
        key = id(definition)
        self._turns[key] = self._turns.get(key, 0) + 1
        try:
            yield
        finally:
            self._turns[key] -= 1
            if not self._turns[key]:
                del self._turns[key]
                self._ended.set()
                self._ended = asyncio.Event()

    async def unused(self, definition: Declaration) -> None:
        """Return when no turn runs with it."""
        while id(definition) in self._turns:
            await self._ended.wait()


class RunningTurns:
    """How many turns of each channel run in this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._ended = asyncio.Event()
        """Set, and a new one made, whenever a turn has ended."""

    @contextmanager
    def turn(self, channel_id: str) -> Iterator[None]:
        """Count a turn of a channel for as long as it runs."""
        self._counts[channel_id] += 1
        try:
            yield
        finally:
            self._counts[channel_id] -= 1
            if not self._counts[channel_id]:
                del self._counts[channel_id]
            self._ended.set()
            self._ended = asyncio.Event()

    async def idle(self, channel_id: str) -> None:
        """Return when no turn of this channel runs here."""
        while channel_id in self._counts:
            await self._ended.wait()


MAX_CACHED_HISTORIES = 1024
"""How many histories are kept."""
HISTORY_READS_PER_TIDY = 64
MAX_CACHED_HISTORY_CHARS = 16 * 1024 * 1024
"""How many characters they may have together."""
MAX_SHARED_LOGS = 16
"""How many channels are kept as their agents share them."""
MAX_SHARED_LOG_BYTES = 1024 * 1024
"""How many bytes of data each of these may have, roughly."""
RECORD_OVERHEAD_BYTES = 200


_sequence_of = attrgetter("sequence")


class HistoryCache:
    """The histories of all channels in which agents of this process take part."""

    def __init__(self) -> None:
        self._histories: OrderedDict[tuple[str, str, bool], History] = OrderedDict()
        self._shared: OrderedDict[str, _SharedLog] = OrderedDict()
        self._reads = 0

    async def read(self, live: LiveChannel, turn: Turn, *, named: bool) -> History:
        """The history of the speaker, with everything that this turn may be shown."""
        threaded, until = live.ruleset.traits.threaded, turn.shown_until
        history = self._history(live.state.channel_id, turn.speaker, named=named, threaded=threaded)
        shared = self._shared_log(live, history)
        if shared is not None:
            await shared.read_on(live)
            if history.cursor >= shared.start:
                history.extend(shared.between(history.cursor, until))
                history.cursor = max(history.cursor, until)
                if threaded:  # answers of any agent; their turns come in the order of the messages
                    history.add_ahead(shared.between(max(history.looked_ahead, history.cursor), shared.end))
                    history.looked_ahead = shared.end
                else:
                    history.add_ahead(shared.recorded_by(turn.speaker, after=until))
                return history
        while page := await live.read(history.cursor):
            history.extend(page)
        return history

    def forget(self, channel_id: str) -> None:
        """Drop everything of a channel whose content was erased."""
        self._shared.pop(channel_id, None)
        for key in [key for key in self._histories if key[0] == channel_id]:
            del self._histories[key]

    def _history(self, channel_id: str, reader: str, *, named: bool, threaded: bool) -> History:
        key = channel_id, reader, named
        history = self._histories.pop(key, None) or History(reader, named=named, threaded=threaded)
        self._histories[key] = history
        self._reads += 1
        if len(self._histories) > MAX_CACHED_HISTORIES or self._reads % HISTORY_READS_PER_TIDY == 0:
            self._evict()
        return history

    def _shared_log(self, live: LiveChannel, history: History) -> _SharedLog | None:
        """The log that the agents of a channel share; None if there is only one agent."""
        channel_id, kinds = live.state.channel_id, live.state.participants
        if not history.threaded and sum(kind == "agent" for kind in kinds.values()) < 2:
            return None
        shared = self._shared.pop(channel_id, None) or _SharedLog(history.cursor)
        self._shared[channel_id] = shared
        if len(self._shared) > MAX_SHARED_LOGS:
            self._shared.popitem(last=False)
        return shared

    def _evict(self) -> None:
        size = sum(history.size for history in self._histories.values())
        while len(self._histories) > MAX_CACHED_HISTORIES or (
            size > MAX_CACHED_HISTORY_CHARS and len(self._histories) > 1
        ):
            size -= self._histories.popitem(last=False)[1].size


def _size_of_texts(value: object) -> int:
    """How many characters the texts in plain data have, at every depth."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(len(key) + _size_of_texts(each) for key, each in value.items())
        case list() | tuple():
            return sum(map(_size_of_texts, value))
        case _:
            return 0


class _SharedLog:
    """The end of a channel's log, decoded: only the envelopes that make up histories."""

    def __init__(self, start: int) -> None:
        self.start = self._cursor = start
        self._said: list[Envelope] = []
        self._by_speaker: dict[str, list[Envelope]] = {}
        self._size = 0
        self._reading = asyncio.Lock()

    async def read_on(self, live: LiveChannel) -> None:
        """Read to the end of the log. A second reader waits for the first instead of decoding the same."""
        async with self._reading:
            while page := await live.read(self._cursor):
                self._cursor = page[-1].sequence
                for envelope in page:
                    self._add(envelope)
                if self._size > MAX_SHARED_LOG_BYTES:
                    self.start, self._size = self._cursor, 0
                    self._said, self._by_speaker = [], {}

    @property
    def end(self) -> int:
        """How far the log has been read."""
        return self._cursor

    def between(self, after: int, last: int) -> list[Envelope]:
        """The envelopes behind `after`, up to `last`."""
        first = bisect_right(self._said, after, key=_sequence_of)
        return self._said[first : bisect_right(self._said, last, key=_sequence_of)]

    def recorded_by(self, speaker: str, *, after: int) -> list[Envelope]:
        """What the turns of this speaker have recorded behind `after`."""
        own = self._by_speaker.get(speaker, [])
        return own[bisect_right(own, after, key=_sequence_of) :]

    def _add(self, envelope: Envelope) -> None:
        data = envelope.event_data
        if envelope.event_type in SHOWN_TYPES:
            speaker = envelope.sender_id
        elif envelope.event_type == EV_CALL_FINISHED and summary_in(data.get("result")) is not None:
            speaker = str(data.get("turn")).partition("/")[2]
        else:
            return
        self._said.append(envelope)
        self._by_speaker.setdefault(speaker, []).append(envelope)
        self._size += _size_of_texts(data) + RECORD_OVERHEAD_BYTES


class AnswerScreen(Protocol):
    """What answers go through before they are recorded."""

    screening: bool
    """Whether there is any hook to be asked."""

    async def screen_answer(self, live: LiveChannel, draft: Envelope) -> Envelope:
        """The answer as hooks leave it. It raises if the turn fails over it."""
        ...


class TurnEnvironment(msgspec.Struct, frozen=True):
    """The dependencies of turns."""

    channels: Channels
    clock: Clock
    new_id: IdSource
    feed: Feed
    audit: Audit
    agents: Mapping[str, Declaration]
    delegates: Delegates
    tenant: str
    limit: ResumeLimit
    definitions: AgentDefinitions
    screen: AnswerScreen
    ledgers: Ledgers
    find_model: Callable[[str], Model]
    """The model that a guard has chosen, by its name."""
    running: RunningTurns


@dataclass(eq=False)
class TurnRun:
    """What one attempt works with and has gathered. Made behind the gate, dropped with the attempt."""

    environment: TurnEnvironment
    timers: TimerQueue
    histories: HistoryCache
    attempt: Attempt
    live: LiveChannel
    turn: Turn
    agent: Declaration
    trace: TurnTrace
    team: Team
    """The agent's team, with the tools that this channel offers it."""
    progressed: Callable[[], None]
    """Called when the result of a call of this attempt is recorded."""
    context: ContextSet = field(default_factory=ContextSet)
    """The changes to the context variables so far."""
    audience: tuple[str, ...] | None = None
    """The audience that a tool has chosen for the answer: `()` is everybody; None if no tool has chosen one."""
    in_progress: dict[int, TurnChannel | None] = field(default_factory=dict)
    """By index, the tool calls that have left and not returned, each with the channel that its tool holds, if any."""
    shown: dict[MemberPath, ShownHistory] = field(default_factory=dict)
    """The history each memory was shown, so that a member that becomes active again is shown the same."""
    before: dict[bool, tuple[list[Message], str]] = field(default_factory=dict)
    """The messages before the turn, with names or without, and their digest: the same for every member."""

    histories_read: dict[bool, History] = field(default_factory=dict)
    """Read once in an attempt: what is recorded behind the turn changes nothing that the turn is shown."""

    def __post_init__(self) -> None:
        self.state = self.live.state
        """The channel as it was when the loop began, as tools see it."""
        environment = self.environment
        self.ledgers = RunLedgers(
            environment.ledgers, self.live, self.state.run_id, environment.clock, environment.new_id
        )

    async def read_history(self, named: bool) -> History:
        """The messages of the channel before the turn, with names or without."""
        known = self.histories_read.get(named)
        if known is None:
            known = self.histories_read[named] = await self.histories.read(self.live, self.turn, named=named)
        return known

    @property
    def turn_id(self) -> str:
        return self.turn.turn_id

    @property
    def channel_id(self) -> str:
        return self.live.state.channel_id

    @property
    def people(self) -> frozenset[str]:
        """The participants of the channel that are people."""
        return frozenset(name for name, kind in self.live.state.participants.items() if kind == "human")

    @property
    def ends_in_packet(self) -> bool:
        """Whether the turn ends in a packet; otherwise it ends in a text."""
        return self.live.ruleset.traits.ends_in == "packet"

    def caller(self, path: MemberPath) -> str:
        """The agent that makes a call, as the log of the process names it."""
        return f"agent {path[-1]!r} in channel {self.channel_id}"

    def judge(self, draft: Envelope) -> Deny | None:
        """Why the speaker may not record this; None if it may."""
        judged = self.live.ruleset.judge(self.live.fold, draft)
        return judged if isinstance(judged, Deny) else None

    @property
    def channel_time(self) -> Instant:
        """What time it is in the channel: what is recorded now is recorded at this instant, or later."""
        return self.live.log.time.now(self.live.state.updated_at)

    def on_clock(self, until: Instant) -> Instant:
        """An instant of the channel as the clock shows it: a channel is ahead of a clock that was set back."""
        return self.live.log.time.on_clock(Deadline(until, None)) if until else NEVER

    def waits_for_tasks(self) -> bool:
        """Whether there are calls in progress, and each of them waits for tasks."""
        channels = self.in_progress.values()
        return bool(channels) and all(channel is not None and channel.tasks.pending for channel in channels)
