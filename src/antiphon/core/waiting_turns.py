"""How a turn changes that does not run: released, interrupted by a crash, or waiting for a person.

Rule 1: nothing here can fail, and nothing decides. `evolve` alone puts the changed turn into the state.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.execution_events import (
    ApprovalReminded,
    ApprovalRequested,
    CallApproved,
    CallDoubted,
    TurnDelayed,
    TurnResumed,
    TurnSuspended,
)
from antiphon.core.state import Turn, with_asked, without_call


def released_turn(turn: Turn, epoch: int) -> Turn:
    """The turn without an owner. Its process has not died: a crash that was presumed for this claim is taken back."""
    if not turn.owner or turn.epoch != epoch:
        return turn
    crashes = turn.crashes - (turn.not_before != NEVER)
    return replace(turn, owner="", attempts=max(0, turn.attempts - 1), crashes=crashes, not_before=NEVER)


def recovering_turn(turn: Turn, event: TurnDelayed | TurnSuspended | TurnResumed) -> Turn:
    """The turn after a crash: delayed, suspended until a person decides, or resumed by one."""
    match event:
        case TurnDelayed(crashes=crashes, until=until):
            return replace(turn, crashes=crashes, not_before=until)
        case TurnSuspended(crashes=crashes):
            return replace(turn, crashes=crashes, suspended=True, owner="", not_before=NEVER)
        case TurnResumed():
            return replace(turn, crashes=0, attempts=0, suspended=False)


WaitingEvent = CallDoubted | ApprovalRequested | ApprovalReminded | CallApproved


def waiting_turn(turn: Turn, event: WaitingEvent, at: Instant) -> Turn:
    """The turn after a call of it has begun to wait for a person, waits on, or may leave now."""
    match event:
        case CallDoubted(index=index):
            return _doubted_turn(turn, index)
        case ApprovalRequested(index=index, decide_by=decide_by):
            return with_asked(turn, {**turn.asked_until, index: decide_by})
        case ApprovalReminded(index=index, seconds=seconds):
            return _reminded_turn(turn, index, seconds, at=at)
        case CallApproved(index=index):
            return _approved_turn(turn, index)


def _doubted_turn(turn: Turn, index: int) -> Turn:
    """The turn with one more call in doubt. Its attempt has ended, so that it has no owner."""
    return replace(turn, owner="", doubts=tuple(dict.fromkeys((*turn.doubts, index))))


def _reminded_turn(turn: Turn, index: int, seconds: float, *, at: Instant) -> Turn:
    """The turn whose people are asked again about a call, and the next time after so many seconds."""
    if index not in turn.asked_until:
        return turn
    try:
        return with_asked(turn, {**turn.asked_until, index: add_seconds(at, seconds)})
    except ValueError:  # a strange fact: no reminder follows
        return with_asked(turn, {**turn.asked_until, index: NEVER})


def _approved_turn(turn: Turn, index: int) -> Turn:
    """The turn with a call that may leave now."""
    return replace(without_call(turn, index), approved=(*(turn.approved or ()), index))
