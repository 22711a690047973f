"""Whether a sender may make agents run, and may send this at all at this place.

Rule 1: what counts is what would follow. A draft is refused if the rules would give an agent a turn because of it,
        whatever else is in the channel; nothing of it is recorded then.
Rule 2: a turn that is owed already, and only given again, is not a new one.
"""

from __future__ import annotations

from collections import Counter

from antiphon.agents.nesting import Lane, running_turn
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, UsageError
from antiphon.core.events import Created
from antiphon.core.guard import Deny, Later
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.laws import Laws
from antiphon.core.opening import opening
from antiphon.core.state import State
from antiphon.core.step import Admitted, step
from antiphon.hub.causation import check_causation
from antiphon.hub.live import LiveChannel
from antiphon.store.protocol import Log


def denial_of_turns(before: State, after: State) -> Deny | None:
    """Why a sender without the scope `invoke` may not bring this change about; None if no agent gets a turn by it."""
    new = Counter(turn.speaker for turn in after.owed) - Counter(turn.speaker for turn in before.owed)
    if not new:
        return None
    names = ", ".join(map(repr, sorted(new)))
    return Deny("wrong_scope", f"this gives {names} a turn, for which the key also needs the scope 'invoke'")


def denial_of_opening(
    created: Created, first: Envelope | None, *, laws: Laws, at: Instant, new_id: IdSource
) -> Deny | None:
    """The same for a new channel, as it is when every guest has accepted and its first words were said."""
    begun = laws.begin(new_id())
    guests = {seat.name for seat in created.participants}
    opened = opening(begun, created, guests, laws=laws, at=at, new_id=new_id)
    said = opened if first is None else step(opened.fold, first, laws=laws, at=at, new_id=new_id)
    return denial_of_turns(begun.state, said.fold.state if isinstance(said, Admitted) else opened.fold.state)


def check_own_turn(live: LiveChannel, draft: Envelope, lane: Lane) -> None:
    """`UsageError` if a tool puts in a word that would wait for the end of the turn that waits for the tool."""
    if isinstance(live.laws.judge(live.fold, draft), Later):
        raise UsageError(
            f"{draft.sender_id!r} cannot put in a word from inside of a turn of {lane[1]!r} here: it would wait "
            "for the end of that turn; return it from the tool, or send it when the turn is over"
        )


def waits_for_a_turn(live: LiveChannel, draft: Envelope) -> bool:
    """Whether a draft from inside of a turn waits for the end of another."""
    return running_turn.get() is not None and isinstance(live.laws.judge(live.fold, draft), Later)


async def causation_denied(store: Log, live: LiveChannel, draft: Envelope) -> Denied | None:
    """Why a draft may not answer what it names; strangers, and a channel that is shut, are refused for that alone."""
    if draft.sender_id not in live.state.participants or live.state.status != "active":
        return None
    try:
        await check_causation(store, live.recent_ids, draft)
    except Denied as denied:
        return denied
    return None
