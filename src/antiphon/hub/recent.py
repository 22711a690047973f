"""The last records of a channel that somebody listens to, so that its readers need not ask the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from antiphon.core.codec import decode, encode
from antiphon.core.envelope import Envelope

MOST = 64
MOST_BYTES = 64 * 1024


class Recent:
    """A few records without a gap. Each reader decodes its own, as if from the store."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def add(self, batch: Sequence[Envelope]) -> None:
        """Keep these too, and let go of the oldest. Of a long batch only the end is looked at."""
        if len(batch) > MOST:
            self.clear()
        for envelope in batch[-MOST:]:
            record = encode(envelope)
            self._records.append((envelope.sequence, record))
            self._size += len(record)
        while len(self._records) > MOST or self._size > MOST_BYTES:
            self._size -= len(self._records.popleft()[1])

    def after(self, sequence: int) -> list[Envelope]:
        """Everything behind this sequence; nothing if some of it is not here."""
        records = self._records
        if not records or records[0][0] > sequence + 1:
            return []
        return [decode(records[place][1]) for place in range(sequence + 1 - records[0][0], len(records))]

    def clear(self) -> None:
        """Let go of all."""
        self._records.clear()
        self._size = 0
