"""The routed adapter: people write, a router says which agent answers, and agents hand the conversation over.

Rule 1: each message has a turn of its own, one at a time, in order. It is routed when that turn begins: to the agent it
        is addressed to, else to the active agent, else by the rules, else to the default.
Rule 2: what agents say is never routed. An agent passes the conversation on by a handoff alone.
Rule 3: an accepted handoff is recorded with the packet that asks for it and the turn of the agent that goes on.
Rule 4: while a person has the conversation, no agent gets a turn but one that a message is addressed to.
Rule 5: a message that no agent answers is recorded as such. The next one is routed all the same.
Rule 6: the observer gets a turn after each answer, before the next message, and none by rules.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import ClassVar

import msgspec

from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_UNROUTED,
    LEAVES_BY_FIELD,
    OBSERVED_FIELD,
    RECIPIENT_FIELD,
    TRANSPORT_FIELD,
    ConversationMoved,
    ConversationRefused,
    ConversationUnrouted,
)
from antiphon.core.envelope import HUB, NEVER, OPERATORS, Envelope, Json, add_seconds
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import Deny, data_of, event_of
from antiphon.core.events import EV_PACKET, SPEECH_TYPES, FailedTurn, Packet, Routing
from antiphon.core.guard import ALLOW, Change, Deadline, Verdict
from antiphon.core.ruleset import ChannelRoster, Expectation, Finding, Seats, TurnEnd
from antiphon.core.state import WAIT, AnsweredMessage, Assign, Decision, RelatedFact, RuleError, State, Wait
from antiphon.core.text import describe
from antiphon.guards.named_guards import hop_limit_of
from antiphon.guards.run_limits import hop_refusal, is_reached, limit_fact
from antiphon.orchestration.adapters import ACKS_WITHIN, RUNS_WITHIN, finish_decision
from antiphon.orchestration.conversation_memory import (
    OBSERVES,
    ConversationMemory,
    WaitingMessage,
    fold_conversation,
    is_staff,
    reply_route,
)
from antiphon.orchestration.handoff_rules import (
    HUMAN,
    HandoffRules,
    RefusedHandoff,
    handoff_roster_findings,
)
from antiphon.orchestration.routed_handoffs import RoutedHandoffs
from antiphon.orchestration.router import ConversationRouter

MAX_KEPT_REASON_CHARS = 1000
"""How much of a handoff's reason its move keeps: the state of a conversation holds the last fifty."""
OUTBOX_LOOK_SECONDS = 5.0
"""How long after a reply was recorded its channel is loaded again, if it has not left by then."""


class Routed:
    """Two or more: people write, agents answer as a router says, and hand over to each other and to people."""

    name: ClassVar[str] = "routed"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = False
    ends_in: ClassVar[TurnEnd] = "packet"
    threaded: ClassVar[bool] = True
    watches_after_end: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset({"router", "handoff"})
    expectations: ClassVar[tuple[Expectation, ...]] = (ACKS_WITHIN, RUNS_WITHIN)
    memory: ClassVar[type] = ConversationMemory

    def __init__(self, knobs: Json) -> None:
        if knobs.get("router") is None:
            advice = "give knobs={'router': ConversationRouter(…).to_dict()}, or install one with hub.hook"
            raise RulesInvalid(f"a routed channel has no router; {advice}")
        router, handoff = _dict_knob("router", knobs["router"]), knobs.get("handoff")
        self.router = ConversationRouter.loads(router)
        self.rules = HandoffRules.loads(None if handoff is None else _dict_knob("handoff", handoff))
        self.most_hops = hop_limit_of(knobs).most
        self._observer = self.router.supervisor_id
        self.handoffs = RoutedHandoffs(self.rules, self.most_hops, self._observer)

    def evolve(self, memory: ConversationMemory, envelope: Envelope) -> ConversationMemory:
        router = self.router
        return fold_conversation(
            memory,
            envelope,
            first_phase=router.first_phase,
            observer=self._observer,
            keep_texts=router.asks_predicates,
        )

    def check(self, roster: ChannelRoster) -> list[Finding]:
        """What is wrong with the rules in the channel that is about to be opened."""
        return [*self.router.check(roster), *handoff_roster_findings(self.rules, roster)]

    def decide(self, memory: ConversationMemory, state: State, envelope: Envelope) -> Decision:
        """Route the next message once no turn is in progress; after a handoff, give the next agent its turn."""
        if envelope.event_type not in SPEECH_TYPES:
            return WAIT
        finished = finish_decision(envelope)
        if finished is not None:
            return finished
        if state.participants.get(envelope.sender_id) == "agent":
            return self._after_answer(memory, state, envelope)
        return WAIT if state.owed else self._next(memory, state)

    def recover(self, memory: ConversationMemory, state: State, failed: FailedTurn) -> Decision:
        """After a failed turn the next message is routed."""
        return WAIT if state.owed else self._next(memory, state)

    def judge(self, memory: ConversationMemory, state: State, draft: Envelope) -> Verdict:
        """Resolve the handoff of a packet, name the transport of a reply, and let the observer hear private words."""
        changed = self._shown_to_observer(state, draft)
        if draft.event_type in SPEECH_TYPES:
            if draft.event_type == EV_PACKET and state.participants.get(draft.sender_id) == "agent":
                if _hands_over_meanwhile(state, draft):
                    return Deny("not_expected_speaker", "another agent has the turn now; hand over when it has ended")
                changed = self._with_resolved_handoff(memory, state, changed)
            changed = self._with_transport(memory, changed)
        return ALLOW if changed is draft else Change(changed)

    def due(self, memory: ConversationMemory, state: State) -> Deadline | None:
        """When to look at the channel again if a reply has not left by then."""
        pending = [cursor.since for cursor in memory.outbox.values() if cursor.pending]
        return Deadline(add_seconds(min(pending), OUTBOX_LOOK_SECONDS), None) if pending else None

    def promised(self, memory: ConversationMemory) -> int:
        """How many messages wait for the turn that is in progress."""
        return len(memory.waiting)

    # Who answers next

    def _after_answer(self, memory: ConversationMemory, state: State, envelope: Envelope) -> Decision:
        event = _packet_with_target(envelope)
        if event is None or state.owed:
            return WAIT if state.owed else self._next(memory, state)
        routing = event.routing
        if routing.rejected:
            return self._after_refusal(memory, state, envelope, routing=routing)
        moved = _moved_by_handoff(memory, state, envelope, routing=routing, observer=self._observer)
        fact = RelatedFact(EV_CONVERSATION_MOVED, data_of(moved), self._hearers_of(memory, envelope, moved.person))
        if moved.to_agent is None or memory.current is None:
            after = self.evolve(memory, _as_recorded(envelope, fact))
            return _with_facts(self._next(after, state), (fact,))
        reason = f"handoff: {routing.reason}" if routing.reason else "handoff"
        return Assign((moved.to_agent,), reason, facts=(fact,), answers=_answered(memory.current))

    def _after_refusal(
        self, memory: ConversationMemory, state: State, envelope: Envelope, *, routing: Routing
    ) -> Decision:
        """After a handoff that had become impossible: if nothing was said, the message is routed again."""
        refused = ConversationRefused(
            envelope.sender_id, routing.target or "", routing.rejected, routing.phase, late=True
        )
        facts: tuple[RelatedFact, ...] = (RelatedFact(EV_CONVERSATION_REFUSED, data_of(refused), self._operators),)
        reached = hop_refusal(routing.rejected, envelope.sender_id, routing.target or "")
        facts = facts if reached is None else (*facts, limit_fact(reached))
        current, said = memory.current, envelope.event_data.get("body")
        if current is None or said or is_reached(memory.hops, self.most_hops) or envelope.sender_id == self._observer:
            return _with_facts(self._next(memory, state), facts)
        again = msgspec.structs.replace(memory, waiting=(current, *memory.waiting))
        return _with_facts(self._next(again, state, observe=False), facts)

    def _next(self, memory: ConversationMemory, state: State, *, observe: bool = True) -> Decision:
        """The observer's turn about the message that was answered last, then the next message's."""
        current = memory.current
        if observe and current is not None and not memory.observed and self._observes(state):
            return self._observation(memory, current)
        facts: list[RelatedFact] = []
        errors: list[RuleError] = []
        for message in memory.waiting:
            decision = self._route(memory, state, message)
            if isinstance(decision, Assign):
                return msgspec.structs.replace(decision, facts=tuple(facts), errors=(*errors, *decision.errors))
            errors += decision.errors
            facts.append(RelatedFact(EV_CONVERSATION_UNROUTED, data_of(ConversationUnrouted(message.envelope_id))))
            if self._observes(state):
                return _with_facts(self._observation(memory, message), tuple(facts), tuple(errors))
        return Wait(errors=tuple(errors), facts=tuple(facts))

    def _route(self, memory: ConversationMemory, state: State, message: WaitingMessage) -> Assign | Wait:
        answers = _answered(message)
        if message.addressed_to:
            named = message.addressed_to
            hidden = message.audience is not None and named not in message.audience
            if state.participants.get(named) == "agent" and not hidden:
                heard = self._observed(memory, message) if named == self._observer else answers
                return Assign((named,), "addressed", answers=heard)
            return Wait(errors=(RuleError(None, f"the message is addressed to {named!r}, who is no agent here"),))

        def can_answer(name: str) -> bool:
            heard = message.audience is None or name in message.audience
            return heard and name != self._observer and state.participants.get(name) == "agent"

        choice = self.router.select(message.envelope(state.channel_id), state, memory.state, can_answer=can_answer)
        if choice.agent_id is None:
            return Wait(errors=choice.errors)
        return Assign((choice.agent_id,), choice.reason, choice.rule, errors=choice.errors, answers=answers)

    def _hearers_of(self, memory: ConversationMemory, packet: Envelope, person: str) -> tuple[str, ...] | None:
        """Who sees what a handoff says: those who see its packet, and the people who are to take over."""
        if packet.audience is None:
            return None
        others = [packet.sender_id, *([] if self._observer is None else [self._observer])]
        others += _staff_of(memory) if person == HUMAN else [person] if person else []
        return tuple(dict.fromkeys((*packet.audience, *others)))

    # The observer

    @property
    def _operators(self) -> tuple[str, ...]:
        return (OPERATORS,) if self._observer is None else (OPERATORS, self._observer)

    def _observes(self, state: State) -> bool:
        return self._observer is not None and state.participants.get(self._observer) == "agent"

    def _observation(self, memory: ConversationMemory, message: WaitingMessage) -> Assign:
        """The observer's turn about a message that was answered, or that no agent answers."""
        assert self._observer is not None, "without an observer nothing is observed"
        return Assign((self._observer,), OBSERVES, answers=self._observed(memory, message))

    def _observed(self, memory: ConversationMemory, message: WaitingMessage) -> AnsweredMessage:
        """A message for the observer. What it says is for people other than the creator, and for operators."""
        hearers = _staff_of(memory)
        if message.addressed_to == self._observer and message.audience is not None:
            hearers = [name for name in (*message.audience, message.sender) if name != memory.creator]
        audience = tuple(dict.fromkeys(hearers)) or (self._observer or "",)
        return AnsweredMessage(message.envelope_id, message.sequence, audience)

    def _shown_to_observer(self, state: State, draft: Envelope) -> Envelope:
        observer, audience = self._observer, draft.audience
        if audience is None or observer is None or observer in audience or observer not in state.participants:
            return draft
        if draft.sender_id == observer:
            return draft
        data = {**draft.event_data, OBSERVED_FIELD: True}
        return with_fields(draft, audience=[*audience, observer], event_data=data)

    # Handoffs and transports

    def _with_resolved_handoff(self, memory: ConversationMemory, state: State, draft: Envelope) -> Envelope:
        """The packet with its target as the channel spells it, or with the reason why it is refused."""
        event = _packet_with_target(draft)
        if event is None:
            return draft
        routing = event.routing
        found = self.handoffs.resolve(
            memory, state, speaker=draft.sender_id, target=routing.target or "", phase=routing.phase
        )
        if isinstance(found, RefusedHandoff):
            told: Json = {"rejected": found.reason}
        else:
            told = {"target": found.agent or found.person, "phase": found.phase, "briefing": True}
            draft = self._heard_by_next(state, draft, found.agent or found.person)
        written = {**data_of(routing), **told}
        return with_fields(draft, event_data={**draft.event_data, "routing": written})

    def _heard_by_next(self, state: State, draft: Envelope, name: str) -> Envelope:
        """A private packet as the one that it hands over to sees it, too. Agents do not see what the observer says."""
        kind = state.participants.get(name)
        kept = kind is None or (kind == "agent" and draft.sender_id == self._observer)
        if draft.audience is None or name in draft.audience or kept:
            return draft
        return with_fields(draft, audience=[*draft.audience, name])

    def _with_transport(self, memory: ConversationMemory, draft: Envelope) -> Envelope:
        """The reply with the transport by which it leaves. What the observer says stays here."""
        speaks_for_desk = memory.person and memory.kinds.get(draft.sender_id) == HUMAN
        if not speaks_for_desk and (TRANSPORT_FIELD in draft.event_data or draft.sender_id == self._observer):
            return draft
        route = reply_route(memory, draft)
        if route is None:
            return draft
        field = LEAVES_BY_FIELD if TRANSPORT_FIELD in draft.event_data else TRANSPORT_FIELD
        return with_fields(draft, event_data={**draft.event_data, field: route[0], RECIPIENT_FIELD: route[1]})


def _staff_of(memory: ConversationMemory) -> list[str]:
    """The people of the channel other than its creator."""
    return [name for name in memory.kinds if is_staff(memory, name)]


def _hands_over_meanwhile(state: State, draft: Envelope) -> bool:
    """Whether this is a handoff of an agent beside the turn of another one, which it must not take over."""
    beside = bool(state.owed) and all(turn.speaker != draft.sender_id for turn in state.owed)
    return beside and _packet_with_target(draft) is not None


def _packet_with_target(envelope: Envelope) -> Packet | None:
    """The packet, if it asks for a handoff. Most do not, and are not decoded for that."""
    routing = envelope.event_data.get("routing")
    event = event_of(envelope) if isinstance(routing, dict) and routing.get("target") is not None else None
    return event if isinstance(event, Packet) else None


def _dict_knob(name: str, given: object) -> Json:
    if not isinstance(given, dict):
        raise RulesInvalid(
            f"the knob {name!r} of a routed channel is {describe(given)}; give a dict, as to_dict() gives"
        )
    return given


def _moved_by_handoff(
    memory: ConversationMemory, state: State, envelope: Envelope, *, routing: Routing, observer: str | None
) -> ConversationMoved:
    before, target = memory.state, routing.target or ""
    agent = target if state.participants.get(target) == "agent" else None
    from_agent = (
        envelope.sender_id if envelope.sender_id != observer else before.active_agent_id or memory.answering or None
    )
    return ConversationMoved(
        from_phase=before.phase,
        to_phase=routing.phase or before.phase,
        from_agent=from_agent,
        to_agent=agent,
        reason=routing.reason[:MAX_KEPT_REASON_CHARS],
        summary=routing.summary,
        by=envelope.sender_id,
        person="" if agent is not None else target,
        transport="" if routing.escalation in ("", "same") else routing.escalation,
    )


def _as_recorded(cause: Envelope, fact: RelatedFact) -> Envelope:
    """The fact as it will stand in the log behind its cause, to be folded before it does."""
    return Envelope(
        "",
        cause.channel_id,
        HUB,
        None,
        fact.event_type,
        fact.data,
        cause.envelope_id,
        created_at=cause.created_at or NEVER,
        sequence=cause.sequence + 1,
    )


def _answered(message: WaitingMessage) -> AnsweredMessage:
    """The message as what a turn answers. A private one is answered to those who heard it, and to its sender."""
    heard = None if message.audience is None else tuple(dict.fromkeys((*message.audience, message.sender)))
    return AnsweredMessage(message.envelope_id, message.sequence, heard)


def _with_facts(decision: Decision, facts: tuple[RelatedFact, ...], errors: tuple[RuleError, ...] = ()) -> Decision:
    return msgspec.structs.replace(decision, facts=(*facts, *decision.facts), errors=(*errors, *decision.errors))
