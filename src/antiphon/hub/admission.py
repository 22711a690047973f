"""Requests for admission to a channel: their order, and the decision on a batch of them.

Rule 1: requests are decided in their order, each on the state that the ones before it lead to.
Rule 2: a request that must wait for the turns in progress is deferred. It is decided again in the batch that ends such
        a turn, before the next requests, so that the next speaker has read it.
Rule 3: within one priority, first come, first served. A higher priority goes first, but a waiting request is overtaken
        at most `MAX_TIMES_OVERTAKEN` times.
Rule 4: a plan is a function of the present fold, and says what is to be recorded. It may be called several times, in
        the order of admission, and its last outcome counts: what it notes about one, the next overwrites. It returns a
        batch, a refusal, `Later`, or None if there is nothing to record any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Generic, TypeVar

import msgspec

from antiphon.core.codec import same_json
from antiphon.core.conversation_events import LEAVES_BY_FIELD, OBSERVED_FIELD, RECIPIENT_FIELD, TRANSPORT_FIELD
from antiphon.core.envelope import HUB, Envelope, IdSource, Instant, Json, Priority
from antiphon.core.errors import AntiphonError, Denied
from antiphon.core.event_data import Deny, check_event_data, original_digest
from antiphon.core.events import ASIDE_FIELD, EV_RULE_FAILED, JOURNAL_TYPES, ORIGINAL_FIELD, SPEECH_TYPES
from antiphon.core.guard import Later
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, record
from antiphon.hub.known_secrets import redact_error, redact_text

AdmissionPlan = Callable[[Fold, Ruleset, Instant], Admitted | Deny | Later | None]
"""What a request wants, as a function of the present fold (Rule 4)."""

AdmissionResult = Envelope | Deny | None
"""The first envelope recorded, a refusal, or that there was nothing to record."""


class AdmissionRequest(msgspec.Struct, eq=False):
    """A plan on its way into a channel. It is settled once."""

    plan: AdmissionPlan
    draft: Envelope | None = None
    """Given when the draft carries an id of its own and may have been recorded before."""
    answer: AdmissionResult | Exception = None
    settled: bool = False
    done: asyncio.Future[None] | None = None
    """What the caller waits for; None while the caller itself admits it."""
    dropped: bool = False
    """Whether the caller that admitted it was cancelled."""

    def settle(self, answer: AdmissionResult | Exception) -> None:
        """Give the result. The first one stands."""
        if self.settled:
            return
        self.answer, self.settled = answer, True
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def wait_settled(self) -> None:
        """Wait for the result of a request that is deferred or a duplicate."""
        self.done = asyncio.get_running_loop().create_future()
        await self.done

    def result(self, channel_id: str) -> Envelope | None:
        """The result; raised if it is an error."""
        if isinstance(self.answer, Deny):
            raise Denied(self.answer.reason, channel_id, self.answer.detail)
        if isinstance(self.answer, AntiphonError):
            raise copy(self.answer) from self.answer  # others may have been given the same
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @property
    def caller_gone(self) -> bool:
        """Whether the caller has stopped waiting."""
        return self.dropped or (self.done is not None and self.done.cancelled())


class RecordDraft(msgspec.Struct, frozen=True):
    """Plans a draft of the hub with all that follows from it. A channel that has ended takes none."""

    draft: Envelope
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        if fold.state.ended:
            return None
        return record(fold, self.draft, ruleset=ruleset, at=at, new_id=self.new_id)


def plan_nothing(fold: Fold, ruleset: Ruleset, at: Instant) -> None:
    """A plan that records nothing itself: for what every batch does first, such as recording what has fallen due."""


def first_or_conflict(draft: Envelope, first: Envelope) -> Envelope | Deny:
    """The first envelope of this id, if the draft says the same."""
    equal = (
        draft.sender_id == first.sender_id
        and draft.event_type == first.event_type
        and _is_same_content(draft, _without_hub_marks(draft.event_data, first.event_data))
        and draft.audience == _audience_as_sent(draft, first)
        and draft.causation_id == first.causation_id
    )
    return first if equal else Deny("conflict", "this message_id was used before with other content")


def _is_same_content(draft: Envelope, recorded: Json) -> bool:
    """Whether the sender asked to record the same, also if a hook has rewritten it."""
    asked = draft.event_data
    if draft.event_type in SPEECH_TYPES and (ORIGINAL_FIELD in recorded or ORIGINAL_FIELD in asked):
        return original_digest(asked) == original_digest(recorded)
    return same_json(asked, recorded)


def _audience_as_sent(draft: Envelope, first: Envelope) -> list[str] | None:
    """The recorded audience without the observer, if the hub has added it."""
    observed = OBSERVED_FIELD in first.event_data and OBSERVED_FIELD not in draft.event_data
    return first.audience[:-1] if observed and first.audience is not None else first.audience


def _without_hub_marks(asked: Json, recorded: Json) -> Json:
    """The recorded data without the marks of the hub: an aside, how its handoff was spelled or rejected, how it leaves,
    and that it is observed.
    """
    marks = {ASIDE_FIELD, OBSERVED_FIELD, LEAVES_BY_FIELD}
    if RECIPIENT_FIELD in recorded and RECIPIENT_FIELD not in asked:
        marks |= {RECIPIENT_FIELD, TRANSPORT_FIELD}
    plain = {key: value for key, value in recorded.items() if key not in marks or key in asked}
    routing, wanted = plain.get("routing"), asked.get("routing")
    if isinstance(routing, dict) and isinstance(wanted, dict):
        kept = {key: value for key, value in routing.items() if key != "rejected" or "rejected" in wanted}
        name, target = wanted.get("target"), kept.get("target")
        if isinstance(name, str) and isinstance(target, str) and name.lower() == target.lower():
            kept["target"] = name  # it was recorded as the channel spells it
        plain["routing"] = kept
    return plain


class AdmissionBatch:
    """The outcome of some requests, before it is recorded."""

    __slots__ = ("_answers", "_at", "_refusal", "_ruleset", "batch", "deferred", "fold")

    def __init__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> None:
        self.fold, self._ruleset, self._at = fold, ruleset, at
        self.batch: list[Envelope] = []
        self._answers: list[tuple[AdmissionRequest, AdmissionResult]] = []
        self.deferred: list[AdmissionRequest] = []
        """Those that must wait for the turns in progress."""
        self._refusal: Deny | None = None

    def tick(self, plan: AdmissionPlan) -> None:
        """Decide first on what has fallen due. If the rules fail on that, they do on everything."""
        outcome = run_plan(plan, self.fold, self._ruleset, at=self._at)
        if isinstance(outcome, Admitted):
            self.batch += outcome.batch
            self.fold = outcome.fold
        elif isinstance(outcome, Deny):
            self._refusal = outcome

    def decide(self, requests: Sequence[AdmissionRequest]) -> None:
        """Decide on all of these."""
        for request in requests:
            owed = self.fold.state.owed
            self._decide_on(request)
            # By identity: `evolve` replaces `owed` only if a turn has changed. A copy would retry after every request.
            if self.deferred and self.fold.state.owed is not owed:
                held, self.deferred = self.deferred, []
                self.decide(held)

    def _decide_on(self, request: AdmissionRequest) -> None:
        outcome = self._refusal or run_plan(request.plan, self.fold, self._ruleset, at=self._at)
        if isinstance(outcome, Admitted):
            batch = outcome.batch
            self.batch += batch
            self.fold = outcome.fold
            self._answers.append((request, batch[0] if batch else None))
        elif isinstance(outcome, Later):
            self.deferred.append(request)
        else:
            self._answers.append((request, outcome))

    def settle(self) -> None:
        """Settle every request that was decided."""
        for request, answer in self._answers:
            request.settle(answer)


def _is_made_by_rules(envelope: Envelope) -> bool:
    """Whether rules made this; what people say, and what was copied, has been looked at before."""
    return envelope.sender_id == HUB and envelope.event_type not in JOURNAL_TYPES


def run_plan(plan: AdmissionPlan, fold: Fold, ruleset: Ruleset, *, at: Instant) -> Admitted | Deny | Later | None:
    """The outcome of a plan. An error of the rules is a refusal, and so is a consequence that cannot be recorded."""
    try:
        outcome = plan(fold, ruleset, at)
    except Exception as error:  # an adapter or guard of a user's may raise anything
        return Deny("rules_failed", redact_error(error))
    if not isinstance(outcome, Admitted) or len(outcome.batch) <= 1:
        return outcome
    following = (check_event_data(each) for each in outcome.batch[max(1, outcome.copied) :] if _is_made_by_rules(each))
    wrong = next(filter(None, following), None)
    if wrong:
        return Deny("rules_failed", f"what follows cannot be recorded: {wrong.detail}")
    if any(each.event_type == EV_RULE_FAILED for each in outcome.batch):
        return Admitted(tuple(map(_redact_rule_error, outcome.batch)), outcome.fold)
    return outcome


def _redact_rule_error(envelope: Envelope) -> Envelope:
    """What rules raised is redacted before it is recorded. No state depends on it."""
    error = envelope.event_data.get("error") if envelope.event_type == EV_RULE_FAILED else None
    if not isinstance(error, str):
        return envelope
    return replace(envelope, event_data={**envelope.event_data, "error": redact_text(error)})


T = TypeVar("T")

MAX_TIMES_OVERTAKEN = 64


class _PriorityLane(Generic[T]):
    """The waiting items of one priority, and the arrivals of those that overtook its first."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, T]] = deque()
        self.overtakers: list[int] = []

    def take(self) -> tuple[int, T]:
        arrival, item = self.items.popleft()
        if self.overtakers:
            first = self.items[0][0] if self.items else arrival
            self.overtakers = [other for other in self.overtakers if self.items and other > first]
        return arrival, item

    def overtaken_by(self, arrival: int) -> None:
        if self.items and arrival > self.items[0][0]:
            self.overtakers.append(arrival)

    @property
    def out_of_patience(self) -> bool:
        return bool(self.items) and len(self.overtakers) >= MAX_TIMES_OVERTAKEN


class PriorityQueue(Generic[T]):
    """A queue in order of priority, with ageing."""

    def __init__(self) -> None:
        self._lanes: dict[Priority, _PriorityLane[T]] = {
            priority: _PriorityLane() for priority in sorted(Priority, reverse=True)
        }
        self._arrivals = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, item: T, priority: Priority) -> None:
        """Add an item."""
        self._arrivals += 1
        self._size += 1
        self._lanes[priority].items.append((self._arrivals, item))

    def take(self, most: int) -> list[T]:
        """The next items to be admitted, at most so many."""
        taken: list[T] = []
        while self._size and len(taken) < most:
            taken.append(self._take_one())
        return taken

    def _take_one(self) -> T:
        chosen = self._next_lane()
        arrival, item = chosen.take()
        self._size -= 1
        for lane in self._lanes.values():
            lane.overtaken_by(arrival)
        return item

    def _next_lane(self) -> _PriorityLane[T]:
        impatient = [lane for lane in self._lanes.values() if lane.out_of_patience]
        if impatient:
            return min(impatient, key=lambda lane: lane.items[0][0])
        return next(lane for lane in self._lanes.values() if lane.items)
