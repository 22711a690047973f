"""Opening a channel: what its creator says first, and the key by which it is found again.

Rule 1: the first words are recorded in one batch with the opening, or not at all.
Rule 2: a key names one channel of its creator for ever. Another content under the same key is a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from antiphon.core.codec import Malformed, check_json, same
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, UnknownChannel, UsageError
from antiphon.core.events import EV_CHANNEL_CREATED, EV_CHANNEL_OPENED, Created, Json, data_of, event_of
from antiphon.core.guard import Deny
from antiphon.core.ids import derived_id
from antiphon.core.state import State
from antiphon.core.step import first_words
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk
from antiphon.runtime.permission import denial_of_opening

LONGEST_KEY = 200
NAMES = {"participants": "target"}
"""The fields of a creation that `open` knows by another name."""


async def opened(
    desk: Desk, created: Created, *, say: str | None, key: str | None, may_run: bool = True
) -> LiveChannel:
    """The channel, made or found by its key, once all have accepted; `Denied` if it was not opened.

    Without `may_run` a new one is refused if an agent would get a turn by it.
    """
    if say is not None and not isinstance(say, str):
        raise UsageError(f"say is {shown(say)}; give what is to be said first, as a text, or None")
    channel_id = desk.new_id() if key is None else derived_id("channel", created.creator, _checked(key))
    first = None if say is None else first_words(State(channel_id=channel_id, creator_id=created.creator), say)
    if first is not None and key is None:  # it is never looked for, so it gets an id that sorts
        first = replace(first, envelope_id="")
    make = partial(_made, desk, created, channel_id, first=first, may_run=may_run)
    live = await (make() if key is None else _keyed(desk, created, channel_id, first=first, make=make))
    await desk.until(live, ("active", "closed", "expired"))
    state = live.state
    if state.status != "active" and state.turn_count == 0 and not await _was_open(live):
        raise Denied(state.close_reason or "hub_closed", state.channel_id, "the channel was not opened")
    return live


async def _made(desk: Desk, created: Created, channel_id: str, *, first: Envelope | None, may_run: bool) -> LiveChannel:
    """A new channel; `Denied` if it would give an agent a turn and may not."""
    denial = None if may_run else await _denial(desk, created, first)
    if denial is not None:
        draft = Envelope(sender_id=created.creator, event_type=EV_CHANNEL_CREATED)
        raise await desk.audit.refusal(Denied(denial.reason, detail=denial.detail), draft)
    return await desk.create(created, channel_id, first=first)


async def _denial(desk: Desk, created: Created, first: Envelope | None) -> Deny | None:
    """Why a sender without the scope `invoke` may not open this; None if no agent gets a turn by it."""
    laws = await desk.examination.laws_of(created)  # a large graph is never read on the event loop
    return denial_of_opening(created, first, laws=laws, at=desk.clock.now(), new_id=desk.new_id)


async def _keyed(
    desk: Desk, created: Created, channel_id: str, *, first: Envelope | None, make: Callable[[], Awaitable[LiveChannel]]
) -> LiveChannel:
    """The channel of a key, made if it is not there yet."""
    async with desk.locks.setdefault(channel_id, asyncio.Lock()):
        try:
            live = await desk.live(channel_id)
        except UnknownChannel:
            live = await make()
    difference = await _difference(desk, live, created, first=first)
    if difference is not None:
        detail = f"this key was used before, with another {difference}; use a new key for another channel"
        draft = Envelope(sender_id=created.creator, event_type=EV_CHANNEL_CREATED)
        raise await desk.audit.refusal(Denied("conflict", channel_id, detail), draft)
    return live


async def _difference(desk: Desk, live: LiveChannel, created: Created, *, first: Envelope | None) -> str | None:
    """What the channel of a key was opened with that differs from what is wanted now; None if nothing does."""
    recorded = event_of((await live.read(0))[0])
    before: Json = data_of(recorded) if isinstance(recorded, Created) else {}
    wanted = data_of(created)
    field = next((name for name in wanted if not same(wanted[name], before.get(name))), None)
    if field is not None:
        return NAMES.get(field, field)
    if first is None:
        return None
    text = first.event_data["text"]
    found = (await desk.store.find(live.state.channel_id, [first.envelope_id])).get(first.envelope_id)
    said = live.state.prepared if found is None else found.event_data.get("text")
    return None if said == text else "say"


async def _was_open(live: LiveChannel) -> bool:
    """Whether everybody had accepted before the channel ended."""
    cursor = 0
    while page := await live.read(cursor):
        if any(each.event_type == EV_CHANNEL_OPENED for each in page):
            return True
        cursor = page[-1].sequence
    return False


def _checked(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise UsageError(f"key is {shown(key)}; give a text of 1 to {LONGEST_KEY} characters, or None")
    try:
        check_json(key)
    except Malformed as error:
        raise UsageError(f"key: {error}") from error
    return key
