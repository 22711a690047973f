"""Makes the calls of one attempt at a turn, or reads what they came to from its journal.

Rule 1: a call that has an outcome in the journal is not made again, whatever the attempt would say this time.
Rule 2: a call is on disk before it leaves, and what it came to before the next one does.
Rule 3: a call that was in flight when somebody died goes by its tool's class: `keyed` with the same key and `natural`
        are made again, `unsafe` is reconciled or waits for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from inspect import isawaitable

import msgspec

from antiphon.agents.calling import BadArguments, Given, Returned, bound, called, reconciled, unknown
from antiphon.agents.context import NOTHING, Judge, TurnChannel, joined
from antiphon.agents.declaration import Declaration
from antiphon.agents.loop import AskModel, CallTool, Wanted
from antiphon.agents.loop import Given as Answers
from antiphon.agents.messages import Reply, Request, Streams, one_reply
from antiphon.agents.nesting import contained
from antiphon.agents.results import NotDone
from antiphon.agents.tool import Tool
from antiphon.core.codec import MAX_BYTES, Malformed, as_type, check_json, digest_of, plain_data, to_json
from antiphon.core.errors import ReplyMalformed
from antiphon.core.events import (
    EV_CALL_CONFLICTED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallConflicted,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
    ContextSet,
    Json,
)
from antiphon.core.journal import NO_ENTRY, Entry, Journal, idempotency_key
from antiphon.core.turns import Failure
from antiphon.core.words import told
from antiphon.engines.alarms import Alarms, OutOfTime
from antiphon.engines.notes import Notes
from antiphon.hub.feed import Feed, Signal

MODEL = "model"


class Failing(Exception):
    """The turn cannot be finished."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.failure = Failure(reason, detail)


class InDoubt(Exception):
    """A person must settle a call first. That is recorded."""


class Stopped(Exception):
    """The engine stops, and no further call is begun."""


class Surely(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool call came to, as the journal keeps it."""

    returned: Returned
    context: ContextSet | None = None
    """What it wrote to the context."""


class Ready(msgspec.Struct, frozen=True):
    """A tool call that can leave."""

    wanted: CallTool
    tool: Tool
    arguments: Json
    key: str
    in_flight: bool
    """Whether it has left once before, and nobody knows what became of it."""


class Means(msgspec.Struct, frozen=True):
    """What the calls of an attempt need."""

    alarms: Alarms
    feed: Feed
    judge: Judge
    stopping: asyncio.Event
    tenant: str


class Performance:
    """One attempt's calls."""

    def __init__(self, agent: Declaration, notes: Notes, *, journal: Journal, means: Means) -> None:
        self._agent, self._notes, self._journal, self._means = agent, notes, journal, means
        self._tools = {tool.name: tool for tool in agent.toolbox}
        self._state = notes.live.state
        self.context = ContextSet()
        """What this turn has written to the context so far."""

    async def perform(self, wanted: Wanted) -> Answers:
        """Make calls, and give what they came to."""
        if isinstance(wanted, AskModel):
            return await self._ask(wanted)
        return await self._call(wanted)

    # The model

    async def _ask(self, wanted: AskModel) -> Reply:
        entry, digest = self._journal.get(wanted.index, NO_ENTRY), digest_of_request(wanted.request)
        if isinstance(entry.outcome, CallFinished):
            self._compare(entry, wanted.index, digest)
            return as_type(entry.outcome.result, Reply)
        await self._start([CallStarted(self._turn_id, wanted.index, MODEL, digest)])
        try:
            async with self._means.alarms.within(self._agent.limits.model_seconds):
                result = _recordable(await contained(self._heard(wanted)))
            reply = as_type(result, Reply)
        except OutOfTime as error:
            raise self._given_up(wanted.index, "model_timeout", str(error)) from error
        except Malformed as error:
            raise self._given_up(wanted.index, "model_error", f"its reply cannot be recorded: {error}") from error
        except Exception as error:
            raise self._given_up(wanted.index, "model_error", told(error)) from error
        self._notes.keep(EV_CALL_FINISHED, CallFinished(self._turn_id, wanted.index, result))
        return reply

    async def _heard(self, wanted: AskModel) -> Reply:
        """The model's answer; listened to as it comes, if it can be and anybody does."""
        overheard = self._means.feed.overheard(self._state.channel_id)
        streaming = _streaming(self._agent.model) if overheard else None
        if streaming is None:
            answer: object = self._agent.model(wanted.request)
            return _checked(await answer if isawaitable(answer) else answer)
        reply: Reply | None = None
        async for piece in streaming.stream(wanted.request):
            if isinstance(piece, str):
                self._means.feed.signal(
                    Signal(self._state.channel_id, self._agent.name, self._turn_id, wanted.index, piece)
                )
            else:
                reply = _checked(piece)
        if reply is None:
            raise ReplyMalformed("the model's stream ended without its answer")
        return reply

    def _given_up(self, index: int, reason: str, detail: str) -> Failing:
        self._notes.keep(EV_CALL_FAILED, CallFailed(self._turn_id, index, detail))
        return Failing(reason, detail)

    # Tools

    async def _call(self, wanted: Sequence[CallTool]) -> tuple[Returned, ...]:
        settled: dict[int, Surely] = {}
        ready: list[Ready] = []
        for each in wanted:
            found = self._recalled(each) or self._prepared(each)
            if isinstance(found, Ready):
                ready.append(found)
            else:
                settled[each.index] = found
        ready = await self._without_doubts(ready, settled)
        if ready:
            settled |= await self._make(ready)
        for each in wanted:
            self.context = joined(self.context, settled[each.index].context or NOTHING)
        return tuple(settled[each.index].returned for each in wanted)

    def _recalled(self, wanted: CallTool) -> Surely | None:
        """What the journal says this call came to. Something else in its place is a conflict, and nothing runs."""
        entry = self._journal.get(wanted.index, NO_ENTRY)
        if entry.started is not None:
            digest = digest_of_call(wanted)
            if self._compare(entry, wanted.index, digest):
                detail = f"call {wanted.index} was {entry.started.name}, and is {wanted.call.name} with other arguments"
                raise Failing("idempotency_conflict", detail)
        match entry.outcome:
            case CallFinished(result=result):
                return as_type(result, Surely)
            case CallFailed(error=error):
                return Surely(Returned(error, failed=True))
            case None:
                return None

    def _prepared(self, wanted: CallTool) -> Ready | Surely:
        """The call, ready to leave; if there is no such tool or its arguments are wrong, what the model is told."""
        name = wanted.call.name
        tool = self._tools.get(name)
        if tool is None:
            return self._refused(wanted, unknown(name, self._tools))
        try:
            arguments = bound(tool, wanted.call.args)
        except BadArguments as error:
            return self._refused(wanted, Returned(str(error), failed=True))
        key = idempotency_key(self._state, self._notes.turn, wanted.index, tool=name, tenant=self._means.tenant)
        in_flight = self._journal.get(wanted.index, NO_ENTRY).in_flight
        return Ready(wanted, tool, arguments, key, in_flight)

    def _refused(self, wanted: CallTool, returned: Returned) -> Surely:
        """What the model is told of a call that cannot be made; but one that has left before is not told away."""
        if self._journal.get(wanted.index, NO_ENTRY).in_flight:
            detail = (
                f"call {wanted.index} was under way when its process ended, and cannot be made now: {returned.text}"
            )
            raise Failing("call_lost", detail)
        self._notes.keep(EV_CALL_STARTED, self._started(wanted))
        self._notes.keep(EV_CALL_FAILED, CallFailed(self._turn_id, wanted.index, returned.text))
        return Surely(returned)

    def _started(self, wanted: CallTool, key: str = "") -> CallStarted:
        call = wanted.call
        return CallStarted(self._turn_id, wanted.index, call.name, digest_of_call(wanted), call.args, key)

    async def _without_doubts(self, ready: list[Ready], settled: dict[int, Surely]) -> list[Ready]:
        """Those that may leave. What was in flight and is unsafe is reconciled, or a person must say."""
        doubted = [each for each in ready if each.in_flight and each.tool.idempotency == "unsafe"]
        if not doubted:
            return ready
        unsettled = []
        for each in doubted:
            outcome = await self._reconciled(each)
            if isinstance(outcome, Surely):
                settled[each.wanted.index] = outcome
            elif not isinstance(outcome, NotDone):
                unsettled.append((each, "it was under way when its process ended"))
        await self._doubt(unsettled)
        return [each for each in ready if each.wanted.index not in settled]

    async def _reconciled(self, ready: Ready) -> Surely | NotDone | None:
        if ready.tool.reconcile is None:
            return None
        channel = self._channel()
        try:
            async with self._means.alarms.within(ready.tool.timeout):
                outcome = await reconciled(ready.tool, ready.arguments, self._given(ready, channel))
        except OutOfTime:
            return None
        if isinstance(outcome, NotDone):
            return outcome
        if outcome.failed:
            return None
        return self._finished(ready, Surely(outcome, _or_none(channel.written)))

    async def _doubt(self, doubted: Sequence[tuple[Ready, str]]) -> None:
        if not doubted:
            return
        await self._notes.write(
            EV_CALL_DOUBTED,
            *(
                CallDoubted(self._turn_id, each.wanted.index, each.tool.name, self._agent.name, why)
                for each, why in doubted
            ),
        )
        raise InDoubt(", ".join(each.tool.name for each, _ in doubted))

    async def _make(self, ready: Sequence[Ready]) -> dict[int, Surely]:
        await self._start([self._started(each.wanted, each.key) for each in ready])
        outcomes = await self._all_made(ready)
        late = [(each, why) for each, why in zip(ready, outcomes, strict=True) if isinstance(why, str)]
        await self._doubt(late)
        return {
            each.wanted.index: outcome
            for each, outcome in zip(ready, outcomes, strict=True)
            if isinstance(outcome, Surely)
        }

    async def _all_made(self, ready: Sequence[Ready]) -> list[Surely | str]:
        """What they came to. Whatever goes wrong with one, no other is left running behind."""
        left = [len(ready)]
        if len(ready) == 1:
            return [await self._made(ready[0], left)]
        outcomes = await asyncio.gather(*(self._made(each, left) for each in ready), return_exceptions=True)
        made: list[Surely | str] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            made.append(outcome)
        return made

    async def _made(self, ready: Ready, left: list[int]) -> Surely | str:
        """What the call came to; why that is not known, if it is not."""
        channel = self._channel()
        try:
            async with self._means.alarms.within(ready.tool.timeout):
                returned = await called(ready.tool, ready.arguments, self._given(ready, channel))
        except OutOfTime as error:
            if ready.tool.idempotency == "unsafe":
                settled = await self._reconciled(ready)
                return settled if isinstance(settled, Surely) else f"{error}; it may have taken effect all the same"
            returned = Returned(f"{ready.tool.name}: {error}; it may have taken effect all the same", failed=True)
        finally:
            channel.over = True
        left[0] -= 1
        surely = Surely(returned) if returned.failed else Surely(returned, _or_none(channel.written))
        self._finished(ready, surely)
        if left[0]:  # others are under way: what this one came to must not wait for them
            await self._notes.flush()
        return surely

    def _finished(self, ready: Ready, surely: Surely) -> Surely:
        index, returned = ready.wanted.index, surely.returned
        if returned.failed:
            self._notes.keep(EV_CALL_FAILED, CallFailed(self._turn_id, index, returned.text))
        else:
            self._notes.keep(EV_CALL_FINISHED, CallFinished(self._turn_id, index, plain_data(surely)))
        return surely

    # Both

    async def _start(self, calls: list[CallStarted]) -> None:
        if self._means.stopping.is_set():
            raise Stopped
        await self._notes.write(EV_CALL_STARTED, *calls)

    def _compare(self, entry: Entry, index: int, digest: str) -> bool:
        """Note, once, that something else is asked for than is recorded; True if so."""
        started = entry.started
        if started is None or started.digest == digest:
            return False
        if not entry.conflicted:
            conflict = CallConflicted(self._turn_id, index, started.name, started.digest, digest)
            self._notes.keep(EV_CALL_CONFLICTED, conflict)
        return True

    def _channel(self) -> TurnChannel:
        return TurnChannel(self._state, self._agent.name, self._means.judge, before=self.context)

    def _given(self, ready: Ready, channel: TurnChannel) -> Given:
        return Given(channel=channel, context=channel.context_vars, idempotency_key=ready.key)

    @property
    def _turn_id(self) -> str:
        return self._notes.turn.turn_id


def digest_of_request(request: Request) -> str:
    """What a model is asked, as one number."""
    return digest_of([request.system, request.past, request.exchange, request.specs])


def digest_of_call(wanted: CallTool) -> str:
    """What a tool is asked, as one number."""
    return digest_of([wanted.call.name, wanted.call.args])


def _or_none(written: ContextSet) -> ContextSet | None:
    return written if written.set or written.delete else None


def _recordable(reply: Reply) -> Json:
    """The reply as the journal keeps it; `Malformed` if it cannot."""
    check_json([reply.text, *([call.name, call.args, call.call_id] for call in reply.calls)])
    size = len(to_json(reply))
    if size > MAX_BYTES:
        raise Malformed("too_large", f"it has {size} bytes; the limit is {MAX_BYTES}")
    return plain_data(reply)


def _streaming(model: object) -> Streams | None:
    return model if isinstance(model, Streams) else None


def _checked(answer: object) -> Reply:
    try:
        return one_reply(answer)
    except TypeError as error:
        raise ReplyMalformed(str(error)) from error
