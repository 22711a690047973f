"""The searches as plain functions: run one, get back what it found.

    >>> power_images(5000)["lost"]
    0
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import apsw

from tests.faults import nth, power

IMAGES_A_TAPE = 500
SHOWN = 5
"""How many findings a result spells out."""


class PowerResult(TypedDict):
    """What was found in power-loss images."""

    synchronous: str
    images: int
    """Different images that were opened."""
    tapes: int
    cuts: int
    acknowledged: int
    lost: int
    """Images that lack something acknowledged before the cut."""
    corrupt: int
    """Images that do not open, do not verify, or hold what no log may hold."""
    failed_syncs: int
    findings: list[str]
    sqlite: str
    """The versions that wrote the tape and that opened the images."""
    seconds: float


class SweepResult(TypedDict):
    """What was found by failing the n-th operation."""

    runs: int
    operations: dict[str, int]
    """By kind of fault: how many operations it could hit."""
    sprung: int
    """Runs in which the fault did happen."""
    errors: dict[str, int]
    """What callers were told, by operation and error."""
    violations: int
    findings: list[str]
    sqlite: str
    seconds: float


def versions() -> str:
    return f"{apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (sqlite3)"


def power_images(count: int, synchronous: str = "FULL", *, heed_syncs: bool = True) -> PowerResult:
    """Cut the power in about `count` different ways under a store that syncs as told, on a disk that does or does not."""
    return asyncio.run(_power_images(count, synchronous, heed_syncs))


async def _power_images(count: int, synchronous: str, heed_syncs: bool) -> PowerResult:
    result = PowerResult(
        synchronous=synchronous,
        images=0,
        tapes=0,
        cuts=0,
        acknowledged=0,
        lost=0,
        corrupt=0,
        failed_syncs=0,
        findings=[],
        sqlite=versions(),
        seconds=0.0,
    )
    began = time.monotonic()
    while result["images"] < count:
        # Every second tape has syncs that fail.
        syncs = power.Syncs(heeded=heed_syncs, fail_every=7 * (result["tapes"] % 2))
        with tempfile.TemporaryDirectory() as folder:
            await _examine(Path(folder), result, min(count - result["images"], IMAGES_A_TAPE), syncs)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result
