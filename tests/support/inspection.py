"""Looking into a hub and its logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon import EV_TASK_STARTED, Envelope, Hub
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelCreated
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run


async def watched(clock: ManualClock) -> None:
    """Return once the hub has looked at what is due and waits for this clock."""
    async with asyncio.timeout(10):
        while not clock._waits:
            await let_others_run(1)


async def fold_of(hub: Hub, channel_id: str) -> Fold:
    """The fold a hub goes by: the state, and what the adapter and the guards remember."""
    live = await hub.core.live(channel_id)
    await live.wait_idle()
    return live.fold


def shown(log: Sequence[Envelope]) -> list[tuple[str, str]]:
    """A log as pairs of sender and the last words of the event type."""
    return [(envelope.sender_id, envelope.event_type.split(".", 1)[1]) for envelope in log]


async def logs_from(hub: Hub, channel_id: str) -> list[list[Envelope]]:
    """The log of a channel, then those of the tasks that were given from it and begun, each before its own."""
    log, known = await hub.log(channel_id), {row.channel_id for row in await hub.channels()}
    given = [envelope.event_data["task"] for envelope in log if envelope.event_type == EV_TASK_STARTED]
    return [log, *[below for task in given if task in known for below in await logs_from(hub, str(task))]]


def laws_of(log: Sequence[Envelope]) -> Ruleset:
    """The ruleset that a log's first envelope names."""
    created = event_of(log[0])
    assert isinstance(created, ChannelCreated), "a log begins with the channel's creation"
    return ruleset_for(created.type, created.knobs)


def folded(log: Sequence[Envelope]) -> Fold:
    """The fold of a whole log."""
    ruleset = laws_of(log)
    return ruleset.fold_all(ruleset.begin(log[0].channel_id), log)
