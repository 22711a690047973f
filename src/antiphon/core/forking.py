"""A new channel that begins with a copy of another one's log up to some place.

Rule 1: what is copied is the same story with ids of its own. What follows from its last envelope is decided anew.
Rule 2: where the copy comes from is recorded behind it, and every clock counts from there.
Rule 3: a place at which a call is under way is none to fork at: nobody could say whether it took effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.core.events import (
    EV_CHANNEL_FORKED,
    EV_EXPECTATION_MISSED,
    EV_RULE_FAILED,
    EV_TURN_RELEASED,
    SUBSTANTIVE,
    Forked,
    data_of,
)
from antiphon.core.ids import IdSource, derived_id
from antiphon.core.instants import Instant
from antiphon.core.journal import journal_of
from antiphon.core.laws import Fold, Laws
from antiphon.core.step import Admitted, record, said_by_hub
from antiphon.core.turns import noted

OPEN = "active"
UNDECIDED = frozenset({EV_RULE_FAILED, EV_EXPECTATION_MISSED})
"""What stands before a decision that was made together with it."""


def check_place(prefix: Sequence[Envelope], laws: Laws) -> None:
    """`UsageError` unless a channel can go on from the end of this part of a log."""
    at = len(prefix)
    state = laws.fold_all(laws.begin(prefix[0].channel_id), prefix).state
    if state.status == "invited":
        raise UsageError(f"at is {at}, before the channel was opened; fork behind its first turn.assigned")
    if state.status != OPEN:
        raise UsageError(f"at is {at}, where the channel has ended ({state.close_reason}); fork before that")
    if prefix[-1].event_type in UNDECIDED:
        raise UsageError(f"at is {at}, in the middle of a decision; fork at what it followed from, or behind it")
    for turn in state.owed:
        calls = journal_of(prefix, turn.turn_id)
        index = next((index for index, entry in calls.items() if entry.in_flight), None)
        if index is not None or turn.doubts:
            raise UsageError(f"at is {at}, where call {index} of turn {turn.turn_id} is under way; fork elsewhere")
        if turn.suspended:
            raise UsageError(f"at is {at}, where turn {turn.turn_id} waits for a person; decide, or fork elsewhere")


def last_said(prefix: Sequence[Envelope]) -> int:
    """Where the last thing was said: whoever has the turn is to hear that."""
    return next((each.sequence for each in reversed(prefix) if each.event_type in SUBSTANTIVE), 0)


def forked(
    fold: Fold, prefix: Sequence[Envelope], provenance: Forked, *, laws: Laws, at: Instant, new_id: IdSource
) -> Admitted:
    """The first batch of a fork: the copy, what follows from it, and where it comes from."""
    channel_id = fold.state.channel_id
    copies = [_copied(envelope, channel_id) for envelope in prefix]
    batch = list(copies[:-1])
    fold = laws.fold_all(fold, batch)
    drafts = [copies[-1], said_by_hub(EV_CHANNEL_FORKED, data_of(provenance))]
    for draft in drafts:
        admitted = record(fold, draft, laws=laws, at=draft.created_at or at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    for note in _released(fold):
        admitted = record(fold, note, laws=laws, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold)


def _copied(envelope: Envelope, channel_id: str) -> Envelope:
    """The same fact in another channel. Ids follow from the old ones, so that causes are still found."""
    cause = envelope.causation_id
    return replace(
        envelope,
        envelope_id=derived_id(channel_id, envelope.envelope_id),
        channel_id=channel_id,
        causation_id=None if cause is None else derived_id(channel_id, cause),
    )


def _released(fold: Fold) -> list[Envelope]:
    """Turns that were under way are nobody's in the fork."""
    return [
        noted(EV_TURN_RELEASED, {"turn": turn.turn_id, "epoch": turn.epoch}, cause=turn.cause)
        for turn in fold.state.owed
        if turn.owner
    ]
