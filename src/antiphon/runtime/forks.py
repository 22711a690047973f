"""Forking a channel: reading what is to be copied, and making the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.events import Created, Forked, event_of
from antiphon.core.forking import Copy, check_place, copying, forked, last_said
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.step import Admitted
from antiphon.core.words import shown, told
from antiphon.hub.live import LiveChannel
from antiphon.orchestration.lawbook import laws_for
from antiphon.runtime.desk import Desk


async def fork_of(desk: Desk, live: LiveChannel, *, at: object, by: str) -> LiveChannel:
    """A new channel that begins as this one did, up to this sequence."""
    desk.check_open()
    if not isinstance(at, int) or isinstance(at, bool):
        raise UsageError(f"at is {shown(at)}; give the sequence of the last envelope to keep")
    if not 1 <= at <= live.state.sequence:
        raise UsageError(f"at is {at}; the log has the sequences 1 to {live.state.sequence}")
    if live.state.erased:
        raise UsageError(f"channel {live.state.channel_id!r} was erased; there is nothing left to fork")
    prefix = await _read(live, at)
    created = event_of(prefix[0])
    assert isinstance(created, Created), "a log begins with the channel's creation"
    # Made anew, because what is left of a damaged channel has other laws; by a thread, because a graph may be large.
    laws = await asyncio.to_thread(laws_for, created.type, created.knobs)
    channel_id = desk.new_id()
    copy = await _in_slices(copying(channel_id, prefix, laws=laws, new_id=desk.new_id), live.state.channel_id)
    check_place(prefix, laws.fold(copy.fold, copy.last).state)
    provenance = Forked(live.state.channel_id, at, by, prefix[-1].created_at, last_said(prefix))

    def begin(fold: Fold, laws: Laws, now: Instant) -> Admitted | None:
        return None if fold.state.sequence else forked(copy, provenance, laws=laws, at=now, new_id=desk.new_id)

    return await desk.channels.create(channel_id, laws, begin)


async def _in_slices(work: Generator[None, None, Copy], origin: str) -> Copy:
    """What the work comes to. Others have the event loop whenever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            copy: Copy = end.value
            return copy
        except Exception as error:
            raise RulesInvalid(f"the rules of {origin!r} fail on its log: {told(error)}") from error
        await asyncio.sleep(0)


async def _read(live: LiveChannel, until: int) -> list[Envelope]:
    found: list[Envelope] = []
    while len(found) < until and (page := await live.read(len(found))):
        found.extend(page)
        await asyncio.sleep(0)  # a store in memory does not wait, and would hold the event loop for all pages
    return found[:until]
