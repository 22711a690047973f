"""Tasks: work that one agent gives another, in a channel of its own that reports back.

Rule 1: a task is known by the call that gives it. A call that is made again finds the same task, and goes on with it.
Rule 2: what becomes of a task is recorded in the channel it was given from, each fact once.
Rule 3: nobody waits for ever: a task ends with an answer, fails for a reason, or runs out of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.agents.results import AgentReply
from antiphon.agents.routine import LIMITS
from antiphon.agents.tasks import Reported, Task
from antiphon.core.envelope import Envelope
from antiphon.core.errors import TurnFailed, UnknownChannel, UsageError
from antiphon.core.events import (
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    Created,
    Json,
    Seat,
    data_of,
)
from antiphon.core.ids import derived_id
from antiphon.core.state import State
from antiphon.core.step import record, said_by_hub
from antiphon.core.turns import owed_turn
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk
from antiphon.runtime.events import AgentEvent, FinalStateEvent, ToolUsageEvent
from antiphon.runtime.hub import Hub
from antiphon.runtime.invoking import seat_agent
from antiphon.runtime.participant import checked_ttl
from antiphon.runtime.reading import grown
from antiphon.runtime.told import IN_DOUBT, Told

DEEPEST = 8
"""How many tasks may stand inside each other."""
TASK = "task"
"""The knob by which a channel knows from where it was given."""


class Tasks:
    """Has tasks done in a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._desk = hub, hub._desk

    async def run(self, task: Task) -> Reported:
        """Have a task done, or go on with it, and wait for what it comes to."""
        desk = self._desk
        parent = await desk.live(task.parent)
        depth = _depth(parent.state) + 1
        if depth > DEEPEST:
            raise UsageError(f"{DEEPEST} tasks stand inside each other already, the limit; do it without another")
        await self._check(task)
        report = _Report(desk, parent, task)
        await report.write(EV_TASK_STARTED, {})
        child = await self._child(task, depth)
        try:
            final = await self._followed(child, task, report)
        except asyncio.CancelledError:
            if not desk.closing.is_set() and owed_turn(parent.state, task.turn_id) is None:
                self.drop(task, "cancelled")
            raise
        if final.stopped == IN_DOUBT:  # nobody in that channel could settle it
            await desk.end(child, IN_DOUBT, task.by)
        return await report.ended(final, child.state)

    def drop(self, task: Task, reason: str) -> None:
        """Stop a task that nobody waits for any more."""
        self._desk.spawn(self._dropped(task, reason), f"end of task {task.task_id}")

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
            seats = [Seat(task.by, kind), Seat(task.agent.name, "agent")]
            created = Created("consulting", task.by, seats, knobs, ordered=True, ttl=task.ttl)
            first = Envelope(sender_id=task.by, event_type=EV_TEXT, event_data={"text": task.text})
            return await desk.create(created, task.task_id, first=first)

    async def _followed(self, child: LiveChannel, task: Task, report: _Report) -> FinalStateEvent:
        told = Told(task.agent.name, lambda: child.state)
        async with aclosing(_events(self._desk, child, told, asker=task.by)) as events:
            async for envelope, event in events:
                if isinstance(event, FinalStateEvent):
                    return event
                if isinstance(event, ToolUsageEvent):
                    await report.write(EV_TASK_PROGRESS, {"tool": event.tool, "who": event.agent}, envelope.envelope_id)
        raise UsageError("the hub was closed while the task was under way; it goes on when the hub is opened again")

    async def _dropped(self, task: Task, reason: str) -> None:
        desk = self._desk
        try:
            child = await desk.live(task.task_id)
        except UnknownChannel:
            return
        if not child.state.ended:
            await desk.end(child, reason, task.by)
            report = _Report(desk, await desk.live(task.parent), task)
            await report.write(EV_TASK_FAILED, {"reason": reason})


class _Report:
    """What is recorded of one task in the channel it was given from."""

    def __init__(self, desk: Desk, parent: LiveChannel, task: Task) -> None:
        self._desk, self._parent, self._task = desk, parent, task

    async def write(self, event_type: str, data: Json, mark: str = "") -> None:
        """Record a fact, once. A channel that has ended takes none."""
        task, desk = self._task, self._desk
        about: Json = {"task": task.task_id, "agent": task.agent.name, "by": task.by, "turn": task.turn_id}
        draft = said_by_hub(event_type, {**about, **data}, cause=task.cause)
        envelope_id = derived_id(task.task_id, event_type, mark)
        draft = Envelope(envelope_id, "", draft.sender_id, None, event_type, draft.event_data, draft.causation_id)
        await self._parent.submit(
            lambda fold, laws, at: (
                None if fold.state.ended else record(fold, draft, laws=laws, at=at, new_id=desk.new_id)
            ),
            draft=draft,
        )

    async def ended(self, final: FinalStateEvent, child: State) -> Reported:
        """Record how the task ended, and say what it came to."""
        usage = data_of(final.usage)
        if final.stopped is None or final.stopped in LIMITS:
            await self.write(EV_TASK_COMPLETED, {"usage": usage, "stopped": final.stopped})
            return Reported(AgentReply(final.text, final.agent, final.stopped, final.usage, child.channel_id))
        reason = final.detail if final.stopped == "channel_closed" else final.stopped
        expired = reason == "expired"
        await self.write(EV_TASK_EXPIRED if expired else EV_TASK_FAILED, {"usage": usage, "reason": reason})
        reply = AgentReply("", final.agent, reason, final.usage, child.channel_id)
        return Reported(reply, TurnFailed(reason, child.channel_id, "" if reason == final.detail else final.detail))


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
