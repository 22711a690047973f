"""How an attempt at a turn ends early: raised inside it, and handled by `turn`."""

from __future__ import annotations

from antiphon.core.turns import TurnFailure


class TurnFencedError(Exception):
    """The turn is claimed by another attempt, or has ended. The results of this attempt are dropped."""


class TurnFailedError(Exception):
    """Raised inside an attempt to end its turn with this failure. Callers of `invoke` get `errors.TurnFailed`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.failure = TurnFailure(reason, detail)


class CallInDoubt(Exception):
    """A person must settle a call first. That is recorded."""


class AwaitsApproval(Exception):
    """A person must decide first whether a call may leave. That is recorded."""


class EngineStopping(Exception):
    """The engine stops, and no further call is begun."""
