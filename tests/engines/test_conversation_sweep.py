"""A crash at every write of a routed conversation: the same story in the end, and every reply leaves.

Each conversation has handoffs; one has a hold and a release, the other an observer and transports that fail.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from antiphon import Envelope
from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_REPLY_DELIVERED,
    EV_REPLY_UNDELIVERABLE,
    RECIPIENT_FIELD,
    TRANSPORT_FIELD,
)
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.engines import journal
from antiphon.orchestration.routed import Routed
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.crashing_conversations import (
    DESK,
    TALKS,
    UNWANTED,
    Outside,
    Talk,
    conversed,
    is_held,
    replies_in,
)
from tests.engines.crashing_workflows import Cue
from tests.engines.test_sweep import AFTER, BEFORE, Died
from tests.engines.test_workflow_sweep import OUTCOMES, Fatal, InFile, InMemory
from tests.support.waiting import soon

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
ROUTE_FIELDS = (TRANSPORT_FIELD, RECIPIENT_FIELD)


@dataclass
class Told:
    """How a conversation went, in as many lives as it took."""

    log: list[Envelope]
    outside: Outside
    lives: int
    appends: int

    @property
    def digest(self) -> str:
        return canonical_digest(self.log)


async def run(talk: Talk, *fatal: Fatal, path: Path | None = None) -> Told:
    """Let a conversation take place, in memory or in a file. Each of these ends a life, the first one the first."""
    clock, outside = ManualClock(), Outside(flaky=talk.flaky)
    place = InMemory(clock) if path is None else InFile(path, clock)
    for life, death in enumerate([*fatal, None], 1):
        store = await place.open(death)
        try:
            log = await soon(conversed(talk, outside, store, clock))
        except Died:
            continue
        return Told(log, outside, life, store.appends)
    raise AssertionError("it did not survive")


def audit(found: Told, talk: Talk) -> None:
    """No finished call was made again, there is one payment, and every reply has left, in order and under one id."""
    audit_calls(found)
    replies, arrived = replies_in(found.log), found.outside.arrived
    wanted = [each for each in replies if UNWANTED not in str(each.event_data)]
    for name in talk.transports:
        left = [each.envelope_id for each in wanted if each.event_data["transport"] == name]
        came = list(dict.fromkeys(each.reply_id for each in arrived if each.transport == name))
        assert came == left, f"{name} has {came}, and should have {left}"
    routes = {each.envelope_id: (*map(each.event_data.get, ROUTE_FIELDS), each.sender_id) for each in wanted}
    assert tuple(routes.values()) == talk.replies, f"the replies are {list(routes.values())}"
    assert {each.reply_id: (each.transport, each.recipient, each.sender_id) for each in arrived} == routes
    assert max(found.outside.tried.values()) <= found.lives + talk.flaky, "a reply left again in the same life"
    facts = [each for each in found.log if each.event_type in (EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE)]
    assert Counter(str(each.event_data["reply"]) for each in facts) == Counter(each.envelope_id for each in replies)
    assert sum(each.event_type == EV_REPLY_UNDELIVERABLE for each in facts) == len(replies) - len(wanted)
    assert [envelope.sequence for envelope in found.log] == list(range(1, len(found.log) + 1))


def audit_calls(found: Told) -> None:
    starts: Counter[tuple[object, object]] = Counter()
    done: set[tuple[object, object]] = set()
    for envelope in found.log:
        call = envelope.event_data.get("turn"), envelope.event_data.get("index")
        if envelope.event_type == EV_CALL_STARTED:
            assert call not in done, f"call {call} had an outcome, and was made again"
            starts[call] += 1
        elif envelope.event_type in OUTCOMES:
            assert call not in done, f"call {call} has two outcomes"
            done.add(call)
    assert starts.keys() == done
    assert max(starts.values()) <= found.lives
    assert list(found.outside.ledger.values()) == [100]


@pytest.mark.parametrize("name", TALKS)
async def test_a_conversation_that_nobody_interrupts(name: str) -> None:
    """Every call is made once, every reply is taken once, and it is the same each time."""
    talk = TALKS[name]
    found = await run(talk)
    audit(found, talk)
    assert len(found.outside.arrived) == len(talk.replies)
    assert sum(each.event_type == EV_CONVERSATION_MOVED for each in found.log) == talk.moves
    assert (await run(talk)).digest == found.digest


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("name", TALKS)
async def test_a_crash_at_every_write(name: str, when: str) -> None:
    talk = TALKS[name]
    whole = await run(talk)
    assert whole.appends >= 34
    for place in range(1, whole.appends + 1):
        found = await run(talk, (place, when))
        assert found.lives == 2, f"it did not die at append {place}"
        audit(found, talk)
        assert found.digest == whole.digest, f"another story after a crash {when} append {place}"


@pytest.mark.parametrize("name", TALKS)
async def test_whoever_goes_on_dies_as_well(name: str) -> None:
    """The next life ends too, a few writes later; the third brings it to its end."""
    talk = TALKS[name]
    whole = await run(talk)
    deaths = 0
    for place in range(1, whole.appends + 1):
        for later in range(1, 12) if PROOF else [1 + place % 11]:
            found = await run(talk, (place, BEFORE), (later, AFTER))
            audit(found, talk)
            assert found.digest == whole.digest, f"another story after crashes at {place} and {later} later"
            deaths += found.lives - 1
    assert deaths > 1.5 * whole.appends


@pytest.mark.parametrize("name", TALKS)
async def test_a_crash_at_every_write_to_a_file(name: str, tmp_path: Path) -> None:
    talk = TALKS[name]
    whole = await run(talk, path=tmp_path / "whole.db")
    audit(whole, talk)
    assert whole.digest == (await run(talk)).digest, "a file tells what memory does"
    places = range(1, whole.appends) if PROOF else range(5, whole.appends, 7)
    for place, when in product(places, [BEFORE, AFTER]):
        found = await run(talk, (place, when), path=tmp_path / f"{when}{place}.db")
        audit(found, talk)
        assert found.lives == 2, f"it did not die at append {place}"
        assert found.digest == whole.digest, f"another story after a crash {when} append {place}"


# Controls: what the sweep finds when something is wrong


async def complaint(talk: Talk, when: str) -> str:
    """What is first found wrong in a sweep."""
    whole = await run(DESK)
    for place in range(1, whole.appends + 1):
        found = await run(talk, (place, when))
        try:
            audit(found, talk)
        except AssertionError as error:
            return str(error)
        if found.digest != whole.digest:
            return "another story"
    return ""


async def test_a_channel_that_is_not_looked_at_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last reply stays, if the process ends between the reply and its delivery."""
    monkeypatch.setattr(Routed, "due", lambda rules, memory, state: None)
    assert "sms has" in await complaint(DESK, AFTER)


async def test_an_engine_that_does_not_read_its_journal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "journal_of", lambda entries, turn_id: {})
    assert "had an outcome, and was made again" in await complaint(DESK, AFTER)


async def test_a_person_who_forgets_what_was_said_is_found() -> None:
    forgetful = (Cue(is_held, "dana", lambda channel: channel.send("I am here.")),)
    cues = tuple(cue for cue in DESK.cues if cue.sees is not is_held) + forgetful
    assert "the replies are" in await complaint(replace(DESK, cues=cues), AFTER)
