"""How an attempt at a turn goes: claim, view, loop, answer. The same on every store and every engine.

Rule 1: whatever happens, the turn ends, is put back in order, or waits for a person; and the log says which.
Rule 2: who is fenced drops what it knows. Only the log counts.
Rule 3: a turn that was in progress when a process died pauses first (`recovery`), then runs exclusively among such
        turns (`suspects`) until one of its calls has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable

from antiphon.agents.context import Judge
from antiphon.agents.declaration import Declaration
from antiphon.agents.history import History
from antiphon.agents.loop import Said, drive, take_turn
from antiphon.agents.nesting import running_turn, taking
from antiphon.agents.scene import Manner
from antiphon.agents.steps import Misstep
from antiphon.agents.team import shown_path
from antiphon.core.draft import check_event
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, StoreError, TooLarge
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_CONTEXT_SET
from antiphon.core.guard import Deny
from antiphon.core.instants import after
from antiphon.core.journal import journal_of
from antiphon.core.state import Turn
from antiphon.core.step import pending, record, said_by_hub
from antiphon.core.turns import FENCED, Ending, Failure, owed_turn
from antiphon.core.words import told
from antiphon.engines.alarms import Alarms
from antiphon.engines.entering import Entrance
from antiphon.engines.lag import WATCH
from antiphon.engines.manners import beginning, day_of, hearers_of, in_packets, packet_of, refusing, texts_of, view_of
from antiphon.engines.means import Book, Failing, InDoubt, Means, Stopped
from antiphon.engines.notes import Fenced, Notes
from antiphon.engines.performing import Performance
from antiphon.engines.place import Place
from antiphon.engines.protocol import Attempt
from antiphon.engines.recovery import has_crashed, record_crash, rests_until
from antiphon.engines.suspects import SuspectGate, TurnRun
from antiphon.engines.tracing import Trace, Tracing
from antiphon.hub.live import LiveChannel

log = logging.getLogger("antiphon.engine")

GONE = "it answered last, and is no longer in the team; {} answers itself"
HISTORIES = 1024
"""How many channels are remembered as their agents see them."""
TIDY_EVERY = 64
HISTORY_CHARACTERS = 16 * 1024 * 1024
"""And how much text there is in them, together."""


class Turns:
    """Runs the turns of the agents that are registered here."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.alarms = Alarms(place.clock)
        """The deadlines of calls. Somebody must let them run."""
        self._histories: OrderedDict[tuple[str, str, bool], History] = OrderedDict()
        self._turns = 0
        self._gate = SuspectGate(_Owed(place))
        self._tracing = Tracing()

    async def __call__(self, attempt: Attempt) -> None:
        """Run a turn, if it is still owed and nobody who lives has claimed it."""
        limit, job = self._place.limit, attempt.job
        try:
            await self._attempt(attempt)
        finally:
            limit.over(job) if attempt.again is None else limit.wait_outside(job.job_id)

    async def _attempt(self, attempt: Attempt) -> None:
        job = attempt.job
        live = await self._place.channels.get(job.channel_id)
        turn = next((turn for turn in pending(live.state) if turn.turn_id == job.turn_id), None)
        agent = self._place.agents.get(job.speaker)
        if turn is None or agent is None:
            return
        with self._place.definitions.running(agent):
            await self._begun(attempt, live, agent, turn=turn)

    async def _begun(self, attempt: Attempt, live: LiveChannel, agent: Declaration, *, turn: Turn) -> None:
        """Run the turn with this definition of its agent, unless a live process has claimed it."""
        job, clock = attempt.job, self._place.clock
        if turn.owner and not await attempt.takeover(turn.owner):
            attempt.again = after(clock.now(), attempt.patience)
            return
        if turn.epoch and await self._place.delegates.forsaken(live.state):
            return
        if has_crashed(turn, attempt.owner):
            attempt.ending = True  # the suspension of a turn makes its job not owed, which would cut this off
            entries = await self._entries(live, turn)
            await record_crash(live, turn, entries, limit=agent.limits.crashes, new_id=self._place.new_id)
            attempt.again = clock.now()
            return
        attempt.again = rests_until(turn, clock.now())
        if attempt.again is None:
            taking.set((job.channel_id, job.speaker))
            await self._admitted(attempt, live, agent, turn=turn)

    async def _admitted(self, attempt: Attempt, live: LiveChannel, agent: Declaration, *, turn: Turn) -> None:
        """Run the turn; if it was in progress during a crash, not beside other such turns."""
        run = TurnRun(self._gate, live.state.channel_id, turn.speaker, crashes=turn.crashes)
        running_turn.set(run)  # always: a task may have been made in the context of another turn
        if run.is_suspect:
            self._place.limit.wait_outside(attempt.job.job_id)  # it may have to wait for other suspects
        try:
            if not await run.enter(attempt.stopping):
                return
            if run.is_suspect and await self._place.delegates.forsaken(live.state):
                return
            await self._traced(attempt, live, agent, turn=turn, run=run)
        finally:
            run.leave()

    async def _traced(
        self, attempt: Attempt, live: LiveChannel, agent: Declaration, *, turn: Turn, run: TurnRun
    ) -> None:
        notes = Notes(live, turn, attempt.owner, clock=self._place.clock, new_id=self._place.new_id)
        notes.progressed = run.clear
        with WATCH.watching(), self._tracing.turn(live.state, turn, workflow=in_packets(live)) as trace:
            await self._run(attempt, notes, agent, trace=trace)

    async def _run(self, attempt: Attempt, notes: Notes, agent: Declaration, *, trace: Trace) -> None:
        live, turn = notes.live, notes.turn
        try:
            failure = await self._answered(attempt, notes, agent, trace=trace)
            attempt.ending = True
            if failure is not None:
                trace.failed(failure.reason)
                await notes.fail(failure)
        except Fenced as fenced:
            trace.failed(FENCED)
            await self._dropped(attempt, notes, str(fenced))
        except InDoubt as doubt:
            self._waits(attempt, notes, str(doubt))
        except Stopped:
            await self._put_back(notes)
        except Denied as denied:
            trace.failed(denied.reason)
            await self._closed(live, turn, denied)
        except asyncio.CancelledError:
            attempt.ending = True
            if attempt.lost.is_set():
                await self._fenced(live, turn, "its lease was lost")
            await self._put_back(notes)  # also after a lost lease: this process lives, so that it was no crash
            raise

    async def _answered(self, attempt: Attempt, notes: Notes, agent: Declaration, *, trace: Trace) -> Failure | None:
        """Take the turn to its end; why there is no answer, if there is none."""
        try:
            if notes.turn.epoch:
                await notes.claim()
            said, performance = await self._taken(attempt, notes, agent, trace=trace)
            attempt.ending = True
            await notes.end(self._ending(notes, agent, said, performance=performance))
        except Failing as failing:
            return failing.failure
        except Denied as denied:
            return Failure(f"refused:{denied.reason}", denied.detail)
        except TooLarge as error:
            return Failure("too_large", str(error))
        except Misstep as error:
            return Failure("step_error", str(error))
        except (StoreError, Fenced, InDoubt, Stopped):
            raise
        except Exception as error:
            log.exception("turn %s of %s failed", notes.turn.turn_id, notes.live.state.channel_id)
            return Failure("turn_error", told(error))
        return None

    async def _taken(
        self, attempt: Attempt, notes: Notes, agent: Declaration, *, trace: Trace
    ) -> tuple[Said, Performance]:
        live, turn, place = notes.live, notes.turn, self._place
        refusal = refusing(live, agent.name)
        means = Means(
            alarms=self.alarms,
            clock=place.clock,
            feed=place.feed,
            judge=_judge(live),
            refusal=refusal,
            delegates=place.delegates,
            stopping=attempt.stopping,
            limit=place.limit,
            trace=trace,
            tenant=place.tenant,
        )
        entries = await self._entries(live, turn)
        book = Book(agent.team, notes, journal=journal_of(entries, turn.turn_id), means=means, before=entries)
        usual = view_of(live)
        entrance = Entrance(book, lambda named: self._read(live, agent.name, named=named), usual=usual)
        performance = Performance(book, entrance, required=live.state.knobs.get("tier") == "regulated")
        attempt.waits_for_tasks = performance.waits_for_tasks
        history = await self._read(live, agent.name, named=usual.named)
        manner = Manner(refusal, day_of(live.state, turn, history))
        progress = beginning(live.state, turn, history)
        if progress.stored and (agent.name, *progress.stored) not in agent.team.members:
            book.warn("active_agent_gone", (agent.name, *progress.stored), GONE.format(agent.name))
        return await drive(take_turn(agent.team, progress, manner), performance.perform), performance

    async def _entries(self, live: LiveChannel, turn: Turn) -> list[Envelope]:
        """What was recorded since the turn was assigned, by earlier attempts too. The first has nothing to read."""
        entries: list[Envelope] = []
        cursor = turn.sequence
        while turn.epoch and (page := await live.read(cursor)):
            entries.extend(page)
            cursor = page[-1].sequence
        return entries

    async def _read(self, live: LiveChannel, reader: str, *, named: bool) -> History:
        """What was said in a channel, read to the end, where answers to earlier messages may stand."""
        history = self._history(live.state.channel_id, reader, named=named)
        while page := await live.read(history.cursor):
            history.extend(page)
        return history

    def _history(self, channel_id: str, reader: str, *, named: bool) -> History:
        key = channel_id, reader, named
        history = self._histories.pop(key, None) or History(reader, named=named)
        self._histories[key] = history
        self._turns += 1
        if len(self._histories) > HISTORIES or self._turns % TIDY_EVERY == 0:
            self._forget()
        return history

    def forget(self, channel_id: str) -> None:
        """Drop what is remembered of a channel whose content was erased."""
        for key in [key for key in self._histories if key[0] == channel_id]:
            del self._histories[key]

    def _forget(self) -> None:
        """Let go of what was not used for longest, until there is little enough left."""
        size = sum(history.size for history in self._histories.values())
        while len(self._histories) > HISTORIES or (size > HISTORY_CHARACTERS and len(self._histories) > 1):
            size -= self._histories.popitem(last=False)[1].size

    def _ending(self, notes: Notes, agent: Declaration, said: Said, *, performance: Performance) -> Ending:
        live, turn, context = notes.live, notes.turn, performance.context
        audience = hearers_of(live.state, turn, said, chosen=performance.audience)
        known = len(agent.team.members) > 1 or agent.name in live.state.active  # a team that is gone is forgotten
        who = shown_path((agent.name, *said.path)) if known else ""
        private = audience is not None
        packets = in_packets(live)
        drafts = (
            packet_of(live, said, context, who=who, private=private) if packets else texts_of(said, context, who=who)
        )
        envelopes = tuple(
            Envelope(
                "",
                live.state.channel_id,
                agent.name,
                None if event_type == EV_CONTEXT_SET else audience,
                event_type,
                data,
                turn.cause,
            )
            for event_type, data in drafts
        )
        for envelope in envelopes:
            denial = check_event(envelope)
            if denial is not None:
                raise Failing(f"refused:{denial.reason}", denial.detail)
        return Ending(envelopes, None if packets else said.finish)

    async def _dropped(self, attempt: Attempt, notes: Notes, why: str) -> None:
        """The turn is somebody else's. Whoever has it now may die as well, so it is looked at again."""
        attempt.ending = True
        if owed_turn(notes.live.state, notes.turn.turn_id) is not None:
            attempt.again = after(self._place.clock.now(), attempt.patience)
        if notes.claimed:  # otherwise somebody else was quicker, which is no news
            await self._fenced(notes.live, notes.turn, why)

    def _waits(self, attempt: Attempt, notes: Notes, what: str) -> None:
        """The turn waits for a person, unless that person was so quick that it does not any more."""
        state, turn_id = notes.live.state, notes.turn.turn_id
        log.warning("turn %s of %s waits for a person: %s", turn_id, state.channel_id, what)
        if any(turn.turn_id == turn_id for turn in pending(state)):
            attempt.again = self._place.clock.now()

    async def _closed(self, live: LiveChannel, turn: Turn, denied: Denied) -> None:
        """The channel's own rules fail on the failure of a turn: nothing can follow any more, and the log says so."""
        log.error("turn %s of %s can neither end nor fail: %s", turn.turn_id, live.state.channel_id, denied)
        closing = said_by_hub(EV_CHANNEL_CLOSED, {"reason": denied.reason}, cause=turn.cause)
        await live.submit(
            lambda fold, laws, at: (
                None if fold.state.ended else record(fold, closing, laws=laws, at=at, new_id=self._place.new_id)
            )
        )

    async def _fenced(self, live: LiveChannel, turn: Turn, why: str) -> None:
        channel_id = live.state.channel_id
        log.warning("turn %s of %s was fenced: %s", turn.turn_id, channel_id, why)
        try:
            await self._place.audit.fenced(channel_id, turn.turn_id, why)
        except StoreError as error:
            log.warning("that could not be recorded: %s", error)

    async def _put_back(self, notes: Notes) -> None:
        try:
            await notes.release()
        except (Denied, StoreError) as error:
            log.info("turn %s is not put back: %s", notes.turn.turn_id, error)


class _Owed:
    """What the channels loaded in this process are owed."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def speakers(self, channel_id: str) -> list[str]:
        live = self._place.channels.loaded(channel_id)
        turns = () if live is None else pending(live.state)
        return [turn.speaker for turn in turns if turn.speaker in self._place.agents]

    def tasks(self, channel_id: str) -> Iterable[str]:
        live = self._place.channels.loaded(channel_id)
        return () if live is None else live.state.open_tasks

    def head(self, channel_id: str) -> int:
        live = self._place.channels.loaded(channel_id)
        return 0 if live is None else live.state.sequence


def _judge(live: LiveChannel) -> Judge:
    def judge(draft: Envelope) -> Deny | None:
        judged = live.laws.judge(live.fold, draft)
        return judged if isinstance(judged, Deny) else None

    return judge
