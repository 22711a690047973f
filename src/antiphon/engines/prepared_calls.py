"""Calls before they leave: of tools, found in the journal, refused, or bound and permitted; of models, as digested.

Rule 1: a call that has a result in the journal is not made again. If the attempt asks for another call at its index,
        the turn fails with `idempotency_conflict`.
Rule 2: a call that left before is never refused: it may have an effect to account for.
Rule 3: a call leaves with the arguments that its record has, which guards or a person may have changed.
Rule 4: a request to a model is written once, for its digest and for what guards count of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.agents.call_results import ToolOutcome, ToolResult, Usage, decode_outcome
from antiphon.agents.intents import TRANSFER_PREFIX
from antiphon.agents.messages import Request, ToolSpec
from antiphon.agents.progress import CallTool
from antiphon.agents.signature import INJECT_CHANNEL
from antiphon.agents.state_changes import REGULATED, is_unprotected
from antiphon.agents.tool import BadArguments, Tool, bind_call, unknown_tool_result
from antiphon.core.canonical import call_key
from antiphon.core.codec import Malformed, as_type, digest_of, encode_sorted, to_json
from antiphon.core.envelope import NEVER, Instant, Json, match_name
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_STARTED,
    CallFailed,
    CallFinished,
    CallStarted,
    FailureClass,
)
from antiphon.core.turns import idempotency_key
from antiphon.engines.attempt_ends import TurnFailedError
from antiphon.engines.journal import TurnJournal, agent_in_journal
from antiphon.hub.known_secrets import redact_text

NOT_IN_TIER = (
    "Not called: {} changes state and can neither be undone nor is approved, which the tier {!r} does not allow."
)


class PreparedCall(msgspec.Struct, frozen=True):
    """A tool call that can leave."""

    wanted: CallTool
    tool: Tool
    arguments: Json
    key: str
    in_flight: bool
    """Whether it has left once before, and its result is unknown."""
    until: Instant = NEVER
    """When a guard has its time end; `NEVER` if none does."""


def recorded_outcome(journal: TurnJournal, wanted: CallTool) -> ToolOutcome | None:
    """The recorded result of this call. Another call in its place is a conflict, and nothing runs."""
    entry = journal.calls.record(wanted.index)
    if entry.started is not None and journal.note_difference(wanted.index, digest_of_call(wanted)):
        detail = f"call {wanted.index} was {entry.started.name}, and is {wanted.call.name} with other arguments"
        raise TurnFailedError("idempotency_conflict", detail)
    if entry.requested is not None and entry.requested.digest != digest_of_call(wanted):
        detail = f"call {wanted.index} is {wanted.call.name} now, and a person was asked about {entry.requested.name}"
        raise TurnFailedError("idempotency_conflict", detail)
    match entry.outcome:
        case CallFinished(result=result):
            outcome = decode_outcome(result)
            if not isinstance(outcome, ToolOutcome):
                raise Malformed("malformed", f"call {wanted.index} is not recorded as the call of a tool")
            return outcome
        case CallFailed(error=error, usage=usage):
            return ToolOutcome(ToolResult(error, failed=True, usage=as_type(usage, Usage)))
        case None:
            return None


def refuse_beyond_limit(journal: TurnJournal, wanted: CallTool, place: int, *, count: int) -> ToolOutcome | None:
    """The result of a call beyond the limit of one message; None if the call is within it.

    A call that has left before is within it: it may have left under another limit, and has an effect to account for.
    """
    most = journal.run.team.limits.tool_calls
    if place < most or journal.calls.record(wanted.index).started is not None:
        return None
    why = f"Not called: the message asks for {count} tools, and the limit is {most}; ask for the others next."
    return refuse_call(journal, wanted, ToolResult(why, failed=True))


def prepare_call(journal: TurnJournal, wanted: CallTool) -> PreparedCall | ToolOutcome:
    """The call, ready to leave; without such a tool or with wrong arguments, the result the model reads."""
    run, name = journal.run, wanted.call.name
    tools = run.team.members[wanted.path].tools
    tool = tools.get(name) or _find_transfer_tool(name, tools)
    if tool is None:
        return refuse_call(journal, wanted, unknown_tool_result(name, tools))
    if run.live.state.knobs.get("tier") == REGULATED and is_unprotected(tool):
        return refuse_call(journal, wanted, ToolResult(NOT_IN_TIER.format(name, REGULATED), failed=True))
    try:
        arguments = bind_call(tool, wanted.call)
        _check_edit(journal, wanted, tool)
    except BadArguments as error:
        return refuse_call(journal, wanted, ToolResult(redact_text(str(error)), failed=True), failure="schema")
    key = idempotency_key(run.state, run.turn, wanted.index, tool=name, tenant=run.environment.tenant)
    return PreparedCall(wanted, tool, arguments, key, journal.calls.record(wanted.index).in_flight)


def _check_edit(journal: TurnJournal, wanted: CallTool, tool: Tool) -> None:
    """`BadArguments` if the arguments that a person gave instead do not fit the tool as it is now."""
    approved = journal.calls.record(wanted.index).approved
    if approved is not None and approved.args is not None:
        bind_call(tool, msgspec.structs.replace(wanted.call, args=approved.args))


def refuse_call(
    journal: TurnJournal, wanted: CallTool, returned: ToolResult, *, failure: FailureClass = ""
) -> ToolOutcome:
    """The result of a call that cannot be made; one that has left before fails the turn instead."""
    if journal.calls.record(wanted.index).in_flight:
        detail = f"call {wanted.index} was under way when its process ended, and cannot be made now: {returned.text}"
        raise TurnFailedError("call_lost", detail)
    journal.keep(EV_CALL_STARTED, call_started(journal, wanted))
    kind = count_failure(journal, failure)
    journal.keep(EV_CALL_FAILED, CallFailed(journal.turn_id, wanted.index, returned.text, failure=kind))
    return ToolOutcome(returned)


def call_started(journal: TurnJournal, wanted: CallTool, key: str = "") -> CallStarted:
    call, agent = wanted.call, agent_in_journal(wanted.path)
    return CallStarted(journal.turn_id, wanted.index, call.name, digest_of_call(wanted), call.args, key, agent)


def takes_its_time(tool: Tool) -> bool:
    """Whether a tool has no time limit because it may give tasks, which have limits of their own."""
    return tool.timeout is None and INJECT_CHANNEL in tool.injected.values()


def started_entry(journal: TurnJournal, ready: PreparedCall) -> CallStarted:
    """The record of a call that leaves, with what a person has allowed, if one had to."""
    started = call_started(journal, ready.wanted, ready.key)
    if journal.run.live.ruleset.calls.asked and takes_its_time(ready.tool):
        started = msgspec.structs.replace(started, open_ended=True)
    approved = journal.calls.record(ready.wanted.index).approved
    if approved is not None:
        args = started.args if approved.args is None else approved.args
        started = msgspec.structs.replace(started, args=args, approved=approved.by)
    return with_comparison(started, ready.tool) if journal.run.live.ruleset.calls.asked else started


def with_comparison(started: CallStarted, tool: Tool) -> CallStarted:
    """The start of a call with what guards compare it by."""
    own = tool.protections
    try:
        same = call_key(
            started.name,
            started.args or {},
            volatile=own.volatile,
            unordered=own.unordered,
            defaults=_schema_defaults(tool),
        )
    except Malformed:  # arguments that are no JSON are for the tool to refuse
        return started
    if own.poll is None:
        return msgspec.structs.replace(started, same=same)
    poll = own.poll
    return msgspec.structs.replace(started, same=same, poll_max=poll.max, poll_seconds=float(poll.min_interval))


def _schema_defaults(tool: Tool) -> Json:
    """What arguments that are left out stand for, by the schema of the tool."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: each["default"] for name, each in properties.items() if isinstance(each, dict) and "default" in each}


def permitted_call(journal: TurnJournal, ready: PreparedCall) -> PreparedCall | ToolOutcome | None:
    """The call as guards let it leave, or its denial; None if a person is asked about it."""
    index = ready.wanted.index
    denial, started = journal.calls.denial(index), journal.calls.record(index).started
    if denial is not None:
        return ToolOutcome(ToolResult(denial.error, failed=True))
    if journal.calls.awaits_approval(index):
        return None
    if started is None or started.args == ready.wanted.call.args:
        return ready if started is None else msgspec.structs.replace(ready, until=started.until)
    call = msgspec.structs.replace(ready.wanted.call, args=started.args or {})
    try:
        arguments = bind_call(ready.tool, call)
    except BadArguments as error:  # a guard has changed them to what does not fit
        failed = CallFailed(journal.turn_id, index, redact_text(str(error)), failure=count_failure(journal, "schema"))
        journal.keep(EV_CALL_FAILED, failed)
        return ToolOutcome(ToolResult(failed.error, failed=True))
    return msgspec.structs.replace(ready, arguments=arguments, until=started.until)


def count_failure(journal: TurnJournal, failure: FailureClass) -> FailureClass:
    """The class of a failure as it is recorded: only where guards count it."""
    return failure if journal.run.live.ruleset.calls.asked else ""


def _find_transfer_tool(name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """The tool that transfers to the agent in this name, in any case."""
    found = match_name(name, [each for each in tools if each.startswith(TRANSFER_PREFIX)])
    return None if found is None else tools[found]


def digest_of_call(wanted: CallTool) -> str:
    """The digest of a tool call."""
    return digest_of([wanted.call.name, wanted.call.args])


def awaits_settlement(ready: PreparedCall, returned: ToolResult) -> bool:
    """Whether the result of a call waits until it is decided which handoff counts."""
    return returned.target is not None and ready.tool.idempotency != "unsafe"


# Requests to models

MAX_CACHED_SPECS = 256


def encode_request(request: Request) -> bytes:
    """What the digest of a request is made of."""
    parts = [request.system, request.past, request.exchange, _encoded_specs(request.specs), request.output]
    return encode_sorted(parts)


_specs_by_identity: OrderedDict[int, tuple[Sequence[ToolSpec], msgspec.Raw]] = OrderedDict()


def _encoded_specs(specs: Sequence[ToolSpec]) -> msgspec.Raw:
    """The tools of a request as they are encoded in its digest. They are the same in every turn of an agent."""
    known = _specs_by_identity.get(id(specs))
    if known is not None and known[0] is specs:  # an id may be used again, once its object is gone
        return known[1]
    encoded = msgspec.Raw(encode_sorted(specs))
    _specs_by_identity[id(specs)] = specs, encoded
    if len(_specs_by_identity) > MAX_CACHED_SPECS:
        _specs_by_identity.popitem(last=False)
    return encoded


def sent_bytes(request: Request, encoded: bytes) -> int:
    """The bytes of a request without its history, as `encode_request` has written it."""
    return len(encoded) - len(to_json(request.past)) - len(",")
