"""The one list of what waits for a person, and the decisions about it.

Rule 1: what waits is read from the state of its channel, and from nowhere else. There is no second list.
Rule 2: an approval_id names one occurrence: a call that is in doubt a second time, or a turn that is suspended a second
        time, has another.
Rule 3: a decision is recorded together with what follows from it. The first one wins; a later one is refused, and
        names the first.
Rule 4: people decide. Agents and services never do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from antiphon.core.codec import digest_of
from antiphon.core.envelope import CHANNEL_ID_PATTERN, HUB, Envelope, Instant, Json
from antiphon.core.errors import Denied, LogCorrupt, RulesInvalid, UnknownApproval, UnknownChannel, UsageError
from antiphon.core.event_data import Deny, check_draft, event_of
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import EV_APPROVAL_DECIDED, ApprovalDecided, CallDoubted, CallStarted, TurnSuspended
from antiphon.core.state import State, Turn
from antiphon.core.step import owed_turn
from antiphon.core.text import describe
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.core import HubCore
from antiphon.runtime.hook_calls import spoken_text
from antiphon.runtime.turn_control import (
    APPROVAL_DECISIONS,
    SUSPENDED_TURN,
    RecordDecision,
    WaitingItem,
    answer_for_agent,
    approval_id_of,
    decision_id_of,
)
from antiphon.store.paging import ReadLogPage, all_envelopes, channel_rows, log_page_reader
from antiphon.store.protocol import Store
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

logger = logging.getLogger("antiphon.hub")

MAX_CLEAR_CHANNELS = 100_000
"""How many channels are remembered in which nothing waits."""
HUMAN_KIND = "human"


class Approval(msgspec.Struct, frozen=True):
    """Something that waits for a person's decision."""

    approval_id: str
    channel_id: str
    kind: str
    """`call`: a call in doubt, which left without a recorded outcome. `turn`: a suspended turn, which has reached its
    limit of crashes."""
    agent: str
    """Who made the call, or whose turn it is: `support/billing` for a member of a team."""
    tool: str
    """The tool that was called; "" for a turn."""
    args: Json
    """The arguments of the call; {} for a turn."""
    why: str
    digest: str
    """What the decision is about. A decision that names another digest is refused."""
    cause: str | None
    """The envelope that the turn answers."""
    options: list[str]
    """The decisions that are possible."""
    turn_id: str
    decide_by: Instant | None = None
    """When the channel expires, and nothing can be decided any more; None if it does not."""


class PersonDecision(msgspec.Struct, frozen=True):
    """What a person decides about an approval."""

    decision: str
    reason: str = ""
    text: str | None = None
    """What a call returned, or what the agent answers; for `respond` only."""
    args: Json | None = None
    """Other arguments for a call that has not left yet."""
    digest: str | None = None


async def stored_approvals(store: Store, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in a store that is only read, in one channel or in all. No rules are needed for that."""
    if channel_id is not None:
        return await _stored_channel_approvals(store, channel_id)
    found: list[Approval] = []
    async for row in channel_rows(store, status="active"):
        if not row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
            found += await _stored_channel_approvals(store, row.channel_id)
    return found


async def _stored_channel_approvals(store: Store, channel_id: str) -> list[Approval]:
    read, state = log_page_reader(store, channel_id), State(channel_id=channel_id)
    async for envelope in all_envelopes(read):
        state = evolve(state, envelope)
    if not state.sequence:
        raise UnknownChannel(channel_id)
    return await _approvals_in(state, read)


async def approvals_of(core: HubCore, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in one channel, or in all of them."""
    core.check_open()
    if channel_id is not None:
        live = await core.live(channel_id)
        return await _approvals_in(live.state, live.read)
    found: list[Approval] = []
    async for row in channel_rows(core.store, status="active"):
        found += await listed_approvals(core, row.channel_id)
    return found


async def listed_approvals(
    core: HubCore, channel_id: str, *, may_know: Callable[[Turn], bool] = lambda turn: True
) -> list[Approval]:
    """What waits in one channel of a listing, in the turns that may be known. One that is damaged hides no other."""
    shared = core.store.caps.many_hubs  # another hub may have changed what this one remembers
    if channel_id.startswith(SYSTEM_CHANNEL_PREFIX) or (channel_id in core.clear_channels and not shared):
        return []
    try:
        live = await core.live(channel_id)
        found = await _approvals_in(live.state, live.read, may_know=may_know)
    except (RulesInvalid, LogCorrupt) as error:
        logger.warning("what waits in channel %s cannot be known: %s", channel_id, error)
        return []
    if not any(turn.waits_for_person for turn in live.state.owed):
        if len(core.clear_channels) >= MAX_CLEAR_CHANNELS:
            core.clear_channels.clear()
        core.clear_channels.add(channel_id)
    return found


async def _approvals_in(
    state: State, read: ReadLogPage, *, may_know: Callable[[Turn], bool] = lambda turn: True
) -> list[Approval]:
    """What waits in a channel, oldest turn first."""
    found: list[Approval] = []
    for turn in state.owed:
        if state.status == "active" and turn.waits_for_person and may_know(turn):
            found += await _turn_approvals(state, turn, read)
    return found


async def _turn_approvals(state: State, turn: Turn, read: ReadLogPage) -> list[Approval]:
    started: dict[int, CallStarted] = {}
    why: dict[int, str] = {}
    suspended = ""
    async for envelope in all_envelopes(read, turn.sequence):
        match event_of(envelope) if envelope.sender_id == HUB else None:
            case CallStarted() as event if event.turn == turn.turn_id:
                started[event.index] = event
            case CallDoubted() as event if event.turn == turn.turn_id:
                why[event.index] = event.why
            case TurnSuspended() as event if event.turn == turn.turn_id:
                suspended = event.why
            case _:
                pass
    unknown = CallStarted(turn.turn_id, 0, "", "")
    found = [
        _approval_of(state, turn, index, call=started.get(index, unknown), why=why.get(index, ""))
        for index in turn.doubts
    ]
    if turn.suspended:
        digest = digest_of([state.channel_id, turn.turn_id, turn.epoch, turn.crashes])
        no_call = CallStarted(turn.turn_id, 0, "", digest)
        found.append(_approval_of(state, turn, None, call=no_call, why=suspended))
    return found


def _approval_of(state: State, turn: Turn, index: int | None, *, call: CallStarted, why: str) -> Approval:
    """Of a call in doubt by its position, of a suspended turn without."""
    return Approval(
        approval_id_of(state, turn, index),
        state.channel_id,
        SUSPENDED_TURN if index is None else "call",
        call.agent or turn.speaker,
        call.name,
        call.args or {},
        why,
        call.digest,
        turn.cause,
        list(APPROVAL_DECISIONS),
        turn.turn_id,
        state.expires_at or None,
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
    channel_id, sequence, speaker, epoch, what = parts
    if what != SUSPENDED_TURN and not _is_decimal(what):
        raise UnknownApproval(approval_id)
    try:
        live = await core.live(channel_id)
    except UnknownChannel:
        raise UnknownApproval(approval_id) from None
    index = None if what == SUSPENDED_TURN else int(what)
    return WaitingItem(str(approval_id), live, f"{sequence}/{speaker}", int(epoch), index)


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12


async def decide_approval(
    core: HubCore, approval_id: str, choice: PersonDecision, *, by: str, kind: str
) -> ApprovalDecided:
    """Record a person's decision about what waits under this id; `Denied` if it is not theirs, or not the first."""
    core.check_open()
    _check_decision(choice)
    waiting = await find_waiting_item(core, approval_id)
    try:
        return await _record_decision(core, waiting, choice, by=by, kind=kind)
    except Denied as denied:
        draft = Envelope("", denied.channel_id, by, None, EV_APPROVAL_DECIDED, {"approval_id": approval_id})
        raise await core.audit.refusal(denied, draft) from None


async def _record_decision(
    core: HubCore, waiting: WaitingItem, choice: PersonDecision, *, by: str, kind: str
) -> ApprovalDecided:
    channel_id, approval_id = waiting.live.state.channel_id, waiting.approval_id
    if kind != HUMAN_KIND:
        raise Denied("not_a_person", channel_id, f"{by!r} is of kind {kind!r}; only a person (kind human) decides")
    found = await _current_approval(waiting)
    if found is None:
        raise await _decision_refusal(core, waiting)
    if choice.digest is not None and choice.digest != found.digest:
        advice = "look at hub.approvals() again, and decide on what waits now"
        raise Denied("stale_decision", channel_id, f"the digest is not that of {approval_id!r}; {advice}")
    decided = ApprovalDecided(waiting.approval_id, choice.decision, by, choice.reason, found.digest)
    text = choice.text or ""
    if text and waiting.index is None:
        text = await _screened_text(core, waiting, text, by=by)
    try:
        await waiting.live.submit(RecordDecision(waiting, decided, text, core.new_id))
    except Denied as denied:
        if denied.reason != "decided":
            raise
        raise await _decision_refusal(core, waiting) from None
    return decided


async def _screened_text(core: HubCore, waiting: WaitingItem, text: str, *, by: str) -> str:
    """What a person answers for an agent, as hooks leave it; `Denied` if they refuse it."""
    live, turn = waiting.live, owed_turn(waiting.live.state, waiting.turn_id)
    if turn is None:
        return text
    draft = answer_for_agent(live.ruleset, live.state, turn, text=text, by=by)
    if check_draft(draft) is not None or not core.hooks.screens(live, draft):
        return text
    screened = await core.hooks.screen(live, draft)
    if isinstance(screened, Deny):
        raise Denied(screened.reason, live.state.channel_id, screened.detail)
    return spoken_text(screened)


async def _current_approval(waiting: WaitingItem) -> Approval | None:
    found = await _approvals_in(waiting.live.state, waiting.live.read)
    return next((each for each in found if each.approval_id == waiting.approval_id), None)


async def first_decision(core: HubCore, waiting: WaitingItem) -> Envelope | None:
    """The record of the decision that was made under this id; None if there is none."""
    channel_id = waiting.live.state.channel_id
    envelope_id = decision_id_of(channel_id, waiting.approval_id)
    return (await core.store.find(channel_id, [envelope_id])).get(envelope_id)


async def _decision_refusal(core: HubCore, waiting: WaitingItem) -> Denied | UnknownApproval:
    """Why nothing can be decided under this id: it was decided before, its turn has ended, or it never waited."""
    known = await first_decision(core, waiting)
    first = event_of(known) if known is not None else None
    if isinstance(first, ApprovalDecided):
        why = f": {first.reason}" if first.reason else ""
        detail = f"{first.by!r} decided before: {first.decision}{why}"
        return Denied("decided", waiting.live.state.channel_id, detail)
    return UnknownApproval(waiting.approval_id)


def _check_decision(choice: PersonDecision) -> None:
    """`UsageError` for a decision that does not exist here, or comes with what it does not take."""
    word = choice.decision
    if word == "edit":
        raise UsageError(
            "'edit' changes the arguments of a call before it leaves; what waits here has left already: "
            f"give one of {', '.join(APPROVAL_DECISIONS)}"
        )
    if word not in APPROVAL_DECISIONS:
        raise UsageError(f"no decision is called {describe(word)}; there are: {', '.join(APPROVAL_DECISIONS)}")
    if choice.args is not None:
        raise UsageError(f"args belongs to 'edit', which is not possible here; leave it out of {word!r}")
    check_text_argument(choice.reason, "reason", "a text")
    if word == "respond":
        if not choice.text:
            raise UsageError("'respond' needs text: what the call returned, or what the agent answers")
        check_text_argument(choice.text, "text", "a text")
    elif choice.text is not None:
        raise UsageError(f"text belongs to 'respond'; give {word!r} a reason instead")
