"""A store in memory in which the next calls of a method go wrong, or find that something has happened first."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from antiphon import Envelope
from antiphon.core.envelope import Instant
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, ChannelRow, Page

Trouble = Callable[[], Awaitable[None]]


def raising(error: Exception) -> Trouble:
    """A trouble that is an error."""

    async def trouble() -> None:
        raise error

    return trouble


class TroubledStore(MemoryStore):
    """Troubles of a method come one by one, before or after what the call does; then it works again."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, deque[Trouble]] = {}
        self.after: dict[str, deque[Trouble]] = {}
        self.closed = False

    def fail(self, method: str, *errors: Exception) -> None:
        """Let the next calls fail before they do anything."""
        self.before[method] = deque(map(raising, errors))

    def lose(self, method: str, *errors: Exception) -> None:
        """Let the next calls fail after they have done what they do."""
        self.after[method] = deque(map(raising, errors))

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        await _next(self.before, "append")
        done = await super().append(channel, batch, expected=expected, due=due)
        await _next(self.after, "append")
        return done

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        await _next(self.before, "read")
        return await super().read(channel, after=after, limit=limit)

    async def row(self, channel: str) -> ChannelRow | None:
        await _next(self.before, "row")
        return await super().row(channel)

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        await _next(self.before, "channels")
        return await super().channels(status=status, participant=participant, after=after, limit=limit)

    async def close(self) -> None:
        self.closed = True


async def _next(troubles: Mapping[str, deque[Trouble]], method: str) -> None:
    waiting = troubles.get(method)
    if waiting:
        await waiting.popleft()()
