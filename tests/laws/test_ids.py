"""Ids grow and are well formed; instants sort as text the way they sort as times."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.envelope import add_seconds, derived_id, seconds_between, to_datetime, to_instant, uuid7
from antiphon.hub import clock
from antiphon.hub.clock import TimeOrderedIds

milliseconds = st.integers(0, 2**48 - 1)
bits = st.integers(0, 2**74 - 1)
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.just(UTC))


@given(milliseconds, bits)
def test_a_new_id_is_a_version_7_uuid(at: int, random_bits: int) -> None:
    found = uuid.UUID(uuid7(at, random_bits))
    assert str(found) == uuid7(at, random_bits)
    assert (found.version, found.variant) == (7, uuid.RFC_4122)
    assert found.int >> 80 == at
    assert (found.int >> 64 & 0xFFF) << 62 | found.int & 2**62 - 1 == random_bits


@given(st.tuples(milliseconds, bits), st.tuples(milliseconds, bits))
def test_ids_sort_by_time_then_by_bits(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (uuid7(*one) < uuid7(*other)) == (one < other)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The readings that the clock under the ids will give, in nanoseconds; the last one stays."""
    readings: list[int] = []
    monkeypatch.setattr(clock.time, "time_ns", lambda: readings.pop(0) if len(readings) > 1 else readings[0])
    return readings


@pytest.mark.parametrize(
    "steps",
    [
        [0] * 5000,
        [1_000_000] * 500,
        [-1_000_000] * 500,
        [5_000_000, -3_000_000] * 300,
        [10**15, -(10**15), 0, 0, 1] * 100,
    ],
    ids=["stands still", "runs", "runs back", "staggers", "jumps"],
)
def test_ids_grow_whatever_the_clock_does(times: list[int], steps: list[int]) -> None:
    now = 1_800_000_000 * 10**9
    for step in steps:
        now += step
        times.append(now)
    source = TimeOrderedIds()
    drawn = [source() for _ in range(len(steps) + 100)]
    assert drawn == sorted(set(drawn))
    assert {uuid.UUID(each).version for each in drawn} == {7}


def test_ids_grow_when_the_bits_of_one_millisecond_run_out(times: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    times.append(10**18)
    source = TimeOrderedIds()
    first = source()
    source._bits = 2**74 - 3
    drawn = [first, *(source() for _ in range(1000))]
    assert drawn == sorted(set(drawn))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=4))
def test_a_derived_id_is_the_same_each_time(parts: list[str]) -> None:
    found = uuid.UUID(derived_id(*parts))
    assert str(found) == derived_id(*parts)
    assert (found.version, found.variant) == (8, uuid.RFC_4122)


def test_a_derived_id_stays_what_it_was() -> None:
    """Changing this makes every repeated message of an older log a new one."""
    assert derived_id("channel", "alice", "order-7") == "65fdb51e-296c-8f24-863a-c8e268da261a"


@given(st.lists(st.text("ab:\x1f1", max_size=4), max_size=4), st.lists(st.text("ab:\x1f1", max_size=4), max_size=4))
def test_different_parts_give_different_ids(one: list[str], other: list[str]) -> None:
    assert (derived_id(*one) == derived_id(*other)) == (one == other)


@given(moments, moments)
def test_instants_sort_as_times(one: datetime, other: datetime) -> None:
    assert (to_instant(one) < to_instant(other)) == (one < other)
    assert len(to_instant(one)) == 27
    assert to_datetime(to_instant(one)) == one


@given(moments, st.floats(-1e6, 1e6))
def test_later_is_later(at: datetime, seconds: float) -> None:
    shift = timedelta(seconds=seconds)
    later = add_seconds(to_instant(at), seconds)
    assert to_datetime(later) == at + shift
    assert seconds_between(to_instant(at), later) == shift.total_seconds()


@given(moments, st.integers(-14 * 60, 14 * 60))
def test_a_zone_does_not_matter(at: datetime, minutes: int) -> None:
    assert to_instant(at.astimezone(timezone(timedelta(minutes=minutes)))) == to_instant(at)


@pytest.mark.parametrize("seconds", [1e12, 1e15, 1e300])
def test_beyond_the_calendar_is_its_last_moment(seconds: float) -> None:
    assert add_seconds("2026-01-01T00:00:00.000000Z", seconds) == "9999-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "Z"])
def test_what_is_no_instant_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        to_datetime(text)
