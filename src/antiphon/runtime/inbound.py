"""The messages that come in by a transport: each is recorded in its channel, or refused with a line in the log.

Rule 1: the next message is asked for when the last one is recorded or refused. An iterator takes that for an
        acknowledgement, so a message that has to be retried is retried here, and the iterator is not asked.
Rule 2: what the channel refuses is not retried: it would be refused again. A failing store is retried for ever. Any
        other error is one of `channel=`: it is retried with growing pauses, and then the message is given back: its
        iterator is closed without being asked for another, and `receive` is called again.
Rule 3: once the hub closes nothing is asked for, recorded or refused. The message at hand counts as not received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Protocol, TypedDict, Unpack

from antiphon.core.envelope import Envelope, derived_id
from antiphon.core.errors import Denied, IdReused, LogCorrupt, StoreError, StoreGone, TooLarge, UsageError
from antiphon.core.text import MAX_ERROR_CHARS, describe, sanitize
from antiphon.core.transport import InboundMessage
from antiphon.engines.user_code import cancel_user_code, run_contained
from antiphon.hub.clock import TimerQueue
from antiphon.hub.known_secrets import redact_error, redact_text
from antiphon.runtime.arguments import check_text_argument

logger = logging.getLogger("antiphon.transport")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
MAX_CHANNEL_ATTEMPTS = 10
"""How often `channel=` is tried for one message, for about 8.5 minutes, before the message is given back."""
MESSAGE_ID_ADVICE = "the id that its sender gave it"


class InboundOptions(TypedDict, total=False):
    """What is recorded with a message that comes in."""

    transport: str | None
    source: str | None
    intent: str | None
    message_id: str | None


class TakesMessages(Protocol):
    """A channel as its participant holds it."""

    async def send(self, text: str, **options: Unpack[InboundOptions]) -> Envelope: ...


ReceiveMessages = Callable[[], AsyncIterator[InboundMessage]]
FindChannel = Callable[[InboundMessage], Awaitable[TakesMessages]]


class ChannelLookupFailed(Exception):
    """The function `channel=` of a transport raised an error, or returned no channel."""


class MessageGivenBack(Exception):
    """A message could not be recorded, and was not acknowledged."""


def longer_pause(seconds: float) -> float:
    """The pause after one of so many seconds."""
    return min(2 * seconds, LONGEST_PAUSE_SECONDS)


async def record_message(name: str, find: FindChannel, message: InboundMessage) -> Envelope:
    """Record a message in its channel. The same message again gives the envelope of the first time."""
    check_text_argument(message.message_id, "the message_id of an inbound message", MESSAGE_ID_ADVICE, least=1)
    channel = await _find_channel(name, find, message)
    # Two transports may give equal ids to different messages.
    message_id = derived_id("inbound", name, message.message_id)
    return await channel.send(
        message.text, transport=name, source=message.source, intent=message.intent, message_id=message_id
    )


async def _find_channel(name: str, find: FindChannel, message: InboundMessage) -> TakesMessages:
    """The channel that user code opens or finds. What the hub refuses, and errors of its store, pass as they are."""

    async def find_once() -> TakesMessages:
        found = find(message)
        return await found if isawaitable(found) else found

    label = f"channel= of the transport {name!r}"
    try:
        channel = await run_contained(find_once, label, find)
    except (Denied, StoreError):
        raise
    except Exception as error:  # of any kind: it is code of the user's
        raise ChannelLookupFailed(f"{label} raised {redact_error(error)}") from error
    if not callable(getattr(channel, "send", None)):
        said = f"{label} returned {redact_text(describe(channel))}"
        raise ChannelLookupFailed(f"{said}; return the channel that it opened or found")
    return channel


class MessageReceiver:
    """Reads the messages of one transport, and has each recorded."""

    def __init__(
        self,
        name: str,
        receive: ReceiveMessages,
        record: Callable[[InboundMessage], Awaitable[object]],
        *,
        timers: TimerQueue,
        closing: asyncio.Event,
    ) -> None:
        self._name, self._receive, self._record = name, receive, record
        self._timers, self._closing = timers, closing
        self._recording = False
        """Whether a message is being recorded. That is not cut off when the hub closes."""
        self._pause = FIRST_PAUSE_SECONDS
        """The pause before `receive` is called again."""

    async def run(self) -> None:
        """Receive until the iterator ends, the store is gone, or the hub closes."""
        reading = asyncio.create_task(self._read(), name=f"receive= of the transport {self._name!r}")
        closing = asyncio.create_task(self._closing.wait(), name=f"end of messages by {self._name}")
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            if self._recording:  # not cut off: the reader ends when the message is recorded
                await asyncio.wait((reading,))
        finally:
            closing.cancel()
            if not reading.done():
                await cancel_user_code(reading)  # an iterator that ignores it must not keep the hub from closing
        if reading.done() and not reading.cancelled():
            reading.result()

    async def _read(self) -> None:
        while not (self._closing.is_set() or await self._has_ended()):
            await self._wait(self._pause)
            self._pause = longer_pause(self._pause)

    async def _has_ended(self) -> bool:
        """Receive; whether there is nothing more to receive. False if `receive` is to be called again."""
        reading = asyncio.current_task()
        assert reading is not None, "a transport is read in a task"
        try:
            await self._receive_all()
        except StoreGone:
            return True
        except MessageGivenBack:
            return False
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # an iterator is code of the user's
            if reading.cancelling():
                raise
            logger.warning("%s cannot receive: %s", self._name, redact_error(error))
            return False
        return True

    async def _receive_all(self) -> None:
        async with _closed_at_the_end(self._receive()) as messages:
            async for message in messages:
                if not isinstance(message, InboundMessage):
                    said = redact_text(describe(message))
                    logger.error("%s received %s; receive= must give an InboundMessage", self._name, said)
                    continue
                await self._record_or_refuse(message)
                self._pause = FIRST_PAUSE_SECONDS
                if self._closing.is_set():
                    return

    async def _record_or_refuse(self, message: InboundMessage) -> None:
        """Have a message recorded, however long that takes, or refuse it. If the hub closes, do neither."""
        attempts, pause = 0, FIRST_PAUSE_SECONDS
        while not self._closing.is_set():
            self._recording = True
            try:
                await self._record(message)
                return
            except StoreGone:
                raise
            except Exception as error:
                if self._closing.is_set():  # a hub that closes refuses everything
                    return
                attempts += not isinstance(error, StoreError)
                if self._is_refused(message, error, attempts):
                    return
            finally:
                self._recording = False
            await self._wait(pause)
            pause = longer_pause(pause)

    def _is_refused(self, message: InboundMessage, error: Exception, attempts: int) -> bool:
        """Whether a message is refused, and not retried after this error. After the last attempt it is given back."""
        named = (self._name, _logged(message.message_id), _logged(message.source))
        match error:
            case Denied() | UsageError() | TooLarge() | IdReused() | LogCorrupt():
                logger.warning("%s: the message %s from %s is refused: %s", *named, redact_text(str(error)))
                return True
            case StoreError():
                logger.warning("%s: the message %s from %s cannot be recorded yet: %s", *named, redact_error(error))
                return False
            case _:
                why = redact_text(str(error)) if isinstance(error, ChannelLookupFailed) else redact_error(error)
        if attempts < MAX_CHANNEL_ATTEMPTS:
            logger.warning("%s: the message %s from %s is tried again: %s", *named, why)
            return False
        said = "%s: the message %s from %s is given back after %d attempts: %s"
        logger.error(said, *named, attempts, why)
        raise MessageGivenBack from error

    async def _wait(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._timers.after(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


def _logged(name: object) -> str:
    """What the other side calls something, as a line of a log can hold it."""
    return sanitize(str(name)[:MAX_ERROR_CHARS])


@asynccontextmanager
async def _closed_at_the_end(messages: AsyncIterator[object]) -> AsyncIterator[AsyncIterator[object]]:
    """The iterator, closed at the end, so that its own cleanup runs. One without `aclose` is left as it is."""
    iterator = aiter(messages)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()
