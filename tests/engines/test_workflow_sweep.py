"""A crash at every write of a workflow, before it and after it: the same story in the end, and nothing paid twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import cast

import pytest

from antiphon import Channel, Envelope
from antiphon.core.envelope import Instant
from antiphon.core.events import EV_CHANNEL_CLOSED
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.engines import journal
from antiphon.store.protocol import Appended, Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.crashing_workflows import PAID, PLAYS, Cue, Mortal, Play, World, begins, played, speaker_of
from tests.engines.test_sweep import AFTER, BEFORE, Died, MortalStore
from tests.support.kept_store import pass_pauses
from tests.support.waiting import soon

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
OUTCOMES = (EV_CALL_FINISHED, EV_CALL_FAILED)


@dataclass
class Run:
    """How a workflow went, in as many lives as it took."""

    log: list[Envelope]
    world: World
    lives: int
    appends: int

    @property
    def digest(self) -> str:
        return canonical_digest(self.log)

    @property
    def reason(self) -> object:
        return self.log[-1].event_data.get("reason") if self.log[-1].event_type == EV_CHANNEL_CLOSED else None


Fatal = tuple[int, str]
"""The append at which somebody dies, counted from the beginning of a life, and whether it is recorded."""


class InMemory:
    """A store in memory that outlives whoever uses it."""

    def __init__(self, clock: ManualClock) -> None:
        self._store = MortalStore(clock)

    async def open(self, fatal: Fatal | None) -> MortalStore:
        self._store.dead, self._store.fatal, self._store.appends = False, fatal, 0
        return self._store


class MortalFile:
    """A store in a file that ends whoever uses it at one of its appends."""

    def __init__(self, store: Store, fatal: Fatal | None, clock: ManualClock) -> None:
        self._store, self._fatal, self._clock = store, fatal, clock
        self.appends, self.dead = 0, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        self.appends += 1
        last = self._fatal is not None and self._fatal[0] == self.appends
        if self.dead or (last and self._fatal == (self.appends, BEFORE)):
            self.dead = True
            raise Died
        appended = await self._store.append(channel, batch, expected=expected, due=due)
        pass_pauses(batch, self._clock)
        self.dead = self.dead or last
        if self.dead:
            raise Died
        return appended


class InFile:
    """A SQLite file, opened anew in each life."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path, self._clock = path, clock
        self._store: SqliteStore | None = None

    async def open(self, fatal: Fatal | None) -> Mortal:
        if self._store is not None:
            await self._store.close()  # what a process that ends gives back: its locks and its threads
        self._store = await SqliteStore.open(self._path, clock=self._clock)
        return cast(Mortal, MortalFile(self._store, fatal, self._clock))


async def run(
    play: Play, *fatal: Fatal, world: World | None = None, clock: ManualClock | None = None, path: Path | None = None
) -> Run:
    """Play a workflow, in memory or in a file. Each of these ends a life, the first one the first."""
    clock, world = clock or ManualClock(), world or World()
    place = InMemory(clock) if path is None else InFile(path, clock)
    for life, death in enumerate([*fatal, None], 1):
        store = await place.open(death)
        try:
            log = await soon(played(play, world, store, clock))
        except Died:
            continue
        return Run(log, world, life, store.appends)
    raise AssertionError("it did not survive")


def audit(found: Run, play: Play) -> None:
    """No finished call was made again, none was made that is not in the log, and there is one payment."""
    starts: Counter[tuple[object, object]] = Counter()
    left: Counter[str] = Counter()
    done: set[tuple[object, object]] = set()
    for envelope in found.log:
        data = envelope.event_data
        call = data.get("turn"), data.get("index")
        if envelope.event_type == EV_CALL_STARTED:
            assert call not in done, f"call {call} had an outcome, and was made again"
            starts[call] += 1
            left[f"{speaker_of(data)} {data['name']}"] += 1
        elif envelope.event_type in OUTCOMES:
            assert call not in done, f"call {call} has two outcomes"
            done.add(call)
    assert starts.keys() == done
    assert max(starts.values()) <= found.lives
    for name, count in found.world.asked.items():
        assert count <= left[name], f"{name} was asked {count} times, and {left[name]} are in the log"
    assert list(found.world.ledger.values()) == [PAID]
    assert [envelope.sequence for envelope in found.log] == list(range(1, len(found.log) + 1))
    assert found.reason == play.ends


@pytest.mark.parametrize("name", PLAYS)
async def test_a_workflow_that_nobody_interrupts(name: str) -> None:
    """It ends as it is meant to, every call is made once, and it is the same each time."""
    play = PLAYS[name]
    found = await run(play)
    audit(found, play)
    assert found.world.asked.total() == sum(envelope.event_type == EV_CALL_STARTED for envelope in found.log)
    assert (await run(play)).digest == found.digest


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("name", PLAYS)
async def test_a_crash_at_every_write(name: str, when: str) -> None:
    play = PLAYS[name]
    whole = await run(play)
    assert whole.appends >= 15
    for place in range(1, whole.appends + 1):
        found = await run(play, (place, when))
        assert found.lives == 2, f"it did not die at append {place}"
        audit(found, play)
        assert found.digest == whole.digest, f"another story after a crash {when} append {place}"


@pytest.mark.parametrize("name", ["context-routed", "human in the loop"])
async def test_whoever_goes_on_dies_as_well(name: str) -> None:
    """The next life ends too, a few writes later; the third brings it to its end."""
    play = PLAYS[name]
    whole = await run(play)
    deaths = 0
    for place in range(1, whole.appends + 1):
        for later in range(1, 12) if PROOF else [1 + place % 11]:
            found = await run(play, (place, BEFORE), (later, AFTER))
            audit(found, play)
            assert found.digest == whole.digest, f"another story after crashes at {place} and {later} later"
            deaths += found.lives - 1
    assert deaths > 1.5 * whole.appends


async def test_a_crash_at_every_write_to_a_file(tmp_path: Path) -> None:
    play = PLAYS["human in the loop"]
    whole = await run(play, path=tmp_path / "whole.db")
    audit(whole, play)
    assert whole.digest == (await run(play)).digest, "a file tells what memory does"
    places = range(1, whole.appends) if PROOF else range(3, whole.appends, 4)
    for place, when in product(places, [BEFORE, AFTER]):
        found = await run(play, (place, when), path=tmp_path / f"{when}{place}.db")
        audit(found, play)
        assert found.lives == 2, f"it did not die at append {place}"
        assert found.digest == whole.digest, f"another story after a crash {when} append {place}"


# Controls: what the sweep finds when something is wrong

LOOP = PLAYS["human in the loop"]


async def complaint(play: Play, when: str, *, keyless: bool = False) -> str:
    """What is first found wrong in a sweep."""
    whole = await run(LOOP)
    for place in range(1, whole.appends + 1):
        found = await run(play, (place, when), world=World(keyless=keyless))
        try:
            audit(found, play)
        except AssertionError as error:
            return str(error)
        if found.digest != whole.digest:
            return "another story"
    return ""


async def test_a_payment_without_a_key_is_found() -> None:
    assert "('7', 100), ('7', 100)" in await complaint(LOOP, BEFORE, keyless=True)


async def test_an_engine_that_does_not_read_its_journal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "journal_of", lambda entries, turn_id: {})
    assert "had an outcome, and was made again" in await complaint(LOOP, AFTER)


async def test_people_who_forget_what_they_have_said_are_found() -> None:
    forgetful = Cue(begins("payer", "ponder"), "rita", lambda channel: channel.send("Not too late, please."))
    cues = tuple(forgetful if cue.who == "rita" and not cue.opens else cue for cue in LOOP.cues)
    assert await complaint(replace(LOOP, cues=cues), AFTER) == "another story"


async def test_people_who_do_not_repeat_what_they_were_saying_are_found() -> None:
    said: list[str] = []

    async def once(channel: Channel) -> None:
        if not said:
            said.append("Not too late, please.")
            await channel.send(said[0], message_id=said[0])

    cues = tuple(replace(cue, does=once) if cue.who == "rita" and not cue.opens else cue for cue in LOOP.cues)
    whole = await run(LOOP)
    told = set()
    for place in range(1, whole.appends + 1):
        said.clear()
        told.add((await run(replace(LOOP, cues=cues), (place, BEFORE))).digest == whole.digest)
    assert told == {True, False}
