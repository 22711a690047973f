"""Does what one attempt at a turn needs of the world, or reads what that came to from its journal.

Rule 1: what has an outcome in the journal is not done again, whatever the attempt would say this time.
Rule 2: what touches the world is on disk before it leaves, and what it came to before the next thing does.
Rule 3: a prompt is rendered anew for each attempt, and so is a step that does not wait: both must come to the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import TypeVar

from antiphon.agents.isolation import contained
from antiphon.agents.messages import NoticesResume, Reply, Request, Streams
from antiphon.agents.progress import YOURS, Changes, Path, Progress, changes_between
from antiphon.agents.replies import one_reply
from antiphon.agents.team import Member
from antiphon.agents.thinking import Thinking
from antiphon.agents.wanted import AskModel, Enter, Entered, Given, RunStep, Wanted
from antiphon.core.codec import MAX_BYTES, Malformed, as_type, check_json, digest_of, plain_data, to_json
from antiphon.core.errors import ReplyMalformed
from antiphon.core.events import (
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    CallFailed,
    CallFinished,
    CallStarted,
    ContextSet,
    Json,
)
from antiphon.core.words import told
from antiphon.engines.asking import Asking, Unanswered
from antiphon.engines.means import Book, Failing, agent_in_journal
from antiphon.engines.toolcalls import ToolCalls
from antiphon.hub.feed import Signal

T = TypeVar("T")

MODEL = "model"
STEP = "step:"
"""What a step of a user's is called in the journal, before its name."""

Entrance = Callable[[Enter], Awaitable[Entered]]
"""Finds out what somebody who becomes active is told and shown."""


class Performance:
    """One attempt's contacts with the world."""

    def __init__(self, book: Book, entrance: Entrance, *, required: bool = False) -> None:
        self._book, self._entrance, self._required = book, entrance, required
        self._tools = ToolCalls(book)

    @property
    def context(self) -> ContextSet:
        """What this turn has written to the context so far."""
        return self._tools.context

    @property
    def audience(self) -> tuple[str, ...] | None:
        """The audience that a tool has chosen for the answer: `()` is everybody; None if no tool has chosen one."""
        return self._tools.audience

    def waits_for_tasks(self) -> bool:
        """Whether all calls in progress do nothing but wait for tasks."""
        return self._tools.wait_for_tasks()

    async def perform(self, wanted: Wanted) -> Given:
        """Do what is wanted, and give what it came to."""
        self._book.activate(_path_of(wanted))
        match wanted:
            case AskModel():
                return await self._ask(wanted)
            case Enter():
                return await self._entrance(wanted)
            case RunStep():
                self._wait_outside()
                return await self._step(wanted)
            case _:
                self._wait_outside()
                return await self._tools.call(wanted)

    def _wait_outside(self) -> None:
        """What comes now may wait for another turn, which then needs the place to ask a model more than this one."""
        self._book.means.limit.wait_outside(self._book.job.job_id)

    # The model

    async def _ask(self, wanted: AskModel) -> Reply:
        book, digest = self._book, digest_of_request(wanted.request)
        outcome = book.outcome(wanted.index, MODEL)
        if isinstance(outcome, CallFinished):
            book.differs(wanted.index, digest)
            return as_type(outcome.result, Reply)
        member = book.team.members[wanted.path]
        self._warn(member)
        await book.start([CallStarted(book.turn_id, wanted.index, MODEL, digest, agent=agent_in_journal(wanted.path))])
        model, name = member.declaration.model, f"the model of {book.caller(wanted.path)}"
        asking = Asking(book, wanted, model=model, limits=member.declaration.limits)
        try:
            answer = await asking.answer(lambda: contained(lambda: self._heard(wanted, member, asking), name, model))
        except Unanswered as error:
            reason = "model_timeout" if error.timed_out else "model_error"
            raise self._given_up(wanted.index, reason, str(error)) from error
        try:
            result = _recordable(answer)
            reply = as_type(result, Reply)
        except Malformed as error:
            raise self._given_up(wanted.index, "model_error", f"its reply cannot be recorded: {error}") from error
        except Exception as error:
            raise self._given_up(wanted.index, "model_error", told(error)) from error
        book.notes.keep(EV_CALL_FINISHED, CallFinished(book.turn_id, wanted.index, result))
        return reply

    async def _heard(self, wanted: AskModel, member: Member, asking: Asking) -> Reply:
        """The model's answer; listened to as it comes, if it can be and anybody does."""
        model, feed, channel_id = member.declaration.model, self._book.means.feed, self._book.channel_id
        noticing: object = model
        if self._book.resumed and isinstance(noticing, NoticesResume):
            noticing.turn_resumed(self._book.turn_id)
        streaming = _streaming(model) if feed.overheard(channel_id) else None
        if streaming is None:
            answer: object = model(wanted.request)
            return _checked(await answer if isawaitable(answer) else answer)
        reply: Reply | None = None
        async with _closed(streaming.stream(wanted.request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    asking.heard |= bool(piece) and feed.overheard(channel_id)
                    self._signal(member.name, wanted.index, piece)
                else:
                    reply = _checked(piece)
        if reply is None:
            raise ReplyMalformed("the model's stream ended without its answer")
        return reply

    def _signal(self, speaker: str, index: int, piece: str) -> None:
        """Publish a piece of text to those who may hear of the turn."""
        book, chosen = self._book, self._tools.audience
        audience = book.notes.turn.audience if chosen is None else chosen or None
        signal = Signal(book.channel_id, speaker, book.turn_id, index, piece, audience)
        book.means.feed.signal(signal)

    def _given_up(self, index: int, reason: str, detail: str) -> Failing:
        self._book.notes.keep(EV_CALL_FAILED, CallFailed(self._book.turn_id, index, detail))
        return Failing(reason, detail)

    def _warn(self, member: Member) -> None:
        """A model that calls no tools can only talk. That is recorded, once a turn, or not put up with."""
        if member.calls_tools or not member.specs:
            return
        required = member.declaration.require_tools
        if required or (required is None and self._required):
            raise Failing("tools_required", f"the model of {member.name!r} calls no tools, which are required here")
        tools = [spec.name for spec in member.specs]
        self._book.warn("no_tool_calls", member.path, f"its model calls no tools; it does without: {', '.join(tools)}")

    # Steps of a user's

    async def _step(self, wanted: RunStep) -> Changes:
        book = self._book
        if not wanted.waits:
            await book.claim()
            return await self._changes(wanted)
        name, path = f"{STEP}{wanted.name}", wanted.progress.path
        outcome = book.outcome(wanted.index, name)
        if isinstance(outcome, CallFinished):
            return as_type(outcome.result, Changes)
        await book.start([CallStarted(book.turn_id, wanted.index, name, digest_of(name), agent=agent_in_journal(path))])
        try:
            result = _kept(await self._changes(wanted))
        except (Malformed, TypeError) as error:
            raise self._given_up(wanted.index, "step_error", f"{wanted.name}: {error}") from error
        except Failing as failing:
            book.notes.keep(EV_CALL_FAILED, CallFailed(book.turn_id, wanted.index, failing.failure.detail))
            raise
        book.notes.keep(EV_CALL_FINISHED, CallFinished(book.turn_id, wanted.index, result))
        return as_type(result, Changes)

    async def _changes(self, wanted: RunStep) -> Changes:
        """What the step changes. Whatever it raises fails the turn with its words."""

        async def run() -> object:
            given = wanted.function(wanted.progress)
            return await given if wanted.waits and isawaitable(given) else given

        before = wanted.progress.detached()  # what it is given it may change in place
        try:
            name = f"step {wanted.name!r} of {self._book.caller(wanted.progress.path)}"
            after = await contained(run, name, wanted.function)
        except Exception as error:
            raise Failing("step_error", f"{wanted.name}: {told(error)}") from error
        if not wanted.waits and inspect.iscoroutine(after):
            after.close()  # nobody will await it
            raise Failing("step_error", f"{wanted.name}: it returned something to await; make it an async function")
        if after is None:
            return Changes()
        if not isinstance(after, Progress):
            raise Failing("step_error", f"{wanted.name}: it returned {type(after).__name__}, not the progress, or None")
        _check_yours(wanted, after)
        return changes_between(before, after)


def _path_of(wanted: Wanted) -> Path:
    """The place in the team of the agent that wants something."""
    match wanted:
        case AskModel(path=path) | Enter(path=path):
            return path
        case RunStep(progress=progress):
            return progress.path
        case _:
            return wanted[0].path


def digest_of_request(request: Request) -> str:
    """What a model is asked, as one number."""
    return digest_of([request.system, request.past, request.exchange, request.specs, request.output])


def _kept(changes: Changes) -> Json:
    """The changes as the journal keeps them; `Malformed` or `TypeError` if it cannot."""
    result = plain_data(changes)
    check_json(result)
    size = len(to_json(result))
    if size > MAX_BYTES:
        raise Malformed("too_large", f"what it changes has {size} bytes; the limit is {MAX_BYTES}")
    return result


def _check_yours(wanted: RunStep, after: Progress) -> None:
    """What is not a step's to change stays as it was, and whoever changed it all the same is told."""
    fields = (name for name in Progress.__struct_fields__ if name not in YOURS)
    wrong = next((name for name in fields if getattr(after, name) != getattr(wanted.progress, name)), None)
    if wrong is not None:
        detail = f"{wanted.name}: it changed {wrong}; a step can change: {', '.join(YOURS)}"
        raise Failing("step_error", detail)


def _recordable(reply: Reply) -> Json:
    """The reply as the journal keeps it; `Malformed` if it cannot."""
    thoughts = reply.thinking.thoughts if isinstance(reply.thinking, Thinking) else ()
    check_json([reply.text, *([call.name, call.args, call.call_id] for call in reply.calls)])
    check_json([thought.block for thought in thoughts])
    size = len(to_json(reply))
    if size > MAX_BYTES:
        raise Malformed("too_large", f"it has {size} bytes; the limit is {MAX_BYTES}")
    return plain_data(reply)


def _streaming(model: object) -> Streams | None:
    return model if isinstance(model, Streams) else None


@asynccontextmanager
async def _closed(pieces: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """The pieces of an answer, which are let go of when nobody listens any more, whatever comes in between."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def _checked(answer: object) -> Reply:
    try:
        return one_reply(answer)
    except TypeError as error:
        raise ReplyMalformed(str(error)) from error
