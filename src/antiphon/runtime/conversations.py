"""Routed conversations as programs hold them: their state, the handler of handoffs, and the release by a person.

Rule 1: the state is read from the fold of the log and written by a fact in it. A write on a stale state is refused, so
        that nothing another writer did is lost.
Rule 2: agents do not write it. They hand over.
Rule 3: the knobs of a channel rule. What a hub knows of routers and handlers is copied into them when a channel is
        opened, so that a restart needs nothing but the agents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.handoff_tool import HANDOFF_TOOL, HANDOFF_TOOL_NAME
from antiphon.core.codec import check_json, copy_json, same_json
from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_RELEASED,
    ConversationMoved,
    ConversationReleased,
)
from antiphon.core.envelope import Envelope, IdSource, Instant, Json
from antiphon.core.errors import Denied, UsageError
from antiphon.core.event_data import Deny, data_of
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, hub_draft, record_all
from antiphon.core.text import describe
from antiphon.orchestration.conversation import ConversationState, pending_transitions
from antiphon.orchestration.conversation_memory import ConversationMemory
from antiphon.orchestration.handoff_rules import HandoffRules, check_handoff_rules
from antiphon.orchestration.router import ConversationRouter

if TYPE_CHECKING:
    from antiphon.hub.live import LiveChannel
    from antiphon.runtime.channel import Channel
    from antiphon.runtime.core import HubCore
    from antiphon.runtime.hub import Hub

ROUTED = "routed"
ROUTER_KNOB, HANDOFF_KNOB = "router", "handoff"
D = TypeVar("D", bound=Declaration)


def conversation_memory(live: LiveChannel) -> ConversationMemory:
    """What a routed channel remembers; `UsageError` for a channel of another type."""
    return _memory_of(live.ruleset, live.fold)


def _memory_of(ruleset: Ruleset, fold: Fold) -> ConversationMemory:
    memory = ruleset.adapter_memory(fold)
    if not isinstance(memory, ConversationMemory):
        kind = fold.state.type or "damaged"
        raise UsageError(f"a channel of type {kind!r} has no conversation state; open it with type='routed'")
    return memory


def get_conversation_state(channel: Channel) -> ConversationState:
    """The state of a routed conversation as its log leaves it now. A copy: changing it changes nothing."""
    state = conversation_memory(channel._live).state
    return msgspec.structs.replace(state, context=copy_json(state.context))


async def set_conversation_state(channel: Channel, state: ConversationState) -> ConversationState:
    """Record the transitions that lead to this state, and its context; returns the state as it is recorded.

    `Denied` with the reason `conflict` if the conversation has moved since the state was read. Agents may not.
    """
    if not isinstance(state, ConversationState):
        raise UsageError(f"state is {describe(state)}; give what get_conversation_state gave, after a transition")
    check_json(state.context)
    live, core, by = channel._live, channel._core, channel._speaker
    conversation_memory(live)
    await _submit(core, live, MoveConversation(state, by, core.new_id), by=by)
    return get_conversation_state(channel)


class MoveConversation(msgspec.Struct, frozen=True):
    """Plans the transitions that lead to a state."""

    wanted: ConversationState
    by: str
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        memory, wanted, channel = _memory_of(ruleset, fold), self.wanted, fold.state
        denial = _denial_of_writer(channel, self.by)
        if denial is not None:
            return denial
        moves = pending_transitions(memory.state, wanted)
        if moves is None:
            return Deny("conflict", "the conversation has moved since this state was read; read it again")
        same_context = same_json(memory.state.context, wanted.context)
        if not moves and same_context:
            return None
        drafts: list[Envelope] = []
        person = memory.person
        for number, move in enumerate(moves):
            agent, last = move.to_agent, number == len(moves) - 1
            if agent is not None and channel.participants.get(agent) != "agent":
                known = ", ".join(name for name, kind in channel.participants.items() if kind == "agent")
                return Deny("target_not_found", f"{agent!r} is no agent of this channel; there are: {known}")
            if agent is not None and person:
                refused = _denial_of_release(memory, channel, self.by)
                if refused is not None:
                    return refused
                person = ""
            moved = ConversationMoved(
                move.from_phase, move.to_phase, move.from_agent, agent, move.reason, by=self.by, person=person
            )
            if last and not same_context:
                moved = msgspec.structs.replace(moved, context=wanted.context)
            drafts.append(hub_draft(EV_CONVERSATION_MOVED, data_of(moved)))
        if not moves:
            phase, agent = memory.state.phase, memory.state.active_agent_id
            noted = ConversationMoved(phase, phase, agent, agent, "context", by=self.by, person=person)
            noted = msgspec.structs.replace(noted, context=wanted.context)
            drafts.append(hub_draft(EV_CONVERSATION_MOVED, data_of(noted)))
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=self.new_id)


async def release_conversation(channel: Channel, to: str | None = None) -> None:
    """End the hold of a person over a routed conversation: the next message is routed again, or answered by `to`.

    Any other person in the channel may; its creator only if there is none.
    """
    if to is not None and not isinstance(to, str):
        raise UsageError(f"to is {describe(to)}; give the name of an agent, or None")
    live, core, by = channel._live, channel._core, channel._speaker
    conversation_memory(live)
    await _submit(core, live, ReleaseConversation(to, by, core.new_id), by=by)


class ReleaseConversation(msgspec.Struct, frozen=True):
    """Plans the end of a person's hold."""

    to: str | None
    by: str
    new_id: IdSource
    operator: bool = False

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        memory, channel = _memory_of(ruleset, fold), fold.state
        denial = _denial_of_writer(channel, self.by) if not self.operator else None
        if denial is None and not memory.person:
            denial = Deny("not_held", "no person has this conversation; there is nothing to release")
        if denial is None and not self.operator:
            denial = _denial_of_release(memory, channel, self.by)
        if denial is None and self.to is not None and channel.participants.get(self.to) != "agent":
            denial = Deny("target_not_found", f"{describe(self.to)} is no agent of this channel")
        if denial is not None:
            return denial
        draft = hub_draft(EV_CONVERSATION_RELEASED, data_of(ConversationReleased(self.by, self.to)))
        return record_all(fold, [draft], ruleset=ruleset, at=at, new_id=self.new_id)


def _denial_of_writer(channel: State, by: str) -> Deny | None:
    if channel.status != "active":
        return Deny("channel_closed", f"its status is {channel.status!r}")
    if channel.participants.get(by) == "agent":
        return Deny("not_a_person", f"{by!r} is an agent; agents hand over with handoff_conversation")
    return None


def _denial_of_release(memory: ConversationMemory, channel: State, by: str) -> Deny | None:
    """Why this participant may not end the hold; None if it may."""
    others = [name for name, kind in channel.participants.items() if kind == "human" and name != memory.creator]
    if by in others or (by == memory.creator and not others):
        return None
    wanted = ", ".join(others) or "a person"
    return Deny("not_a_person", f"{by!r} cannot release this conversation; {wanted} or an operator can")


async def _submit(core: HubCore, live: LiveChannel, plan: MoveConversation | ReleaseConversation, *, by: str) -> None:
    core.check_open()
    try:
        await live.submit(plan)
    except Denied as denied:
        draft = Envelope(sender_id=by, event_type=EV_CONVERSATION_MOVED)
        raise await core.audit.refusal(denied, draft) from None


class HandoffHandler:
    """The handoffs that are allowed in the conversations of a router."""

    def __init__(
        self,
        *,
        router: ConversationRouter,
        hub: Hub | None = None,
        agent_aliases: Mapping[str, str] | None = None,
        phase_map: Mapping[str, str] | None = None,
        allowed_transitions: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        if not isinstance(router, ConversationRouter):
            raise UsageError(f"router is {describe(router)}; give a ConversationRouter, or pipeline.to_router()")
        given: Json = {"agent_aliases": dict(agent_aliases or {}), "phase_map": dict(phase_map or {})}
        if allowed_transitions is not None:
            given["allowed_transitions"] = {phase: sorted(to) for phase, to in allowed_transitions.items()}
        self.router, self.rules = router, HandoffRules.loads(given)
        check_handoff_rules(self.rules, router)
        if hub is not None:
            hub.core.conversation_defaults.add_handler(router.to_dict(), self.to_dict())

    def to_dict(self) -> Json:
        """The rules as the knob `handoff` takes them."""
        return self.rules.to_dict()


def setup_handoff(agent: D, handler: HandoffHandler) -> D:
    """A new agent that has the tool `handoff_conversation`. The agent that is given stays as it is.

    In a routed channel every agent is offered the tool, and the channel's own knobs say which handoffs are possible.
    """
    if not isinstance(agent, Declaration):
        raise UsageError(f"{describe(agent)} is no agent; give an Agent")
    if not isinstance(handler, HandoffHandler):
        raise UsageError(f"handler is {describe(handler)}; give a HandoffHandler")
    if any(tool.name == HANDOFF_TOOL_NAME for tool in agent.toolbox):
        return replace(agent)
    return replace(agent, tools=(*agent.tools, HANDOFF_TOOL))


class ConversationDefaults:
    """The router and the handlers that a hub knows, for routed channels that bring none."""

    def __init__(self) -> None:
        self.router: Json | None = None
        self._handlers: list[tuple[Json, Json]] = []

    def add_handler(self, router: Json, rules: Json) -> None:
        """Use these rules for handoffs in the channels of this router. The last one given counts."""
        self._handlers = [each for each in self._handlers if not same_json(each[0], router)]
        self._handlers.append((router, rules))

    def complete(self, channel_type: str, knobs: Json) -> Json:
        """The knobs with the router and the rules in force, where the caller has given none."""
        if channel_type != ROUTED:
            return knobs
        router = knobs.get(ROUTER_KNOB)
        if router is None and self.router is not None:
            router = self.router
            knobs = {**knobs, ROUTER_KNOB: copy_json(router)}
        if HANDOFF_KNOB not in knobs:
            rules = next((rules for known, rules in self._handlers if same_json(known, router)), None)
            knobs = knobs if rules is None else {**knobs, HANDOFF_KNOB: copy_json(rules)}
        return knobs


def without_defaults(channel_type: str, recorded: Json, wanted: Json) -> Json:
    """The recorded knobs without those that the hub has filled in, to compare them with what a caller wants."""
    if channel_type != ROUTED:
        return recorded
    filled = {ROUTER_KNOB, HANDOFF_KNOB} - wanted.keys()
    return {name: value for name, value in recorded.items() if name not in filled}
