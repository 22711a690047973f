"""One draft on its way into a channel, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy

import msgspec

from antiphon.core.codec import same
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, Denied
from antiphon.core.events import ASIDE, Json
from antiphon.core.guard import Deny, Later
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.step import Admitted

Plan = Callable[[Fold, Laws, Instant], Admitted | Deny | Later | None]
"""What a request wants, given the present fold: a batch, a refusal, to be asked again later, or nothing after all."""

Answer = Envelope | Deny | None
"""The first envelope recorded, a refusal, or that there was nothing to record."""


class Request(msgspec.Struct, eq=False):
    """Waits for its turn, and is answered once."""

    plan: Plan
    draft: Envelope | None = None
    """Given when the draft carries an id of its own and may have been recorded before."""
    answer: Answer | Exception = None
    settled: bool = False
    done: asyncio.Future[None] | None = None
    """Of whoever waits for the answer; None if that is who admits it."""
    dropped: bool = False
    """Whether whoever admits it was cancelled, and does not want it any more."""

    def settle(self, answer: Answer | Exception) -> None:
        """Say what became of it. The first answer stands."""
        if self.settled:
            return
        self.answer, self.settled = answer, True
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def waited(self) -> None:
        """Wait for the answer, which there is not yet."""
        self.done = asyncio.get_running_loop().create_future()
        await self.done

    def given(self, channel_id: str) -> Envelope | None:
        """The answer; raised if it is an error."""
        if isinstance(self.answer, Deny):
            raise Denied(self.answer.reason, channel_id, self.answer.detail)
        if isinstance(self.answer, AntiphonError):
            raise copy(self.answer) from self.answer  # others may have been given the same
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @property
    def given_up(self) -> bool:
        """Whether whoever waited has stopped waiting."""
        return self.dropped or (self.done is not None and self.done.cancelled())


def nothing(fold: Fold, laws: Laws, at: Instant) -> None:
    """A plan that wants nothing but its turn."""


def repeated(draft: Envelope, first: Envelope) -> Envelope | Deny:
    """The first envelope of this id, if the draft says the same."""
    equal = (
        draft.sender_id == first.sender_id
        and draft.event_type == first.event_type
        and same(draft.event_data, _as_asked(draft.event_data, first.event_data))
        and draft.audience == first.audience
        and draft.causation_id == first.causation_id
    )
    return first if equal else Deny("conflict", "this message_id was used before with other content")


def _as_asked(asked: Json, recorded: Json) -> Json:
    """What was recorded, without what the hub noted on it: that it was put in, or how its handoff was read."""
    plain = {key: value for key, value in recorded.items() if key != ASIDE or ASIDE in asked}
    routing, wanted = plain.get("routing"), asked.get("routing")
    if isinstance(routing, dict) and isinstance(wanted, dict):
        named = {"target": wanted["target"]} if _is_same_name(wanted.get("target"), routing.get("target")) else {}
        kept = {key: value for key, value in routing.items() if key != "rejected" or "rejected" in wanted}
        plain["routing"] = {**kept, **named}
    return plain


def _is_same_name(asked: object, recorded: object) -> bool:
    """Whether a name was recorded as the channel spells it."""
    return isinstance(asked, str) and isinstance(recorded, str) and asked.lower() == recorded.lower()
