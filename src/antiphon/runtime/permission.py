"""Whether a sender may make agents run.

Rule 1: what counts is what would follow. A draft is refused if the rules would give an agent a turn because of it,
        whatever else is in the channel; nothing of it is recorded then.
Rule 2: a turn that is owed already, and only given again, is not a new one.
"""

from __future__ import annotations

from collections import Counter

from antiphon.core.events import Created
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.opening import opening
from antiphon.core.state import State
from antiphon.orchestration.lawbook import laws_for


def denial_of_turns(before: State, after: State) -> Deny | None:
    """Why a sender without the scope `invoke` may not bring this change about; None if no agent gets a turn by it."""
    new = Counter(turn.speaker for turn in after.owed) - Counter(turn.speaker for turn in before.owed)
    if not new:
        return None
    names = ", ".join(map(repr, sorted(new)))
    return Deny("wrong_scope", f"this gives {names} a turn, for which the key also needs the scope 'invoke'")


def denial_of_opening(created: Created, *, at: Instant, new_id: IdSource) -> Deny | None:
    """The same for a new channel, as it is when every guest has accepted."""
    laws = laws_for(created.type, created.knobs)
    begun = laws.begin(new_id())
    guests = {seat.name for seat in created.participants}
    opened = opening(begun, created, guests, laws=laws, at=at, new_id=new_id)
    return denial_of_turns(begun.state, opened.fold.state)
