"""Deciding on everything that waits for admission, together, before anything is recorded.

Rule 1: requests are decided on in their order, each on what the ones before it have led to.
Rule 2: what must wait for the turns under way is held back. As soon as one of the others ends such a turn it comes
        next, within the same batch, so that whoever gets the turn then has heard it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.core.draft import check_data
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import EV_RULE_FAILED, JOURNAL
from antiphon.core.guard import Deny, Later
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.step import Admitted
from antiphon.hub.redacting import redacted, redacted_error
from antiphon.hub.request import Answer, Plan, Request


class Round:
    """What some requests come to, if it is recorded."""

    __slots__ = ("_answers", "_at", "_laws", "_refusal", "batch", "fold", "held")

    def __init__(self, fold: Fold, laws: Laws, at: Instant) -> None:
        self.fold, self._laws, self._at = fold, laws, at
        self.batch: list[Envelope] = []
        self._answers: list[tuple[Request, Answer]] = []
        self.held: list[Request] = []
        """Those that must wait for the turns under way."""
        self._refusal: Deny | None = None

    def tick(self, plan: Plan) -> None:
        """Decide first on what has fallen due. If the rules fail on that, they do on everything."""
        match planned(plan, self.fold, self._laws, at=self._at):
            case Admitted(batch, fold):
                self.batch.extend(batch)
                self.fold = fold
            case Deny() as refusal:
                self._refusal = refusal
            case _:
                pass

    def decide(self, requests: Sequence[Request]) -> None:
        """Decide on all of these."""
        for request in requests:
            owed = self.fold.state.owed
            self._decide_on(request)
            if self.held and self.fold.state.owed is not owed:
                held, self.held = self.held, []
                self.decide(held)

    def _decide_on(self, request: Request) -> None:
        outcome = self._refusal or planned(request.plan, self.fold, self._laws, at=self._at)
        if isinstance(outcome, Admitted):
            batch = outcome.batch
            self.batch += batch
            self.fold = outcome.fold
            self._answers.append((request, batch[0] if batch else None))
        elif isinstance(outcome, Later):
            self.held.append(request)
        else:
            self._answers.append((request, outcome))

    def settle(self) -> None:
        """Tell everybody who was decided on."""
        for request, answer in self._answers:
            request.settle(answer)


def _is_new(envelope: Envelope) -> bool:
    """Whether rules made this; what people say, and what was copied, has been looked at before."""
    return envelope.sender_id == HUB and envelope.event_type not in JOURNAL


def planned(plan: Plan, fold: Fold, laws: Laws, *, at: Instant) -> Admitted | Deny | Later | None:
    """What a plan wants. Whatever the rules raise is a refusal, and so is a consequence that cannot be recorded."""
    try:
        outcome = plan(fold, laws, at)
    except Exception as error:  # an adapter or guard of a user's may raise anything
        return Deny("rules_failed", redacted_error(error))
    if not isinstance(outcome, Admitted) or len(outcome.batch) <= 1:
        return outcome
    following = (check_data(each) for each in outcome.batch[max(1, outcome.copied) :] if _is_new(each))
    wrong = next(filter(None, following), None)
    if wrong:
        return Deny("rules_failed", f"what follows cannot be recorded: {wrong.detail}")
    if any(each.event_type == EV_RULE_FAILED for each in outcome.batch):
        return Admitted(tuple(map(_without_secrets, outcome.batch)), outcome.fold)
    return outcome


def _without_secrets(envelope: Envelope) -> Envelope:
    """What rules raised is redacted before it is recorded. No state depends on it."""
    error = envelope.event_data.get("error") if envelope.event_type == EV_RULE_FAILED else None
    if not isinstance(error, str):
        return envelope
    return replace(envelope, event_data={**envelope.event_data, "error": redacted(error)})
