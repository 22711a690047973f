"""Makes the tool calls of one attempt at a turn, or reads what they came to from its journal.

Rule 1: a call that has an outcome in the journal is not made again, whatever the attempt would say this time.
Rule 2: a call is on disk before it leaves, and what it came to before the next one does.
Rule 3: a call that was in flight when somebody died goes by its tool's class: `keyed` with the same key and `natural`
        are made again, `unsafe` is reconciled or waits for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.agents.calling import BadArguments, Given, Returned, bound_call, called, reconciled, unknown
from antiphon.agents.context import NOTHING, TurnChannel, joined
from antiphon.agents.handing import settled
from antiphon.agents.intents import TRANSFER
from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.agents.results import NotDone
from antiphon.agents.tasks import Standing
from antiphon.agents.tool import Tool
from antiphon.agents.wanted import CallTool
from antiphon.core.codec import as_type, plain_data
from antiphon.core.events import (
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
    ContextSet,
    Json,
)
from antiphon.core.journal import idempotency_key
from antiphon.core.words import spelt
from antiphon.engines.alarms import OutOfTime
from antiphon.engines.means import Book, Failing, InDoubt, agent_in_journal, digest_of_call
from antiphon.engines.tracing import Marks
from antiphon.hub.redacting import redacted


class Surely(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool call came to, as the journal keeps it."""

    returned: Returned
    context: ContextSet | None = None
    """What it wrote to the context."""
    audience: tuple[str, ...] | None = None
    """The audience that it has chosen for the answer: `()` is everybody; None if it has chosen none."""


class Ready(msgspec.Struct, frozen=True):
    """A tool call that can leave."""

    wanted: CallTool
    tool: Tool
    arguments: Json
    key: str
    in_flight: bool
    """Whether it has left once before, and nobody knows what became of it."""


class ToolCalls:
    """One attempt's calls of tools."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._state = book.notes.live.state
        self.context = ContextSet()
        """What this turn has written to the context so far."""
        self.audience: tuple[str, ...] | None = None
        """The audience that the last tool to choose one has chosen for the answer."""
        self._held: dict[int, Ready] = {}
        """Calls that have returned with a handoff, of which it is to be decided which one counts."""
        self._in_progress: set[TurnChannel] = set()
        """The channels of the calls that have left and not returned."""

    def wait_for_tasks(self) -> bool:
        """Whether there are calls in progress, and each of them waits for tasks."""
        return bool(self._in_progress) and all(channel.tasks.pending for channel in self._in_progress)

    async def call(self, wanted: Sequence[CallTool]) -> tuple[Returned, ...]:
        """What these calls came to, made or remembered. What they wrote to the context is kept."""
        known: dict[int, Surely] = {}
        ready: list[Ready] = []
        for place, each in enumerate(wanted):
            found = self._recalled(each) or self._beyond_limit(each, place, len(wanted)) or self._prepared(each)
            if isinstance(found, Ready):
                ready.append(found)
            else:
                known[each.index] = found
        ready = await self._without_doubts(ready, known)
        if ready:
            known |= await self._make(ready)
        results = self._decided(wanted, known)
        for each in wanted:
            self.context = joined(self.context, known[each.index].context or NOTHING)
            chosen = known[each.index].audience
            self.audience = self.audience if chosen is None else chosen
        return results

    def _decided(self, wanted: Sequence[CallTool], found: dict[int, Surely]) -> tuple[Returned, ...]:
        """What the calls came to once it is decided which handoff counts; of those that wait for that, it is kept."""
        results = tuple(found[each.index].returned for each in wanted)
        team, refusal = self._book.team, self._book.means.refusal
        results = settled(team, wanted[0].path, results, hops=wanted[0].hops, refusal=refusal).results
        for each, returned in zip(wanted, results, strict=True):
            held = self._held.pop(each.index, None)
            if held is not None:
                self._finished(held, msgspec.structs.replace(found[each.index], returned=returned))
        return results

    def _recalled(self, wanted: CallTool) -> Surely | None:
        """What the journal says this call came to. Something else in its place is a conflict, and nothing runs."""
        entry = self._book.entry(wanted.index)
        if entry.started is not None:
            digest = digest_of_call(wanted)
            if self._book.differs(wanted.index, digest):
                detail = f"call {wanted.index} was {entry.started.name}, and is {wanted.call.name} with other arguments"
                raise Failing("idempotency_conflict", detail)
        match entry.outcome:
            case CallFinished(result=result):
                return as_type(result, Surely)
            case CallFailed(error=error, usage=usage):
                return Surely(Returned(error, failed=True, usage=as_type(usage, Usage)))
            case None:
                return None

    def _beyond_limit(self, wanted: CallTool, place: int, count: int) -> Surely | None:
        """What the model is told of a call that is one too many in its message; None if it is not.

        A call that has left before is none: it may have left under another limit, and has an effect to account for.
        """
        most = self._book.team.limits.tool_calls
        if place < most or self._book.entry(wanted.index).started is not None:
            return None
        why = f"Not called: the message asks for {count} tools, and the limit is {most}; ask for the others next."
        return self._refused(wanted, Returned(why, failed=True))

    def _prepared(self, wanted: CallTool) -> Ready | Surely:
        """The call, ready to leave; if there is no such tool or its arguments are wrong, what the model is told."""
        name = wanted.call.name
        tools = self._book.team.members[wanted.path].tools
        tool = tools.get(name) or _transfer(name, tools)
        if tool is None:
            return self._refused(wanted, unknown(name, tools))
        try:
            arguments = bound_call(tool, wanted.call)
        except BadArguments as error:
            return self._refused(wanted, Returned(redacted(str(error)), failed=True))
        key = idempotency_key(
            self._state, self._book.notes.turn, wanted.index, tool=name, tenant=self._book.means.tenant
        )
        in_flight = self._book.entry(wanted.index).in_flight
        return Ready(wanted, tool, arguments, key, in_flight)

    def _refused(self, wanted: CallTool, returned: Returned) -> Surely:
        """What the model is told of a call that cannot be made; but one that has left before is not told away."""
        if self._book.entry(wanted.index).in_flight:
            detail = (
                f"call {wanted.index} was under way when its process ended, and cannot be made now: {returned.text}"
            )
            raise Failing("call_lost", detail)
        self._book.notes.keep(EV_CALL_STARTED, self._started(wanted))
        self._book.notes.keep(EV_CALL_FAILED, CallFailed(self._book.turn_id, wanted.index, returned.text))
        return Surely(returned)

    def _started(self, wanted: CallTool, key: str = "") -> CallStarted:
        call = wanted.call
        agent = agent_in_journal(wanted.path)
        return CallStarted(self._book.turn_id, wanted.index, call.name, digest_of_call(wanted), call.args, key, agent)

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
        channel = self._channel(ready)
        try:
            async with self._book.means.alarms.within(ready.tool.timeout):
                outcome = await reconciled(ready.tool, ready.arguments, self._given(ready, channel))
        except OutOfTime:
            return None
        if isinstance(outcome, NotDone):
            return outcome
        if outcome.failed:
            return None
        return self._finished(ready, Surely(outcome, _or_none(channel.written), channel.audience))

    async def _doubt(self, doubted: Sequence[tuple[Ready, str]]) -> None:
        if not doubted:
            return
        await self._book.notes.write(
            EV_CALL_DOUBTED,
            *(
                CallDoubted(self._book.turn_id, each.wanted.index, each.tool.name, each.wanted.path[-1], why)
                for each, why in doubted
            ),
        )
        raise InDoubt(", ".join(each.tool.name for each, _ in doubted))

    async def _make(self, ready: Sequence[Ready]) -> dict[int, Surely]:
        await self._book.start([self._started(each.wanted, each.key) for each in ready])
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
        wanted = ready.wanted
        with self._book.means.trace.calling(wanted.path, wanted.call) as span:
            return await self._under_way(ready, left, span)

    async def _under_way(self, ready: Ready, left: list[int], span: Marks) -> Surely | str:
        channel = self._channel(ready)
        self._in_progress.add(channel)
        try:
            async with self._book.means.alarms.within(ready.tool.timeout):
                returned = await called(ready.tool, ready.arguments, self._given(ready, channel))
            if returned.failed:
                # Before the model reads it: what it reads now and what the journal gives back must be the same.
                returned = msgspec.structs.replace(returned, text=redacted(returned.text))
                span.failed("tool_error")
        except OutOfTime as error:
            channel.over = True
            span.failed("timeout")
            await channel.tasks.give_up("timed_out")
            if ready.tool.idempotency == "unsafe":
                outcome = await self._reconciled(ready)
                return outcome if isinstance(outcome, Surely) else f"{error}; it may have taken effect all the same"
            returned = Returned(f"{ready.tool.name}: {error}; it may have taken effect all the same", failed=True)
        finally:
            channel.over = True
            self._in_progress.discard(channel)
        await channel.tasks.give_up("given_up")  # what the tool itself waits for no more
        left[0] -= 1
        if channel.tasks.usage != NO_USAGE:
            returned = msgspec.structs.replace(returned, usage=channel.tasks.usage)
        surely = Surely(returned)
        if not returned.failed:
            surely = Surely(returned, _or_none(channel.written), channel.audience)
        if returned.target is not None and ready.tool.idempotency != "unsafe":
            self._held[ready.wanted.index] = ready
        else:
            self._finished(ready, surely)
        if left[0]:  # others are under way: what this one came to must not wait for them
            await self._book.notes.flush()
        return surely

    def _finished(self, ready: Ready, surely: Surely) -> Surely:
        index, returned = ready.wanted.index, surely.returned
        if returned.failed and not returned.declined:
            usage = plain_data(returned.usage) if returned.usage != NO_USAGE else {}
            self._book.notes.keep(EV_CALL_FAILED, CallFailed(self._book.turn_id, index, returned.text, usage=usage))
        else:
            self._book.notes.keep(EV_CALL_FINISHED, CallFinished(self._book.turn_id, index, plain_data(surely)))
        return surely

    def _channel(self, ready: Ready) -> TurnChannel:
        book = self._book
        member = book.team.members[ready.wanted.path]
        means, turn = book.means, book.notes.turn
        standing = Standing(member, means.clock.now, means.delegates, turn, ready.key, book.allowance)
        speaker = book.team.lead.name
        return TurnChannel(self._state, speaker, book.means.judge, before=self.context, standing=standing)

    def _given(self, ready: Ready, channel: TurnChannel) -> Given:
        caller = self._book.caller(ready.wanted.path)
        return Given(channel=channel, context=channel.context_vars, idempotency_key=ready.key, caller=caller)


def _transfer(name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """The tool that transfers to the agent named in this one's name, whatever its case."""
    found = spelt(name, [each for each in tools if each.startswith(TRANSFER)])
    return None if found is None else tools[found]


def _or_none(written: ContextSet) -> ContextSet | None:
    return written if written.set or written.delete else None
