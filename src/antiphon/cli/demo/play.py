"""The demonstration as its watcher runs it: two processes, a kill between them, and a look into the file.

Rule 1: the watcher never writes to the store. What it claims of the file it has read there itself.
Rule 2: what counts as acknowledged is what came through the pipe, also what is found in it after the kill.
Rule 3: whatever happens, no process is left behind.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from antiphon.cli.demo import beats
from antiphon.cli.demo.beats import AnyBeat, Said, Wired
from antiphon.cli.demo.story import WIRE_EVENT
from antiphon.cli.log import followed
from antiphon.cli.options import reading
from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError
from antiphon.core.events import EV_TEXT
from antiphon.store.protocol import Store

ENOUGH = 101
"""How many items of the wire are seen acknowledged before the kill: mostly, the first of a batch and not the last."""
PATIENCE = 10.0
"""How many seconds the watcher waits for the next beat."""
TENANT = "default"

Tell = Callable[[AnyBeat], None]
Acknowledgement = Said | Wired


class DemoFailed(AntiphonError):
    """The demonstration did not come to its end. What the hub's process wrote to standard error says why."""


class Stage:
    """A process that plays one act."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def cue(self) -> None:
        """Let it go on."""
        stdin = self._process.stdin
        assert stdin is not None, "it was started with a pipe"
        stdin.write(b"go on\n")
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
    module = f"{__package__}.hub"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, act, url, stdin=PIPE, stdout=PIPE)
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

    async def run(self) -> str:
        """Play both acts, and give the id of the discussion."""
        desk = await self._first_act()
        await self._pause()
        await self._second_act()
        return desk

    async def _first_act(self) -> str:
        desk, process, items = "", 0, 0
        async with staged("begin", self._url) as stage:
            while items < ENOUGH:
                match await self._next(stage):
                    case beats.Began(process=process):
                        continue
                    case beats.Opened(type="discussion", channel_id=desk):
                        continue
                    case beats.Wired():
                        items += 1
                    case None:
                        raise DemoFailed(f"the first process ended early, with exit code {await stage.leave()}")
            code = await stage.kill()
            while (beat := await stage.beat()) is not None:
                self._note(beat)
        self._tell(beats.Killed(process, code, self._sequences()))
        return desk

    async def _second_act(self) -> None:
        looked = False
        async with staged("resume", self._url) as stage:
            while (beat := await self._next(stage)) is not None:
                if isinstance(beat, beats.Began) and not looked:
                    await self._compare()
                    looked = True
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
        return beat

    async def _pause(self) -> None:
        if self._pace:
            await asyncio.sleep(self._pace)

    def _note(self, beat: AnyBeat) -> None:
        if isinstance(beat, Said | Wired):
            self._acknowledged.append(beat)

    def _sequences(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for beat in self._acknowledged:
            found.setdefault(beat.channel_id, []).append(beat.sequence)
        return found

    async def _compare(self) -> None:
        async with reading(self._url, TENANT) as store:
            recorded = [e for channel in self._sequences() for e in await _spoken(store, channel)]
        found = compared(self._acknowledged, recorded)
        self._tell(found)
        if not found.holds:
            raise DemoFailed("an acknowledged line is missing, or there twice: this must not happen; please report it")


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


async def _spoken(store: Store, channel: str) -> list[Envelope]:
    return [envelope async for envelope in followed(store, channel) if envelope.event_type in (EV_TEXT, WIRE_EVENT)]


def _read(line: bytes) -> AnyBeat:
    try:
        beat: AnyBeat = msgspec.json.decode(line, type=AnyBeat)
    except msgspec.DecodeError as error:
        raise DemoFailed(f"the hub's process wrote something else than a beat: {error}") from error
    return beat
