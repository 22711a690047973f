"""Limits on how far work may spread: handoffs in a row, the depth of tasks, turns, and tasks of a run.

Rule 1: a handoff that is not possible is recorded as rejected, and the rules decide instead: the work is kept.
Rule 2: a limit is a number, or explicitly `unlimited`. 0 allows none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from antiphon.core.envelope import Envelope, Json, match_name
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_PACKET, Packet
from antiphon.core.guard import ALLOW, Change, Verdict
from antiphon.core.state import State
from antiphon.core.text import describe

Limit = int | Literal["unlimited"]
UNLIMITED: Literal["unlimited"] = "unlimited"


def check_limit(limit: object, what: str) -> None:
    """`RulesInvalid` if this is no limit."""
    if limit == UNLIMITED or (type(limit) is int and limit >= 0):
        return
    raise RulesInvalid(f"{what} is {describe(limit)}; give a number, 0 or more, or {UNLIMITED!r}")


def is_reached(count: int, limit: Limit) -> bool:
    """Whether there may be no more than there are."""
    return not isinstance(limit, str) and count >= limit


DEFAULT_HOP_LIMIT = 5
OTHERS_HAVE_TURN = "others_have_the_turn"


class HopLimit(msgspec.Struct, frozen=True):
    """A handoff goes to a participant, and only so many follow each other without a person or code speaking.

    Where several have the turn at once, only the last of them to answer can hand it on.
    """

    recorded_as: ClassVar[str] = "HandoffLimit"
    name: ClassVar[str] = "hop_limit"
    most: Limit = DEFAULT_HOP_LIMIT

    def __post_init__(self) -> None:
        check_limit(self.most, "most of hop_limit")

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if draft.event_type != EV_PACKET:
            return ALLOW
        event = event_of(draft)
        if not isinstance(event, Packet) or event.routing.target is None:
            return ALLOW
        given = event.routing.target
        target = match_name(given, state.participants) or given
        why = self.refusal(state, draft.sender_id, target)
        if why is None and target == given:
            return ALLOW
        return Change(_rewrite_target(draft, target, {} if why is None else {"rejected": why}))

    def refusal(self, state: State, speaker: str, target: str) -> str | None:
        """Why the speaker cannot hand the turn to this target; None if it can."""
        if target not in state.participants:
            return "not_a_participant"
        if speaker not in state.speakers:
            return "not_in_turn"
        if len(state.speakers) > 1:
            return OTHERS_HAVE_TURN
        if is_reached(state.stays if target == speaker else state.hops, self.most):
            return f"hop_limit:{self.most}"
        return None


def _rewrite_target(draft: Envelope, target: str, told: Json) -> Envelope:
    """The packet with the target as its channel spells it, and why it is refused, if it is."""
    routing = draft.event_data["routing"]
    assert isinstance(routing, dict), "a packet with a target has routing"
    return replace(draft, event_data={**draft.event_data, "routing": {**routing, "target": target, **told}})
