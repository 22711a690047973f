"""One attempt at a turn: take over or pause, claim, read the journal, drive the loop, record the ending.

A first attempt claims the turn with its first `call.started`. A later one claims before it reads, so that no earlier
owner writes behind it.

Rule 1: in every case the turn ends, is released, or waits for a person; and the log says which.
Rule 2: a fenced attempt drops its results. Only the log counts.
Rule 3: a turn that was in progress when a process died pauses first (`crash_recovery`), then runs exclusively among
        such turns until one of its calls has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from antiphon.agents.call_results import Handoff
from antiphon.agents.declaration import Declaration
from antiphon.agents.handoff_tool import OfferedTeams
from antiphon.agents.history import History
from antiphon.agents.loop import TurnResult, drive, take_turn
from antiphon.agents.progress import Progress
from antiphon.agents.steps import StepError
from antiphon.agents.team import Team, format_member_path, parse_member_path
from antiphon.core.envelope import Envelope, Json, add_seconds, match_name
from antiphon.core.errors import Denied, StoreError, TooLarge
from antiphon.core.event_data import check_event, data_of
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TEXT,
    SPEECH_TYPES,
    ContextSet,
    Routing,
)
from antiphon.core.state import Turn
from antiphon.core.step import hub_draft, owed_turn, pending_turns
from antiphon.core.text import describe_error
from antiphon.core.turns import FENCED, TurnEnding, TurnFailure
from antiphon.engines.attempt_ends import AwaitsApproval, CallInDoubt, EngineStopping, TurnFailedError, TurnFencedError
from antiphon.engines.crash_recovery import GatedTurn, SuspectGate, crash_pause_end, has_crashed, record_crash
from antiphon.engines.effect_handler import EffectHandler
from antiphon.engines.engine import Attempt, current_turn_key, running_turn, waits_for_nothing
from antiphon.engines.environment import HistoryCache, TurnEnvironment, TurnRun
from antiphon.engines.journal import TurnJournal, read_entries
from antiphon.engines.tracing import TurnTracer
from antiphon.engines.user_code import LOOP_WATCH
from antiphon.hub.admission import RecordDraft
from antiphon.hub.clock import TimerQueue
from antiphon.hub.live import LiveChannel

logger = logging.getLogger("antiphon.engine")

ACTIVE_AGENT_GONE = "it answered last, and is no longer in the team; {} answers itself"


class TurnHandler:
    """Runs the turns of the agents that are registered here."""

    def __init__(self, environment: TurnEnvironment) -> None:
        self._environment = environment
        self.timers = TimerQueue(environment.clock)
        """The deadlines of calls. The hub runs them in a task of its own."""
        self._histories = HistoryCache()
        self.forget = self._histories.forget
        self._gate = SuspectGate(_LoadedOwedWork(environment))
        self._tracing = TurnTracer()
        self._teams = OfferedTeams()

    async def __call__(self, attempt: Attempt) -> None:
        """Run a turn, if it is still owed and no live process has claimed it."""
        limit, job = self._environment.limit, attempt.job
        try:
            live = await self._environment.channels.get(job.channel_id)
            turn = next((turn for turn in pending_turns(live.state) if turn.turn_id == job.turn_id), None)
            agent = self._environment.agents.get(job.speaker)
            if turn is None or agent is None:
                return
            with self._environment.definitions.running(agent), self._environment.running.turn(job.channel_id):
                await self._start_turn(attempt, live, agent, turn=turn)
        finally:
            limit.turn_over(job) if attempt.again is None else limit.release_slot(job.job_id)

    async def _start_turn(self, attempt: Attempt, live: LiveChannel, agent: Declaration, *, turn: Turn) -> None:
        """Run the turn with this definition of its agent, unless another owner lives, or a crash comes first."""
        job, clock = attempt.job, self._environment.clock
        if turn.owner and not await attempt.takeover(turn.owner):
            attempt.again = add_seconds(clock.now(), attempt.patience)
            return
        if turn.epoch and await self._environment.delegates.is_abandoned(live.state):
            return
        if has_crashed(turn, attempt.owner):
            attempt.ending = True  # the suspension of a turn makes its job not owed, which would cut this off
            entries = await read_entries(live, turn)
            await record_crash(live, turn, entries, limit=agent.limits.crashes, new_id=self._environment.new_id)
            attempt.again = clock.now()
            return
        attempt.again = crash_pause_end(turn, clock.now())
        if attempt.again is None:
            current_turn_key.set((job.channel_id, job.speaker))
            await self._run_gated(attempt, live, agent, turn=turn)

    async def _run_gated(self, attempt: Attempt, live: LiveChannel, agent: Declaration, *, turn: Turn) -> None:
        """Run the turn; if it was in progress during a crash, not beside other such turns."""
        gated = GatedTurn(self._gate, live.state.channel_id, turn.speaker, crashes=turn.crashes)
        running_turn.set(gated)  # always: a task may have been made in the context of another turn
        if gated.is_suspect:
            self._environment.limit.release_slot(attempt.job.job_id)  # it may have to wait for other suspects
        try:
            if not await gated.enter(attempt.stopping):
                return
            if gated.is_suspect and await self._environment.delegates.is_abandoned(live.state):
                return
            workflow = live.ruleset.traits.ends_in == "packet"
            with LOOP_WATCH.watching(), self._tracing.turn(live.state, turn, workflow=workflow) as trace:
                team, progressed = self._team_in(live, agent), gated.clear
                run = TurnRun(
                    self._environment, self.timers, self._histories, attempt, live, turn, agent, trace, team, progressed
                )
                await self._run(TurnJournal(run))
        finally:
            gated.leave()
            attempt.waits_for_tasks = waits_for_nothing  # it refers to the run, which refers back: a cycle to collect

    def _team_in(self, live: LiveChannel, agent: Declaration) -> Team:
        """The agent's team, with the tool for handoffs where conversations can be handed over."""
        handoffs = live.ruleset.traits.handoffs
        if handoffs is None:
            return agent.team
        return self._teams.offering(agent.team, handoffs.targets(live.state, agent.name))

    async def _run(self, journal: TurnJournal) -> None:
        """Take the turn to its end, and record how an attempt ends that has no answer.

        The order of the clauses is the meaning. Inside, `_answer` turns what goes wrong with the agent, its steps and
        its answer into a failure of the turn. Out here arrive the ends of the attempt that are no end of the turn, also
        when they come from recording that failure: so `Denied` means that even the failure was refused.
        """
        run, attempt = journal.run, journal.run.attempt
        try:
            failure = await self._answer(journal)
            # From here on the engine must not cancel: a turn whose end is half recorded would be run again.
            attempt.ending = True
            if failure is not None:
                run.trace.failed(failure.reason)
                await journal.end(failure)
        except TurnFencedError as fenced:
            run.trace.failed(FENCED)
            await self._drop_turn(journal, str(fenced))
        except CallInDoubt as doubt:
            self._leave_to_person(run, str(doubt), logging.WARNING)
        except AwaitsApproval as waiting:
            attempt.ending = True
            await self._release_turn(journal)
            self._leave_to_person(run, f"approval of {waiting}", logging.INFO)
        except EngineStopping:
            await self._release_turn(journal)
        except Denied as denied:
            run.trace.failed(denied.reason)
            await self._close_channel(run, denied)
        except asyncio.CancelledError:
            attempt.ending = True
            if attempt.lost.is_set():
                await self._record_fenced(run, "its lease was lost")
            await self._release_turn(journal)  # also after a lost lease: this process lives, so that it was no crash
            raise

    async def _answer(self, journal: TurnJournal) -> TurnFailure | None:
        """Drive the turn, and record its answer. Returns the failure if there is no answer, else None."""
        run = journal.run
        try:
            if run.turn.epoch:
                await journal.claim()  # before the journal is read: behind the claim no earlier owner writes
            ending = await self._screened(run, _ending(run, await self._drive(journal)))
            run.attempt.ending = True
            await journal.end(ending)
        except TurnFailedError as failing:
            return failing.failure
        except Denied as denied:
            return TurnFailure(f"refused:{denied.reason}", denied.detail)
        except TooLarge as error:
            return TurnFailure("too_large", str(error))
        except StepError as error:
            return TurnFailure("step_error", str(error))
        except (StoreError, TurnFencedError, CallInDoubt, AwaitsApproval, EngineStopping):
            raise  # no failure of the turn: it must stay above the clause for every other error
        except Exception as error:
            logger.exception("turn %s of %s failed", run.turn_id, run.channel_id)
            return TurnFailure("turn_error", describe_error(error))
        return None

    async def _drive(self, journal: TurnJournal) -> TurnResult:
        run = journal.run
        await journal.load()
        run.state = run.live.state  # again: claiming may have waited, and the channel gone on
        live, agent = run.live, run.agent
        view = live.ruleset.traits.view(len(live.state.participants))
        run.attempt.waits_for_tasks = run.waits_for_tasks
        history = await run.read_history(view.named)
        progress = _initial_progress(run, history)
        active = (agent.name, *progress.last_active)
        if progress.last_active and active not in run.team.members:
            journal.warn("active_agent_gone", active, ACTIVE_AGENT_GONE.format(agent.name))
        steps = take_turn(run.team, progress, _turn_date(run, history))
        return await drive(steps, EffectHandler(journal, view).handle)

    async def _screened(self, run: TurnRun, ending: TurnEnding) -> TurnEnding:
        """The ending as hooks leave it, which may take some time, and wait for other turns."""
        screen = self._environment.screen
        if not screen.screening:
            return ending
        self._environment.limit.release_slot(run.attempt.job.job_id)
        said = [
            await screen.screen_answer(run.live, each) if each.event_type in SPEECH_TYPES else each
            for each in ending.said
        ]
        return TurnEnding(tuple(said), ending.close)

    async def _drop_turn(self, journal: TurnJournal, why: str) -> None:
        """Another owner has the turn. That one may die as well, so the turn is looked at again."""
        run, attempt = journal.run, journal.run.attempt
        attempt.ending = True
        if owed_turn(run.live.state, run.turn_id) is not None:
            attempt.again = add_seconds(self._environment.clock.now(), attempt.patience)
        if journal.claimed:  # without a claim the other owner was merely quicker, which is not recorded
            await self._record_fenced(run, why)

    def _leave_to_person(self, run: TurnRun, what: str, level: int) -> None:
        """The turn waits for a person, unless the person has decided already."""
        logger.log(level, "turn %s of %s waits for a person: %s", run.turn_id, run.channel_id, what)
        if any(turn.turn_id == run.turn_id for turn in pending_turns(run.live.state)):
            run.attempt.again = self._environment.clock.now()

    async def _close_channel(self, run: TurnRun, denied: Denied) -> None:
        """The channel's own rules refuse the failure of a turn: nothing can follow, and the log says so."""
        logger.error("turn %s of %s can neither end nor fail: %s", run.turn_id, run.channel_id, denied)
        closing = hub_draft(EV_CHANNEL_CLOSED, {"reason": denied.reason}, cause=run.turn.cause)
        await run.live.submit(RecordDraft(closing, self._environment.new_id))

    async def _record_fenced(self, run: TurnRun, why: str) -> None:
        logger.warning("turn %s of %s was fenced: %s", run.turn_id, run.channel_id, why)
        try:
            await self._environment.audit.fenced(run.channel_id, run.turn_id, why)
        except StoreError as error:
            logger.warning("that could not be recorded: %s", error)

    async def _release_turn(self, journal: TurnJournal) -> None:
        try:
            await journal.release()
        except (Denied, StoreError) as error:
            logger.info("turn %s is not released: %s", journal.turn_id, error)


def _ending(run: TurnRun, said: TurnResult) -> TurnEnding:
    """The envelopes a turn ends with."""
    live, turn, agent = run.live, run.turn, run.agent
    audience = _answer_audience(live, turn, said, chosen=run.audience)
    known = len(run.team.members) > 1 or agent.name in live.state.active  # a team that is gone is forgotten
    who = format_member_path((agent.name, *said.path)) if known else ""
    packets = run.ends_in_packet
    drafts = (
        _packet_drafts(live, said, run.context, who=who, private=audience is not None)
        if packets
        else _text_drafts(said, run.context, who=who)
    )
    envelopes = tuple(
        Envelope(
            "",
            run.channel_id,
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
            raise TurnFailedError(f"refused:{denial.reason}", denial.detail)
    return TurnEnding(envelopes, None if packets else said.finish)


def _text_drafts(said: TurnResult, context: ContextSet, *, who: str) -> list[tuple[str, Json]]:
    """What a turn ends in where it ends in a text: what it wrote to the context, then what it says."""
    text: Json = {"text": said.text, "agent": who} if who else {"text": said.text}
    if said.stopped is not None:
        text["stopped"] = said.stopped
    spoken: list[tuple[str, Json]] = [(EV_TEXT, text)]
    return [(EV_CONTEXT_SET, data_of(context)), *spoken] if context.set or context.delete else spoken


def _answer_audience(
    live: LiveChannel, turn: Turn, said: TurnResult, *, chosen: tuple[str, ...] | None
) -> list[str] | None:
    """Whom an answer is for: as a tool has chosen, else those who heard what it answers; None is everybody.

    A participant that is handed the turn hears what it is handed. An adapter that allows handoffs adds it itself.
    """
    if chosen is not None or turn.audience is None:
        return list(chosen or ()) or None
    target = None
    if said.handoff is not None and live.ruleset.traits.handoffs is None:
        target = match_name(said.handoff.target, live.state.participants)
    return list(dict.fromkeys((*turn.audience, *([] if target is None else [target]))))


def _packet_drafts(
    live: LiveChannel, said: TurnResult, context: ContextSet, *, who: str, private: bool
) -> list[tuple[str, Json]]:
    """What a turn ends in where it ends in a packet: all of it as one fact.

    What a private packet writes to the context is recorded before it: context variables are everybody's.
    """
    named = live.ruleset.traits.routing_tools
    handoff = said.handoff or Handoff("")
    routing = Routing(
        tool=next((tool for tool in said.tools if named is None or tool in named), None),
        target=handoff.target or None,
        reason=handoff.reason,
        summary=handoff.summary,
        phase=handoff.phase,
        escalation=handoff.escalation,
        briefing=handoff.briefing,
        finish=said.finish,
        stopped=said.stopped,
    )
    apart = private and bool(context.set or context.delete)
    updates = data_of(ContextSet() if apart else context)
    packet: Json = {"body": said.text, "routing": data_of(routing), "context_updates": updates}
    spoken: list[tuple[str, Json]] = [(EV_PACKET, {**packet, "agent": who} if who else packet)]
    return [(EV_CONTEXT_SET, data_of(context)), *spoken] if apart else spoken


def _initial_progress(run: TurnRun, history: History) -> Progress:
    """How a turn begins: who is asked, what a person said that is to be answered, and who answered last."""
    name = run.turn.speaker
    heard = history.last_user_text(run.turn.shown_until, run.people)
    return Progress((name,), heard, parse_member_path(run.live.state.active.get(name, ""))[1:])


def _turn_date(run: TurnRun, history: History) -> str:
    """The day on which what is to be answered was said, the same for every attempt."""
    said = history.message_meta(run.turn.cause)
    return (run.live.state.created_at if said is None else said.at)[:10]


class _LoadedOwedWork:
    """What the channels loaded in this process are owed."""

    def __init__(self, environment: TurnEnvironment) -> None:
        self._environment = environment

    def speakers(self, channel_id: str) -> list[str]:
        live = self._environment.channels.loaded(channel_id)
        turns = () if live is None else pending_turns(live.state)
        return [turn.speaker for turn in turns if turn.speaker in self._environment.agents]

    def tasks(self, channel_id: str) -> Iterable[str]:
        live = self._environment.channels.loaded(channel_id)
        return () if live is None else live.state.open_tasks

    def head(self, channel_id: str) -> int:
        live = self._environment.channels.loaded(channel_id)
        return 0 if live is None else live.state.sequence
