"""What may be recorded, at the edges of every limit."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields

import pytest

from antiphon import Envelope, Priority
from antiphon.core.codec import (
    Malformed,
    as_type,
    check_json,
    copy_json,
    count_values,
    decode_envelope,
    encode_envelope,
    from_json,
    parse_json,
    to_json,
)
from antiphon.core.event_data import check_draft
from antiphon.core.ruleset import Expectation
from antiphon.server.app import decode_body
from antiphon.server.problems import RequestRefused
from antiphon.server.schemas import Changes


def nested(levels: int, value: object = 0) -> object:
    for _ in range(levels):
        value = {"in": value}
    return value


class Odd(dict[str, object]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        10**100 - 1,
        -(10**100) + 1,
        1.5,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        "",
        "ä€😀\u2028\u0085\x01\x7f\ufeff",
        [],
        {},
        {"": ""},
        [[[]]],
        [0] * 9_999,
        nested(64),
        nested(64, {}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_may_be_recorded(value: object) -> None:
    check_json(value)
    assert copy_json(value) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "bad_number"),
        (math.inf, "bad_number"),
        (10**100, "bad_number"),
        (-(10**100), "bad_number"),
        (10**5000, "bad_number"),
        ("\ud800", "bad_text"),
        ("ok\udfff", "bad_text"),
        ("\x00", "bad_text"),
        ("ä\x00", "bad_text"),
        ({"\x00": 1}, "bad_text"),
        ({1: 1}, "not_json"),
        ({None: 1}, "not_json"),
        ({10**5000: 1}, "not_json"),
        ((1,), "not_json"),
        ({1}, "not_json"),
        (b"x", "not_json"),
        (1j, "not_json"),
        (object(), "not_json"),
        (Priority.URGENT, "not_json"),
        (OrderedDict(), "not_json"),
        (Odd(), "not_json"),
        ([0] * 10_000, "too_large"),
        ({str(n): n for n in range(10_000)}, "too_large"),
        (nested(65), "too_deep"),
        (nested(100_000), "too_deep"),
    ],
    ids=lambda value: "digits" if value == 10**5000 else ascii(type(value).__name__),
)
def test_what_may_not(value: object, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        check_json([value] if reason.startswith("bad") else value)
    assert caught.value.reason == reason
    assert str(caught.value)


def draft(**changes: object) -> Envelope:
    fields: dict[str, object] = {
        "channel_id": "here",
        "sender_id": "alice",
        "event_type": "myapp.thing",
        "event_data": {},
        **changes,
    }
    return Envelope(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"event_type": "a.b"},
        {"event_type": "my-app.re_view.2"},
        {"event_type": "x." + "y" * 126},
        {"event_type": "ag2x.thing"},
        {"event_type": "antiphony.thing"},
        {"event_type": "ag2.msg.text", "event_data": {"text": "hi"}},
        {"event_type": "ag2.msg.text", "event_data": {"text": "hi", "lang": "en"}},
        {"event_type": "ag2.packet", "event_data": {"body": ""}},
        {"event_type": "ag2.context.set", "event_data": {}},
        {"audience": ["bob"]},
        {"causation_id": "e" * 128},
        {"priority": Priority.BACKGROUND},
    ],
    ids=str,
)
def test_a_draft_that_may_be_in_some_channel(changes: dict[str, object]) -> None:
    assert check_draft(draft(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"event_type": "thing"}, "bad_event_type"),
        ({"event_type": ".thing"}, "bad_event_type"),
        ({"event_type": "my."}, "bad_event_type"),
        ({"event_type": "my..thing"}, "bad_event_type"),
        ({"event_type": "1my.thing"}, "bad_event_type"),
        ({"event_type": "mÿ.thing"}, "bad_event_type"),
        ({"event_type": "x." + "y" * 127}, "bad_event_type"),
        ({"event_type": "ag2.thing"}, "reserved_event"),
        ({"event_type": "antiphon.thing"}, "reserved_event"),
        ({"causation_id": "e" * 129}, "bad_causation"),
        ({"causation_id": "ë"}, "bad_causation"),
        ({"sequence": -1}, "forged_sequence"),
        ({"created_at": " "}, "forged_time"),
    ],
    ids=str,
)
def test_a_draft_that_may_be_in_none(changes: dict[str, object], reason: str) -> None:
    denial = check_draft(draft(**changes))
    assert denial is not None
    assert denial.reason == reason


def test_a_record_is_the_envelope_and_nothing_else() -> None:
    envelope = Envelope("id", "here", "alice", ["bob"], "my.thing", {"a": [1]}, "why", Priority.URGENT, "now", 7)
    assert encode_envelope(envelope) == (
        b'{"envelope_id":"id","channel_id":"here","sender_id":"alice","audience":["bob"],"event_type":"my.thing",'
        b'"event_data":{"a":[1]},"causation_id":"why","priority":2,"created_at":"now","sequence":7}'
    )
    assert decode_envelope(encode_envelope(envelope)) == envelope


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"envelope_id": 7}',
        b'{"audience": "bob"}',
        b'{"priority": 9}',
        b'{"sequence": "1"}',
        b'{"event_data": []}',
        b'{"event_data": {"a": NaN}}',
        b'{"envelope_id": "\xff"}',
        b"[" * 100_000,
        b'{"event_data": ' + b'{"a":' * 100_000,
    ],
    ids=lambda record: ascii(record[:25]),
)
def test_what_is_no_record(record: bytes) -> None:
    with pytest.raises(Malformed, match="not an envelope"):
        decode_envelope(record)


def test_values_of_ours_are_read_strictly() -> None:
    assert as_type({"name": "a", "seconds": 5}, Expectation) == Expectation("a", 5.0)
    for wrong in ({"name": "a"}, {"name": 1, "seconds": 5}, {"name": "a", "seconds": "5"}, [], None):
        with pytest.raises(Malformed):
            as_type(wrong, Expectation)
    with pytest.raises(Malformed):
        from_json(b'{"name": "a"}', Expectation)


def test_an_envelope_cannot_be_changed() -> None:
    envelope = draft()
    with pytest.raises(FrozenInstanceError):
        envelope.sender_id = "mallory"  # type: ignore[misc]
    assert not hasattr(envelope, "__dict__")
    assert len(fields(envelope)) == 10


def numbers(number: float, count: int = 9_000) -> bytes:
    return encode_envelope(Envelope(event_type="app.numbers", event_data={"set": {"n": [number] * count}}))


def body_of(record: bytes) -> bytes:
    return record[record.index(b'{"set"') : record.index(b',"causation_id"')]


READERS: dict[str, Callable[[bytes], object]] = {
    "a record": decode_envelope,
    "a value of ours": lambda record: from_json(record, dict),
    "what a model wrote": lambda record: parse_json(record.decode()),
    "the body of a request": lambda record: decode_body(body_of(record), Changes),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_numbers_with_a_large_exponent_take_no_longer_than_others(read: Callable[[bytes], object]) -> None:
    def seconds(record: bytes) -> float:
        """Of this thread alone, in the best of some attempts."""
        taken = []
        for _ in range(5):
            before = time.thread_time()
            read(record)
            taken.append(time.thread_time() - before)
        return min(taken)

    assert seconds(numbers(1.7976931348623157e308)) < 6 * seconds(numbers(1.234567890123456e10))


def test_a_number_that_is_too_large_is_refused_by_every_reader() -> None:
    record = numbers(5.5, 1).replace(b"5.5", b"1e999")
    for read in READERS.values():
        with pytest.raises((Malformed, RequestRefused), match=r"out of range|right shape"):
            read(record)


def test_a_body_of_too_many_values_is_refused_before_they_take_up_memory() -> None:
    body = b'{"set":{"n":[%s]}}' % b",".join([b"[]"] * 300_000)
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefused, match="more than 32000 values of JSON") as refused:
            decode_body(body, Changes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 5 * len(body)


@pytest.mark.parametrize("text", ["," * 20_000, '",' * 20_000, '\\",' * 20_000, "\\" * 20_000 + "," * 20_000])
def test_commas_in_a_text_are_no_values(text: str) -> None:
    changes = Changes({"said": text, "more": [1, 2]})
    assert decode_body(to_json(changes), Changes) == changes


def test_values_are_counted_up_to_a_number() -> None:
    assert count_values({"a": [1, {"b": None}]}, most=100) == 5
    assert count_values([[0] * 50] * 50, most=10) == 10
