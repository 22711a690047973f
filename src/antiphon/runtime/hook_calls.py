"""How hooks are called: before something is said, which they may refuse or rewrite, and after something was recorded.

Rule 1: `BEFORE_BROADCAST` hooks run in the hub that admits a draft, before its guards: in the order of their priority,
        each on what the one before has left. What comes out is checked like any draft.
Rule 2: all other hooks run after the append that recorded their cause, in the hub that made it, at most once. Nothing
        waits for them.
Rule 3: a hook that fails is recorded in its channel, and counts as one that allows; a required one as one that blocks.
Rule 4: a hook is given copies: nothing that it does to them changes what is recorded, or what the next hook is given.
Rule 5: closing a hub waits for no hook. A message whose hooks were running is not recorded; the turn of an answer is
        released, and resumed when the hub is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from dataclasses import replace
from inspect import isawaitable

import msgspec

from antiphon.core.codec import copy_json
from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_RELEASED,
)
from antiphon.core.envelope import HUB, OPERATORS, Envelope, IdSource, Json
from antiphon.core.errors import AntiphonError, UsageError
from antiphon.core.event_data import Deny, check_draft, mark_original
from antiphon.core.events import EV_CHANNEL_FORKED, EV_HOOK_FAILED, EV_TEXT, SPEECH_TYPES
from antiphon.core.step import hub_draft
from antiphon.core.text import describe, sanitize
from antiphon.engines.attempt_ends import EngineStopping, TurnFailedError
from antiphon.engines.user_code import LOOP_WATCH, run_contained
from antiphon.hub.admission import RecordDraft
from antiphon.hub.clock import Clock, DeadlineExceeded, TimerQueue
from antiphon.hub.known_secrets import redact_error, redact_text
from antiphon.hub.live import Channels, LiveChannel
from antiphon.runtime.hooks import HookEvent, HookExecution, HookResult, HookTrigger, RegisteredHook
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

logger = logging.getLogger("antiphon.hub")

BLOCKED = "blocked"


class HookFailure(msgspec.Struct, frozen=True):
    """Why a hook has no valid result."""

    trigger: HookTrigger
    hook: str
    error: str


class ScreenedDraft(msgspec.Struct, frozen=True):
    """What hooks made of a draft, and those that failed over it."""

    outcome: Envelope | Deny
    failures: Sequence[HookFailure] = ()


Spawn = Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]
"""Runs something until it ends or the hub closes."""


class Hooks:
    """The hooks of a hub."""

    def __init__(
        self, channels: Channels, clock: Clock, new_id: IdSource, *, spawn: Spawn, closing: asyncio.Event
    ) -> None:
        self._channels, self._new_id = channels, new_id
        self._spawn, self._closing = spawn, closing
        self._timers = TimerQueue(clock)
        self._by_trigger: dict[HookTrigger, tuple[RegisteredHook, ...]] = {}
        self.screening = False
        """Whether there is any `BEFORE_BROADCAST` hook."""

    def add(self, hook: RegisteredHook) -> None:
        """Call this hook from now on."""
        if not self._by_trigger:
            self._spawn(self._timers.run(), "timeouts of hooks")
        known = self._by_trigger.get(hook.trigger, ())
        self._by_trigger[hook.trigger] = tuple(sorted((*known, hook), key=lambda each: each.priority))
        watchers = self._channels.deps.on_recorded
        if hook.trigger is HookTrigger.BEFORE_BROADCAST:
            self.screening = True
        elif self.recorded not in watchers:
            watchers.append(self.recorded)

    def screens(self, live: LiveChannel, draft: Envelope) -> bool:
        """Whether hooks must be asked about this draft. What could not be recorded in any case is shown to none."""
        state = live.state
        return (
            self.screening
            and draft.event_type in SPEECH_TYPES
            and draft.sender_id in state.participants
            and not state.ended
            and not state.channel_id.startswith(SYSTEM_CHANNEL_PREFIX)
        )

    async def screen(self, live: LiveChannel, draft: Envelope) -> Envelope | Deny:
        """The draft as hooks leave it, or why it is refused. One that is recorded already is shown to none."""
        if draft.envelope_id and await self._is_recorded(live, draft.envelope_id):
            return draft
        outcome = await self._screen_in(live, draft)
        if outcome is None:
            raise UsageError("this hub is closed; open it again")
        return outcome if isinstance(outcome, Deny) else _marked(outcome, draft, repeatable=bool(draft.envelope_id))

    async def screen_answer(self, live: LiveChannel, draft: Envelope) -> Envelope:
        """An agent's answer as hooks leave it. One that is refused fails its turn."""
        if not self.screens(live, draft):
            return draft
        outcome = await self._screen_in(live, draft)
        match outcome:
            case None:
                raise EngineStopping
            case Deny(reason=reason, detail=detail):
                raise TurnFailedError(f"denied:{reason}" if reason == BLOCKED else f"refused:{reason}", detail)
            case _:
                return outcome

    async def open_screened(
        self,
        channel_id: str,
        words: Envelope,
        open_with: Callable[[Envelope], Awaitable[LiveChannel]],
        *,
        repeatable: bool,
    ) -> LiveChannel | Deny:
        """Open a channel with its first words as hooks leave them. `repeatable`: whether they may be sent again."""
        if not self.screening or check_draft(words) is not None:
            return await open_with(words)
        screened = await self._until_closing(channel_id, words)
        if screened is None:
            raise UsageError("this hub is closed; open it again")
        if isinstance(screened.outcome, Deny):
            return screened.outcome
        live = await open_with(_marked(screened.outcome, words, repeatable=repeatable))
        await self._note(live.state.channel_id, screened.failures)
        return live

    def recorded(self, channel_id: str, batch: Sequence[Envelope]) -> None:
        """Start the hooks for what was just recorded."""
        if self._closing.is_set() or channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
            return
        for envelope in _behind_copies(batch):
            for trigger in _triggers_of(envelope):
                hooks = self._by_trigger.get(trigger)
                if hooks:
                    # Without the context of the appending task: a hook is not part of the turn that caused it.
                    Context().run(self._spawn, self._run_all(hooks, channel_id, envelope), f"hooks of {channel_id}")

    async def _is_recorded(self, live: LiveChannel, envelope_id: str) -> bool:
        if envelope_id in live.log.recent_ids:
            return True
        return envelope_id in await self._channels.deps.store.find(live.state.channel_id, [envelope_id])

    async def _screen_in(self, live: LiveChannel, draft: Envelope) -> Envelope | Deny | None:
        """What hooks made of a draft; None if the hub closes. The hooks that failed are recorded before it."""
        screened = await self._until_closing(live.state.channel_id, draft)
        if screened is None:
            return None
        await self._note(live.state.channel_id, screened.failures)
        return screened.outcome

    async def _until_closing(self, channel_id: str, draft: Envelope) -> ScreenedDraft | None:
        """What hooks made of a draft; None if the hub closes before they have."""
        made: list[ScreenedDraft] = []

        async def work() -> None:
            made.append(await self._ask_all(channel_id, draft))

        asking = self._spawn(work(), f"hooks of {channel_id}")
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((asking, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
            closing.cancel()
        return None if self._closing.is_set() else made[0]

    async def _ask_all(self, channel_id: str, draft: Envelope) -> ScreenedDraft:
        failures: list[HookFailure] = []
        for hook in self._by_trigger[HookTrigger.BEFORE_BROADCAST]:
            match await self._call(hook, channel_id, draft):
                case HookResult(action="block", text=reason):
                    return ScreenedDraft(Deny(BLOCKED, reason), failures)
                case HookResult(action="modify", text=text):
                    draft = _with_text(draft, text)
                    denial = check_draft(draft)
                    if denial is not None:
                        return ScreenedDraft(denial, failures)
                case HookFailure() as failure:
                    failures.append(failure)
                    if hook.required:
                        return ScreenedDraft(Deny(BLOCKED, f"the required hook {hook.name!r} failed"), failures)
                case _:
                    pass
        return ScreenedDraft(draft, failures)

    async def _run_all(self, hooks: Sequence[RegisteredHook], channel_id: str, envelope: Envelope) -> None:
        """Run the hooks of one trigger for one envelope."""
        in_order = [hook for hook in hooks if hook.execution is HookExecution.SYNC]
        beside = [hook for hook in hooks if hook.execution is HookExecution.ASYNC]
        await asyncio.gather(
            self._run_in_order(in_order, channel_id, envelope),
            *(self._run_in_order([hook], channel_id, envelope) for hook in beside),
        )

    async def _run_in_order(self, hooks: Sequence[RegisteredHook], channel_id: str, envelope: Envelope) -> None:
        for hook in hooks:
            result = await self._call(hook, channel_id, envelope)
            if isinstance(result, HookFailure):
                await self._note(channel_id, [result])

    async def _call(self, hook: RegisteredHook, channel_id: str, envelope: Envelope) -> HookResult | HookFailure | None:
        """What a hook returns, if it means something for its trigger."""
        event = _event_for(hook, channel_id, envelope)

        async def run() -> object:
            returned = hook.function(event)
            return await returned if isawaitable(returned) else returned

        try:
            with LOOP_WATCH.watching():
                async with self._timers.within(hook.timeout):
                    result = await run_contained(run, f"hook {hook.name!r} for {hook.trigger.name}", hook.function)
        except DeadlineExceeded:
            error = f"it took longer than {hook.timeout:g} seconds"
        except Exception as raised:  # a hook may raise anything
            error = redact_error(raised)
        else:
            error = _result_error(hook, result)
            if not error:
                return result if isinstance(result, HookResult) else None
        return HookFailure(hook.trigger, hook.name, error)

    async def _note(self, channel_id: str, failures: Sequence[HookFailure]) -> None:
        """Record hooks that failed, for operators. What cannot be recorded stops nothing."""
        for failure in failures:
            logger.warning("hook %r for %s failed: %s", failure.hook, failure.trigger.name, failure.error)
            data: Json = {"trigger": str(failure.trigger), "hook": failure.hook, "error": failure.error}
            try:
                live = await self._channels.get(channel_id)
                await live.submit(RecordDraft(hub_draft(EV_HOOK_FAILED, data, audience=[OPERATORS]), self._new_id))
            except AntiphonError as error:
                logger.warning("this could not be recorded in channel %s: %s", channel_id, error)


def _event_for(hook: RegisteredHook, channel_id: str, envelope: Envelope) -> HookEvent:
    data = copy_json(envelope.event_data)
    audience = None if envelope.audience is None else list(envelope.audience)
    shown = replace(envelope, channel_id=channel_id, audience=audience, event_data=data)
    return HookEvent(hook.trigger, channel_id, shown, _promised_fields(envelope.event_type, data))


def _promised_fields(event_type: str, data: Json) -> Json:
    """The data with all fields that the trigger promises: of a release, those of the handoff that it is."""
    if event_type == EV_CONVERSATION_MOVED:
        return {"summary": "", **data}
    if event_type == EV_CONVERSATION_RELEASED:
        phase = data.get("phase", "")
        moved: Json = {"from_agent": None, "to_agent": data.get("to"), "from_phase": phase, "to_phase": phase}
        return {"by": data.get("by"), **moved, "reason": "released", "summary": ""}
    return data


def _result_error(hook: RegisteredHook, result: object) -> str:
    """What is wrong with what a hook returned; "" if nothing is."""
    if hook.trigger is not HookTrigger.BEFORE_BROADCAST:
        wrong = isinstance(result, HookResult)
        return "it returned a HookResult, which changes nothing here: its cause is recorded" if wrong else ""
    if result is None or (isinstance(result, HookResult) and _is_valid_result(result)):
        return ""
    return redact_text(sanitize(f"it returned {describe(result)}; it should return None or a HookResult"))


def _is_valid_result(result: HookResult) -> bool:
    return result.action in ("block", "modify") and isinstance(result.text, str)


def spoken_text(draft: Envelope) -> str:
    """The text; of a packet its body."""
    return str(draft.event_data[_text_field(draft)])


def _text_field(draft: Envelope) -> str:
    return "text" if draft.event_type == EV_TEXT else "body"


def _with_text(draft: Envelope, text: str) -> Envelope:
    """The draft with another text; of a packet, with another body."""
    return replace(draft, event_data={**draft.event_data, _text_field(draft): text})


def _marked(screened: Envelope, draft: Envelope, *, repeatable: bool) -> Envelope:
    """The draft as hooks left it, such that the original is recognised if it is sent again."""
    if not repeatable or screened.event_data == draft.event_data:
        return screened
    return mark_original(screened, draft.event_data)


def _behind_copies(batch: Sequence[Envelope]) -> Sequence[Envelope]:
    """What happened now: of the first batch of a fork, what stands behind the copies."""
    if batch[0].sequence != 1:
        return batch
    forked = (place for place, envelope in enumerate(batch) if envelope.event_type == EV_CHANNEL_FORKED)
    return batch[next(forked, -1) + 1 :]


def _triggers_of(envelope: Envelope) -> Iterator[HookTrigger]:
    """The triggers of an envelope that was recorded."""
    data = envelope.event_data
    if envelope.event_type in SPEECH_TYPES and envelope.sender_id != HUB:
        yield HookTrigger.AFTER_BROADCAST
    elif envelope.event_type == EV_CONVERSATION_MOVED:
        if data.get("to_agent") not in (None, data.get("from_agent")) or data.get("person"):
            yield HookTrigger.ON_HANDOFF
        if data.get("from_phase") != data.get("to_phase"):
            yield HookTrigger.ON_PHASE_TRANSITION
    elif envelope.event_type == EV_CONVERSATION_RELEASED:
        if data.get("to") is not None:
            yield HookTrigger.ON_HANDOFF
    elif envelope.event_type == EV_CONVERSATION_REFUSED:
        yield HookTrigger.ON_HANDOFF_REJECTED
