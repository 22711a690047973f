"""What a model call may use at most, known before it leaves, so that guards can reserve it.

Rule 1: a bound is never too small for what the model is asked. An answer without a known limit counts as
        `DEFAULT_OUTPUT_TOKENS`; what it uses beyond that is counted once it is known.
Rule 2: a token stands for at least one byte, so a request has at most as many tokens as bytes, and a few for each of
        its parts. A model that counts tokens itself is asked instead.
Rule 3: functions and scripted models cost nothing beforehand. A provider's model whose price is unknown is counted at
        the highest price that is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from typing import Protocol, TypeGuard

import msgspec

from antiphon.agents.call_results import Usage
from antiphon.agents.messages import Request
from antiphon.core.codec import to_json
from antiphon.core.text import describe
from antiphon.core.views import Message

DEFAULT_OUTPUT_TOKENS = 1024
"""How long the answer of a model without a known limit may be, in tokens."""
REQUEST_TOKENS = 32
PART_TOKENS = 16
"""What surrounds the whole request, and each message and tool of it, in tokens."""
MAX_COUNTED_HISTORIES = 32
"""Of how many histories the bytes are remembered."""
TOOL_PROMPT_TOKENS = 1024
"""How much providers add to a request with tools, in tokens."""
HIGHEST_INPUT_PRICE, HIGHEST_OUTPUT_PRICE = 150, 600
"""The highest prices on the lists of providers, in dollars per million tokens."""


class BoundsUsage(Protocol):
    """A model that knows what a request may use at most."""

    def most_usage(self, request: Request) -> Usage | Awaitable[Usage]:
        """Tokens and cost of the dearest answer to this request. `cost` is None if the price is unknown."""
        ...


class CountsTokens(Protocol):
    """A model that counts the tokens of a request itself."""

    def count_tokens(self, request: Request) -> int | Awaitable[int]: ...


class UsageBound(msgspec.Struct, frozen=True):
    """What a call may use at most."""

    tokens: int
    cost: int = 0
    """In millionths of a dollar."""
    unpriced: bool = False
    """Whether the price is unknown, so that the cost is that at the highest price."""


# Checks of protocols are slow, and every model call asks both.
def _bounds_usage(model: object) -> TypeGuard[BoundsUsage]:
    return callable(getattr(model, "most_usage", None))


def _counts_tokens(model: object) -> TypeGuard[CountsTokens]:
    return callable(getattr(model, "count_tokens", None))


async def usage_bound(model: object, request: Request, sent: int | None = None) -> UsageBound:
    """What this request may use at most, as the model knows it, or by its bytes.

    `sent` are those of its parts as JSON but for the history, if they are known.
    """
    if _bounds_usage(model):
        given = model.most_usage(request)
        return _bound_of(await given if isawaitable(given) else given)
    return _bound_without_price(model, await input_token_bound(model, request, sent))


def bound_by_bytes(model: object, request: Request) -> UsageBound:
    """What this request may use at most, by its bytes alone."""
    return _bound_without_price(model, count_request_bytes(request))


def _bound_without_price(model: object, tokens: int) -> UsageBound:
    is_hosted = isinstance(getattr(model, "provider", None), str)
    return _bound_of(Usage(tokens, output_token_bound(model), cost=None if is_hosted else 0))


def _bound_of(usage: Usage) -> UsageBound:
    if not isinstance(usage, Usage):
        raise TypeError(f"most_usage returned {describe(usage)}; return a Usage")
    tokens = usage.input_tokens + usage.output_tokens
    if usage.cost is None:
        return UsageBound(tokens, highest_cost(usage), unpriced=True)
    return UsageBound(tokens, usage.cost)


async def input_token_bound(model: object, request: Request, sent: int | None = None) -> int:
    """How many tokens a request may have: as the model counts them, or as many as it has bytes."""
    if not _counts_tokens(model):
        return count_request_bytes(request, sent)
    given = model.count_tokens(request)
    counted: object = await given if isawaitable(given) else given
    if type(counted) is not int or counted < 0:
        raise TypeError(f"count_tokens returned {describe(counted)}; return a number of tokens")
    return counted


def output_token_bound(model: object) -> int:
    """How many tokens an answer may have: the `max_output_tokens` of the model, if it has that."""
    most: object = getattr(model, "max_output_tokens", None)
    return most if type(most) is int and most >= 0 else DEFAULT_OUTPUT_TOKENS


def count_request_bytes(request: Request, sent: int | None = None) -> int:
    """The bytes of everything that a model is sent, and a few more for each part. `sent`: as for `usage_bound`."""
    # As JSON, whose names and quotes are more than what surrounds the parts: encoding is much faster than counting.
    if sent is None:
        sent = len(to_json([request.system, request.exchange, request.specs, request.output]))
    parts = len(request.exchange) + len(request.specs)
    return REQUEST_TOKENS + sent + PART_TOKENS * parts + _history_bytes(request.history)


def count_message_bytes(messages: Sequence[Message]) -> int:
    """The bytes of messages, and a few more for each."""
    return len(to_json(messages)) + PART_TOKENS * len(messages)


_counted: OrderedDict[int, tuple[Sequence[Message], int, int]] = OrderedDict()
"""The histories that were counted last, by identity, with their lengths and their bytes."""


def _history_bytes(history: Sequence[Message]) -> int:
    """The bytes of a history, which is the same object in all calls of a member of a team in a turn."""
    known = _counted.get(id(history))
    if known is not None and known[0] is history and known[1] == len(history):
        return known[2]
    size = count_message_bytes(history)
    _counted[id(history)] = history, len(history), size
    if len(_counted) > MAX_COUNTED_HISTORIES:
        _counted.popitem(last=False)
    return size


def highest_cost(usage: Usage) -> int:
    """What a usage costs at the highest price that is known, in millionths of a dollar."""
    return usage.input_tokens * HIGHEST_INPUT_PRICE + usage.output_tokens * HIGHEST_OUTPUT_PRICE


def settled_usage(usage: Usage, reserved: UsageBound) -> tuple[int, int]:
    """The cost and the tokens of an answer as they are booked.

    What a provider does not tell is booked as it was reserved, never as nothing.
    """
    tokens = usage.input_tokens + usage.output_tokens
    is_priced = reserved.cost > 0 or reserved.unpriced
    if not tokens and is_priced:
        return reserved.cost if usage.cost is None else usage.cost, reserved.tokens
    if usage.cost is not None:
        return usage.cost, tokens
    return highest_cost(usage) if reserved.unpriced else reserved.cost, tokens
