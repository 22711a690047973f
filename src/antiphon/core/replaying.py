"""A log decided anew: what today's rules would have said at each point of what really happened.

Facts are folded as they are; only what followed from them is asked again. Expectations and what turns wrote in their
journals are facts, and are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from antiphon.core.codec import same
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_PAUSED,
    EV_RULE_FAILED,
    EV_TURN_ASSIGNED,
    Json,
    Opened,
    Packet,
    Text,
    event_of,
)
from antiphon.core.laws import Laws
from antiphon.core.step import consequences

DECISIONS = frozenset({EV_TURN_ASSIGNED, EV_CHANNEL_CLOSED, EV_CHANNEL_PAUSED})
WORDS = frozenset({"reason"})
"""What only explains a decision, and is no difference if it is the same otherwise."""


class Difference(msgspec.Struct, frozen=True):
    """A point at which today's rules decide otherwise."""

    sequence: int
    """The envelope that the decision followed from."""
    speaker: str
    recorded: tuple[tuple[str, Json], ...]
    now: tuple[tuple[str, Json], ...]


class Replay(msgspec.Struct, frozen=True):
    """How far the rules agree with a log."""

    decisions: int
    """How many were asked again."""
    difference: Difference | None = None


def replayed(log: Iterable[Envelope], laws: Laws) -> Replay:
    """Decide a log again, up to the first difference."""
    waiting = deque(log)
    fold, decisions = laws.begin(waiting[0].channel_id if waiting else ""), 0
    while waiting:
        envelope = waiting.popleft()
        fold = laws.fold(fold, envelope)
        if not isinstance(event_of(envelope), Text | Packet | Opened):
            continue
        recorded = tuple(_recorded(envelope, waiting))
        drafts = [draft for draft in consequences(laws, fold, envelope) if draft.sender_id == HUB]
        now = tuple(_told(draft) for draft in drafts if draft.event_type != EV_RULE_FAILED)
        decisions += 1
        if not same(_plainly(recorded), _plainly(now)):
            return Replay(decisions, Difference(envelope.sequence, envelope.sender_id, recorded, now))
    return Replay(decisions)


def _recorded(envelope: Envelope, following: Iterable[Envelope]) -> Iterator[tuple[str, Json]]:
    """What the rules decided because of an envelope: it stands right behind it, with what went wrong on the way."""
    for each in following:
        if each.sender_id != HUB or each.causation_id != envelope.envelope_id or each.event_data.get("by"):
            return
        if each.event_type in DECISIONS:
            yield _told(each)
        elif each.event_type != EV_RULE_FAILED:
            return


def _told(envelope: Envelope) -> tuple[str, Json]:
    return envelope.event_type, envelope.event_data


def _plainly(decisions: tuple[tuple[str, Json], ...]) -> list[tuple[str, Json]]:
    """Decisions without the words that explain them; but why a channel ends is what was decided."""
    return [
        (kind, data if kind == EV_CHANNEL_CLOSED else {key: data[key] for key in data if key not in WORDS | {"rule"}})
        for kind, data in decisions
    ]
