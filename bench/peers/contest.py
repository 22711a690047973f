"""The contest: who does what how often, in which order, and the ratios that come of it.

Rule 1: every turn is a process of its own, in the virtualenv of its contender.
Rule 2: contenders take turns in three rounds, every other one backwards, and the median of each counts: whatever else
        keeps the machine busy slows everybody.
Rule 3: whoever takes longer than `PATIENCE` is measured once; whoever takes longer than `LONGEST`, or fails, is left
        out with a word about it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.installing import ROOT

ROUNDS = 3
PATIENCE = 6.0
LONGEST = 90.0
QUIET = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


@dataclass(frozen=True)
class Entry:
    """A contender's part: a worker, a store of its own, and how much work."""

    worker: str
    store: str
    work: str
    count: int


@dataclass(frozen=True)
class Match:
    """The same work by several; the first is ours, and what the others are held against."""

    title: str
    unit: str
    entries: tuple[tuple[str, Entry], ...]
    """Each with what it is called in the table."""


@dataclass(frozen=True)
class Turn:
    """What one process told."""

    done: int
    wall: float
    cpu: float
    stored: int


@dataclass(frozen=True)
class Result:
    """The median turn of an entry, for one unit of work."""

    wall: float
    cpu: float
    stored: int
    turns: int

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> Result:
        return cls(
            statistics.median(turn.wall / turn.done for turn in turns),
            statistics.median(turn.cpu / turn.done for turn in turns),
            max(turn.stored for turn in turns),
            len(turns),
        )


def contest(matches: Iterable[Match], python: Path) -> dict[Entry, Result]:
    """Everybody's results; who could not be measured is missing."""
    entries = list(dict.fromkeys(entry for match in matches for _, entry in match.entries))
    turns: dict[Entry, list[Turn]] = {entry: [] for entry in entries}
    with tempfile.TemporaryDirectory() as folder:
        running = [entry for entry in entries if _prepared(entry, Path(folder), python)]
        for number in range(ROUNDS):
            for entry in running[:: -1 if number % 2 else 1]:
                turn = _turn(entry, Path(folder), python)
                if turn is not None:
                    turns[entry].append(turn)
            running = [entry for entry in running if turns[entry] and turns[entry][-1].wall < PATIENCE]
    return {entry: Result.of(taken) for entry, taken in turns.items() if taken}


def _prepared(entry: Entry, folder: Path, python: Path) -> bool:
    """What is to be reopened is filled first, once."""
    if entry.work != "reopen":
        return True
    _place(entry, folder).mkdir()
    filling = Entry(entry.worker, entry.store, "fill", entry.count)
    return _run(filling, _place(entry, folder), python) is not None


def _turn(entry: Entry, folder: Path, python: Path) -> Turn | None:
    if entry.work == "reopen":
        return _run(entry, _place(entry, folder), python)
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        return _run(entry, Path(fresh), python)


def _place(entry: Entry, folder: Path) -> Path:
    return folder / f"{entry.worker}-{entry.store}-{entry.count}"


def _run(entry: Entry, folder: Path, python: Path) -> Turn | None:
    """One process; None if it failed, which is said on stderr."""
    interpreter = sys.executable if entry.worker == "antiphon" else str(python)
    what = [entry.work, entry.store, str(entry.count), str(folder)]
    command = [interpreter, "-m", f"bench.peers.with_{entry.worker}", *what]
    try:
        said = subprocess.run(
            command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True, check=True, timeout=LONGEST
        )
        return Turn(**json.loads(said.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        why = f"it took longer than {LONGEST:.0f} s"
    except subprocess.CalledProcessError as error:
        why = (error.stderr.splitlines() or ["it said nothing"])[-1]
    except (OSError, ValueError, IndexError, TypeError) as error:
        why = str(error)
    print(f"{entry.worker}, {entry.work} of {entry.count:,} on {entry.store}: {why}", file=sys.stderr)
    return None
