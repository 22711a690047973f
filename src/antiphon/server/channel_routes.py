"""Channels over HTTP: list, open, read, follow, write and close.

Rule 1: a participant sees its own channels, and in them what is addressed to it. Everything else is answered like a
        channel that does not exist. An operator sees all with `view=operator`.
Rule 2: the sender is the participant of the key.
Rule 3: a message that would give an agent a turn needs the scope `invoke`, too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import asdict
from starlette.responses import Response

from antiphon.core.envelope import Envelope, Priority, visible_to
from antiphon.core.errors import Denied, LogCorrupt, SlowConsumer, StoreError, StoreGone, UnknownChannel
from antiphon.core.events import EV_CONTEXT_SET, SPEECH_TYPES
from antiphon.core.redaction import failure_sentence
from antiphon.core.state import State
from antiphon.core.views import envelope_for_participants
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel, SendOptions
from antiphon.runtime.channel_lifecycle import Erasure
from antiphon.runtime.conversation_plans import conversation_in, release_conversation
from antiphon.runtime.participant import Participant, ensure_person_registered
from antiphon.runtime.subscriptions import follow_channel
from antiphon.server.agent_routes import LAST_ID_HEADER, SEQUENCE_PATTERN, make_stream
from antiphon.server.app import RequestContext, page_bytes_of
from antiphon.server.event_streams import EventStream, encode_event
from antiphon.server.problems import STORE_GONE_FAULT, RequestRefused
from antiphon.server.schemas import (
    Cancelled,
    Changes,
    ChannelEnd,
    ChannelList,
    ChannelQuery,
    ChannelState,
    LogPage,
    LogQuery,
    MessageBody,
    Opening,
    Reason,
    Release,
    SubscribeQuery,
    channel_state_of,
)
from antiphon.store.protocol import ChannelRow
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

logger = logging.getLogger("antiphon.server")

OPERATOR_VIEW_NAME = "operator"


async def list_channels(ctx: RequestContext) -> ChannelList:
    """List channels, oldest first."""
    asked, store = ctx.query_as(ChannelQuery), ctx.hub.core.store
    operator = is_operator_view(ctx, asked.view)
    found: list[ChannelRow] = []
    after, limit, room = asked.after, asked.limit, ctx.app_state.limits.page_bytes
    whose = asked.participant if operator else ctx.principal.name
    while page := await store.channels(status=asked.status, participant=whose, after=after, limit=limit):
        for row in (row for row in page if _is_row_listed(row, asked, operator=operator)):
            room -= page_bytes_of(row)
            if found and (room < 0 or len(found) == limit):
                return ChannelList(found, found[-1].channel_id)
            found.append(row)
        after = page[-1].channel_id
        if len(page) < limit:
            break
        if len(found) == limit:
            return ChannelList(found, after)
    return ChannelList(found)


def _is_row_listed(row: ChannelRow, asked: ChannelQuery, *, operator: bool) -> bool:
    if row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
        return operator and asked.system
    return asked.participant is None or asked.participant in row.participants


async def open_channel(ctx: RequestContext) -> ChannelState:
    """Open a channel with other participants."""
    wanted, principal = ctx.body_as(Opening), ctx.principal
    await _register_key_holders(ctx, wanted.target)
    speaker = Participant(ctx.hub.core, principal.name, principal.kind, may_run=principal.may("invoke"))
    opened = await speaker.open(**asdict(wanted))
    return _shown_channel(await ctx.hub.core.live(opened.channel_id))


async def _register_key_holders(ctx: RequestContext, names: list[str]) -> None:
    """Register the holders of active keys among these names, who may never have made a request."""
    now = ctx.hub.core.clock.now()
    for key in ctx.keys.keys:
        if key.participant in names and key.status(now) == "active":
            await ensure_person_registered(ctx.hub.core, key.participant, key.kind)


async def show_channel(ctx: RequestContext) -> ChannelState:
    """Show a channel as it is now."""
    return _shown_channel(await _visible_channel(ctx, _widest_view(ctx)))


def _shown_channel(live: LiveChannel) -> ChannelState:
    return channel_state_of(live.state, conversation_in(live))


def _widest_view(ctx: RequestContext) -> str:
    return OPERATOR_VIEW_NAME if ctx.principal.may("operate") else "own"


async def read_log(ctx: RequestContext) -> LogPage:
    """Read a part of a channel's log."""
    asked = ctx.query_as(LogQuery)
    live = await _visible_channel(ctx, asked.view)
    found: list[Envelope] = []
    cursor, room = asked.after, ctx.app_state.limits.page_bytes
    while page := await live.read(cursor):
        cursor = page[-1].sequence
        for envelope in _visible_envelopes(page, live.state, ctx, view=asked.view):
            room -= page_bytes_of(envelope)
            if found and (room < 0 or len(found) == asked.limit):
                return LogPage(found, found[-1].sequence)
            found.append(envelope)
    return LogPage(found)


async def subscribe(ctx: RequestContext) -> EventStream | Response:
    """Follow a channel's log from a sequence on, as events whose ids are sequences."""
    asked = ctx.query_as(SubscribeQuery)
    live = await _visible_channel(ctx, asked.view)
    last = ctx.request.headers.get(LAST_ID_HEADER)
    if last is not None and not SEQUENCE_PATTERN.match(last):
        raise RequestRefused(422, "bad_id", "Last-Event-ID is no sequence; leave it out, or give `after`")
    after = asked.after if last is None else int(last)
    if last is not None and live.state.ended and after >= live.state.sequence:
        return Response(status_code=204)  # the log has ended: a browser stops reconnecting
    return make_stream(ctx, _log_frames(ctx, live, after, view=asked.view))


async def _log_frames(ctx: RequestContext, live: LiveChannel, after: int, *, view: str) -> AsyncGenerator[bytes, None]:
    core, lag = ctx.hub.core, ctx.app_state.limits.lag
    reader = None if view == OPERATOR_VIEW_NAME else ctx.principal.name
    try:
        async with aclosing(follow_channel(core, live, reader=reader, after=after, max_lag=lag)) as envelopes:
            async for envelope in envelopes:
                yield encode_event("envelope", envelope, str(envelope.sequence))
    except SlowConsumer as slow:
        yield encode_event("slow_consumer", {"cursor": slow.cursor, "behind": slow.behind})
        return
    except LogCorrupt as error:
        logger.warning("a stream ends: %s", error)
        yield encode_event("end", {"status": "quarantined", "reason": failure_sentence("quarantined")})
        return
    except StoreGone:  # nothing can be resumed at this server
        yield encode_event("error", STORE_GONE_FAULT)
        return
    except StoreError as error:  # the client resumes from the last id
        logger.warning("a stream of %s ends early: %s", live.state.channel_id, error)
        return
    if live.state.ended:
        yield encode_event("end", {"status": live.state.status, "reason": live.state.close_reason})


async def post_message(ctx: RequestContext) -> Envelope:
    """Record a message in a channel."""
    said = ctx.body_as(MessageBody)
    channel = await writable_channel(ctx)
    name = ctx.principal.name
    if said.sender_id not in (None, name):
        denied = Denied("forged_sender", channel.channel_id, f"the key speaks for {name!r}, not for {said.sender_id!r}")
        raise await ctx.hub.core.audit.refusal(denied, Envelope(sender_id=str(said.sender_id), event_type="http"))
    options = SendOptions(
        audience=said.audience,
        causation_id=said.causation_id,
        priority=Priority(said.priority),
        message_id=said.message_id,
    )
    of_text: SendOptions = {
        "transport": said.transport,
        "source": said.source,
        "intent": said.intent,
        "addressed_to": said.addressed_to,
        "set": said.set,
    }
    # Only texts and packets decide where replies leave; events of other types may have any fields.
    named = (said.data or {}).get("transport") if said.event_type in SPEECH_TYPES else None
    _check_transport_named(ctx, said.transport or named)
    given = next((name for name, value in of_text.items() if value is not None), None)
    match said:
        case MessageBody(text=str(text), event_type=None, data=None):
            return await channel.send(text, **options if given is None else {**options, **of_text})
        case MessageBody(text=None, event_type=str(event_type)) if given is not None:
            raise RequestRefused(422, "bad_body", f"{given} belongs to a text; with {event_type!r}, put it into data")
        case MessageBody(text=None, event_type=str(event_type)):
            return await channel.post(event_type, said.data or {}, **options)
        case _:
            raise RequestRefused(422, "bad_body", "give either text, or event_type with its data")


def _check_transport_named(ctx: RequestContext, name: object) -> None:
    """Refuse a client that names a transport by which replies really leave: it could have them sent to any address."""
    if isinstance(name, str) and ctx.hub.core.transports.sends(name) and not ctx.principal.may("operate"):
        advice = "leave it out, send by the transport itself, or use a key with the scope 'operate'"
        raise RequestRefused(403, "wrong_scope", f"replies leave by the transport {name!r}; {advice}")


async def change_context(ctx: RequestContext) -> ChannelState:
    """Change the context variables of a channel."""
    changes, channel = ctx.body_as(Changes), await writable_channel(ctx)
    await channel.post(EV_CONTEXT_SET, {"set": changes.set, "delete": changes.delete})
    return _shown_channel(await ctx.hub.core.live(channel.channel_id))


async def release_channel(ctx: RequestContext) -> ChannelState:
    """End the hold of a person over a routed channel. With the scope `operate` any, also from outside of it."""
    live = await _visible_channel(ctx, _widest_view(ctx))
    to, operator = ctx.body_as(Release).to, ctx.principal.may("operate")
    await release_conversation(ctx.hub.core, live, to, by=ctx.principal.name, operator=operator)
    return _shown_channel(live)


async def close_channel(ctx: RequestContext) -> ChannelEnd:
    """Close a channel."""
    return ChannelEnd(await (await writable_channel(ctx)).close(ctx.body_as(Reason).reason))


async def cancel_turns(ctx: RequestContext) -> Cancelled:
    """Stop the turns that agents owe a channel, at once and without an answer."""
    return Cancelled(await (await writable_channel(ctx)).cancel(ctx.body_as(Reason).reason))


async def delete_channel(ctx: RequestContext) -> Erasure:
    """Erase the content of a channel that has ended, and of its tasks."""
    return await ctx.hub.erase(ctx.request.path_params["channel_id"], by=ctx.principal.name)


async def writable_channel(ctx: RequestContext) -> Channel:
    """The channel of the path, to write in as the participant of the key."""
    principal = ctx.principal
    return Channel(ctx.hub.core, await _visible_channel(ctx, "own"), principal.name, principal.may("invoke"))


async def _visible_channel(ctx: RequestContext, view: str) -> LiveChannel:
    """The channel of the path; `UnknownChannel` unless the key's participant is in it, or an operator asks."""
    live = await ctx.hub.core.live(ctx.request.path_params["channel_id"])
    if not is_operator_view(ctx, view) and ctx.principal.name not in live.state.participants:
        raise UnknownChannel(ctx.request.path_params["channel_id"])
    return live


def is_operator_view(ctx: RequestContext, view: str) -> bool:
    """Whether the operator's view is asked for; `RequestRefused` without the scope for it."""
    if view == OPERATOR_VIEW_NAME and not ctx.principal.may("operate"):
        raise RequestRefused(403, "wrong_scope", "the operator's view needs a key with the scope 'operate'")
    return view == OPERATOR_VIEW_NAME


def _visible_envelopes(page: Sequence[Envelope], state: State, ctx: RequestContext, *, view: str) -> list[Envelope]:
    """The envelopes of a page that a view shows."""
    if view == OPERATOR_VIEW_NAME:
        return list(page)
    seen = (envelope for envelope in page if visible_to(envelope, ctx.principal.name))
    return [envelope_for_participants(envelope, state.participants) for envelope in seen]
