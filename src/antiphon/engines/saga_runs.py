"""One saga, carried out: step by step, each move recorded in the channel of the run before the next.

Rule 1: a compensation that fails is retried with growing pauses. Then, and where no retry helps, a person decides, and
        what is to be undone behind it waits.
Rule 2: each attempt has a time of its own. Of the time of the run nothing is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from antiphon.agents.call_results import ToolOutcome, ToolResult
from antiphon.agents.compensation import compensation_arguments, find_compensation
from antiphon.agents.tool import BadArguments, Tool, bind_arguments
from antiphon.core.codec import copy_json, plain_data
from antiphon.core.envelope import NEVER, Envelope, Instant, add_seconds
from antiphon.core.errors import OutcomeUnknown, StoreUnavailable
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, CallFailed, CallFinished
from antiphon.core.guard import Ask
from antiphon.core.saga_events import EV_SAGA_CLAIMED, EV_SAGA_FINISHED, SagaClaimed, SagaFinished
from antiphon.core.sagas import (
    COMPENSATION_TURN,
    KEY_SUFFIX,
    SagaStep,
    failure_move,
    last_first,
    next_owed,
    next_status,
    retry_pause,
)
from antiphon.core.step import journal_draft
from antiphon.engines.call_approvals import why_approval
from antiphon.engines.environment import TurnEnvironment
from antiphon.engines.saga_calls import SagaCalls, UndoneCall
from antiphon.engines.saga_records import (
    BREAKER_OPEN,
    CompensationMove,
    PreparedCompensation,
    RecordSagaEntries,
    StartCompensation,
    move_draft,
)
from antiphon.engines.tool_invocation import InjectedValues, call_tool
from antiphon.guards.saga import Saga, saga_memory_of
from antiphon.hub.admission import AdmissionPlan
from antiphon.hub.clock import DeadlineExceeded, TimerQueue
from antiphon.hub.known_secrets import redact_text
from antiphon.hub.live import LiveChannel

logger = logging.getLogger("antiphon.engine")

STORE_RETRY_SECONDS = 1.0
BREAKER_LOOK_SECONDS = 5.0
"""How often a compensation looks whether a breaker has closed."""

SagaEnd = Literal["finished", "stuck", "agents_missing", "stopped"]
"""Why nothing more is done now."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """An attempt at a compensation that has not succeeded."""

    error: str
    why: Literal["error", "timeout"]


@dataclass
class SagaRun:
    """One saga under one claim."""

    environment: TurnEnvironment
    live: LiveChannel
    guard: Saga
    timers: TimerQueue
    stopping: asyncio.Event
    epoch: int = 0
    calls: SagaCalls = field(init=False)

    def __post_init__(self) -> None:
        self.calls = SagaCalls(self.environment, self.live)

    async def carry_out(self, owner: str) -> SagaEnd:
        """Undo what is owed, until nothing is left, or nothing can be done now."""
        await self._claim(owner)
        await self._await_turns()
        while not self.stopping.is_set():
            steps = last_first((await self.calls.read()).values())
            step = next_owed(steps)
            if step is None:
                await self._record(journal_draft(EV_SAGA_FINISHED, _finished(steps)))
                return "finished"
            if step.status == "stuck":
                return "stuck"
            if not await self._advance(step):
                return "stopped" if self.stopping.is_set() else "agents_missing"
        return "stopped"

    async def _claim(self, owner: str) -> None:
        memory = saga_memory_of(self.live.fold)
        self.epoch = memory.epoch
        if memory.owner != owner:
            await self._record(journal_draft(EV_SAGA_CLAIMED, SagaClaimed(owner, memory.epoch + 1)))
            self.epoch = memory.epoch + 1

    async def _await_turns(self) -> None:
        """Wait until no turn runs here any more whose calls may be undone."""
        steps = await self.calls.read()
        for channel in {self.live.state.channel_id, *(step.call.channel for step in steps.values())}:
            await self.environment.running.idle(channel)
        self.calls.forget_tasks()

    async def _advance(self, step: SagaStep) -> bool:
        """Make the next moves of a step; False if nothing can be done now."""
        call, agents = await self.calls.call_of(step), self.environment.agents
        tool = find_compensation(agents, step.comp_name, speaker=call.speaker, tool=step.tool)
        if tool is None and call.speaker not in agents:
            return False
        if tool is None:
            await self._move(step, "refuse", "compensation_missing")
            return True
        try:
            args = compensation_arguments(tool, call.args, call.result)
        except BadArguments as error:
            logger.warning("%s of %s cannot be called: %s", step.comp_name, self.live.state.channel_id, error)
            await self._move(step, "refuse", "arguments")
            return True
        key = f"{call.key}{KEY_SUFFIX}"
        ready = PreparedCompensation(step, tool.name, args, key, call.agent)
        return await self._run(ready, tool, call)

    async def _run(self, ready: PreparedCompensation, tool: Tool, call: UndoneCall) -> bool:
        if ready.step.status != "running":
            if self.live.log.deps.store.caps.many_hubs:
                await self._pause_until(call.running_until)  # another process may not know yet that the run has ended
            started = await self._start(ready, await self._question(ready, tool))
            if started is None:
                return False
            if isinstance(started, str):
                return True
            ready = started
        elif tool.idempotency == "unsafe":  # it left, and its process ended
            await self._move(ready.step, "refuse", "in_doubt")
            return True
        await self._record_outcome(ready, tool, await self._attempt(ready, tool))
        return True

    async def _question(self, ready: PreparedCompensation, tool: Tool) -> Ask | None:
        """What a person is asked because the tool wants that; None if one has allowed it, or need not be asked."""
        if ready.step.by:
            return None
        why = await why_approval(tool, ready.args, self._caller, timers=self.timers)
        return None if why is None else Ask(why, tool.protections.approvers)

    @property
    def _caller(self) -> str:
        return f"the run in channel {self.live.state.channel_id}"

    async def _start(self, ready: PreparedCompensation, question: Ask | None) -> PreparedCompensation | str | None:
        """The compensation as it leaves, or why a person decides; None if the hub closes before it can leave."""
        clock = self.environment.clock
        await self._pause_until(ready.step.until)
        step = replace(ready.step, attempt=ready.step.attempt + 1)
        draft = move_draft(self.live.state.channel_id, step, CompensationMove("running"))
        while not self.stopping.is_set():
            plan = StartCompensation(replace(ready, step=step), self.epoch, self.environment.new_id, question)
            await self._submit(plan, draft)
            if plan.refusal != BREAKER_OPEN:
                args = ready.args if plan.args is None else plan.args
                return plan.refusal or replace(ready, step=replace(step, status="running"), args=args)
            await self._pause_until(add_seconds(clock.now(), BREAKER_LOOK_SECONDS))
        return None

    async def _attempt(self, ready: PreparedCompensation, tool: Tool) -> ToolResult | FailedAttempt:
        """Call it, in its own time."""
        context = copy_json(self.live.state.context_vars)
        given = InjectedValues(None, context, ready.key, self._caller)
        try:
            arguments: Mapping[str, object] = bind_arguments(tool, ready.args)
            async with self.timers.within(self.attempt_seconds()):
                returned = (await call_tool(tool, arguments, given)).returned
        except BadArguments as error:  # guards may have changed them
            return FailedAttempt(str(error), "error")
        except DeadlineExceeded as error:
            return FailedAttempt(f"{tool.name}: {error}", "timeout")
        return FailedAttempt(returned.text, "error") if returned.failed else returned

    def attempt_seconds(self) -> float:
        """How long an attempt may take."""
        return self.guard.compensation_seconds

    async def _record_outcome(
        self, ready: PreparedCompensation, tool: Tool, outcome: ToolResult | FailedAttempt
    ) -> None:
        step, order = ready.step, ready.step.order
        if isinstance(outcome, ToolResult):
            finished = CallFinished(COMPENSATION_TURN, order, plain_data(ToolOutcome(ToolResult(outcome.text))))
            await self._move(step, "succeed", journal=journal_draft(EV_CALL_FINISHED, finished))
            return
        error = redact_text(outcome.error)
        logger.warning("%s of %s has failed: %s", step.comp_name, self.live.state.channel_id, error)
        kind = outcome.why if self.live.ruleset.calls.asked else ""
        failed = journal_draft(EV_CALL_FAILED, CallFailed(COMPENSATION_TURN, order, error, failure=kind))
        if outcome.why == "timeout" and tool.idempotency == "unsafe":
            await self._move(step, "refuse", "in_doubt", journal=failed)
        else:
            await self._move(step, failure_move(step.attempt), outcome.why, journal=failed)

    async def _move(self, step: SagaStep, move: str, why: str = "", *, journal: Envelope | None = None) -> None:
        status = next_status(step.status, move)
        assert status is not None, f"there is no move {move!r} from {step.status!r}"
        until = NEVER
        if status == "failed":
            until = add_seconds(self.environment.clock.now(), retry_pause(step.attempt))
        draft = move_draft(self.live.state.channel_id, step, CompensationMove(status, why, until))
        await self._record(*(() if journal is None else (journal,)), draft)

    async def _record(self, *drafts: Envelope) -> None:
        identity = drafts[-1] if drafts[-1].envelope_id else None
        await self._submit(RecordSagaEntries(drafts, self.epoch, self.environment.new_id), identity)

    async def _submit(self, plan: AdmissionPlan, identity: Envelope | None) -> None:
        """Have it recorded, as often as it takes."""
        clock = self.environment.clock
        while True:
            try:
                await self.live.submit(plan, draft=identity)
                return
            except (OutcomeUnknown, StoreUnavailable) as error:
                logger.warning("the saga of %s waits for the store: %s", self.live.state.channel_id, error)
                await clock.wait(asyncio.Event(), add_seconds(clock.now(), STORE_RETRY_SECONDS))

    async def _pause_until(self, until: Instant) -> None:
        clock = self.environment.clock
        while until and clock.now() < until and not self.stopping.is_set():
            await clock.wait(self.stopping, until)


def _finished(steps: list[SagaStep]) -> SagaFinished:
    done, skipped = (sum(step.status == status for step in steps) for status in ("done", "skipped"))
    return SagaFinished(done, sum(step.was_stuck for step in steps), skipped)
