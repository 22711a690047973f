"""Envelopes of calls as guards are shown them, and guards with the memory that they have by then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar, cast

from antiphon import Ask, Deny, Envelope, State
from antiphon.core.envelope import HUB, add_seconds
from antiphon.core.events import EV_CHANNEL_CREATED, EV_TEXT
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.core.guard import Allow, Permits, Remembers
from antiphon.core.opinions import CallGuards, opinions_of
from antiphon.core.state import Fold, RelatedFact

START = "2026-01-05T10:00:00.000000Z"
TURN = "17/bob"
G = TypeVar("G")


def at(seconds: float) -> str:
    """So many seconds after the beginning."""
    return add_seconds(START, seconds)


def entry(event_type: str, /, seconds: float = 0.0, sender: str = HUB, **data: object) -> Envelope:
    return Envelope(sender_id=sender, event_type=event_type, event_data=data, created_at=at(seconds), channel_id="room")


def started(
    index: int,
    *,
    most: int = 0,
    tokens: int = 0,
    tool: str = "",
    turn: str = TURN,
    seconds: float = 0.0,
    **more: object,
) -> Envelope:
    """A call of a model, or of this tool, that is about to leave."""
    data: dict[str, object] = {"turn": turn, "index": index, "name": tool or "model", "digest": "d", **more}
    if tool:
        data["args"] = {}
    else:
        data |= {"most": most, "tokens": tokens, "until": at(seconds + 120)}
    return entry(EV_CALL_STARTED, seconds, **data)


def finished(index: int, *, cost: int = 0, tokens: int = 0, turn: str = TURN, seconds: float = 0.0) -> Envelope:
    return entry(EV_CALL_FINISHED, seconds, turn=turn, index=index, result={}, cost=cost, tokens=tokens)


def failed(index: int, *, turn: str = TURN, seconds: float = 0.0, **data: object) -> Envelope:
    return entry(EV_CALL_FAILED, seconds, turn=turn, index=index, error="it failed", **data)


def created() -> Envelope:
    """A channel of ann, a person, and bob, an agent."""
    seats = [{"name": "ann", "kind": "human"}, {"name": "bob", "kind": "agent"}]
    return entry(EV_CHANNEL_CREATED, type="conversation", creator="ann", participants=seats)


def said(by: str, seconds: float = 0.0) -> Envelope:
    return entry(EV_TEXT, seconds, sender=by, text="Go on.")


class Counting(Generic[G]):
    """A guard in a channel, with what it remembers. `task`: in that of a task."""

    def __init__(self, guard: G, *, task: bool = False) -> None:
        self.guard = guard
        self._remembers = cast("Remembers[object]", guard)
        self._permits = cast("Permits[object]", guard)
        self.memory: object = self._remembers.memory()
        self.state = State(channel_id="room", knobs={"task": {"root": "root"}} if task else {})

    def hear(self, *envelopes: Envelope) -> None:
        for envelope in envelopes:
            if envelope.event_type in self._remembers.hears:  # type: ignore[attr-defined]
                self.memory = self._remembers.evolve(self.memory, envelope)

    def answer(self, draft: Envelope) -> str:
        """What is said about a call: `allow`, `deny` or `ask`."""
        match self._permits.permit(self.memory, self.state, draft):
            case Allow():
                return "allow"
            case Deny(reason=reason):
                assert reason == "budget"
                return "deny"
            case Ask():
                return "ask"
            case other:
                raise AssertionError(other)

    def why(self, draft: Envelope) -> Ask | Deny:
        answer = self._permits.permit(self.memory, self.state, draft)
        assert isinstance(answer, Ask | Deny)
        return answer

    def try_call(self, draft: Envelope) -> bool:
        """Let a call leave if it is allowed. A denial is recorded as the engine does it."""
        if self.answer(draft) == "allow":
            self.hear(draft)
            return True
        data = draft.event_data
        self.hear(draft, failed(int(str(data["index"])), turn=str(data["turn"]), denied="budget", guard="budget"))
        return False

    def notices(self, envelope: Envelope) -> list[RelatedFact]:
        return list(self.guard.notice(self.memory, self.state, envelope))  # type: ignore[attr-defined]

    def offered(self, offer: Envelope) -> Deny | tuple[RelatedFact, ...]:
        """What is answered to an offer, and recorded of it."""
        parts = [(0, self.guard, opinions_of(self.guard))]
        answered = CallGuards(parts).answer(Fold(self.state, (self.memory,)), offer)
        if not isinstance(answered, Deny):
            self.hear(*(entry(fact.event_type, **fact.data) for fact in answered))
        return answered


def all_answers(counting: Counting[G], drafts: Iterable[Envelope]) -> list[bool]:
    """Which of these calls leave, one after the other, as in one batch."""
    return [counting.try_call(draft) for draft in drafts]
