"""Power loss, thousands of times from one recording.

Rule 1: a sector of 512 bytes reaches the disk whole or not at all, in any of the contents it had since its last sync.
Rule 2: only a sync makes anything certain: a file's own sync its contents and size, a sync of the directory the names.
Rule 3: a failed sync makes nothing certain, and the sync after it covers only what was written in between.
Rule 4: the shared-memory file lives in memory and is gone.

A store works on real files through `Recorder`, which writes every operation on a tape, next to the acknowledgements
that the senders saw. `Disk` plays a tape up to a cut and deals out the images that could be found after it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import assert_never

import apsw

from antiphon.core.errors import AntiphonError
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import ConnectSqlite
from antiphon.store.sqlite_schema import Synchronous
from tests.faults.append_ledger import Ledger, contents, faults, integrity, places_of, post
from tests.faults.apsw_connection import connects_through, failure

SECTOR = 512
STRICTEST = 0.0
CHANCES = (STRICTEST, 0.1, 0.5, 0.9, 1.0)
"""How likely an unsynced sector is to have reached the disk."""
DRAWS = 40
"""How often a cut is tried for images that were not dealt yet."""

CHANNELS, SENDERS, APPENDS = 3, 6, 6
SIZES = (40, 200, 900, 900, 6000)
"""Of texts; the largest needs pages of its own."""
SETTLE_AFTER = 30
"""Pages in the write-ahead log, where a store would wait for thousands."""
FILE = "log.db"
NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Created:
    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str


@dataclass(frozen=True, slots=True)
class NamesSynced:
    """The directory reached the disk."""


@dataclass(frozen=True, slots=True)
class Wrote:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    inode: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A sender saw its append return: these envelope ids stand at these sequences."""

    sequences: dict[str, int]


Event = Created | Deleted | NamesSynced | Wrote | Truncated | Synced | Acknowledged
Tape = list[Event]


# Recording


@dataclass(slots=True)
class Syncs:
    """What becomes of the syncs that a store asks for."""

    heeded: bool = True
    """Whether a sync does anything. A disk that only says so loses what the store rightly acknowledged."""
    fail_every: int = 0
    """One of so many syncs of a log fails, once `armed`; 0 is none."""
    main_too: bool = False
    """Whether the syncs of the database file itself fail as well.

    SQLite alone does not survive that: what it moves in parts, around a reader, counts as done without a sync
    of its own, so when the next sync fails it is not written again, and the log that still had it is let go. The
    store has it moved whole.
    """
    armed: bool = False
    asked: int = 0
    failed: int = 0

    def fails(self, *, is_main: bool) -> bool:
        if not self.armed or not self.fail_every or (is_main and not self.main_too):
            return False
        self.asked += 1
        fails = self.asked % self.fail_every == 0
        self.failed += fails
        return fails


class Recorder(apsw.VFS):
    """The system's own VFS, with everything that changes a file written on a tape.

    Files are real, syncs are only recorded: what they would have saved is decided when images are dealt.
    """

    def __init__(self, name: str, tape: Tape, syncs: Syncs) -> None:
        super().__init__(name, "")
        self.name, self.tape, self.syncs = name, tape, syncs
        self.inodes: dict[str, int] = {}
        self._made = 0

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        if name is None:  # a temporary file, which nobody expects to find again
            return apsw.VFSFile("", name, flags)
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        new = not path.exists()
        file = RecordedFile(self, name, flags)
        if new or path.name not in self.inodes:
            self._made += 1
            self.inodes[path.name] = self._made
            self.tape.append(Created(path.name, self._made))
        file.inode = self.inodes[path.name]
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        name = Path(filename).name
        self.inodes.pop(name, None)
        self.tape.append(Deleted(name))
        if syncdir:
            self.tape.append(NamesSynced())


class RecordedFile(apsw.VFSFile):
    """One open file of a `Recorder`."""

    def __init__(self, vfs: Recorder, name: apsw.URIFilename | str, flags: list[int]) -> None:
        asked = flags[0]
        super().__init__("", name, flags)
        self.tape, self.syncs, self.inode = vfs.tape, vfs.syncs, 0
        self.is_main = bool(asked & apsw.SQLITE_OPEN_MAIN_DB)
        # The system's VFS syncs the directory with the first sync of a journal or log it was asked to create.
        self.names_unsynced = bool(asked & apsw.SQLITE_OPEN_CREATE) and not self.is_main

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self.tape.append(Wrote(self.inode, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self.tape.append(Truncated(self.inode, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        if not self.syncs.heeded:
            return
        if self.syncs.fails(is_main=self.is_main):
            self.tape.append(Synced(self.inode, failed=True))
            raise failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC, "disk I/O error")
        self.tape.append(Synced(self.inode))
        if self.names_unsynced:
            self.names_unsynced = False
            self.tape.append(NamesSynced())


# Playing back


@dataclass(slots=True)
class Inode:
    """A file as the disk certainly has it and as programs see it, and what lies between the two."""

    disk: bytearray = field(default_factory=bytearray)
    seen: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    """By sector: its contents since the disk had it for certain, oldest first."""
    dirty: set[int] = field(default_factory=set)
    """The sectors that the next sync will write. One that a failed sync gave up is no longer among them."""
    sizes: list[int] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.seen):
            self.seen.extend(bytes(end - len(self.seen)))
            self.sizes.append(end)
        self.seen[offset:end] = data
        self._touch(offset, end)

    def truncate(self, size: int) -> None:
        before = len(self.seen)
        del self.seen[size:]
        self.seen.extend(bytes(size - len(self.seen)))
        self.sizes.append(size)
        self._touch(size, before)

    def sync(self) -> None:
        size = len(self.seen)
        del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))
        for sector in self.dirty:
            start = sector * SECTOR
            self.disk[start : start + SECTOR] = self.seen[start : start + SECTOR]
            self.versions.pop(sector, None)
        self.dirty.clear()
        self.sizes.clear()

    def fail_sync(self) -> None:
        self.dirty.clear()

    def dealt(self, rng: random.Random, chance: float) -> bytes:
        """One of the contents that could be found after the power went."""
        found = bytearray(self.disk)
        for sector, versions in self.versions.items():
            if rng.random() >= chance:
                continue
            content = versions[-1] if chance == 1 else rng.choice(versions)
            start = sector * SECTOR
            found.extend(bytes(max(0, start + SECTOR - len(found))))
            found[start : start + SECTOR] = content
        size = len(self.disk)
        if self.sizes and rng.random() < chance:
            size = self.sizes[-1] if chance == 1 else rng.choice(self.sizes)
        found.extend(bytes(max(0, size - len(found))))
        return bytes(found[:size])

    def _touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR, ceil(end / SECTOR)):
            content = bytes(self.seen[sector * SECTOR : (sector + 1) * SECTOR])
            self.versions.setdefault(sector, []).append(content.ljust(SECTOR, b"\0"))
            self.dirty.add(sector)


Files = dict[str, bytes]


class Disk:
    """What a tape has done to a directory so far."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.names: dict[str, list[Inode | None]] = {}
        """By name: what it stands for on the disk for certain, then each change since the last sync of the names."""

    def play(self, event: Event) -> None:
        match event:
            case Created(name, inode):
                self.inodes[inode] = Inode()
                self.names.setdefault(name, [None]).append(self.inodes[inode])
            case Deleted(name):
                self.names.setdefault(name, [None]).append(None)
            case NamesSynced():
                self.names = {name: history[-1:] for name, history in self.names.items()}
            case Wrote(inode, offset, data):
                self.inodes[inode].write(offset, data)
            case Truncated(inode, size):
                self.inodes[inode].truncate(size)
            case Synced(inode, failed=True):
                self.inodes[inode].fail_sync()
            case Synced(inode):
                self.inodes[inode].sync()
            case Acknowledged():
                pass
            case _:
                assert_never(event)

    def dealt(self, rng: random.Random, chance: float) -> Files:
        """The files of one image. Each name stands for what it certainly did or for any later change."""
        files: Files = {}
        for name, history in self.names.items():
            changed = len(history) > 1 and rng.random() < chance
            inode = history[0]
            if changed:
                inode = history[-1] if chance == 1 else rng.choice(history[1:])
            if inode is not None:
                files[name] = inode.dealt(rng, chance)
        return files


@dataclass(frozen=True, slots=True)
class Image:
    """What could be found after the power went at a cut, and what had been acknowledged by then."""

    cut: int
    chance: float
    digest: int
    files: Files
    acknowledged: dict[str, int]


def images(tape: Tape, count: int, rng: random.Random) -> Iterator[Image]:
    """Deal about `count` different images from cuts all along the tape, the strictest at every one of them.

    An image that was dealt before comes again, uncounted, once more has been acknowledged.
    """
    disk, acknowledged = Disk(), dict[str, int]()
    dealt: dict[int, int] = {}
    for cut, event in enumerate(tape, start=1):
        disk.play(event)
        if isinstance(event, Acknowledged):
            acknowledged = acknowledged | event.sequences
        wanted = len(dealt) + ceil((count - len(dealt)) / (len(tape) - cut + 1))
        for draw in range(DRAWS):
            if draw and len(dealt) >= wanted:
                break
            chance = rng.choice(CHANCES) if draw else STRICTEST
            files = disk.dealt(rng, chance)
            digest = hash(frozenset(files.items()))
            if dealt.get(digest) != len(acknowledged):
                dealt[digest] = len(acknowledged)
                yield Image(cut, chance, digest, files, acknowledged)


# A store under the recorder, and a store on an image


@dataclass(slots=True)
class Recording:
    """What a workload left on the tape, and what its senders know."""

    tape: Tape = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    failures: Counter[str] = field(default_factory=Counter)
    """Which errors appends met before they were repeated."""

    def failed(self, error: str) -> None:
        self.failures[error] += 1


@contextmanager
def recorder(tape: Tape, syncs: Syncs) -> Iterator[ConnectSqlite]:
    """A `connect` whose files are recorded, for as long as the block lasts."""
    vfs = Recorder(f"recorder-{next(NUMBERS)}", tape, syncs)
    try:
        yield connects_through(vfs.name)
    finally:
        vfs.unregister()


async def record(path: Path, seed: int, *, synchronous: Synchronous = "FULL", syncs: Syncs | None = None) -> Recording:
    """Run several senders on a few channels of one store, which is closed and opened again half-way."""
    recording, syncs = Recording(), syncs or Syncs()
    with recorder(recording.tape, syncs) as connect:
        for half in range(2):
            store = await SqliteStore.open(path, connect=connect, synchronous=synchronous, settle_after=SETTLE_AFTER)
            try:
                syncs.armed = True
                await send_all(store, recording, random.Random(f"{seed}/{half}"))
            finally:
                syncs.armed = False
                await store.close()
    return recording


async def send_all(store: SqliteStore, recording: Recording, rng: random.Random) -> None:
    async with asyncio.TaskGroup() as senders:
        for number in range(SENDERS):
            plan = [[rng.choice(SIZES) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(APPENDS)]
            senders.create_task(send(store, recording, f"{rng.random()}/{number}", plan))


async def send(store: SqliteStore, recording: Recording, name: str, plan: list[list[int]]) -> None:
    """Post one batch after the other, over all channels in turn, and put every acknowledgement on the tape."""
    ledger = recording.ledger
    for turn, sizes in enumerate(plan):
        channel = f"channel-{turn % CHANNELS}"
        drafts = [ledger.draft(channel, f"{name}/{turn}/{place}", size) for place, size in enumerate(sizes)]
        appended = await post(store, drafts, await store.head(channel), note=recording.failed)
        recording.tape.append(Acknowledged(ledger.acknowledge(drafts, appended)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an image holds: each envelope's place if it can be trusted, or what is wrong with it."""

    places: dict[str, int]
    wrong: list[str]


async def inspect(image: Image, ledger: Ledger, folder: Path) -> Verdict:
    """Open an image as a restarted hub would, read all of it, go on with it, and let SQLite check its structure."""
    put(image.files, folder)
    try:
        # Nothing is cut off here, so nothing need be synced.
        store = await SqliteStore.open(folder / FILE, synchronous="NORMAL")
        try:
            found = await contents(store, ledger.channels)
            last = Ledger().draft(ledger.channels[0], "afterwards", SIZES[0])
            await post(store, [last], len(found[last.channel_id]))
        finally:
            await store.close()
    except (AntiphonError, AssertionError) as error:
        return Verdict({}, [f"{type(error).__name__}: {error}"])
    return Verdict(places_of(found), faults(found, ledger.sent) + integrity(folder / FILE))


def put(files: Files, folder: Path) -> None:
    """Make a folder hold these files and nothing else."""
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
