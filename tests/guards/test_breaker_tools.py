"""The breakers of tools and of spend, which belong to a channel: what counts where, and what a crash leaves of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import reduce
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    Ask,
    Deny,
    Envelope,
    Hub,
    Reply,
    Request,
    ScriptedModel,
    State,
    Usage,
    calls,
    says,
    tool,
)
from antiphon.core.codec import from_json, to_json
from antiphon.core.envelope import Json, add_seconds
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    CallFailed,
    CallFinished,
    CallStarted,
    FailureClass,
)
from antiphon.core.guard import ALLOW, Permission
from antiphon.core.protection_events import (
    EV_BREAKER_CHANGED,
    EV_COST_EXCEEDED,
    EV_LOOP_DETECTED,
    CostExceeded,
    LoopDetected,
)
from antiphon.guards.breaker import CircuitBreaker
from antiphon.guards.breaker_memory import BreakerMemory
from antiphon.guards.cost_velocity import CostVelocityMonitor
from antiphon.guards.loops import LoopDetector
from antiphon.testing import ManualClock, check_guard
from tests.guards.breaker_desk import changes_in, data_in
from tests.guards.breaker_play import BEGAN
from tests.support.waiting import soon

STATE = State(channel_id="c")
TURN = "6/bob"


class Channel:
    """A breaker over a log that is written by hand, each envelope with what the breaker notices of it."""

    def __init__(self, guard: CircuitBreaker | None = None) -> None:
        self.guard = guard or CircuitBreaker()
        self.memory, self.at = BreakerMemory(), BEGAN
        self.log: list[Envelope] = []
        self.index = 0

    def record(self, event_type: str, data: Json) -> list[Json]:
        """Record this, and what follows from it. Returns the changes of breakers."""
        envelope = self._stamped(event_type, data)
        self.log.append(envelope)
        if event_type in self.guard.hears:
            self.memory = self.guard.evolve(self.memory, envelope)
        facts = self.guard.notice(self.memory, STATE, envelope) if event_type in self.guard.hears else ()
        found: list[Json] = []
        for fact in facts:
            found += [fact.data, *self.record(fact.event_type, fact.data)]
        return found

    def call(
        self, failure: FailureClass = "", *, name: str = "search", agent: str = "", denied: str = ""
    ) -> list[Json]:
        """A call that leaves and ends."""
        index = self.start(name=name, agent=agent)
        return self.end(index, failure, denied=denied)

    def start(
        self, *, name: str = "search", agent: str = "", model: str = "", until: str = "", approved: str = ""
    ) -> int:
        self.index += 1
        self.record(EV_CALL_STARTED, data_of(self._started(self.index, name, agent, model, until, approved)))
        return self.index

    def end(self, index: int, failure: FailureClass = "", *, denied: str = "", cost: int = 0) -> list[Json]:
        if failure or denied:
            failed = CallFailed(TURN, index, "no", failure=failure, denied=denied)
            return self.record(EV_CALL_FAILED, data_of(failed))
        return self.record(EV_CALL_FINISHED, data_of(CallFinished(TURN, index, {}, cost=cost)))

    def permit(self, *, name: str = "search", agent: str = "", model: str = "", approved: str = "") -> Permission:
        started = self._started(self.index + 1, name, agent, model, "", approved)
        return self.guard.permit(self.memory, STATE, self._stamped(EV_CALL_STARTED, data_of(started)))

    def wait(self, seconds: float) -> list[Json]:
        """Let time pass, and record what falls due."""
        self.at = add_seconds(self.at, seconds)
        due = self.guard.due(self.memory, STATE)
        if due is None or due.at > self.at:
            return []
        draft = due.make_draft()
        return [draft.event_data, *self.record(draft.event_type, draft.event_data)]

    def folded(self) -> BreakerMemory:
        """The memory that the log alone gives."""
        heard = [envelope for envelope in self.log if envelope.event_type in self.guard.hears]
        return reduce(CircuitBreaker(transport=99).evolve, heard, BreakerMemory())

    def status(self, scope: str) -> str:
        return self.memory.breaker(scope).status

    def _started(self, index: int, name: str, agent: str, model: str, until: str, approved: str) -> CallStarted:
        args: Json | None = None if model else {"q": index}
        name = "model" if model else name
        return CallStarted(TURN, index, name, "d", args, agent=agent, model=model, until=until, approved=approved)

    def _stamped(self, event_type: str, data: Json) -> Envelope:
        number = len(self.log) + 1
        return Envelope(f"id-{number}", "c", "hub", None, event_type, data, created_at=self.at, sequence=number)


def targets(changes: Sequence[Json]) -> list[tuple[object, object]]:
    return [(each["scope"], each["target"]) for each in changes]


def test_five_failures_of_a_tool_close_it_to_everybody() -> None:
    channel = Channel()
    for failure in ("error", "timeout", "transport", "error"):
        assert channel.call(failure, agent=f"{failure}-agent") == []  # type: ignore[arg-type]
    assert targets(channel.call("error")) == [("tool:search", "open")]
    denial = channel.permit(agent="another")
    assert isinstance(denial, Deny)
    assert (denial.reason, denial.final) == ("breaker_open", False)
    assert "tool:search is not called now, because calls failed; it may be tried again in" in denial.detail
    assert channel.permit(name="other") is ALLOW


def test_arguments_that_do_not_fit_twice_close_a_tool_to_their_agent_alone() -> None:
    channel = Channel()
    channel.call("schema", agent="ann")
    assert targets(channel.call("schema", agent="ann")) == [("tool:search@ann", "open")]
    assert isinstance(channel.permit(agent="ann"), Deny)
    assert channel.permit(agent="ben") is ALLOW
    assert channel.permit(name="other", agent="ann") is ALLOW


def test_results_that_break_a_rule_count_apart_from_calls_that_fail() -> None:
    channel = Channel()
    for failure in ("invariant", "error", "invariant", ""):
        assert channel.call(failure) == []  # type: ignore[arg-type]
    [change] = channel.call("invariant")
    assert (change["scope"], change["reason"], change["counts"]) == ("tool:search", "invariant", {"invariant": 3})


def test_what_a_guard_denies_is_no_failure() -> None:
    channel = Channel()
    for _ in range(10):
        assert channel.call(denied="loop") == []
        assert channel.call("cancelled") == []
    assert channel.memory.breakers.get("tool:search") is None or channel.status("tool:search") == "closed"


def test_a_call_that_was_cut_off_by_the_deadline_of_its_caller_is_no_failure() -> None:
    channel = Channel()
    for _ in range(10):
        assert channel.call("cancelled", denied="deadline") == []
    for number in range(5):
        assert bool(channel.call("timeout", denied="deadline")) == (number == 4)  # by the limit of the step itself


def test_one_call_tries_a_tool_and_a_late_success_of_before_changes_nothing() -> None:
    channel = Channel()
    late = channel.start()
    for _ in range(5):
        channel.call("error")
    channel.end(late)
    assert channel.status("tool:search") == "open"
    channel.wait(33)
    assert channel.permit() is ALLOW
    probe = channel.start()
    assert channel.status("tool:search") == "half_open"
    assert isinstance(channel.permit(), Deny)
    assert targets(channel.end(probe)) == [("tool:search", "closed")]
    assert channel.permit() is ALLOW
    assert channel.memory.breaker("tool:search").counts == {}


def test_a_probe_without_an_outcome_loses_its_lease() -> None:
    channel = Channel()
    for _ in range(5):
        channel.call("error")
    channel.wait(33)
    probe = channel.start()
    [change] = channel.wait(120)
    assert (change["target"], change["reason"], change["trips"]) == ("open", "lease_expired", 2)
    assert channel.end(probe) == []
    assert channel.status("tool:search") == "open"


@pytest.mark.parametrize("event_type", [EV_TURN_CLAIMED, EV_TURN_FAILED])
def test_a_probe_whose_process_died_or_whose_turn_was_cancelled_lets_the_next_call_try(event_type: str) -> None:
    channel = Channel()
    for _ in range(5):
        channel.call("error")
    channel.wait(33)
    channel.start()
    [change] = channel.record(event_type, {"turn": TURN, "speaker": "bob", "epoch": 2, "owner": "b", "reason": "x"})
    assert (change["target"], change["reason"], change["retry_at"]) == ("open", "probe_lost", channel.at)
    assert channel.permit() is ALLOW
    probe = channel.start()
    assert targets(channel.end(probe)) == [("tool:search", "closed")]


def test_a_breaker_folds_from_its_log_to_what_it_was_with_other_limits_too() -> None:
    channel = Channel()
    for failure in ("error", "", "error", "error", "error", "error", "error"):
        channel.call(failure)  # type: ignore[arg-type]
    channel.wait(33)
    channel.start()
    assert channel.folded() == channel.memory
    assert from_json(to_json(channel.memory), BreakerMemory) == channel.memory
    assert channel.status("tool:search") == "half_open"


def test_a_third_identical_call_closes_the_tool_to_its_agent() -> None:
    channel = Channel()
    found = LoopDetected("tool", "key", "correct", "bob", "search", 3, 5, 3)
    assert targets(channel.record(EV_LOOP_DETECTED, data_of(found))) == [("tool:search@bob", "open")]
    assert isinstance(channel.permit(), Deny)
    assert channel.permit(agent="ann") is ALLOW
    text = LoopDetected("text", "key", "correct", "bob", "", 3, 5, 3)
    assert channel.record(EV_LOOP_DETECTED, data_of(text)) == []


def test_too_much_spend_keeps_models_from_being_asked_until_it_has_fallen_below_four_fifths() -> None:
    channel = Channel()
    for _ in range(11):
        channel.end(channel.start(model="far"), cost=100)
        channel.wait(1)
    over = CostExceeded("run", 60, "micro", 1100, 0, 1000, "deny")
    [change] = channel.record(EV_COST_EXCEEDED, data_of(over))
    assert (change["scope"], change["rolling_cost"], change["ceiling"]) == ("cost:run", 1100, 1000)
    assert isinstance(channel.permit(model="far"), Deny)
    assert channel.permit() is ALLOW  # a tool
    channel.wait(33)
    assert isinstance(channel.permit(model="far"), Deny)  # cooled down, and 1,100 of 1,000 all the same
    channel.start(model="far")
    assert channel.status("cost:run") == "open"
    channel.wait(60 - 33 - 11 + 2)
    assert isinstance(channel.permit(model="far"), Deny)  # 900
    channel.wait(2)
    assert channel.permit(model="far") is ALLOW  # 700
    probe = channel.start(model="far")
    assert targets(channel.end(probe, cost=1)) == [("cost:run", "closed")]


def test_spend_of_other_channels_counts_until_its_window_has_passed() -> None:
    channel = Channel()
    over = CostExceeded("tenant", 60, "micro", 900, 200, 1000, "deny")
    channel.record(EV_COST_EXCEEDED, data_of(over))
    channel.wait(59)
    assert isinstance(channel.permit(model="far"), Deny)
    channel.wait(2)
    assert channel.permit(model="far") is ALLOW


def test_the_spend_of_one_agent_keeps_no_other_from_its_model() -> None:
    channel = Channel()
    for _ in range(11):
        channel.end(channel.start(model="far", agent="ann"), cost=100)
    over = CostExceeded("agent:ann", 60, "micro", 1100, 0, 1000, "deny")
    assert targets(channel.record(EV_COST_EXCEEDED, data_of(over))) == [("cost:agent:ann", "open")]
    assert isinstance(channel.permit(model="far", agent="ann"), Deny)
    assert channel.permit(model="far", agent="ben") is ALLOW
    for _ in range(61):
        channel.wait(1)
        channel.end(channel.start(model="far", agent="ben"), cost=100)
    assert channel.permit(model="far", agent="ann") is ALLOW  # what others spend does not keep it open


def test_a_person_is_asked_about_a_tool_where_that_is_wanted() -> None:
    channel = Channel(CircuitBreaker(fallback="escalate"))
    for _ in range(5):
        channel.call("error")
    asked = channel.permit()
    assert isinstance(asked, Ask)
    assert "because calls failed" in asked.why
    assert channel.permit(approved="dana") is ALLOW
    channel.start(approved="dana")
    assert channel.status("tool:search") == "half_open"
    assert isinstance(channel.permit(approved="dana"), Deny)  # one is being tried


def test_a_tool_that_was_tried_in_vain_again_and_again_ends_the_turn() -> None:
    channel = Channel()
    for _ in range(5):
        channel.call("error")
    for _ in range(5):
        channel.wait(301)
        channel.call("error")
    assert channel.status("tool:search") == "stopped"
    denial = channel.permit()
    assert isinstance(denial, Deny)
    assert denial.final


def test_memory_is_bounded() -> None:
    channel = Channel()
    for number in range(400):
        channel.call("error", name=f"tool{number}")
        channel.start(name="never ends")
        channel.start(model=f"model{number % 3}")
    assert len(channel.memory.breakers) <= 256
    assert len(channel.memory.calls) <= 256
    check_guard(CircuitBreaker())


async def test_models_are_not_asked_while_too_much_was_spent() -> None:
    clock, asked = ManualClock(), []

    async def far(request: Request) -> Reply:
        asked.append(clock.now())
        return Reply("here", usage=Usage(input_tokens=10, output_tokens=10, cost=400_000))

    guards = [CostVelocityMonitor(dollars_per_minute="1", dollars_per_hour="1000"), CircuitBreaker()]
    async with Hub.open("memory:", clock=clock) as desk:
        bob = Agent("bob", model=far, guards=guards)

        async def ask() -> str:
            reply = await soon(bob.invoke("Go", hub=desk, thread_id="t"))
            return reply.stopped or reply.text

        assert await ask() == "here"
        await clock.advance(20)
        assert [await ask() for _ in range(3)] == ["here", "here", "denied:budget"]
        channel_id = (await bob.channel("t", desk)).channel_id
        assert await changes_in(desk, channel_id) == [("cost:run", "closed", "open")]
        await clock.advance(
            41
        )  # $0.80 of the last minute are left: within the ceiling, and not below four fifths of it
        assert await ask() == "denied:breaker_open"
        await clock.advance(20)
        assert await ask() == "here"
        assert (await changes_in(desk, channel_id))[-1] == ("cost:run", "half_open", "closed")
        assert len(asked) == 4


async def test_an_open_tool_stays_open_in_the_next_process(tmp_path: Path) -> None:
    """The breaker folds from the log of its channel, on a real file."""
    clock, tried = ManualClock(), []

    @tool
    async def fetch(page: int) -> str:
        tried.append(page)
        raise ConnectionError("down")

    for turn in range(2):
        pages = [calls("fetch", {"page": page}) for page in range(4)]
        model = ScriptedModel([*pages, says("It is down.")])
        bob = Agent("bob", model=model, tools=[fetch], guards=[CircuitBreaker()])
        async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}", clock=clock) as desk:
            reply = await soon(bob.invoke(f"Turn {turn}", hub=desk, thread_id="t"))
            found = await changes_in(desk, reply.channel_id)
    assert tried == [0, 1, 2, 3, 0]
    assert found == [("tool:fetch", "closed", "open")]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def test_the_third_identical_call_is_blocked_and_closes_the_tool_in_one_commit(hub: Hub) -> None:
    found: list[str] = []

    @tool
    async def search(q: str) -> str:
        found.append(q)
        return f"about {q}"

    same = calls("search", {"q": "rain"})
    model = ScriptedModel([same, same, same, calls("search", {"q": "snow"}), says("Enough.")])
    bob = Agent("bob", model=model, tools=[search], guards=[LoopDetector(), CircuitBreaker()])
    reply = await soon(bob.invoke("Go", hub=hub))
    assert (reply.text, found) == ("Enough.", ["rain", "rain"])
    denied = [str(each["denied"]) for each in await data_in(hub, reply.channel_id, EV_CALL_FAILED)]
    assert denied == ["loop", "breaker_open"]
    log = await hub.log(reply.channel_id)
    [trip] = [each for each in log if each.event_type == EV_LOOP_DETECTED]
    [change] = [each for each in log if each.event_type == EV_BREAKER_CHANGED]
    assert (change.event_data["scope"], change.event_data["target"]) == ("tool:search@bob", "open")
    assert (change.created_at, change.causation_id) == (trip.created_at, trip.envelope_id)


async def test_a_tool_that_fails_is_not_called_a_sixth_time(hub: Hub) -> None:
    tried: list[int] = []

    @tool
    async def fetch(page: int) -> str:
        tried.append(page)
        raise ConnectionError("down")

    async def model(request: Request) -> Reply:
        page = sum(role == "tool" for role, _ in request.messages)
        return says("It is down.") if page == 8 else calls("fetch", {"page": page})

    bob = Agent("bob", model=model, tools=[fetch], guards=[CircuitBreaker()])
    reply = await soon(bob.invoke("Go", hub=hub))
    assert (reply.text, tried) == ("It is down.", [0, 1, 2, 3, 4])
    assert await changes_in(hub, reply.channel_id) == [("tool:fetch", "closed", "open")]


async def test_calls_that_leave_together_are_counted_together(hub: Hub) -> None:
    """Of eight calls at once after the cooldown, one tries."""
    clock, gate = ManualClock(), asyncio.Event()
    async with Hub.open("memory:", clock=clock) as desk:
        tried: list[int] = []

        @tool
        async def fetch(page: int) -> str:
            tried.append(page)
            if page < 5:
                raise ConnectionError("down")
            await gate.wait()
            return "up"

        first = [calls("fetch", {"page": page}) for page in range(5)]
        model = ScriptedModel(
            [first, says("Down."), [calls("fetch", {"page": page}) for page in range(5, 13)], says("Up.")]
        )
        bob = Agent("bob", model=model, tools=[fetch], guards=[CircuitBreaker()])
        await soon(bob.invoke("Go", hub=desk, thread_id="t"))
        await clock.advance(33)
        gate.set()
        reply = await soon(bob.invoke("Again", hub=desk, thread_id="t"))
        assert (reply.text, tried) == ("Up.", [0, 1, 2, 3, 4, 5])
        assert [target for _, _, target in await changes_in(desk, reply.channel_id)] == ["open", "half_open", "closed"]
