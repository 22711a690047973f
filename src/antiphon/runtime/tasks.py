"""Tasks: work that one agent gives another, in a channel of its own that reports back.

Rule 1: a task is known by the call that gives it. A call that is made again finds the same task, and goes on with it.
Rule 2: what becomes of a task is recorded in the channel it was given from, each fact once; of its ends the first.
Rule 3: nobody waits for ever: a task ends with an answer, fails for a reason, or runs out of time.
Rule 4: what the store cannot do now, and what is cut off because the hub closes, is no failure of the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.agents.results import AgentReply
from antiphon.agents.routine import LIMITS
from antiphon.agents.tasks import Reported, Task
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable, TurnFailed, UnknownChannel, UsageError
from antiphon.core.events import (
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    TASK_ENDS,
    Created,
    Json,
    Seat,
    data_of,
)
from antiphon.core.evolve import TASK_SECONDS
from antiphon.core.ids import derived_id
from antiphon.core.instants import Instant, after
from antiphon.core.state import State
from antiphon.core.step import record, said_by_hub
from antiphon.core.turns import owed_turn
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk
from antiphon.runtime.events import AgentEvent, FinalStateEvent, ToolUsageEvent
from antiphon.runtime.hub import Hub
from antiphon.runtime.invoking import seat_agent
from antiphon.runtime.participant import TASK, checked_ttl
from antiphon.runtime.reading import grown
from antiphon.runtime.told import WAITING, Told, reply_of

T = TypeVar("T")

log = logging.getLogger("antiphon.hub")

DEEPEST = 8
"""How many tasks may stand inside each other."""
CANCELLED = "cancelled"
"""Why a task has failed whose turn has ended, or whose channel has."""
END = "end"
"""What the ends of a task are known by: there is one."""
IN_ITS_OWN_TIME: Json = {"name": "reply_within", "seconds": 0, "handler": "auto_close"}
"""What is expected of a task that has a time to live: nothing else."""
RETRY = 1.0
"""After how many seconds something is tried again that the store could not do."""


class GivenTask(msgspec.Struct, frozen=True):
    """A task as the log of the channel names it that it was given from."""

    task_id: str
    parent: str
    turn_id: str
    cause: str | None
    by: str
    agent: str
    audience: tuple[str, ...] | None
    """Who sees what is recorded of it; None for everybody in the channel."""


class Tasks:
    """Has tasks done in a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._desk = hub, hub._desk
        self._settling: set[str] = set()
        """The tasks that are being stopped because the turn that gave them has ended."""

    async def run(self, task: Task) -> Reported:
        """Have a task done, or go on with it, and wait for what it comes to."""
        return await self._insisted(lambda: self._done(task))

    async def drop(self, task: Task, reason: str) -> Usage:
        """Stop a task that nobody waits for any more; what it has consumed."""
        return await self._insisted(lambda: self._dropped(_given(task), reason))

    def settle(self, channel: State) -> None:
        """Stop the tasks that ended turns of this channel have left open, and record how each of them ended.

        It is asked of every channel that an agent of this hub is in, so a process that ended between the end of a task
        and its report is made up for by the next.
        """
        for task_id, turn_id in channel.open_tasks.items():
            giver = turn_id.rpartition("/")[2]
            if owed_turn(channel, turn_id) is None and giver in self._desk.agents:
                self._settle(channel.channel_id, task_id)

    async def forsaken(self, channel: State) -> bool:
        """Whether this is the channel of a task that nobody waits for any more. It is stopped then.

        Whoever waited for it has told it so, unless the process ended before that.
        """
        desk, given = self._desk, channel.knobs.get(TASK)
        if not isinstance(given, dict):
            return False
        parent, turn_id = str(given.get("parent")), str(given.get("turn"))
        if await self._found(parent, channel.channel_id) is None:
            return False
        if owed_turn((await desk.channels.get(parent)).state, turn_id) is not None:
            return False
        self._settle(parent, channel.channel_id)
        return True

    def _settle(self, parent: str, task_id: str) -> None:
        async def work() -> None:
            try:
                await self._insisted(lambda: self._cancelled(parent, task_id))
            finally:
                self._settling.discard(task_id)

        if task_id not in self._settling:
            self._settling.add(task_id)
            self._desk.spawn(work(), f"end of task {task_id}")

    async def _cancelled(self, parent: str, task_id: str) -> Usage:
        given = await self._found(parent, task_id)
        return NO_USAGE if given is None else await self._dropped(given, CANCELLED)

    async def _found(self, parent: str, task_id: str) -> GivenTask | None:
        """The task as it was given; None if this channel has not given it, as a fork of the one that has."""
        started_id = derived_id(task_id, EV_TASK_STARTED, "")
        started = (await self._desk.store.find(parent, [started_id])).get(started_id)
        if started is None:
            return None
        turn_id, by, agent = (str(started.event_data.get(field)) for field in ("turn", "by", "agent"))
        audience = None if started.audience is None else tuple(started.audience)
        return GivenTask(task_id, parent, turn_id, started.causation_id, by, agent, audience)

    async def _insisted(self, work: Callable[[], Awaitable[T]]) -> T:
        """What this comes to. Whatever it has done before it is found again."""
        desk = self._desk
        while True:
            try:
                return await work()
            except (OutcomeUnknown, StoreUnavailable) as error:
                log.warning("a task waits for the store: %s", error)
                await desk.clock.wait(asyncio.Event(), after(desk.clock.now(), RETRY))
            except UsageError:
                if not desk.closing.is_set():
                    raise
                await desk.stopped.wait()  # the call is cut off before that, and made again when the hub is opened
                raise

    async def _done(self, task: Task) -> Reported:
        desk, given = self._desk, _given(task)
        parent = await desk.live(task.parent)
        depth = _depth(parent.state) + 1
        if depth > DEEPEST:
            raise UsageError(f"{DEEPEST} tasks stand inside each other already, the limit; do it without another")
        await self._check(task)
        report = _Report(desk, parent, given)
        await report.start(after(desk.clock.now(), task.ttl or TASK_SECONDS))
        child = await self._child(task, depth)
        if await _said_first(child) != task.text:
            await self._dropped(given, "conflict")
            raise UsageError(f"this task for {task.agent.name!r} was given in other words before; give it anew")
        told = Told(task.agent.name, lambda: child.state)
        final = await self._followed(child, given, told=told, report=report)
        if final.stopped in WAITING:  # whoever gave the task is told, instead of waiting for a person
            await desk.end(child, final.stopped, task.by)
        final = await self._with_open_tasks(child, final)
        await report.end(final)
        return _reported(task, final, told)

    async def _dropped(self, given: GivenTask, reason: str) -> Usage:
        desk = self._desk
        report = _Report(desk, await desk.live(given.parent), given)
        await report.start(desk.clock.now())
        try:
            child = await desk.live(given.task_id)
        except UnknownChannel:  # it had not come so far
            await report.once(EV_TASK_FAILED, {"usage": data_of(NO_USAGE), "reason": reason})
            return NO_USAGE
        await desk.end(child, reason, given.by)
        told = Told(given.agent, lambda: child.state)
        final = await self._followed(child, given, told=told, report=report)
        final = await self._with_open_tasks(child, final)
        await report.end(final)
        return final.usage

    async def _with_open_tasks(self, child: LiveChannel, final: FinalStateEvent) -> FinalStateEvent:
        """How a task ended, with the usage of the tasks that it had given and that were cut off with it.

        They are stopped first: what they consume is known when nothing of them runs any more.
        """
        usage = final.usage
        for task_id in list(child.state.open_tasks):
            usage += await self._cancelled(child.state.channel_id, task_id)
        return msgspec.structs.replace(final, usage=usage)

    async def _check(self, task: Task) -> None:
        if task.agent.name == task.by:
            raise UsageError(f"{task.by!r} cannot give itself a task; give it to another agent")
        checked_ttl(task.ttl)
        await seat_agent(self._hub, task.agent)
        if self._desk.directory.find(task.agent.name).asks:
            raise UsageError(f"{task.agent.name!r} decides on its invitations itself, so it cannot be given a task")

    async def _child(self, task: Task, depth: int) -> LiveChannel:
        """The channel of the task, made together with what is to be done."""
        desk = self._desk
        async with desk.locks.setdefault(task.task_id, asyncio.Lock()):
            try:
                return await desk.live(task.task_id)
            except UnknownChannel:
                pass
            kind = desk.directory.find(task.by).kind
            knobs: Json = {TASK: {"parent": task.parent, "turn": task.turn_id, "depth": depth}}
            if task.ttl is not None:
                knobs["expectations"] = [IN_ITS_OWN_TIME]
            seats = [Seat(task.by, kind), Seat(task.agent.name, "agent")]
            created = Created("consulting", task.by, seats, knobs, ordered=True, ttl=checked_ttl(task.ttl))
            first = Envelope(sender_id=task.by, event_type=EV_TEXT, event_data={"text": task.text})
            return await desk.create(created, task.task_id, first=first)

    async def _followed(self, child: LiveChannel, given: GivenTask, *, told: Told, report: _Report) -> FinalStateEvent:
        async with aclosing(_events(self._desk, child, told, asker=given.by)) as events:
            async for envelope, event in events:
                if isinstance(event, FinalStateEvent):
                    return event
                if isinstance(event, ToolUsageEvent):
                    await report.write(EV_TASK_PROGRESS, {"tool": event.tool, "who": event.agent}, envelope.envelope_id)
        raise UsageError("the hub was closed while the task was under way; it goes on when the hub is opened again")


class _Report:
    """What is recorded of one task in the channel it was given from."""

    def __init__(self, desk: Desk, parent: LiveChannel, given: GivenTask) -> None:
        self._desk, self._parent, self._given = desk, parent, given

    async def write(self, event_type: str, data: Json, mark: str = "") -> None:
        """Record a fact, once. A channel that has ended takes none."""
        given, desk = self._given, self._desk
        about: Json = {"task": given.task_id, "agent": given.agent, "by": given.by, "turn": given.turn_id}
        draft = said_by_hub(event_type, {**about, **data}, cause=given.cause)
        envelope_id = derived_id(given.task_id, END if event_type in TASK_ENDS else event_type, mark)
        audience = None if given.audience is None else list(given.audience)
        draft = Envelope(envelope_id, "", draft.sender_id, audience, event_type, draft.event_data, draft.causation_id)
        await self._parent.submit(
            lambda fold, laws, at: (
                None if fold.state.ended else record(fold, draft, laws=laws, at=at, new_id=desk.new_id)
            ),
            draft=draft,
        )

    async def start(self, until: Instant) -> None:
        """Record that the task was given, and until when it is waited for, unless that is known."""
        await self.once(EV_TASK_STARTED, {"until": until})

    async def once(self, event_type: str, data: Json) -> None:
        """Record something that happens once, unless it is known."""
        try:
            await self.write(event_type, data)
        except Denied as denied:
            if denied.reason != "conflict":
                raise

    async def end(self, final: FinalStateEvent) -> None:
        """Record how the task ended."""
        usage = data_of(final.usage)
        if _is_answered(final):
            await self.once(EV_TASK_COMPLETED, {"usage": usage, "stopped": final.stopped})
            return
        reason = _reason(final)
        event_type = EV_TASK_EXPIRED if reason == "expired" else EV_TASK_FAILED
        await self.once(event_type, {"usage": usage, "reason": reason})


def _given(task: Task) -> GivenTask:
    return GivenTask(task.task_id, task.parent, task.turn_id, task.cause, task.by, task.agent.name, task.audience)


def _is_answered(final: FinalStateEvent) -> bool:
    return final.stopped is None or final.stopped in LIMITS


def _reason(final: FinalStateEvent) -> str:
    """Why a task came to nothing."""
    return final.detail if final.stopped == "channel_closed" else str(final.stopped)


def _reported(task: Task, final: FinalStateEvent, told: Told) -> Reported:
    """The report on a task that has ended, for the tool that gave it."""
    if _is_answered(final):
        return Reported(reply_of(task.agent, told.path, final))
    reason = _reason(final)
    detail = told.doubt if reason in WAITING else final.detail
    failure = TurnFailed(reason, detail="" if reason == detail else detail, agent=final.agent)
    failure.channel_id = final.channel_id  # which is no part of its words: a model is told them, the same in every run
    return Reported(AgentReply("", final.agent, reason, final.usage, final.channel_id), failure)


def _depth(state: State) -> int:
    given = state.knobs.get(TASK)
    depth = given.get("depth") if isinstance(given, dict) else None
    return depth if isinstance(depth, int) else 0


async def _events(
    desk: Desk, child: LiveChannel, told: Told, *, asker: str
) -> AsyncGenerator[tuple[Envelope, AgentEvent], None]:
    """What the log of a task tells, from its beginning."""
    async with aclosing(grown(desk, child, 0, until=desk.stopped)) as envelopes:
        async for envelope in envelopes:
            if told.message is None and envelope.sender_id == asker and envelope.event_type == EV_TEXT:
                told.message = envelope
            for event in told.of(envelope):
                yield envelope, event


async def _said_first(child: LiveChannel) -> object:
    """What is to be done in the channel of a task."""
    return next(each.event_data["text"] for each in await child.read(0) if each.event_type == EV_TEXT)
