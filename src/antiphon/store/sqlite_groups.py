"""What the writing thread commits together, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.core.errors import StoreError
from antiphon.store.sqlite_appends import Append, Outcome
from antiphon.store.sqlite_connection import Connection
from antiphon.store.sqlite_line import settle


@dataclass(slots=True, eq=False)
class Task:
    """A change of the index or of a lease, and whoever waits for it."""

    job: Callable[[Connection], None]
    done: asyncio.Future[None]
    channel: str
    """Whose log it looks at; "" if it is no single one's."""
    forget: bool
    """Whether it may make wrong what is remembered of channels."""
    outside: bool = False
    """Whether it is done after the commit, outside of any transaction."""


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """How far a participant has come in a channel. Nobody waits for it."""

    participant: str
    channel: str
    sequence: int


@dataclass(slots=True, eq=False)
class Group:
    """What is committed together, and what became of it."""

    appends: list[Append] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    outside: list[Task] = field(default_factory=list)
    is_last: bool = False
    size: int = 0
    appended: list[Outcome] = field(default_factory=list)
    performed: list[Exception | None] = field(default_factory=list)
    written: int = 0

    def fail(self, error: StoreError) -> None:
        """Nobody gets what they wanted."""
        self.appended = [type(error)(str(error)) for _ in self.appends]
        self.performed = [type(error)(str(error)) for _ in self.tasks]
        self.written = 0

    def is_empty(self) -> bool:
        """Whether nobody waits for it."""
        return not (self.appends or self.tasks or self.outside)

    def settle(self) -> None:
        """Tell everybody whose outcome the commit decided."""
        settle(zip((append.done for append in self.appends), self.appended, strict=True))
        settle(zip((task.done for task in self.tasks), self.performed, strict=True))


Item = Append | Task | Acknowledgement | None
"""None is the last."""
