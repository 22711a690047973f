"""A wake-up for everyone who follows a log. It is a hint: whoever waits also looks once a second."""

from __future__ import annotations

import asyncio

LOOK_EVERY = 1.0


class Bell:
    """Rings for all who wait; `rung` counts, so that a ring between looking and waiting is not missed."""

    def __init__(self) -> None:
        self.rung = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake everybody."""
        self.rung += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, seen: int) -> None:
        """Return once the bell has rung since it had rung `seen` times, or when it is time to look anyway."""
        if self.rung != seen:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)
