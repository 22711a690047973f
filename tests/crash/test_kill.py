"""A process that is killed loses nothing it has acknowledged, and repeating a message does not double it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.kill import Killing, audit, kill_again_and_again

KILLS = 200 if os.environ.get("ANTIPHON_PROOF") == "1" else 20
READY_WITHIN = 2.0


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Killing:
    return kill_again_and_again(tmp_path_factory.mktemp("kill") / "team.db", KILLS, seed=20261116)


def test_every_process_was_killed_while_it_was_sending(killing: Killing) -> None:
    assert killing.kills == KILLS
    assert len(killing.acknowledged) > KILLS


def test_nothing_acknowledged_is_lost(killing: Killing) -> None:
    assert killing.lost == 0


def test_nothing_is_recorded_twice_or_out_of_order(killing: Killing) -> None:
    assert (killing.doubled, killing.misplaced) == (0, 0)


def test_no_log_has_a_gap(killing: Killing) -> None:
    assert killing.gaps == 0


def test_it_is_ready_again_at_once(killing: Killing) -> None:
    assert killing.slowest_start <= READY_WITHIN


def test_the_audit_finds_what_is_missing(tmp_path: Path) -> None:
    found = kill_again_and_again(tmp_path / "team.db", 1, seed=7)
    assert found.sound
    found.acknowledged["s0", 10_000_000] = 1
    asyncio.run(audit(tmp_path / "team.db", found))
    assert found.lost == 1
