"""What model calls reserve before they leave, and what is booked once their outcome is known.

Rule 1: it is recorded where guards are asked about calls, and nowhere else.
Rule 2: a reservation ends some time after the call would be given up. It ends no call.
Rule 3: a call that may have been answered, and whose cost is unknown, is booked as it was reserved.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.agents.call_results import Usage
from antiphon.agents.messages import Request
from antiphon.agents.team import Limits
from antiphon.agents.usage_bounds import (
    DEFAULT_OUTPUT_TOKENS,
    REQUEST_TOKENS,
    UsageBound,
    bound_by_bytes,
    count_message_bytes,
    settled_usage,
    usage_bound,
)
from antiphon.core.envelope import add_seconds
from antiphon.core.execution_events import CallStarted
from antiphon.core.text import describe_error
from antiphon.core.views import Message
from antiphon.engines.journal import Booked, TurnJournal
from antiphon.engines.tracing import model_label

logger = logging.getLogger("antiphon.engine")

RESERVATION_SECONDS = 600.0
"""How long a reservation holds for a call without a limit of its own."""
LATE_SECONDS = 60.0
"""By how much it holds longer than the call may take: a call that ends by its own limit has an outcome before that."""


async def reserving_call(
    journal: TurnJournal, call: CallStarted, *, model: object, request: Request, sent: int, limits: Limits
) -> CallStarted:
    """The start of a model call with what guards decide by. `sent`: the bytes of the request without its history."""
    return _with_bound(journal, call, await _known_bound(model, request, sent), limits=limits)


async def _known_bound(model: object, request: Request, sent: int) -> UsageBound:
    try:
        return await usage_bound(model, request, sent)
    except Exception as error:  # the model may be one of a user
        logger.warning("what %s may use is taken from the bytes: %s", model_label(model), describe_error(error))
        return bound_by_bytes(model, request)


def reserving_summary(
    journal: TurnJournal, call: CallStarted, *, due: Sequence[Message], limits: Limits
) -> CallStarted:
    """The start of a call that summarises these messages, as `reserving_call`. A function is called, which is free."""
    tokens = REQUEST_TOKENS + count_message_bytes(due) + DEFAULT_OUTPUT_TOKENS
    return _with_bound(journal, call, UsageBound(tokens), limits=limits)


def _with_bound(journal: TurnJournal, call: CallStarted, bound: UsageBound, *, limits: Limits) -> CallStarted:
    seconds = RESERVATION_SECONDS if limits.model_seconds is None else limits.model_seconds
    until = add_seconds(journal.run.channel_time, seconds + LATE_SECONDS)
    return replace(call, most=bound.cost, tokens=bound.tokens, until=until, unpriced=bound.unpriced)


def booked_usage(journal: TurnJournal, index: int, usage: Usage) -> Booked:
    """What is booked for the answer to a call."""
    return settled_usage(usage, _reserved(journal, index))


def full_booking(journal: TurnJournal, index: int) -> Booked:
    """Everything that was reserved for a call, which may have been answered all the same; nothing without guards."""
    reserved = _reserved(journal, index)
    return reserved.cost, reserved.tokens


def _reserved(journal: TurnJournal, index: int) -> UsageBound:
    started = journal.calls.record(index).started
    return UsageBound(0) if started is None else UsageBound(started.tokens, started.most, started.unpriced)
