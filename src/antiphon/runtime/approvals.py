"""The one list of what waits for a person.

Rule 1: what waits is read from the state of its channel, and from nowhere else. There is no second list.
Rule 2: a compensation that is stuck waits in a channel that has ended; the others in channels that are open.
Rule 3: an approval_id names one occurrence: a call that is in doubt a second time, or a turn that is suspended a second
        time, has another. A person is asked about a call that has not left once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from antiphon.core.approval_rules import ASKED_CALL, Approval, asked_call_id, call_digest
from antiphon.core.codec import digest_of
from antiphon.core.envelope import CHANNEL_ID_PATTERN, HUB, NEVER, Instant
from antiphon.core.errors import LogCorrupt, RulesInvalid, UnknownApproval, UnknownChannel
from antiphon.core.event_data import event_of
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import ApprovalRequested, CallDoubted, CallStarted, TurnSuspended
from antiphon.core.state import State, Turn
from antiphon.runtime.core import HubCore
from antiphon.runtime.saga_approvals import (
    channel_compensations,
    compensations_in,
    stored_compensations,
    stuck_compensations,
)
from antiphon.runtime.turn_control import APPROVAL_DECISIONS, SUSPENDED_TURN, WaitingItem, approval_id_of
from antiphon.store.paging import ReadLogPage, all_envelopes, channel_rows, log_page_reader
from antiphon.store.protocol import Store
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

logger = logging.getLogger("antiphon.hub")

MAX_CLEAR_CHANNELS = 100_000
"""How many channels are remembered in which nothing waits."""
MODEL_NAME = "model"
"""The name of the call of an agent's model. A summary and a step have names of their own."""
TOOL_DECISIONS = ("approve", "edit", "reject", "respond")
MODEL_DECISIONS = ("approve", "reject", "respond")
OTHER_DECISIONS = ("approve", "reject")

KnowsTurn = Callable[[Turn], bool]


def _knows_all(turn: Turn) -> bool:
    return True


async def stored_approvals(store: Store, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in a store that is only read, in one channel or in all. No rules are needed for that."""
    if channel_id is not None:
        return await _stored_channel_approvals(store, channel_id)
    found: list[Approval] = []
    async for row in channel_rows(store, status="active"):
        if not row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
            found += await _stored_channel_approvals(store, row.channel_id)
    return oldest_first([*found, *await stored_compensations(store)])


async def _stored_channel_approvals(store: Store, channel_id: str) -> list[Approval]:
    read, state = log_page_reader(store, channel_id), State(channel_id=channel_id)
    async for envelope in all_envelopes(read):
        state = evolve(state, envelope)
    if not state.sequence:
        raise UnknownChannel(channel_id)
    return await compensations_in(store, channel_id) if state.ended else await approvals_in(state, read)


async def approvals_of(core: HubCore, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in one channel, or in all of them, oldest first."""
    core.check_open()
    if channel_id is not None:
        live = await core.live(channel_id)
        return [*await approvals_in(live.state, live.read), *await channel_compensations(live)]
    found = await stuck_compensations(core)
    async for row in channel_rows(core.store, status="active"):
        found += await listed_approvals(core, row.channel_id)
    return oldest_first(found)


def oldest_first(approvals: Iterable[Approval]) -> list[Approval]:
    """The approvals in the order in which they began to wait."""
    return sorted(approvals, key=lambda each: each.since)


async def listed_approvals(core: HubCore, channel_id: str, *, may_know: KnowsTurn = _knows_all) -> list[Approval]:
    """What waits in one channel of a listing, in the turns that may be known. One that is damaged hides no other."""
    shared = core.store.caps.many_hubs  # another hub may have changed what this one remembers
    if channel_id.startswith(SYSTEM_CHANNEL_PREFIX) or (channel_id in core.clear_channels and not shared):
        return []
    try:
        live = await core.live(channel_id)
        found = await approvals_in(live.state, live.read, may_know=may_know)
    except (RulesInvalid, LogCorrupt) as error:
        logger.warning("what waits in channel %s cannot be known: %s", channel_id, error)
        return []
    if not any(_has_waiting_items(turn) for turn in live.state.owed):
        if len(core.clear_channels) >= MAX_CLEAR_CHANNELS:
            core.clear_channels.clear()
        core.clear_channels.add(channel_id)
    return found


async def approvals_below(core: HubCore, channel_id: str) -> list[Approval]:
    """What waits in a channel, and in the tasks that are given from it, at any depth."""
    live = await core.live(channel_id)
    found = await approvals_in(live.state, live.read)
    for task_id in live.state.open_tasks:
        try:
            found += await approvals_below(core, task_id)
        except UnknownChannel:  # it has not begun
            continue
    return oldest_first(found)


def _has_waiting_items(turn: Turn) -> bool:
    """Whether a person can decide about anything of this turn. It may still run."""
    return turn.waits_for_person or bool(turn.asked)


async def approvals_in(state: State, read: ReadLogPage, *, may_know: KnowsTurn = _knows_all) -> list[Approval]:
    """What waits in a channel, oldest turn first."""
    found: list[Approval] = []
    for turn in state.owed:
        if state.status == "active" and _has_waiting_items(turn) and may_know(turn):
            found += await _turn_approvals(state, turn, read)
    return found


class _TurnFacts(msgspec.Struct):
    """What the log says about what waits in a turn."""

    started: dict[int, CallStarted] = {}
    doubted: dict[int, tuple[CallDoubted, Instant]] = {}
    requested: dict[int, tuple[ApprovalRequested, Instant]] = {}
    suspended: tuple[str, Instant] = ("", NEVER)


async def _turn_approvals(state: State, turn: Turn, read: ReadLogPage) -> list[Approval]:
    facts = await _turn_facts(turn, read)
    found = [
        requested_approval(state, turn, facts.requested[index][0], since=facts.requested[index][1])
        for index in turn.asked or ()
        if index in facts.requested
    ]
    for index in turn.doubts:
        call = facts.started.get(index, CallStarted(turn.turn_id, 0, "", ""))
        doubt, since = facts.doubted.get(index, (CallDoubted(turn.turn_id, index, call.name), NEVER))
        found.append(_other_approval(state, turn, index, call=call, why=(doubt.why, since)))
    if turn.suspended:
        digest = digest_of([state.channel_id, turn.turn_id, turn.epoch, turn.crashes])
        no_call = CallStarted(turn.turn_id, 0, "", digest)
        found.append(_other_approval(state, turn, None, call=no_call, why=facts.suspended))
    return found


async def _turn_facts(turn: Turn, read: ReadLogPage) -> _TurnFacts:
    facts = _TurnFacts()
    async for envelope in all_envelopes(read, turn.sequence):
        if envelope.sender_id != HUB or envelope.event_data.get("turn") != turn.turn_id:
            continue
        match event_of(envelope):
            case CallStarted() as event:
                facts.started[event.index] = event
            case CallDoubted() as event:
                facts.doubted[event.index] = event, envelope.created_at
            case ApprovalRequested() as event:
                facts.requested[event.index] = event, envelope.created_at
            case TurnSuspended() as event:
                facts.suspended = event.why, envelope.created_at
            case _:
                pass
    return facts


def requested_approval(state: State, turn: Turn, request: ApprovalRequested, *, since: Instant) -> Approval:
    """The approval of a call that has not left."""
    tool = request.kind == "tool"
    other = MODEL_DECISIONS if request.name == MODEL_NAME else OTHER_DECISIONS
    due = turn.asked_until.get(request.index, request.decide_by)
    return Approval(
        asked_call_id(state.channel_id, turn.turn_id, request.index),
        state.channel_id,
        "approval",
        request.agent or turn.speaker,
        request.name,
        request.args,
        request.why,
        call_digest(request.name, request.args) if tool else request.digest,
        turn.cause,
        list(TOOL_DECISIONS if tool else other),
        turn.turn_id,
        min(filter(None, (due, state.expires_at)), default=None),
        request.approvers,
        since,
        request.parameters,
    )


def _other_approval(
    state: State, turn: Turn, index: int | None, *, call: CallStarted, why: tuple[str, Instant]
) -> Approval:
    """Of a call in doubt by its position, of a suspended turn without."""
    return Approval(
        approval_id_of(state, turn, index),
        state.channel_id,
        SUSPENDED_TURN if index is None else "call",
        call.agent or turn.speaker,
        call.name,
        call.args or {},
        why[0],
        call.digest,
        turn.cause,
        list(APPROVAL_DECISIONS),
        turn.turn_id,
        state.expires_at or None,
        since=why[1],
    )


async def find_waiting_item(core: HubCore, approval_id: object) -> WaitingItem:
    """What this id names, whether it still waits or not; `UnknownApproval` if it cannot name anything."""
    parts = approval_id.rsplit(".", 4) if isinstance(approval_id, str) else []
    if (
        len(parts) != 5
        or not CHANNEL_ID_PATTERN.match(parts[0])
        or not all(_is_decimal(parts[place]) for place in (1, 3))
    ):
        raise UnknownApproval(approval_id)
    channel_id, sequence, speaker, number, what = parts
    if what not in (SUSPENDED_TURN, ASKED_CALL) and not _is_decimal(what):
        raise UnknownApproval(approval_id)
    try:
        live = await core.live(channel_id)
    except UnknownChannel:
        raise UnknownApproval(approval_id) from None
    turn_id = f"{sequence}/{speaker}"
    if what == ASKED_CALL:
        return WaitingItem(str(approval_id), live, turn_id, 0, int(number), asked=True)
    index = None if what == SUSPENDED_TURN else int(what)
    return WaitingItem(str(approval_id), live, turn_id, int(number), index)


async def recorded_request(waiting: WaitingItem) -> ApprovalRequested | None:
    """The request about a call that has not left, decided or not; None if no person was asked about it."""
    if not waiting.asked:
        return None
    sequence = int(waiting.turn_id.partition("/")[0])
    async for envelope in all_envelopes(waiting.live.read, sequence):
        event = event_of(envelope) if envelope.sender_id == HUB else None
        if isinstance(event, ApprovalRequested) and (event.turn, event.index) == (waiting.turn_id, waiting.index):
            return event
    return None


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12
