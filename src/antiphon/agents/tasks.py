"""Tasks that a tool gives to other agents while its turn is under way.

Rule 1: a task is known by the call that gives it and its place among those, so that a call that is made again after a
        crash finds it and goes on with it.
Rule 2: a task that nobody waits for any more is stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.agents.results import AgentReply
from antiphon.core.draft import check_draft
from antiphon.core.envelope import Envelope
from antiphon.core.errors import TurnFailed, UsageError
from antiphon.core.events import EV_TEXT
from antiphon.core.ids import derived_id
from antiphon.core.instants import Instant
from antiphon.core.state import State, Turn
from antiphon.core.words import shown

if TYPE_CHECKING:
    from antiphon.agents.declaration import Declaration
    from antiphon.agents.team import Member


class Task(msgspec.Struct, frozen=True):
    """Work that an agent is given within a turn of another."""

    task_id: str
    """The same each time the same call is made."""
    parent: str
    """The channel of the turn."""
    turn_id: str
    cause: str | None
    """What the turn answers."""
    by: str
    """Whose turn it is."""
    agent: Declaration
    text: str
    ttl: float | None = None
    audience: tuple[str, ...] | None = None
    """Who is told of it in the channel of the turn; None is everybody."""


class Reported(msgspec.Struct, frozen=True):
    """What a task came to."""

    reply: AgentReply
    failure: TurnFailed | None = None


class Delegates(Protocol):
    """Has tasks done."""

    async def run(self, task: Task) -> Reported:
        """Have a task done, and wait for what it comes to."""
        ...

    async def drop(self, task: Task, reason: str) -> Usage:
        """Stop a task that nobody waits for any more; what it has consumed."""
        ...

    def settle(self, channel: State) -> None:
        """Stop the tasks that ended turns of this channel have left open, and record how each of them ended."""
        ...

    async def forsaken(self, channel: State) -> bool:
        """Whether this is the channel of a task that nobody waits for any more. It is stopped then."""
        ...


class TaskAllowance:
    """The tasks that a turn may give. One that an earlier attempt at the turn has given is not counted again."""

    def __init__(self, most: int, given: Iterable[str] = ()) -> None:
        self._most, self._given = most, set(given)

    def take(self, task_id: str) -> None:
        """Count this task; `UsageError` if it is one too many."""
        if task_id not in self._given and len(self._given) >= self._most:
            counted = "1 task" if self._most == 1 else f"{self._most} tasks"
            raise UsageError(f"this turn has given {counted}, the limit (Limits.tasks); do it without another")
        self._given.add(task_id)


class Standing(msgspec.Struct, frozen=True):
    """Who calls a tool, and with what means."""

    member: Member
    now: Callable[[], Instant]
    delegates: Delegates
    turn: Turn
    key: str
    """The idempotency key of the call."""
    allowance: TaskAllowance


class Given:
    """The tasks of one call."""

    def __init__(self, channel_id: str, by: str) -> None:
        self._channel_id, self._by = channel_id, by
        self._counts: Counter[str] = Counter()
        self._under_way: dict[str, tuple[Delegates, Task]] = {}
        self.usage: Usage = NO_USAGE
        """What they consumed."""

    @property
    def pending(self) -> bool:
        """Whether the call waits for any of them."""
        return bool(self._under_way)

    async def given(self, stands: Standing, agent: Declaration, text: str, *, ttl: float | None) -> AgentReply:
        """Give a task, and wait for its report; `TurnFailed` if it comes to nothing."""
        name = getattr(agent, "name", None)
        if not isinstance(name, str):
            raise UsageError(f"{shown(agent)} cannot be given a task; give an Agent")
        if not isinstance(text, str) or not text:
            raise UsageError(f"the task for {name!r} is {shown(text)}; say what is to be done, as a text")
        denial = check_draft(Envelope(sender_id=self._by, event_type=EV_TEXT, event_data={"text": text}))
        if denial is not None:
            raise UsageError(f"the task for {name!r} cannot be given: {denial.detail}")
        self._counts[name] += 1
        task_id, turn = derived_id("task", stands.key, name, str(self._counts[name])), stands.turn
        task = Task(task_id, self._channel_id, turn.turn_id, turn.cause, self._by, agent, text, ttl, turn.audience)
        stands.allowance.take(task_id)
        self._under_way[task_id] = stands.delegates, task
        try:
            reported = await stands.delegates.run(task)
        except Exception:
            self._under_way.pop(task_id, None)
            raise
        if self._under_way.pop(task_id, None) is not None:
            self.usage += reported.reply.usage
        if reported.failure is not None:
            raise reported.failure
        return reported.reply

    async def give_up(self, reason: str) -> None:
        """Stop those that are under way."""
        while self._under_way:
            _, (delegates, task) = self._under_way.popitem()
            self.usage += await delegates.drop(task, reason)
