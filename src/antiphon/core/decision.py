"""What happens next, in three shapes and no more."""

from __future__ import annotations

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.words import shown


class RuleError(msgspec.Struct, frozen=True):
    """A rule that raised, and so did not match. `rule` is its place in the table; None is the default target."""

    rule: int | None
    error: str


class Assign(msgspec.Struct, frozen=True):
    """These participants have the turn."""

    speakers: tuple[str, ...]
    reason: str = ""
    rule: int | None = None
    """The place in the table of the rule that says so; None if none does."""
    errors: tuple[RuleError, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.speakers, tuple | list):  # a bare text would be as many speakers as it has letters
            raise UsageError(f"speakers is {shown(self.speakers)}; give a tuple of names, such as ('bob',)")
        _check_reason(self.reason)


class Wait(msgspec.Struct, frozen=True):
    """Nothing changes: somebody still has the turn, or nobody needs it. With a reason, the channel is paused."""

    reason: str = ""
    errors: tuple[RuleError, ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.reason)


class Close(msgspec.Struct, frozen=True):
    """The channel ends, and why."""

    reason: str
    rule: int | None = None
    errors: tuple[RuleError, ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.reason)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"reason is {shown(reason)}; give a text")


Decision = Assign | Wait | Close
WAIT = Wait()
