"""The reasons of what was decided in a channel: which rule, which guard, which person, in words."""

from __future__ import annotations

from antiphon.core.envelope import HUB, Envelope
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    EV_RULE_FAILED,
    JOURNAL_TYPES,
    ChannelClosed,
    ChannelExpired,
    ChannelPaused,
    ExpectationViolated,
    FailedTurn,
    Packet,
    TurnAssigned,
)
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import ApprovalRequested, CallDoubted, CallFailed, TurnDelayed, TurnSuspended
from antiphon.core.state import State
from antiphon.orchestration.rule_text import closing_rule, default_text, graph_of, rule_text
from antiphon.runtime.causal_chain import CausalLog, turn_named_in
from antiphon.runtime.envelope_text import describe_envelope, is_speech
from antiphon.runtime.reason_meanings import explain_reason

ASSIGNMENT_REASONS = {
    "": "what is said to an agent is a turn that it owes",
    "initial speaker": "the graph begins with this participant",
    "next in the round": "a discussion goes round, and this is the next",
    "opens": "a discussion begins with its creator",
    "answers": "a consultation is answered by the participant that was asked",
    "interjection": "something was interjected before the turn was begun, so it is given again",
    "addressed": "the message is addressed to this agent",
    "affinity": "this agent has the conversation already",
    "observes": "the observer is shown what was answered",
}
"""By the recorded reason of an assignment."""


class DecisionReasons:
    """Looks up why something was decided, in one log."""

    def __init__(self, causal: CausalLog, state: State) -> None:
        self._causal, self._state = causal, state

    def of(self, envelope: Envelope) -> list[str]:
        """The reasons of this envelope, the most direct one first."""
        direct = self._direct(envelope)
        cause = self.cause_of(envelope)
        notes = self._notes_of(cause) if cause is not None else []
        return [self._as_sentence(each) for each in (*direct, *notes)]

    def _as_sentence(self, words: str) -> str:
        named = words.split(maxsplit=1)[0].rstrip(",") in self._state.participants
        words = words.rstrip(".")
        return f"{words if named else words[:1].upper() + words[1:]}."

    def cause_of(self, envelope: Envelope) -> Envelope | None:
        """The envelope from which this one follows."""
        return self._causal.find(envelope.causation_id)

    def assignment(self, envelope: Envelope) -> str:
        """Why the turn was given as this envelope records."""
        event, knobs = event_of(envelope), self._state.knobs
        if not isinstance(event, TurnAssigned):
            return "it was given the turn"
        if event.rule is not None:
            text = rule_text(knobs, event.rule) or event.reason
            return f"rule {event.rule} matched ({text})"
        if event.reason == "default":
            target = default_text(knobs)
            return "no rule matched, so the default decided" + (f" ({target})" if target else "")
        if event.reason.startswith("handoff"):
            return self._handoff(envelope, event.reason)
        if event.reason.startswith("turn_failed"):
            return f"the turn before ended without an answer, so a person goes on: {explain_reason(event.reason)}"
        return ASSIGNMENT_REASONS.get(event.reason, event.reason)

    def _handoff(self, envelope: Envelope, reason: str) -> str:
        cause = self.cause_of(envelope)
        who = cause.sender_id if cause is not None else "the speaker"
        _, _, why = reason.partition(": ")
        return f"{who} handed the turn over" + (f" ({why})" if why else "")

    def _direct(self, envelope: Envelope) -> list[str]:
        event = event_of(envelope)
        match event:
            case TurnAssigned(speakers=speakers):
                names = ", ".join(speakers) or "nobody"
                return [f"{names} got the turn because {self.assignment(envelope)}"]
            case ChannelClosed():
                return self._closing(envelope, event)
            case ChannelExpired():
                return [f"the channel expired: {explain_reason('expired')}"]
            case ChannelPaused(reason=reason):
                return [f"the channel pauses: {explain_reason(reason)}"]
            case FailedTurn(speaker=speaker, reason=reason, detail=detail):
                why = f"; {detail}" if detail else ""
                return [f"the turn of {speaker} ended without an answer: {explain_reason(reason)}{why}"]
            case ExpectationViolated(seconds=seconds, speakers=speakers, expectation=name):
                late = ", ".join(speakers) or "the others"
                return [f"{late} did not do within {seconds:g} seconds what `{name}` expects"]
            case _:
                return self._of_call(envelope) or self._of_speech(envelope)

    def _of_call(self, envelope: Envelope) -> list[str]:
        match event_of(envelope):
            case CallFailed(denied=denied, guard=guard, error=error) if denied:
                by = f"the guard {guard}" if guard else "a ledger that several channels share"
                return [f"{by} denied the call: {explain_reason(denied)}", f"the agent read: {error}"]
            case ApprovalRequested(why=why, name=name):
                return [f"the call {name} leaves only if a person allows it" + (f": {why}" if why else "")]
            case CallDoubted(name=name, why=why):
                return [f"whether the call {name} took effect is not known: {why or 'its process died'}"]
            case TurnSuspended(why=why, crashes=crashes):
                return [f"{crashes} processes in a row died during the turn" + (f": {why}" if why else "")]
            case TurnDelayed(until=until, crashes=crashes):
                return [f"a process died during the turn ({crashes} in a row), which is attempted again after {until}"]
            case _:
                return []

    def _of_speech(self, envelope: Envelope) -> list[str]:
        turn = turn_named_in(envelope)
        if turn and (envelope.event_type in JOURNAL_TYPES or "index" in envelope.event_data):
            call = "call " if "index" in envelope.event_data else ""
            return [f"in turn {turn}, {call}{describe_envelope(envelope)}"]
        if not is_speech(envelope):
            who = "the hub" if envelope.sender_id == HUB else envelope.sender_id
            return [f"{who} {describe_envelope(envelope)}"]
        assignment = self._causal.assignment_of(envelope)
        notes = self._notes_of(envelope)
        if assignment is None:
            return [f"{envelope.sender_id} said it of their own accord", *notes]
        return [f"{envelope.sender_id} had the turn because {self.assignment(assignment)}", *notes]

    def _notes_of(self, cause: Envelope) -> list[str]:
        """What a guard or a limit changed about what was said, and the rules that failed because of it."""
        event, notes = event_of(cause), []
        routing = event.routing if isinstance(event, Packet) else None
        stopped = cause.event_data.get("stopped") if routing is None else routing.stopped
        if isinstance(stopped, str):
            notes.append(f"the turn of {cause.sender_id} was stopped: {explain_reason(stopped)}")
        if routing is not None and routing.rejected:
            refused = f"the handoff of {cause.sender_id} to {routing.target} was refused"
            notes.append(f"{refused}: {explain_reason(routing.rejected)}; the rules decided instead")
        failed = (each for each in self._causal.following(cause) if each.event_type == EV_RULE_FAILED)
        return [*notes, *(f"a rule was passed over because it failed: {describe_envelope(each)}" for each in failed)]

    def _closing(self, envelope: Envelope, event: ChannelClosed) -> list[str]:
        if event.by:
            return [f"{event.by} closed the channel: {explain_reason(event.reason)}"]
        cause = self.cause_of(envelope)
        said = event_of(cause) if cause is not None else None
        if isinstance(said, Packet) and said.routing.finish is not None and cause is not None:
            return [f"{cause.sender_id} said that the work is finished: {event.reason}"]
        if cause is not None and is_speech(cause) and graph_of(self._state.knobs) is not None:
            by_graph = self._closing_by_graph(cause, event.reason)
            if by_graph:
                return [f"the channel ended because {by_graph}"]
        return [f"the channel ended: {explain_reason(event.reason)}"]

    def _closing_by_graph(self, cause: Envelope, reason: str) -> str:
        """The rule or the default of the graph that ended the channel; "" if neither did."""
        knobs = self._state.knobs
        rule = closing_rule(knobs, self._state_at(cause.sequence), cause)
        if rule is not None:
            return f"rule {rule} matched ({rule_text(knobs, rule)})"
        default = default_text(knobs)
        return f"no rule matched, so the default decided ({default})" if default == f"end: {reason}" else ""

    def _state_at(self, sequence: int) -> State:
        state = State()
        for envelope in self._causal.log[:sequence]:
            state = evolve(state, envelope)
        return state
