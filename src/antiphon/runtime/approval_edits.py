"""The check of arguments that a person gives a call instead of the model's.

Rule 1: they are checked as those of a model are: by the tool itself where its agent is registered in this hub, else by
        the schema that was recorded with the request.
Rule 2: a call that they do not fit after all, because the tool has changed, fails when it is about to leave.
Rule 3: where a guard names the people that decide about such arguments, one of them has to give these.
"""

from __future__ import annotations

from typing import cast

import msgspec

from antiphon.agents.team import parse_member_path
from antiphon.agents.tool import BadArguments, Tool, bind_arguments
from antiphon.core.approval_rules import Approval, call_digest
from antiphon.core.envelope import Json
from antiphon.core.errors import Denied, UsageError
from antiphon.core.execution_events import EV_CALL_STARTED, CallStarted
from antiphon.core.opinions import HeldCall
from antiphon.core.schema_validation import build_schema_check
from antiphon.core.step import dated_draft, journal_draft
from antiphon.hub.live import LiveChannel
from antiphon.runtime.approvers import is_named_approver
from antiphon.runtime.core import HubCore

JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


async def check_edited_arguments(core: HubCore, approval: Approval, args: Json) -> None:
    """`UsageError` if the tool cannot be called with these."""
    tool = _registered_tool(core, approval)
    if tool is not None:
        try:
            bind_arguments(tool, args)
        except BadArguments as error:
            said_by_us = error.__cause__ is None or isinstance(error.__cause__, msgspec.ValidationError)
            raise UsageError(str(error)) from None if said_by_us else error
    if tool is None or tool.arguments is None:
        fault = _schema_fault(approval.parameters, args)
        if fault:
            raise UsageError(f"The arguments of {approval.tool} do not fit: {fault}.")


def check_edit_approver(core: HubCore, live: LiveChannel, approval: Approval, *, args: Json, by: str) -> None:
    """`Denied` if a guard wants others asked about the call with these arguments."""
    if not live.ruleset.calls.asked:
        return
    index, speaker = int(approval.approval_id.rsplit(".", 2)[1]), approval.turn_id.partition("/")[2]
    agent = "" if approval.agent == speaker else approval.agent
    digest = call_digest(approval.tool, args)
    started = CallStarted(approval.turn_id, index, approval.tool, digest, args, agent=agent)
    draft = journal_draft(EV_CALL_STARTED, started)
    at = max(core.clock.now(), live.state.updated_at)
    held = live.ruleset.calls.permit(live.fold, dated_draft(draft, live.state, at=at))
    if isinstance(held, HeldCall) and held.wanted.approvers:
        approvers = held.wanted.approvers
        if not is_named_approver(core, approvers, name=by):
            said = f"{by!r} may not allow {approval.tool} with these arguments; those may: {', '.join(approvers)}"
            raise Denied("not_an_approver", approval.channel_id, said)


def _registered_tool(core: HubCore, approval: Approval) -> Tool | None:
    """The tool, if its agent is registered in this hub."""
    path = parse_member_path(approval.agent)
    agent = core.agents.get(path[0]) if path else None
    member = None if agent is None else agent.team.members.get(path)
    return None if member is None else member.tools.get(approval.tool)


def _schema_fault(parameters: Json, args: Json) -> str:
    """What is wrong with arguments by their schema; "" if nothing is, or if no schema is known."""
    if not parameters:
        return ""
    try:
        check = build_schema_check(parameters, "the tool")
    except UsageError:  # what checks schemas is not installed
        return _plain_fault(parameters, args)
    faults = [f"{fault.place}: {fault.what}" if fault.place else fault.what for fault in check(args)]
    return _plain_fault(parameters, args) or "; ".join(faults[:3])


def _plain_fault(parameters: Json, args: Json) -> str:
    """What is wrong with the names and the plain types of arguments; "" if nothing is."""
    properties = cast("dict[str, Json]", parameters.get("properties") or {})
    strange = [name for name in args if properties and name not in properties]
    if strange:
        return f"there is no parameter {strange[0]!r}; there are: {', '.join(properties)}"
    missing = [name for name in cast("list[str]", parameters.get("required") or []) if name not in args]
    if missing:
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for name, value in args.items():
        wanted = properties.get(name, {}).get("type")
        kind = JSON_TYPES.get(wanted) if isinstance(wanted, str) else None
        if kind is not None and (not isinstance(value, kind) or (isinstance(value, bool) and wanted != "boolean")):
            return f"{name} must be of type {wanted}"
    return ""
