"""Channels over HTTP: to list, open, read, follow, speak in and end.

Rule 1: a participant sees its own channels, and of them what it may see. Everything else is not there. An operator, who
        asks for it by name, sees all.
Rule 2: whatever is said is said by whoever the key speaks for.
Rule 3: what would give an agent a turn needs a key that may invoke agents too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.responses import Response

from antiphon.core.disclosure import as_seen, sentence_of
from antiphon.core.envelope import Envelope, Priority, visible_to
from antiphon.core.errors import Denied, LogCorrupt, SlowConsumer, StoreError, StoreGone, UnknownChannel
from antiphon.core.events import EV_CONTEXT_SET
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel, SendOptions
from antiphon.runtime.erasing import Erasure
from antiphon.runtime.invoking import seat_person
from antiphon.runtime.keys import keys_of
from antiphon.runtime.participant import Participant
from antiphon.runtime.reading import follow
from antiphon.server.agents import LAST_ID, NUMBER, stream_of
from antiphon.server.problems import GONE, Refused
from antiphon.server.reading import count_within, size_of
from antiphon.server.shapes import (
    Cancelled,
    Changes,
    ChannelList,
    ChannelQuery,
    ChannelState,
    Cursor,
    Ended,
    Log,
    LogQuery,
    Message,
    Opening,
    Reason,
    shown,
)
from antiphon.server.sse import EventStream, frame
from antiphon.server.verbs import Visit
from antiphon.store.protocol import ChannelRow
from antiphon.store.rows import SYSTEM

log = logging.getLogger("antiphon.server")

OPERATOR = "operator"


async def list_channels(visit: Visit) -> ChannelList:
    """A page of the channels there are for whoever asks."""
    asked, store = visit.asked(ChannelQuery), visit.hub._desk.store
    operator = is_operator(visit, asked.view)
    rows: list[ChannelRow] = []
    after, limit = asked.after, asked.limit
    whose = asked.participant if operator else visit.principal.name
    while page := await store.channels(status=asked.status, participant=whose, after=after, limit=limit):
        after = page[-1].channel_id
        rows += [row for row in page if _is_listed(row, asked, operator=operator)]
        if len(rows) >= limit or len(page) < limit:
            break
    full = len(rows) > limit or (bool(page) and len(page) == limit)
    count = min(limit, count_within(rows, visit.house.limits.page_bytes))
    if len(rows) > count:
        return ChannelList(rows[:count], rows[count - 1].channel_id)
    return ChannelList(rows, after if full else None)


def _is_listed(row: ChannelRow, asked: ChannelQuery, *, operator: bool) -> bool:
    if row.channel_id.startswith(SYSTEM):
        return operator and asked.system
    return asked.participant is None or asked.participant in row.participants


async def open_channel(visit: Visit) -> ChannelState:
    """Open a channel with others, as whoever asks."""
    wanted, principal = visit.said(Opening), visit.principal
    await _seat_guests(visit, wanted.target)
    speaker = Participant(visit.hub._desk, principal.name, principal.kind, may_run=principal.may("invoke"))
    channel = await speaker.open(
        type=wanted.type,
        target=wanted.target,
        knobs=wanted.knobs,
        ttl=wanted.ttl,
        context_vars=wanted.context_vars,
        say=wanted.say,
        key=wanted.key,
    )
    return shown(channel.state)


async def _seat_guests(visit: Visit, names: list[str]) -> None:
    """Whoever has a key is there, also if they have never asked for anything."""
    now = visit.hub._desk.clock.now()
    for key in keys_of(visit.hub).keys:
        if key.participant in names and key.status(now) == "active":
            await seat_person(visit.hub, key.participant, key.kind)


async def show_channel(visit: Visit) -> ChannelState:
    """A channel as it is now."""
    return shown((await _seen(visit, "own" if not visit.principal.may("operate") else OPERATOR)).state)


async def read_log(visit: Visit) -> Log:
    """A part of a channel's log."""
    asked = visit.asked(LogQuery)
    live = await _seen(visit, asked.view)
    found: list[Envelope] = []
    cursor, room = asked.after, visit.house.limits.page_bytes
    while page := await live.read(cursor):
        cursor = page[-1].sequence
        for envelope in _seen_in(page, visit, asked.view):
            room -= size_of(envelope)
            if found and (room < 0 or len(found) == asked.limit):
                return Log(found, found[-1].sequence)
            found.append(envelope)
    return Log(found)


async def subscribe(visit: Visit) -> EventStream | Response:
    """Everything in a channel behind a place, then what comes, as events whose ids are sequences."""
    asked = visit.asked(Cursor)
    live = await _seen(visit, asked.view)
    last = visit.request.headers.get(LAST_ID)
    if last is not None and not NUMBER.match(last):
        raise Refused(422, "bad_id", "Last-Event-ID is no sequence; leave it out, or give `after`")
    after = asked.after if last is None else int(last)
    if last is not None and live.state.ended and after >= live.state.sequence:
        return Response(status_code=204)  # there will never be more: a browser stops asking
    return stream_of(visit, _frames(visit, live, after, view=asked.view))


async def _frames(visit: Visit, live: LiveChannel, after: int, *, view: str) -> AsyncGenerator[bytes, None]:
    desk, lag = visit.hub._desk, visit.house.limits.lag
    reader = None if view == OPERATOR else visit.principal.name
    try:
        async with aclosing(follow(desk, live, reader=reader, after=after, max_lag=lag)) as envelopes:
            async for envelope in envelopes:
                yield frame("envelope", envelope, str(envelope.sequence))
    except SlowConsumer as slow:
        yield frame("slow_consumer", {"cursor": slow.cursor, "behind": slow.behind})
        return
    except LogCorrupt as error:
        log.warning("a stream ends: %s", error)
        yield frame("end", {"status": "quarantined", "reason": sentence_of("quarantined")})
        return
    except StoreGone:  # nothing comes any more, and nothing can be resumed here
        yield frame("error", GONE)
        return
    except StoreError as error:  # whoever follows resumes from the last id
        log.warning("a stream of %s ends early: %s", live.state.channel_id, error)
        return
    if live.state.ended:
        yield frame("end", {"status": live.state.status, "reason": live.state.close_reason})


async def post_message(visit: Visit) -> Envelope:
    """Say something in a channel."""
    said = visit.said(Message)
    channel = await held(visit)
    name = visit.principal.name
    if said.sender_id not in (None, name):
        denied = Denied("forged_sender", channel.channel_id, f"the key speaks for {name!r}, not for {said.sender_id!r}")
        raise await visit.hub._desk.audit.refusal(denied, Envelope(sender_id=str(said.sender_id), event_type="http"))
    options = SendOptions(
        audience=said.audience,
        causation_id=said.causation_id,
        priority=Priority(said.priority),
        message_id=said.message_id,
    )
    match said:
        case Message(text=str(text), event_type=None, data=None):
            return await channel.send(text, **options)
        case Message(text=None, event_type=str(event_type)):
            return await channel.post(event_type, said.data or {}, **options)
        case _:
            raise Refused(422, "bad_body", "give either text, or event_type with its data")


async def change_context(visit: Visit) -> ChannelState:
    """Change the context variables of a channel."""
    changes, channel = visit.said(Changes), await held(visit)
    await channel.post(EV_CONTEXT_SET, {"set": changes.set, "delete": changes.delete})
    return shown(channel.state)


async def close_channel(visit: Visit) -> Ended:
    """End a channel."""
    return Ended(await (await held(visit)).close(visit.said(Reason).reason))


async def cancel_turns(visit: Visit) -> Cancelled:
    """Stop every turn that an agent owes a channel, at once, without an answer."""
    return Cancelled(await (await held(visit)).cancel(visit.said(Reason).reason))


async def delete_channel(visit: Visit) -> Erasure:
    """Erase the content of a channel that has ended."""
    return await visit.hub.erase(visit.places["channel_id"], by=visit.principal.name)


async def held(visit: Visit) -> Channel:
    """The channel of the path as whoever asks holds it."""
    principal = visit.principal
    return Channel(visit.hub._desk, await _seen(visit, "own"), principal.name, principal.may("invoke"))


async def _seen(visit: Visit, view: str) -> LiveChannel:
    """The channel of the path; like one that is not there, if whoever asks is not in it and no operator."""
    live = await visit.hub._desk.live(visit.places["channel_id"])
    if not is_operator(visit, view) and visit.principal.name not in live.state.participants:
        raise UnknownChannel(visit.places["channel_id"])
    return live


def is_operator(visit: Visit, view: str) -> bool:
    """Whether the operator's view is asked for; `Refused` if it may not be."""
    if view == OPERATOR and not visit.principal.may("operate"):
        raise Refused(403, "wrong_scope", "the operator's view needs a key with the scope 'operate'")
    return view == OPERATOR


def _seen_in(page: Sequence[Envelope], visit: Visit, view: str) -> list[Envelope]:
    """What a view shows of a page of a log."""
    if view == OPERATOR:
        return list(page)
    return [as_seen(envelope) for envelope in page if visible_to(envelope, visit.principal.name)]
