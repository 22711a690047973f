"""A batch as a store in memory records it, prepared before anything is looked at or changed.

A fork is one batch as long as its log. What takes time for each of its envelopes is done in slices, so that the event
loop is not held; what remains is one short step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.store.records import SLICE, records_in_slices
from antiphon.store.rows import MOVES_A_ROW


class PreparedBatch(msgspec.Struct):
    """A batch with its records and its part of each index."""

    records: list[bytes]
    places: dict[str, int]
    """The sequence of each id."""
    tail: list[tuple[str, int]]
    """The channel and the sequence of each envelope."""
    moving: list[Envelope]
    """The envelopes that change the row of the channel."""
    sound: bool = True
    """Whether no id is given twice, and all carry the sequences that they will have."""


async def prepare_batch(channel: str, batch: Sequence[Envelope], expected: int) -> PreparedBatch:
    """Prepare a batch that is to stand behind `expected`; refused if it could not be read back."""
    prepared = PreparedBatch(await records_in_slices(channel, batch), {}, [], [])
    for begin in range(0, len(batch), SLICE):
        _index(prepared, batch[begin : begin + SLICE], expected + begin)
        if len(batch) > SLICE:
            await asyncio.sleep(0)
    prepared.sound &= len(prepared.places) == len(batch)
    return prepared


def _index(prepared: PreparedBatch, part: Sequence[Envelope], before: int) -> None:
    for sequence, envelope in enumerate(part, before + 1):
        prepared.places[envelope.envelope_id] = sequence
        prepared.tail.append((envelope.channel_id, sequence))
        prepared.sound &= envelope.sequence == sequence
        if envelope.event_type in MOVES_A_ROW:
            prepared.moving.append(envelope)
