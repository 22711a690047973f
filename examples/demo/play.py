"""The demonstration as its watcher runs it: two processes, a kill between them, and a look into the file.

Rule 1: the watcher never writes to the store. What it claims of the file it has read there itself.
Rule 2: what counts as acknowledged is what came through the pipe, also what is found in it after the kill.
Rule 3: the watcher is the bank. It has a ledger of its own, which no kill touches, and honours keys.
Rule 4: no process is left behind, also on errors.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import beats
import msgspec
from beats import AnyBeat, Called, Pays, Said, Wired
from clerk import journal
from story import CLERK, WIRE_EVENT

from antiphon.cli.log_command import follow_log
from antiphon.cli.store_options import open_store_to_read
from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_TEXT
from antiphon.core.execution_events import CallStarted
from antiphon.store.protocol import Store

ENOUGH = 101
"""How many items of the wire are seen acknowledged before the kill: mostly, the first of a batch and not the last."""
PATIENCE = 10.0
"""How many seconds the watcher waits for the next beat."""
TENANT = "default"

Tell = Callable[[AnyBeat], None]
Acknowledgement = Said | Wired
Contact = Called | Pays


class DemoFailed(AntiphonError):
    """The demonstration did not come to its end. What the hub's process wrote to standard error says why."""


class Stage:
    """A process that plays one act."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def cue(self, word: str = beats.GO_ON) -> None:
        """Let it go on, or have the bank's answer."""
        stdin = self._process.stdin
        assert stdin is not None, "it was started with a pipe"
        stdin.write(f"{word}\n".encode())
        await stdin.drain()

    async def beat(self) -> AnyBeat | None:
        """What happened next; None if it has ended."""
        stdout = self._process.stdout
        assert stdout is not None, "it was started with a pipe"
        try:
            async with asyncio.timeout(PATIENCE):
                line = await stdout.readline()
        except TimeoutError:
            raise DemoFailed(f"the hub's process said nothing for {PATIENCE:g} seconds") from None
        return _read(line) if line.endswith(b"\n") else None

    async def kill(self) -> int:
        """End it with the signal that no process can answer, and give its exit code."""
        self._process.send_signal(signal.SIGKILL)
        return await self._process.wait()

    async def leave(self) -> int:
        """Wait until it has ended by itself."""
        return await self._process.wait()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None


@asynccontextmanager
async def staged(act: str, url: str) -> AsyncIterator[Stage]:
    """A process that plays this act, and that is gone at the end."""
    file = str(Path(__file__).with_name("newsroom.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, file, act, url, stdin=PIPE, stdout=PIPE)
    stage = Stage(process)
    try:
        yield stage
    finally:
        if stage.running:
            await stage.kill()


class Play:
    """Both acts, told beat by beat."""

    def __init__(self, url: str, tell: Tell, *, pace: float) -> None:
        self._url, self._tell, self._pace = url, tell, pace
        self._acknowledged: list[Acknowledgement] = []
        self._contacts: list[Contact] = []
        self._ledger: dict[str, Pays] = {}
        self.desk, self.errand = "", ""
        """The ids of the discussion, and of the channel in which the clerk has her turn; known when they are opened."""

    async def run(self) -> None:
        """Play both acts."""
        await self._first_act()
        await self._pause()
        await self._second_act()

    async def _first_act(self) -> None:
        process, items = 0, 0
        async with staged("begin", self._url) as stage:
            while items < ENOUGH:
                match await self._next(stage):
                    case beats.Began(process=process):
                        continue
                    case beats.Opened(type="discussion", channel_id=channel):
                        self.desk = channel
                    case beats.Opened(participants=[_, guest], channel_id=channel) if guest == CLERK:
                        self.errand = channel
                    case beats.Wired():
                        items += 1
                    case None:
                        raise DemoFailed(f"the first process ended early, with exit code {await stage.leave()}")
            code = await stage.kill()
            while (beat := await stage.beat()) is not None:
                self._note(beat)
        self._tell(beats.Killed(process, code, self._sequences()))

    async def _second_act(self) -> None:
        before = len(self._contacts)
        async with staged("resume", self._url) as stage:
            while (beat := await self._next(stage)) is not None:
                match beat:
                    case beats.Began():
                        await self._compare()
                    case beats.Pays():
                        await self._pause()
                        await stage.cue(beats.BOOKED)
                    case beats.Closed(channel_id=channel) if channel == self.errand:
                        await self._account(before)
            code = await stage.leave()
        if code:
            raise DemoFailed(f"the second process ended early, with exit code {code}")

    async def _next(self, stage: Stage) -> AnyBeat | None:
        """The next beat that is worth telling. A process that waits is cued, in good time."""
        while isinstance(beat := await stage.beat(), beats.Waits):
            await self._pause()
            await stage.cue()
        if beat is not None:
            self._note(beat)
            self._tell(beat)
        if isinstance(beat, Pays):
            self._tell(self._book(beat))
        return beat

    def _book(self, payment: Pays) -> beats.Booked:
        """Pay, unless that was done under this key before."""
        known = payment.key in self._ledger
        self._ledger.setdefault(payment.key, payment)
        return beats.Booked(payment.key, known, len(self._ledger))

    async def _pause(self) -> None:
        if self._pace:
            await asyncio.sleep(self._pace)

    def _note(self, beat: AnyBeat) -> None:
        if isinstance(beat, Said | Wired):
            self._acknowledged.append(beat)
        if isinstance(beat, Contact):
            self._contacts.append(beat)

    def _sequences(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for beat in self._acknowledged:
            found.setdefault(beat.channel_id, []).append(beat.sequence)
        return found

    async def _compare(self) -> None:
        async with open_store_to_read(self._url, TENANT) as store:
            recorded = [e for channel in self._sequences() for e in await _spoken(store, channel)]
        found = compared(self._acknowledged, recorded)
        self._tell(found)
        if not found.holds:
            raise DemoFailed("an acknowledged line is missing, or there twice: this must not happen; please report it")

    async def _account(self, before: int) -> None:
        async with open_store_to_read(self._url, TENANT) as store:
            log = [envelope async for envelope in follow_log(store, self.errand)]
        found = accounted(log, (self._contacts[:before], self._contacts[before:]), entries=len(self._ledger))
        self._tell(found)
        if not found.holds:
            raise DemoFailed("the calls of the turn do not fit its journal: this must not happen; please report it")


def compared(acknowledged: Sequence[Acknowledgement], recorded: Sequence[Envelope]) -> beats.Compared:
    """What was acknowledged, held against what participants have said according to the file."""
    promised = {(beat.channel_id, beat.sequence, beat.envelope_id) for beat in acknowledged}
    there = {(envelope.channel_id, envelope.sequence, envelope.envelope_id) for envelope in recorded}
    contents = Counter((e.channel_id, e.sender_id, to_json(e.event_data)) for e in recorded)
    return beats.Compared(
        acknowledged=len(promised),
        missing=len(promised - there),
        doubled=sum(times - 1 for times in contents.values()),
        unacknowledged=len(there - promised),
    )


def accounted(
    log: Sequence[Envelope], made: tuple[Sequence[Contact], Sequence[Contact]], *, entries: int
) -> beats.Accounted:
    """The calls that two processes have made, held against the journal that their turn has left."""
    first, second = made
    calls = journal(log)
    started = Counter((event.index, event.key) for e in log if isinstance(event := event_of(e), CallStarted))
    again = sum(times > 1 for times in started.values())
    return beats.Accounted(
        channel_id=log[0].channel_id,
        calls=len(calls),
        read=len(first) - again,
        again=again,
        anew=len(second) - again,
        payments=sum(isinstance(contact, Pays) for contact in (*first, *second)),
        entries=entries,
    )


async def _spoken(store: Store, channel: str) -> list[Envelope]:
    return [envelope async for envelope in follow_log(store, channel) if envelope.event_type in (EV_TEXT, WIRE_EVENT)]


def _read(line: bytes) -> AnyBeat:
    try:
        beat: AnyBeat = msgspec.json.decode(line, type=AnyBeat)
    except msgspec.DecodeError as error:
        raise DemoFailed(f"the hub's process wrote something else than a beat: {error}") from error
    return beat
