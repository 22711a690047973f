"""The chain of causes of an envelope: back through turns and what they answer, to the message that began it.

Rule 1: a log is enough. Nothing here reads a clock, asks a rule, or needs the program that made the log.
Rule 2: what an agent says is caused by its turn, the turn by its assignment, and that by the message it answers.
Rule 3: a chain begins with a message that answers nothing, or with the opening of the channel. In a channel with turns
        it goes back to the first message: each answers the one because of which its speaker got the turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from antiphon.core.call_permits import call_position
from antiphon.core.conversation_events import (
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_UNROUTED,
    EV_REPLY_DELIVERED,
    EV_TRANSPORT_CONNECTED,
)
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    EV_AGENT_WARNED,
    EV_DEADLINE_EXTENDED,
    EV_GRAPH_WARNED,
    EV_RULE_FAILED,
    EV_TASK_PROGRESS,
    EV_TURN_ASSIGNED,
    JOURNAL_TYPES,
    SPEECH_TYPES,
    TASK_END_TYPES,
)
from antiphon.core.execution_events import (
    EV_APPROVAL_DECIDED,
    EV_APPROVAL_REQUESTED,
    EV_CALL_APPROVED,
    EV_CALL_CLEARED,
    EV_CALL_CONFLICTED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_DELAYED,
    EV_TURN_RESUMED,
    EV_TURN_SUSPENDED,
)
from antiphon.core.protection_events import EV_RUN_CHARGED, EV_RUN_SETTLED, PROTECTION_STRUCTS

COUNTED_TYPES = frozenset({EV_RUN_CHARGED, EV_RUN_SETTLED})
PROTECTION_TYPES = frozenset(PROTECTION_STRUCTS) - COUNTED_TYPES
SAGA_PREFIX = "antiphon.saga."
TURN_DETAIL_TYPES = (
    frozenset(
        {
            EV_APPROVAL_DECIDED,
            EV_APPROVAL_REQUESTED,
            EV_CALL_APPROVED,
            EV_CALL_CLEARED,
            EV_CALL_CONFLICTED,
            EV_CALL_DOUBTED,
            EV_CALL_RETRIED,
            EV_RULE_FAILED,
            EV_CONVERSATION_REFUSED,
            EV_CONVERSATION_UNROUTED,
            EV_TURN_DELAYED,
            EV_TURN_RESUMED,
            EV_TURN_SUSPENDED,
        }
    )
    | PROTECTION_TYPES
    | TASK_END_TYPES
)
"""What a chain shows of a turn, and of what follows from its end, beside who had it and what was said."""
QUIET_TYPES = COUNTED_TYPES | {
    EV_TASK_PROGRESS,
    EV_GRAPH_WARNED,
    EV_AGENT_WARNED,
    EV_DEADLINE_EXTENDED,
    EV_TRANSPORT_CONNECTED,
    EV_REPLY_DELIVERED,
}
"""What changes nothing about the state that a channel is in."""


class CausalLog:
    """A log with its causes looked up."""

    def __init__(self, log: Sequence[Envelope]) -> None:
        self.log = log
        self._ordered = bool(log) and log[0].event_data.get("ordered") is True
        self._by_id = {envelope.envelope_id: envelope for envelope in log}
        self._assignments: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        """The sequences of the assignments of a speaker, by what they answer; under None those of any."""
        self._details: dict[str, list[Envelope]] = defaultdict(list)
        """By turn, and by the id of an envelope from which something follows."""
        self._calls: dict[tuple[str, int], Envelope] = {}
        for envelope in log:
            self._add(envelope)

    def _add(self, envelope: Envelope) -> None:
        if envelope.event_type == EV_TURN_ASSIGNED:
            for name in _names(envelope.event_data.get("speakers")):
                self._assignments[name, None].append(envelope.sequence)
                if envelope.causation_id is not None:
                    self._assignments[name, envelope.causation_id].append(envelope.sequence)
        elif envelope.event_type == EV_CALL_STARTED:
            self._calls[call_position(envelope)] = envelope
        elif is_turn_detail(envelope):
            cause = self._by_id.get(envelope.causation_id or "")
            turn = turn_named_in(envelope) or (turn_named_in(cause) if cause is not None else "")
            self._details[turn or envelope.causation_id or ""].append(envelope)

    def at(self, sequence: int) -> Envelope | None:
        """The envelope of this sequence."""
        found = self.log[sequence - 1] if 0 < sequence <= len(self.log) else None
        return found if found is None or found.sequence == sequence else None

    def find(self, envelope_id: str | None) -> Envelope | None:
        """The envelope of this id."""
        return self._by_id.get(envelope_id or "")

    def call(self, envelope: Envelope) -> Envelope | None:
        """The start of the call that a journal entry is about."""
        return self._calls.get(call_position(envelope))

    def turn_of(self, envelope: Envelope) -> str:
        """The turn that an envelope belongs to, as `17/bob`; "" if it belongs to none."""
        if envelope.event_type not in SPEECH_TYPES:
            return turn_named_in(envelope)
        if envelope.causation_id is None and not self._ordered:
            return ""
        sequence = self._last_assignment(envelope, envelope.causation_id) or self._last_assignment(envelope, None)
        assignment = self.at(sequence)
        if assignment is None or (envelope.causation_id is None and not self._follows_speech(assignment)):
            return ""
        return f"{sequence}/{envelope.sender_id}"

    def _last_assignment(self, envelope: Envelope, answers: str | None) -> int:
        """Where its sender was last given the turn before, to answer this; 0 if it was not."""
        given = self._assignments.get((envelope.sender_id, answers), [])
        before = bisect_left(given, envelope.sequence)
        return given[before - 1] if before else 0

    def _follows_speech(self, assignment: Envelope) -> bool:
        """Whether the turn was given because of something said, and not because the channel was opened."""
        cause = self.find(assignment.causation_id)
        return cause is not None and cause.event_type in SPEECH_TYPES

    def trail(self, subject: Envelope) -> list[Envelope]:
        """The chain that leads to this envelope, and the envelope itself, in the order of the log."""
        found: dict[int, Envelope] = {}
        here: Envelope | None = subject
        while here is not None and here.sequence not in found:
            found[here.sequence] = here
            turn = self.turn_of(here)
            details = (*(self._details[turn] if turn else ()), *self.following(here))
            found |= {each.sequence: each for each in details if each.sequence <= subject.sequence}
            assignment = self.assignment_of(here)
            if assignment is not None:
                found[assignment.sequence] = assignment
            here = self._by_id.get((assignment or here).causation_id or "")
        return [found[sequence] for sequence in sorted(found)]

    def assignment_of(self, envelope: Envelope) -> Envelope | None:
        """The assignment of the turn that an envelope belongs to."""
        return self.at(_assignment_sequence(self.turn_of(envelope)))

    def following(self, envelope: Envelope) -> Sequence[Envelope]:
        """What guards, failures and people have done because of this envelope."""
        return self._details.get(envelope.envelope_id, ())

    def last_decisive(self) -> Envelope | None:
        """The last envelope that says something about the state that the channel is in."""
        decisive = (envelope for envelope in reversed(self.log) if _is_decisive(envelope))
        return next(decisive, self.log[-1] if self.log else None)

    def undone_after(self, end: Envelope) -> list[Envelope]:
        """What is recorded after the end of the channel about undoing its calls."""
        return [each for each in self.log[end.sequence :] if each.event_type.startswith(SAGA_PREFIX)]

    def waiting_since(self, turns: Sequence[str]) -> Envelope | None:
        """The last envelope because of which one of these turns waits for a person."""
        waits = (EV_APPROVAL_REQUESTED, EV_CALL_DOUBTED, EV_TURN_SUSPENDED)
        found = (each for each in reversed(self.log) if each.event_type in waits and turn_named_in(each) in turns)
        return next(found, None)


def is_turn_detail(envelope: Envelope) -> bool:
    """Whether it tells what a guard, a person or a failure has done in a turn."""
    if envelope.sender_id != HUB:
        return False
    kind = envelope.event_type
    if kind == EV_CALL_FINISHED:
        returned = _field(envelope.event_data.get("result"), "returned")
        return _field(returned, "failed") is True
    return kind == EV_CALL_FAILED or kind in TURN_DETAIL_TYPES or kind.startswith(SAGA_PREFIX)


def turn_named_in(envelope: Envelope) -> str:
    """The turn that the data of an envelope of the hub names; "" if it names none."""
    data = envelope.event_data
    if envelope.sender_id != HUB:
        return ""
    if envelope.event_type == EV_APPROVAL_DECIDED:
        parts = str(data.get("approval_id", "")).rsplit(".", 4)
        return f"{parts[1]}/{parts[2]}" if len(parts) == 5 else ""
    turn = data.get("turn")
    return turn if isinstance(turn, str) and envelope.event_type not in COUNTED_TYPES else ""


def _is_decisive(envelope: Envelope) -> bool:
    if envelope.event_type in JOURNAL_TYPES:
        return is_turn_detail(envelope)
    return envelope.event_type not in QUIET_TYPES and not envelope.event_type.startswith(SAGA_PREFIX)


def _assignment_sequence(turn: str) -> int:
    number = turn.partition("/")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 18 else 0


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _names(value: object) -> Iterator[str]:
    return (name for name in value if isinstance(name, str)) if isinstance(value, list) else iter(())
