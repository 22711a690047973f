"""The decisions of people about what waits for one.

Rule 1: people decide. Agents and services never do.
Rule 2: a decision is recorded together with what follows from it. The first one wins; a later one is refused, and
        names the first.
Rule 3: a decision that names a digest is about that alone. If something else waits now, it is refused.
Rule 4: arguments that a person gives instead are checked like those of a model, before anything is recorded.
"""

from __future__ import annotations

import msgspec

from antiphon.core.approval_rules import Approval, call_digest, decision_id_of
from antiphon.core.codec import Malformed, check_json, copy_json
from antiphon.core.envelope import Envelope, Json
from antiphon.core.errors import Denied, UnknownApproval, UsageError
from antiphon.core.event_data import Deny, check_draft, event_of
from antiphon.core.execution_events import EV_APPROVAL_DECIDED, ApprovalDecided, ApprovalExpired
from antiphon.core.step import owed_turn
from antiphon.core.text import describe
from antiphon.runtime.approval_edits import check_edit_approver, check_edited_arguments
from antiphon.runtime.approvals import TOOL_DECISIONS, approvals_in, find_waiting_item, recorded_request
from antiphon.runtime.approvers import HUMAN_KIND, check_approver
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.core import HubCore
from antiphon.runtime.hook_calls import spoken_text
from antiphon.runtime.saga_approvals import decide_compensation, is_compensation_id
from antiphon.runtime.turn_control import APPROVAL_DECISIONS, RecordDecision, WaitingItem, answer_for_agent


class PersonDecision(msgspec.Struct, frozen=True):
    """What a person decides about an approval."""

    decision: str
    reason: str = ""
    text: str | None = None
    """What a call returned, or what the agent answers; for `respond` only."""
    args: Json | None = None
    """Other arguments for a call that has not left yet; for `edit` only."""
    digest: str | None = None


async def decide_approval(
    core: HubCore, approval_id: str, choice: PersonDecision, *, by: str, kind: str
) -> ApprovalDecided:
    """Record a person's decision about what waits under this id; `Denied` if it is not theirs, or not the first."""
    core.check_open()
    if is_compensation_id(approval_id):
        if choice.args is not None and choice.decision != "edit":
            raise UsageError("args belongs to 'edit', which changes a call before it leaves; leave it out")
        wanted = ApprovalDecided(approval_id, choice.decision, by, choice.reason or choice.text or "", "")
        return await decide_compensation(core, wanted, kind=kind, digest=choice.digest)
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
    channel_id, approval_id, live = waiting.live.state.channel_id, waiting.approval_id, waiting.live
    if kind != HUMAN_KIND:
        raise Denied("not_a_person", channel_id, f"{by!r} is of kind {kind!r}; only a person (kind human) decides")
    found = await _current_approval(waiting)
    if found is None:
        raise await _decision_refusal(core, waiting)
    turn = owed_turn(live.state, waiting.turn_id)
    if waiting.asked and turn is not None:
        await check_approver(core, live, turn, approvers=found.approvers, by=by)
    _check_digest(found, choice)
    _check_option(found, choice)
    decided = ApprovalDecided(approval_id, choice.decision, by, choice.reason, found.digest)
    if choice.args is not None:
        await check_edited_arguments(core, found, choice.args)
        check_edit_approver(core, live, found, args=choice.args, by=by)
        decided = msgspec.structs.replace(decided, edit_digest=call_digest(found.tool, choice.args))
    text = choice.text or ""
    if text and waiting.index is None:
        text = await _screened_text(core, waiting, text, by=by)
    args = None if choice.args is None else copy_json(choice.args)
    waiting = msgspec.structs.replace(waiting, model="edit" not in found.options)
    try:
        await live.submit(RecordDecision(waiting, decided, text, core.new_id, args))
    except Denied as denied:
        if denied.reason != "decided":
            raise
        raise await _decision_refusal(core, waiting) from None
    return decided


def _check_digest(found: Approval, choice: PersonDecision) -> None:
    """`Denied` for a decision about something else than what waits now."""
    if choice.digest is not None and choice.digest != found.digest:
        advice = "look at hub.approvals() again, and decide on what waits now"
        raise Denied("stale_decision", found.channel_id, f"the digest is not that of {found.approval_id!r}; {advice}")


def _check_option(found: Approval, choice: PersonDecision) -> None:
    """`UsageError` for a decision that is not possible about this."""
    if choice.decision in found.options:
        return
    options = ", ".join(found.options)
    if choice.decision == "edit" and found.kind != "approval":
        raise UsageError(
            "'edit' changes the arguments of a call before it leaves; what waits here has left already: "
            f"give one of {options}"
        )
    raise UsageError(f"{choice.decision!r} is not possible about the call of {found.tool!r}; give one of {options}")


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
    found = await approvals_in(waiting.live.state, waiting.live.read)
    return next((each for each in found if each.approval_id == waiting.approval_id), None)


async def first_decision(core: HubCore, waiting: WaitingItem) -> Envelope | None:
    """The record of what became of an approval under this id; None if there is none."""
    channel_id = waiting.live.state.channel_id
    envelope_id = decision_id_of(channel_id, waiting.approval_id)
    return (await core.store.find(channel_id, [envelope_id])).get(envelope_id)


async def _decision_refusal(core: HubCore, waiting: WaitingItem) -> Denied | UnknownApproval:
    """Why nothing can be decided under this id: it was decided before, its turn has ended, or it never waited."""
    known, channel_id = await first_decision(core, waiting), waiting.live.state.channel_id
    match None if known is None else event_of(known):
        case ApprovalDecided() as first:
            why = f": {first.reason}" if first.reason else ""
            return Denied("decided", channel_id, f"{first.by!r} decided before: {first.decision}{why}")
        case ApprovalExpired():
            return Denied("decided", channel_id, "it expired before: no person had decided in time")
        case _ if await recorded_request(waiting) is not None:
            return Denied("cancelled", channel_id, f"turn {waiting.turn_id} has ended, and the call with it")
        case _:
            return UnknownApproval(waiting.approval_id)


def _check_decision(choice: PersonDecision) -> None:
    """`UsageError` for a decision that there is not, or that comes with what it does not take."""
    word = choice.decision
    if word not in TOOL_DECISIONS:
        raise UsageError(f"no decision is called {describe(word)}; there are: {', '.join(APPROVAL_DECISIONS)}, edit")
    check_text_argument(choice.reason, "reason", "a text")
    _check_given_args(word, choice.args)
    if word == "respond":
        if not choice.text:
            raise UsageError("'respond' needs text: what the call returned, or what the agent answers")
        check_text_argument(choice.text, "text", "a text")
    elif choice.text is not None:
        raise UsageError(f"text belongs to 'respond'; give {word!r} a reason instead")


def _check_given_args(word: str, args: object) -> None:
    if word != "edit":
        if args is not None:
            raise UsageError(f"args belongs to 'edit', which changes a call before it leaves; leave it out of {word!r}")
        return
    if not isinstance(args, dict):
        raise UsageError(f"'edit' needs args: all arguments of the call as they are to be, not {describe(args)}")
    try:
        check_json(args)
    except Malformed as error:
        raise UsageError(f"args cannot be recorded: {error}") from error
