"""Faults that are planted on purpose, each with the test that must find it.

`plant` changes the package in a process of its own, in which the named test is then run. It has to fail there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx2
import pytest
from msgspec.structs import replace

from antiphon.core import canonical, opinions, sagas, state
from antiphon.core.envelope import Envelope, Json
from antiphon.core.event_data import Deny
from antiphon.core.execution_events import CallStarted
from antiphon.core.ruleset import Fold
from antiphon.engines import call_approvals, saga_runs, tool_calls
from antiphon.engines.prepared_calls import PreparedCall
from antiphon.guards import (
    breaker,
    breaker_ledger,
    breaker_machine,
    budget,
    counted_calls,
    deadline_memory,
    deadlock_memory,
    gates,
    loop_windows,
    loops,
    run_limits,
    spending,
)
from antiphon.guards.gate_checks import CheckFault, CheckResult
from antiphon.hub import channel_log, ledgers, live
from antiphon.hub.clock import shorter_time
from antiphon.runtime import cedar_policy, decisions, gate_runs, subscriptions
from antiphon.store import sqlite_commits
from antiphon.store.records import genesis_hash
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_reads import LogHead

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and the test that finds it."""

    plant: Plant
    found_by: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, *, found_by: str) -> Callable[[Plant], Plant]:
    """A decorator that lists a fault under its name."""

    def listed(plant: Plant) -> Plant:
        assert name not in FAULTS, f"{name} is listed already"
        FAULTS[name] = Fault(plant, found_by)
        return plant

    return listed


# What the log promises


@fault("no_dedupe", found_by="tests/hub/test_admission.py::test_the_same_id_with_other_content_is_a_conflict")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live, "first_or_conflict", lambda draft, first: first)


@fault("ack_before_sync", found_by="tests/faults/test_power.py::test_a_short_search_finds_no_loss_either")
def _(patch: pytest.MonkeyPatch) -> None:
    opened = SqliteStore.open.__func__  # type: ignore[attr-defined]

    async def unsynced(kind: type[SqliteStore], path: object, **options: object) -> object:
        return await opened(kind, path, **{**options, "synchronous": "NORMAL"})

    patch.setattr(SqliteStore, "open", classmethod(unsynced))


@fault("fold_before_append", found_by="tests/hub/test_trouble.py::test_what_the_store_refused_is_not_folded")
def _(patch: pytest.MonkeyPatch) -> None:
    record = channel_log.ChannelLog.record

    async def folded_first(self: channel_log.ChannelLog, batch: list[Envelope], fold: Fold) -> bool:
        try:
            return await record(self, batch, fold)
        except BaseException:
            self.fold = fold
            raise

    patch.setattr(channel_log.ChannelLog, "record", folded_first)


@fault(
    "first_snapshot_loss",
    found_by="tests/hub/test_trouble.py::test_a_channel_loaded_from_its_first_snapshot_is_what_it_was",
)
def _(patch: pytest.MonkeyPatch) -> None:
    keep = channel_log.ChannelLog._keep_snapshot

    async def without_its_beginning(self: channel_log.ChannelLog) -> None:
        whole, first = self.fold, self._snapshot_at == 0
        if first:
            self.fold = replace(whole, state=replace(whole.state, turn_count=0, context_vars={}))
        try:
            await keep(self)
        finally:
            self.fold = whole

    patch.setattr(channel_log.ChannelLog, "_keep_snapshot", without_its_beginning)


@fault("on_conflict_ignore", found_by="tests/store/test_sqlite.py::test_two_hubs_without_a_lock_cannot_both_win")
def _(patch: pytest.MonkeyPatch) -> None:
    for statement in ("_INSERT_INTO", "_INSERT_ROW"):
        text = getattr(sqlite_commits, statement)
        patch.setattr(sqlite_commits, statement, text.replace("INSERT INTO", "INSERT OR IGNORE INTO"))


@fault(
    "tail_not_truncated",
    found_by="tests/store/test_sqlite_corruption.py::test_nothing_is_recorded_behind_a_torn_last_record",
)
def _(patch: pytest.MonkeyPatch) -> None:
    select = "SELECT seq, hash FROM log WHERE tenant = ? AND channel = ? ORDER BY seq DESC LIMIT 1"

    def unchecked_head(connection: sqlite3.Connection, tenant: str, channel: str) -> LogHead:
        found = connection.execute(select, (tenant, channel)).fetchone()
        return LogHead(0, genesis_hash(tenant, channel), "") if found is None else LogHead(*found, "active")

    patch.setattr(sqlite_commits, "read_log_head", unchecked_head)


@fault(
    "missing_audience_filter",
    found_by="tests/hub/test_delivery.py::test_an_inbox_has_what_is_addressed_to_its_owner_by_others",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(subscriptions, "visible_to", lambda envelope, reader: True)


@fault("redirect_followed", found_by="tests/transports/test_webhook.py::test_redirects_are_not_followed")
def _(patch: pytest.MonkeyPatch) -> None:
    made = httpx2.AsyncClient

    def following(**options: object) -> object:
        return made(**{**options, "follow_redirects": True})  # type: ignore[arg-type]

    patch.setattr(httpx2, "AsyncClient", following)


# People


@fault(
    "agent_decides_approval",
    found_by="tests/runtime/test_approvals.py::test_neither_agents_nor_services_decide",
)
def _(patch: pytest.MonkeyPatch) -> None:
    record = decisions._record_decision

    async def decided_by_anybody(*given: object, kind: str, **options: object) -> object:
        return await record(*given, kind=decisions.HUMAN_KIND, **options)  # type: ignore[arg-type]

    patch.setattr(decisions, "_record_decision", decided_by_anybody)


# Budgets


@fault(
    "reservation_lost_on_crash",
    found_by="tests/guards/test_budget.py::test_a_reservation_whose_call_is_lost_is_booked_in_full",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def freed(remembered: spending.Spending, key: str) -> spending.Spending:
        return spending.count_outcome(remembered, counted_calls.CountedOutcome(key, 0, 0, left=True))

    patch.setattr(spending, "book_call", freed)


@fault(
    "budget_checked_after_the_call",
    found_by="tests/guards/test_budget_runs.py::test_a_hundred_tasks_at_once_stay_within_the_budget_of_their_run",
)
def _(patch: pytest.MonkeyPatch) -> None:
    read = counted_calls._read_call

    def unreserved(envelope: Envelope) -> counted_calls.CountedCall | None:
        call = read(envelope)
        return None if call is None else replace(call, micro=0, tokens=0)

    patch.setattr(counted_calls, "_read_call", unreserved)


@fault(
    "counters_reset_by_a_new_channel",
    found_by="tests/guards/test_budget_runs.py::test_a_hundred_tasks_at_once_stay_within_the_budget_of_their_run",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget, "is_task", lambda state: False)


# Gates and policies


@fault("rerolled_gate", found_by="tests/guards/test_gates.py::test_a_recorded_verdict_is_not_made_again")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gate_runs, "recorded_verdict", lambda *args, **options: None)


@fault("gate_error_passes", found_by="tests/guards/test_gates.py::test_an_error_of_a_check_is_a_failure")
def _(patch: pytest.MonkeyPatch) -> None:
    checked = gates._check_of

    def lenient(name: str, answer: CheckResult | CheckFault, ms: int, *, lenient: bool) -> object:
        passed = CheckResult(True) if isinstance(answer, CheckFault) else answer
        return checked(name, passed, ms, lenient=lenient)

    patch.setattr(gates, "_check_of", lenient)


@fault(
    "diagnostics_errors_ignored", found_by="tests/guards/test_cedar_policy.py::test_an_allow_with_an_error_is_a_denial"
)
def _(patch: pytest.MonkeyPatch) -> None:
    decide = cedar_policy.CedarPolicy.decide

    def blind(self: cedar_policy.CedarPolicy, request: object) -> object:
        decision = decide(self, request)  # type: ignore[arg-type]
        return cedar_policy.PolicyDecision("allow") if decision.error == "allow_with_errors" else decision

    patch.setattr(cedar_policy.CedarPolicy, "decide", blind)


# Limits, deadlines and deadlocks


@fault(
    "depth_reset_by_a_new_channel",
    found_by="tests/guards/test_run_limits.py::test_opening_a_new_channel_does_not_reset_the_depth",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.State, "task_depth", 0)


@fault(
    "every_dialogue_is_a_deadlock",
    found_by="tests/guards/test_deadlock.py::test_an_ordinary_dialogue_goes_on_as_long_as_it_says_anything_new",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deadlock_memory, "_round_key", lambda memory, names: "-".join(sorted(names)))


@fault("deadline_as_duration", found_by="tests/guards/test_deadlines.py::test_a_call_that_starts_again_keeps_its_time")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deadline_memory.RunTimes, "call", lambda self, turn_id, index: None)


# Loops


@fault(
    "key_order_sensitive_hash",
    found_by="tests/core/test_canonical.py::test_calls_that_are_the_same",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def unsorted(members: Mapping[str, str]) -> str:
        return f"{{{','.join(f'{canonical.canonical_json(name)}:{text}' for name, text in members.items())}}}"

    patch.setattr(canonical, "_join_members", unsorted)


@fault("one_is_not_one_point_zero", found_by="tests/core/test_canonical.py::test_calls_that_are_the_same")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(canonical, "_write_number", repr)


@fault(
    "window_over_all_agents",
    found_by="tests/guards/test_loops.py::test_a_window_over_all_agents_would_let_interleaving_hide_a_loop",
)
def _(patch: pytest.MonkeyPatch) -> None:
    for module in (loops, loop_windows):
        patch.setattr(module, "agent_of_call", lambda data: "all")


@fault(
    "waiting_messages_share_windows",
    found_by="tests/guards/test_waiting_messages.py::test_each_waiting_message_of_a_thread_has_the_amounts_of_its_own",
)
def _(patch: pytest.MonkeyPatch) -> None:
    for module in (loop_windows, run_limits, spending):
        patch.setattr(module, "without_answered", lambda waiting, envelope: waiting)


@fault("all_calls_stripped", found_by="tests/guards/test_loops.py::test_innocent_calls_of_the_message_are_made")
def _(patch: pytest.MonkeyPatch) -> None:
    stopped = loops.LoopDetector.permit

    def strict(
        self: loops.LoopDetector, memory: loop_windows.LoopMemory, channel: state.State, draft: Envelope
    ) -> object:
        window = memory.window_of(loop_windows.agent_of_call(draft.event_data))
        if window.unread and draft.event_data.get("same"):
            return Deny("loop")
        return stopped(self, memory, channel, draft)

    patch.setattr(loops.LoopDetector, "permit", strict)


@fault(
    "crash_retry_counts_twice",
    found_by="tests/guards/test_loops.py::test_a_call_that_starts_again_after_a_crash_counts_once",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop_windows.AgentWindow, "has_started", lambda self, turn, index: False)


# Circuit breakers and retries


@fault(
    "probe_without_lease",
    found_by="tests/guards/test_breaker_shared.py::test_of_a_hundred_calls_in_two_hubs_one_tries",
)
def _(patch: pytest.MonkeyPatch) -> None:
    refuses = breaker_machine.refuses

    def lenient(found: breaker_machine.Breaker, call: breaker_machine.Called, at: str) -> bool:
        return found.status != "half_open" and refuses(found, call, at)

    for module in (breaker_machine, breaker_ledger, breaker):
        patch.setattr(module, "refuses", lenient)


@fault(
    "late_success_closes_newer_epoch",
    found_by="tests/guards/test_breaker_shared.py::test_a_late_success_of_one_epoch_does_not_close_the_next",
)
def _(patch: pytest.MonkeyPatch) -> None:
    for module in (breaker_machine, breaker_ledger):
        patch.setattr(module, "concerns", lambda found, ended: found.status in ("closed", "half_open"))


@fault(
    "one_counter_for_all_classes",
    found_by="tests/guards/test_breaker_machine.py::"
    "test_an_answer_without_the_wanted_form_is_no_transport_error_and_hides_none",
)
def _(patch: pytest.MonkeyPatch) -> None:
    counted = breaker_machine._count_outcome

    def by_status(found: breaker_machine.Breaker, failure: str, at: str) -> breaker_machine.Breaker:
        return counted(found, failure if failure == "transport" else "", at)  # an answer that came is a success

    patch.setattr(breaker_machine, "_count_outcome", by_status)


@fault(
    "bucket_refilled_on_restart",
    found_by="tests/guards/test_retry_budget.py::test_a_restart_continues_from_the_balance",
)
def _(patch: pytest.MonkeyPatch) -> None:
    made = ledgers.SystemChannel

    def of_this_process(channel_id: str, channels: live.Channels, knobs: Json | None = None) -> ledgers.SystemChannel:
        return made(f"{channel_id}-{id(channels)}", channels, knobs)

    patch.setattr(ledgers, "SystemChannel", of_this_process)


# Calls that are made once, and sagas


@fault("once_ignored", found_by="tests/guards/test_once.py::test_a_hundred_parallel_calls_have_one_effect")
def _(patch: pytest.MonkeyPatch) -> None:
    async def every_call_runs(journal: object, ready: PreparedCall) -> PreparedCall:
        return ready

    patch.setattr(tool_calls, "register_once", every_call_runs)


@fault("fifo_compensation", found_by="tests/runtime/test_sagas.py::test_an_aborted_run_is_undone_last_first")
def _(patch: pytest.MonkeyPatch) -> None:
    last_first = saga_runs.last_first
    patch.setattr(saga_runs, "last_first", lambda steps: last_first(steps)[::-1])


@fault(
    "compensation_under_expired_deadline",
    found_by="tests/runtime/test_sagas.py::test_the_compensation_of_an_expired_run_has_time_of_its_own",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def left_of_the_run(self: saga_runs.SagaRun) -> float:
        return shorter_time(self.environment.clock, 300, self.live.state.expires_at) or 0.0

    patch.setattr(saga_runs.SagaRun, "attempt_seconds", left_of_the_run)


@fault(
    "only_returned_steps_compensated",
    found_by="tests/runtime/test_sagas.py::test_a_call_that_timed_out_may_have_taken_effect_and_is_undone",
)
def _(patch: pytest.MonkeyPatch) -> None:
    owed = sagas.is_owed
    patch.setattr(sagas, "is_owed", lambda step: owed(step) and step.outcome == "done")


# Approvals


@fault(
    "edit_skips_gates",
    found_by="tests/runtime/test_call_approvals.py::test_an_edit_is_asked_about_by_all_guards_again",
)
def _(patch: pytest.MonkeyPatch) -> None:
    permit = opinions.CallGuards.permit

    def trusting(self: opinions.CallGuards, fold: Fold, draft: Envelope) -> object:
        return draft if draft.event_data.get("approved") else permit(self, fold, draft)

    patch.setattr(opinions.CallGuards, "permit", trusting)


@fault(
    "edit_skips_schema",
    found_by="tests/runtime/test_call_approvals.py::"
    "test_an_edit_that_does_not_fit_the_tool_is_refused_and_nothing_is_recorded",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def unchecked(*args: object) -> None:
        return None

    patch.setattr(decisions, "check_edited_arguments", unchecked)


@fault(
    "approved_without_digest_check",
    found_by="tests/runtime/test_call_approval_rules.py::test_a_decision_about_another_digest_is_stale",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_check_digest", lambda found, choice: None)


@fault(
    "edit_forgotten",
    found_by="tests/runtime/test_call_approvals.py::test_edit_lets_the_call_leave_with_other_arguments",
)
def _(patch: pytest.MonkeyPatch) -> None:
    started = tool_calls.started_entry

    def as_asked(journal: object, ready: PreparedCall) -> CallStarted:
        return replace(started(journal, ready), args=ready.wanted.call.args)  # type: ignore[arg-type]

    patch.setattr(tool_calls, "started_entry", as_asked)


@fault(
    "requester_approves",
    found_by="tests/runtime/test_call_approval_rules.py::test_only_people_decide_and_not_the_one_who_asked",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def allowed(*args: object, **options: object) -> None:
        return None

    patch.setattr(decisions, "check_approver", allowed)


@fault(
    "failing_approval_function_allows",
    found_by="tests/runtime/test_call_approvals.py::test_a_function_of_the_arguments_says_whether",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(call_approvals, "_unknown", lambda tool, name, error: None)
