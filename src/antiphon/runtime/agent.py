"""An agent as a user declares and invokes it: one message on a thread, and the events of its turn.

Rule 1: a thread is a channel between the user and the agent, whose id follows from the agent's name and the key.
Rule 2: events come from the log, so they are the same in whichever process the turn ran, and however often it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Model
from antiphon.agents.progress import has_partial_answer
from antiphon.agents.turn_channel import AgentReply
from antiphon.core.codec import copy_json
from antiphon.core.envelope import Envelope, Json, derived_id
from antiphon.core.errors import TurnFailed, UnknownChannel, UsageError
from antiphon.core.events import EV_HISTORY_IMPORTED, ChannelCreated, Seat
from antiphon.core.text import describe
from antiphon.core.views import Message
from antiphon.engines.engine import TurnKey, current_turn_key
from antiphon.hub.live import LiveChannel
from antiphon.models.model_names import named_model
from antiphon.runtime.arguments import check_option_names, check_text_argument
from antiphon.runtime.channel import Channel
from antiphon.runtime.channel_lifecycle import create_channel
from antiphon.runtime.core import HubCore
from antiphon.runtime.hub import Hub, HubOpening
from antiphon.runtime.participant import ensure_agent_registered, ensure_person_registered
from antiphon.runtime.shared_hub import default_hub
from antiphon.runtime.turn_events import (
    APPROVAL,
    AgentEvent,
    FinalStateEvent,
    NumberedEvent,
    TurnEvents,
    agent_reply_of,
)
from antiphon.runtime.turn_stream import follow_turn, strip_sequences

DEFAULT_SPEAKER = "user"
"""Who speaks in a thread."""


class ImportedHistory(msgspec.Struct, frozen=True):
    """A conversation held elsewhere, with which a new thread begins. No turn is owed for it."""

    messages: Sequence[Message] = ()
    """In order, in the roles that the client gives them: `system`, `user` or `assistant`."""
    active: str = ""
    """The member of the agent's team that answers next: `support/billing`; "" if the agent itself does."""
    context_vars: Json = {}
    key_id: str = ""
    """The key of the client that brings the messages."""

    def drafts(self, speaker: str) -> list[Envelope]:
        """The messages as imported history, sent by the speaker who brings them, in any role."""
        return [
            Envelope(
                sender_id=speaker,
                event_type=EV_HISTORY_IMPORTED,
                event_data={"role": role, "text": text, **({"key_id": self.key_id} if self.key_id else {})},
            )
            for role, text in self.messages
        ]


ASSISTANT_ROLE = "assistant"
NO_HISTORY = ImportedHistory()


async def channel_of(
    hub: Hub,
    agent: Declaration,
    thread_id: str | None,
    *,
    speaker: str = DEFAULT_SPEAKER,
    before: ImportedHistory = NO_HISTORY,
) -> Channel:
    """The channel of this thread, opened if it is not there yet. Both are registered, if they are not.

    Threads of one speaker are never those of another, even under equal keys. One that is opened begins with `before`.
    """
    core = hub.core
    core.check_open()
    if agent.name == speaker:
        raise UsageError(f"{speaker!r} is whoever speaks to an agent in its threads; give the agent another name")
    await ensure_person_registered(core, speaker)
    await ensure_agent_registered(core, agent)
    if thread_id is None:
        channel_id = core.new_id()
    else:
        check_text_argument(thread_id, "thread_id", "a text, or None for a new thread", least=1)
        key = (agent.name,) if speaker == DEFAULT_SPEAKER else (agent.name, speaker)
        channel_id = derived_id("thread", *key, thread_id)
    async with core.locks.setdefault(channel_id, asyncio.Lock()):
        return Channel(
            core, await _find_or_create_channel(core, agent, channel_id, speaker=speaker, before=before), speaker
        )


def check_invocation(hub: Hub, agent: Declaration, text: object) -> None:
    """`UsageError` if there is nothing to answer, or the hub runs no turns."""
    if not isinstance(text, str):
        raise UsageError(f"text is {describe(text)}; give what is to be said, as a text")
    if hub.core.engine is None:
        raise UsageError(f"this hub was opened with engine=None and runs no turns; {agent.name!r} would never answer")


async def _find_or_create_channel(
    core: HubCore, agent: Declaration, channel_id: str, *, speaker: str, before: ImportedHistory
) -> LiveChannel:
    try:
        return await core.live(channel_id)
    except UnknownChannel:
        seats = [Seat(speaker, core.directory.find(speaker).kind), Seat(agent.name, "agent")]
        active = {agent.name: before.active} if before.active else msgspec.UNSET
        knobs = copy_json(agent.own_channel_knobs)
        created = ChannelCreated("conversation", speaker, seats, knobs, context_vars=before.context_vars, active=active)
        return await create_channel(core, created, channel_id, before=before.drafts(speaker))


def send_and_follow(
    channel: Channel, turn_events: TurnEvents, text: str, *, message_id: str | None, tokens: bool = False
) -> AsyncGenerator[NumberedEvent, None]:
    """Send the agent a message, and follow its turn until it has ended, or waits for a person. See `follow_turn`."""
    return follow_turn(
        channel, turn_events, _send_and_wait(channel, turn_events.agent, text, message_id=message_id), tokens=tokens
    )


@asynccontextmanager
async def _send_and_wait(channel: Channel, agent: str, text: str, *, message_id: str | None) -> AsyncIterator[Envelope]:
    """The message once it is recorded; until this is left, the caller's turn counts as waiting for the agent's.

    `UsageError` if that closes a cycle of waiting turns.
    """
    asker, answerer, waiting = current_turn_key.get(), (channel.channel_id, agent), channel._core.waiting_turns
    if asker is None:
        yield await channel.send(text, message_id=message_id)
        return
    if asker in _turns_waited_for(waiting, answerer):
        raise UsageError(f"{agent!r} cannot answer here: its turn here waits for whoever asks; use another thread_id")
    waits = waiting.setdefault(asker, [])
    waits.append(answerer)
    try:
        yield await channel.send(text, message_id=message_id)
    finally:
        waits.remove(answerer)
        if not waits:
            waiting.pop(asker, None)


async def answer_of(channel: Channel, agent: Declaration, text: str, *, message_id: str | None) -> AgentReply:
    """Say something to the agent, and wait for its answer; `TurnFailed` if there is none."""
    turn_events = TurnEvents(agent.name, lambda: channel._live.state)
    final: FinalStateEvent | None = None
    async with aclosing(send_and_follow(channel, turn_events, text, message_id=message_id)) as events:
        async for _, event in events:
            final = event if isinstance(event, FinalStateEvent) else None
    assert final is not None, "the last event is the final one"
    if final.stopped not in (None, APPROVAL) and not has_partial_answer(final.stopped):
        raise TurnFailed(final.stopped, channel.channel_id, final.detail, agent=final.agent)
    return agent_reply_of(agent, turn_events.path, final)


def stream_turn(
    channel: Channel, agent: Declaration, text: str, *, message_id: str | None, tokens: bool
) -> AsyncGenerator[NumberedEvent, None]:
    """Say something to the agent, and follow its turn; with the pieces of its answer as they come, if asked for."""
    turn_events = TurnEvents(agent.name, lambda: channel._live.state)
    return send_and_follow(channel, turn_events, text, message_id=message_id, tokens=tokens)


def _turns_waited_for(waits: Mapping[TurnKey, Sequence[TurnKey]], start: TurnKey) -> set[TurnKey]:
    """Everybody whom this one waits for, itself included."""
    found, left = {start}, [start]
    while left:
        new = [place for place in waits.get(left.pop(), ()) if place not in found]
        found.update(new)
        left.extend(new)
    return found


class StreamOptions(TypedDict, total=False):
    """How a turn is asked for and followed."""

    thread_id: str | None
    hub: Hub | None
    message_id: str | None
    tokens: bool


@dataclass(frozen=True)
class Agent(Declaration):
    """An agent. Register it with a hub, which runs its turns; or ask it something with `invoke`."""

    model: Model | str  # type: ignore[assignment]  # a name is given, and the model that it names is kept

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            self._set("model", self._model_named(self.model))
        super().__post_init__()

    def _model_named(self, name: str) -> Model:
        try:
            return named_model(name)
        except UsageError as error:
            raise UsageError(f"the model of {describe(self.name)}: {error}") from error

    async def invoke(
        self, text: str, *, thread_id: str | None = None, hub: Hub | None = None, message_id: str | None = None
    ) -> AgentReply:
        """Say something to the agent on a thread, and wait for its answer; `TurnFailed` if there is none.

        If a person has to decide about a call first, the reply says so: `stopped` is `approval`, and `approvals` lists
        what waits. The message is recorded before it is answered. Should the process end, the turn is finished by the
        next hub in which the agent is registered; invoked again with the same `message_id` on the same thread, nothing
        is said twice, and the answer is the one that there is.
        """
        async with _hub_context(hub) as used:
            check_invocation(used, self, text)
            channel = await channel_of(used, self, thread_id)
            return await answer_of(channel, self, text, message_id=message_id)

    async def channel(self, thread_id: str, hub: Hub) -> Channel:
        """The channel of a thread, as its user holds it: to look at, to cancel a turn, to settle a call in doubt."""
        if not isinstance(hub, Hub):
            raise UsageError(f"hub is {describe(hub)}; give an open Hub")
        return await channel_of(hub, self, thread_id)

    async def stream_invoke(self, text: str, **options: Unpack[StreamOptions]) -> AsyncIterator[AgentEvent]:
        """Say something to the agent on a thread, and follow its turn. `FinalStateEvent` comes last, also on failure.

        With `tokens=True` the answer comes in pieces too, as the model speaks, before it comes whole.
        """
        check_option_names(options, StreamOptions.__optional_keys__)
        async with _hub_context(options.get("hub")) as used:
            check_invocation(used, self, text)
            channel = await channel_of(used, self, options.get("thread_id"))
            events = stream_turn(
                channel, self, text, message_id=options.get("message_id"), tokens=bool(options.get("tokens"))
            )
            async with aclosing(strip_sequences(events)) as answers:
                async for event in answers:
                    yield event


def _hub_context(hub: object) -> AbstractAsyncContextManager[Hub]:
    if hub is None:
        return default_hub()
    if not isinstance(hub, Hub):
        opening = "; await it, or use `async with`" if isinstance(hub, HubOpening) else ""
        raise UsageError(f"hub is {describe(hub)}{opening}; give an open Hub, or None for the one of this process")
    return nullcontext(hub)
