"""Whether a draft answers an envelope of its own channel.

Rule 1: the check is a look-up by id: in the ids recorded lately, then in the store's index. It never reads a log.
Rule 2: it is made when something is sent. A log that holds other causations, written before, folds as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied
from antiphon.core.words import shown
from antiphon.store.protocol import Log

MOST_IDS = 256
"""The number of ids kept in memory for each channel in use."""


class RecentIds:
    """The ids of the last envelopes of a channel."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def __contains__(self, envelope_id: str) -> bool:
        return envelope_id in self._ids

    def add(self, batch: Sequence[Envelope]) -> None:
        """Keep the ids of these too, and drop the oldest."""
        # A batch may be long. Deleting one by one from the front of a large dict takes time that grows with its square.
        self._ids.update((envelope.envelope_id, None) for envelope in batch[-MOST_IDS:])
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]


async def check_causation(store: Log, recent: RecentIds, draft: Envelope) -> None:
    """`Denied` if the draft answers an envelope that its channel does not hold.

    A draft that is recorded already passes: its first admission decided.
    """
    cause, channel_id = draft.causation_id, draft.channel_id
    if cause is None or cause in recent:
        return
    known = await store.find(channel_id, [cause, draft.envelope_id] if draft.envelope_id else [cause])
    if not known:
        detail = f"no envelope of this channel has the id {shown(cause)}; give the envelope_id of one, or leave it out"
        raise Denied("unknown_causation", channel_id, detail)
