"""A team of three levels that is killed goes on: the same active agent, the same answers, nothing done again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.outside_world import LONGEST_HOLD, World
from tests.crash.team_kill import TeamKilling, audit, kill_teams, place_of, tell
from tests.crash.team_plan import PAYMENTS, READ, ROUND, TASKS, TEAM
from tests.crash.turn_kill import Life

KILLS = 50 if os.environ.get("ANTIPHON_PROOF") == "1" else 8


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> TeamKilling:
    found = kill_teams(tmp_path_factory.mktemp("teams"), KILLS, seed=20261117)
    print(found)
    return found


def test_teams_were_killed_in_the_middle_of_their_turns(killing: TeamKilling) -> None:
    assert killing.kills == KILLS
    assert killing.kills_mid_turn >= 0.6 * KILLS


def test_every_message_is_answered_once_and_as_if_nobody_had_been_killed(killing: TeamKilling) -> None:
    assert (killing.wrong_answers, killing.wrong_active) == (0, 0)


def test_no_call_that_has_finished_is_made_again(killing: TeamKilling) -> None:
    assert (killing.repeated_finished_calls, killing.unaccounted_calls) == (0, 0)
    assert killing.calls == killing.threads * len(ROUND) + killing.calls_sent_again


def test_everything_is_paid_once(killing: TeamKilling) -> None:
    assert killing.entries == killing.threads * PAYMENTS
    assert killing.wrong_payments == 0


def test_every_task_is_told_of_once(killing: TeamKilling) -> None:
    assert killing.tasks == killing.threads * len(TASKS)
    assert killing.wrong_tasks == 0


def test_control_without_a_journal_finished_calls_are_made_again(tmp_path: Path) -> None:
    found = kill_teams(tmp_path, 2, seed=7, journal=False)
    assert found.repeated_finished_calls > 0
    assert not found.sound


def killed_in(call: str, folder: Path, world: World, *, flag: str = "") -> TeamKilling:
    """A thread whose process is killed when this call has taken effect, and its answer is on the way."""
    path = place_of(folder, "r0")
    with world.holding(call) as hold, Life(path, world, "r0", child="team_child", flag=flag) as life:
        assert hold.arrived.wait(LONGEST_HOLD)
        life.kill()
    with Life(path, world, "r0", child="team_child", flag=flag) as life:
        life.end()
        found = TeamKilling(kills=1, threads=1, told={"r0": tell(life)})
    found.killed["r0"] = 1
    asyncio.run(audit(folder, world, found))
    return found


@pytest.mark.parametrize(
    "call",
    [
        "Refund it./1/look_around",
        "Check the refund./1/pay",
        "Check it again./2/model",
        f"{READ[-1]}/1/model",
    ],
)
def test_a_call_in_flight_is_made_again_and_no_other(call: str, tmp_path: Path) -> None:
    with World(TEAM) as world:
        found = killed_in(call, tmp_path, world)
        names = [asked.name for asked in world.asked]
    assert [name for name in ROUND if names.count(name) > 1] == [call]
    assert found.sound
    assert (found.kills_mid_turn, found.kills_mid_task) == (1, int(call.startswith("Check")))


def test_control_tasks_that_do_not_follow_from_their_calls_are_given_again(tmp_path: Path) -> None:
    with World(TEAM) as world:
        found = killed_in("Check the refund./1/pay", tmp_path, world, flag="--new-tasks")
    assert found.wrong_tasks > 0
    assert found.wrong_payments > 0
    assert found.repeated_finished_calls > 0
    assert not found.sound
