"""Forking a channel: reading what is to be copied, and making the new one."""

from __future__ import annotations

from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.core.events import Forked
from antiphon.core.forking import check_place, forked
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.step import Admitted
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk


async def fork_of(desk: Desk, live: LiveChannel, *, at: object, by: str) -> LiveChannel:
    """A new channel that begins as this one did, up to this sequence."""
    desk.check_open()
    if not isinstance(at, int) or isinstance(at, bool):
        raise UsageError(f"at is {shown(at)}; give the sequence of the last envelope to keep")
    prefix = await _read(live, min(at, live.state.sequence))
    check_place(prefix, at, live.laws)
    provenance = Forked(live.state.channel_id, at, by, prefix[-1].created_at)

    def begin(fold: Fold, laws: Laws, now: Instant) -> Admitted | None:
        if fold.state.sequence:
            return None
        return forked(fold, prefix, provenance, laws=laws, at=now, new_id=desk.new_id)

    return await desk.channels.create(desk.new_id(), live.laws, begin)


async def _read(live: LiveChannel, until: int) -> list[Envelope]:
    found: list[Envelope] = []
    while len(found) < until and (page := await live.read(len(found))):
        found.extend(page)
    return found[:until]
