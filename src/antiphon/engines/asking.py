"""Asks a model, and asks it again where that may help: the one place where anybody does.

Rule 1: only what is `ModelUnavailable` is asked again. Whatever else a model raises is final, and so is an answer.
Rule 2: all attempts and the waits between them share one deadline, and nobody waits for what cannot come in time.
Rule 3: that a model is asked again is on disk before the wait, so that whoever goes on after a crash goes on counting.
Rule 4: what somebody has heard is not said again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import isfinite
from random import Random

from antiphon.agents.limits import Limits
from antiphon.agents.messages import Reply
from antiphon.agents.wanted import AskModel, Enter
from antiphon.core.errors import ModelUnavailable
from antiphon.core.events import EV_CALL_RETRIED, CallRetried
from antiphon.core.instants import NEVER, Instant, after, seconds_between
from antiphon.core.words import told
from antiphon.engines.alarms import OutOfTime
from antiphon.engines.means import Book, Stopped
from antiphon.hub.clock import steady

FIRST = 0.5
"""How many seconds are waited at most before a model is asked for the second time; then twice as many, and so on."""
LONGEST = 20.0
DOUBLINGS = 6
"""After so many it is `LONGEST` anyway."""
AT_LEAST_LEFT = 1.0
"""With how many seconds left it is no use to ask again."""
LONGEST_ERROR = 200
"""How many characters of an error are recorded with each attempt. The last one is told at length."""


class Unanswered(Exception):
    """A model has not answered, and is not asked again; why, in words for the log."""

    def __init__(self, detail: str, *, timed_out: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out


class Asking:
    """One call of a model, in as many attempts as it takes and is worth."""

    def __init__(self, book: Book, wanted: AskModel | Enter, *, model: object, limits: Limits) -> None:
        self._book, self._wanted, self._model, self._limits = book, wanted, model, limits
        self._attempt = book.entry(wanted.index).retries + 1
        """Counted from 1, and on from those before a crash."""
        self._deadline: Instant = NEVER
        self.heard = False
        """To be set when somebody has heard a part of the answer."""

    async def answer(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """What the model answers; `Unanswered` if it does not, `Stopped` if the engine stops meanwhile."""
        means = self._book.means
        async with means.limit.asking(self._book.job, means.stopping) as may_ask:
            if not may_ask:
                raise Stopped
            return await self._answer(ask)

    async def _answer(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        seconds = self._limits.model_seconds
        if seconds is not None:
            self._deadline = after(steady(self._book.means.clock), seconds)
        while True:
            try:
                return await self._asked(ask, seconds)
            except ModelUnavailable as error:
                await self._wait(error, self._delay(error))
            self._attempt += 1
            seconds = self._left()

    async def _asked(self, ask: Callable[[], Awaitable[Reply]], seconds: float | None) -> Reply:
        means = self._book.means
        try:
            with means.trace.asking(self._wanted.path, self._model, attempt=self._attempt) as span:
                async with means.alarms.within(seconds):
                    reply = await ask()
                span.used(reply.usage)
                return reply
        except ModelUnavailable:
            raise
        except OutOfTime as error:
            raise self._out_of_time() from error
        except Exception as error:
            raise Unanswered(self._counted(told(error))) from error

    def _delay(self, error: ModelUnavailable) -> float:
        """How many seconds to wait before the model is asked again; `Unanswered` if it is not."""
        if self.heard:
            raise Unanswered(self._counted(f"it broke off in mid-answer: {told(error)}")) from error
        if self._attempt >= self._limits.model_attempts:
            raise Unanswered(self._counted(told(error))) from error
        most = min(LONGEST, FIRST * 2 ** min(self._attempt - 1, DOUBLINGS))
        key = f"{self._book.channel_id} {self._book.turn_id} {self._wanted.index} {self._attempt}"
        delay = max(round(Random(key).uniform(0, most), 6), error.retry_after or 0.0)
        left = self._left()
        if not isfinite(delay) or (left is not None and delay >= left - AT_LEAST_LEFT):
            late = f"it could be asked again in {delay:g} seconds, which is too late"
            raise Unanswered(self._counted(f"{told(error)}; {late}")) from error
        return delay

    async def _wait(self, error: ModelUnavailable, delay: float) -> None:
        """Have it recorded that the model is asked again, and wait until then."""
        book, means = self._book, self._book.means
        until = after(steady(means.clock), delay)
        why = told(error)[:LONGEST_ERROR]
        retried = CallRetried(book.turn_id, self._wanted.index, self._attempt, why, delay, error.status)
        await book.notes.write(EV_CALL_RETRIED, retried)
        while not means.stopping.is_set() and (pause := seconds_between(steady(means.clock), until)) > 0:
            # A task of its own: whoever moves a clock by hand may wait until those it wakes wait again, or are done.
            await asyncio.create_task(means.clock.wait(means.stopping, after(means.clock.now(), pause)))
        if means.stopping.is_set():
            raise Stopped
        left = self._left()
        if left is not None and left <= 0:  # the store, or the machine, was away for longer than the model was given
            raise self._out_of_time() from error

    def _left(self) -> float | None:
        """How many seconds are left of those that the model was given; None for any number."""
        return None if self._deadline == NEVER else seconds_between(steady(self._book.means.clock), self._deadline)

    def _out_of_time(self) -> Unanswered:
        return Unanswered(self._counted(f"nothing came within {self._limits.model_seconds:g} seconds"), timed_out=True)

    def _counted(self, why: str) -> str:
        return why if self._attempt == 1 else f"{why}; it was asked {self._attempt} times"
