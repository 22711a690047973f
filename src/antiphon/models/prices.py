"""What a model's answer costs.

Rule 1: money is counted in whole millionths of a dollar, rounded up: a sum of costs is never below what was spent.
Rule 2: if the price is unknown, the cost is None, not 0.
Rule 3: nothing is fetched. The usual prices are those that are installed.
Rule 4: an error in a price function never loses an answer.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from math import ceil, isfinite

import msgspec

from antiphon.agents.call_results import Usage
from antiphon.core.errors import UsageError
from antiphon.core.text import describe, describe_error

logger = logging.getLogger("antiphon.models")

Price = Callable[[str, Usage], int | None]
"""The cost of a usage of the model with this name, in millionths of a dollar; None if it is unknown."""

Rates = tuple[float, float] | tuple[float, float, float] | tuple[float, float, float, float]
"""Dollars per million tokens: input, output, and, if they differ, input read from and written to a cache."""

PRICE_ADVICE = "give dollars per million tokens: (input, output), and then what is read from and written to a cache"


def price_table(table: Mapping[str, Rates]) -> Price:
    """A price for each of these models, in dollars per million tokens: `{"gpt-5-mini": (0.25, 2.0)}`.

    A third number is for input that came from the provider's cache, a fourth for input that was put into it. Without
    them, that costs what any input costs. A model that is not in the table has no known price.
    """
    given: object = table
    if not isinstance(given, Mapping):
        raise UsageError(f"the table of prices is {describe(given)}; give a dict of names, {PRICE_ADVICE}")
    rates = {_check_priced_name(name): _parse_rates(name, row) for name, row in given.items()}

    def price(name: str, usage: Usage) -> int | None:
        return _cost_at_rates(rates[name], usage) if name in rates else None

    return price


def cost_of(price: Price, name: str, usage: Usage) -> int | None:
    """The cost of a usage; None, with a warning, if the price function fails or returns an invalid value."""
    try:
        cost: object = price(name, usage)
    except Exception as error:  # a price is a user-defined function
        logger.warning("the price of %s could not be told: %s", name, describe_error(error))
        return None
    if cost is None or (type(cost) is int and cost >= 0):
        return cost
    logger.warning("the price of %s came to %s; it should be millionths of a dollar", name, describe(cost))
    return None


def worst_cost(price: Price, name: str, usage: Usage) -> int | None:
    """The cost of a usage if its input goes into a cache or not, whichever is dearer; None if it is unknown."""
    into_cache = msgspec.structs.replace(usage, cache_write_tokens=usage.input_tokens)
    costs = [cost for cost in (cost_of(price, name, usage), cost_of(price, name, into_cache)) if cost is not None]
    return max(costs, default=None)


def load_usual_prices() -> None:
    """Load the usual prices now, because it takes half a second, and not with the first answer."""
    if importlib.util.find_spec("genai_prices") is not None:
        from genai_prices.data_snapshot import get_snapshot

        get_snapshot()


def usual_price(provider: str, name: str, usage: Usage) -> int | None:
    """The provider's published price; None if it is unknown, or `antiphon[prices]` is not installed."""
    try:
        from genai_prices import Usage as Counted
        from genai_prices import calc_price
    except ImportError:
        return None
    counted = Counted(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        dollars = calc_price(counted, name, provider_id=provider).total_price
    except (LookupError, ValueError):  # an unknown model, or counts that contradict each other
        return None
    return int((dollars * 1_000_000).to_integral_value(ROUND_CEILING))


def _check_priced_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"a model in the table of prices is called {describe(name)}; give its name as a text")
    return name


def _parse_rates(name: object, row: object) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    if not isinstance(row, tuple | list) or not 2 <= len(row) <= 4 or not all(map(_is_amount, row)):
        raise UsageError(f"the price of {describe(name)} is {describe(row)}; {PRICE_ADVICE}")
    # As it is written: 0.1 means a tenth, not the binary number next to it.
    read, written, *cached = (Fraction(str(dollars)) for dollars in row)
    return read, written, cached[0] if cached else read, cached[1] if len(cached) > 1 else read


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _cost_at_rates(rates: tuple[Fraction, Fraction, Fraction, Fraction], usage: Usage) -> int:
    """Dollars per million tokens times tokens are millionths of a dollar."""
    read, written, from_cache, to_cache = rates
    plain = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    cached = from_cache * usage.cache_read_tokens + to_cache * usage.cache_write_tokens
    return ceil(read * plain + cached + written * usage.output_tokens)
