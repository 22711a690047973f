"""The searches as plain functions: run one, get back what it found."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TypedDict

import apsw

from antiphon.store.sqlite_schema import Synchronous
from tests.faults import nth, power
from tests.faults.append_ledger import missing

IMAGES_A_TAPE = 250
DRY_RUNS = 3
TRIES = 30
SHOWN = 5
"""How many findings a result spells out."""


class PowerResult(TypedDict):
    """What was found in power-loss images."""

    synchronous: Synchronous
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


def power_images(count: int, synchronous: Synchronous = "FULL", *, heed_syncs: bool = True) -> PowerResult:
    """Cut the power in about `count` different ways, on a disk that heeds syncs or only says so."""
    return asyncio.run(_power_images(count, synchronous, heed_syncs))


async def _power_images(count: int, synchronous: Synchronous, heed_syncs: bool) -> PowerResult:
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
        # Every second tape has syncs that fail; the controls lose without that.
        fail_every = 5 if synchronous == "FULL" and heed_syncs and result["tapes"] % 2 else 0
        syncs = power.Syncs(heeded=heed_syncs, fail_every=fail_every, main_too=True)
        with tempfile.TemporaryDirectory() as folder:
            await _examine(Path(folder), result, min(count - result["images"], IMAGES_A_TAPE), syncs)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


async def _examine(folder: Path, result: PowerResult, count: int, syncs: power.Syncs) -> None:
    """Record one tape, deal images from it, and open each."""
    written, found = folder / "written", folder / "found"
    written.mkdir()
    found.mkdir()
    seed = result["tapes"]
    tape = await power.record(written / power.FILE, seed, synchronous=result["synchronous"], syncs=syncs)
    verdicts: dict[int, power.Verdict] = {}
    for image in power.images(tape.tape, count, random.Random(seed)):
        verdict = verdicts.get(image.digest)
        if verdict is None:
            verdict = verdicts[image.digest] = await power.inspect(image, tape.ledger, found)
        lost = [] if verdict.wrong else missing(verdict.places, image.acknowledged)
        result["corrupt"] += bool(verdict.wrong)
        result["lost"] += bool(lost)
        if (verdict.wrong or lost) and len(result["findings"]) < SHOWN:
            what = "; ".join(verdict.wrong or lost)[:300]
            where = f"tape {seed}, cut {image.cut} of {len(tape.tape)}, chance {image.chance}"
            result["findings"].append(f"{where}: {what}")
    result["tapes"] += 1
    result["images"] += len(verdicts)
    result["cuts"] += len(tape.tape)
    result["acknowledged"] += len(tape.ledger.acknowledged)
    result["failed_syncs"] += syncs.failed


def nth_sweep(stride: int = 1, kinds: Sequence[str] = tuple(nth.KINDS)) -> SweepResult:
    """Fail every `stride`-th operation of the workload, in each way that these kinds of fault know."""
    return asyncio.run(_nth_sweep(stride, kinds))


async def _nth_sweep(stride: int, kinds: Sequence[str]) -> SweepResult:
    result = SweepResult(
        runs=0, operations={}, sprung=0, errors={}, violations=0, findings=[], sqlite=versions(), seconds=0.0
    )
    errors: Counter[str] = Counter()
    began = time.monotonic()
    for kind in kinds:
        operations = result["operations"][kind] = await _operations(kind)
        for place, lasting in product(range(1, operations + 1, stride), (False, True)):
            one = await _sprung(kind, place, lasting=lasting)
            errors += one.errors
            result["runs"] += 1
            result["sprung"] += bool(one.trap.sprung)
            result["violations"] += bool(one.violations)
            if one.violations and len(result["findings"]) < SHOWN:
                how = "from there on" if lasting else "once"
                what = "; ".join(one.violations[:SHOWN])
                result["findings"].append(f"{kind} at {place} of {operations}, {how}: {what}")
    result["errors"] = dict(errors.most_common())
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


async def _sprung(kind: str, place: int, *, lasting: bool) -> nth.Run:
    """A run in which the fault happens. How often a file is read depends on timing, so one may end before its place."""
    for _ in range(TRIES):
        one = await _once(nth.Trap(kind, place, lasting=lasting))
        if one.trap.sprung or one.violations:
            break
    return one


async def _operations(kind: str) -> int:
    """How many operations a fault of this kind can hit. That depends on timing: the least of some runs counts."""
    dry = [await _once(nth.Trap(kind)) for _ in range(DRY_RUNS)]
    violations = [violation for run in dry for violation in run.violations]
    if violations:
        raise AssertionError(f"the workload fails without a fault: {violations}")
    return min(run.trap.seen for run in dry)


async def _once(trap: nth.Trap) -> nth.Run:
    with tempfile.TemporaryDirectory() as folder:
        return await nth.run(Path(folder) / nth.FILE, trap)
