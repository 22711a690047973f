"""A power failure loses nothing that was acknowledged, and the search that says so is able to find a loss."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from antiphon.core.envelope import Envelope
from tests.faults.append_ledger import missing
from tests.faults.power import (
    FILE,
    SECTOR,
    Acknowledged,
    Created,
    Deleted,
    Disk,
    Event,
    Image,
    NamesSynced,
    Synced,
    Syncs,
    Tape,
    Truncated,
    Wrote,
    images,
    inspect,
    record,
)
from tests.faults.searches import power_images

IMAGES = 5000 if os.environ.get("ANTIPHON_PROOF") == "1" else 500
CONTROL = 400
SHORT = 40
A, B, C = (letter * SECTOR for letter in (b"a", b"b", b"c"))


# The store


def test_nothing_acknowledged_is_lost() -> None:
    result = power_images(IMAGES)
    assert (result["lost"], result["corrupt"]) == (0, 0), result["findings"]
    assert result["images"] >= IMAGES
    assert result["failed_syncs"] > 0
    assert result["sqlite"] == f"{apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (sqlite3)"


def test_a_short_search_finds_no_loss_either() -> None:
    """Short enough for a test of the tests: a store that acknowledges too early loses something in most images."""
    assert power_images(SHORT)["lost"] == 0


def test_a_store_that_syncs_too_rarely_loses_its_end_and_nothing_else() -> None:
    result = power_images(CONTROL, "NORMAL")
    assert result["lost"] > 0
    assert result["corrupt"] == 0, result["findings"]


def test_a_disk_that_does_not_sync_loses() -> None:
    assert power_images(CONTROL, heed_syncs=False)["lost"] > 0


async def test_a_tape_holds_what_there_is_to_lose(tmp_path: Path) -> None:
    recording = await record(tmp_path / FILE, seed=0)
    kinds = Counter(type(event) for event in recording.tape)
    main = recording.tape[0]
    assert main == Created(FILE, 1)
    assert recording.ledger.acknowledged.keys() == recording.ledger.sent.keys()
    assert kinds[Acknowledged] < len(recording.ledger.sent), "no batch had several envelopes"
    assert recording.tape.count(Synced(1)) >= 6, "there were hardly any checkpoints"
    assert synced_groups(recording.tape) < kinds[Acknowledged], "nothing was committed together"
    assert kinds[Created] >= 3


def synced_groups(tape: list[Event]) -> int:
    """How many acknowledgements came first after a sync."""
    shown = [event for event in tape if isinstance(event, Acknowledged | Synced)]
    return sum(isinstance(event, Acknowledged) and isinstance(before, Synced) for before, event in pairwise(shown))


async def test_failed_syncs_are_met_and_repeated(tmp_path: Path) -> None:
    """Which syncs fail is a matter of how appends fall together; some fail under an append sooner or later."""
    unknown = 0
    for seed in range(10):
        syncs = Syncs(fail_every=5, main_too=True)
        recording = await record(tmp_path / f"{seed}-{FILE}", seed=seed, syncs=syncs)
        assert syncs.failed > 3
        assert recording.ledger.acknowledged.keys() == recording.ledger.sent.keys()
        unknown += recording.failures["OutcomeUnknown"]
        if unknown:
            return
    raise AssertionError("no failed sync was met by anybody")


@pytest.mark.parametrize("place", ["body", "page"])
async def test_damage_is_told_from_loss(tmp_path: Path, place: str) -> None:
    written, found = tmp_path / "written", tmp_path / "found"
    written.mkdir()
    found.mkdir()
    recording = await record(written / FILE, seed=0)
    *_, last = images(recording.tape, 1, random.Random(0))
    good = await inspect(last, recording.ledger, found)
    assert good.wrong == []
    assert missing(good.places, last.acknowledged) == []
    bad = await inspect(damaged(last, place, recording.ledger.sent), recording.ledger, found)
    assert bad.wrong != []


def damaged(image: Image, place: str, sent: dict[str, Envelope]) -> Image:
    data = image.files[FILE]
    if place == "page":
        return replace(image, files={FILE: data[:4096] + bytes(4096) + data[8192:]})
    text = str(next(iter(sent.values())).event_data["text"]).encode()[:30]
    assert text in data
    return replace(image, files={FILE: data.replace(text, text[::-1])})


# The disk


def found(*events: Event, chance: float = 0.5) -> set[bytes | None]:
    """Every content of a file that can be found after these events."""
    disk = Disk()
    for event in (Created("f", 1), *events):
        disk.play(event)
    return {disk.dealt(random.Random(seed), chance).get("f") for seed in range(300)}


KNOWN = (NamesSynced(), Wrote(1, 0, A), Synced(1))
"""A file with one sector that is certain."""


def test_what_was_synced_is_certain() -> None:
    assert found(*KNOWN) == {A}
    assert found(*KNOWN, Wrote(1, 0, B), Synced(1)) == {B}


def test_what_was_not_synced_is_in_any_state_it_ever_had() -> None:
    assert found(*KNOWN, Wrote(1, 0, B), Wrote(1, 0, C)) == {A, B, C}
    assert found(*KNOWN, Wrote(1, 0, B), Wrote(1, 0, C), chance=0.0) == {A}
    assert found(*KNOWN, Wrote(1, 0, B), Wrote(1, 0, C), chance=1.0) == {C}


def test_a_write_is_torn_between_sectors_only() -> None:
    both = (NamesSynced(), Wrote(1, 0, A + A), Synced(1), Wrote(1, 0, B + B))
    assert found(*both) == {A + A, A + B, B + A, B + B}


def test_a_sector_comes_with_everything_written_to_it_before() -> None:
    half = SECTOR // 2
    pieces = (Wrote(1, 0, B[:half]), Wrote(1, half, C[:half]))
    assert found(*KNOWN, *pieces) == {A, B[:half] + A[half:], B[:half] + C[:half]}


def test_a_file_has_its_old_or_a_newer_size() -> None:
    assert found(*KNOWN, Wrote(1, SECTOR, B)) == {A, A + B, A + bytes(SECTOR)}
    assert found(*KNOWN, Truncated(1, 0)) == {A, bytes(SECTOR), b""}
    assert found(*KNOWN, Truncated(1, 0), Synced(1)) == {b""}


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    failed = (*KNOWN, Wrote(1, 0, B), Synced(1, failed=True))
    assert found(*failed) == {A, B}
    assert found(*failed, Synced(1)) == {A, B}
    assert found(*failed, Wrote(1, 0, C), Synced(1)) == {C}


def test_a_name_is_certain_once_the_directory_is() -> None:
    assert found(Wrote(1, 0, A), Synced(1)) == {None, A}
    assert found(*KNOWN, Deleted("f")) == {None, A}
    assert found(*KNOWN, Deleted("f"), NamesSynced()) == {None}
    assert found(*KNOWN, Deleted("f"), Created("f", 2), Wrote(2, 0, B), Synced(2)) == {None, A, B}


def test_images_differ_and_carry_what_was_acknowledged_before_the_cut() -> None:
    tape: Tape = [Created("f", 1), *KNOWN, Acknowledged({"x": 1}), Wrote(1, 0, B + C), Acknowledged({"y": 2})]
    dealt = list(images(tape, 4, random.Random(0)))
    assert len({image.digest for image in dealt}) >= 4
    assert {image.cut: image.acknowledged for image in dealt}[len(tape)] == {"x": 1, "y": 2}
    assert all(image.acknowledged == {} for image in dealt if image.cut <= 4)
