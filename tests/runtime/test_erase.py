"""Erasing a channel: its content is nowhere any more, and everything else is as it was."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    Denied,
    Envelope,
    Erasure,
    Hub,
    Reply,
    Request,
    UnknownChannel,
    UsageError,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.cli.store_options import open_store_to_read
from antiphon.cli.verify_command import verify_url
from antiphon.core.envelope import is_tombstone
from antiphon.runtime.channel import Channel
from antiphon.runtime.participant import Participant
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import SqliteConnection, SqliteCursor, SqlValues, connect_sqlite
from tests.support.given_tasks import asking, echo

MARK = "Xq7-marker-text-Zz"
BOTH = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@pytest.fixture
async def hub(kind: str, tmp_path: Path) -> AsyncIterator[Hub]:
    async with Hub.open("memory:" if kind == "memory" else f"sqlite:///{tmp_path}/team.db") as opened:
        yield opened


def found_in(folder: Path, text: str = MARK) -> list[str]:
    """The files in which a text is."""
    return [file.name for file in sorted(folder.iterdir()) if text.encode() in file.read_bytes()]


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"result of {what} {MARK}"


def team() -> Agent:
    async def model(request: Request) -> Reply:
        answered = bool(request.exchange)
        return says(f"reply {MARK}") if answered else calls("look", {"what": MARK})

    return Agent("support", model=model, tools=[look])


async def conversed(hub: Hub, texts: int = 0, mark: str = MARK) -> Channel:
    """A closed channel with content of every kind."""
    ann, _ = await seated(hub)
    channel = await ann.open(
        type="conversation", target="bob", context_vars={"begin": mark}, knobs={"writers": {mark: ["ann"]}}
    )
    for number in range(texts):
        await channel.send(f"{mark} {number}", message_id=f"{mark}-{number}")
    await channel.set_context(secret=mark)
    await channel.post(f"app.{mark}", {"note": mark, mark: 1}, audience=["bob"])
    await channel.close(reason=mark)
    return channel


async def seated(hub: Hub) -> tuple[Participant, Participant]:
    if "ann" not in hub.core.acceptors:
        await hub.register("ann")
        await hub.register("bob", kind="human")
    return Participant(hub.core, "ann", "service"), Participant(hub.core, "bob", "human")


@BOTH
async def test_tombstones_keep_sequence_time_and_type(hub: Hub) -> None:
    channel = await conversed(hub, texts=3)
    before = await hub.log(channel.channel_id)
    erasure = await hub.erase(channel.channel_id, by="dana")
    after = await hub.log(channel.channel_id)
    assert erasure == Erasure(channel.channel_id, len(before), [])
    types = ["antiphon.envelope.erased" if each.event_type == f"app.{MARK}" else each.event_type for each in before]
    assert "antiphon.envelope.erased" in types
    kept = [(each.sequence, each.created_at, kind, each.channel_id) for each, kind in zip(before, types, strict=True)]
    assert [(each.sequence, each.created_at, each.event_type, each.channel_id) for each in after] == kept
    assert all(map(is_tombstone, after))
    assert MARK not in str(after)
    assert not {each.envelope_id for each in before} & {each.envelope_id for each in after}
    assert {each.sender_id for each in after} == {"hub"}


@BOTH
async def test_an_erased_channel_is_listed_and_marked(hub: Hub) -> None:
    channel = await conversed(hub)
    await hub.erase(channel.channel_id)
    [row] = await hub.channels()
    assert (row.channel_id, row.type, row.status) == (channel.channel_id, "conversation", "closed")
    assert (row.close_reason, row.participants, row.creator_id) == ("erased", [], "")
    assert await hub.channels(participant="bob") == []
    await hub.core.store.rebuild()
    assert await hub.channels() == [row]
    assert [each async for each in hub.subscribe(channel.channel_id)] == await hub.log(channel.channel_id)


@BOTH
async def test_handles_that_were_held_before_know_nothing_any_more(hub: Hub) -> None:
    channel = await conversed(hub, texts=2)
    await hub.erase(channel.channel_id)
    state = channel.state
    assert (state.status, state.close_reason, state.erased) == ("closed", "erased", True)
    assert (state.context_vars, state.knobs, state.participants) == ({}, {}, {})
    assert await channel.closed() == "erased"
    with pytest.raises(Denied, match="channel_closed"):
        await channel.send("again", message_id=f"{MARK}-0")
    with pytest.raises(UsageError, match="was erased"):
        await channel.fork(at=3)
    _, bob = await seated(hub)
    with pytest.raises(UnknownChannel):
        await bob.channel(channel.channel_id)


@BOTH
async def test_erasing_twice_is_recorded_once(hub: Hub) -> None:
    channel = await conversed(hub)
    first = await hub.erase(channel.channel_id, by="dana")
    assert await hub.erase(channel.channel_id, by="somebody else") == first
    told = [each for each in await hub.log("system:audit") if each.event_type == "antiphon.channel.erased"]
    assert [each.event_data for each in told] == [
        {"channel_id": channel.channel_id, "records": first.records, "by": "dana"}
    ]


@BOTH
async def test_only_channels_that_have_ended_are_erased(hub: Hub) -> None:
    ann, _ = await seated(hub)
    channel = await ann.open(type="conversation", target="bob")
    with pytest.raises(Denied, match="close it first") as denied:
        await hub.erase(channel.channel_id)
    assert (denied.value.reason, denied.value.channel_id) == ("channel_open", channel.channel_id)
    with pytest.raises(UsageError, match="close it first"):
        await hub.core.store.erase(channel.channel_id)
    with pytest.raises(UnknownChannel):
        await hub.erase("nowhere")
    with pytest.raises(UsageError, match="hub's own"):
        await hub.erase("system:registry")
    with pytest.raises(UsageError, match="by is"):
        await hub.erase(channel.channel_id, by="")
    assert (await channel.send("still here")).event_type == EV_TEXT


@BOTH
async def test_what_was_not_read_yet_is_gone_from_inboxes(hub: Hub) -> None:
    channel = await conversed(hub, texts=2)
    other = await conversed(hub, texts=1, mark="other")
    _, bob = await seated(hub)
    await hub.erase(channel.channel_id)
    assert {each.channel_id for each in await read_inbox(bob)} == {other.channel_id}


async def read_inbox(participant: Participant) -> list[Envelope]:
    found: list[Envelope] = []
    pending = await participant.pending()
    async for envelope in participant.inbox():
        found.append(envelope)
        if len(found) == pending:
            break
    return found


@BOTH
async def test_tasks_are_erased_with_the_channel_they_were_given_from(hub: Hub) -> None:
    worker = Agent("worker", model=echo)
    boss = Agent("boss", model=asking(calls(delegate(worker).name, {"task": MARK})), tools=[delegate(worker)])
    reply = await boss.invoke(MARK, thread_id=MARK, hub=hub)
    [child] = [row.channel_id for row in await hub.channels() if row.channel_id != reply.channel_id]
    with pytest.raises(Denied, match="channel_open"):
        await hub.erase(reply.channel_id)
    await Channel(hub.core, await hub.core.live(reply.channel_id), "user").close()
    assert (await hub.erase(reply.channel_id)).tasks == [child]
    assert all(map(is_tombstone, await hub.log(child)))
    assert MARK not in str(await hub.log(child))


async def test_no_file_holds_anything_of_it(tmp_path: Path) -> None:
    folder, url = tmp_path / "data", f"sqlite:///{tmp_path}/data/team.db"
    folder.mkdir()
    async with Hub.open(url) as hub:
        agent = team()
        for number in range(3):
            await agent.invoke(f"{MARK} {number}", thread_id=MARK, message_id=f"{MARK}{number}", hub=hub)
        thread = (await agent.invoke("last", thread_id=MARK, hub=hub)).channel_id
        await Channel(hub.core, await hub.core.live(thread), "user").close(reason=MARK)
        channel = await conversed(hub, texts=1000)
        with pytest.raises(Denied):
            await channel.post(f"{MARK} is no type", {"x": MARK})
        kept = await conversed(hub, texts=100, mark="kept")
        untouched = await hub.log(kept.channel_id)
        assert found_in(folder)
        for each in (thread, channel.channel_id):
            await hub.erase(each)
        assert found_in(folder) == []
        assert hub.core.channels.loaded(thread) is None or not hub.core.channels.loaded(thread).state.context_vars
        assert await hub.log(kept.channel_id) == untouched
    assert found_in(folder) == []
    verdict = await verify_url(url)
    assert verdict.ok, verdict.problems
    async with Hub.open(url, engine=None) as hub:
        assert await hub.log(kept.channel_id) == untouched
        assert all(map(is_tombstone, await hub.log(channel.channel_id)))


async def test_a_file_written_without_overwriting_is_rewritten_once(tmp_path: Path) -> None:
    folder, url = tmp_path / "data", f"sqlite:///{tmp_path}/data/team.db"
    folder.mkdir()
    async with Hub.open(url) as hub:
        channel = await conversed(hub, texts=50)
    old = sqlite3.connect(folder / "team.db", isolation_level=None)  # as a version before would have left it
    old.execute("PRAGMA secure_delete = OFF")
    old.execute("CREATE TABLE scratch AS SELECT body FROM log")
    old.execute("DROP TABLE scratch")
    old.execute("DROP TABLE sweep")
    old.execute("PRAGMA user_version = 1")
    old.close()
    async with open_store_to_read(url, "default") as store:
        assert await store.head(channel.channel_id) > 50, "a store of the shape before is read as it is"
    async with Hub.open(url) as hub:
        await hub.erase(channel.channel_id)
        assert found_in(folder) == []
    assert (await verify_url(url)).ok


class Imaged:
    """A connection that keeps the files as they are before each of its statements that writes."""

    def __init__(self, inner: SqliteConnection, folder: Path, images: list[Path]) -> None:
        self._inner, self._folder, self._images = inner, folder, images
        self.close = inner.close

    def execute(self, sql: str, parameters: SqlValues = (), /) -> SqliteCursor:
        self._keep(sql)
        return self._inner.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[SqlValues], /) -> object:
        self._keep(sql)
        return self._inner.executemany(sql, parameters)

    def _keep(self, sql: str) -> None:
        if not sql.lstrip().startswith("SELECT"):
            image = self._folder.with_name(f"image-{len(self._images)}")
            image.mkdir()
            for part in ("team.db", "team.db-wal"):
                if (self._folder / part).exists():
                    shutil.copy(self._folder / part, image / part)
            self._images.append(image)


async def test_a_crash_at_any_write_leaves_all_or_nothing_and_a_repetition_completes_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with Hub.open(f"sqlite:///{folder}/team.db") as hub:
        channel_id = (await conversed(hub, texts=20)).channel_id
        whole = await hub.log(channel_id)
    images: list[Path] = []
    store = await SqliteStore.open(
        folder / "team.db", connect=lambda path, read: Imaged(connect_sqlite(path, read), folder, images)
    )
    hub = await Hub.over(store, engine=None)
    await hub.erase(channel_id)
    await hub.close()
    states = [await _recovered(image, channel_id, whole) for image in images]
    assert states == sorted(states, reverse=True), "once it is erased it stays erased"
    assert {*states} == {"whole", "erased"}


async def _recovered(image: Path, channel_id: str, whole: list[Envelope]) -> str:
    """Open what a crash has left: how it stands, once a repetition is known to complete it."""
    url = f"sqlite:///{image}/team.db"
    async with Hub.open(url, engine=None) as hub:
        log = await hub.log(channel_id)
        assert log == whole or all(map(is_tombstone, log))
        if log != whole:
            assert found_in(image) == []
        assert (await hub.erase(channel_id)).records == len(whole)
        assert found_in(image) == []
        erased = [each for each in await hub.log("system:audit") if each.event_type == "antiphon.channel.erased"]
        assert len(erased) == 1
    assert (await verify_url(url)).ok
    return "whole" if log == whole else "erased"


CHILD = """
import asyncio, os, sys
from antiphon import Hub
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import connect_sqlite

class Dying:
    def __init__(self, inner):
        self._inner = inner
    def __getattr__(self, name):
        return getattr(self._inner, name)
    def execute(self, sql, *args):
        if armed and sql == sys.argv[3]:
            os.kill(os.getpid(), 9)
        return self._inner.execute(sql, *args)

armed = False

async def main():
    global armed
    store = await SqliteStore.open(sys.argv[1], connect=lambda path, read: Dying(connect_sqlite(path, read)))
    hub = await Hub.over(store, engine=None)
    armed = True
    await hub.erase(sys.argv[2])

asyncio.run(main())
"""


async def test_a_process_that_is_killed_before_the_log_is_truncated_leaves_that_to_the_next(tmp_path: Path) -> None:
    folder, url = tmp_path / "data", f"sqlite:///{tmp_path}/data/team.db"
    folder.mkdir()
    async with Hub.open(url) as hub:
        channel_id = (await conversed(hub, texts=20)).channel_id
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, str(folder / "team.db"), channel_id, "PRAGMA wal_checkpoint(TRUNCATE)")
    )
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL
    assert found_in(folder), "the content is still in the file, which nothing was moved into"
    async with Hub.open(url, engine=None) as hub:
        assert found_in(folder) == []
        assert all(map(is_tombstone, await hub.log(channel_id)))
    assert (await verify_url(url)).ok


def content_beside_the_store() -> bool:
    """Whether a file that was deleted, but is open in this process, holds the content."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(link) and MARK.encode() in link.read_bytes():
                return True
        except OSError:  # it was closed meanwhile
            continue
    return False


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked at where Linux shows them")
async def test_no_temporary_file_holds_what_is_erased(tmp_path: Path) -> None:
    found: list[bool] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            found.append(content_beside_the_store())

    async with Hub.open(f"sqlite:///{tmp_path}/team.db", engine=None) as hub:
        ann, _ = await seated(hub)
        channel = await ann.open(target="bob")
        for _ in range(400):
            await channel.send(MARK * 1000)
        await channel.close()
        looking = threading.Thread(target=look)
        looking.start()
        try:
            await hub.erase(channel.channel_id)
        finally:
            over.set()
            looking.join()
    assert found
    assert not any(found)
