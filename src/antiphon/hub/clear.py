"""Which channels have nothing that waits for a person, so that a listing need not fold them again."""

from __future__ import annotations

MOST_CLEAR = 100_000
"""How many channels are remembered."""


class ClearChannels:
    """The channels in which nothing waits for a person, as far as this hub knows."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __contains__(self, channel_id: str) -> bool:
        return channel_id in self._known

    def add(self, channel_id: str) -> None:
        """Remember that nothing waits in this channel now."""
        if len(self._known) >= MOST_CLEAR:
            self._known.clear()
        self._known.add(channel_id)

    def discard(self, channel_id: str) -> None:
        """Forget a channel: its turns have changed."""
        self._known.discard(channel_id)
