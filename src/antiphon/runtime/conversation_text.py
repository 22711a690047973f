"""What happens to a routed conversation, in words: as a sentence of the log, and as a line of a conversation."""

from __future__ import annotations

from antiphon.core.conversation_events import (
    ConversationMoved,
    ConversationRefused,
    ConversationReleased,
    ConversationUnrouted,
)
from antiphon.orchestration.handoff_rules import HUMAN

ConversationNotice = ConversationMoved | ConversationRefused | ConversationReleased | ConversationUnrouted


def describe_move(moved: ConversationMoved) -> str:
    """A transition as a sentence without a subject."""
    why = f": {moved.reason}" if moved.reason else ""
    phase = f"phase {moved.to_phase}"
    if moved.person:
        return f"gives the conversation to {holder_name(moved.person)} in {phase}{why}"
    if moved.to_agent == moved.from_agent:
        return f"puts the conversation into {phase}{why}"
    if moved.to_agent is None:
        return f"lets each message be routed again in {phase}{why}"
    source = "" if moved.from_agent is None else f" from {moved.from_agent}"
    return f"moves the conversation{source} to {moved.to_agent} in {phase}{why}"


def notice_line(notice: ConversationNotice) -> str:
    """A line for a person who takes part; empty if only the context of the conversation has changed."""
    match notice:
        case ConversationMoved():
            return _move_line(notice)
        case ConversationRefused(from_agent=agent, target=target, reason=reason):
            return f"{agent} → {target} is refused: {reason}"
        case ConversationReleased(by=by, to=to):
            return f"{by} gives the conversation back" + ("" if to is None else f" to {to}")
        case ConversationUnrouted():
            return "no agent answers this message"


def _move_line(moved: ConversationMoved) -> str:
    why = f": {moved.reason}" if moved.reason else ""
    phase = f"({moved.to_phase}){why}"
    if moved.person:
        return f"{holder_name(moved.person)} has the conversation {phase}"
    if moved.to_agent != moved.from_agent:
        if moved.to_agent is None:
            return f"each message is routed again {phase}"
        return f"{moved.from_agent or ''} → {moved.to_agent} {phase}".lstrip()
    return f"phase {moved.to_phase}{why}" if moved.to_phase != moved.from_phase else ""


def holder_name(person: str) -> str:
    """The person that has a conversation, in words."""
    return "a person" if person == HUMAN else person
