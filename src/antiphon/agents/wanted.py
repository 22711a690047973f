"""What a turn may need from the world, and what it is given for it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import msgspec

from antiphon.agents.calling import Returned
from antiphon.agents.messages import Call, Reply, Request
from antiphon.agents.progress import Changes, Path, Progress
from antiphon.agents.steps import Function
from antiphon.core.views import Message


class AskModel(msgspec.Struct, frozen=True):
    """Ask the model of whoever is active."""

    index: int
    request: Request
    path: Path


class CallTool(msgspec.Struct, frozen=True):
    """Call a tool of whoever is active."""

    index: int
    call: Call
    path: Path
    hops: int = 0
    """How often the turn has changed hands before it."""


class Enter(msgspec.Struct, frozen=True):
    """Find out what somebody who becomes active is told, and shown. A summary, if one is due, is made at this place."""

    index: int
    path: Path


class Entered(msgspec.Struct, frozen=True):
    """What somebody who becomes active is told, and shown of what was said before."""

    system: str = ""
    history: Sequence[Message] = ()
    past: str = ""
    """The digest of everything that was said before."""
    summarised: Reply | None = None
    """What was summarised anew, if anything was: a call of its own."""


class RunStep(msgspec.Struct, frozen=True):
    """Run a step of a user's. If it waits for anything, what it changes is kept in the journal at this place."""

    index: int
    name: str
    function: Function
    progress: Progress

    @property
    def waits(self) -> bool:
        """Whether it may touch the world, and so must not be run again once it has returned."""
        return inspect.iscoroutinefunction(self.function)


Wanted = AskModel | tuple[CallTool, ...] | Enter | RunStep
"""What a turn needs next: the model, tools that may all be called at once, a prompt, or a step of a user's."""
Given = Reply | tuple[Returned, ...] | Entered | Changes
"""What that came to, in the same order."""
