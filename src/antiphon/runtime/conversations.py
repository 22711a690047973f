"""Routed conversations as programs hold them: their state, the handler of handoffs, and agents that have the tool.

Rule 1: the state is read from the fold of the log and written by a fact in it.
Rule 2: the knobs of a channel rule. A handler's rules are copied into them when a channel is opened, so that a restart
        needs nothing but the agents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.handoff_tool import HANDOFF_TOOL, HANDOFF_TOOL_NAME
from antiphon.core.codec import copy_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.orchestration.conversation import ConversationState
from antiphon.orchestration.handoff_rules import HandoffRules, check_handoff_rules
from antiphon.orchestration.router import ConversationRouter
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.channel import Channel
from antiphon.runtime.conversation_plans import MoveConversation, conversation_memory, submit_conversation_plan
from antiphon.runtime.hub import Hub

MAX_REASON_CHARS = 1000
D = TypeVar("D", bound=Declaration)


def get_conversation_state(channel: Channel) -> ConversationState:
    """The state of a routed conversation as its log leaves it now. A copy: changing it changes nothing."""
    state = conversation_memory(_check_channel(channel)._live).state
    return msgspec.structs.replace(state, context=copy_json(state.context))


async def set_conversation_state(channel: Channel, state: ConversationState) -> ConversationState:
    """Record the transitions that lead to this state, and its context; returns the state as it is recorded.

    `Denied` with the reason `conflict` if the conversation has moved since the state was read. Agents may not.
    """
    _check_channel(channel)
    if not isinstance(state, ConversationState):
        raise UsageError(f"state is {describe(state)}; give what get_conversation_state gave, after a transition")
    state.check()
    for move in state.phase_history:
        advice = f"a text of up to {MAX_REASON_CHARS} characters"
        check_text_argument(move.reason, "reason", advice, most=MAX_REASON_CHARS)
    live, core, by = channel._live, channel._core, channel._speaker
    conversation_memory(live)
    await submit_conversation_plan(core, live, MoveConversation(state, by, core.new_id), by=by)
    return get_conversation_state(channel)


def _check_channel(channel: object) -> Channel:
    if not isinstance(channel, Channel):
        raise UsageError(f"channel is {describe(channel)}; give what participant.open or participant.channel returned")
    return channel


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
        if hub is not None and not isinstance(hub, Hub):
            raise UsageError(f"hub is {describe(hub)}; give an open Hub, or leave it out")
        aliases, phases = ({} if given is None else given for given in (agent_aliases, phase_map))
        self.router = router
        self.rules = HandoffRules(aliases, phases, allowed_transitions)  # type: ignore[arg-type]  # it checks them
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
