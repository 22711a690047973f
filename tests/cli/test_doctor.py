import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.cli import doctor_command
from antiphon.cli.doctor_command import DoctorFinding
from tests.cli.conftest import Run, Town, typed
from tests.support.unprivileged import COMMAND, needs_permissions, unprivileged

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
    async def owned() -> DoctorFinding:
        async with Hub.open(town.url):
            return doctor_command.check_owner(town.path)

    assert asyncio.run(owned()) == DoctorFinding("owner", "ok", f"a hub in this process ({os.getpid()})")
    assert doctor_command.check_owner(town.path) == DoctorFinding("owner", "ok", "no hub at the moment")
    assert doctor_command.check_owner(town.path.with_name("other.db")) == DoctorFinding(
        "owner", "ok", "no hub has owned it yet"
    )


async def test_the_owner_is_found_through_a_link(town: Town) -> None:
    link = town.path.with_name("link.db")
    link.symlink_to(town.path)
    async with Hub.open(town.url):
        done = await asyncio.to_thread(typed, "doctor", str(link))
    assert f"a hub in process {os.getpid()}" in done.stdout


def test_looking_for_the_owner_takes_nothing(town: Town) -> None:
    doctor_command.check_owner(town.path)

    async def opened() -> int:
        async with Hub.open(town.url) as hub:
            return len(await hub.channels())

    assert asyncio.run(opened()) == 2


def test_a_store_that_no_hub_has_made_yet_is_told_so(run: Run, tmp_path: Path) -> None:
    result = run("doctor", str(tmp_path / "nowhere.db"))
    assert "until a hub opens, and so creates, it" in result.stdout
    assert "no hub has owned it yet" in result.stdout


def test_a_place_that_cannot_be_reached_is_one_finding(run: Run, tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path / "round")
    result = run("doctor", str(tmp_path / "round"), "--json")
    assert result.exit_code == 1
    [problem] = [finding for finding in json.loads(result.stdout)["findings"] if finding["level"] == "problem"]
    assert problem["check"] == "store"
    assert "circle" in problem["found"]


def test_sync_is_measured_where_the_store_is(run: Run, town: Town) -> None:
    found = json.loads(run("doctor", town.url, "--json").stdout)["findings"]
    [sync] = [finding for finding in found if finding["check"] == "sync"]
    assert sync["found"].endswith(f" ms a sync in {town.path.parent}")
    assert {file.name for file in town.path.parent.iterdir()} == {"town.db", "town.db-owner"}


@needs_permissions
def test_beside_a_store_that_may_only_be_read_it_makes_nothing(town: Town) -> None:
    town.path.parent.chmod(0o555)
    try:
        done = unprivileged(COMMAND, "doctor", str(town.path))
    finally:
        town.path.parent.chmod(0o755)
    assert f"{town.url} opens: 4 channels" in done.stdout
    assert f" ms a sync in {tempfile.gettempdir()}" in done.stdout


def test_a_quarantined_channel_is_a_warning(run: Run, town: Town) -> None:
    assert '"channels"' not in run("doctor", town.url, "--json").stdout
    connection = sqlite3.connect(town.path)
    with connection:
        connection.execute("UPDATE channel SET status = 'quarantined' WHERE channel = ?", (town.tavern,))
    connection.close()
    told = json.loads(run("doctor", town.url, "--json").stdout)
    [warning] = [finding for finding in told["findings"] if finding["check"] == "channels"]
    assert (warning["level"], warning["found"]) == ("warning", f"1 quarantined channel: {town.tavern}")
    assert "antiphon verify" in warning["advice"]


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (doctor_command.check_python((3, 11)), "ok"),
        (doctor_command.check_python((3, 10)), "problem"),
        (doctor_command.check_sqlite((3, 24, 0)), "ok"),
        (doctor_command.check_sqlite((3, 23, 1)), "problem"),
    ],
)
def test_versions(finding: DoctorFinding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.advice) == (level != "ok")


@pytest.mark.parametrize(
    ("free", "level"), [(2 * GIB, "ok"), (GIB - 1, "warning"), (100 << 20, "warning"), (1 << 20, "problem")]
)
def test_space(free: int, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(3 * GIB, 0, free))
    assert doctor_command.check_space(tmp_path).level == level


def test_a_directory_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert doctor_command.check_space(tmp_path / "nowhere").level == "problem"
    assert doctor_command.check_durability(tmp_path / "nowhere" / "scratch.db").level == "problem"
    assert doctor_command.check_sync(tmp_path / "nowhere" / "scratch.bin").level == "problem"


@pytest.mark.parametrize(("seconds", "level"), [(0.000001, "warning"), (0.001, "ok"), (0.05, "warning")])
def test_sync_speed(seconds: float, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_command, "_time_syncs", lambda _: [seconds] * 3)
    assert doctor_command.check_sync(tmp_path / "scratch.bin").level == level


def test_extras() -> None:
    wanted = [
        "click>=8.1",
        'msgspec>=0.19; extra == "fast"',
        "no-such-thing>=1; extra == 'fast'",
        "rich; python_version > '3' and extra == 'nice'",
        'pytest; extra == "dev"',
    ]
    assert doctor_command.check_extras(wanted) == DoctorFinding("extras", "ok", "fast no, nice yes")
    assert doctor_command.check_extras([]).found == "this version has none"
