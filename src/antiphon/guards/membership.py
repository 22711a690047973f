"""Who may say something here at all, to whom, and when."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.events import ASIDE, SUBSTANTIVE
from antiphon.core.guard import ALLOW, LATER, Deny, Verdict
from antiphon.core.state import State
from antiphon.core.words import meant_by, shown


class Membership(msgspec.Struct, frozen=True):
    """Only participants speak, only in an open channel, and only to participants."""

    name: ClassVar[str] = "membership"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if draft.sender_id not in state.participants and not state.erased:  # of whom nobody is known any more
            return Deny("not_a_participant", f"{draft.sender_id!r} is not in this channel")
        if state.status != "active":
            return _shut(state)
        if draft.audience is None:
            return ALLOW
        stranger = next((name for name in draft.audience if name not in state.participants), None)
        if stranger is None:
            return ALLOW
        advice = meant_by(stranger, state.participants)
        return Deny("unknown_audience", f"{shown(stranger)} is not in this channel" + (f"; {advice}" if advice else ""))


class TurnOrder(msgspec.Struct, frozen=True):
    """Only those who hold the turn speak; people, and those named as interjectors, may put in a word.

    While an agent's turn is under way, or was begun and will go on, that word waits for its end.
    """

    name: ClassVar[str] = "turn_order"
    interjectors: frozenset[str] = frozenset()

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        speaker = draft.sender_id
        if draft.event_type not in SUBSTANTIVE or (speaker in state.speakers and ASIDE not in draft.event_data):
            return ALLOW
        if state.participants.get(speaker) == "human" or speaker in self.interjectors:
            return _put_in(state)
        expected = ", ".join(state.speakers) or "nobody"
        return Deny("not_expected_speaker", f"{speaker!r} spoke; the turn is with {expected}")


def _put_in(state: State) -> Verdict:
    """What becomes of a word out of turn. Nobody waits for a turn that itself waits for a person."""
    begun = [turn for turn in state.owed if turn.epoch]
    doubted = next((turn for turn in begun if turn.doubts), None)
    if doubted is not None:
        what = f"call {doubted.doubts[0]} of turn {doubted.turn_id}"
        return Deny("in_doubt", f"{what} is in doubt; settle it with channel.settle first, or cancel the turn")
    suspended = next((turn for turn in begun if turn.suspended), None)
    if suspended is not None:
        advice = "decide what becomes of it (hub.approvals, participant.decide) or cancel it"
        return Deny("suspended", f"turn {suspended.turn_id} waits for a person; {advice}")
    return LATER if begun else ALLOW


def _shut(state: State) -> Deny:
    if state.ended:
        return Deny("channel_closed", f"it ended: {state.close_reason}")
    if state.status == "quarantined":
        return Deny("quarantined", "a record of its log cannot be trusted; it can only be read")
    return Deny("channel_not_open", f"invitations to {', '.join(state.awaiting)} are not answered yet")
