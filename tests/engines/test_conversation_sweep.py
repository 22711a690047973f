"""A crash at every write of a routed conversation: the same story in the end, and every reply leaves.

Each conversation has handoffs; one has a hold and a release, the other an observer and transports that fail.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from antiphon import Envelope
from antiphon.core.conversation_events import EV_CONVERSATION_MOVED, EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.engines import journal
from antiphon.orchestration.routed import Routed
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.crashing_conversations import DESK, TALKS, UNWANTED, Outside, Talk, conversed, replies_in
from tests.engines.test_sweep import AFTER, BEFORE, Died
from tests.engines.test_workflow_sweep import OUTCOMES, Fatal, InFile, InMemory
from tests.support.waiting import soon

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"


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
    seen = {(each.reply_id, each.transport, each.recipient, each.sender_id) for each in arrived}
    assert seen == {(e.envelope_id, *r) for e, r in zip(wanted, talk.replies, strict=True)}, "replies went elsewhere"
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
    assert whole.appends >= 35
    for place in range(1, whole.appends + 1):
        found = await run(talk, (place, when))
        assert found.lives == 2, f"it did not die at append {place}"
        audit(found, talk)
        assert found.digest == whole.digest, f"another story after a crash {when} append {place}"
