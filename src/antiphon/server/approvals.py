"""What waits for a person: to look through, and to decide.

Rule 1: a decision names the digest of what it is about, so that nobody decides something that they have not seen.
Rule 2: the first decision counts. A second one is refused.
"""

from __future__ import annotations

import logging

from antiphon.core.errors import LogCorrupt, RulesInvalid, UnknownChannel
from antiphon.core.events import CallDoubted, CallStarted, event_of
from antiphon.core.state import Turn
from antiphon.core.turns import owed_turn
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel
from antiphon.server.channels import is_operator
from antiphon.server.problems import Refused
from antiphon.server.reading import size_of
from antiphon.server.shapes import Approval, ApprovalList, ApprovalQuery, Choice, Decided
from antiphon.server.verbs import Visit

log = logging.getLogger("antiphon.server")

OPTIONS = ["approve", "reject", "respond"]
REJECTED = "A person decided that this call is not to be made again, and not to be relied on"


async def list_approvals(visit: Visit) -> ApprovalList:
    """What waits for a person in the channels behind a place."""
    asked, desk = visit.asked(ApprovalQuery), visit.hub._desk
    whose = None if is_operator(visit, asked.view) else visit.principal.name
    rows = await desk.store.channels(status="active", participant=whose, after=asked.after, limit=asked.limit)
    found: list[Approval] = []
    before = asked.after
    room = visit.house.limits.page_bytes
    for row in rows:
        waiting = await _in_channel(visit, row.channel_id)
        room -= sum(map(size_of, waiting))
        if found and room < 0:
            return ApprovalList(found, before)
        found += waiting
        before = row.channel_id
    return ApprovalList(found, rows[-1].channel_id if len(rows) == asked.limit else None)


async def _in_channel(visit: Visit, channel_id: str) -> list[Approval]:
    """What waits in one channel. One that cannot be used hides no other."""
    try:
        live = await visit.hub._desk.live(channel_id)
        turns = [turn for turn in live.state.owed if _may_know(visit, turn)]
        return [await _approval(live, turn, index) for turn in turns for index in turn.doubts]
    except (RulesInvalid, LogCorrupt) as error:
        log.warning("what waits in channel %s cannot be known: %s", channel_id, error)
        return []


async def decide(visit: Visit) -> Decided:
    """Decide what becomes of a call that waits for a person."""
    choice, approval_id = visit.said(Choice), visit.places["approval_id"]
    live, turn, index = await _waiting(visit, approval_id)
    if choice.decision not in OPTIONS:
        raise Refused(422, "bad_decision", f"a call in doubt takes: {', '.join(OPTIONS)}")
    approval = await _approval(live, turn, index)
    if choice.digest != approval.digest:
        raise Refused(409, "stale_decision", "the digest is of something else; look at what waits, and decide again")
    by = visit.principal.name
    channel = Channel(visit.hub._desk, live, by)
    match choice.decision:
        case "approve":
            await channel.settle(turn.turn_id, index, again=True)
        case "respond":
            await channel.settle(turn.turn_id, index, result=choice.text)
        case _:
            why = f": {choice.text}" if choice.text else "."
            await channel.settle(turn.turn_id, index, result=f"{REJECTED}{why}")
    return Decided(approval_id, choice.decision, by)


async def _waiting(visit: Visit, approval_id: str) -> tuple[LiveChannel, Turn, int]:
    """The call that this id is of; not there, if it is not for whoever asks, or does not wait any more."""
    gone = Refused(404, "unknown_approval", f"nothing waits under {approval_id!r}; GET /approvals lists what does")
    parts = approval_id.rsplit(".", 3)
    if len(parts) != 4 or not parts[1].isdecimal() or not parts[3].isdecimal():
        raise gone
    channel_id, sequence, speaker, index = parts
    try:
        live = await visit.hub._desk.live(channel_id)
    except UnknownChannel:
        raise gone from None
    if visit.principal.name not in live.state.participants and not visit.principal.may("operate"):
        raise gone
    turn = owed_turn(live.state, f"{sequence}/{speaker}")
    if turn is not None and not _may_know(visit, turn):
        raise gone
    if turn is None or int(index) not in turn.doubts:
        raise Refused(409, "not_in_doubt", "this was decided already, or its turn has ended")
    return live, turn, int(index)


def _may_know(visit: Visit, turn: Turn) -> bool:
    """Whether the participant heard what a turn answers. An operator may know of every turn."""
    return turn.audience is None or visit.principal.name in turn.audience or visit.principal.may("operate")


async def _approval(live: LiveChannel, turn: Turn, index: int) -> Approval:
    started, doubted = await _story(live, turn, index)
    channel_id = live.state.channel_id
    return Approval(
        f"{channel_id}.{turn.turn_id.replace('/', '.')}.{index}",
        channel_id,
        started.agent or turn.speaker,
        started.name,
        started.args or {},
        doubted.why,
        started.digest,
        OPTIONS,
    )


async def _story(live: LiveChannel, turn: Turn, index: int) -> tuple[CallStarted, CallDoubted]:
    """What is recorded of a call in doubt."""
    started = CallStarted(turn.turn_id, index, "", "")
    doubted = CallDoubted(turn.turn_id, index, "")
    cursor = turn.sequence
    while page := await live.read(cursor):
        cursor = page[-1].sequence
        for event in map(event_of, page):
            match event:
                case CallStarted() if (event.turn, event.index) == (turn.turn_id, index):
                    started = event
                case CallDoubted() if (event.turn, event.index) == (turn.turn_id, index):
                    doubted = event
                case _:
                    pass
    return started, doubted
