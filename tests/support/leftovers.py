"""Fails a test run that leaves a process behind, and ends that process.

Every process of a run inherits a mark in its environment, or is a child of the run. What still runs when the last test
is over is named, and the run has failed. In a run of several processes each looks for its own, and the first reports.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

MARK = "ANTIPHON_TEST_RUN"
PROCESSES = Path("/proc")
PATIENCE = "ANTIPHON_TEST_PATIENCE"
"""The seconds that processes which are about to end are given: 10, if it is not set."""
REPORTED = pytest.StashKey[dict[int, str]]()
"""What the processes of a run have reported."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = uuid.uuid4().hex


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.pluginmanager.hasplugin("dsession"):  # the processes that run the tests have looked
        left = config.stash.get(REPORTED, {})
    else:
        left = end_left_over(os.environ[MARK])
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_over"] = {str(number): command for number, command in left.items()}
        return
    for number, command in left.items():
        print(f"\nA test has left the process {number} behind: {command}")
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Keep what a process that ran tests has found. One that crashed has found nothing."""
    found = getattr(node, "workeroutput", {}).get("left_over", {})
    stash = node.config.stash
    stash[REPORTED] = {**stash.get(REPORTED, {}), **{int(number): command for number, command in found.items()}}


def end_left_over(mark: str) -> dict[int, str]:
    """The processes of this run that did not end by themselves, which are ended now, and what they ran."""
    left = left_over(mark)
    for number in left:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return left


def left_over(mark: str) -> dict[int, str]:
    """The processes of this run that do not end by themselves, and what they run."""
    deadline = time.monotonic() + float(os.environ.get(PATIENCE, "10"))
    while (left := _alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _alive(mark: str) -> dict[int, str]:
    if not PROCESSES.is_dir():
        return {}
    numbers = (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdecimal())
    return {number: _command(number) for number in numbers if number != os.getpid() and _is_ours(number, mark)}


def _is_ours(number: int, mark: str) -> bool:
    try:
        status = (PROCESSES / str(number) / "stat").read_text().rpartition(")")[2].split()
        if status[0] in ("Z", "X"):
            return False
        environment = (PROCESSES / str(number) / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return False
    return int(status[1]) == os.getpid() or f"{MARK}={mark}".encode() in environment.split(b"\x00")


def _command(number: int) -> str:
    try:
        return (
            (PROCESSES / str(number) / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return "it has ended meanwhile"
