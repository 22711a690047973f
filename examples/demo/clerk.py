"""The clerk of the demonstration: an agent with a model, three tools, and a bank that answers when it likes.

Rule 1: the model decides by its request alone, so another process can resume the turn.
Rule 2: every call that is made tells a beat. A result that is read from the journal tells none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

import beats
import story

from antiphon.agents.call_results import Reply, ToolOutcome, decode_outcome
from antiphon.agents.messages import Asked, Request, calls, says
from antiphon.agents.tool import tool
from antiphon.core.envelope import Envelope
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import CallFinished, CallStarted
from antiphon.core.turns import CallRecord, Journal, journal_of
from antiphon.engines.model_calls import MODEL_CALL
from antiphon.runtime.agent import Agent

SCRIPT = (
    calls("look_up", {"tip": story.TIP}),
    calls("pay", {"payee": story.PAYEE, "shillings": story.SHILLINGS}),
    calls("file", {"receipt": story.RECEIPT}),
    says(story.PAID),
)
"""What the model answers, by how often it was asked before in this turn."""


class Outside(NamedTuple):
    """The clerk's connection to the watching process."""

    tell: Callable[[beats.Beat], None]
    cue: Callable[[], Awaitable[None]]
    """Waits to be cued."""
    confirmed: Callable[[], Awaitable[str]]
    """Waits for the bank's answer."""


class Clerk:
    """The agent, as one process runs it."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.asked, self.paying = asyncio.Event(), asyncio.Event()
        """Set from outside when the question was told, and from here when the bank was asked to pay."""

    def agent(self) -> Agent:
        """Her, ready to be registered."""
        tools = [tool(self.look_up), tool(self.pay), tool(self.file)]
        return Agent(story.CLERK, model=self.model, system_prompt="Pay what is owed, once.", tools=tools)

    async def model(self, request: Request) -> Reply:
        """Follow the script."""
        await self.asked.wait()
        reply = SCRIPT[sum(isinstance(item, Asked) for item in request.exchange)]
        self._outside.tell(beats.Called(story.CLERK, MODEL_CALL, wants=_wanted(reply), answer=reply.text))
        return reply

    async def look_up(self, tip: str) -> str:
        """Find out who gave a tip, and what is owed for it."""
        return self._answered("look_up", f"{story.PAYEE}, {story.SHILLINGS} shillings")

    async def pay(self, payee: str, shillings: int, idempotency_key: str) -> str:
        """Have the bank pay."""
        await self._outside.cue()
        self._outside.tell(beats.Pays(story.CLERK, idempotency_key, payee, shillings))
        self.paying.set()
        return await self._outside.confirmed()

    async def file(self, receipt: str) -> str:
        """Put a receipt where it belongs."""
        await self._outside.cue()
        return self._answered("file", f"{receipt}, in the second drawer")

    def _answered(self, name: str, answer: str) -> str:
        self._outside.tell(beats.Called(story.CLERK, name, answer=answer))
        return answer


def recalled(log: Iterable[Envelope]) -> Iterator[beats.Recalled]:
    """The journal of the turn in this log, call by call."""
    log = list(log)
    places = {event.index: envelope.sequence for envelope in log if (event := _call(envelope)) is not None}
    for index, entry in sorted(journal(log).items()):
        yield _recalled(places[index], entry)


def journal(log: Iterable[Envelope]) -> Journal:
    """The calls of the only turn in this log that made any."""
    log = list(log)
    turn = next((event.turn for envelope in log if (event := _call(envelope)) is not None), "")
    return journal_of(log, turn)


def _call(envelope: Envelope) -> CallStarted | CallFinished | None:
    event = event_of(envelope)
    return event if isinstance(event, CallStarted | CallFinished) else None


def _recalled(sequence: int, entry: CallRecord) -> beats.Recalled:
    started, outcome = entry.started, entry.outcome
    assert started is not None, "a call is on disk before it leaves"
    if not isinstance(outcome, CallFinished):
        return beats.Recalled(story.CLERK, sequence, started.name, key=started.key, in_flight=True)
    result = decode_outcome(outcome.result)
    if isinstance(result, ToolOutcome):
        return beats.Recalled(story.CLERK, sequence, started.name, key=started.key, answer=result.returned.text)
    assert isinstance(result, Reply), "the clerk has tools and a model, and no more"
    return beats.Recalled(story.CLERK, sequence, MODEL_CALL, wants=_wanted(result), answer=result.text)


def _wanted(reply: Reply) -> str:
    return ", ".join(call.name for call in reply.calls)
