"""Hooks: functions of the program that are called with what happens in channels, and what they are given and return.

Rule 1: a hook is declared with values that are checked at once: what makes no sense together is a `UsageError`.
Rule 2: a block never fails: any value is taken for its reason.

How hooks are called is in `hook_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Literal

import msgspec

from antiphon.core.envelope import Envelope, Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe, sanitize

BEFORE_HOOK_SECONDS = 5.0
"""For how long a sender waits for one hook, unless the hook has a timeout of its own."""
LATER_HOOK_SECONDS = 30.0
MAX_BLOCK_REASON_CHARS = 500
MAX_HOOK_NAME_CHARS = 100


class HookTrigger(StrEnum):
    """What a hook is called for."""

    BEFORE_BROADCAST = "before_broadcast"
    """A participant is about to say something."""
    AFTER_BROADCAST = "after_broadcast"
    """What a participant said was recorded."""
    ON_PHASE_TRANSITION = "on_phase_transition"
    """A conversation is in another phase."""
    ON_HANDOFF = "on_handoff"
    """A conversation is with another agent, or with a person."""
    ON_HANDOFF_REJECTED = "on_handoff_rejected"
    """A handoff was refused."""


class HookExecution(StrEnum):
    """Whether the hooks of a trigger wait for each other."""

    SYNC = "sync"
    """One after the other, in the order of their priority."""
    ASYNC = "async"
    """Beside the others."""


class HookEvent(msgspec.Struct, frozen=True):
    """What a hook is called with. It is a copy: changing it changes nothing."""

    trigger: HookTrigger
    channel_id: str
    envelope: Envelope
    """What was recorded; for `BEFORE_BROADCAST` the draft, which has no sequence and no time yet."""
    data: Json
    """The data of the envelope."""


class HookResult(msgspec.Struct, frozen=True):
    """What a `BEFORE_BROADCAST` hook returns if the message is not to be recorded as it is."""

    action: Literal["block", "modify"]
    text: str
    """Why it is blocked, or what is recorded instead."""

    @classmethod
    def block(cls, reason: str = "") -> HookResult:
        """Refuse the message. The sender is given the reason."""
        text = reason if isinstance(reason, str) else describe(reason)  # an odd reason must not let the message pass
        return cls("block", sanitize(text[:MAX_BLOCK_REASON_CHARS]))

    @classmethod
    def modify(cls, text: str) -> HookResult:
        """Record this text in place of the text, or of the body of a packet."""
        if not _is_a(text, str):
            raise UsageError(f"text is {describe(text)}; give the text that is to be recorded")
        return cls("modify", str.__str__(text))


class RegisteredHook(msgspec.Struct, frozen=True):
    """A hook with its options."""

    name: str
    function: Callable[[HookEvent], object]
    trigger: HookTrigger
    execution: HookExecution
    priority: int
    required: bool
    timeout: float


class HookOptions(msgspec.Struct, frozen=True):
    """How a function is to be called."""

    trigger: HookTrigger
    execution: HookExecution = HookExecution.ASYNC
    priority: int = 0
    required: bool = False
    timeout: float | None = None
    """None for what is usual for the trigger."""

    def check(self) -> None:
        """`UsageError` names the option that is wrong."""
        if not _is_a(self.trigger, HookTrigger):
            known = ", ".join(f"HookTrigger.{each.name}" for each in HookTrigger)
            raise UsageError(f"no trigger is called {describe(self.trigger)}; there are: {known}")
        if not _is_a(self.execution, HookExecution):
            raise UsageError(f"execution is {describe(self.execution)}; give HookExecution.SYNC or HookExecution.ASYNC")
        if type(self.priority) is not int:
            raise UsageError(f"priority is {describe(self.priority)}; give a whole number, lower ones run first")
        if type(self.required) is not bool:
            raise UsageError(f"required is {describe(self.required)}; give True or False")
        if self.timeout is not None and not _is_timeout(self.timeout):
            raise UsageError(f"timeout is {describe(self.timeout)}; give a number of seconds above 0")
        self._check_together()

    def _check_together(self) -> None:
        if self.trigger is HookTrigger.BEFORE_BROADCAST:
            if self.execution is not HookExecution.SYNC:
                raise UsageError(
                    "a BEFORE_BROADCAST hook decides before the message is recorded, so the sender waits for it; "
                    "give execution=HookExecution.SYNC"
                )
        elif self.required:
            raise UsageError(
                f"a hook for {self.trigger.name} runs when its cause is recorded, and can stop nothing; "
                "leave out required=True, or use HookTrigger.BEFORE_BROADCAST"
            )

    def registered(self, function: object) -> RegisteredHook:
        """The function as a hook with these options; `UsageError` if it cannot be called."""
        if not callable(function):
            raise UsageError(f"{describe(function)} cannot be called; a hook is a function that takes a HookEvent")
        usual = BEFORE_HOOK_SECONDS if self.trigger is HookTrigger.BEFORE_BROADCAST else LATER_HOOK_SECONDS
        name = sanitize(str(getattr(function, "__name__", type(function).__name__)))[:MAX_HOOK_NAME_CHARS]
        seconds = usual if self.timeout is None else float(self.timeout)
        return RegisteredHook(name, function, self.trigger, self.execution, self.priority, self.required, seconds)


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def _is_timeout(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
