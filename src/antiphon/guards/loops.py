"""Loops: an agent that makes the same call, or says the same, again and again.

Rule 1: first the agent reads it: the call is not made, and its result says so; of a text it reads a note with its next
        turn. If it goes on, its turn ends, or a person decides; of a text, the channel pauses or ends.
Rule 2: only the calls that repeat are denied. The others of the message are made, and recorded.
Rule 3: what is counted, and when counting begins anew, is said in `loop_windows`.
Rule 4: each loop is recorded as `antiphon.flow.loop_detected` in the batch of what showed it, with digests alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import OPERATORS, Envelope, seconds_between
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CHANNEL_CREATED, SPEECH_TYPES
from antiphon.core.execution_events import (
    EV_APPROVAL_DECIDED,
    EV_APPROVAL_REQUESTED,
    EV_CALL_CLEARED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    EV_TURN_RESUMED,
)
from antiphon.core.guard import ALLOW, Ask, Deny, Permission
from antiphon.core.protection_events import EV_AGENT_CORRECTED, EV_LOOP_DETECTED, AgentCorrected, LoopDetected
from antiphon.core.state import Assign, Close, Decision, RelatedFact, State, Wait
from antiphon.core.text import describe
from antiphon.guards.loop_windows import (
    AgentWindow,
    LoopMemory,
    RecentCall,
    RecentPoll,
    after_creation,
    after_decision,
    after_finish,
    after_speech,
    after_start,
    after_trip,
    agent_of_call,
    is_early,
    next_poll_at,
    position_of,
    speaking_agent,
)
from antiphon.guards.named_guards import Tier
from antiphon.guards.run_limits import UNLIMITED, Limit

LOOP = "loop"
MAX_WINDOW = 100
CYCLE_PERIODS = (2, 3)
"""The lengths of cycles that are looked for. One call that repeats is what the threshold is about."""
CallLoopAction = Literal["terminate", "ask"]
TextLoopAction = Literal["pause", "close"]
REPEATED_TEXT_BY_TIER: dict[Tier, TextLoopAction | None] = {"interactive": None, "batch": "close", "regulated": "pause"}
DECISION_TYPES = frozenset({EV_APPROVAL_DECIDED, EV_CALL_CLEARED, EV_TURN_RESUMED})
"""What people decide."""


class Repetition(msgspec.Struct, frozen=True):
    """Calls or texts that are too many."""

    detector: Literal["tool", "text", "cycle"]
    key: str
    count: int
    first_seq: int
    period: int = 0
    limit: int = 0
    """How many polls may follow each other; 0 for anything but a poll."""


class LoopDetector(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stops an agent that makes the same call, or says the same text, `threshold` times among its last `window`.

    So does a cycle of two or three calls that repeats `threshold` times.
    """

    name: ClassVar[str] = "loop"
    memory: ClassVar[type] = LoopMemory
    hears: ClassVar[frozenset[str]] = (
        SPEECH_TYPES
        | DECISION_TYPES
        | {
            EV_CHANNEL_CREATED,
            EV_CALL_STARTED,
            EV_CALL_FINISHED,
            EV_LOOP_DETECTED,
        }
    )
    notes: ClassVar[frozenset[str]] = SPEECH_TYPES | {EV_CALL_FAILED, EV_APPROVAL_REQUESTED}
    window: int = 5
    """How many of the last calls, or texts, of an agent are compared."""
    threshold: Limit = 3
    """The equal call that is not made any more, or the equal text that counts as a loop; or `unlimited`."""
    repeated_call: CallLoopAction | None = None
    """What follows if an agent goes on after it was told: its turn ends, or a person decides. None: as the tier says,
    and without one the turn ends."""
    repeated_text: TextLoopAction | None = None
    """The same for texts: the channel pauses until a person or code speaks, or it ends. A channel with turns does not
    pause: its first person has the turn, and without a person it ends. None: as the tier says, and without one a
    channel with turns ends, and any other pauses."""
    approvers: tuple[str, ...] = ()
    """The people and roles that may decide; empty for those that the channel allows."""

    def __post_init__(self) -> None:
        if type(self.window) is not int or not 2 <= self.window <= MAX_WINDOW:
            raise RulesInvalid(f"window of loop is {describe(self.window)}; give a number from 2 to {MAX_WINDOW}")
        if self.threshold != UNLIMITED and not (type(self.threshold) is int and 2 <= self.threshold <= self.window):
            wanted = f"a number from 2 to the window, {self.window}, or {UNLIMITED!r}"
            raise RulesInvalid(f"threshold of loop is {describe(self.threshold)}; give {wanted}")
        for field, known in (("repeated_call", ("terminate", "ask")), ("repeated_text", ("pause", "close"))):
            given = getattr(self, field)
            if given is not None and given not in known:
                raise RulesInvalid(f"{field} of loop is {describe(given)}; give {' or '.join(map(repr, known))}")

    def for_tier(self, tier: Tier) -> LoopDetector:
        """The same, with what was left open filled in for this tier."""
        if tier == "regulated" and self.threshold == UNLIMITED:
            raise RulesInvalid("threshold of loop is 'unlimited', and the regulated tier wants a number")
        calls: CallLoopAction = "ask" if tier == "regulated" else "terminate"
        return replace(
            self,
            repeated_call=self.repeated_call or calls,
            repeated_text=self.repeated_text or REPEATED_TEXT_BY_TIER[tier],
        )

    def evolve(self, memory: LoopMemory, envelope: Envelope) -> LoopMemory:
        kind = envelope.event_type
        if kind in SPEECH_TYPES:
            return after_speech(memory, envelope, size=self.window)
        if kind == EV_CALL_STARTED:
            return after_start(memory, envelope, size=self._remembered_calls)
        if kind == EV_CALL_FINISHED:
            return after_finish(memory, envelope)
        if kind == EV_LOOP_DETECTED:
            return after_trip(memory, envelope)
        if kind == EV_CHANNEL_CREATED:
            return after_creation(memory, envelope)
        return after_decision(memory) if kind in DECISION_TYPES else memory

    def permit(self, memory: LoopMemory, state: State, draft: Envelope) -> Permission:
        data = draft.event_data
        key = data.get("same")
        if not isinstance(key, str) or not key:
            return ALLOW
        agent = agent_of_call(data)
        window = memory.window_of(agent)
        if window.has_started(data.get("turn"), data.get("index")):
            return ALLOW
        tool = str(data.get("name"))
        poll = window.poll_of(key)
        if poll is not None and data.get("poll_max"):
            found = _too_many_polls(poll, poll.count + 1)
            if found is None and is_early(poll, draft.created_at, data):
                return _too_early(poll, draft)
        else:
            found = None if data.get("poll_max") else self._repeated_call(window.calls, key)
        return ALLOW if found is None else self._stopped(window, found, agent=agent, tool=tool)

    def notice(self, memory: LoopMemory, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        kind, data = envelope.event_type, envelope.event_data
        if kind in SPEECH_TYPES:
            return self._notice_text(memory, envelope)
        if data.get("guard") != self.name:
            return ()
        if kind == EV_APPROVAL_REQUESTED:
            agent, key = agent_of_call(data), str(data.get("same"))
            window = memory.window_of(agent)
            poll = window.poll_of(key)
            found = self._repeated_call(window.calls, key) if poll is None else _too_many_polls(poll, poll.count + 1)
            return self._facts(window, found, agent=agent, tool=str(data.get("name")), last_seq=envelope.sequence)
        return self._notice_denial(memory, envelope) if kind == EV_CALL_FAILED else ()

    def _notice_denial(self, memory: LoopMemory, envelope: Envelope) -> Sequence[RelatedFact]:
        """The loop of the call that was just denied, which is the last of its agent's window."""
        position = position_of(envelope.event_data)
        for agent, window in memory.windows.items():
            call = window.calls[-1] if window.calls else None
            if call is not None and call.position == position:
                found = self._repeated_call(window.calls[:-1], call.key)
                return self._facts(window, found, agent=agent, tool=call.tool, last_seq=call.sequence)
            poll = window.polls[-1] if window.polls else None
            if poll is not None and poll.position == position:
                found = _too_many_polls(poll, poll.count)
                return self._facts(window, found, agent=agent, tool=poll.tool, last_seq=poll.last_seq)
        return ()

    def _notice_text(self, memory: LoopMemory, envelope: Envelope) -> Sequence[RelatedFact]:
        agent = speaking_agent(envelope)
        window = memory.window_of(agent)
        found = self._repeated_text(window) if memory.last == agent else None
        facts = self._facts(window, found, agent=agent, last_seq=envelope.sequence)
        if found is None or not facts or not window.is_first_trip:
            return facts
        said = f"You have said the same {found.count} times among your last {self.window} messages"
        text = f"{said}, and nothing has come of it. Say or do something else, or say what you are missing."
        member = agent if agent != envelope.sender_id else ""
        note = data_of(AgentCorrected(text, self.name, member))
        return (*facts, RelatedFact(EV_AGENT_CORRECTED, note, (envelope.sender_id, OPERATORS)))

    def review(self, memory: LoopMemory, state: State, decision: Decision) -> Decision:
        if not isinstance(decision, Assign) or not (memory.stopped or self._stops_now(memory)):
            return decision
        follows = self.repeated_text or ("close" if state.ordered else "pause")
        if follows == "pause" and not state.ordered:
            return Wait(LOOP, errors=decision.errors, facts=decision.facts)
        person = next((name for name, kind in state.participants.items() if kind == "human"), None)
        if follows == "pause" and person is not None:
            return Assign((person,), LOOP, errors=decision.errors, facts=decision.facts)
        return Close(LOOP, errors=decision.errors, facts=decision.facts)

    def _stops_now(self, memory: LoopMemory) -> bool:
        """Whether the last text is a repetition by an agent that was told before. It is recorded after the decision."""
        if not memory.last:
            return False
        window = memory.window_of(memory.last)
        return not window.is_first_trip and self._repeated_text(window) is not None

    @property
    def _remembered_calls(self) -> int:
        """How many calls of an agent are remembered: enough for the longest cycle."""
        if isinstance(self.threshold, str):
            return 1
        return max(self.window, self.threshold * CYCLE_PERIODS[-1])

    def _repeated_call(self, before: Sequence[RecentCall], key: str) -> Repetition | None:
        """The repetition that one more call with this key is; None if it is none."""
        threshold = self.threshold
        if isinstance(threshold, str):
            return None
        equal = [call.sequence for call in before[1 - self.window :] if call.key == key]
        if len(equal) + 1 >= threshold:
            return Repetition("tool", key, len(equal) + 1, equal[0])
        periods = [period for period in CYCLE_PERIODS if len(before) >= period and before[-period].key == key]
        keys = [*(call.key for call in before), key] if periods else []
        for period in periods:
            length = period * threshold
            if len(keys) >= length and keys[-length:] == keys[-period:] * threshold:
                return Repetition("cycle", key, threshold, before[1 - length].sequence, period)
        return None

    def _repeated_text(self, window: AgentWindow) -> Repetition | None:
        """The repetition that the last text of a window is; None if it is none."""
        if isinstance(self.threshold, str) or not window.texts:
            return None
        key = window.texts[-1].key
        equal = [text.sequence for text in window.texts if text.key == key]
        if len(equal) < self.threshold or _answers_something_new(window):
            return None
        return Repetition("text", key, len(equal), equal[0])

    def _stopped(self, window: AgentWindow, found: Repetition, *, agent: str, tool: str) -> Permission:
        """What becomes of a call that is a repetition."""
        why = self._describe(found, tool)
        if window.is_first_trip:
            advice = "Use the results that you have, call it with other arguments, or go on without it"
            return Deny(LOOP, f"{tool} was not called again: {why}. {advice}; if you repeat it, {self._threat}.")
        if self.repeated_call != "ask":
            ending = "You were told before, so your turn ends"
            return Deny(LOOP, f"{tool} was not called again: {why}. {ending}.", final=True)
        if found.key in window.unread:
            return Deny(LOOP, f"{tool} was not called again: {why}. A person is asked about the same call already.")
        return Ask(f"{agent} repeats itself, also after it was told: {why}", self.approvers)

    @property
    def _threat(self) -> str:
        return "a person has to decide" if self.repeated_call == "ask" else "your turn ends"

    def _describe(self, found: Repetition, tool: str) -> str:
        if found.detector == "cycle":
            return f"the same {found.period} calls would follow each other {found.count} times"
        if found.limit:
            return f"this would be poll {found.count} with the same arguments, and {found.limit} may follow each other"
        return f"this would be call {found.count} with the same arguments among the last {self.window}"

    def _facts(
        self, window: AgentWindow, found: Repetition | None, *, agent: str, last_seq: int, tool: str = ""
    ) -> tuple[RelatedFact, ...]:
        """The record of a repetition; nothing for one that the same message of the model has shown before."""
        if found is None or found.key in window.unread:
            return ()
        detected = LoopDetected(
            found.detector,
            found.key,
            self._action(window, found),
            agent,
            tool,
            found.count,
            self.window,
            found.limit + 1 if found.limit else self._known_threshold,
            found.period,
            found.first_seq,
            last_seq,
        )
        return (RelatedFact(EV_LOOP_DETECTED, data_of(detected), (OPERATORS,)),)

    def _action(self, window: AgentWindow, found: Repetition) -> Literal["correct", "terminate", "escalate"]:
        if window.is_first_trip:
            return "correct"
        return "escalate" if self.repeated_call == "ask" and found.detector != "text" else "terminate"

    @property
    def _known_threshold(self) -> int:
        return 0 if isinstance(self.threshold, str) else self.threshold


def _too_many_polls(poll: RecentPoll, count: int) -> Repetition | None:
    """The repetition that so many polls are; None if they are within their limit."""
    return Repetition("tool", poll.key, count, poll.sequence, limit=poll.most) if count > poll.most else None


def _too_early(poll: RecentPoll, draft: Envelope) -> Deny:
    """The denial of a poll that comes too soon after the last one."""
    seconds, tool = draft.event_data.get("poll_seconds"), draft.event_data.get("name")
    assert isinstance(seconds, int | float), "a poll is early only where seconds must lie between two"
    again = next_poll_at(poll, seconds)
    left = math.ceil(seconds_between(draft.created_at, again))
    when = f"it may be called again with these arguments in {left} s, at {again}"
    return Deny(LOOP, f"{tool} was not called: {when}. Do something else until then, or end your turn.")


def _answers_something_new(window: AgentWindow) -> bool:
    """Whether the last text answers what was not said before: the same verdict about a new draft is no loop."""
    *before, last = window.texts
    return bool(last.answers) and all(text.answers != last.answers for text in before)
