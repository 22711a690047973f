"""The journal of a turn: what its calls were asked and what they returned, read back and written on by one attempt.

Rule 1: the claim is the first entry written, and nothing is written after the claim of another attempt.
Rule 2: the result of a call is kept in memory until the next write, and then written together with it.
Rule 3: when the store fails, kept entries are not dropped: they are offered again until the store takes them.
Rule 4: a call is known by its position. A recorded result is returned instead of a second call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from antiphon.agents.call_results import CallOutcome, decode_outcome
from antiphon.agents.progress import MemberPath
from antiphon.agents.team import format_member_path
from antiphon.core.call_permits import OUTCOME_TYPES, JournalBatch, TurnClaim
from antiphon.core.codec import MAX_EVENT_BYTES, Malformed, plain_data, to_json
from antiphon.core.envelope import HUB, OPERATORS, Envelope, Instant, Json, Priority, add_seconds
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import EV_AGENT_WARNED, EV_TASK_STARTED
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_CONFLICTED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    ApprovalRequested,
    CallConflicted,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
    FailureClass,
)
from antiphon.core.guard import Objection
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import EV_SAGA_EXECUTED
from antiphon.core.state import Turn
from antiphon.core.step import Admitted, turn_audience
from antiphon.core.turns import (
    FENCED,
    RecordedCalls,
    TurnEnding,
    TurnFailure,
    claim_turn,
    end_turn,
    fail_turn,
    journal_of,
    release_turn,
    write_entries,
)
from antiphon.engines.attempt_ends import EngineStopping, TurnFailedError, TurnFencedError
from antiphon.engines.environment import TurnRun
from antiphon.hub.known_secrets import redact_text
from antiphon.hub.live import LiveChannel

logger = logging.getLogger("antiphon.engine")

T = TypeVar("T", bound=CallOutcome)
Booked = tuple[int, int]  # of a call: its cost in millionths of a dollar, and its tokens

NO_OBJECTIONS: Mapping[int, Objection] = {}
LASTING_TYPES = OUTCOME_TYPES | {EV_SAGA_EXECUTED}
"""Entries that are kept when a write is cut off."""
STORE_RETRY_SECONDS = 1.0
RELEASE_ATTEMPTS = 3
PUBLIC_ENTRY_TYPES = frozenset({EV_CALL_DOUBTED, EV_APPROVAL_REQUESTED})
ERROR_TEXT_FIELDS = {
    EV_CALL_FAILED: "error",
    EV_CALL_RETRIED: "error",
    EV_CALL_DOUBTED: "why",
    EV_AGENT_WARNED: "message",
}
"""The field of each entry that holds the text of an error, which is redacted before it is recorded."""


class AgentWarned(msgspec.Struct, frozen=True):
    """The turn continues although its agent is misconfigured in this way."""

    turn: str
    agent: str
    code: str
    """A stable word to branch on."""
    message: str


class TurnJournal:
    """The journal of a turn, as one attempt reads it and writes on, under one claim."""

    def __init__(self, run: TurnRun) -> None:
        self.run, self.turn_id = run, run.turn_id
        self.turn_claim = TurnClaim(run.turn_id, run.turn.epoch + 1)
        self.claimed = False
        """Whether anything of this attempt is in the log."""
        self.planned: tuple[Envelope, ...] = ()
        """The batch last offered to the store behind the claim, with its ids: it may be recorded."""
        self.active = ""
        """The active agent of a team, to whom a failure is recorded; "" without a team."""
        self.calls = RecordedCalls()
        self.parameters: dict[int, Callable[[], Json]] = {}
        """What gives the schemas of the arguments of tool calls, by position, for people whom guards have asked."""
        self.answered: set[int] = set()
        """The calls about which no person was asked, because an earlier call has their result."""
        self._pending: list[Envelope] = []
        self._warned: set[tuple[str, str]] = set()
        self.given_tasks: set[str] = set()
        """The tasks that the turn has given, in earlier attempts too."""

    async def load(self) -> None:
        """Read what earlier attempts at the turn have recorded."""
        entries = await read_entries(self.run.live, self.run.turn)
        owners = {each.get("owner") for each in _hub_data(entries, EV_TURN_CLAIMED, self.turn_id)}
        self.calls.load(journal_of(entries, self.turn_id), elsewhere=bool(owners - {self.run.attempt.owner}))
        self._warned = warnings_in(entries, self.turn_id)
        started = _hub_data(entries, EV_TASK_STARTED, self.turn_id)
        self.given_tasks = {str(each.get("task")) for each in started}

    def note_difference(self, index: int, digest: str) -> bool:
        """True if the request differs from the recorded one. Keeps a `call.conflicted` entry the first time."""
        entry = self.calls.record(index)
        started = entry.started
        if started is None or started.digest == digest:
            return False
        if not entry.conflicted:
            conflict = CallConflicted(self.turn_id, index, started.name, started.digest, digest)
            self.keep(EV_CALL_CONFLICTED, conflict)
        return True

    def keep(self, event_type: str, event: msgspec.Struct) -> None:
        """Write this together with the next write."""
        self._pending.append(self._draft_entry(event_type, event))

    def warn(self, code: str, path: MemberPath, message: str) -> None:
        """Keep a warning about an agent, once a turn."""
        who = format_member_path(path)
        if (who, code) not in self._warned:
            self._warned.add((who, code))
            self.keep(EV_AGENT_WARNED, AgentWarned(self.turn_id, who, code, message))

    async def claim(self) -> None:
        """Record the claim, unless it is recorded: before any user code runs, and before a resumed turn is read."""
        if not self.claimed:
            await self._write()

    async def start(self, *calls: CallStarted, requests: Sequence[ApprovalRequested] = ()) -> None:
        """Record that these calls are about to leave. They are on disk when this returns.

        Guards may deny or change them, or have a person asked; `calls` holds then what is recorded of each. `requests`
        are calls that a person is asked about, unless they are denied.
        """
        if self.run.attempt.stopping.is_set():
            raise EngineStopping
        guards = self.run.live.ruleset.calls
        drafts = [self._draft_entry(EV_CALL_STARTED, call) for call in calls]
        drafts += [self._draft_entry(EV_APPROVAL_REQUESTED, request) for request in requests]
        # Before they wait for the write: a call that was cut off here must not be recorded as one in flight.
        objections = await self.run.ledgers.ask(drafts) if guards.sharing else NO_OBJECTIONS
        self._pending += drafts
        await self._write(objections=objections)
        if guards.asked or requests or any(call.approved for call in calls):  # it may be recorded in another form
            self.calls.add(self.planned, self.turn_id)

    async def retry(self, retried: CallRetried) -> CallFailed | None:
        """Record that a call is about to be retried. Returns its denial, if a guard denies the retry."""
        guards = self.run.live.ruleset.calls
        draft = self._draft_entry(EV_CALL_RETRIED, retried)
        objections = await self.run.ledgers.ask([draft]) if guards.sharing else NO_OBJECTIONS
        self._pending.append(draft)
        await self._write(objections=objections)
        if guards.asked:
            self.calls.add(self.planned, self.turn_id)
        return self.calls.denial(retried.index)

    async def refuse_late_retry(self, retried: CallRetried) -> CallFailed | None:
        """The denial of a retry whose delay is over, if a ledger denies it by now. It is kept for the journal."""
        if not self.run.live.ruleset.calls.sharing:
            return None
        via = self.calls.record(retried.index).via
        draft = self._draft_entry(EV_CALL_RETRIED, msgspec.structs.replace(retried, via=via))
        denial = await self.run.ledgers.deny_late(draft)
        if denial is None:
            return None
        why = denial.detail or f"denied: {denial.reason}"
        failed = CallFailed(self.turn_id, retried.index, why, denied=denial.reason, final=True, answer=denial.answer)
        self.keep(EV_CALL_FAILED, failed)
        return failed

    async def write(self, event_type: str = "", *events: msgspec.Struct) -> None:
        """Write these, and what was kept, if there is anything. They are on disk when this returns."""
        self._pending.extend(self._draft_entry(event_type, event) for event in events)
        if self._pending:
            await self._write()

    async def end(self, ending: TurnEnding | TurnFailure) -> None:
        """End the turn with its answer, or without one; `Denied` if the rules refuse it."""
        if isinstance(ending, TurnFailure):
            agent = ending.agent or self.active
            ending = msgspec.structs.replace(ending, agent=agent, detail=redact_text(ending.detail))
        await self._write(ending)

    async def release(self) -> None:
        """Give the turn back, so that the next attempt is not one after a crash. A store that is away is not awaited.

        Kept entries may have been recorded by a write whose outcome is unknown. `submit` looks for the first of them by
        the id it was offered with, and plans nothing if it finds it; the turn is then still ours, and released without.
        """
        if not self.claimed:
            return
        entries = tuple(self._pending)
        await self._release(entries)
        if entries and self._is_ours(self.run.live.fold):
            await self._release(())

    async def _release(self, entries: tuple[Envelope, ...]) -> None:
        # Stamping an entry has left its data as it is, so an entry is found in the offered batch by that identity.
        known = (each for each in self.planned if entries and each.event_data is entries[0].event_data)
        offered = next(known, None)
        plan = _ReleaseTurn(self, JournalBatch(self.turn_claim, entries))
        for left in reversed(range(RELEASE_ATTEMPTS)):
            try:
                await self.run.live.submit(plan, Priority.NORMAL, offered)
                return
            except (OutcomeUnknown, StoreUnavailable):
                if not left:
                    raise

    async def _write(
        self, ending: TurnEnding | TurnFailure | None = None, objections: Mapping[int, Objection] = NO_OBJECTIONS
    ) -> None:
        """Have the kept entries recorded, and the end of the turn, if it ends with them.

        `objections` are what ledgers say about calls among them that cannot leave as they are.
        """
        run, clock = self.run, self.run.environment.clock
        work, self._pending = JournalBatch(self.turn_claim, tuple(self._pending), objections, self.parameters), []
        self.planned = ()
        try:
            while True:
                # After an unknown outcome the batch may be recorded. Its first id is the identity of the whole batch:
                # `submit` looks for it first, so the batch is recorded once however often it is offered.
                offered = self.planned[0] if self.planned else None
                try:
                    await run.live.submit(_WriteJournal(self, work, ending), Priority.NORMAL, offered)
                    break
                except (OutcomeUnknown, StoreUnavailable) as error:
                    logger.warning("turn %s of %s waits for the store: %s", self.turn_id, run.channel_id, error)
                    await clock.wait(asyncio.Event(), add_seconds(clock.now(), STORE_RETRY_SECONDS))
        except Denied as denied:
            self._pending = [*work.entries, *self._pending]
            if denied.reason == FENCED:
                raise TurnFencedError(denied.detail) from denied
            raise
        except asyncio.CancelledError:
            # A result is kept for `release`: losing it would repeat a call that has had its effect. A start is dropped:
            # the call has not left, and a start without a result would be taken for a call in flight.
            self._pending = [entry for entry in (*work.entries, *self._pending) if entry.event_type in LASTING_TYPES]
            raise
        self.claimed = True
        if any(entry.event_type in OUTCOME_TYPES for entry in work.entries):
            run.progressed()
        if run.live.ruleset.calls.sharing:
            await run.ledgers.settle(self.planned)
        if run.ledgers.step_outcomes:
            await run.ledgers.settle_steps(self.planned)

    def _draft_entry(self, event_type: str, event: msgspec.Struct) -> Envelope:
        data, turn = data_of(event), self.run.turn
        error = data.get(ERROR_TEXT_FIELDS.get(event_type, ""))
        if isinstance(error, str):
            data[ERROR_TEXT_FIELDS[event_type]] = redact_text(error)
        # A person must hear of what waits for one; everything else in a journal is for operators.
        audience = turn_audience(turn) if event_type in PUBLIC_ENTRY_TYPES else [OPERATORS]
        return Envelope("", "", HUB, audience, event_type, data, turn.cause)

    def _is_ours(self, fold: Fold) -> bool:
        """Whether the claim is recorded, also by a write whose outcome was never confirmed."""
        # Epoch and owner together: another process may have written the same epoch after a takeover.
        return any(
            turn.turn_id == self.turn_id
            and turn.epoch == self.turn_claim.epoch
            and turn.owner == self.run.attempt.owner
            for turn in fold.state.owed
        )


@dataclass(frozen=True)
class _WriteJournal:
    """Plans one write: the claim, if it is not recorded yet, the entries, and the end of the turn, as one batch."""

    journal: TurnJournal
    work: JournalBatch
    ending: TurnEnding | TurnFailure | None

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        journal = self.journal
        claimed: tuple[Envelope, ...] = ()
        run, new_id = journal.run, journal.run.environment.new_id
        if not journal.claimed and not journal._is_ours(fold):
            claim = claim_turn(fold, run.turn, run.attempt.owner, ruleset=ruleset, at=at, new_id=new_id)
            if isinstance(claim, Deny):
                return claim
            fold, claimed = claim.fold, claim.batch
        match self.ending:
            case TurnEnding() as ending:
                planned = end_turn(fold, self.work, ending, ruleset=ruleset, at=at, new_id=new_id)
            case TurnFailure() as failure:
                planned = fail_turn(fold, self.work, failure, ruleset=ruleset, at=at, new_id=new_id)
            case None:
                planned = write_entries(fold, self.work, ruleset=ruleset, at=at, new_id=new_id)
        if isinstance(planned, Deny):
            return planned
        # `submit` plans again only when it knows that the batch offered before is not recorded.
        journal.planned = planned.batch
        return Admitted((*claimed, *planned.batch), planned.fold)


@dataclass(frozen=True)
class _ReleaseTurn:
    """Plans the release of a turn, with the entries that were kept."""

    journal: TurnJournal
    work: JournalBatch

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        new_id = self.journal.run.environment.new_id
        planned = release_turn(fold, self.work, ruleset=ruleset, at=at, new_id=new_id)
        if isinstance(planned, Admitted):
            self.journal.planned = planned.batch
        return planned


def recorded_result(journal: TurnJournal, index: int, name: str, *, kind: type[T]) -> T | None:
    """The recorded result of the call of this name at this position. Another call there is a conflict."""
    entry = journal.calls.record(index)
    if entry.started is not None and entry.started.name != name:
        raise TurnFailedError("idempotency_conflict", f"call {index} was {entry.started.name}, and is {name} now")
    # A recorded `CallFailed` of a model, summary or step has failed its turn: if the turn goes on, the call is made
    # again. Tools differ, see `prepared_calls`.
    if not isinstance(entry.outcome, CallFinished):
        return None
    outcome = decode_outcome(entry.outcome.result)
    if not isinstance(outcome, kind):
        raise Malformed("malformed", f"call {index} is recorded as {type(outcome).__name__}, not {kind.__name__}")
    return outcome


def recordable_data(made: msgspec.Struct, subject: str) -> Json:
    """A struct as the journal holds it; `Malformed` if it is too large."""
    size = len(to_json(made))
    if size > MAX_EVENT_BYTES:
        raise Malformed("too_large", f"{subject} has {size} bytes; the limit is {MAX_EVENT_BYTES}")
    return plain_data(made)


def call_failure(
    journal: TurnJournal, index: int, failure: TurnFailure, *, kind: FailureClass = "error", booked: Booked = (0, 0)
) -> TurnFailedError:
    """The failure of a turn by the failure of one of its calls, which is kept for the journal."""
    (cost, tokens), guarded = booked, journal.run.live.ruleset.calls.asked
    kind = kind if guarded else ""
    failed = CallFailed(journal.turn_id, index, failure.detail, failure=kind, cost=cost, tokens=tokens)
    journal.keep(EV_CALL_FAILED, failed)
    return TurnFailedError(failure.reason, failure.detail)


async def read_entries(live: LiveChannel, turn: Turn) -> list[Envelope]:
    """Everything recorded since the turn was assigned, by earlier attempts too. The first attempt reads nothing."""
    entries: list[Envelope] = []
    cursor = turn.sequence
    while turn.epoch and (page := await live.read(cursor)):
        entries.extend(page)
        cursor = page[-1].sequence
    return entries


def agent_in_journal(path: MemberPath) -> str:
    """The agent that makes a call, as the journal names it: "" for the speaker itself."""
    return format_member_path(path) if len(path) > 1 else ""


def warnings_in(log: Iterable[Envelope], turn_id: str) -> set[tuple[str, str]]:
    """The agent and code of every warning that earlier attempts at a turn have recorded."""
    return {(str(each.get("agent")), str(each.get("code"))) for each in _hub_data(log, EV_AGENT_WARNED, turn_id)}


def _hub_data(log: Iterable[Envelope], event_type: str, turn_id: str) -> list[Json]:
    data = (each.event_data for each in log if each.event_type == event_type and each.sender_id == HUB)
    return [each for each in data if each.get("turn") == turn_id]
