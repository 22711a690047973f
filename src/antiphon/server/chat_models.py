"""What a model of the chat completions API stands for: an agent, or the conversation that the hub offers.

Rule 1: a model says which channel holds a conversation, how its answer is followed, and what is noted with it.
Rule 2: a thread with an agent goes on from its last answer alone. A routed one also where other people or its observer
        have spoken since: what a person says in a hold must not lose the conversation.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from antiphon.agents.declaration import Declaration
from antiphon.core.conversation_events import ConversationMoved
from antiphon.core.errors import UsageError
from antiphon.core.events import SPEECH_TYPES
from antiphon.hub.live import LiveChannel
from antiphon.runtime.agent import NO_HISTORY, ImportedHistory, channel_of, check_invocation
from antiphon.runtime.channel import Channel
from antiphon.runtime.conversation_turns import ConversationTurns
from antiphon.runtime.routed_channels import offered_conversation_name, routed_channel_of
from antiphon.runtime.turn_events import FinalStateEvent, MessageEvents, TurnEvents, agent_reply_of
from antiphon.server.app import RequestContext
from antiphon.server.chat_protocol import ChatConversationNote, ChatHandoff, ChatNote, ChatPosition
from antiphon.server.problems import RequestRefused


class FollowedAnswer(Protocol):
    """The answer to one message: its events, and what is noted with it."""

    @property
    def events(self) -> MessageEvents:
        """Projects the log of the channel to the events of the answer."""
        ...

    def note(self, final: FinalStateEvent) -> ChatNote:
        """What is noted with the answer, when it is complete."""
        ...


class ChatModel(Protocol):
    """A model of the chat completions API."""

    def check(self, ctx: RequestContext, text: str) -> None:
        """`UsageError` if this cannot be answered here."""
        ...

    async def channel_for(
        self,
        ctx: RequestContext,
        thread_id: str | None,
        *,
        before: ImportedHistory = NO_HISTORY,
        continued: LiveChannel | None = None,
    ) -> Channel:
        """The channel of a thread. One that is opened begins with `before`, and goes on where `continued` is."""
        ...

    async def continues(self, ctx: RequestContext, held: ChatPosition) -> LiveChannel | None:
        """The channel of a conversation, if the next message may be said in it."""
        ...

    def answer(self, live: LiveChannel) -> FollowedAnswer:
        """The answer to the message that is about to be said in this channel."""
        ...


def require_model(ctx: RequestContext, name: str) -> ChatModel:
    """The model of this name; `RequestRefused` if there is none."""
    agent = ctx.hub.core.agents.get(name)
    if agent is not None:
        return AgentChatModel(agent)
    if name and name == offered_conversation_name(ctx.hub.core):
        return ConversationChatModel(name)
    raise RequestRefused(404, "model_not_found", f"no model is called {name!r} here; GET /v1/models lists them")


def model_names(ctx: RequestContext) -> list[str]:
    """The agents, and the conversation that the hub offers."""
    offered = offered_conversation_name(ctx.hub.core)
    return [*ctx.hub.core.agents, *([offered] if offered else [])]


class AgentChatModel:
    """An agent as a model."""

    def __init__(self, agent: Declaration) -> None:
        self._agent = agent

    def check(self, ctx: RequestContext, text: str) -> None:
        check_invocation(ctx.hub, self._agent, text)

    async def channel_for(
        self,
        ctx: RequestContext,
        thread_id: str | None,
        *,
        before: ImportedHistory = NO_HISTORY,
        continued: LiveChannel | None = None,
    ) -> Channel:
        if continued is not None:  # with the active member and the context variables of the known conversation
            state = continued.state
            before = replace(before, active=state.active.get(self._agent.name, ""), context_vars=state.context_vars)
        return await channel_of(ctx.hub, self._agent, thread_id, speaker=ctx.principal.name, before=before)

    async def continues(self, ctx: RequestContext, held: ChatPosition) -> LiveChannel | None:
        live = await ctx.hub.core.live(held.channel_id)
        if live.state.status != "active":
            return None
        [answer, *_] = await live.read(held.sequence - 1)
        return live if live.state.last_envelope_id == answer.envelope_id else None

    def answer(self, live: LiveChannel) -> FollowedAnswer:
        return _AgentAnswer(self._agent, live)


class _AgentAnswer:
    def __init__(self, agent: Declaration, live: LiveChannel) -> None:
        self._agent = agent
        self._turn = TurnEvents(agent.name, lambda: live.state)

    @property
    def events(self) -> MessageEvents:
        return self._turn

    def note(self, final: FinalStateEvent) -> ChatNote:
        reply = agent_reply_of(self._agent, self._turn.path, final)
        return ChatNote(reply.agent, reply.channel_id, reply.stopped)


class ConversationChatModel:
    """The routed conversation of the hub as a model: the agent that its router names answers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def check(self, ctx: RequestContext, text: str) -> None:
        if ctx.hub.core.engine is None:
            raise UsageError(f"this hub was opened with engine=None and runs no turns; {self._name!r} never answers")

    async def channel_for(
        self,
        ctx: RequestContext,
        thread_id: str | None,
        *,
        before: ImportedHistory = NO_HISTORY,
        continued: LiveChannel | None = None,
    ) -> Channel:
        if continued is not None:
            before = replace(before, context_vars=continued.state.context_vars)
        return await routed_channel_of(
            ctx.hub, thread_id, speaker=ctx.principal.name, before=before, continued=continued
        )

    async def continues(self, ctx: RequestContext, held: ChatPosition) -> LiveChannel | None:
        live = await ctx.hub.core.live(held.channel_id)
        if live.state.status != "active":
            return None
        cursor = held.sequence
        while page := await live.read(cursor):
            cursor = page[-1].sequence
            if any(each.sender_id == ctx.principal.name and each.event_type in SPEECH_TYPES for each in page):
                return None
        return live

    def answer(self, live: LiveChannel) -> FollowedAnswer:
        return _ConversationAnswer(live)


class _ConversationAnswer:
    def __init__(self, live: LiveChannel) -> None:
        self._turns = ConversationTurns(live)

    @property
    def events(self) -> MessageEvents:
        return self._turns

    def note(self, final: FinalStateEvent) -> ChatNote:
        turns = self._turns
        handoffs = [_handoff_of(moved) for moved in turns.handoffs]
        conversation = ChatConversationNote(handoffs, turns.person, turns.unrouted)
        return ChatNote(final.agent, final.channel_id, final.stopped, conversation)


def _handoff_of(moved: ConversationMoved) -> ChatHandoff:
    to = moved.person if moved.to_agent is None else moved.to_agent
    return ChatHandoff(moved.from_agent or moved.by, to, moved.to_phase, moved.reason)
