"""How a channel's row follows from its log: the one projection that every store's index uses.

Nothing here decides. A row is what a listing shows without folding a channel.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.erasing import ERASED
from antiphon.core.errors import UsageError
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_CREATED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_OPENED,
    Closed,
    Created,
    Expired,
    Opened,
    event_of,
)
from antiphon.core.state import ENDED
from antiphon.store.protocol import ChannelRow

MOVES_A_ROW = frozenset({EV_CHANNEL_CREATED, EV_CHANNEL_OPENED, EV_CHANNEL_EXPIRED, EV_CHANNEL_CLOSED})
QUARANTINED = "quarantined"
SYSTEM = "system:"
"""Channels with this prefix are the hub's own."""


def row_after(row: ChannelRow, envelope: Envelope) -> ChannelRow:
    """The row once this envelope is recorded. Only types in `MOVES_A_ROW` change it."""
    match event_of(envelope):
        case Created() as created if not row.type:
            names = [seat.name for seat in created.participants]
            return msgspec.structs.replace(
                row, type=created.type, creator_id=created.creator, participants=names, status="invited"
            )
        case Opened():
            return msgspec.structs.replace(row, status="active")
        case Expired():
            return msgspec.structs.replace(row, status="expired")
        case Closed(reason=reason):
            status = "expired" if row.status == "expired" else "closed"
            return msgspec.structs.replace(row, status=status, close_reason=reason, due="")
        case _:
            return row


def erased_row(row: ChannelRow) -> ChannelRow:
    """The row of a channel once its content was erased."""
    return msgspec.structs.replace(row, close_reason=ERASED, creator_id="", participants=[], due="")


def check_ended(channel: str, row: ChannelRow | None) -> None:
    """Refuse to erase a channel that has not ended."""
    status = "unknown" if row is None else row.status
    if status not in ENDED:
        raise UsageError(f"channel {channel!r} cannot be erased: its status is {status!r}; close it first")


def rebuilt(old: ChannelRow, log: Iterable[Envelope]) -> ChannelRow:
    """The row made anew from its log. What no log tells stays: when it is due, whether it is quarantined."""
    row = ChannelRow(old.channel_id)
    for envelope in log:
        if envelope.event_type in MOVES_A_ROW:
            row = row_after(row, envelope)
    status = old.status if old.status == QUARANTINED else row.status
    return msgspec.structs.replace(row, due=old.due, status=status)
