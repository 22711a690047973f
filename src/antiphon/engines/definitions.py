"""The definitions of a hub's agents: which one holds, and which of the earlier ones turns still run with.

Rule 1: a turn that has begun ends with the definition it began with. The next one begins with the one that holds then.
Rule 2: an earlier definition is kept until no turn runs with it, so that its models are closed once, and not too soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.agents.declaration import Declaration


class Definitions:
    """Every definition that is in use in a hub."""

    def __init__(self, current: dict[str, Declaration]) -> None:
        self._current = current
        self._earlier: list[Declaration] = []
        self._turns: dict[int, int] = {}
        """How many turns run with each definition, by its identity."""
        self._ended = asyncio.Event()
        """Set, and a new one made, whenever the last turn of a definition has ended."""

    def all(self) -> list[Declaration]:
        """Those that hold, and the earlier ones whose models are not closed yet."""
        return [*self._current.values(), *self._earlier]

    def hold(self, definition: Declaration) -> Declaration | None:
        """Let this definition hold from the agent's next turn; the one that it replaces, if it does."""
        earlier = self._current.get(definition.name)
        self._current[definition.name] = definition
        self.forget(definition)
        if earlier is None or earlier is definition:
            return None
        self._earlier.append(earlier)
        return earlier

    def is_earlier(self, definition: Declaration) -> bool:
        """Whether it was replaced, and its models are not closed yet."""
        return any(each is definition for each in self._earlier)

    def forget(self, definition: Declaration) -> None:
        """Take note that an earlier definition is not used any more, or holds again."""
        self._earlier = [each for each in self._earlier if each is not definition]

    @contextmanager
    def running(self, definition: Declaration) -> Iterator[None]:
        """Keep the definition in use for as long as a turn runs with it."""
        key = id(definition)
        self._turns[key] = self._turns.get(key, 0) + 1
        try:
            yield
        finally:
            self._turns[key] -= 1
            if not self._turns[key]:
                del self._turns[key]
                self._ended.set()
                self._ended = asyncio.Event()

    async def unused(self, definition: Declaration) -> None:
        """Return when no turn runs with it."""
        while id(definition) in self._turns:
            await self._ended.wait()
