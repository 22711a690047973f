"""What is recorded when a process died during a turn, and when a person decides about what it left.

Rule 1: a crash is recorded once, with the pause that follows it. A restart during the pause records nothing new.
Rule 2: a turn at its limit of crashes is suspended, never failed: a person decides what becomes of it.
Rule 3: `events` re-exports these types, together with all others.
"""

from __future__ import annotations

import msgspec

from antiphon.core.instants import Instant

EV_TURN_DELAYED = "antiphon.turn.delayed"
EV_TURN_SUSPENDED = "antiphon.turn.suspended"
EV_TURN_RESUMED = "antiphon.turn.resumed"
EV_APPROVAL_DECIDED = "antiphon.approval.decided"

FIRST_PAUSE = 1.0
"""The shortest pause after the first crash, in seconds. Each further crash doubles it."""
LONGEST_PAUSE = 300.0
JITTER = 0.25
"""The share of a pause that is drawn at random and added to it."""
DOUBLINGS = 8
"""Beyond this exponent the pause is `LONGEST_PAUSE` anyway."""


class TurnDelayed(msgspec.Struct, frozen=True):
    """A process died during this turn. It is attempted again, but not before `until`."""

    turn: str
    epoch: int
    """The claim that ended with the process."""
    crashes: int
    """Crashes in a row without a call returning in between, this one included."""
    until: Instant


class TurnSuspended(msgspec.Struct, frozen=True):
    """This turn has reached its limit of crashes. It waits for a person's decision."""

    turn: str
    speaker: str
    crashes: int
    why: str = ""


class TurnResumed(msgspec.Struct, frozen=True):
    """A person has decided that the suspended turn is attempted again. Its crashes count from 0."""

    turn: str
    by: str


class ApprovalDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first, and only, decision about something that waited for a person."""

    approval_id: str
    decision: str
    by: str
    reason: str = ""
    digest: str = ""


def pause_after(crashes: int, jitter: float) -> float:
    """The seconds to wait after so many crashes in a row; `jitter` is a random number from 0 to 1."""
    doubled = FIRST_PAUSE * 2.0 ** min(max(crashes, 1) - 1, DOUBLINGS)
    return round(min(doubled, LONGEST_PAUSE / (1 + JITTER)) * (1 + JITTER * jitter), 6)
