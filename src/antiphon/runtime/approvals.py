"""The one list of what waits for a person, and the decisions about it.

Rule 1: what waits is read from the state of its channel, and from nowhere else. There is no second list.
Rule 2: an approval_id names one occurrence: a call that is in doubt a second time, or a turn that is suspended a second
        time, has another.
Rule 3: a decision is recorded together with what follows from it. The first one wins; a later one is told the first.
Rule 4: people decide. Agents and services never do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from antiphon.core.codec import Malformed, check_json, digest_of
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.errors import Denied, LogCorrupt, RulesInvalid, UnknownApproval, UnknownChannel, UsageError
from antiphon.core.events import (
    EV_APPROVAL_DECIDED,
    ApprovalDecided,
    CallDoubted,
    CallStarted,
    Json,
    TurnSuspended,
    event_of,
)
from antiphon.core.evolve import evolve
from antiphon.core.ids import CHANNEL_ID
from antiphon.core.instants import Instant
from antiphon.core.state import State, Turn
from antiphon.core.words import shown
from antiphon.runtime.deciding import DECISIONS, TURN, WaitingItem, approval_id_of, decided_id, decision_plan
from antiphon.runtime.desk import Desk
from antiphon.store.protocol import Store
from antiphon.store.rows import SYSTEM

log = logging.getLogger("antiphon.hub")

PAGE = 1000
PERSON = "human"


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


class ReadableChannel(Protocol):
    """A channel whose state and log can be read."""

    @property
    def state(self) -> State: ...

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        ...


class StoredChannel:
    """A channel as a store holds it, folded without a hub."""

    def __init__(self, store: Store, state: State) -> None:
        self._store, self._state = store, state

    @property
    def state(self) -> State:
        """The channel as its log left it when it was read."""
        return self._state

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        return (await self._store.read(self._state.channel_id, after=after)).envelopes


async def stored_approvals(store: Store, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in a store that is only read, in one channel or in all. No rules are needed for that."""
    if channel_id is not None:
        return await _stored_in(store, channel_id)
    found: list[Approval] = []
    after = ""
    while rows := await store.channels(status="active", after=after, limit=PAGE):
        for row in rows:
            if not row.channel_id.startswith(SYSTEM):
                found += await _stored_in(store, row.channel_id)
        after = rows[-1].channel_id
    return found


async def _stored_in(store: Store, channel_id: str) -> list[Approval]:
    state = State(channel_id=channel_id)
    while page := (await store.read(channel_id, after=state.sequence)).envelopes:
        for envelope in page:
            state = evolve(state, envelope)
    if not state.sequence:
        raise UnknownChannel(channel_id)
    return await approvals_in(StoredChannel(store, state))


async def approvals_of(desk: Desk, channel_id: str | None = None) -> list[Approval]:
    """What waits for a person in one channel, or in all of them."""
    desk.check_open()
    if channel_id is not None:
        return await approvals_in(await desk.live(channel_id))
    found: list[Approval] = []
    after = ""
    while rows := await desk.store.channels(status="active", after=after, limit=PAGE):
        for row in rows:
            found += await waiting_in(desk, row.channel_id)
        after = rows[-1].channel_id
    return found


async def waiting_in(
    desk: Desk, channel_id: str, *, may_know: Callable[[Turn], bool] = lambda turn: True
) -> list[Approval]:
    """What waits in one channel of a listing, in the turns that may be known. One that is damaged hides no other."""
    shared = desk.store.caps.many_hubs  # another hub may have changed what this one remembers
    if channel_id.startswith(SYSTEM) or (channel_id in desk.clear and not shared):
        return []
    try:
        live = await desk.live(channel_id)
        found = await approvals_in(live, may_know=may_know)
    except (RulesInvalid, LogCorrupt) as error:
        log.warning("what waits in channel %s cannot be known: %s", channel_id, error)
        return []
    if not any(turn.waits_for_person for turn in live.state.owed):
        desk.clear.add(channel_id)
    return found


async def approvals_in(
    live: ReadableChannel, *, may_know: Callable[[Turn], bool] = lambda turn: True
) -> list[Approval]:
    """What waits in a channel, oldest turn first."""
    state, found = live.state, []
    for turn in state.owed:
        if state.status == "active" and turn.waits_for_person and may_know(turn):
            found += await _of_turn(live, state, turn)
    return found


async def _of_turn(live: ReadableChannel, state: State, turn: Turn) -> list[Approval]:
    started: dict[int, CallStarted] = {}
    why: dict[int, str] = {}
    suspended = ""
    cursor = turn.sequence
    while page := await live.read(cursor):
        cursor = page[-1].sequence
        for event in (event_of(envelope) for envelope in page if envelope.sender_id == HUB):
            match event:
                case CallStarted() if event.turn == turn.turn_id:
                    started[event.index] = event
                case CallDoubted() if event.turn == turn.turn_id:
                    why[event.index] = event.why
                case TurnSuspended() if event.turn == turn.turn_id:
                    suspended = event.why
                case _:
                    pass
    unknown = CallStarted(turn.turn_id, 0, "", "")
    found = [
        _of_call(state, turn, index, started=started.get(index, unknown), why=why.get(index, ""))
        for index in turn.doubts
    ]
    return [*found, _of_suspended(state, turn, suspended)] if turn.suspended else found


def _of_call(state: State, turn: Turn, index: int, *, started: CallStarted, why: str) -> Approval:
    return Approval(
        approval_id_of(state, turn, index),
        state.channel_id,
        "call",
        started.agent or turn.speaker,
        started.name,
        started.args or {},
        why,
        started.digest,
        turn.cause,
        list(DECISIONS),
        turn.turn_id,
        state.expires_at or None,
    )


def _of_suspended(state: State, turn: Turn, why: str) -> Approval:
    return Approval(
        approval_id_of(state, turn, None),
        state.channel_id,
        TURN,
        turn.speaker,
        "",
        {},
        why,
        digest_of([state.channel_id, turn.turn_id, turn.epoch, turn.crashes]),
        turn.cause,
        list(DECISIONS),
        turn.turn_id,
        state.expires_at or None,
    )


async def find_waiting(desk: Desk, approval_id: object) -> WaitingItem:
    """What this id names, whether it still waits or not; `UnknownApproval` if it cannot name anything."""
    parts = approval_id.rsplit(".", 4) if isinstance(approval_id, str) else []
    if len(parts) != 5 or not CHANNEL_ID.match(parts[0]) or not all(_is_number(parts[place]) for place in (1, 3)):
        raise UnknownApproval(approval_id)
    channel_id, sequence, speaker, epoch, what = parts
    if what != TURN and not _is_number(what):
        raise UnknownApproval(approval_id)
    try:
        live = await desk.live(channel_id)
    except UnknownChannel:
        raise UnknownApproval(approval_id) from None
    index = None if what == TURN else int(what)
    return WaitingItem(str(approval_id), live, f"{sequence}/{speaker}", int(epoch), index)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12


async def decide(desk: Desk, approval_id: str, choice: PersonDecision, *, by: str, kind: str) -> ApprovalDecided:
    """Record a person's decision about what waits under this id; `Denied` if it is not theirs, or not the first."""
    desk.check_open()
    _check_choice(choice)
    waiting = await find_waiting(desk, approval_id)
    try:
        return await _recorded(desk, waiting, choice, by=by, kind=kind)
    except Denied as denied:
        draft = Envelope("", denied.channel_id, by, None, EV_APPROVAL_DECIDED, {"approval_id": approval_id})
        raise await desk.audit.refusal(denied, draft) from None


async def _recorded(desk: Desk, waiting: WaitingItem, choice: PersonDecision, *, by: str, kind: str) -> ApprovalDecided:
    channel_id, approval_id = waiting.live.state.channel_id, waiting.approval_id
    if kind != PERSON:
        raise Denied("not_a_person", channel_id, f"{by!r} is of kind {kind!r}; only a person (kind human) decides")
    found = await _approval(waiting)
    if found is None:
        raise await _refusal(desk, waiting)
    if choice.digest is not None and choice.digest != found.digest:
        advice = "look at hub.approvals() again, and decide on what waits now"
        raise Denied("stale_decision", channel_id, f"the digest is not that of {approval_id!r}; {advice}")
    decided = ApprovalDecided(waiting.approval_id, choice.decision, by, choice.reason, found.digest)
    try:
        await waiting.live.submit(decision_plan(waiting, decided, choice.text or "", new_id=desk.new_id))
    except Denied as denied:
        if denied.reason != "decided":
            raise
        raise await _refusal(desk, waiting) from None
    return decided


async def _approval(waiting: WaitingItem) -> Approval | None:
    found = await approvals_in(waiting.live)
    return next((each for each in found if each.approval_id == waiting.approval_id), None)


async def first_decision(desk: Desk, waiting: WaitingItem) -> Envelope | None:
    """The record of the decision that was made under this id; None if there is none."""
    channel_id = waiting.live.state.channel_id
    envelope_id = decided_id(channel_id, waiting.approval_id)
    return (await desk.store.find(channel_id, [envelope_id])).get(envelope_id)


async def _refusal(desk: Desk, waiting: WaitingItem) -> Denied | UnknownApproval:
    """Why nothing can be decided under this id: it was decided before, its turn has ended, or it never waited."""
    known = await first_decision(desk, waiting)
    first = event_of(known) if known is not None else None
    if isinstance(first, ApprovalDecided):
        why = f": {first.reason}" if first.reason else ""
        detail = f"{first.by!r} decided before: {first.decision}{why}"
        return Denied("decided", waiting.live.state.channel_id, detail)
    return UnknownApproval(waiting.approval_id)


def _check_choice(choice: PersonDecision) -> None:
    """`UsageError` for a decision that does not exist here, or comes with what it does not take."""
    word = choice.decision
    if word == "edit":
        raise UsageError(
            "'edit' changes the arguments of a call before it leaves; what waits here has left already: "
            f"give one of {', '.join(DECISIONS)}"
        )
    if word not in DECISIONS:
        raise UsageError(f"no decision is called {shown(word)}; there are: {', '.join(DECISIONS)}")
    if choice.args is not None:
        raise UsageError(f"args belongs to 'edit', which is not possible here; leave it out of {word!r}")
    _check_text(choice.reason, "reason")
    if word == "respond":
        if not choice.text:
            raise UsageError("'respond' needs text: what the call returned, or what the agent answers")
        _check_text(choice.text, "text")
    elif choice.text is not None:
        raise UsageError(f"text belongs to 'respond'; give {word!r} a reason instead")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"{what} is {shown(text)}; give a text")
    try:
        check_json(text)
    except Malformed as error:
        raise UsageError(f"{what}: {error}") from error
