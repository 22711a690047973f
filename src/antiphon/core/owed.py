"""How facts change one turn that is owed. `evolve` puts the changed turn into the state."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.events import TurnDelayed, TurnResumed, TurnSuspended
from antiphon.core.instants import NEVER
from antiphon.core.state import Turn


def claimed_turn(turn: Turn, epoch: int, owner: str) -> Turn:
    """Whoever claims a turn again that it has already lives, so that this is no sign of a crash."""
    attempts = turn.attempts + (turn.owner != owner)
    return replace(turn, epoch=epoch, owner=owner, attempts=attempts, not_before=NEVER)


def released_turn(turn: Turn, epoch: int) -> Turn:
    """The turn without an owner. Its process has not died: a crash that was presumed for this claim is taken back."""
    if not turn.owner or turn.epoch != epoch:
        return turn
    crashes = turn.crashes - (turn.not_before != NEVER)
    return replace(turn, owner="", attempts=max(0, turn.attempts - 1), crashes=crashes, not_before=NEVER)


def doubted_turn(turn: Turn, index: int) -> Turn:
    """The turn with one more call in doubt. Its attempt has ended in order, so that it has no owner who could die."""
    return replace(turn, owner="", doubts=tuple(dict.fromkeys((*turn.doubts, index))))


def recovering_turn(turn: Turn, event: TurnDelayed | TurnSuspended | TurnResumed) -> Turn:
    """The turn after a crash: delayed, suspended until a person decides, or resumed by one."""
    match event:
        case TurnDelayed(crashes=crashes, until=until):
            return replace(turn, crashes=crashes, not_before=until)
        case TurnSuspended(crashes=crashes):
            return replace(turn, crashes=crashes, suspended=True, owner="", not_before=NEVER)
        case TurnResumed():
            return replace(turn, crashes=0, attempts=0, suspended=False)
