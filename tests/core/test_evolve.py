"""How each fact changes a state, and how the others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import asdict

from antiphon import Envelope
from antiphon.core.event_data import event_data_error, event_of
from antiphon.core.events import ChannelClosed, ContextSet, OtherEvent, Packet, Text
from antiphon.core.evolve import evolve
from antiphon.core.state import State, Turn
from tests.support.envelopes import (
    acked,
    assigned,
    at,
    closed,
    created,
    fact,
    log_of,
    opened,
    packed,
    said,
    state_of,
    written,
)

BEGUN = (created("alice", "bob:human", "carol:agent", ttl=60, a=1), acked("bob"), acked("carol"), opened())


def changes(before: tuple[Envelope, ...], then: Envelope) -> dict[str, object]:
    """The fields that one more fact changes, but for the numbers."""
    old, new = asdict(state_of(*before)), asdict(state_of(*before, then))
    always = {"sequence", "updated_at", "active_at"}
    return {name: value for name, value in new.items() if value != old[name] and name not in always}


@pytest.mark.parametrize(
    ("before", "then", "changed"),
    [
        (BEGUN[:1], acked("bob"), {"awaiting": ("carol",)}),
        (BEGUN[:1], acked("mallory"), {}),
        (BEGUN[:1], fact("bob", "ag2.channel.invite.reject", {"reason": "no"}), {"awaiting": ("carol",)}),
        (BEGUN[:1], fact("hub", "ag2.channel.invite", {"type": "x"}), {}),
        (BEGUN[:3], opened(), {"status": "active"}),
        (BEGUN, opened(), {}),
        (BEGUN, assigned("alice"), {"speakers": ("alice",), "assigned_at": at(5)}),
        (BEGUN, assigned(), {"assigned_at": at(5)}),
        (
            BEGUN,
            assigned("carol"),
            {"speakers": ("carol",), "assigned_at": at(5), "owed": (Turn("5/carol", "carol", None, 5),)},
        ),
        (
            (*BEGUN, assigned("alice")),
            said("alice"),
            {"speakers": (), "spoken": True, "turn_count": 1, "last_speaker_id": "alice", "last_envelope_id": "e6"},
        ),
        (
            (*BEGUN, assigned("alice", "carol")),
            said("carol"),
            {
                "speakers": ("alice",),
                "spoken": True,
                "owed": (),
                "turn_count": 1,
                "last_speaker_id": "carol",
                "last_envelope_id": "e6",
            },
        ),
        ((*BEGUN, assigned("alice")), said("bob"), {"interjected": True, "spoken": True, "last_envelope_id": "e6"}),
        (
            (*BEGUN, assigned("alice"), said("bob")),
            said("alice"),
            {
                "interjected": False,
                "speakers": (),
                "turn_count": 1,
                "last_speaker_id": "alice",
                "last_envelope_id": "e7",
            },
        ),
        (
            (*BEGUN, assigned("carol")),
            packed("carol", set={"b": [2]}, delete=["a"]),
            {
                "speakers": (),
                "spoken": True,
                "owed": (),
                "turn_count": 1,
                "last_speaker_id": "carol",
                "last_envelope_id": "e6",
                "context_vars": {"b": [2]},
            },
        ),
        (BEGUN, written("bob", {"b": 2}), {"context_vars": {"a": 1, "b": 2}}),
        (BEGUN, written("bob", {"a": 2}, "a"), {"context_vars": {"a": 2}}),
        (BEGUN, written("bob", {}, "a", "unknown"), {"context_vars": {}}),
        (BEGUN, written("bob", {}), {}),
        (BEGUN, fact("hub", "ag2.channel.expired"), {"status": "expired", "close_reason": "expired"}),
        (BEGUN, closed("done"), {"status": "closed", "close_reason": "done"}),
        (BEGUN, fact("hub", "antiphon.channel.paused", {"reason": "x"}), {"paused": "x"}),
        (BEGUN, fact("hub", "antiphon.turn.claimed", {"turn": "5/carol", "epoch": 1}), {}),
        (BEGUN, fact("hub", "antiphon.turn.failed", {"turn": "5/carol", "speaker": "carol", "reason": "x"}), {}),
        (
            (*BEGUN, assigned("carol")),
            fact("hub", "antiphon.turn.failed", {"turn": "5/carol", "speaker": "carol", "reason": "x"}),
            {"speakers": (), "owed": ()},
        ),
        ((*BEGUN, assigned("carol")), fact("hub", "antiphon.turn.claimed", {"turn": "5/carol", "epoch": "1"}), {}),
        (
            (*BEGUN, assigned("carol")),
            closed(),
            {"status": "closed", "close_reason": "done", "speakers": (), "owed": ()},
        ),
        ((*BEGUN, assigned("alice")), closed(), {"status": "closed", "close_reason": "done", "speakers": ()}),
        (BEGUN, fact("hub", "ag2.channel.expectation_violated", {"expectation": "max_silence"}), {}),
        (BEGUN, fact("hub", "antiphon.expectation.missed", {"expectation": "max_silence"}), {}),
        (BEGUN, fact("alice", "myapp.thing", {"set": {"a": 2}, "text": "hello"}), {}),
        (BEGUN, fact("alice", "ag2.task.started", {"text": "hello"}), {}),
        (BEGUN, created("mallory", "bob"), {}),
        (BEGUN, fact("alice", "ag2.msg.text", {"text": 7}), {}),
        (BEGUN, fact("alice", "ag2.msg.text", {}), {}),
        (BEGUN, fact("alice", "ag2.packet", {"routing": {}}), {}),
        (BEGUN, fact("alice", "ag2.context.set", {"set": []}), {}),
        (BEGUN, fact("hub", "antiphon.turn.assigned", {"speakers": "alice"}), {}),
        (BEGUN, fact("hub", "ag2.channel.closed", {"reason": None}), {}),
    ],
)
def test_one_fact(before: tuple[Envelope, ...], then: Envelope, changed: dict[str, object]) -> None:
    assert changes(before, then) == changed


def test_a_creation_fills_the_state() -> None:
    state = state_of(BEGUN[0])
    assert state == State(
        channel_id="here",
        type="discussion",
        creator_id="alice",
        participants={"alice": "service", "bob": "human", "carol": "agent"},
        ordered=True,
        status="invited",
        sequence=1,
        created_at=at(1),
        updated_at=at(1),
        expires_at=at(61),
        awaiting=("bob", "carol"),
        context_vars={"a": 1},
    )


@pytest.mark.parametrize("last", [closed(), fact("hub", "ag2.channel.expired")])
@pytest.mark.parametrize(
    "more",
    [said("alice"), written("alice", {"a": 2}), assigned("bob"), opened(), closed("again"), created("mallory")],
)
def test_nothing_moves_what_has_ended(last: Envelope, more: Envelope) -> None:
    assert changes((*BEGUN, last), more) == {}


def test_what_a_participant_does_counts_as_activity_and_what_the_hub_does_not() -> None:
    assert state_of(*BEGUN).active_at == at(4)
    assert state_of(*BEGUN, assigned("alice")).active_at == at(4)
    assert state_of(*BEGUN, said("alice")).active_at == at(5)
    assert state_of(*BEGUN, fact("alice", "myapp.thing")).active_at == at(5)


def test_an_unordered_channel_has_no_interjections() -> None:
    state = state_of(created("alice", "bob", ordered=False), acked("bob"), opened(), said("bob"), said("bob"))
    assert (state.turn_count, state.interjected, state.last_speaker_id) == (2, False, "bob")


@pytest.mark.parametrize(
    ("ttl", "expires"),
    [(None, ""), (0.5, at(1.5)), (1e300, "9999-12-31T23:59:59.999999Z")],
)
def test_when_a_channel_expires(ttl: float | None, expires: str) -> None:
    assert state_of(created("alice", "bob", ttl=ttl)).expires_at == expires


def test_a_creation_at_no_time_never_expires() -> None:
    envelope = replace(log_of(created("alice", "bob", ttl=5))[0], created_at="yesterday")
    assert evolve(State(), envelope).expires_at == ""


def test_a_state_shares_nothing_with_the_envelopes_it_came_from() -> None:
    log = log_of(*BEGUN, written("bob", {"list": [1]}))
    state = State()
    for envelope in log:
        state = evolve(state, envelope)
    log[-1].event_data["set"]["list"].append(2)  # type: ignore[index]
    log[0].event_data["context_vars"]["a"] = 7  # type: ignore[index]
    assert state.context_vars == {"a": 1, "list": [1]}


def test_who_is_expected() -> None:
    assert state_of(*BEGUN).expected_next_speaker is None
    assert state_of(*BEGUN, assigned("bob", "carol")).expected_next_speaker == "bob"
    assert state_of(*BEGUN).participant_order == ["alice", "bob", "carol"]


@pytest.mark.parametrize(
    ("event_type", "data", "event"),
    [
        ("ag2.msg.text", {"text": "hi"}, Text("hi")),
        ("ag2.msg.text", {"text": "hi", "lang": "en"}, Text("hi")),
        ("ag2.msg.text", {"text": None}, OtherEvent()),
        ("ag2.packet", {"body": "hi"}, Packet("hi")),
        ("ag2.packet", {"body": "hi", "context_updates": {"sets": {}}}, OtherEvent()),
        ("ag2.context.set", {"set": {"a": 1}}, ContextSet({"a": 1})),
        ("ag2.context.set", {"unset": ["a"]}, OtherEvent()),
        ("ag2.channel.closed", {"reason": "done", "by": "bob"}, ChannelClosed("done", "bob")),
        ("ag2.channel.closed", {}, ChannelClosed()),
        ("myapp.thing", {"text": "hi"}, OtherEvent()),
        ("", {}, OtherEvent()),
    ],
)
def test_what_an_envelope_says(event_type: str, data: dict[str, object], event: object) -> None:
    envelope = fact("alice", event_type, data)
    assert event_of(envelope) == event
    ours = event_type.startswith("ag2.")
    assert (event_data_error(event_type, data) is None) == (not ours or event != OtherEvent())
