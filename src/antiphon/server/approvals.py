"""What waits for a person: to look through, and to decide.

Rule 1: a decision names the digest of what it is about, so that nobody decides something that they have not seen.
Rule 2: the first decision wins. A second one is refused, and told the first.
Rule 3: what waits in a channel of others, or in a private turn that the participant has not heard of, does not exist
        for a key without the scope `operate`.
"""

from __future__ import annotations

from antiphon.core.envelope import visible_to
from antiphon.core.errors import UnknownApproval
from antiphon.core.state import Turn
from antiphon.core.turns import owed_turn
from antiphon.runtime.approvals import Approval, PersonDecision, find_waiting, first_decision, waiting_in
from antiphon.runtime.approvals import decide as decided_by
from antiphon.runtime.deciding import DECISIONS, REJECT, WaitingItem
from antiphon.server.channels import is_operator
from antiphon.server.problems import Refused
from antiphon.server.reading import size_of
from antiphon.server.shapes import ApprovalList, ApprovalQuery, Choice, Decided
from antiphon.server.verbs import Visit


async def list_approvals(visit: Visit) -> ApprovalList:
    """What waits for a person in the channels behind a place."""
    asked, desk = visit.asked(ApprovalQuery), visit.hub._desk
    whose = None if is_operator(visit, asked.view) else visit.principal.name
    rows = await desk.store.channels(status="active", participant=whose, after=asked.after, limit=asked.limit)
    found: list[Approval] = []
    before = asked.after
    room = visit.house.limits.page_bytes
    for row in rows:
        waiting = await waiting_in(desk, row.channel_id, may_know=lambda turn: _may_know(visit, turn))
        room -= sum(map(size_of, waiting))
        if found and room < 0:
            return ApprovalList(found, before)
        found += waiting
        before = row.channel_id
    return ApprovalList(found, rows[-1].channel_id if len(rows) == asked.limit else None)


async def decide(visit: Visit) -> Decided:
    """Decide what becomes of a call in doubt, or of a suspended turn."""
    choice, approval_id, desk = visit.said(Choice), visit.places["approval_id"], visit.hub._desk
    by = visit.principal.name
    gone = Refused(404, "unknown_approval", f"nothing waits under {approval_id!r}; GET /approvals lists what does")
    try:
        waiting = await find_waiting(desk, approval_id)
        if not await _is_there(visit, waiting):
            raise gone
        if choice.decision not in DECISIONS:
            raise Refused(422, "bad_decision", f"{choice.decision!r} is not possible here: {', '.join(DECISIONS)}")
        kind = desk.directory.find(by).kind
        decided = await decided_by(desk, approval_id, _decision(choice), by=by, kind=kind)
    except UnknownApproval:
        raise gone from None
    return Decided(approval_id, decided.decision, by)


async def _is_there(visit: Visit, waiting: WaitingItem) -> bool:
    """Whether the participant may know of what waits, or of the decision that was made about it."""
    state, name = waiting.live.state, visit.principal.name
    if visit.principal.may("operate"):
        return True
    turn = owed_turn(state, waiting.turn_id)
    if name not in state.participants or (turn is not None and not _may_know(visit, turn)):
        return False
    first = await first_decision(visit.hub._desk, waiting)
    return first is None or visible_to(first, name)


def _may_know(visit: Visit, turn: Turn) -> bool:
    """Whether the participant heard what a turn answers. An operator may know of every turn."""
    return turn.audience is None or visit.principal.name in turn.audience or visit.principal.may("operate")


def _decision(choice: Choice) -> PersonDecision:
    """The decision as Python has it. Here `text` may say why something is rejected, too."""
    if choice.decision == REJECT and not choice.reason:
        return PersonDecision(choice.decision, choice.text, digest=choice.digest)
    return PersonDecision(choice.decision, choice.reason, choice.text or None, digest=choice.digest)
