"""Approvals and keys over HTTP: what a person decides, and what an operator administers.

Rule 1: a decision names the digest of its approval, so that it cannot apply to a changed one.
Rule 2: the first decision wins. A second one is refused, and the refusal names the first.
Rule 3: without the scope `operate`, approvals in channels of others, or in private turns that the participant was not
        shown, are answered like those that do not exist; but not those that name the participant, or a role of it.
"""

from __future__ import annotations

from antiphon.core.approval_rules import Approval
from antiphon.core.envelope import visible_to
from antiphon.core.errors import UnknownApproval, UsageError
from antiphon.core.state import Turn
from antiphon.core.step import owed_turn
from antiphon.runtime.approvals import (
    TOOL_DECISIONS,
    approvals_of,
    find_waiting_item,
    listed_approvals,
    recorded_request,
)
from antiphon.runtime.approvers import HUMAN_KIND, is_named_approver
from antiphon.runtime.decisions import PersonDecision, first_decision
from antiphon.runtime.decisions import decide_approval as decided_by
from antiphon.runtime.saga_approvals import COMPENSATION, is_compensation_id, stuck_compensations
from antiphon.runtime.turn_control import APPROVAL_DECISIONS, REJECT, WaitingItem
from antiphon.server.api_keys import Key, NewKeyOptions, check_key_id
from antiphon.server.app import RequestContext, page_bytes_of
from antiphon.server.channel_routes import is_operator_view
from antiphon.server.problems import RequestRefused
from antiphon.server.schemas import ApprovalList, ApprovalQuery, Choice, Decided, KeyList, KeyMade, KeyWish
from antiphon.server.server_token import remove_token, store_path_of


async def list_approvals(ctx: RequestContext) -> ApprovalList:
    """List the approvals that are pending."""
    asked, core = ctx.query_as(ApprovalQuery), ctx.hub.core
    whose = None if is_operator_view(ctx, asked.view) else ctx.principal.name
    rows = await core.store.channels(status="active", participant=whose, after=asked.after, limit=asked.limit)
    found = [] if asked.after else await (_approvals_elsewhere(ctx) if whose is not None else stuck_compensations(core))
    before = asked.after
    room = ctx.app_state.limits.page_bytes - sum(map(page_bytes_of, found))
    for row in rows:
        waiting = await listed_approvals(core, row.channel_id, may_know=lambda turn: _may_know_turn(ctx, turn))
        room -= sum(map(page_bytes_of, waiting))
        if found and room < 0:
            return ApprovalList(found, before)
        found += waiting
        before = row.channel_id
    return ApprovalList(found, rows[-1].channel_id if len(rows) == asked.limit else None)


async def _approvals_elsewhere(ctx: RequestContext) -> list[Approval]:
    """What waits in channels of others, and names the participant or a role of it."""
    core, name = ctx.hub.core, ctx.principal.name
    if not core.directory.knows(name) or core.directory.find(name).kind != HUMAN_KIND:
        return []
    waiting = [each for each in await approvals_of(core) if is_named_approver(core, each.approvers, name=name)]
    return [
        each
        for each in waiting
        if each.kind == COMPENSATION or name not in (await core.live(each.channel_id)).state.participants
    ]


async def decide(ctx: RequestContext) -> Decided:
    """Decide a call that has not left, a call in doubt, or a suspended turn."""
    choice, approval_id, core = ctx.body_as(Choice), ctx.request.path_params["approval_id"], ctx.hub.core
    by = ctx.principal.name
    said = f"nothing waits under {approval_id!r}; GET /approvals lists what does"
    gone = RequestRefused(404, "unknown_approval", said)
    try:
        if is_compensation_id(approval_id):
            return await _decide_compensation(ctx, approval_id, choice)
        waiting = await find_waiting_item(core, approval_id)
        if not await _is_visible_item(ctx, waiting):
            raise gone
        if choice.decision not in (TOOL_DECISIONS if waiting.asked else APPROVAL_DECISIONS):
            said = f"{choice.decision!r} is not possible here: {', '.join(APPROVAL_DECISIONS)}"
            raise RequestRefused(422, "bad_decision", said)
        kind = core.directory.find(by).kind
        decided = await decided_by(core, approval_id, _person_decision(choice), by=by, kind=kind)
    except UnknownApproval:
        raise gone from None
    return Decided(approval_id, decided.decision, by)


async def _decide_compensation(ctx: RequestContext, approval_id: str, choice: Choice) -> Decided:
    """Decide about a compensation that is stuck, as an operator or as one of its approvers."""
    core, by = ctx.hub.core, ctx.principal.name
    if not ctx.principal.may("operate") and approval_id not in {
        each.approval_id for each in await stuck_compensations(core) if is_named_approver(core, each.approvers, name=by)
    }:
        raise UnknownApproval(approval_id)
    kind = core.directory.find(by).kind
    decided = await decided_by(core, approval_id, _person_decision(choice), by=by, kind=kind)
    return Decided(approval_id, decided.decision, by)


async def _is_visible_item(ctx: RequestContext, waiting: WaitingItem) -> bool:
    """Whether the participant may see what is pending, or the decision about it."""
    state, name = waiting.live.state, ctx.principal.name
    if ctx.principal.may("operate"):
        return True
    request = await recorded_request(waiting)
    if request is not None and is_named_approver(ctx.hub.core, request.approvers, name=name):
        return True
    turn = owed_turn(state, waiting.turn_id)
    if name not in state.participants or (turn is not None and not _may_know_turn(ctx, turn)):
        return False
    first = await first_decision(ctx.hub.core, waiting)
    return first is None or visible_to(first, name)


def _may_know_turn(ctx: RequestContext, turn: Turn) -> bool:
    """Whether the participant may see the message that a turn answers. An operator may see every one."""
    return turn.audience is None or ctx.principal.name in turn.audience or ctx.principal.may("operate")


def _person_decision(choice: Choice) -> PersonDecision:
    """The decision as the runtime takes it. Over HTTP `text` may hold the reason of a rejection, too."""
    if choice.decision == REJECT and not choice.reason:
        return PersonDecision(choice.decision, choice.text, digest=choice.digest)
    return PersonDecision(choice.decision, choice.reason, choice.text or None, choice.args, choice.digest)


async def list_keys(ctx: RequestContext) -> KeyList:
    """List all keys, also those revoked."""
    return KeyList(ctx.keys.keys)


async def make_key(ctx: RequestContext) -> KeyMade:
    """Make a key, for a participant and some scopes."""
    wish, core = ctx.body_as(KeyWish), ctx.hub.core
    if wish.participant in core.agents:
        raise UsageError(f"{wish.participant!r} is an agent, and agents have no keys; name a person or a program")
    options = NewKeyOptions(expires_at=wish.expires_at, label=wish.label, by=ctx.principal.name)
    at = core.clock.now()
    secret, key = await ctx.keys.make(wish.participant, kind=wish.kind, scopes=wish.scopes, at=at, **options)
    remove_token(store_path_of(ctx.hub))  # from the first key on the token is not accepted
    return KeyMade(secret, key)


async def revoke_key(ctx: RequestContext) -> Key:
    """Revoke a key. Its streams end at their next check."""
    ring, key_id = ctx.keys, ctx.request.path_params["key_id"]
    check_key_id(key_id)
    if all(key.key_id != key_id for key in ring.keys):
        raise RequestRefused(404, "unknown_key", f"there is no key {key_id!r}")
    return await ring.revoke(key_id, by=ctx.principal.name)
