"""A turn that is killed goes on from its journal: what has finished is not done again, and money is paid once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.core.execution_events import EV_CALL_FINISHED
from tests.crash.outside_world import LONGEST_HOLD, PLAN, ROUND, World
from tests.crash.turn_kill import Life, TurnKilling, audit, kill_turns, place_of

KILLS = 200 if os.environ.get("ANTIPHON_PROOF") == "1" else 8


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> TurnKilling:
    return kill_turns(tmp_path_factory.mktemp("turns"), KILLS, seed=20261117)


def test_turns_were_killed_in_their_middle(killing: TurnKilling) -> None:
    assert killing.kills == KILLS
    assert killing.kills_mid_turn >= KILLS / 2


def test_every_order_is_paid_once(killing: TurnKilling) -> None:
    assert killing.entries == killing.turns
    assert (killing.payments_missing, killing.doubled_payments, killing.altered_payments) == (0, 0, 0)


def test_no_call_that_has_finished_is_made_again(killing: TurnKilling) -> None:
    assert (killing.repeated_finished_calls, killing.unaccounted_calls) == (0, 0)


def test_every_turn_is_answered_once(killing: TurnKilling) -> None:
    assert (killing.answers_missing, killing.answers_doubled) == (0, 0)


def test_control_without_a_journal_finished_calls_are_made_again(tmp_path: Path) -> None:
    found = kill_turns(tmp_path, 4, seed=7, journal=False)
    assert found.repeated_finished_calls > 0
    assert not found.sound
    assert (found.doubled_payments, found.answers_missing, found.answers_doubled) == (0, 0, 0)


def wait_for_finished_calls(path: Path, count: int) -> None:
    """Return when the file holds the outcomes of so many calls: of those made together one may be quicker by chance."""
    finished = "SELECT count(*) FROM log WHERE kind = ?"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        until = time.monotonic() + LONGEST_HOLD
        while reader.execute(finished, (EV_CALL_FINISHED,)).fetchone()[0] < count:
            assert time.monotonic() < until, "the calls that are not held back return"


def killed_in(call: str, folder: Path, world: World, *, journal: bool = True) -> TurnKilling:
    """A turn whose process is killed when this call has taken effect, and its answer is on the way."""
    path = place_of(folder, 0)
    with world.holding(call) as hold, Life(path, world, "r0", journal=journal) as life:
        assert hold.arrived.wait(LONGEST_HOLD)
        if journal:
            wait_for_finished_calls(path, sum(ROUND[other] <= ROUND[call] for other in PLAN) - 1)
        life.kill()
    with Life(path, world, "r0", journal=journal) as life:
        life.end()
    found = TurnKilling(kills=1, turns=1)
    found.killed["r0"] = 1
    asyncio.run(audit(folder, world, found))
    return found


def test_a_rephrased_second_attempt_does_not_pay_twice(tmp_path: Path) -> None:
    with World() as world:
        found = killed_in("pay", tmp_path, world)
        first, second = [asked for asked in world.asked if asked.name == "pay"]
    assert first == second
    assert first.key
    assert [entry.memo for entry in world.entries] == [first.body["memo"]]
    assert found.sound
    assert found.kills_mid_turn == 1


def test_control_without_a_journal_the_second_attempt_is_rephrased(tmp_path: Path) -> None:
    with World() as world:
        found = killed_in("pay", tmp_path, world, journal=False)
        first, second = [asked for asked in world.asked if asked.name == "pay"]
    assert first.body["memo"] != second.body["memo"]
    assert found.altered_payments > 0


def test_control_a_ledger_that_heeds_no_keys_is_paid_twice(tmp_path: Path) -> None:
    with World(heeds_keys=False) as world:
        found = killed_in("pay", tmp_path, world)
    assert found.doubled_payments == 1
    assert not found.sound


@pytest.mark.parametrize("call", ["model 0", "stock", "file", "model 3"])
def test_a_call_in_flight_is_made_again_and_no_other(call: str, tmp_path: Path) -> None:
    with World() as world:
        found = killed_in(call, tmp_path, world)
        names = [asked.name for asked in world.asked]
    assert {name for name in names if names.count(name) > 1} == {call}
    assert found.sound
