"""Calls of models: one call in the journal, with as many attempts as its limits allow.

Rule 1: only `ModelUnavailable` is retried. Every other error of a model is final, and so is an answer.
Rule 2: all attempts and the waits between them share one deadline; a retry that would come too late is not waited for.
Rule 3: a retry is on disk before the wait, so that the count continues after a crash.
Rule 4: no retry once tokens were streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from math import isfinite
from random import Random
from typing import TypeVar, cast

import msgspec

from antiphon.agents.call_results import Reply, Thinking, Usage, one_reply
from antiphon.agents.messages import Model, NoticesResume, StreamsReply
from antiphon.agents.progress import AskModel, CallDenied, PreparePrompt
from antiphon.agents.team import DEFAULT_TURN_LIMITS, Limits, Member
from antiphon.core.codec import Malformed, as_type, check_json, digest_of_encoded
from antiphon.core.envelope import NEVER, Instant, Json, add_seconds, seconds_between
from antiphon.core.errors import ModelUnavailable, ReplyMalformed
from antiphon.core.execution_events import (
    EV_CALL_FINISHED,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
    FailureClass,
)
from antiphon.core.text import describe_error
from antiphon.core.turns import TurnFailure
from antiphon.engines.attempt_ends import AwaitsApproval, EngineStopping, TurnFailedError
from antiphon.engines.cut_calls import keep_deadline_denial, retried_class
from antiphon.engines.journal import TurnJournal, agent_in_journal, call_failure, recordable_data, recorded_result
from antiphon.engines.prepared_calls import encode_request, sent_bytes
from antiphon.engines.reservations import booked_usage, full_booking, reserving_call
from antiphon.engines.tracing import model_label
from antiphon.engines.user_code import run_contained
from antiphon.guards.retry_budget import attempts_of
from antiphon.hub.clock import DeadlineExceeded, shorter_time, steady_now
from antiphon.hub.feed import Signal

T = TypeVar("T")

MODEL_CALL = "model"
FIRST_RETRY_DELAY_SECONDS = 0.5
"""The longest wait before the second attempt, in seconds; each further attempt doubles it."""
MAX_RETRY_DELAY_SECONDS = 20.0
MAX_RETRY_DOUBLINGS = 6
"""Beyond this exponent the delay is `MAX_RETRY_DELAY_SECONDS` anyway."""
MIN_SECONDS_TO_RETRY = 1.0
"""With fewer seconds left, a retry is pointless."""
MAX_RETRY_ERROR_CHARS = 200
"""How many characters of an error are recorded with each attempt. The last error is recorded in full."""


async def ask_model(journal: TurnJournal, wanted: AskModel) -> Reply | CallDenied:
    """The recorded reply, or the model's: recorded as started before it is asked, and kept before it is returned."""
    encoded = encode_request(wanted.request)
    digest = digest_of_encoded(encoded)
    recorded = recorded_result(journal, wanted.index, MODEL_CALL, kind=Reply)
    if recorded is not None:
        journal.note_difference(wanted.index, digest)
        return recorded
    run, member = journal.run, journal.run.team.members[wanted.path]
    _check_tools_callable(journal, member)
    model, limits = member.declaration.model, member.declaration.limits
    agent, called = agent_in_journal(wanted.path), _guarded_name(journal, model)
    call = CallStarted(run.turn_id, wanted.index, MODEL_CALL, digest, agent=agent, model=called)
    if run.live.ruleset.calls.asked:
        sent = sent_bytes(wanted.request, encoded)
        call = await reserving_call(journal, call, model=model, request=wanted.request, sent=sent, limits=limits)
    started = await start_model_call(journal, call)
    if isinstance(started, CallDenied):
        return started
    model = run.environment.find_model(started.via) if started.via else model
    name = f"the model of {run.caller(wanted.path)}"
    asking = RetriedModelCall(journal, wanted, model=model, limits=limits, until=deadline_of_guards(call, started))
    try:
        answer = await asking.answer(
            lambda: run_contained(lambda: _stream_or_ask(asking, wanted, member), name, asking.model)
        )
    except NoModelAnswer as error:
        if error.denied is not None:
            return CallDenied(error.denied.denied, error.denied.answer)
        reason = "model_timeout" if error.timed_out else "model_error"
        raise error.as_failure(journal, wanted.index, reason) from error
    try:
        result = _recordable_reply(answer)
        reply = as_type(result, Reply)
    except Malformed as error:
        failure = TurnFailure("model_error", f"its reply cannot be recorded: {error}")
        raise call_failure(
            journal, wanted.index, failure, kind="schema", booked=full_booking(journal, wanted.index)
        ) from error
    except Exception as error:
        failure = TurnFailure("model_error", describe_error(error))
        raise call_failure(journal, wanted.index, failure, booked=full_booking(journal, wanted.index)) from error
    finished = finished_call(journal, wanted.index, result, usage=reply.usage)
    output = run.team.output_at(wanted.path) if run.live.ruleset.calls.asked and not reply.calls else None
    if output is not None and output.complaint(reply.text) is not None:
        finished = msgspec.structs.replace(finished, failure="schema")
    journal.keep(EV_CALL_FINISHED, finished)
    return reply


def deadline_of_guards(call: CallStarted, started: CallStarted) -> Instant:
    """When a guard has the time of a call end; `NEVER` if none has changed when its reservation ends."""
    return NEVER if started.until == call.until else started.until


def _guarded_name(journal: TurnJournal, model: object) -> str:
    """The name of a model as guards know it; "" where there are none."""
    if not journal.run.live.ruleset.calls.asked:
        return ""
    provider, name = getattr(model, "provider", None), model_label(model)
    return f"{provider}:{name}" if isinstance(provider, str) else name


def finished_call(journal: TurnJournal, index: int, result: Json, *, usage: Usage) -> CallFinished:
    """The outcome of a model call, with what it has used if guards count that."""
    if not journal.run.live.ruleset.calls.asked:
        return CallFinished(journal.turn_id, index, result)
    cost, tokens = booked_usage(journal, index, usage)
    return CallFinished(journal.turn_id, index, result, cost=cost, tokens=tokens)


async def start_model_call(journal: TurnJournal, call: CallStarted) -> CallStarted | CallDenied:
    """The call as guards let it leave, recorded; or its denial, also one that is recorded."""
    denial = journal.calls.denial(call.index)
    if denial is None:
        if journal.calls.awaits_approval(call.index):
            raise AwaitsApproval(call.name)
        approved = journal.calls.record(call.index).approved
        if approved is not None:
            call = msgspec.structs.replace(call, approved=approved.by)
        await journal.start(call)
        if journal.calls.awaits_approval(call.index):
            raise AwaitsApproval(call.name)
        denial = journal.calls.denial(call.index)
        call = journal.calls.record(call.index).started or call
    return call if denial is None else CallDenied(denial.denied, denial.answer)


def _check_tools_callable(journal: TurnJournal, member: Member) -> None:
    """A model that cannot call tools, of an agent that has some, is a warning once a turn, or fails the turn."""
    if member.calls_tools or not member.specs:
        return
    required = member.declaration.require_tools
    if required or (required is None and journal.run.live.state.knobs.get("tier") == "regulated"):
        raise TurnFailedError("tools_required", f"the model of {member.name!r} calls no tools, which are required here")
    tools = ", ".join(spec.name for spec in member.specs)
    journal.warn("no_tool_calls", member.path, f"its model calls no tools; it does without: {tools}")


async def _stream_or_ask(call: RetriedModelCall, wanted: AskModel, member: Member) -> Reply:
    """The model's answer; streamed, if the model can stream and the channel has subscribers of tokens."""
    journal, run, model = call.journal, call.journal.run, cast(Model, call.model)
    feed, capable = run.environment.feed, cast("object", model)
    if journal.calls.resumed and isinstance(capable, NoticesResume):
        capable.turn_resumed(run.turn_id)
    if not feed.has_token_subscribers(run.channel_id) or not isinstance(capable, StreamsReply):
        answer: object = model(wanted.request)
        return _require_reply(await answer if isawaitable(answer) else answer)
    reply: Reply | None = None
    async with _closing_stream(capable.stream(wanted.request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                call.has_streamed |= bool(piece) and feed.has_token_subscribers(run.channel_id)
                audience = run.turn.audience if run.audience is None else run.audience or None
                feed.signal(Signal(run.channel_id, member.name, run.turn_id, wanted.index, piece, audience))
            else:
                reply = _require_reply(piece)
    if reply is None:
        raise ReplyMalformed("the model's stream ended without its answer")
    return reply


@asynccontextmanager
async def _closing_stream(pieces: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """The pieces of an answer, closed at the end, also after an error."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def _require_reply(answer: object) -> Reply:
    try:
        return one_reply(answer)
    except TypeError as error:
        raise ReplyMalformed(str(error)) from error


def _recordable_reply(reply: Reply) -> Json:
    """The reply as the journal holds it; `Malformed` if it cannot be recorded."""
    thoughts = reply.thinking.thoughts if isinstance(reply.thinking, Thinking) else ()
    check_json([reply.text, *([call.name, call.args, call.call_id] for call in reply.calls)])
    check_json([thought.block for thought in thoughts])
    return recordable_data(reply, "it")


class NoModelAnswer(Exception):
    """A model has not answered, and is not asked again; the message says why."""

    def __init__(
        self,
        detail: str,
        *,
        timed_out: bool = False,
        unavailable: bool = False,
        answered: bool = False,
        denied: CallFailed | None = None,
    ) -> None:
        super().__init__(detail)
        self.timed_out, self.denied = timed_out, denied
        self._may_cost = timed_out or answered
        """Whether it may have worked on an answer all the same."""
        self.failure: FailureClass = "timeout" if timed_out else "transport" if unavailable else "error"

    def as_failure(self, journal: TurnJournal, index: int, reason: str) -> TurnFailedError:
        """The failure of a turn by this, which is kept for the journal."""
        booked = full_booking(journal, index) if self._may_cost else (0, 0)
        return call_failure(journal, index, TurnFailure(reason, str(self)), kind=self.failure, booked=booked)


class RetriedModelCall:
    """One call of a model, with its retries."""

    def __init__(
        self,
        journal: TurnJournal,
        wanted: AskModel | PreparePrompt,
        *,
        model: object,
        limits: Limits,
        until: Instant = NEVER,
    ) -> None:
        self.journal, self._wanted, self._limits = journal, wanted, limits
        self.model = model
        """The model that is asked next: a guard may choose another one for a retry."""
        self._until = until
        """When a guard has its time end; `NEVER` if none does."""
        self._cut_after: float | None = None
        """The seconds that a guard leaves it, if that is no more than its own limits do."""
        self._attempt = journal.calls.record(wanted.index).retries + 1
        """Counted from 1, and on from those before a crash."""
        self._deadline: Instant = NEVER
        self._clock, self._stopping = journal.run.environment.clock, journal.run.attempt.stopping
        self.has_streamed = False
        """To be set when a part of the answer was streamed."""

    async def answer(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """The model's answer; `NoModelAnswer` if there is none, `EngineStopping` if the engine stops meanwhile."""
        run, own = self.journal.run, self._limits.model_seconds
        until = run.on_clock(self._until)
        seconds, left = shorter_time(self._clock, own, until), shorter_time(self._clock, None, until)
        if left is not None and (own is None or left <= own):
            self._cut_after = left
        async with run.environment.limit.model_slot(run.attempt.job, self._stopping) as may_ask:
            if not may_ask:
                raise EngineStopping
            if seconds is not None:
                self._deadline = add_seconds(steady_now(self._clock), seconds)
            while True:
                try:
                    return await self._ask_once(ask, seconds)
                except ModelUnavailable as error:
                    await self._wait(error, self._delay(error))
                self._attempt += 1
                seconds = self._seconds_left()

    async def _ask_once(self, ask: Callable[[], Awaitable[Reply]], seconds: float | None) -> Reply:
        run = self.journal.run
        try:
            with run.trace.model_call(self._wanted.path, self.model, attempt=self._attempt) as span:
                async with run.timers.within(seconds):
                    reply = await ask()
                span.used(reply.usage)
                return reply
        except ModelUnavailable:
            raise
        except DeadlineExceeded as error:
            raise self._timeout_error() from error
        except Exception as error:
            answered = isinstance(error, ReplyMalformed)
            raise NoModelAnswer(self._with_attempt_count(describe_error(error)), answered=answered) from error

    def _delay(self, error: ModelUnavailable) -> float:
        """The seconds until the next attempt; `NoModelAnswer` if there is none."""
        if self.has_streamed:
            raise NoModelAnswer(
                self._with_attempt_count(f"it broke off in mid-answer: {describe_error(error)}"),
                unavailable=True,
                answered=True,
            ) from error
        if self._attempt >= self._most_attempts or not error.may_pass:
            raise NoModelAnswer(self._with_attempt_count(describe_error(error)), unavailable=True) from error
        most = min(
            MAX_RETRY_DELAY_SECONDS, FIRST_RETRY_DELAY_SECONDS * 2 ** min(self._attempt - 1, MAX_RETRY_DOUBLINGS)
        )
        key = f"{self.journal.run.channel_id} {self.journal.turn_id} {self._wanted.index} {self._attempt}"
        delay = max(round(Random(key).uniform(0, most), 6), error.retry_after or 0.0)
        left = self._seconds_left()
        if not isfinite(delay) or (left is not None and delay >= left - MIN_SECONDS_TO_RETRY):
            late = f"it could be asked again in {delay:g} seconds, which is too late"
            detail = self._with_attempt_count(f"{describe_error(error)}; {late}")
            raise NoModelAnswer(detail, unavailable=True) from error
        return delay

    @property
    def _most_attempts(self) -> int:
        """How often the model is asked at most: as the agent's limits say, or else the guard of retries."""
        said = self._limits.model_attempts
        if said != DEFAULT_TURN_LIMITS.model_attempts:
            return said
        return attempts_of(self.journal.run.live.ruleset.guards) or said

    async def _wait(self, error: ModelUnavailable, delay: float) -> None:
        """Record the retry, and wait for its time."""
        clock, stopping = self._clock, self._stopping
        until = add_seconds(steady_now(clock), delay)
        why = describe_error(error)[:MAX_RETRY_ERROR_CHARS]
        guarded = self.journal.run.live.ruleset.calls.asked
        retried = CallRetried(
            self.journal.turn_id,
            self._wanted.index,
            self._attempt,
            why,
            delay,
            error.status,
            model=_guarded_name(self.journal, self.model),
            failure=retried_class(error) if guarded else "",
        )
        denied = await self.journal.retry(retried)
        if denied is not None:
            raise NoModelAnswer(self._with_attempt_count(f"{why}; {denied.error}"), denied=denied) from error
        via = self.journal.calls.record(self._wanted.index).via
        if via:
            self.model = self.journal.run.environment.find_model(via)
        while not stopping.is_set() and (pause := seconds_between(steady_now(clock), until)) > 0:
            # A task of its own: `ManualClock.advance` waits for the tasks that it wakes, not for a bare await.
            await asyncio.create_task(clock.wait(stopping, add_seconds(clock.now(), pause)))
        if stopping.is_set():
            raise EngineStopping
        denied = await self.journal.refuse_late_retry(retried)
        if denied is not None:
            raise NoModelAnswer(self._with_attempt_count(f"{why}; {denied.error}"), denied=denied) from error
        left = self._seconds_left()
        if left is not None and left <= 0:  # the store, or the machine, was away for longer than the deadline
            raise self._timeout_error() from error

    def _seconds_left(self) -> float | None:
        """The seconds left until the deadline; None without one."""
        return None if self._deadline == NEVER else seconds_between(steady_now(self._clock), self._deadline)

    def _timeout_error(self) -> NoModelAnswer:
        if self._cut_after is not None:
            detail = self._with_attempt_count(
                f"nothing came within {self._cut_after:g} seconds, when its time was over"
            )
            denied = keep_deadline_denial(self.journal, self._wanted.index, self._cut_after, detail=detail)
            return NoModelAnswer(detail, timed_out=True, denied=denied)
        return NoModelAnswer(
            self._with_attempt_count(f"nothing came within {self._limits.model_seconds:g} seconds"), timed_out=True
        )

    def _with_attempt_count(self, why: str) -> str:
        return why if self._attempt == 1 else f"{why}; it was asked {self._attempt} times"
