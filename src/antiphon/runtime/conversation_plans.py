"""Changes of a routed conversation that people and code ask for, as plans: a transition, and the end of a hold.

Rule 1: agents change nothing here. They hand over.
Rule 2: a transition from a state that is not the present one is refused, so that nothing another writer did is lost.
Rule 3: a hold is ended by another person than the creator, or by the creator where there is no other person.
"""

from __future__ import annotations

import msgspec

from antiphon.core.codec import same_json
from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_RELEASED,
    ConversationMoved,
    ConversationReleased,
)
from antiphon.core.envelope import Envelope, IdSource, Instant
from antiphon.core.errors import Denied, UsageError
from antiphon.core.event_data import Deny, data_of
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, hub_draft, record_all
from antiphon.core.text import describe
from antiphon.hub.live import LiveChannel
from antiphon.orchestration.conversation import MAX_PHASE_HISTORY, ConversationState, pending_transitions
from antiphon.orchestration.conversation_memory import ConversationMemory
from antiphon.runtime.conversation_defaults import ROUTED
from antiphon.runtime.core import HubCore


def conversation_in(live: LiveChannel) -> ConversationMemory | None:
    """What a routed channel remembers; None for one of another type, and for one that was erased."""
    memory = live.ruleset.adapter_memory(live.fold)
    return memory if isinstance(memory, ConversationMemory) else None


def conversation_memory(live: LiveChannel) -> ConversationMemory:
    """What a routed channel remembers; `UsageError` for a channel of another type."""
    return _memory_of(live.ruleset, live.fold)


def _memory_of(ruleset: Ruleset, fold: Fold) -> ConversationMemory:
    memory = ruleset.adapter_memory(fold)
    if isinstance(memory, ConversationMemory):
        return memory
    kind = fold.state.type or "damaged"
    if kind == ROUTED:
        raise UsageError("this conversation was erased; its state is gone with what was said")
    raise UsageError(f"a channel of type {kind!r} has no conversation state; open it with type='routed'")


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
            return Deny("conflict", _conflict(memory.state, wanted))
        same_context = same_json(memory.state.context, wanted.context)
        if not moves and same_context:
            return None
        drafts: list[Envelope] = []
        held = memory.person
        for number, move in enumerate(moves):
            agent, last, released = move.to_agent, number == len(moves) - 1, ""
            if agent is not None and agent not in _answering_agents(ruleset, channel):
                return _unknown_agent(agent, ruleset, channel)
            if agent is not None and held:
                refused = _denial_of_release(memory, channel, self.by)
                if refused is not None:
                    return refused
                held, released = "", held
            moved = ConversationMoved(
                move.from_phase, move.to_phase, move.from_agent, agent, move.reason, by=self.by, released=released
            )
            if last and not same_context:
                moved = msgspec.structs.replace(moved, context=wanted.context)
            drafts.append(hub_draft(EV_CONVERSATION_MOVED, data_of(moved)))
        if not moves:
            phase, agent = memory.state.phase, memory.state.active_agent_id
            noted = ConversationMoved(phase, phase, agent, agent, "context", by=self.by, noted=True)
            noted = msgspec.structs.replace(noted, context=wanted.context)
            drafts.append(hub_draft(EV_CONVERSATION_MOVED, data_of(noted)))
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=self.new_id)


class ReleaseConversation(msgspec.Struct, frozen=True):
    """Plans the end of a person's hold."""

    to: str | None
    by: str
    new_id: IdSource
    operator: bool = False

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        memory, channel = _memory_of(ruleset, fold), fold.state
        denial = _denial_of_closed(channel) if self.operator else _denial_of_writer(channel, self.by)
        if denial is None and not memory.person:
            denial = Deny("not_held", "no person has this conversation; there is nothing to release")
        if denial is None and not self.operator:
            denial = _denial_of_release(memory, channel, self.by)
        if denial is None and self.to is not None and self.to not in _answering_agents(ruleset, channel):
            denial = _unknown_agent(self.to, ruleset, channel)
        if denial is not None:
            return denial
        released = ConversationReleased(self.by, self.to, memory.person, memory.state.phase)
        draft = hub_draft(EV_CONVERSATION_RELEASED, data_of(released))
        return record_all(fold, [draft], ruleset=ruleset, at=at, new_id=self.new_id)


def _answering_agents(ruleset: Ruleset, channel: State) -> list[str]:
    """The agents that a conversation can be given to."""
    handoffs = ruleset.traits.handoffs
    assert handoffs is not None, "a routed channel has handoffs"
    return handoffs.agents(channel)


def _conflict(current: ConversationState, wanted: ConversationState) -> str:
    ahead = wanted.revision - current.revision
    if ahead > MAX_PHASE_HISTORY:
        return f"the state is {ahead} transitions ahead; record it after {MAX_PHASE_HISTORY} at most"
    return "the conversation has moved since this state was read; read it again"


def _unknown_agent(name: str, ruleset: Ruleset, channel: State) -> Deny:
    known = ", ".join(_answering_agents(ruleset, channel))
    return Deny("target_not_found", f"{describe(name)} is no agent that answers here; there are: {known}")


def _denial_of_closed(channel: State) -> Deny | None:
    return None if channel.status == "active" else Deny("channel_closed", f"its status is {channel.status!r}")


def _denial_of_writer(channel: State, by: str) -> Deny | None:
    closed = _denial_of_closed(channel)
    if closed is not None:
        return closed
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


async def release_conversation(
    core: HubCore, live: LiveChannel, to: str | None, *, by: str, operator: bool = False
) -> None:
    """End the hold of a person over a routed conversation. See `Channel.release`. An operator may end any."""
    if to is not None and not isinstance(to, str):
        raise UsageError(f"to is {describe(to)}; give the name of an agent, or None")
    conversation_memory(live)
    await submit_conversation_plan(core, live, ReleaseConversation(to, by, core.new_id, operator), by=by)


async def submit_conversation_plan(
    core: HubCore, live: LiveChannel, plan: MoveConversation | ReleaseConversation, *, by: str
) -> None:
    """Record a change of a conversation, or raise `Denied` and note the refusal."""
    core.check_open()
    try:
        await live.submit(plan)
    except Denied as denied:
        draft = Envelope(sender_id=by, event_type=EV_CONVERSATION_MOVED)
        raise await core.audit.refusal(denied, draft) from None
