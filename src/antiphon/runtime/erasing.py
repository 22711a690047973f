"""Erasing channels: their content, and the content of the tasks that were given from them.

Rule 1: only channels that have ended are erased, and none of them unless all of its tasks have ended too.
Rule 2: tasks are erased before the channel that names them. After a crash the same call finds what is left.
Rule 3: no rules are asked for: a channel of an adapter that is not known here can be erased too.
"""

from __future__ import annotations

import msgspec

from antiphon.core.errors import Denied, UnknownChannel, UsageError
from antiphon.core.events import EV_TASK_STARTED, Created, TaskGiven, event_of
from antiphon.core.state import ENDED
from antiphon.core.words import shown
from antiphon.runtime.desk import Desk
from antiphon.runtime.participant import TASK
from antiphon.store.rows import SYSTEM

LONGEST_NAME = 200


class Erasure(msgspec.Struct, frozen=True):
    """What was erased with one channel."""

    channel_id: str
    records: int
    """How many records are tombstones now, those of tasks included."""
    tasks: list[str] = []
    """The channels of tasks that were erased with it."""


async def erase_channel(desk: Desk, channel_id: str, *, by: str) -> Erasure:
    """Erase a channel that has ended, and its tasks; `Denied` with the reason `channel_open` if one of them has not."""
    if not isinstance(by, str) or not by or len(by) > LONGEST_NAME:
        raise UsageError(f"by is {shown(by)}; give the name of who erases, 1 to {LONGEST_NAME} characters")
    await desk.check_exists(channel_id)
    if channel_id.startswith(SYSTEM):
        raise UsageError(f"channel {channel_id!r} is the hub's own and cannot be erased")
    family: dict[str, None] = {}
    await _gather(desk, channel_id, family)
    records = 0
    for each in family:
        erased = await desk.channels.erase(each)
        desk.forget(each)
        await desk.audit.erased(each, erased, by)
        records += erased
    return Erasure(channel_id, records, [each for each in family if each != channel_id])


async def _gather(desk: Desk, channel_id: str, family: dict[str, None]) -> None:
    """Add a channel behind its tasks. `Denied` if it has not ended."""
    row = await desk.store.row(channel_id)
    status = "unknown" if row is None else row.status
    if status not in ENDED:
        raise Denied("channel_open", channel_id, f"it cannot be erased: its status is {status!r}; close it first")
    for task in await _tasks_of(desk, channel_id):
        if task not in family:
            await _gather(desk, task, family)
    family[channel_id] = None


async def _tasks_of(desk: Desk, channel_id: str) -> list[str]:
    """The channels of the tasks that were given from a channel. A fork names those of its origin, which are not its."""
    found: list[str] = []
    after = 0
    while page := (await desk.store.read(channel_id, after=after)).envelopes:
        after = page[-1].sequence
        for envelope in page:
            event = event_of(envelope) if envelope.event_type == EV_TASK_STARTED else None
            if isinstance(event, TaskGiven) and await _parent_of(desk, event.task) == channel_id:
                found.append(event.task)
    return found


async def _parent_of(desk: Desk, task: str) -> str | None:
    try:
        await desk.check_exists(task)
    except UnknownChannel:  # the process ended before it was made
        return None
    first = (await desk.store.read(task, limit=1)).envelopes[0]
    created = event_of(first)
    given = created.knobs.get(TASK) if isinstance(created, Created) else None
    return str(given.get("parent")) if isinstance(given, dict) else None
