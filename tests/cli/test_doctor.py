import asyncio
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.cli import checkup
from antiphon.cli.checkup import Finding
from tests.cli.conftest import Run, Town

Usage = namedtuple("Usage", "total used free")
GIB = 1 << 30


def test_a_healthy_machine(run: Run, town: Town) -> None:
    result = run("doctor", "--store", town.url, "--json")
    told = json.loads(result.stdout)
    found = {finding["check"]: finding for finding in told["findings"]}
    assert list(found) == ["python", "sqlite", "parts", "extras", "durability", "sync", "disk", "store", "owner"]
    assert found["durability"]["level"] == "ok"
    assert found["store"]["found"] == f"{town.url} opens: 4 channels"
    assert found["owner"]["found"] == "no hub at the moment"
    assert str(town.path.parent) in found["disk"]["found"]
    assert told["ok"] == all(finding["level"] != "problem" for finding in told["findings"])
    assert result.exit_code == (0 if told["ok"] else 1)


def test_without_a_store_it_says_how_to_have_one_looked_at(run: Run) -> None:
    result = run("doctor")
    assert "ANTIPHON_STORE" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_store_that_does_not_open_is_a_problem(run: Run, tmp_path: Path) -> None:
    result = run("doctor", "--store", f"sqlite:///{tmp_path}/nowhere.db")
    lines = result.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("store"))
    assert lines[place].split()[1] == "problem"
    assert "nowhere.db" in lines[place]
    assert "→" in lines[place + 1]
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_scratch_files_are_removed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("doctor")
    assert str(tmp_path) in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_owner_is_the_process_of_the_hub(town: Town) -> None:
    async def owned() -> Finding:
        async with Hub.open(town.url):
            return checkup.owner(town.path)

    assert asyncio.run(owned()) == Finding("owner", "ok", f"a hub in process {os.getpid()}")
    assert checkup.owner(town.path) == Finding("owner", "ok", "no hub at the moment")
    assert checkup.owner(town.path.with_name("other.db")) == Finding("owner", "ok", "no hub has owned it yet")


def test_looking_for_the_owner_takes_nothing(town: Town) -> None:
    checkup.owner(town.path)

    async def opened() -> int:
        async with Hub.open(town.url) as hub:
            return len(await hub.channels())

    assert asyncio.run(opened()) == 2


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (checkup.python((3, 11)), "ok"),
        (checkup.python((3, 10)), "problem"),
        (checkup.sqlite((3, 24, 0)), "ok"),
        (checkup.sqlite((3, 23, 1)), "problem"),
    ],
)
def test_versions(finding: Finding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.advice) == (level != "ok")


@pytest.mark.parametrize(
    ("free", "level"), [(2 * GIB, "ok"), (GIB - 1, "warning"), (100 << 20, "warning"), (1 << 20, "problem")]
)
def test_space(free: int, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(3 * GIB, 0, free))
    assert checkup.space(tmp_path).level == level


def test_a_directory_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert checkup.space(tmp_path / "nowhere").level == "problem"
    assert checkup.durability(tmp_path / "nowhere" / "scratch.db").level == "problem"
    assert checkup.syncing(tmp_path / "nowhere" / "scratch.bin").level == "problem"


@pytest.mark.parametrize(("seconds", "level"), [(0.000001, "warning"), (0.001, "ok"), (0.05, "warning")])
def test_sync_speed(seconds: float, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkup, "_synced", lambda _: [seconds] * 3)
    assert checkup.syncing(tmp_path / "scratch.bin").level == level


def test_extras() -> None:
    wanted = [
        "click>=8.1",
        'msgspec>=0.19; extra == "fast"',
        "no-such-thing>=1; extra == 'fast'",
        "rich; python_version > '3' and extra == 'nice'",
        'pytest; extra == "dev"',
    ]
    assert checkup.extras(wanted) == Finding("extras", "ok", "fast no, nice yes")
    assert checkup.extras([]).found == "this version has none"
