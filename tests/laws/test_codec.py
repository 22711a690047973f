"""What is accepted reads back as it was, types and all; what would not is never let in."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from antiphon import Denied, Envelope
from antiphon.core.codec import (
    MAX_EVENT_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    Malformed,
    check_json,
    copy_json,
    decode_envelope,
    encode_envelope,
)
from antiphon.core.event_data import check_draft
from tests.laws.script_player import run
from tests.support.hub_team import team
from tests.support.json_strategies import json_objects, json_values


class Level(IntEnum):
    ONE = 1


class Words(str):
    pass


strange = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        10**100,
        -(10**100),
        b"bytes",
        (1, 2),
        {1, 2},
        frozenset(),
        1j,
        Decimal(1),
        datetime(2026, 1, 1, tzinfo=UTC),
        object,
        Level.ONE,
        Words("w"),
        bytearray(b"x"),
        range(3),
        "\ud800",
        "a\udfffb",
        "nul\x00",
    ]
)


def same(left: object, right: object) -> bool:
    """Equal in value and in type, all the way down; -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


@given(json_values)
def test_json_that_is_accepted_reads_back_equal_and_of_the_same_types(value: object) -> None:
    check_json(value)
    assert same(copy_json(value), value)


@given(json_objects)
def test_an_envelope_keeps_its_data(data: dict[str, object]) -> None:
    envelope = Envelope("id", "here", "alice", None, "myapp.thing", data, None, created_at="", sequence=1)
    assert same(decode_envelope(encode_envelope(envelope)).event_data, data)


@given(json_values, strange, st.data())
def test_one_strange_value_anywhere_is_refused(value: object, odd: object, data: st.DataObject) -> None:
    with pytest.raises(Malformed):
        check_json(planted(value, odd, data))


def planted(value: object, odd: object, data: st.DataObject) -> object:
    """The value with something strange put somewhere into it."""
    if isinstance(value, list):
        place = data.draw(st.integers(0, len(value)))
        inner = planted(value[place], odd, data) if place < len(value) else odd
        return [*value[:place], inner, *value[place + 1 :]]
    if isinstance(value, dict):
        key = data.draw(st.sampled_from([*value, "new"]))
        return {**value, key: planted(value[key], odd, data) if key in value else odd}
    return odd


@given(json_objects, st.sampled_from([1, None, True, 2.5, b"k", ("k",), Words("k"), "\ud800", "\x00"]))
def test_a_key_that_is_no_text_is_refused(data: dict[str, object], key: object) -> None:
    with pytest.raises(Malformed):
        check_json({"deep": {key: 1, **data}})


@given(st.integers(MAX_JSON_DEPTH - 2, MAX_JSON_DEPTH + 3), st.booleans())
def test_depth_is_counted_exactly(levels: int, lists: bool) -> None:
    """So many lists or dicts around a value."""
    value: object = 0
    for _ in range(levels):
        value = [value] if lists else {"k": value}
    if levels <= MAX_JSON_DEPTH:
        check_json(value)
    else:
        with pytest.raises(Malformed, match="deeper than 64"):
            check_json(value)


@given(st.integers(MAX_JSON_VALUES - 3, MAX_JSON_VALUES + 3), st.integers(1, 50))
def test_values_are_counted_exactly(total: int, rows: int) -> None:
    """A list, its rows, and the numbers in them, all counted."""
    rest = total - 1 - rows
    lists: list[list[int]] = [[0] * (rest // rows) for _ in range(rows)]
    lists[0].extend([0] * (rest % rows))
    if total <= MAX_JSON_VALUES:
        check_json(lists)
    else:
        with pytest.raises(Malformed, match="more than 10000"):
            check_json(lists)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=3))
def test_size_is_counted_in_bytes(piece: str) -> None:
    def draft(text: str) -> Envelope:
        return Envelope(channel_id="here", sender_id="alice", event_type="myapp.note", event_data={"text": text})

    unit = len(encode_envelope(draft(piece))) - len(encode_envelope(draft("")))
    most = (MAX_EVENT_BYTES - len(b'{"text":""}')) // unit
    assert check_draft(draft(piece * most)) is None
    denial = check_draft(draft(piece * (most + 1)))
    assert denial is not None
    assert denial.reason == "too_large"


@given(json_objects, strange, st.data())
def test_what_is_refused_never_gets_in(value: dict[str, object], odd: object, data: st.DataObject) -> None:
    bad = planted(value, odd, data)
    assume(isinstance(bad, dict))

    async def check() -> None:
        async with team("alice", "bob") as here:
            channel = await here["alice"].open(target="bob")
            before = await here.records(channel)
            with pytest.raises(Denied) as caught:
                await channel.post("myapp.thing", bad)
            assert caught.value.reason in {"not_json", "bad_number", "bad_text"}
            assert await here.records(channel) == before

    run(check())


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_a_record_that_is_none_is_malformed_and_nothing_else(pieces: list[bytes]) -> None:
    good = encode_envelope(Envelope("id", "here", "alice", None, "myapp.thing", {"a": [1]}, None))
    for record in [b"".join(pieces), good[:-1], good[: len(good) // 2], good + b"}", b"[]", b"null"]:
        with pytest.raises(Malformed):
            decode_envelope(record)
