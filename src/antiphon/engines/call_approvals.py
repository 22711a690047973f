"""Which tool calls a person decides about before they leave, because their tool or their agent says so.

Rule 1: the function that says whether is user code. A person is asked unless it returns False: also if it fails.
Rule 2: a call that will be answered with the result of an earlier one needs no approval: it does not leave.
Rule 3: a call that has left before, or that a person was asked about, is not asked about again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from functools import partial

from antiphon.agents.tool import Tool, filled_arguments
from antiphon.agents.tool_options import DEFAULT_TOOL_SECONDS
from antiphon.core.codec import to_json
from antiphon.core.envelope import Json
from antiphon.core.execution_events import ApprovalRequested
from antiphon.core.text import describe, describe_error
from antiphon.engines.journal import TurnJournal
from antiphon.engines.once_calls import has_result
from antiphon.engines.prepared_calls import PreparedCall, call_started
from antiphon.engines.user_code import run_contained
from antiphon.hub.clock import DeadlineExceeded, TimerQueue
from antiphon.hub.known_secrets import redact_text

logger = logging.getLogger("antiphon.engine")

MAX_RECORDED_SCHEMA_BYTES = 16 * 1024
"""A schema that is longer is not recorded with a request."""


async def approval_requests(journal: TurnJournal, leaving: Iterable[PreparedCall]) -> list[ApprovalRequested]:
    """The requests for those of these calls that a person decides about."""
    requests: list[ApprovalRequested] = []
    for each in leaving:
        record, options = journal.calls.record(each.wanted.index), each.tool.protections
        if each.in_flight or options.approval is False or record.requested is not None:
            continue
        if options.once and await has_result(journal, each):
            journal.answered.add(each.wanted.index)
            continue
        why = await _why_approval_of(journal, each)
        if why is not None:
            requests.append(_request(journal, each, why))
    return requests


def note_parameters(journal: TurnJournal, leaving: Iterable[PreparedCall]) -> None:
    """Let the journal know the schemas of these calls, for a person that guards may have asked about them."""
    for each in leaving:
        journal.parameters[each.wanted.index] = partial(recorded_schema, each.tool)


def recorded_schema(tool: Tool) -> Json:
    """The schema of the arguments of a tool as a request has it; {} if it is too long."""
    return tool.parameters if len(to_json(tool.parameters)) <= MAX_RECORDED_SCHEMA_BYTES else {}


def _request(journal: TurnJournal, ready: PreparedCall, why: str) -> ApprovalRequested:
    started, tool = call_started(journal, ready.wanted), ready.tool
    return ApprovalRequested(
        started.turn,
        started.index,
        started.name,
        ready.wanted.call.args,
        started.digest,
        journal.run.turn.speaker,
        started.agent,
        why,
        list(tool.protections.approvers),
        parameters=recorded_schema(tool),
    )


async def _why_approval_of(journal: TurnJournal, ready: PreparedCall) -> str | None:
    run = journal.run
    return await why_approval(ready.tool, ready.wanted.call.args, run.caller(ready.wanted.path), timers=run.timers)


async def why_approval(tool: Tool, given: Json, caller: str, *, timers: TimerQueue) -> str | None:
    """Why a person decides about a call of this tool; None if the tool needs that of no call, or not of this one."""
    wanted = tool.protections.approval
    if isinstance(wanted, bool):
        return f"{tool.name} needs approval" if wanted else None
    args = filled_arguments(tool, given)

    async def ask() -> object:
        answer: object = wanted(args)
        return await answer if inspect.isawaitable(answer) else answer

    name = f"the approval of tool {tool.name!r} of {caller}"
    try:
        async with timers.within(tool.timeout or DEFAULT_TOOL_SECONDS):
            answer = await run_contained(ask, name, wanted)
    except DeadlineExceeded as error:
        return _unknown(tool, name, f"it did not return in time: {error}")
    except Exception as error:
        return _unknown(tool, name, describe_error(error))
    if answer is False:
        return None
    if answer is True:
        return f"{tool.name} needs approval with these arguments"
    return _unknown(tool, name, f"it gave {describe(answer)}; give True or False")


def _unknown(tool: Tool, name: str, error: str) -> str:
    """Why a person is asked if the function has not said that none need be. The error is for the log of the program."""
    logger.warning("%s failed, so a person is asked: %s", name, redact_text(error))
    return f"whether {tool.name} needs approval could not be found out"
