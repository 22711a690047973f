"""What a person is told about a value that does not fit."""

from __future__ import annotations

import pytest

from antiphon import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, Assign, Close, UnknownChannel, UnknownParticipant, UsageError
from antiphon.core.event_data import event_data_error
from antiphon.core.text import describe_error, explain_decode_error
from antiphon.store.protocol import ChannelRow
from tests.support.envelopes import said
from tests.support.stable_ids import stable_str


@pytest.mark.parametrize(
    ("event_type", "data", "expected"),
    [
        (EV_TEXT, {"text": "hello"}, None),
        (EV_TEXT, {"text": 5}, "text is int, not str"),
        (EV_TEXT, {"text": None}, "text is None, not str"),
        (EV_TEXT, {}, "text is missing"),
        (EV_PACKET, {"body": ["done"]}, "body is list, not str"),
        (EV_PACKET, {"body": "done", "routing": "bob"}, "routing is str, not dict"),
        (EV_PACKET, {"body": "done", "context_updates": []}, "context_updates is list, not dict"),
        (EV_PACKET, {"body": "done", "context_updates": {"unset": 1}}, "context_updates has no field 'unset'"),
        (EV_CONTEXT_SET, {"delete": "a"}, "delete is str, not list"),
        (EV_CONTEXT_SET, {"delete": ["a", 2.5]}, "delete[1] is float, not str"),
        (EV_CONTEXT_SET, {"unset": ["a"]}, "it has no field 'unset'"),
        ("myapp.anything", {"text": 5}, None),
    ],
)
def test_a_shape_that_does_not_fit(event_type: str, data: dict[str, object], expected: str | None) -> None:
    assert event_data_error(event_type, data) == expected


@pytest.mark.parametrize(
    "complaint", ["", "Number out of range - at `$.seconds`", "Expected `a`, got `b` - at `key` in `$.set`", "`" * 7]
)
def test_what_is_not_understood_is_left_as_it_is(complaint: str) -> None:
    assert explain_decode_error(complaint) == complaint


@pytest.mark.parametrize("speakers", ["bob", None, 5, {"ann", "bob"}, {"bob": 1}], ids=stable_str)
def test_a_turn_is_given_to_names_in_order(speakers: object) -> None:
    with pytest.raises(UsageError, match="give a tuple of names") as caught:
        Assign(speakers)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"speakers is {speakers!r};")


def test_a_reason_is_a_text() -> None:
    assert Assign(("bob",), "next").reason == "next"
    for wrong in (lambda: Assign(("bob",), 5), lambda: Close(5), lambda: Close(None)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"reason is (5|None); give a text"):
            wrong()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("here", "no channel 'here'"),
        (7, "no channel 7"),
        (None, "no channel None"),
        (said("ann"), "give its channel_id"),
        (ChannelRow("here"), "give its channel_id"),
    ],
    ids=repr,
)
def test_an_id_is_told_apart_from_what_has_one(given: object, message: str) -> None:
    assert str(UnknownChannel(given)).endswith(message)


def test_somebody_unknown_can_be_registered() -> None:
    assert str(UnknownParticipant("zoe")) == (
        "no participant is called 'zoe'; register it with hub.register('zoe') first"
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("inner", [ValueError("no words"), SystemExit(1), KeyboardInterrupt()])
def test_an_error_that_cannot_be_put_into_words_is_told_by_its_type(inner: BaseException) -> None:
    assert describe_error(Unspeakable(inner)) == "Unspeakable"
