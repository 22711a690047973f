"""A new channel that begins with a copy of another one's log up to some place.

Rule 1: what is copied is the same story with ids of its own. What follows from its last envelope is decided anew.
Rule 2: where the copy comes from is recorded behind it, and every clock counts from there.
Rule 3: a place at which a call is under way is none to fork at: nobody could say whether it took effect.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import msgspec

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
from antiphon.core.ids import IdSource, derived_id, sorted_behind
from antiphon.core.instants import Instant
from antiphon.core.journal import journal_of
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State
from antiphon.core.step import Admitted, record, recorded, said_by_hub
from antiphon.core.turns import noted

OPEN = "active"
SLICE = 100
"""How many envelopes are copied at once."""
UNDECIDED = frozenset({EV_RULE_FAILED, EV_EXPECTATION_MISSED})
"""What stands before a decision that was made together with it."""


class Copy(msgspec.Struct, frozen=True):
    """A part of a log, copied for another channel: all but its last envelope are folded."""

    batch: list[Envelope]
    fold: Fold
    last: Envelope


def copying(
    channel_id: str, prefix: Sequence[Envelope], *, laws: Laws, new_id: IdSource
) -> Generator[None, None, Copy]:
    """Copy a part of a log for a new channel; it is given back as the generator's value.

    It yields every few envelopes, so that whoever drives it can let others have the event loop.
    """
    fold, batch, ids = laws.begin(channel_id), list[Envelope](), dict[str, str]()
    for envelope in prefix[:-1]:
        copy = _copied(envelope, fold.state, ids, new_id=new_id)
        fold = laws.fold(fold, copy)
        batch.append(copy)
        if len(batch) % SLICE == 0:
            yield
    return Copy(batch, fold, _copied(prefix[-1], fold.state, ids, new_id=new_id))


def check_place(prefix: Sequence[Envelope], state: State) -> None:
    """`UsageError` unless a channel can go on from the end of this part of a log, which folds to this state."""
    at = len(prefix)
    if state.status == "invited":
        raise UsageError(f"at is {at}, before the channel was opened; fork behind its first turn.assigned")
    if state.status != OPEN:
        raise UsageError(f"at is {at}, where the channel has ended ({state.close_reason}); fork before that")
    if prefix[-1].event_type in UNDECIDED:
        raise UsageError(f"at is {at}, in the middle of a decision; fork at what it followed from, or behind it")
    for turn in state.owed:
        calls = journal_of(prefix[turn.sequence :], turn.turn_id)
        index = next((index for index, entry in calls.items() if entry.in_flight), None)
        if index is not None or turn.doubts:
            raise UsageError(f"at is {at}, where call {index} of turn {turn.turn_id} is under way; fork elsewhere")
        if turn.suspended:
            raise UsageError(f"at is {at}, where turn {turn.turn_id} waits for a person; decide, or fork elsewhere")


def last_said(prefix: Sequence[Envelope]) -> int:
    """Where the last thing was said: whoever has the turn is to hear that."""
    return next((each.sequence for each in reversed(prefix) if each.event_type in SUBSTANTIVE), 0)


def forked(copy: Copy, provenance: Forked, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted:
    """The first batch of a fork: the copy, what follows from it, and where it comes from."""
    last = record(copy.fold, copy.last, laws=laws, at=copy.last.created_at or at, new_id=new_id)
    told = record(last.fold, said_by_hub(EV_CHANNEL_FORKED, data_of(provenance)), laws=laws, at=at, new_id=new_id)
    freed = recorded(told.fold, _released(told.fold), laws=laws, at=at, new_id=new_id)
    batch = (*copy.batch, *last.batch, *told.batch, *freed.batch)
    return Admitted(batch, freed.fold, copied=len(copy.batch) + 1)


def _copied(envelope: Envelope, state: State, ids: dict[str, str], *, new_id: IdSource) -> Envelope:
    """The same fact in another channel, under a new id, which is noted so that causes are still found."""
    channel_id, cause = state.channel_id, envelope.causation_id
    ids[envelope.envelope_id] = copied_id = sorted_behind(new_id(), state.newest_id)
    return replace(
        envelope,
        envelope_id=copied_id,
        channel_id=channel_id,
        causation_id=None if cause is None else ids.get(cause) or derived_id(channel_id, cause),
    )


def _released(fold: Fold) -> list[Envelope]:
    """Turns that were under way are nobody's in the fork."""
    return [
        noted(EV_TURN_RELEASED, {"turn": turn.turn_id, "epoch": turn.epoch}, cause=turn.cause)
        for turn in fold.state.owed
        if turn.owner
    ]
