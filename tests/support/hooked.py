"""Hooks of tests, and what a channel holds after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon import Channel, HookEvent, HookExecution, HookResult, HookTrigger, Hub
from antiphon.core.envelope import Json
from antiphon.core.step import hub_draft
from antiphon.engines.local import LocalEngine
from antiphon.hub.admission import RecordDraft
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import NEVER_COMES, soon


@asynccontextmanager
async def hub_over(store: KeptStore, clock: ManualClock) -> AsyncIterator[Hub]:
    """A hub over a store that outlives it. It gives turns more time to end than a test has."""
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=10 * NEVER_COMES))
    try:
        yield hub
    finally:
        await soon(hub.close())


def hook_before(hub: Hub, function: Callable[[HookEvent], object], **options: int | bool | float) -> None:
    hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC, **options)(function)  # type: ignore[arg-type]  # the options as given


def hide_pin(event: HookEvent) -> HookResult | None:
    """Takes a PIN out of what is said, and refuses what is rude."""
    said = str(event.data.get("text", event.data.get("body")))
    if "rude" in said:
        return HookResult.block("be polite")
    return HookResult.modify(said.replace("1234", "****")) if "1234" in said else None


async def texts(hub: Hub, channel: Channel) -> list[object]:
    """What was said, in order."""
    log = await hub.log(channel.channel_id)
    return [each.event_data.get("text", each.event_data.get("body")) for each in log if "msg" in each.event_type]


async def facts(hub: Hub, channel: Channel, event_type: str) -> list[Json]:
    return [each.event_data for each in await hub.log(channel.channel_id) if each.event_type == event_type]


async def record(hub: Hub, channel: Channel, event_type: str, data: Json) -> None:
    """Record a fact in the hub's name, as the rules of a routed channel do."""
    live = await hub.core.live(channel.channel_id)
    await live.submit(RecordDraft(hub_draft(event_type, data), hub.core.new_id))


async def never(event: HookEvent) -> None:
    await asyncio.Event().wait()


def raises(event: HookEvent) -> None:
    raise RuntimeError("no service; api_key=abcdefgh12345678")


def leaves(event: HookEvent) -> None:
    raise SystemExit(3)
