"""What happens when no person has decided about a call in time.

Rule 1: the instant is recorded with the request, and nothing that happens afterwards moves it but a reminder.
Rule 2: it holds through a restart: one that has passed by then is noticed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import msgspec

from antiphon.core.approval_rules import ApprovalRules, WhenDue, asked_call_id, decision_id_of
from antiphon.core.envelope import Envelope
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CHANNEL_CLOSED
from antiphon.core.execution_events import (
    EV_APPROVAL_EXPIRED,
    EV_APPROVAL_REMINDED,
    ApprovalExpired,
    ApprovalReminded,
)
from antiphon.core.guard import Deadline
from antiphon.core.state import RelatedFact, State, Turn
from antiphon.core.step import hub_draft, turn_audience
from antiphon.guards.counted_calls import is_task

ABORTED_BY_EXPIRY = "aborted:approval_expired"
"""Why a channel ends in which no person has decided in time, in a tier that aborts then."""


class ApprovalDeadlines(msgspec.Struct, frozen=True):
    """Refuses calls that no person has decided about in time, or has people asked again."""

    name: ClassVar[str] = "approval_deadlines"
    seconds: float
    """Until the next reminder."""
    when_due: WhenDue = "end_turn"
    hears: ClassVar[frozenset[str]] = frozenset({EV_APPROVAL_EXPIRED})

    def notice(self, memory: object, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        """In the batch tier the run ends, and what it has done is undone."""
        if self.when_due != "abort" or envelope.event_type != EV_APPROVAL_EXPIRED or is_task(state):
            return ()
        return (RelatedFact(EV_CHANNEL_CLOSED, {"reason": ABORTED_BY_EXPIRY}),)

    def due(self, memory: object, state: State) -> Deadline | None:
        if all(not turn.decide_by for turn in state.owed):
            return None
        waiting = [
            (at, turn, index) for turn in state.owed if turn.decide_by for index, at in turn.asked_until.items() if at
        ]
        if not waiting:
            return None
        at, turn, index = min(waiting, key=lambda each: each[0])
        return Deadline(at, partial(self._draft, state, turn, index))

    def _draft(self, state: State, turn: Turn, index: int) -> Envelope:
        approval_id = asked_call_id(state.channel_id, turn.turn_id, index)
        cause, audience = turn.cause, turn_audience(turn)
        if self.when_due == "remind":
            reminded = ApprovalReminded(turn.turn_id, index, approval_id, self.seconds)
            return hub_draft(EV_APPROVAL_REMINDED, data_of(reminded), cause=cause, audience=audience)
        expired = data_of(ApprovalExpired(turn.turn_id, index, approval_id))
        draft = hub_draft(EV_APPROVAL_EXPIRED, expired, cause=cause, audience=audience)
        # Under the id of its decision: a later one finds that this came first.
        return replace(draft, envelope_id=decision_id_of(state.channel_id, approval_id))


def approval_deadlines(rules: ApprovalRules) -> list[ApprovalDeadlines]:
    """The guard that watches the approvals of a channel with these rules; none if they may wait for ever."""
    return [] if rules.seconds is None else [ApprovalDeadlines(rules.seconds, rules.when_due)]
