"""Which channel holds which conversation, as far as one server remembers.

Rule 1: nothing here is the truth. What is forgotten costs a new channel, which begins with what was said.
Rule 2: an entry is used once, so that two that go on from the same words never meet in one channel.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MOST = 10_000
"""How many conversations are remembered."""
ALIKE = 100
"""How many of them with the same words."""


class Held(NamedTuple):
    """Where a conversation stands: its channel, and the place of its last answer there."""

    channel_id: str
    sequence: int


class Memory:
    """The conversations that were answered last."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: OrderedDict[str, list[Held]] = OrderedDict()

    def keep(self, digest: str, held: Held) -> None:
        """Remember that this channel holds a conversation. Whoever was not asked for longest is forgotten."""
        alike = self._held.setdefault(digest, [])
        if held not in alike:
            alike.append(held)
        del alike[:-ALIKE]
        self._held.move_to_end(digest)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def known(self, digest: str) -> Held | None:
        """A channel that holds this conversation; None if none is known."""
        alike = self._held.get(digest)
        return alike[-1] if alike else None

    def take(self, digest: str) -> Held | None:
        """The same, for whoever goes on in it: nobody else is given it."""
        alike = self._held.get(digest)
        if not alike:
            return None
        held = alike.pop()
        if not alike:
            del self._held[digest]
        return held
