"""The routed conversation that a hub offers to clients: its router, the agents registered here, and people.

Rule 1: a client's thread is a routed channel between its participant and all of them, whose id follows from the key.
Rule 2: the router and the handoffs are those of the hub when the channel is made. Later ones are for later channels.
"""

from __future__ import annotations

import asyncio

import msgspec

from antiphon.core.conversation_events import EV_CONVERSATION_MOVED, ConversationMoved
from antiphon.core.envelope import IdSource, Instant, Json, derived_id
from antiphon.core.errors import UnknownChannel, UsageError
from antiphon.core.event_data import data_of
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, hub_draft, record
from antiphon.hub.live import LiveChannel
from antiphon.orchestration.conversation_memory import ConversationMemory
from antiphon.runtime.agent import NO_HISTORY, ImportedHistory
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.channel import Channel
from antiphon.runtime.channel_lifecycle import create_channel
from antiphon.runtime.conversation_defaults import CONVERSATION_NAME, ROUTED
from antiphon.runtime.conversation_plans import conversation_memory
from antiphon.runtime.core import HubCore
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import ensure_person_registered

OPENED_STATUSES = ("active", "closed", "expired")


class OfferedConversation(msgspec.Struct, frozen=True):
    """What a hub offers to clients as one conversation."""

    router: Json
    handoff: Json | None = None
    people: tuple[str, ...] = ()
    """Who takes part beside the client and the agents: people that agents may hand over to."""
    name: str = CONVERSATION_NAME


def offer_conversation(hub: Hub, offered: OfferedConversation) -> None:
    """Offer this to clients, and use its router and handoffs for routed channels that bring none.

    `UsageError` if an agent has the name.
    """
    if offered.name in hub.core.agents:
        raise UsageError(
            f"{offered.name!r} is the name of an agent, and of the conversation; give the conversation another title"
        )
    defaults = hub.core.conversation_defaults
    defaults.router, defaults.name, defaults.people = offered.router, offered.name, offered.people
    if offered.handoff is not None:
        defaults.add_handler(offered.router, offered.handoff)


def offered_conversation_name(core: HubCore) -> str:
    """The name of the conversation that the hub offers; "" if it has no router or no agents, or an agent the name."""
    defaults = core.conversation_defaults
    offered = defaults.router is not None and core.agents and defaults.name not in core.agents
    return defaults.name if offered else ""


async def routed_channel_of(
    hub: Hub,
    thread_id: str | None,
    *,
    speaker: str,
    before: ImportedHistory = NO_HISTORY,
    continued: LiveChannel | None = None,
) -> Channel:
    """The routed channel of this thread, opened if it is not there yet.

    One that is opened begins with `before`, and goes on where the conversation `continued` is.
    """
    core = hub.core
    core.check_open()
    name = offered_conversation_name(core)
    if not name:
        raise UsageError("this hub has no router; give it one with hub.hook(…)(router.as_hook()), and register agents")
    if thread_id is None:
        channel_id = core.new_id()
    else:
        check_text_argument(thread_id, "thread_id", "a text, or None for a new thread", least=1)
        channel_id = derived_id("conversation", name, speaker, thread_id)
    async with core.locks.setdefault(channel_id, asyncio.Lock()):
        live = await _find_or_open(core, channel_id, speaker=speaker, before=before)
        await core.wait_for_status(live, OPENED_STATUSES)
        if continued is not None:
            await live.submit(ContinueConversation(conversation_memory(continued), speaker, core.new_id))
    return Channel(core, live, speaker)


async def _find_or_open(core: HubCore, channel_id: str, *, speaker: str, before: ImportedHistory) -> LiveChannel:
    try:
        return await core.live(channel_id)
    except UnknownChannel:
        pass
    people = [name for name in core.conversation_defaults.people if name not in core.agents and name != speaker]
    for name in (speaker, *people):
        await ensure_person_registered(core, name)
    names = [speaker, *core.agents, *people]
    seats = [Seat(name, core.directory.find(name).kind) for name in names]
    knobs = core.conversation_defaults.complete(ROUTED, {})
    created = ChannelCreated(ROUTED, speaker, seats, knobs, context_vars=before.context_vars)
    return await create_channel(core, created, channel_id, before=before.drafts(speaker))


class ContinueConversation(msgspec.Struct, frozen=True):
    """Plans that a new conversation goes on where another one is; nothing if it has begun."""

    before: ConversationMemory
    by: str
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        memory, before = ruleset.adapter_memory(fold), self.before.state
        assert isinstance(memory, ConversationMemory), "a routed channel remembers its conversation"
        agent = before.active_agent_id
        if fold.state.participants.get(agent or "") != "agent":
            agent = None
        begun = memory.state.revision or memory.current or memory.waiting or memory.person
        moved = ConversationMoved(
            memory.state.phase, before.phase, None, agent, "continued", by=self.by, person=self.before.person
        )
        unchanged = moved.to_phase == moved.from_phase and agent is None and not moved.person
        if begun or unchanged or fold.state.status != "active":
            return None
        moved = msgspec.structs.replace(moved, context=before.context)
        draft = hub_draft(EV_CONVERSATION_MOVED, data_of(moved))
        return record(fold, draft, ruleset=ruleset, at=at, new_id=self.new_id)
