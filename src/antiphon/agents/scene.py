"""What a step of a turn sees around it."""

from __future__ import annotations

import msgspec

from antiphon.agents.handing import Refusal
from antiphon.agents.team import Member, Team


class Manner(msgspec.Struct, frozen=True):
    """How this turn is to be taken."""

    refusal: Refusal = lambda handoff: None
    """Why a handoff to somebody else in the channel is not possible; None if it is."""
    date: str = ""
    """The day on which the turn was given."""


class Scene(msgspec.Struct, frozen=True):
    """The team, whoever is active in it, and the manner of the turn."""

    team: Team
    member: Member
    manner: Manner
