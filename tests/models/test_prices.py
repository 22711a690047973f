"""What answers cost: exactly, rounded up, and None where nobody knows."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Usage, UsageError, price_table
from antiphon.models.prices import load_usual_prices, usual_price

TABLE = price_table({"plain": (0.25, 2.0), "cached": (3, 15, 0.3, 3.75), "read": (1.0, 2.0, 0.1), "free": (0, 0)})

counts = st.integers(0, 10_000_000)
cents = st.integers(0, 100_000).map(lambda number: number / 100)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Counts that a provider may report: what was cached is part of what was read."""
    plain, from_cache, to_cache = draw(counts), draw(counts), draw(counts)
    return Usage(plain + from_cache + to_cache, draw(counts), from_cache, to_cache)


@pytest.mark.parametrize(
    ("name", "usage", "cost"),
    [
        ("plain", Usage(), 0),
        ("plain", Usage(1_000_000, 1_000_000), 2_250_000),
        ("plain", Usage(4, 0), 1),
        ("plain", Usage(1, 0), 1),
        ("plain", Usage(5, 0), 2),
        ("plain", Usage(1000, 100, cache_read_tokens=1000), 450),
        ("cached", Usage(1000, 10, cache_read_tokens=800, cache_write_tokens=100), 300 + 240 + 375 + 150),
        ("read", Usage(1000, 0, cache_read_tokens=500, cache_write_tokens=500), 50 + 500),
        ("read", Usage(3, 0, cache_read_tokens=3), 1),
        ("free", Usage(1_000_000, 1_000_000), 0),
        ("cached", Usage(5, 0, cache_read_tokens=10), 3),
        ("unknown", Usage(10, 10), None),
        ("PLAIN", Usage(10, 10), None),
    ],
)
def test_a_table_of_prices(name: str, usage: Usage, cost: int | None) -> None:
    assert TABLE(name, usage) == cost


def test_a_price_means_what_is_written() -> None:
    tenth = price_table({"model": (0.1, 0.0)})
    assert tenth("model", Usage(10, 0)) == 1  # the binary number next to 0.1 is larger, and would cost 2
    assert tenth("model", Usage(10**18, 0)) == 10**17


@given(cents, cents, usages())
def test_a_cost_is_the_exact_sum_rounded_up(read: float, written: float, usage: Usage) -> None:
    exact = Fraction(str(read)) * usage.input_tokens + Fraction(str(written)) * usage.output_tokens
    assert price_table({"model": (read, written)})("model", usage) == ceil(exact)


@given(usages(), usages())
def test_two_answers_cost_what_both_cost_up_to_rounding(one: Usage, other: Usage) -> None:
    together, apart = TABLE("cached", one + other), [TABLE("cached", one), TABLE("cached", other)]
    assert together is not None
    assert None not in apart
    assert together <= sum(filter(None, apart)) <= together + 1


@given(usages(), usages())
def test_more_never_costs_less(usage: Usage, more: Usage) -> None:
    before, after = TABLE("cached", usage), TABLE("cached", usage + more)
    assert before is not None
    assert after is not None
    assert before <= after


@given(usages())
def test_what_comes_from_a_cache_is_never_dearer(usage: Usage) -> None:
    fresh = Usage(usage.input_tokens, usage.output_tokens, 0, usage.cache_write_tokens)
    cached, uncached = TABLE("cached", usage), TABLE("cached", fresh)
    assert cached is not None
    assert uncached is not None
    assert cached <= uncached
    if usage.cache_read_tokens:
        assert cached < uncached


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([("m", (1, 2))], ["table of prices is [('m', (1, 2))]", "give a dict"]),
        ({7: (1, 2)}, ["called 7", "give its name as a text"]),
        ({"": (1, 2)}, ["called ''"]),
        ({"m": 1.0}, ["price of 'm' is 1.0", "dollars per million tokens"]),
        ({"m": (1,)}, ["price of 'm' is (1,)", "(input, output)"]),
        ({"m": (1, 2, 3, 4, 5)}, ["(1, 2, 3, 4, 5)"]),
        ({"m": ("1", "2")}, ["('1', '2')"]),
        ({"m": (1, -2)}, ["(1, -2)"]),
        ({"m": (True, 2)}, ["(True, 2)"]),
        ({"m": (1, float("nan"))}, ["(1, nan)"]),
        ({"m": (1, float("inf"))}, ["(1, inf)"]),
    ],
    ids=repr,
)
def test_a_table_that_is_none(table: object, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        price_table(table)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(refused.value)] == []


# What providers publish


def test_the_usual_price_of_a_known_model() -> None:
    million = Usage(1_000_000, 0)
    cached = Usage(1_000_000, 0, cache_read_tokens=1_000_000)
    whole, from_cache = usual_price("openai", "gpt-5-mini", million), usual_price("openai", "gpt-5-mini", cached)
    assert whole == 250_000
    assert from_cache == 25_000
    assert usual_price("openai", "gpt-5-mini", Usage(1, 0)) == 1  # rounded up from a quarter


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google", "mistral", "bedrock"])
def test_an_unknown_model_has_no_usual_price(provider: str) -> None:
    assert usual_price(provider, "no-such-model", Usage(10, 10)) is None


def test_an_unknown_provider_has_no_usual_price() -> None:
    assert usual_price("nobody", "gpt-5-mini", Usage(10, 10)) is None


def test_counts_that_contradict_each_other_have_no_usual_price() -> None:
    assert usual_price("openai", "gpt-5-mini", Usage(10, 0, cache_read_tokens=100)) is None


def test_nothing_is_loaded_before_it_is_asked_for_and_nothing_is_fetched() -> None:
    load_usual_prices()
    from genai_prices.data_snapshot import get_snapshot

    assert not get_snapshot().from_auto_update
    script = (
        "import sys, threading; from antiphon.models.prices import price_table, usual_price, load_usual_prices; "
        "assert 'genai_prices' not in sys.modules; load_usual_prices(); assert 'genai_prices.data' in sys.modules; "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_without_the_package_nothing_has_a_usual_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert usual_price("openai", "gpt-5-mini", Usage(10, 10)) is None
    load_usual_prices()
