"""Tasks: work that one agent gives another, in a channel of its own that reports back.

Rule 1: a task is known by the call that gives it. A call that is made again finds the same task, and goes on with it.
Rule 2: what becomes of a task is recorded in the channel it was given from, each fact once; of its ends the first.
Rule 3: no task waits for ever: it ends with an answer, fails for a reason, or runs out of time. While one of its calls
        waits for the approval of a person, it waits, too, and so does the turn that gave it.
Rule 4: what the store cannot do now, and what is cut off because the hub closes, is no failure of the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from antiphon.agents.call_results import NO_USAGE, Usage
from antiphon.agents.declaration import Declaration
from antiphon.agents.turn_channel import AgentReply, DelegatedTask, DelegationReport
from antiphon.core.approval_rules import inherit_approvals
from antiphon.core.envelope import Envelope, Json, add_seconds, derived_id
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable, TurnFailed, UnknownChannel, UsageError
from antiphon.core.event_data import data_of, original_digest
from antiphon.core.events import (
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    ChannelCreated,
    Seat,
)
from antiphon.core.evolve import DEFAULT_TASK_SECONDS
from antiphon.core.state import State
from antiphon.core.step import owed_turn
from antiphon.core.text import describe
from antiphon.guards.deadlines import task_deadline
from antiphon.guards.deadlock_memory import TASK_CHAIN, task_chain, task_entry, words_digest
from antiphon.guards.named_guards import inherit_guards
from antiphon.hub.live import LiveChannel
from antiphon.runtime.arguments import check_ttl
from antiphon.runtime.channel_lifecycle import TASK_KNOB, create_with_first_words, task_origin
from antiphon.runtime.core import HubCore
from antiphon.runtime.participant import ensure_agent_registered
from antiphon.runtime.subscriptions import tail_pages
from antiphon.runtime.task_reports import TaskAssignment, TaskReport, failure_reason
from antiphon.runtime.turn_events import (
    APPROVAL,
    WAITING_REASONS,
    AgentEvent,
    FinalStateEvent,
    ToolUsageEvent,
    TurnEvents,
    agent_reply_of,
    ended_with_answer,
)

T = TypeVar("T")

logger = logging.getLogger("antiphon.hub")

CANCELLED_REASON = "cancelled"
"""Why a task has failed whose turn has ended, or whose channel has."""
NO_REPLY_LIMIT: Json = {"name": "reply_within", "seconds": 0, "handler": "auto_close"}
"""What is expected of a task that has a time to live: nothing else."""
TASK_RETRY_SECONDS = 1.0
"""After how many seconds something is tried again that the store could not do."""


class DelegatedTasks:
    """Has tasks done in a hub."""

    def __init__(self, core: HubCore) -> None:
        self._core = core
        self._settling: set[str] = set()
        """The tasks that are being stopped because the turn that gave them has ended."""

    async def run(self, task: DelegatedTask) -> DelegationReport:
        """Start a task, or resume it, and wait for its result."""
        return await self._retry_store(lambda: self._run_task(task))

    async def drop(self, task: DelegatedTask, reason: str) -> Usage:
        """Stop a task that no turn waits for any more. Returns its usage."""
        return await self._retry_store(lambda: self._drop_task(_assignment_of(task), reason))

    def stop_orphaned_tasks(self, channel: State) -> None:
        """Stop the tasks that ended turns of this channel have left open, and record how each of them ended.

        It is asked of every channel that an agent of this hub is in, so a process that ended between the end of a task
        and its report is made up for by the next.
        """
        for task_id, turn_id in channel.open_tasks.items():
            giver = turn_id.rpartition("/")[2]
            if owed_turn(channel, turn_id) is None and giver in self._core.agents:
                self._settle(channel.channel_id, task_id)

    async def is_abandoned(self, channel: State) -> bool:
        """Whether this is the channel of a task that no turn waits for any more. It is stopped then.

        The turn that waited for it has stopped it, unless the process ended before that.
        """
        core, origin = self._core, task_origin(channel.knobs)
        if not origin:
            return False
        parent, turn_id = str(origin.get("parent")), str(origin.get("turn"))
        if await self._find_assignment(parent, channel.channel_id) is None:
            return False
        if owed_turn((await core.channels.get(parent)).state, turn_id) is not None:
            return False
        self._settle(parent, channel.channel_id)
        return True

    def _settle(self, parent: str, task_id: str) -> None:
        async def work() -> None:
            try:
                await self._retry_store(lambda: self._cancel_task(parent, task_id))
            finally:
                self._settling.discard(task_id)

        if task_id not in self._settling:
            self._settling.add(task_id)
            self._core.spawn(work(), f"end of task {task_id}")

    async def _cancel_task(self, parent: str, task_id: str) -> Usage:
        given = await self._find_assignment(parent, task_id)
        return NO_USAGE if given is None else await self._drop_task(given, CANCELLED_REASON)

    async def _find_assignment(self, parent: str, task_id: str) -> TaskAssignment | None:
        """The task as it was given; None if this channel has not given it, as a fork of the one that has."""
        started_id = derived_id(task_id, EV_TASK_STARTED, "")
        started = (await self._core.store.find(parent, [started_id])).get(started_id)
        if started is None:
            return None
        turn_id, by, agent = (str(started.event_data.get(field)) for field in ("turn", "by", "agent"))
        audience = None if started.audience is None else tuple(started.audience)
        return TaskAssignment(task_id, parent, turn_id, started.causation_id, by, agent, audience)

    async def _retry_store(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of this work, retried while the store is unavailable: what it did before is found again."""
        core = self._core
        while True:
            try:
                return await work()
            except (OutcomeUnknown, StoreUnavailable) as error:
                logger.warning("a task waits for the store: %s", error)
                await core.clock.wait(asyncio.Event(), add_seconds(core.clock.now(), TASK_RETRY_SECONDS))
            except UsageError:
                if not core.closing.is_set():
                    raise
                await core.stopped.wait()  # the call is cut off before that, and made again when the hub is opened
                raise

    async def _run_task(self, task: DelegatedTask) -> DelegationReport:
        core, given = self._core, _assignment_of(task)
        parent = await core.live(task.parent)
        report = TaskReport(core, parent, given)
        await report.check_depth()
        await self._check_task(task)
        await report.start(add_seconds(core.clock.now(), task.ttl or DEFAULT_TASK_SECONDS), task.text)
        try:
            child = await self._child_channel(task, parent)
        except Denied as denied:
            await self._drop_task(given, denied.reason)
            raise
        if original_digest(await _task_words(child)) != original_digest({"text": task.text}):
            await self._drop_task(given, "conflict")
            raise UsageError(f"this task for {task.agent.name!r} was given in other words before; give it anew")
        final, turn_events = await self._finish_task(child, report)
        return _report_of(task, final, turn_events)

    async def _drop_task(self, given: TaskAssignment, reason: str) -> Usage:
        core = self._core
        report = TaskReport(core, await core.live(given.parent), given)
        await report.write_once(EV_TASK_STARTED, {"until": core.clock.now()})
        try:
            child = await core.live(given.task_id)
        except UnknownChannel:  # it had not come so far
            await report.write_once(EV_TASK_FAILED, {"usage": data_of(NO_USAGE), "reason": reason})
            return NO_USAGE
        await core.end_channel(child, reason, given.by)
        final, _ = await self._finish_task(child, report)
        return final.usage

    async def _finish_task(self, child: LiveChannel, report: TaskReport) -> tuple[FinalStateEvent, TurnEvents]:
        """Follow a task until it ends, and record how, with the usage of the tasks that it had given itself.

        Those are stopped first: what they consume is known when nothing of them runs any more.
        """
        turn_events = TurnEvents(report.given.agent, lambda: child.state)
        final = await self._follow_task(child, report, turn_events)
        if final.stopped in WAITING_REASONS:  # reported to the turn that gave the task: it waits for no person
            await self._core.end_channel(child, final.stopped, report.given.by)
        usage = final.usage
        for task_id in list(child.state.open_tasks):
            usage += await self._cancel_task(child.state.channel_id, task_id)
        final = msgspec.structs.replace(final, usage=usage)
        await report.end(final)
        return final, turn_events

    async def _check_task(self, task: DelegatedTask) -> None:
        if task.agent.name == task.by:
            raise UsageError(f"{task.by!r} cannot give itself a task; give it to another agent")
        check_ttl(task.ttl)
        if not isinstance(task.agent, Declaration):
            raise UsageError(f"{describe(task.agent)} cannot be given a task; give an Agent")
        await ensure_agent_registered(self._core, task.agent)
        if self._core.directory.find(task.agent.name).asks:
            raise UsageError(f"{task.agent.name!r} decides on its invitations itself, so it cannot be given a task")

    async def _child_channel(self, task: DelegatedTask, given_in: LiveChannel) -> LiveChannel:
        """The channel of the task, made together with what is to be done."""
        core = self._core
        async with core.locks.setdefault(task.task_id, asyncio.Lock()):
            try:
                return await core.live(task.task_id)
            except UnknownChannel:
                pass
            kind = core.directory.find(task.by).kind
            parent, left = given_in.state, task_deadline(given_in.ruleset, given_in.fold, task.turn_id)
            origin: Json = {"parent": task.parent, "turn": task.turn_id, "depth": parent.task_depth + 1}
            origin |= {"root": parent.run_id, **left}
            if given_in.ruleset.calls.about_tasks:
                origin[TASK_CHAIN] = [*task_chain(parent), task_entry(task.agent.name, words_digest(task.text))]
            knobs: Json = {TASK_KNOB: origin, **_inherited_knobs(parent, task)}
            if task.ttl is not None:
                knobs["expectations"] = [NO_REPLY_LIMIT]
            seats = [Seat(task.by, kind), Seat(task.agent.name, "agent")]
            created = ChannelCreated("consulting", task.by, seats, knobs, ordered=True, ttl=check_ttl(task.ttl))
            first = Envelope(sender_id=task.by, event_type=EV_TEXT, event_data={"text": task.text})
            return await create_with_first_words(core, created, task.task_id, first=first, repeatable=True)

    async def _follow_task(self, child: LiveChannel, report: TaskReport, turn_events: TurnEvents) -> FinalStateEvent:
        async with aclosing(tail_pages(self._core, child, 0, until=self._core.stopped)) as pages:
            async for page in pages:
                final = await _report_page(page, report, turn_events)
                if final is not None:
                    return final
                await report.note_waiting(child.state)
        raise UsageError("the hub was closed while the task was under way; it goes on when the hub is opened again")


def _inherited_knobs(parent: State, task: DelegatedTask) -> Json:
    """The knobs of the channel of a task: what holds in the channel above, and in the own threads of its agent."""
    own = task.agent.own_channel_knobs
    return {**inherit_guards(parent.knobs, own), **inherit_approvals(parent.knobs, own)}


def _assignment_of(task: DelegatedTask) -> TaskAssignment:
    return TaskAssignment(
        task.task_id, task.parent, task.turn_id, task.cause, task.by, task.agent.name, task.audience, task.key
    )


def _report_of(task: DelegatedTask, final: FinalStateEvent, turn_events: TurnEvents) -> DelegationReport:
    """The report on a task that has ended, for the tool that gave it."""
    if ended_with_answer(final):
        return DelegationReport(agent_reply_of(task.agent, turn_events.path, final))
    reason = failure_reason(final)
    detail = turn_events.doubt if reason in WAITING_REASONS else final.detail
    failure = TurnFailed(reason, detail="" if reason == detail else detail, agent=final.agent)
    # Not part of the message, which a model reads: that must be the same in every run.
    failure.channel_id = final.channel_id
    return DelegationReport(AgentReply("", final.agent, reason, final.usage, final.channel_id), failure)


async def _report_page(page: Sequence[Envelope], report: TaskReport, turn_events: TurnEvents) -> FinalStateEvent | None:
    """Record the progress that a page of a task's log tells. Returns how the task ended, if it did."""
    for envelope, event in _page_events(page, turn_events, report.given.by):
        if isinstance(event, FinalStateEvent):
            return event
        if isinstance(event, ToolUsageEvent):
            await report.write(EV_TASK_PROGRESS, {"tool": event.tool, "who": event.agent}, envelope.envelope_id)
    return None


def _page_events(
    page: Sequence[Envelope], turn_events: TurnEvents, asker: str
) -> Iterator[tuple[Envelope, AgentEvent]]:
    for envelope in page:
        if turn_events.message is None and envelope.sender_id == asker and envelope.event_type == EV_TEXT:
            turn_events.message = envelope
        for event in turn_events.project(envelope):
            if isinstance(event, FinalStateEvent) and event.stopped == APPROVAL:
                turn_events.over = False  # the task waits for its person, as long as that takes
            else:
                yield envelope, event


async def _task_words(child: LiveChannel) -> Json:
    """What is to be done in the channel of a task, as data."""
    return next(each.event_data for each in await child.read(0) if each.event_type == EV_TEXT)
