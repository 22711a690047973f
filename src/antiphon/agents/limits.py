"""How far a turn may go."""

from __future__ import annotations

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.words import shown

MODEL_TIMEOUT = 120.0
MODEL_ATTEMPTS = 3
MOST_MODEL_CALLS = 25
MOST_HANDOFFS = 5
MOST_CRASHES = 10
MOST_TOOL_CALLS = 128
MOST_TASKS = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a turn of an agent may go, whoever of its team takes it."""

    model_calls: int = MOST_MODEL_CALLS
    """How often models are asked in one turn; then it ends with what there is."""
    model_seconds: float | None = MODEL_TIMEOUT
    """How long one answer of the model may take, however often it is asked; None for as long as the turn may."""
    model_attempts: int = MODEL_ATTEMPTS
    """How often a model that is unavailable is asked for one answer; 1 for never again."""
    handoffs: int = MOST_HANDOFFS
    """How often in one turn somebody else of the team may become active."""
    tool_calls: int = MOST_TOOL_CALLS
    """How many tools one message of the model may call; each call beyond that gets an error as its result."""
    tasks: int = MOST_TASKS
    """How many tasks one turn may give to other agents; an attempt to give another raises in the tool."""
    crashes: int | None = MOST_CRASHES
    """How many processes in a row may die during a turn without a call of it returning; then the turn waits for a
    person's decision. None for no limit."""

    def __post_init__(self) -> None:
        if self.crashes is not None and (type(self.crashes) is not int or self.crashes < 1):
            raise UsageError(f"crashes is {shown(self.crashes)}; give a number of crashes, 1 or more, or None")
        if type(self.model_calls) is not int or self.model_calls < 1:
            raise UsageError(f"model_calls is {shown(self.model_calls)}; give a number of calls, 1 or more")
        if type(self.handoffs) is not int or self.handoffs < 0:
            raise UsageError(f"handoffs is {shown(self.handoffs)}; give a number of handoffs, 0 or more")
        if type(self.tool_calls) is not int or self.tool_calls < 1:
            raise UsageError(f"tool_calls is {shown(self.tool_calls)}; give a number of calls, 1 or more")
        if type(self.tasks) is not int or self.tasks < 0:
            raise UsageError(f"tasks is {shown(self.tasks)}; give a number of tasks of one turn, 0 or more")
        if type(self.model_attempts) is not int or self.model_attempts < 1:
            raise UsageError(f"model_attempts is {shown(self.model_attempts)}; give a number of attempts, 1 or more")
        seconds = self.model_seconds
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise UsageError(f"model_seconds is {shown(seconds)}; give seconds above 0, or None for no limit")


USUAL = Limits()
