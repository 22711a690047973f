"""A hub whose models and tools fail when they are told to, and what its logs say of breakers and retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from antiphon import Agent, Envelope, Hub, ModelUnavailable, Reply, Request, TurnFailed, says
from antiphon.core.envelope import Json
from antiphon.core.protection_events import EV_BREAKER_CHANGED
from antiphon.testing import ManualClock
from tests.support.waiting import soon

STEP_SECONDS = 0.5


class Provider:
    """A model that is down, or not."""

    def __init__(self, *, down: bool = True, status: int | None = 503) -> None:
        self.down, self.asked, self.status = down, 0, status

    def named(self, name: str) -> Callable[[Request], Awaitable[Reply]]:
        async def model(request: Request) -> Reply:
            self.asked += 1
            if self.down:
                raise ModelUnavailable("down", status=self.status)
            return says("here")

        model.__name__ = name
        return model


async def outcome_of(agent: Agent, hub: Hub, clock: ManualClock, **options: object) -> str:
    """How a turn of the agent ends: what it says, why it stopped, or why it failed. Time passes meanwhile."""
    asking = asyncio.ensure_future(agent.invoke("Go", hub=hub, **options))  # type: ignore[arg-type]

    async def pass_time() -> None:
        while not asking.done():
            await clock.advance(STEP_SECONDS)
            await asyncio.sleep(0)

    await soon(pass_time())
    try:
        reply = asking.result()
    except TurnFailed as failed:
        return failed.reason
    return reply.stopped or reply.text


async def changes_in(hub: Hub, channel_id: str) -> list[tuple[str, str, str]]:
    """The recorded changes of breakers: which, from what, to what."""
    data = [each.event_data for each in await events_in(hub, channel_id, EV_BREAKER_CHANGED)]
    return [(str(each["scope"]), str(each["source"]), str(each["target"])) for each in data]


async def events_in(hub: Hub, channel_id: str, event_type: str) -> list[Envelope]:
    """The envelopes of a type in a log."""
    return [each for each in await hub.log(channel_id) if each.event_type == event_type]


async def data_in(hub: Hub, channel_id: str, event_type: str) -> list[Json]:
    """The same, their data."""
    return [each.event_data for each in await events_in(hub, channel_id, event_type)]
