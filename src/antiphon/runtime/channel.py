"""A channel as one participant holds it, and envelopes built by hand for it: for bridges, gateways and tests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TypedDict, Unpack

import msgspec

from antiphon.agents.call_results import Finish, Handoff
from antiphon.core.envelope import Envelope, Json, Priority, derived_id, spelling_advice
from antiphon.core.errors import UsageError, WaitTimeout
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, Routing
from antiphon.core.execution_events import CallCleared, CallFinished
from antiphon.core.state import ENDED_STATUSES, State, detach_state
from antiphon.core.text import describe
from antiphon.hub.live import LiveChannel
from antiphon.runtime.arguments import check_encodable, check_option_names, check_text_argument, private_copy
from antiphon.runtime.channel_lifecycle import fork_channel
from antiphon.runtime.conversation_defaults import ROUTED
from antiphon.runtime.conversation_plans import release_conversation
from antiphon.runtime.core import HubCore
from antiphon.runtime.turn_control import call_result_of, cancel_owed_turns, check_not_agent, settle_call

SILENT_STATUSES = (*sorted(ENDED_STATUSES), "quarantined")
"""The statuses in which nothing more is said."""
MAX_MESSAGE_ID_CHARS = 200
MAX_CLOSE_REASON_CHARS = 200
ABORTED = "aborted"
MESSAGE_FIELDS = ("transport", "source", "intent", "addressed_to")
MESSAGE_OPTIONS = frozenset({*MESSAGE_FIELDS, "set"})
"""The options that are recorded with the words."""
MAX_MESSAGE_FIELD_CHARS = 200


class SendOptions(TypedDict, total=False):
    """What may be said about an envelope beside its content."""

    audience: list[str] | None
    """Who may see it beside the sender; None is everybody."""
    causation_id: str | None
    """The envelope it answers."""
    priority: Priority
    message_id: str | None
    """Makes the call repeatable: the same id with the same content returns the first envelope."""
    set: Json | None
    """Context variables that are written with the words."""
    transport: str | None
    """The transport by which the words came: web, sms, email … One that is registered carries the replies, too."""
    source: str | None
    """Where they came from by this transport: a phone number, an address."""
    intent: str | None
    """What they are about, as rules of a router see it."""
    addressed_to: str | None
    """The participant of a routed channel that is to answer. Its router is not asked then."""


async def release(channel: Channel, to: str | None = None) -> None:
    """End the hold of a person over a routed conversation: the next message is routed again, or answered by `to`.

    Any other person in the channel may; its creator only if there is none.
    """
    await release_conversation(channel._core, channel._live, to, by=channel._speaker)


async def abort(channel: Channel, reason: str = "") -> str:
    """End the run in failure: its channel closes, and its calls that can be undone are, the last first.

    Returns the reason for which the channel has ended: `aborted`, with this reason behind a colon. People and code
    abort; `Denied` for an agent. `UsageError` in the channel of a task: abort the channel in which the run began.
    """
    core, live, by = channel._core, channel._live, channel._speaker
    most = MAX_CLOSE_REASON_CHARS - len(ABORTED) - 1
    check_text_argument(reason, "the reason", f"a text of at most {most} characters", most=most)
    state = live.state
    if state.run_id != state.channel_id:
        raise UsageError(f"channel {state.channel_id!r} is that of a task; abort {state.run_id!r}, where its run began")
    check_not_agent(state, by)
    await core.end_channel(live, f"{ABORTED}:{reason}" if reason else ABORTED, by)
    return live.state.close_reason


class Channel(msgspec.Struct, eq=False, weakref=True):
    """A handle: everything said through it is said by the participant that holds it."""

    _core: HubCore
    _live: LiveChannel
    _speaker: str
    _may_run: bool = True
    """Whether what is said through it may give an agent a turn."""

    release = release
    abort = abort

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
        return detach_state(self._live.state)

    async def send(self, text: str, **options: Unpack[SendOptions]) -> Envelope:
        """Say something. Returns the recorded envelope once the store has it; `Denied` if it may not be said."""
        data: Json = {"text": text}
        if options and not MESSAGE_OPTIONS.isdisjoint(options):
            data = self._message_data(text, options)
        return await self._say(EV_TEXT, data, options)

    async def post(self, event_type: str, data: Json, **options: Unpack[SendOptions]) -> Envelope:
        """Record an event of any type that has a namespace of its own."""
        misplaced = sorted(MESSAGE_OPTIONS.intersection(options))
        if misplaced:
            raise UsageError(f"{misplaced[0]} belongs to send; with post, put it into the data")
        return await self._say(event_type, private_copy(data), options)

    async def set_context(self, **values: object) -> Envelope:
        """Set context variables."""
        return await self._say(EV_CONTEXT_SET, private_copy({"set": values, "delete": []}), {})

    async def delete_context(self, *keys: str) -> Envelope:
        """Remove context variables."""
        return await self._say(EV_CONTEXT_SET, {"set": {}, "delete": list(keys)}, {})

    async def close(self, reason: str = "closed") -> str:
        """End the channel, and give the reason it ended for: this one, unless it had ended before."""
        advice = f"a text of 1 to {MAX_CLOSE_REASON_CHARS} characters"
        check_text_argument(reason, "the reason", advice, least=1, most=MAX_CLOSE_REASON_CHARS)
        await self._core.end_channel(self._live, reason, self._speaker)
        return self._live.state.close_reason

    async def cancel(self, reason: str = "cancelled") -> int:
        """Stop every turn that an agent owes here, at once, without an answer. Returns their number."""
        check_encodable(reason, "the reason")
        return await cancel_owed_turns(
            self._live, self._speaker, reason, may_run=self._may_run, new_id=self._core.new_id
        )

    async def settle(self, turn_id: str, index: int, *, result: str | None = None, again: bool = False) -> None:
        """Settle a call in doubt: give its result, or have it retried."""
        if type(again) is not bool or (result is None) != again:
            raise UsageError("settle takes either result='…', the result of the call, or again=True")
        if type(index) is not int:
            raise UsageError(f"index is {describe(index)}; give the position of the call in its turn, a number")
        by = self._speaker
        entry = CallCleared(turn_id, index, by) if again else CallFinished(turn_id, index, call_result_of(result), by)
        await settle_call(self._live, by, entry, new_id=self._core.new_id)

    async def fork(self, *, at: int) -> Channel:
        """A new channel that begins as this one did, up to the envelope of this sequence, and goes on from there.

        The rules decide anew what follows from the last envelope. This channel is not touched.
        """
        forked = await fork_channel(self._core, self._live, at=at, by=self._speaker)
        return Channel(self._core, forked, self._speaker, self._may_run)

    async def closed(self, timeout: float | None = None) -> str:  # a limit for this wait alone
        """Wait until the channel has ended, and give the reason; `WaitTimeout` after so many seconds."""
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise UsageError(f"timeout is {describe(timeout)}; give seconds, or None to wait as long as it takes")
        try:
            async with asyncio.timeout(timeout):
                await self._core.wait_for_status(self._live, SILENT_STATUSES)
        except TimeoutError:
            raise WaitTimeout(f"channel {self.channel_id!r} is still open after {timeout} seconds") from None
        state = self._live.state
        if state.status not in SILENT_STATUSES:
            raise UsageError(f"the hub was closed while channel {self.channel_id!r} was still open")
        return state.close_reason

    async def _say(self, event_type: str, data: Json, options: SendOptions) -> Envelope:
        live = self._live
        draft = Envelope("", live.state.channel_id, self._speaker, None, event_type, data)
        if options:
            check_option_names(options, SendOptions.__optional_keys__)
            if not options.keys() <= MESSAGE_OPTIONS:
                draft = self._with_options(draft, options)
        return await self._core.admit(live, draft, may_run=self._may_run)

    def _message_data(self, text: str, options: SendOptions) -> Json:
        """The words with what is said about them."""
        data: Json = {"text": text}
        for name in MESSAGE_FIELDS:
            given: object = options.get(name)
            if given is not None:
                advice = f"a text of 1 to {MAX_MESSAGE_FIELD_CHARS} characters, or None"
                data[name] = check_text_argument(given, name, advice, least=1, most=MAX_MESSAGE_FIELD_CHARS)
        wanted, audience = options.get("addressed_to"), options.get("audience")
        if wanted is not None:
            self._check_address(wanted)
            if isinstance(audience, list) and wanted not in audience:
                raise UsageError(f"addressed_to is {wanted!r}, who is not in the audience; add the name there")
        values: object = options.get("set")
        if values is not None:
            if not isinstance(values, dict):
                raise UsageError(f"set is {describe(values)}; give a dict of context variables, or None")
            data["set"] = private_copy(values)
        return data

    def _check_address(self, name: str) -> None:
        state = self._live.state
        if state.type != ROUTED:
            raise UsageError(f"addressed_to belongs to routed channels; this one is of type {state.type!r}")
        if name not in state.participants:
            advice = spelling_advice(name, state.participants) or f"there are: {', '.join(state.participants)}"
            raise UsageError(f"addressed_to is {describe(name)}, who is not in this channel; {advice}")

    def _with_options(self, draft: Envelope, options: SendOptions) -> Envelope:
        message_id, audience = options.get("message_id"), options.get("audience")
        return replace(
            draft,
            envelope_id="" if message_id is None else self._id_of(message_id),
            audience=list(audience) if type(audience) is list else audience,
            causation_id=options.get("causation_id"),
            priority=options.get("priority", Priority.NORMAL),
        )

    def _id_of(self, message_id: object) -> str:
        advice = f"a text of 1 to {MAX_MESSAGE_ID_CHARS} characters"
        text = check_text_argument(message_id, "message_id", advice, least=1, most=MAX_MESSAGE_ID_CHARS)
        return derived_id(self.channel_id, self._speaker, text)


class PacketOptions(TypedDict, total=False):
    """What a packet may carry beside its body."""

    handoff: Handoff | str | None
    """Who is given the turn."""
    finish: Finish | None
    """That there is nothing left to do."""
    tool: str | None
    """The tool by which the rules are to route."""
    context_set: Json | None
    context_delete: list[str] | None
    audience: list[str] | None
    causation_id: str | None


class EnvelopeBuilder:
    """Builds drafts for one channel; `hub.post` records them."""

    def __init__(self, live: LiveChannel) -> None:
        self._live = live

    @property
    def name(self) -> str:
        """The type of the channel."""
        return self._live.ruleset.adapter.name

    def build_text_envelope(
        self,
        channel_id: str = "",
        sender_id: str = "",
        text: str = "",
        *,
        audience: list[str] | None = None,
        causation_id: str | None = None,
    ) -> Envelope:
        """A text of this sender."""
        return Envelope("", self._own_id(channel_id), sender_id, audience, EV_TEXT, {"text": text}, causation_id)

    def build_packet_envelope(
        self, channel_id: str = "", sender_id: str = "", body: str = "", **options: Unpack[PacketOptions]
    ) -> Envelope:
        """A whole turn of this sender: what it says, where it goes next, and what it wrote to the context."""
        check_option_names(options, PacketOptions.__optional_keys__)
        updates: Json = {"set": options.get("context_set") or {}, "delete": options.get("context_delete") or []}
        data: Json = {"body": body, "routing": data_of(_routing_of(options)), "context_updates": updates}
        audience, cause = options.get("audience"), options.get("causation_id")
        return Envelope("", self._own_id(channel_id), sender_id, audience, EV_PACKET, data, cause)

    def _own_id(self, channel_id: str) -> str:
        own = self._live.state.channel_id
        if channel_id not in ("", own):
            raise UsageError(f"this builds envelopes for {own!r}, not for {describe(channel_id)}")
        return own


def _routing_of(options: PacketOptions) -> Routing:
    handoff: object = options.get("handoff")
    finish: object = options.get("finish")
    if isinstance(handoff, str):
        handoff = Handoff(handoff)
    if handoff is not None and not isinstance(handoff, Handoff):
        raise UsageError(f"handoff is {describe(handoff)}; give Handoff(target, reason)")
    if finish is not None and not isinstance(finish, Finish):
        raise UsageError(f"finish is {describe(finish)}; give Finish(reason)")
    return Routing(
        tool=options.get("tool"),
        target=None if handoff is None else handoff.target,
        reason="" if handoff is None else handoff.reason,
        summary="" if handoff is None else handoff.summary,
        finish=None if finish is None else finish.reason,
    )
