"""What a loop detector remembers: the last calls and texts of each agent, as the log has them.

Rule 1: a call is known by its turn and index. One that is started again after a crash counts once.
Rule 2: each agent has a window of its own. Calls that hand over, and words that go with them, are not in it.
Rule 3: what a person or outside code says ends all windows, and with them what agents were told. What a person decides
        ends the windows alone; a result that shows progress ends that of its agent.
Rule 4: how often an agent was stopped follows from the recorded events, not from the limits of today.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from antiphon.core.canonical import normalized_text, text_key
from antiphon.core.envelope import HUB, NEVER, Envelope, Instant, Json, add_seconds
from antiphon.core.events import EV_TEXT
from antiphon.guards.waiting_messages import Waiting, with_message, without_answered

MIN_TEXT_CHARS = 8
"""Texts that are shorter, such as `Ok.`, are not counted."""
MAX_POLLS = 64
"""How many polls of one agent are remembered."""
MAX_UNREAD_KEYS = 16


class RecentCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    key: str
    tool: str
    position: str
    """Its turn and index, `17/bob#3`."""
    sequence: int
    progress: str = ""


class RecentPoll(msgspec.Struct, frozen=True):
    """Equal calls of a tool that is meant to be polled."""

    key: str
    tool: str
    position: str
    """The turn and index of the last of them."""
    sequence: int
    """Where the first of them stands."""
    last_seq: int
    """Where the last of them stands."""
    most: int
    """How many may follow each other."""
    count: int
    at: Instant
    """When the last of them left."""
    progress: str = ""


class RecentText(msgspec.Struct, frozen=True):
    """Something that was said."""

    key: str
    sequence: int
    answers: str = ""
    """The key of what another agent had said last; "" if none has, and for the agent that began."""


class AgentWindow(msgspec.Struct, frozen=True):
    """The last calls and texts of one agent."""

    calls: tuple[RecentCall, ...] = ()
    polls: tuple[RecentPoll, ...] = ()
    texts: tuple[RecentText, ...] = ()
    turn: str = ""
    """The turn of its last call."""
    index: int = -1
    """The index of its last call."""
    trips: int = 0
    """How often it was told, or stopped, since a person or outside code last spoke."""
    unread: tuple[str, ...] = ()
    """The keys of the loops that its model was not asked about since."""

    def has_started(self, turn: object, index: object) -> bool:
        """Whether a call at this position is in the log already: it is started again after a crash."""
        return turn == self.turn and isinstance(index, int) and index <= self.index

    @property
    def is_first_trip(self) -> bool:
        """Whether a loop that is found now is the first one: loops that one message shows are one."""
        return self.trips + (not self.unread) <= 1

    def poll_of(self, key: str) -> RecentPoll | None:
        return next((poll for poll in self.polls if poll.key == key), None) if self.polls else None


EMPTY_WINDOW = AgentWindow()


class LoopMemory(msgspec.Struct, frozen=True):
    """The windows of all agents of a channel."""

    kinds: dict[str, str] = msgspec.field(default_factory=dict)
    """The participants: agent, human or service."""
    windows: dict[str, AgentWindow] = msgspec.field(default_factory=dict)
    last: str = ""
    """Who has just said something that is counted; "" if the last thing said is not."""
    stopped: bool = False
    """Whether an agent has repeated itself after it was told, so that no agent is given the turn."""
    waiting: Waiting = ()
    """The messages of people and outside code that have no answer yet."""
    first: str = ""
    """The agent that began to work on the last message: the others answer what it makes."""

    def window_of(self, agent: str) -> AgentWindow:
        return self.windows.get(agent, EMPTY_WINDOW)

    def with_window(self, agent: str, window: AgentWindow) -> LoopMemory:
        return LoopMemory(
            self.kinds, {**self.windows, agent: window}, self.last, self.stopped, self.waiting, self.first
        )


def position_of(data: Mapping[str, object]) -> str:
    """The turn and index of the call of a journal entry, as one text."""
    return f"{data.get('turn')}#{data.get('index')}"


def agent_of_call(data: Mapping[str, object]) -> str:
    """Who makes the call of a journal entry: a member of a team, or the speaker of the turn."""
    agent = data.get("agent")
    if isinstance(agent, str) and agent:
        return agent
    return str(data.get("turn")).partition("/")[2]


def after_creation(memory: LoopMemory, envelope: Envelope) -> LoopMemory:
    """The memory of a channel that is about to begin."""
    seats = envelope.event_data.get("participants")
    if memory.kinds or not isinstance(seats, list):
        return memory
    return replace(
        memory, kinds={str(seat.get("name")): str(seat.get("kind")) for seat in seats if isinstance(seat, dict)}
    )


def after_start(memory: LoopMemory, envelope: Envelope, *, size: int) -> LoopMemory:
    """The memory after the start of a call. `size`: how many calls of an agent are remembered."""
    data, agent = envelope.event_data, agent_of_call(envelope.event_data)
    key, index, window = data.get("same"), data.get("index"), memory.window_of(agent)
    if not isinstance(key, str) or not key or not isinstance(index, int):
        if window.unread and "args" not in data:  # a model is asked, which reads what the agent was told
            return memory.with_window(agent, replace(window, unread=()))
        return memory
    if window.has_started(data.get("turn"), index):
        return memory
    tool, turn = str(data.get("name")), str(data.get("turn"))
    if data.get("poll_max"):
        polls = _with_poll(window, envelope, key)
        return memory.with_window(agent, replace(window, polls=polls, turn=turn, index=index))
    # A call that was not made before shows that what was polled has led to something.
    polls = window.polls
    if polls and all(call.key != key for call in window.calls):
        polls = ()
    calls = (*window.calls, RecentCall(key, tool, position_of(data), envelope.sequence))[-size:]
    return memory.with_window(agent, replace(window, calls=calls, polls=polls, turn=turn, index=index))


def _with_poll(window: AgentWindow, envelope: Envelope, key: str) -> tuple[RecentPoll, ...]:
    data, at, known = envelope.event_data, envelope.created_at, window.poll_of(key)
    if known is None:
        tool, most, here = str(data.get("name")), _whole(data.get("poll_max")), envelope.sequence
        made = RecentPoll(key, tool, position_of(data), here, here, most, 1, at)
    else:
        early = is_early(known, at, data)
        made = replace(
            known,
            position=position_of(data),
            last_seq=envelope.sequence,
            count=known.count + 1,
            at=known.at if early else at,
        )
    return (*(poll for poll in window.polls if poll.key != key), made)[-MAX_POLLS:]


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def is_early(poll: RecentPoll, at: Instant, data: Json) -> bool:
    """Whether a call comes sooner after the last one than its tool allows."""
    seconds = data.get("poll_seconds")
    return isinstance(seconds, int | float) and seconds > 0 and at < next_poll_at(poll, seconds)


def next_poll_at(poll: RecentPoll, seconds: float) -> Instant:
    """When the next poll may leave."""
    return add_seconds(poll.at, seconds) if poll.at != NEVER else NEVER


def after_finish(memory: LoopMemory, envelope: Envelope) -> LoopMemory:
    """The memory after the result of a call: one that hands over does not count, and progress ends the window."""
    data = envelope.event_data
    progress, result = data.get("progress"), data.get("result")
    returned = result.get("returned") if isinstance(result, dict) else None
    moves = isinstance(returned, dict) and not returned.keys().isdisjoint(ROUTING_RESULTS)
    if not progress and not moves:
        return memory
    turn, position = data.get("turn"), position_of(data)
    for agent, window in memory.windows.items():
        if window.turn == turn:
            changed = _without_call(window, position) if moves else _with_progress(window, position, str(progress))
            if changed is not window:
                return memory.with_window(agent, changed)
    return memory


ROUTING_RESULTS = frozenset({"handoff", "transfer", "finish"})
"""What the result of a tool has that gives the turn to another, or ends the work."""


def _without_call(window: AgentWindow, position: str) -> AgentWindow:
    calls = tuple(call for call in window.calls if call.position != position)
    return window if len(calls) == len(window.calls) else replace(window, calls=calls)


def _with_progress(window: AgentWindow, position: str, progress: str) -> AgentWindow:
    """The window when a call has reached this. If an equal call had reached something else, it begins with this one."""
    poll = next((each for each in window.polls if each.position == position), None)
    if poll is not None:
        reached = replace(poll, progress=progress, count=1 if poll.progress not in ("", progress) else poll.count)
        if reached.count != poll.count:
            return replace(window, calls=(), polls=(reached,), texts=())
        return replace(window, polls=tuple(reached if each is poll else each for each in window.polls))
    call = next((each for each in reversed(window.calls) if each.position == position), None)
    if call is None:
        return window
    reached_call = replace(call, progress=progress)
    equal = (each.progress for each in reversed(window.calls) if each.key == call.key and each.progress)
    if next(equal, progress) != progress:
        return replace(window, calls=(reached_call,), polls=(), texts=())
    return replace(window, calls=tuple(reached_call if each is call else each for each in window.calls))


def after_speech(memory: LoopMemory, envelope: Envelope, *, size: int) -> LoopMemory:
    """The memory after something was said. `size`: how many texts of an agent are remembered."""
    if memory.kinds.get(envelope.sender_id) != "agent":
        # A person or outside code: everything begins anew.
        if envelope.sender_id == HUB:
            return memory
        return LoopMemory(memory.kinds, waiting=with_message(memory.waiting, envelope))
    waiting = without_answered(memory.waiting, envelope)
    if waiting is not memory.waiting:
        if waiting:  # what the agent does next is for another message
            return LoopMemory(memory.kinds, waiting=waiting)
        memory = replace(memory, waiting=())
    text = counted_text(envelope)
    if text is None:
        return replace(memory, last="") if memory.last else memory
    agent = speaking_agent(envelope)
    window = memory.window_of(agent)
    first = memory.first or agent
    answers = "" if agent == first else _last_of_others(memory, agent)
    said = RecentText(text_key(text), envelope.sequence, answers)
    texts = (*window.texts, said)[-size:]
    windows = {**memory.windows, agent: replace(window, texts=texts, unread=())}
    return LoopMemory(memory.kinds, windows, agent, memory.stopped, memory.waiting, first)


def _last_of_others(memory: LoopMemory, agent: str) -> str:
    """The key of what another agent than this one has said last."""
    others = [window.texts[-1] for name, window in memory.windows.items() if name != agent and window.texts]
    return max(others, key=lambda text: text.sequence).key if others else ""


def speaking_agent(envelope: Envelope) -> str:
    """Who has said it: a member of the sender's team, or the sender."""
    agent = envelope.event_data.get("agent")
    return agent if isinstance(agent, str) and agent else envelope.sender_id


def counted_text(envelope: Envelope) -> str | None:
    """The normalized text of what was said; None if it is too short to count, or goes with a handoff or an end."""
    data = envelope.event_data
    if envelope.event_type == EV_TEXT:
        text = data.get("text")
    else:
        routing = data.get("routing")
        moves = isinstance(routing, dict) and not routing.get("rejected") and _is_moving(routing)
        text = None if moves else data.get("body")
    if not isinstance(text, str):
        return None
    normalized = normalized_text(text)
    return normalized if len(normalized) >= MIN_TEXT_CHARS else None


def _is_moving(routing: Json) -> bool:
    """Whether a packet hands over, or ends the work."""
    return bool(routing.get("target")) or routing.get("finish") is not None


def after_decision(memory: LoopMemory) -> LoopMemory:
    """The memory after a person has decided something: all windows begin anew, and what agents were told stays."""
    kept = {
        agent: AgentWindow(trips=window.trips, unread=window.unread)
        for agent, window in memory.windows.items()
        if window.trips
    }
    return LoopMemory(memory.kinds, kept, waiting=memory.waiting)


def after_trip(memory: LoopMemory, envelope: Envelope) -> LoopMemory:
    """The memory after a loop was recorded. Loops that one message of the model shows are one trip."""
    data = envelope.event_data
    agent, key = str(data.get("agent", "")), str(data.get("key", ""))
    window = memory.window_of(agent)
    trips = window.trips if window.unread else window.trips + 1
    unread = (*window.unread, key)[-MAX_UNREAD_KEYS:]
    stops = data.get("detector") == "text" and data.get("action") == "terminate"
    windows = {**memory.windows, agent: replace(window, trips=trips, unread=unread)}
    return LoopMemory(memory.kinds, windows, memory.last, memory.stopped or stops, memory.waiting, memory.first)
