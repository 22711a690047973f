"""A channel as one participant holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypedDict, Unpack

import msgspec

from antiphon.core.codec import Malformed, check_json, copied
from antiphon.core.envelope import Envelope, Priority
from antiphon.core.errors import UsageError, WaitTimeout
from antiphon.core.events import EV_CONTEXT_SET, EV_TEXT, CallCleared, CallFinished, Json
from antiphon.core.ids import derived_id
from antiphon.core.state import ENDED, State, detached
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk
from antiphon.runtime.forks import fork_of
from antiphon.runtime.steering import cancel_turns, result_of, settle_call

SILENT = (*sorted(ENDED), "quarantined")
"""The statuses in which nothing more is said."""
LONGEST_ID = 200


class SendOptions(TypedDict, total=False):
    """What may be said about an envelope beside its content."""

    audience: list[str] | None
    """Who may see it beside the sender; None is everybody."""
    causation_id: str | None
    """The envelope it answers."""
    priority: Priority
    message_id: str | None
    """Makes the call repeatable: the same id with the same content returns the first envelope."""


KNOWN_OPTIONS = SendOptions.__optional_keys__


class Channel(msgspec.Struct, eq=False, weakref=True):
    """A handle: everything said through it is said by the participant that holds it."""

    _desk: Desk
    _live: LiveChannel
    _speaker: str
    _may_run: bool = True
    """Whether what is said through it may give an agent a turn."""

    __injected__ = "channel"
    """A tool's parameter of this type is given the channel of the turn."""

    def __repr__(self) -> str:
        return f"<Channel {self.channel_id} as {self._speaker}>"

    @property
    def channel_id(self) -> str:
        """The channel's id."""
        return self._live.state.channel_id

    @property
    def state(self) -> State:
        """The channel as its log leaves it now. A copy: changing it changes nothing."""
        return detached(self._live.state)

    async def send(self, text: str, **options: Unpack[SendOptions]) -> Envelope:
        """Say something. Returns the recorded envelope once the store has it; `Denied` if it may not be said."""
        return await self._say(EV_TEXT, {"text": text}, options)

    async def post(self, event_type: str, data: Json, **options: Unpack[SendOptions]) -> Envelope:
        """Record an event of any type that has a namespace of its own."""
        return await self._say(event_type, private(data), options)

    async def set_context(self, **values: object) -> Envelope:
        """Set context variables."""
        return await self._say(EV_CONTEXT_SET, private({"set": values, "delete": []}), {})

    async def delete_context(self, *keys: str) -> Envelope:
        """Remove context variables."""
        return await self._say(EV_CONTEXT_SET, {"set": {}, "delete": list(keys)}, {})

    async def close(self, reason: str = "closed") -> str:
        """End the channel, and give the reason it ended for: this one, unless it had ended before."""
        if not isinstance(reason, str) or not reason or len(reason) > LONGEST_ID:
            raise UsageError(f"the reason is {shown(reason)}; give a text of 1 to {LONGEST_ID} characters")
        _check(reason, "the reason")
        await self._desk.end(self._live, reason, self._speaker)
        return self._live.state.close_reason

    async def cancel(self, reason: str = "cancelled") -> int:
        """Stop every turn that an agent owes here, at once, without an answer; how many there were."""
        _check(reason, "the reason")
        return await cancel_turns(self._live, self._speaker, reason, may_run=self._may_run, new_id=self._desk.new_id)

    async def settle(self, turn_id: str, index: int, *, result: str | None = None, again: bool = False) -> None:
        """Say what became of a call in doubt: what it came to, or that it is to be made again."""
        if type(again) is not bool or (result is None) != again:
            raise UsageError("settle takes either result='…', what the call came to, or again=True")
        if type(index) is not int:
            raise UsageError(f"index is {shown(index)}; give the position of the call in its turn, a number")
        by = self._speaker
        entry = CallCleared(turn_id, index, by) if again else CallFinished(turn_id, index, result_of(result), by)
        await settle_call(self._live, by, entry, new_id=self._desk.new_id)

    async def fork(self, *, at: int) -> Channel:
        """A new channel that begins as this one did, up to the envelope of this sequence, and goes on from there.

        The rules decide anew what follows from the last envelope. This channel is not touched.
        """
        forked = await fork_of(self._desk, self._live, at=at, by=self._speaker)
        return Channel(self._desk, forked, self._speaker, self._may_run)

    async def closed(self, timeout: float | None = None) -> str:  # a limit for this wait alone
        """Wait until the channel has ended, and give the reason; `WaitTimeout` after so many seconds."""
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise UsageError(f"timeout is {shown(timeout)}; give seconds, or None to wait as long as it takes")
        try:
            async with asyncio.timeout(timeout):
                await self._desk.until(self._live, SILENT)
        except TimeoutError:
            raise WaitTimeout(f"channel {self.channel_id!r} is still open after {timeout} seconds") from None
        state = self._live.state
        if state.status not in SILENT:
            raise UsageError(f"the hub was closed while channel {self.channel_id!r} was still open")
        return state.close_reason

    async def _say(self, event_type: str, data: Json, options: SendOptions) -> Envelope:
        live = self._live
        draft = Envelope("", live.state.channel_id, self._speaker, None, event_type, data)
        if options:
            draft = self._with_options(draft, options)
        return await self._desk.admit(live, draft, may_run=self._may_run)

    def _with_options(self, draft: Envelope, options: SendOptions) -> Envelope:
        check_options(options, KNOWN_OPTIONS)
        message_id, audience = options.get("message_id"), options.get("audience")
        return replace(
            draft,
            envelope_id="" if message_id is None else self._id_of(message_id),
            audience=list(audience) if type(audience) is list else audience,
            causation_id=options.get("causation_id"),
            priority=options.get("priority", Priority.NORMAL),
        )

    def _id_of(self, message_id: object) -> str:
        if not isinstance(message_id, str) or not message_id or len(message_id) > LONGEST_ID:
            raise UsageError(f"message_id is {shown(message_id)}; give a text of 1 to {LONGEST_ID} characters")
        _check(message_id, "message_id")
        return derived_id(self.channel_id, self._speaker, message_id)


def check_options(options: Mapping[str, object], known: Collection[str]) -> None:
    """`UsageError` if an option has a name that no option has."""
    unknown = options.keys() - set(known)
    if unknown:
        raise UsageError(f"no option is called {shown(min(unknown))}; there are: {', '.join(sorted(known))}")


def private(data: Json) -> Json:
    """A copy that its giver cannot change afterwards; what is no JSON is left for the checks to refuse."""
    try:
        check_json(data)
    except (Malformed, TypeError):
        return data
    return copied(data)


def _check(text: str, what: str) -> None:
    try:
        check_json(text)
    except Malformed as error:
        raise UsageError(f"{what}: {error}") from error
