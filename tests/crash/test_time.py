"""Processes that end for a day, and processes whose clock is set: what was asked is answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.time_child import TYPES

ROOT = Path(__file__).resolve().parent.parent.parent
DAY = 86_400
Told = list[list[list[Any]]]


def begun(url: str, *, wrong_by: float = 0, set_by: float = 0, thinks: float = 0, hangs: float = 0) -> Any:
    plan = json.dumps({"wrong_by": wrong_by, "set_by": set_by, "thinks": thinks, "hangs": hangs})
    command = [sys.executable, "-m", "tests.crash.time_child", url, plan]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def told(life: Any) -> Told:
    """What is in the log of each channel, once the process has ended in good order."""
    with life:
        *asked, last = life.stdout.read().splitlines()
        assert asked
        assert set(asked) == {"asked"}
    assert life.returncode == 0
    found: Told = json.loads(last)
    return found


def failures(log: list[list[Any]]) -> list[str]:
    return [data["reason"] for kind, data, _ in log if kind == "antiphon.turn.failed"]


def test_what_was_asked_before_a_process_was_killed_is_answered_a_day_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    with begun(url, thinks=DAY) as first:
        assert [first.stdout.readline() for _ in TYPES] == ["asked\n"] * len(TYPES)
        first.send_signal(signal.SIGKILL)
    logs = told(begun(url, wrong_by=DAY))
    assert len(logs) == len(TYPES)
    for log in logs:
        assert "done" in [data.get("text", data.get("body")) for _, data, _ in log]
        assert failures(log) == []


@pytest.mark.parametrize("jump", [7200, -7200])
def test_a_clock_that_is_set_fails_no_turn_and_freezes_no_deadline(tmp_path: Path, jump: float) -> None:
    """The one turn that hangs is over when its own two seconds are, by no clock but the real one."""
    *logs, hung = told(begun(f"sqlite:///{tmp_path / 'team.db'}", set_by=jump, thinks=0.3, hangs=2))
    assert [failures(log) for log in logs] == [[]] * len(TYPES)
    assert failures(hung) == ["deadline"]
    for log in (*logs, hung):
        stamps = [at for _, _, at in log]
        assert stamps == sorted(stamps)
