"""Folding never fails and never looks outside: any envelope in any order, and no clock, dice, file or socket."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Envelope
from antiphon.core.codec import decode_envelope, encode_envelope
from antiphon.core.creation import opening_batch
from antiphon.core.event_data import Deny
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.evolve import evolve
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, pending_turns, step, tick
from antiphon.core.views import FullTranscript, NamedTranscript, NamedWindowedSummary, WindowedSummary
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.laws.script_strategies import envelopes, names
from tests.support.json_strategies import json_objects

KNOBS = {
    "expectations": [
        {"name": name, "seconds": 60, "handler": handler}
        for name in ("acks_within", "reply_within", "max_silence", "turn_within")
        for handler in ("audit", "warn", "auto_close")
    ],
    "writers": {"a": ["alice"]},
    "interjectors": ["carol"],
}
LAWS = [ruleset_for(channel_type, KNOBS) for channel_type in ("conversation", "consulting", "discussion")]


@given(st.lists(envelopes(), max_size=8))
def test_evolve_takes_any_log(log: list[Envelope]) -> None:
    state = State()
    for envelope in log:
        state = evolve(state, envelope)
        assert state.sequence == envelope.sequence
        assert state.updated_at == envelope.created_at
        pending_turns(state)


@given(st.sampled_from(LAWS), st.lists(envelopes(), max_size=8))
def test_so_does_everything_that_remembers(ruleset: Ruleset, log: list[Envelope]) -> None:
    fold = ruleset.fold_all(ruleset.begin("here"), log)
    assert fold.state.sequence == (log[-1].sequence if log else 0)


@given(st.lists(envelopes(), max_size=8))
def test_so_do_the_views(log: list[Envelope]) -> None:
    for view in (FullTranscript(), NamedTranscript(), WindowedSummary(3), NamedWindowedSummary(3)):
        assert all(message.role in {"user", "assistant"} for message in view.project(log, "alice"))


@given(st.lists(envelopes(), max_size=8), st.integers(0, 8))
def test_once_ended_nothing_but_the_numbers_moves(log: list[Envelope], cut: int) -> None:
    closed = Envelope(event_type="ag2.channel.closed", event_data={"reason": "done"}, sender_id="hub")
    state = State()
    for envelope in [*log[:cut], closed]:
        state = evolve(state, envelope)
    ended = state
    for envelope in log[cut:]:
        state = evolve(state, envelope)
    assert (state.status, state.close_reason, state.speakers) == (ended.status, ended.close_reason, ())
    assert (state.context_vars, state.turn_count) == (ended.context_vars, ended.turn_count)


@given(envelopes())
def test_an_envelope_reads_back_equal(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


# Purity


class Touched(BaseException):
    """Not an Exception, so that code that copes with anything does not cope with this."""


@contextmanager
def sealed() -> Iterator[None]:
    """Inside, whoever asks for the time, for chance, or for the world outside fails."""

    def touch(*args: object, **options: object) -> None:
        raise Touched(args)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (time, "time"),
            (time, "time_ns"),
            (time, "monotonic"),
            (random, "random"),
            (random, "getrandbits"),
            (secrets, "randbits"),
            (secrets, "token_bytes"),
            (os, "urandom"),
            (os, "getenv"),
            (socket, "socket"),
            (socket, "getaddrinfo"),
        ):
            patch.setattr(owner, name, touch)
        patch.setattr("builtins.open", touch)
        yield


def test_the_seal_holds() -> None:
    with sealed():
        for touch in (time.time, random.random, os.urandom, socket.socket, open):
            with pytest.raises(Touched):
                touch()


def begun(ruleset: Ruleset, channel_type: str) -> Fold:
    numbers = count(1)
    created = ChannelCreated(
        channel_type, "alice", [Seat("alice"), Seat("bob", "human")], KNOBS, ruleset.adapter.ordered, ttl=3600.0
    )
    fold = ruleset.begin("here")
    return opening_batch(
        fold, created, {"bob"}, ruleset=ruleset, at=MANUAL_CLOCK_START, new_id=lambda: f"id-{next(numbers)}"
    ).fold


@given(st.lists(st.tuples(names, envelopes(), json_objects), max_size=3))
def test_fold_step_and_decide_touch_nothing(drafts: list[tuple[str, Envelope, dict[str, object]]]) -> None:
    numbers = count(1000)
    with sealed():
        for ruleset, channel_type in zip(LAWS, ("conversation", "consulting", "discussion"), strict=True):
            fold = begun(ruleset, channel_type)
            for who, envelope, data in drafts:
                for draft in (
                    Envelope(sender_id=who, event_type="ag2.msg.text", event_data={"text": "so"}),
                    Envelope(sender_id=who, event_type="ag2.context.set", event_data={"set": data}),
                    envelope,
                ):
                    outcome = step(
                        fold, draft, ruleset=ruleset, at=MANUAL_CLOCK_START, new_id=lambda: f"id-{next(numbers)}"
                    )
                    fold = outcome.fold if isinstance(outcome, Admitted) else fold
                    assert isinstance(outcome, Admitted | Deny)
            ruleset.due(fold)
            tick(fold, ruleset=ruleset, at="2030-01-01T00:00:00.000000Z", new_id=lambda: f"id-{next(numbers)}")


@given(st.lists(st.tuples(names, st.text("ab", max_size=3)), max_size=8))
def test_the_same_question_has_the_same_answer(said: list[tuple[str, str]]) -> None:
    """Deciding twice on equal values gives equal values: nothing is kept between two questions."""
    for ruleset, channel_type in zip(LAWS, ("conversation", "consulting", "discussion"), strict=True):
        assert answers(ruleset, channel_type, said) == answers(ruleset, channel_type, said)


def answers(ruleset: Ruleset, channel_type: str, said: list[tuple[str, str]]) -> list[Admitted | Deny]:
    numbers, fold, found = count(1000), begun(ruleset, channel_type), []
    for who, text in said:
        draft = Envelope(sender_id=who, event_type="ag2.msg.text", event_data={"text": text})
        outcome = step(fold, draft, ruleset=ruleset, at=MANUAL_CLOCK_START, new_id=lambda: f"id-{next(numbers)}")
        fold = outcome.fold if isinstance(outcome, Admitted) else fold
        found.append(outcome)
    return found
