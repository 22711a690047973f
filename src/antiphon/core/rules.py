"""Rules: who speaks next.

An adapter is the protocol of one type of channel: how many may sit in it, whether turns are ordered, and what
follows from what was said. It is made anew from the channel's knobs each time a channel is loaded, so it keeps
nothing; if it must remember, it folds a memory like a guard does (`Remembers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from antiphon.core.decision import Decision
from antiphon.core.envelope import Envelope
from antiphon.core.events import Json
from antiphon.core.state import State
from antiphon.core.views import View


class Seats(msgspec.Struct, frozen=True):
    """How many participants a channel takes, the creator included."""

    least: int = 2
    most: int | None = None


class Expectation(msgspec.Struct, frozen=True):
    """Something that must happen within a time, and what the hub does if it does not."""

    name: str
    seconds: float
    handler: str = "warn"
    """audit: operators see it; warn: everybody in the channel sees it; auto_close: the channel ends; fail: the turn
    that an agent owes ends as failed, and the channel goes on."""


class Finding(msgspec.Struct, frozen=True):
    """Something that a check of rules found. An error keeps a channel from being opened, a warning is recorded."""

    level: Literal["error", "warning"]
    code: str
    """A stable word to branch on."""
    message: str


class Seating(msgspec.Struct, frozen=True):
    """Who sits in a channel that is about to be opened, and on which terms."""

    kinds: Mapping[str, str]
    """Name to kind (agent, human, service), the creator first."""
    interjectors: frozenset[str] = frozenset()
    """Those who may put in a word beside people."""
    writers: Mapping[str, Sequence[str]] | None = None
    """Who may write which context variable; None if that is not known."""
    tier: str | None = None
    context_vars: Mapping[str, object] = msgspec.field(default_factory=dict)
    """What the channel begins with."""
    spectators: frozenset[str] = frozenset()
    """Those who need never get the turn."""


class Adapter(Protocol):
    """The protocol of one type of channel."""

    name: ClassVar[str]
    seats: ClassVar[Seats]
    ordered: ClassVar[bool]
    """Whether only those who were given the turn may speak."""
    knobs: ClassVar[frozenset[str]]
    """The knobs it takes beside those every channel takes."""
    expectations: ClassVar[tuple[Expectation, ...]]
    """What is expected unless the channel says otherwise."""

    def __init__(self, knobs: Json) -> None:
        """Read the knobs; what they say wrongly is a `RulesInvalid` that names the value."""
        ...

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        """What follows from the channel's opening, or from what was just said. The state includes it already."""
        ...


@runtime_checkable
class Checks(Protocol):
    """An adapter that can tell before a channel is opened what is wrong with its rules."""

    def check(self, seating: Seating) -> list[Finding]: ...


@runtime_checkable
class Recovers(Protocol):
    """An adapter that says what follows when everybody who was given the turn together has failed."""

    def recover(self, memory: object, state: State, envelope: Envelope) -> Decision:
        """What follows; `Wait()` if the rules say nothing of it. The envelope stands for the last that failed."""
        ...


@runtime_checkable
class Shows(Protocol):
    """An adapter that says what an agent is shown that says nothing else itself."""

    def view(self, participants: int) -> View: ...
