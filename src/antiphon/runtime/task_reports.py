"""What is recorded of a task in the channel it was given from: that it began, or why not; its progress, and its end.

Rule 1: each fact is recorded once. A task that is given again after a crash is known by its id.
Rule 2: guards are asked about a task inside the append that records its beginning, and the ledger of the run before.
        One that is recorded already is not asked about again, and not counted again.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from antiphon.core.envelope import NEVER, Envelope, IdSource, Instant, Json, add_seconds, derived_id
from antiphon.core.errors import Denied, UsageError
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import (
    EV_TASK_COMPLETED,
    EV_TASK_CONTINUED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_STARTED,
    EV_TASK_WAITING,
    TASK_END_TYPES,
)
from antiphon.core.evolve import DEFAULT_TASK_SECONDS
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import RelatedFact, State
from antiphon.core.step import Admitted, fact_drafts, hub_draft, record, record_all, stamp_draft
from antiphon.guards.deadlock_memory import TASK_WORDS, words_digest
from antiphon.guards.run_limits import DEFAULT_DEPTH_LIMIT, DepthLimit, is_reached
from antiphon.hub.admission import RecordDraft
from antiphon.hub.live import LiveChannel
from antiphon.runtime.core import HubCore
from antiphon.runtime.turn_events import FinalStateEvent, ended_with_answer

TASK_END_MARK = "end"
"""What the ends of a task are known by: there is one."""


class TaskAssignment(msgspec.Struct, frozen=True):
    """A task as the log of the channel names it that it was given from."""

    task_id: str
    parent: str
    turn_id: str
    cause: str | None
    by: str
    agent: str
    audience: tuple[str, ...] | None
    """Who sees what is recorded of it; None for everybody in the channel."""
    key: str = ""
    """The idempotency key of the call that gives it; "" where that is not known."""


class TaskReport:
    """What is recorded of one task in the channel it was given from."""

    def __init__(self, core: HubCore, parent: LiveChannel, given: TaskAssignment) -> None:
        self._core, self._parent, self.given = core, parent, given

    async def start(self, until: Instant, words: str) -> None:
        """Record that the task is given, unless that is known; `Denied` if a guard refuses it.

        Where guards are asked about tasks, the digest of what is to be done is recorded with it.
        """
        told: Json = {TASK_WORDS: words_digest(words)} if self._parent.ruleset.calls.about_tasks else {}
        draft = self._draft(EV_TASK_STARTED, {"until": until, **told})
        plan = _StartTask(draft, self._core.new_id)
        if self._parent.ruleset.calls.about_tasks:
            if draft.envelope_id in await self._core.store.find(self.given.parent, [draft.envelope_id]):
                return
            plan.refused = await self._ask_run(draft)
        await self._submit_once(plan, draft)
        if plan.denial is not None:
            denied = Denied(plan.denial.reason, detail=plan.denial.detail)
            denied.channel_id = self.given.parent  # not part of the message: a model reads the same in every run
            raise denied

    async def check_depth(self) -> None:
        """`UsageError` if the task would stand too deep, where no guard says how deep tasks may stand."""
        state = self._parent.state
        guarded = any(isinstance(guard, DepthLimit) for guard in self._parent.ruleset.guards)
        if guarded or not is_reached(state.task_depth, DEFAULT_DEPTH_LIMIT):
            return
        limit = DepthLimit()
        [fact] = fact_drafts(limit.task_facts(None, state, self._draft(EV_TASK_STARTED, {})), self.given.cause)
        await self._parent.submit(RecordDraft(fact, self._core.new_id))
        raise UsageError(limit.advice)

    async def write(self, event_type: str, data: Json, mark: str = "") -> None:
        """Record a fact, once. A channel that has ended takes none."""
        draft = self._draft(event_type, data, mark)
        await self._parent.submit(RecordDraft(draft, self._core.new_id), draft=draft)

    async def write_once(self, event_type: str, data: Json) -> None:
        """Record something that happens once, unless it is known."""
        draft = self._draft(event_type, data)
        await self._submit_once(RecordDraft(draft, self._core.new_id), draft)

    async def note_waiting(self, task: State) -> None:
        """Record that the task waits for a person now, or that it goes on, unless that is what the log says."""
        state, given = self._parent.state, self.given
        if given.task_id not in state.tasks:
            return
        waits = task.waits_for_approval
        if waits == (state.tasks[given.task_id] == NEVER):
            return
        if waits:
            await self.write(EV_TASK_WAITING, {"key": given.key}, str(task.sequence))
        else:
            until = add_seconds(self._core.clock.now(), DEFAULT_TASK_SECONDS)
            await self.write(EV_TASK_CONTINUED, {"until": until}, str(task.sequence))

    async def end(self, final: FinalStateEvent) -> None:
        """Record how the task ended."""
        usage = data_of(final.usage)
        if ended_with_answer(final):
            await self.write_once(EV_TASK_COMPLETED, {"usage": usage, "stopped": final.stopped})
            return
        reason = failure_reason(final)
        event_type = EV_TASK_EXPIRED if reason == "expired" else EV_TASK_FAILED
        await self.write_once(event_type, {"usage": usage, "reason": reason})

    async def _ask_run(self, draft: Envelope) -> Deny | None:
        """Why the channel in which the run began does not let it give this task; None if a guard here does not."""
        parent, ledgers = self._parent, self._core.ledgers
        state, calls = parent.state, parent.ruleset.calls
        at = max(self._core.clock.now(), state.updated_at)
        stamped = stamp_draft(draft, state, at=at, new_id=self._core.new_id)
        if state.run_id == state.channel_id or calls.permit_task(parent.fold, stamped) is not None:
            return None
        for place, entry in enumerate(calls.task_asks(parent.fold, stamped)):
            denial = await ledgers.offer(entry, run=state.run_id, key=f"{self.given.task_id} asked {place}")
            if denial is not None:
                return denial
        return None

    async def _submit_once(self, plan: _StartTask | RecordDraft, draft: Envelope) -> None:
        try:
            await self._parent.submit(plan, draft=draft)
        except Denied as denied:
            if denied.reason != "conflict":
                raise

    def _draft(self, event_type: str, data: Json, mark: str = "") -> Envelope:
        given = self.given
        about: Json = {"task": given.task_id, "agent": given.agent, "by": given.by, "turn": given.turn_id}
        envelope_id = derived_id(given.task_id, TASK_END_MARK if event_type in TASK_END_TYPES else event_type, mark)
        audience = None if given.audience is None else list(given.audience)
        draft = hub_draft(event_type, {**about, **data}, cause=given.cause)
        return replace(draft, envelope_id=envelope_id, audience=audience)


class _StartTask:
    """Plans the beginning of a task, or what is recorded if guards deny it. A channel that has ended takes none."""

    def __init__(self, draft: Envelope, new_id: IdSource) -> None:
        self._draft, self._new_id = draft, new_id
        self.refused: Deny | None = None
        """Why a ledger denies it."""
        self.denial: Deny | None = None
        """Why it was denied when the plan was last carried out."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        if fold.state.ended:
            return None
        new_id = self._new_id
        stamped = stamp_draft(self._draft, fold.state, at=max(at, fold.state.updated_at), new_id=new_id)
        self.denial = self.refused or ruleset.calls.permit_task(fold, stamped)
        if self.denial is None:
            return record(fold, self._draft, ruleset=ruleset, at=at, new_id=new_id)
        facts: tuple[RelatedFact, ...] = ruleset.calls.task_facts(fold, stamped, self.denial)
        drafts = fact_drafts(facts, self._draft.causation_id)
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=new_id) if drafts else None


def failure_reason(final: FinalStateEvent) -> str:
    """Why a task failed."""
    return final.detail if final.stopped == "channel_closed" else str(final.stopped)
