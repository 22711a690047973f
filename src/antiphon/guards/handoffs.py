"""Which handoffs are possible. What is not is recorded as refused, and the rules decide instead."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_PACKET, Json, Packet, event_of
from antiphon.core.guard import ALLOW, Change, Verdict
from antiphon.core.state import State
from antiphon.core.words import spelt

MOST_HOPS = 5
OTHERS = "others_have_the_turn"


class HandoffLimit(msgspec.Struct, frozen=True):
    """A handoff goes to a participant, and only so many follow each other without a person or code speaking.

    Where several have the turn at once, only the last of them to answer can hand it on.
    """

    name: ClassVar[str] = "hop_limit"
    most: int = MOST_HOPS

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if draft.event_type != EV_PACKET:
            return ALLOW
        match event_of(draft):
            case Packet(routing=routing) if routing.target is not None:
                target = spelt(routing.target, state.participants) or routing.target
                why = self.refusal(state, draft.sender_id, target)
                told: Json = {} if why is None else {"rejected": why}
                return ALLOW if why is None and target == routing.target else Change(_routed(draft, target, told))
            case _:
                return ALLOW

    def refusal(self, state: State, speaker: str, target: str) -> str | None:
        """Why the speaker cannot hand the turn to this target; None if it can."""
        if target not in state.participants:
            return "not_a_participant"
        if speaker not in state.speakers:
            return "not_in_turn"
        if len(state.speakers) > 1:
            return OTHERS
        if (state.stays if target == speaker else state.hops) >= self.most:
            return f"hop_limit:{self.most}"
        return None


def _routed(draft: Envelope, target: str, told: Json) -> Envelope:
    """The packet with the target as its channel spells it, and why it is refused, if it is."""
    routing = draft.event_data["routing"]
    assert isinstance(routing, dict), "a packet with a target has routing"
    return replace(draft, event_data={**draft.event_data, "routing": {**routing, "target": target, **told}})
