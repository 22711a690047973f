"""Compensations that wait for a person: listed with the other approvals, and decided like them.

Rule 1: what waits is read from the log of the channel of the run, which has ended.
Rule 2: the id names one occurrence: a compensation that is stuck a second time has another.
Rule 3: a person has it tried again (`retry`), leaves it (`skip`), or says that it is undone (`done`). The decision and
        what follows from it are one batch; the first decision wins.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from antiphon.core.approval_rules import REGULATED, Approval, approval_rules, decision_id_of
from antiphon.core.codec import digest_of
from antiphon.core.envelope import CHANNEL_ID_PATTERN, HUB, NEVER, OPERATORS, Envelope, IdSource, Instant, Json
from antiphon.core.errors import Denied, RulesInvalid, UnknownApproval, UnknownChannel, UsageError
from antiphon.core.event_data import Deny, data_of, event_of
from antiphon.core.events import ChannelCreated
from antiphon.core.execution_events import EV_APPROVAL_DECIDED, ApprovalDecided, CallFailed, CallStarted
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import EV_SAGA_COMPENSATION, SAGA_STRUCTS, SagaCompensation
from antiphon.core.sagas import COMPENSATION_TURN, CallRef, SagaStep, SagaSteps, next_status, steps_of
from antiphon.core.state import ENDED_STATUSES
from antiphon.core.step import Admitted, hub_draft, record_all
from antiphon.core.text import describe
from antiphon.guards.saga import saga_memory_of
from antiphon.hub.live import LiveChannel
from antiphon.runtime.approvers import HUMAN_KIND, is_named_approver
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.core import HubCore
from antiphon.store.paging import all_envelopes, channel_rows, log_page_reader
from antiphon.store.protocol import Store

COMPENSATION = "compensation"
"""The kind of these approvals, and the last part of their ids."""
COMPENSATION_DECISIONS = ("retry", "skip", "done")
SAME_DECISIONS = {"approve": "retry", "reject": "skip", "respond": "done"}
"""What the words for other approvals mean for these."""


class _SagaFacts(msgspec.Struct):
    """What the log of a run says about its compensations."""

    steps: SagaSteps = {}
    started: dict[int, CallStarted] = {}
    errors: dict[int, str] = {}
    since: dict[int, Instant] = {}
    """When each event of a compensation was recorded, by its sequence."""
    undone: dict[CallRef, Json] = {}
    """The arguments of the calls that can be undone."""
    knobs: Json = {}


def is_compensation_id(approval_id: object) -> bool:
    """Whether an id names a compensation."""
    return isinstance(approval_id, str) and approval_id.endswith(f".{COMPENSATION}")


async def stored_stuck_channels(store: Store) -> list[str]:
    """The channels that have ended and are looked at all the same: those in which a compensation may be stuck."""
    statuses = sorted(ENDED_STATUSES)
    return [row.channel_id for status in statuses async for row in channel_rows(store, status=status) if row.due]


async def stuck_compensations(core: HubCore) -> list[Approval]:
    """The compensations that wait for a person, in all channels."""
    shared = core.store.caps.many_hubs  # another hub may have met a channel that this one has not
    found: list[Approval] = []
    for channel_id in await stored_stuck_channels(core.store) if shared else core.sagas.channel_ids:
        found += await channel_compensations(await core.live(channel_id))
    return found


async def channel_compensations(live: LiveChannel) -> list[Approval]:
    """What waits for a person in the saga of a channel: one compensation at most."""
    memory = saga_memory_of(live.fold)
    if not memory.is_owed or not memory.stuck:
        return []
    return await compensations_in(live.log.deps.store, live.state.channel_id)


async def stored_compensations(store: Store) -> list[Approval]:
    """The same for all channels of a store that is only read."""
    found: list[Approval] = []
    for channel_id in await stored_stuck_channels(store):
        found += await compensations_in(store, channel_id)
    return found


async def compensations_in(store: Store, channel_id: str) -> list[Approval]:
    """The compensations that wait for a person, as the log of a run says."""
    facts = _SagaFacts()
    await _note_facts(facts, store, channel_id, of=channel_id)
    stuck = [step for step in facts.steps.values() if step.status == "stuck"]
    for task in {step.call.channel for step in stuck} - {channel_id}:
        await _note_facts(facts, store, task, of=channel_id)
    return [_approval_of(channel_id, step, facts) for step in stuck]


async def _note_facts(facts: _SagaFacts, store: Store, channel_id: str, *, of: str) -> None:
    """Take in the log of a run, or of a task of it: of that only what its calls were called with."""
    async for envelope in all_envelopes(log_page_reader(store, channel_id)):
        if envelope.sender_id != HUB:
            continue
        event = event_of(envelope)
        if isinstance(event, CallStarted) and event.turn != COMPENSATION_TURN and event.args is not None:
            facts.undone[CallRef(channel_id, event.turn, event.index)] = event.args
        elif channel_id == of:
            _note_fact(facts, envelope)


def _note_fact(facts: _SagaFacts, envelope: Envelope) -> None:
    if envelope.event_type in SAGA_STRUCTS:
        facts.steps = steps_of((envelope,), facts.steps)
    match event_of(envelope):
        case CallStarted(turn=turn) as event if turn == COMPENSATION_TURN:
            facts.started[event.index] = event
        case CallFailed(turn=turn, error=error) as event if turn == COMPENSATION_TURN:
            facts.errors[event.index] = error
        case ChannelCreated(knobs=knobs):
            facts.knobs = knobs
        case SagaCompensation():
            facts.since[envelope.sequence] = envelope.created_at
        case _:
            pass


def _approval_of(channel_id: str, step: SagaStep, facts: _SagaFacts) -> Approval:
    call = facts.started.get(step.order)
    error = facts.errors.get(step.order, "") if step.why in ("error", "timeout", "in_doubt") else ""
    return Approval(
        f"{channel_id}.{step.changed}.{step.order}.{step.attempt}.{COMPENSATION}",
        channel_id,
        COMPENSATION,
        step.call.turn.partition("/")[2] if call is None else call.agent,
        step.comp_name,
        facts.undone.get(step.call, {}) if call is None else call.args or {},
        f"{step.why}: {error}" if error else step.why,
        digest_of([channel_id, step.step, step.changed]),
        None,
        list(COMPENSATION_DECISIONS),
        step.call.turn,
        approvers=list(step.approvers or approval_rules(facts.knobs).approvers),
        since=facts.since.get(step.changed, NEVER),
    )


class RecordCompensationDecision(msgspec.Struct, frozen=True):
    """Plans a person's decision about a compensation; `Deny("decided")` if it does not wait any more."""

    step: SagaStep
    decided: ApprovalDecided
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        memory, step, decided = saga_memory_of(fold), self.step, self.decided
        status = next_status(step.status, decided.decision)
        if (memory.stuck, memory.stuck_at) != (step.step, step.changed) or status is None:
            return Deny("decided", "it does not wait any more")
        decision_id = decision_id_of(fold.state.channel_id, decided.approval_id)
        record = hub_draft(EV_APPROVAL_DECIDED, data_of(decided), audience=[OPERATORS])
        moved = SagaCompensation(step.step, step.comp_name, step.order, step.attempt, status, by=decided.by)
        follows = hub_draft(EV_SAGA_COMPENSATION, data_of(moved), audience=[OPERATORS])
        drafts = (replace(record, envelope_id=decision_id), follows)
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=self.new_id)


async def decide_compensation(
    core: HubCore, wanted: ApprovalDecided, *, kind: str, digest: str | None
) -> ApprovalDecided:
    """Record what a person wants done about a compensation; `Denied` if it is not theirs to say, or not the first."""
    word = SAME_DECISIONS.get(wanted.decision, wanted.decision)
    if word not in COMPENSATION_DECISIONS:
        there = ", ".join(COMPENSATION_DECISIONS)
        raise UsageError(f"{describe(wanted.decision)} is not possible about a compensation; give one of {there}")
    check_text_argument(wanted.reason, "reason", "a text")
    live = await _find_channel(core, wanted.approval_id)
    try:
        await _record(core, live, msgspec.structs.replace(wanted, decision=word), kind=kind, digest=digest)
    except Denied as denied:
        data: Json = {"approval_id": wanted.approval_id}
        draft = Envelope("", denied.channel_id, wanted.by, None, EV_APPROVAL_DECIDED, data)
        raise await core.audit.refusal(denied, draft) from None
    core.sagas.look_at(live)
    return wanted


async def _find_channel(core: HubCore, approval_id: str) -> LiveChannel:
    channel_id = approval_id.rsplit(".", 4)[0]
    if not CHANNEL_ID_PATTERN.match(channel_id):
        raise UnknownApproval(approval_id)
    try:
        return await core.live(channel_id)
    except UnknownChannel:
        raise UnknownApproval(approval_id) from None


async def _record(core: HubCore, live: LiveChannel, wanted: ApprovalDecided, *, kind: str, digest: str | None) -> None:
    channel_id, by = live.state.channel_id, wanted.by
    if kind != HUMAN_KIND:
        raise Denied("not_a_person", channel_id, f"{by!r} is of kind {kind!r}; only a person (kind human) decides")
    found = next((each for each in await channel_compensations(live) if each.approval_id == wanted.approval_id), None)
    approvers = approval_rules(live.state.knobs).approvers if found is None else found.approvers
    if approvers and not is_named_approver(core, approvers, name=by):
        who = ", ".join(approvers)
        raise Denied("not_an_approver", channel_id, f"{by!r} may not decide this; those may: {who}")
    if live.state.knobs.get("tier") == REGULATED and by == live.state.creator_id:
        why = "the run was started by that person; another person may"
        raise Denied("not_an_approver", channel_id, f"{by!r} may not decide this: {why}")
    if found is None:
        raise await _refusal(core, channel_id, wanted.approval_id)
    if digest is not None and digest != found.digest:
        advice = "look at hub.approvals() again, and decide on what waits now"
        raise Denied("stale_decision", channel_id, f"the digest is not that of {found.approval_id!r}; {advice}")
    decided = msgspec.structs.replace(wanted, digest=found.digest)
    step = await _stuck_step(live)
    if step is None:
        raise await _refusal(core, channel_id, wanted.approval_id)
    try:
        await live.submit(RecordCompensationDecision(step, decided, core.new_id))
    except Denied as denied:
        if denied.reason != "decided":
            raise
        raise await _refusal(core, channel_id, wanted.approval_id) from None


async def _stuck_step(live: LiveChannel) -> SagaStep | None:
    steps: SagaSteps = {}
    async for envelope in all_envelopes(live.read, max(0, saga_memory_of(live.fold).first - 1)):
        if envelope.event_type in SAGA_STRUCTS:
            steps = steps_of((envelope,), steps)
    return steps.get(saga_memory_of(live.fold).stuck)


async def _refusal(core: HubCore, channel_id: str, approval_id: str) -> Denied | UnknownApproval:
    """Why nothing can be decided under this id: it was decided before, or it never waited."""
    wanted = decision_id_of(channel_id, approval_id)
    known = (await core.store.find(channel_id, [wanted])).get(wanted)
    first = None if known is None else event_of(known)
    if isinstance(first, ApprovalDecided):
        why = f": {first.reason}" if first.reason else ""
        return Denied("decided", channel_id, f"{first.by!r} decided before: {first.decision}{why}")
    return UnknownApproval(approval_id)


async def check_nothing_owed(core: HubCore, channel_id: str) -> None:
    """`Denied` if the calls of a channel's run are not undone yet: what they need would be erased with it."""
    try:
        live = await core.live(channel_id)
        run = live if live.state.run_id == channel_id else await core.live(live.state.run_id)
    except (UnknownChannel, RulesInvalid):  # rules that are not known here keep nothing from being erased
        return
    if saga_memory_of(run.fold).is_owed:
        detail = "it cannot be erased: the calls of its run are not undone yet; see hub.approvals()"
        raise Denied("channel_open", channel_id, detail)
