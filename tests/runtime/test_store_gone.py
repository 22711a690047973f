"""Waiting calls end with `StoreGone` when the file of the store goes away, although nothing is read or written."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import Agent, Channel, Envelope, Hub, Participant, Reply, Request, StoreGone, TransitionGraph, says
from antiphon.core.guard import Later
from antiphon.engines.local import LocalEngine
from antiphon.store.sqlite import SqliteStore
from tests.support.given_tasks import giver
from tests.support.waiting import let_others_run

PATIENCE = 30.0
"""Real seconds after which something never comes."""
POLL = 0.005
LINE = TransitionGraph.sequence(["ann", "bob"])


class Thinker:
    """A model that thinks until it may answer."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        return says("thought")


class Scene:
    """A hub over a file, with ann and dana, who speak, and bob, an agent who thinks."""

    def __init__(self, path: Path, hub: Hub, model: Thinker) -> None:
        self.path, self.hub, self.model = path, hub, model
        self.bob = Agent("bob", model=model)
        self.seated: dict[str, Participant] = {}

    async def begin(self) -> None:
        for name, kind in {"ann": "service", "dana": "human"}.items():
            self.seated[name] = await self.hub.register(name, kind=kind)
        await self.hub.register(self.bob)

    async def channel(self) -> Channel:
        """A channel in which nothing happens."""
        return await self.seated["ann"].open(target="dana")

    async def asked(self) -> Channel:
        """A workflow in which bob has the turn, and thinks."""
        channel = await self.seated["ann"].open(type="workflow", target=["bob", "dana"], knobs={"graph": LINE})
        await channel.send("well?")
        await self.model.asked.wait()
        return channel

    def is_watched(self) -> bool:
        """Whether a reader waits for a channel or an inbox to grow."""
        feed = self.hub.core.feed
        return bool(feed._watchers or feed._inbox_watchers)


@asynccontextmanager
async def scene(path: Path) -> AsyncIterator[Scene]:
    model = Thinker()
    store = await SqliteStore.open(path)
    hub = await Hub.over(store)
    here = Scene(path, hub, model)
    try:
        await here.begin()
        yield here
    finally:
        model.may_answer.set()
        async with asyncio.timeout(PATIENCE):
            await here.hub.close()


async def so(condition: Callable[[], bool], promise: str) -> None:
    """Return when this is so; if it never is, the promise is broken."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < PATIENCE, promise
        await asyncio.sleep(POLL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "team.db"


async def _all(items: AsyncIterator[object]) -> list[object]:
    return [item async for item in items]


async def _invoke(here: Scene) -> object:
    return await here.bob.invoke("well?", hub=here.hub)


async def _stream_invoke(here: Scene) -> object:
    return await _all(here.bob.stream_invoke("well?", hub=here.hub))


async def _stream_tokens(here: Scene) -> object:
    return await _all(here.bob.stream_invoke("well?", hub=here.hub, tokens=True))


async def _closed(here: Scene) -> object:
    return await (await here.channel()).closed()


async def _inbox(here: Scene) -> object:
    return await _all(here.seated["dana"].inbox())


async def _subscribe(here: Scene) -> object:
    return await _all(here.hub.subscribe((await here.channel()).channel_id))


async def _signals(here: Scene) -> object:
    return await _all(here.hub.signals((await here.channel()).channel_id))


async def _invited(here: Scene) -> object:
    never = asyncio.Event()

    async def decide(invite: Envelope) -> bool:
        return await never.wait()

    await here.hub.register("eve", accept=decide)
    return await here.seated["ann"].open(target="eve")


Wait = Callable[[Scene], Awaitable[object]]
WAITS: list[Wait] = [
    _invoke,
    _stream_invoke,
    _stream_tokens,
    _closed,
    _inbox,
    _subscribe,
    _signals,
    _invited,
]


def _deleted(path: Path) -> None:
    path.unlink()


def _replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def _log_deleted(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


async def _refused(waiting: Awaitable[object]) -> None:
    with pytest.raises(StoreGone, match="deleted, replaced or moved away"):
        await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.parametrize("wait", WAITS)
async def test_what_waits_when_the_file_is_deleted_ends_with_store_gone(path: Path, wait: Wait) -> None:
    async with scene(path) as here:
        waiting = asyncio.ensure_future(wait(here))
        await so(here.is_watched, "it waits")
        await let_others_run()
        _deleted(path)
        await _refused(waiting)
        await _refused(wait(here))


@pytest.mark.parametrize("change", [_replaced, _log_deleted])
async def test_what_waits_when_the_file_is_replaced_or_its_log_deleted_ends_with_store_gone(
    path: Path, change: Callable[[Path], None]
) -> None:
    async with scene(path) as here:
        waits = [asyncio.ensure_future(wait(here)) for wait in (_invoke, _closed, _inbox)]
        await asyncio.wait_for(here.model.asked.wait(), PATIENCE)
        change(path)
        for waiting in waits:
            await _refused(waiting)


@pytest.mark.parametrize("message_id", [None, "once"])
async def test_a_draft_that_waits_for_the_end_of_a_turn_is_refused(path: Path, message_id: str | None) -> None:
    async with scene(path) as here:
        channel = await here.asked()
        live = channel._live
        dana = await here.seated["dana"].channel(channel.channel_id)
        words = [asyncio.create_task(dana.send("mind the step", message_id=message_id)) for _ in range(2)]
        await so(lambda: len(live._deferred) + len(live._duplicates) == 2, "both wait")
        _deleted(path)
        for word in words:
            await _refused(word)
        await _refused(dana.send("not even now"))


async def test_a_draft_that_is_decided_on_after_the_loss_does_not_begin_to_wait(path: Path) -> None:
    async with scene(path) as here:
        live = (await here.channel())._live
        waiting = asyncio.create_task(_inbox(here))
        _deleted(path)
        await _refused(waiting)
        await _refused(live.submit(lambda fold, ruleset, at: Later()))


async def test_a_turn_that_waits_for_a_task_is_given_up(path: Path) -> None:
    async with scene(path) as here:
        engine = here.hub.core.engine
        assert isinstance(engine, LocalEngine)
        boss = giver(here.bob)
        answer = asyncio.create_task(boss.invoke("do it", hub=here.hub))
        await asyncio.wait_for(here.model.asked.wait(), PATIENCE)
        assert engine.busy == 2
        _deleted(path)
        await _refused(answer)
        await so(lambda: engine.busy == 1, "only the model of the task still thinks")


async def test_another_hub_goes_on(path: Path) -> None:
    async with scene(path) as here, scene(path.with_name("other.db")) as other:
        mine = asyncio.create_task(_invoke(here))
        others = asyncio.create_task(_invoke(other))
        channel = await other.channel()
        ended = asyncio.create_task(channel.closed())
        for each in (here, other):
            await asyncio.wait_for(each.model.asked.wait(), PATIENCE)
        _deleted(path)
        await _refused(mine)
        assert not others.done()
        assert not ended.done()
        other.model.may_answer.set()
        assert (await asyncio.wait_for(others, PATIENCE)).text == "thought"
        await channel.close("over")
        assert await asyncio.wait_for(ended, PATIENCE) == "over"


async def test_what_was_recorded_before_the_loss_is_still_read(path: Path) -> None:
    async with scene(path) as here:
        channel = await here.channel()
        envelopes = here.hub.subscribe(channel.channel_id)
        seen = [await anext(envelopes)]
        said = await channel.send("recorded")
        _deleted(path)
        with pytest.raises(StoreGone):
            await channel.send("not recorded")
        while seen[-1] != said:
            seen.append(await asyncio.wait_for(anext(envelopes), PATIENCE))
        await _refused(anext(envelopes))
