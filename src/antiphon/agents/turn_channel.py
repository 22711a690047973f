"""A channel as a tool holds it during a turn, and the tasks that a tool gives to other agents through it.

Rule 1: what a tool writes to the context is part of the turn: it is recorded with the answer, and lost without one.
Rule 2: a task is known by the call that gives it and its place among the tasks of that call, so that a call that is
        made again after a crash finds its task and resumes it.
Rule 3: a task that no call waits for any more is stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from typing import Protocol

import msgspec

from antiphon.agents.call_results import NO_USAGE, Usage
from antiphon.agents.team import AgentFields, Member
from antiphon.core.approval_rules import Approval
from antiphon.core.codec import Malformed, as_type, check_json, copy_json
from antiphon.core.envelope import NEVER, Envelope, Instant, Json, derived_id, spelling_advice
from antiphon.core.errors import Denied, TurnFailed, UsageError
from antiphon.core.event_data import Deny, check_draft
from antiphon.core.events import EV_CONTEXT_SET, EV_TEXT, ContextSet
from antiphon.core.state import State, Turn, detach_state
from antiphon.core.text import describe

JudgeDraft = Callable[[Envelope], Deny | None]
"""Says whether the speaker may record this."""

NO_CONTEXT_CHANGE = ContextSet()


class DelegatedTask(msgspec.Struct, frozen=True):
    """Work that an agent is given within a turn of another."""

    task_id: str
    """The same for every attempt at the call."""
    parent: str
    """The channel of the turn."""
    turn_id: str
    cause: str | None
    """What the turn answers."""
    by: str
    """Whose turn it is."""
    agent: AgentFields
    text: str
    ttl: float | None = None
    audience: tuple[str, ...] | None = None
    """Who sees it in the channel of the turn; None is everybody."""
    key: str = ""
    """The idempotency key of the call that gives it."""


class AgentReply(msgspec.Struct, frozen=True):
    """The reply of an agent: what `invoke` returns, and what a task reports."""

    text: str
    agent: str
    """Who answered."""
    stopped: str | None = None
    """The named limit that ended the turn, whose partial text this is; None if it ended by itself."""
    usage: Usage = NO_USAGE
    """The usage of the models, tasks included."""
    channel_id: str = ""
    """The channel that is the thread, or the task."""
    output: object = None
    """The answer as the value it stands for, if the agent has an `output`."""
    approvals: tuple[Approval, ...] = ()
    """What waits for a person, if `stopped` is `approval`. Asked again with the same `message_id` after the decision,
    the agent gives its answer."""


class DelegationReport(msgspec.Struct, frozen=True):
    """The result of a task."""

    reply: AgentReply
    failure: TurnFailed | None = None


class Delegates(Protocol):
    """Runs tasks."""

    async def run(self, task: DelegatedTask) -> DelegationReport:
        """Run a task, and wait for its result."""
        ...

    async def drop(self, task: DelegatedTask, reason: str) -> Usage:
        """Stop a task that no call waits for any more. Returns the usage so far."""
        ...

    def stop_orphaned_tasks(self, channel: State) -> None:
        """Stop the tasks that ended turns of this channel have left open, and record how each of them ended."""
        ...

    async def is_abandoned(self, channel: State) -> bool:
        """Whether this is the channel of a task that no call waits for any more. It is stopped then."""
        ...


class CallerContext(msgspec.Struct, frozen=True):
    """The agent that calls a tool, and the dependencies of the call."""

    member: Member
    now: Callable[[], Instant]
    delegates: Delegates
    turn: Turn
    key: str
    """The idempotency key of the call."""
    given_tasks: set[str]
    """The tasks that the turn has given, in earlier attempts too."""
    most_tasks: int
    """How many the turn may give. One that an earlier attempt has given is not counted again."""

    def count_task(self, task_id: str) -> None:
        """Count this task; `UsageError` if it is one too many."""
        if task_id not in self.given_tasks and len(self.given_tasks) >= self.most_tasks:
            counted = "1 task" if self.most_tasks == 1 else f"{self.most_tasks} tasks"
            raise UsageError(f"this turn has given {counted}, the limit (Limits.tasks); do it without another")
        self.given_tasks.add(task_id)


class StartedTasks:
    """The tasks of one call."""

    def __init__(self, channel_id: str, by: str) -> None:
        self._channel_id, self._by = channel_id, by
        self._counts: Counter[str] = Counter()
        self._in_progress: dict[str, tuple[Delegates, DelegatedTask]] = {}
        self.usage: Usage = NO_USAGE
        """What they consumed."""

    @property
    def pending(self) -> bool:
        """Whether the call waits for any of them."""
        return bool(self._in_progress)

    def wait_for_person(self, state: State) -> bool:
        """Whether the call waits for nothing but tasks that wait for a person, by the state of the channel."""
        return self.pending and all(state.tasks.get(task) == NEVER for task in self._in_progress)

    async def run(self, caller: CallerContext, agent: AgentFields, text: str, *, ttl: float | None) -> AgentReply:
        """Give a task, and wait for its report; `TurnFailed` if it fails."""
        name = getattr(agent, "name", None)
        if not isinstance(name, str):
            raise UsageError(f"{describe(agent)} cannot be given a task; give an Agent")
        if not isinstance(text, str) or not text:
            raise UsageError(f"the task for {name!r} is {describe(text)}; say what is to be done, as a text")
        denial = check_draft(Envelope(sender_id=self._by, event_type=EV_TEXT, event_data={"text": text}))
        if denial is not None:
            raise UsageError(f"the task for {name!r} cannot be given: {denial.detail}")
        self._counts[name] += 1
        task_id, turn = derived_id("task", caller.key, name, str(self._counts[name])), caller.turn
        task = DelegatedTask(
            task_id, self._channel_id, turn.turn_id, turn.cause, self._by, agent, text, ttl, turn.audience, caller.key
        )
        caller.count_task(task_id)
        self._in_progress[task_id] = caller.delegates, task
        try:
            reported = await caller.delegates.run(task)
        except Exception:
            self._in_progress.pop(task_id, None)
            raise
        if self._in_progress.pop(task_id, None) is not None:
            self.usage += reported.reply.usage
        if reported.failure is not None:
            raise reported.failure
        return reported.reply

    async def give_up(self, reason: str) -> None:
        """Stop those in progress."""
        while self._in_progress:
            _, (delegates, task) = self._in_progress.popitem()
            self.usage += await delegates.drop(task, reason)


class AlreadyDone:
    """The awaitable of something that is done already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class TurnChannel:
    """The channel, as a tool holds it. Each call of a tool gets its own."""

    __injected__ = "channel"

    def __init__(
        self,
        state: State,
        speaker: str,
        judge: JudgeDraft,
        *,
        before: ContextSet = NO_CONTEXT_CHANGE,
        caller: CallerContext | None = None,
    ) -> None:
        self._state, self.speaker, self.channel_id = state, speaker, state.channel_id
        self._judge, self._before, self._caller = judge, before, caller
        self.written = NO_CONTEXT_CHANGE
        """What this call has written to the context."""
        self.audience: tuple[str, ...] | None = None
        """The audience that this call has chosen for the answer: `()` is everybody; None if it has chosen none."""
        self.over = False
        """Whether the call has returned: what is written later would be lost."""
        self.tasks = StartedTasks(state.channel_id, speaker)
        """The tasks that this call has given to others."""

    @property
    def state(self) -> State:
        """The channel as it was when the turn began. A copy: changing it changes nothing."""
        return detach_state(self._state)

    @property
    def context_vars(self) -> Json:
        """The context variables, with what this turn has written to them so far."""
        updates = merge_context_changes(self._before, self.written)
        kept = {key: value for key, value in self._state.context_vars.items() if key not in updates.delete}
        return copy_json({**kept, **updates.set})

    @property
    def member(self) -> Member:
        """The member of the speaker's team that calls the tool."""
        return self._known_caller.member

    @property
    def agent(self) -> str:
        """The name of the agent that calls the tool: the speaker, or a member of its team."""
        return self.speaker if self._caller is None else self._caller.member.name

    @property
    def lead(self) -> str | None:
        """The lead of that agent; None for the speaker itself."""
        return None if self._caller is None else self._caller.member.lead

    @property
    def now(self) -> Instant:
        """The time in UTC: `2026-01-31T12:00:00.000000Z`."""
        return self._known_caller.now()

    async def delegate(self, agent: AgentFields, text: str, *, ttl: float | None = None) -> AgentReply:
        """Have another agent do something in a channel of its own, and wait for its report.

        If the call is made again after a crash, the same task is resumed; it must be given in the same words, and
        in the same place among those for the same agent. `TurnFailed` if it fails.
        """
        if self.over:
            raise UsageError("the call is over, and with it the time to give tasks")
        return await self.tasks.run(self._known_caller, agent, text, ttl=ttl)

    @property
    def _known_caller(self) -> CallerContext:
        if self._caller is None:
            raise UsageError("this channel is not held by a tool in a turn")
        return self._caller

    def set_context(self, **values: object) -> AlreadyDone:
        """Set context variables; `Denied` if the speaker may not."""
        return self._write({"set": values, "delete": []})

    def delete_context(self, *keys: str) -> AlreadyDone:
        """Remove context variables; `Denied` if the speaker may not."""
        return self._write({"set": {}, "delete": list(keys)})

    def set_audience(self, names: list[str] | None) -> AlreadyDone:
        """Say whom the answer of this turn is for: these participants, or everybody with None.

        Without it an answer is for those who heard what it answers. The last call that says so decides.
        """
        if self.over:
            raise UsageError("the call is over, and with it the time to choose who hears the answer")
        given: object = [] if names is None else names
        if not isinstance(given, list | tuple) or (names is not None and not given):
            raise UsageError(f"audience is {describe(names)}; give a list of names, or None for everybody")
        known = list(self._state.participants)
        for name in given:
            if name not in known:
                advice = spelling_advice(name, known) or f"there are: {', '.join(known)}"
                raise UsageError(f"audience names {describe(name)}, who is not in this channel; {advice}")
        self.audience = tuple(dict.fromkeys(given))
        return AlreadyDone()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"inside a tool the channel has no {name!r}: it has channel_id, speaker, agent, lead, now, state, "
            "context_vars, set_context, delete_context, set_audience and delegate; what the agent says is what its "
            "turn ends with"
        )

    def _write(self, data: Json) -> AlreadyDone:
        if self.over:
            raise UsageError("the call is over, and with it the time to write to the context")
        try:
            check_json(data)
            updates = as_type(copy_json(data), ContextSet)
        except Malformed as error:
            raise UsageError(f"the context cannot hold this: {error}") from error
        denial = self._judge(Envelope(sender_id=self.speaker, event_type=EV_CONTEXT_SET, event_data=data))
        if denial is not None:
            raise Denied(denial.reason, self.channel_id, denial.detail)
        self.written = merge_context_changes(self.written, updates)
        return AlreadyDone()


class HasContext(Protocol):
    """A channel whose context can be written: inside a tool, or outside of turns."""

    def set_context(self, **values: object) -> Awaitable[object]: ...

    def delete_context(self, *keys: str) -> Awaitable[object]: ...


def set_context(channel: HasContext, **values: object) -> Awaitable[object]:
    """Set context variables of a channel. In a tool this is done at once and may be awaited or not."""
    return channel.set_context(**values)


def delete_context(channel: HasContext, *keys: str) -> Awaitable[object]:
    """Remove context variables of a channel. In a tool this is done at once and may be awaited or not."""
    return channel.delete_context(*keys)


def merge_context_changes(first: ContextSet, then: ContextSet) -> ContextSet:
    """Two changes of the context as one."""
    if not then.set and not then.delete:
        return first
    kept = {key: value for key, value in first.set.items() if key not in then.delete}
    return ContextSet({**kept, **then.set}, list(dict.fromkeys((*first.delete, *then.delete))))
