"""Real processes that die again and again: no turn is lost, and one that kills them takes no other along twice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Denied, Envelope, Hub
from antiphon.core.envelope import derived_id
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import EV_TURN_CLAIMED, EV_TURN_DELAYED, EV_TURN_SUSPENDED
from tests.crash.kill import Lines
from tests.support.crash_loop import AGENT, CRASHES, KILL, LONGEST_LIFE, SPEED, start_crash_loop

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
SECONDS = 13.0 if PROOF else 0.2
TURNS = 10
KILLS = 3
INNOCENT = 4
MOST_LIVES = 30


def lived(path: Path, turns: int, seconds: float, *flags: str, speed: float = SPEED) -> int:
    """The exit code of a process that runs until it is done, or ends itself."""
    with start_crash_loop(path, turns, seconds, *flags, speed=speed) as process:
        return process.wait(LONGEST_LIFE)


async def log_of(path: Path, text: str) -> list[Envelope]:
    async with Hub.open(f"sqlite:///{path}", engine=None) as hub:
        return await hub.log(derived_id("thread", AGENT, text))


def of_type(log: list[Envelope], event_type: str) -> list[Envelope]:
    return [envelope for envelope in log if envelope.event_type == event_type]


def answers(log: list[Envelope]) -> list[object]:
    return [envelope.event_data["text"] for envelope in of_type(log, EV_TEXT) if envelope.sender_id == AGENT]


def test_long_turns_survive_kills_at_any_moment(tmp_path: Path) -> None:
    path, chance = tmp_path / "team.db", random.Random(20261118)
    for _ in range(KILLS):
        with start_crash_loop(path, TURNS, SECONDS) as process:
            assert process.stdout is not None
            lines = Lines(process.stdout.fileno())
            while not lines.saw("ready"):
                assert lines.read(LONGEST_LIFE), "the process ended before it was ready"
            time.sleep(chance.uniform(0.0, SECONDS))  # the moment of the kill is what is drawn
            process.kill()
            process.wait()
    assert lived(path, TURNS, SECONDS) == 0
    for number in range(TURNS):
        log = asyncio.run(log_of(path, f"t{number}"))
        assert answers(log) == ["fine"]
        assert of_type(log, EV_TURN_FAILED) == of_type(log, EV_TURN_SUSPENDED) == []


@dataclass(frozen=True)
class Loop:
    """A file in which one turn has ended every process that ran it, until it was suspended."""

    path: Path
    codes: list[int]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    path, codes = tmp_path_factory.mktemp("loop") / "team.db", []
    while not codes or (codes[-1] and len(codes) < MOST_LIVES):
        codes.append(lived(path, INNOCENT, 0.2, "--kill", speed=100.0))
    return Loop(path, codes)


def test_the_killer_ends_up_waiting_for_a_person(loop: Loop) -> None:
    assert loop.codes == [9] * CRASHES + [0]
    log = asyncio.run(log_of(loop.path, KILL))
    [suspended] = of_type(log, EV_TURN_SUSPENDED)
    assert suspended.event_data["crashes"] == CRASHES
    crashes = [each.event_data["crashes"] for each in of_type(log, EV_TURN_DELAYED)]
    assert crashes == list(range(1, CRASHES))
    assert (answers(log), of_type(log, EV_TURN_FAILED)) == ([], [])


def test_innocent_turns_are_taken_along_once_and_answered(loop: Loop) -> None:
    for number in range(INNOCENT):
        log = asyncio.run(log_of(loop.path, f"t{number}"))
        assert answers(log) == ["fine"]
        assert len(of_type(log, EV_TURN_CLAIMED)) <= 2


async def decided(path: Path, decision: str, text: str | None) -> None:
    async with Hub.open(f"sqlite:///{path}", engine=None) as hub:
        dana = await hub.register("dana", kind="human")
        [waiting] = await hub.approvals()
        await dana.decide(waiting.approval_id, decision, text=text)
        with pytest.raises(Denied, match=f"'dana' decided before: {decision}"):
            await dana.decide(waiting.approval_id, "reject")


@pytest.mark.parametrize(
    ("decision", "text", "answered"),
    [("approve", None, ["I live."]), ("respond", "by hand", ["by hand"]), ("reject", None, [])],
)
def test_a_person_decides_after_a_restart(
    loop: Loop, tmp_path: Path, decision: str, text: str | None, answered: list[str]
) -> None:
    path = tmp_path / "team.db"
    shutil.copy(loop.path, path)
    asyncio.run(decided(path, decision, text))
    assert lived(path, INNOCENT, 0.0, "--harmless") == 0
    log = asyncio.run(log_of(path, KILL))
    assert answers(log) == answered
    failed = [each.event_data["reason"] for each in of_type(log, EV_TURN_FAILED)]
    assert failed == (["rejected"] if decision == "reject" else [])
