"""Replays the decisions of a log: what today's rules would say at each point of what really happened.

Facts are folded as they are; only what followed from speech is decided again. Expectations and journals are facts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from antiphon.core.codec import same_json
from antiphon.core.envelope import HUB, Envelope, Json
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_CHANNEL_PAUSED, EV_RULE_FAILED, EV_TURN_ASSIGNED
from antiphon.core.ruleset import Ruleset
from antiphon.core.step import asks_adapter, consequences

DECISION_TYPES = frozenset({EV_TURN_ASSIGNED, EV_CHANNEL_CLOSED, EV_CHANNEL_PAUSED})
EXPLANATION_FIELDS = frozenset({"reason"})
"""What only explains a decision, and is no difference if it is the same otherwise."""


class DecisionDifference(msgspec.Struct, frozen=True):
    """A point at which today's rules decide otherwise."""

    sequence: int
    """The envelope that the decision followed from."""
    speaker: str
    recorded: tuple[tuple[str, Json], ...]
    now: tuple[tuple[str, Json], ...]


class ReplayReport(msgspec.Struct, frozen=True):
    """How far the rules agree with a log."""

    decisions: int
    """How many were asked again."""
    difference: DecisionDifference | None = None


def replay_decisions(log: Iterable[Envelope], ruleset: Ruleset) -> ReplayReport:
    """Decide a log again, up to the first difference."""
    waiting = deque(log)
    fold, decisions = ruleset.begin(waiting[0].channel_id if waiting else ""), 0
    while waiting:
        envelope = waiting.popleft()
        fold = ruleset.fold(fold, envelope)
        if not asks_adapter(ruleset, envelope, event_of(envelope)):
            continue
        recorded = tuple(_recorded_decisions(envelope, waiting))
        drafts = [draft for draft in consequences(ruleset, fold, envelope) if draft.sender_id == HUB]
        now = tuple(_type_and_data(draft) for draft in drafts if draft.event_type != EV_RULE_FAILED)
        decisions += 1
        if not same_json(_without_explanations(recorded), _without_explanations(now)):
            return ReplayReport(decisions, DecisionDifference(envelope.sequence, envelope.sender_id, recorded, now))
    return ReplayReport(decisions)


def _recorded_decisions(envelope: Envelope, following: Iterable[Envelope]) -> Iterator[tuple[str, Json]]:
    """What the rules decided because of an envelope: it stands right behind it, with what went wrong on the way."""
    for each in following:
        if each.sender_id != HUB or each.causation_id != envelope.envelope_id or each.event_data.get("by"):
            return
        if each.event_type in DECISION_TYPES:
            yield _type_and_data(each)
        elif each.event_type != EV_RULE_FAILED:
            return


def _type_and_data(envelope: Envelope) -> tuple[str, Json]:
    return envelope.event_type, envelope.event_data


def _without_explanations(decisions: tuple[tuple[str, Json], ...]) -> list[tuple[str, Json]]:
    """Decisions without the words that explain them; but why a channel ends is what was decided."""
    return [
        (
            kind,
            data
            if kind == EV_CHANNEL_CLOSED
            else {key: data[key] for key in data if key not in EXPLANATION_FIELDS | {"rule"}},
        )
        for kind, data in decisions
    ]
