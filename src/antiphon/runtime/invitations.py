"""How a participant decides on an invitation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from antiphon.agents.isolation import contained
from antiphon.core.envelope import Envelope
from antiphon.core.opening import answer, guest_of
from antiphon.hub.redacting import redacted_error

Accept = Callable[[Envelope], bool | Awaitable[bool]]
"""Decides on an invitation."""


async def decide_invitation(accept: Accept | None, invite: Envelope) -> Envelope:
    """The guest's answer. An error of a user-defined callable is a refusal with its text."""
    if accept is None:
        return answer(invite, accepted=True)

    async def ask() -> bool:
        verdict = accept(invite)
        return bool(await verdict if isawaitable(verdict) else verdict)

    try:
        accepted = await contained(ask, f"accept of {guest_of(invite)!r}", accept)
    except Exception as error:
        return answer(invite, accepted=False, reason=redacted_error(error))
    return answer(invite, accepted=accepted)
