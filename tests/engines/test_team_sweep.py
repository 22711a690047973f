"""A crash at every write of a team's turns and of its tasks: the same story in the end, and nothing done twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from antiphon import Agent, AgentReply, Envelope, Hub, calls, delegate, says
from antiphon.agents import turn_channel as giving
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_TASK_FAILED
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_SUSPENDED
from antiphon.core.turns import Journal, journal_of
from antiphon.engines import journal
from antiphon.hub.clock import TimeOrderedIds
from antiphon.runtime import task_reports
from antiphon.runtime.agent import channel_of
from antiphon.store.protocol import Store
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.crashing_teams import CHECK, CHECKER, LEAD, LOOKS, PAYS, STORIES, Story, World, giving_time
from tests.engines.crashing_workflows import until_death
from tests.engines.test_sweep import AFTER, BEFORE, Died
from tests.engines.test_workflow_sweep import Fatal, InFile, InMemory
from tests.support.inspection import logs_from
from tests.support.waiting import let_others_run, soon

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
OUTCOMES = (EV_CALL_FINISHED, EV_CALL_FAILED)
LONG = 40
"""From how many writes on only every other is tried, in an ordinary run."""
TASK = "ag2.task."
ENDS = ("completed", "failed", "expired")


@dataclass
class Told:
    """What there is when everything has been answered."""

    replies: list[AgentReply]
    active: dict[str, str]
    logs: list[list[Envelope]]
    """The log of the thread, then those of the tasks, each before those that it gives itself."""

    @property
    def digests(self) -> list[str]:
        return [canonical_digest(log) for log in self.logs]


@dataclass
class Run:
    """How a story went, in as many lives as it took."""

    told: Told
    world: World
    lives: int
    appends: int


async def life(story: Story, world: World, store: Store, clock: ManualClock) -> Told:
    """Say everything to the agent, whatever was said and answered before."""
    hub, agent = await Hub.over(store, clock=clock), world.agents[LEAD]
    replies = [
        await agent.invoke(text, thread_id="t", hub=hub, message_id=f"m{number}")
        for number, text in enumerate(story.says)
    ]
    channel = await channel_of(hub, agent, "t")
    logs = await logs_from(hub, channel.channel_id)
    active = channel.state.active
    await hub.close()
    return Told(replies, active, logs)


Lives = Callable[[Story, World, Store, ManualClock], Coroutine[None, None, Told]]


async def run(
    story: Story, *fatal: Fatal, keyless: bool = False, path: Path | None = None, living: Lives = life
) -> Run:
    """Have a story told, in memory or in a file. Each of these ends a life, the first one the first."""
    clock = ManualClock()
    world = World(story.script, clock, keyless=keyless)
    story.agent(world)
    place = InMemory(clock) if path is None else InFile(path, clock)
    for number, death in enumerate([*fatal, None], 1):
        store = await place.open(death)
        try:
            told = await soon(until_death(living(story, world, store, clock), store))
        except Died:
            continue
        return Run(told, world, number, store.appends)
    raise AssertionError("it did not survive")


def audit(found: Run, story: Story) -> None:
    """Everything was answered as it should be, no finished call was made again, none that is not in a log."""
    told = found.told
    assert [reply.text for reply in told.replies] == list(story.answers)
    assert told.active == ({LEAD: story.active} if story.active else {})
    left: Counter[str] = Counter()
    for log in told.logs:
        assert [envelope.sequence for envelope in log] == list(range(1, len(log) + 1))
        left += audit_calls(log, found.lives)
    for name, count in found.world.asked.items():
        assert count <= left[name], f"{name} was asked {count} times, and {left[name]} are in the log"
    assert list(found.world.ledger.values()) == [("7", 100)] * story.paid
    audit_tasks(told.logs, story)


def audit_calls(log: Sequence[Envelope], lives: int) -> Counter[str]:
    """How often each call has left, by who made it. What was in flight when its channel ended has no outcome."""
    starts: Counter[tuple[object, object]] = Counter()
    left: Counter[str] = Counter()
    done: set[tuple[object, object]] = set()
    for envelope in log:
        data = envelope.event_data
        call = data.get("turn"), data.get("index")
        if envelope.event_type == EV_CALL_STARTED:
            assert call not in done, f"call {call} had an outcome, and was made again"
            starts[call] += 1
            who = str(data.get("agent") or call[0]).rpartition("/")[2]
            left["summary" if data["name"] == "summary" else f"{who} {data['name']}"] += 1
        elif envelope.event_type in OUTCOMES:
            assert call not in done, f"call {call} has two outcomes"
            done.add(call)
    assert {name for name in starts if name not in done} <= ({max(starts)} if ended_early(log) else set())
    assert max(starts.values()) <= lives
    return left


def ended_early(log: Sequence[Envelope]) -> bool:
    return log[-1].event_data.get("reason") in ("expired", "timed_out")


def audit_tasks(logs: Sequence[Sequence[Envelope]], story: Story) -> None:
    """Every task is told of once: that it was given, each of its calls, and how it ended."""
    told: Counter[tuple[str, str]] = Counter()
    ends: dict[str, str] = {}
    for envelope in (envelope for log in logs for envelope in log if envelope.event_type.startswith(TASK)):
        what, task = envelope.event_type.removeprefix(TASK), str(envelope.event_data["task"])
        told[what, task] += 1
        ends[task] = what if what in ENDS else ends.get(task, "")
    assert tuple(ends.values()) == story.tasks
    for log in logs[1:]:
        task = log[0].channel_id
        once = [told[what, task] for what in ("started", *ENDS)]
        assert sum(once) == 2, f"of a task is told {once}"
        assert once[0] == 1, f"a task was begun {once[0]} times"
        assert told["progress", task] == len(tools_in(log))


def tools_in(log: Sequence[Envelope]) -> set[object]:
    """The positions of the calls of tools."""
    started = (envelope.event_data for envelope in log if envelope.event_type == EV_CALL_STARTED)
    return {data["index"] for data in started if data.get("args") is not None}


@pytest.mark.parametrize("name", STORIES)
async def test_a_story_that_nobody_interrupts(name: str) -> None:
    """It comes to what it should, every call is made once, and it is the same each time."""
    story = STORIES[name]
    found = await run(story)
    audit(found, story)
    again = await run(story)
    assert (again.told.digests, again.told.replies) == (found.told.digests, found.told.replies)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("name", STORIES)
async def test_a_crash_at_every_write(name: str, when: str) -> None:
    story = STORIES[name]
    whole = await run(story)
    first, each = (1, 1) if PROOF or whole.appends < LONG else (1 + (when == AFTER), 2)
    for place in range(first, whole.appends + 1, each):
        found = await run(story, (place, when))
        assert found.lives == 2, f"it did not die at append {place}"
        audit(found, story)
        assert found.told.digests == whole.told.digests, f"another story after a crash {when} append {place}"
        assert found.told.replies == whole.told.replies


@pytest.mark.parametrize("name", ["three levels", "a task", "tasks side by side"])
async def test_whoever_goes_on_dies_as_well(name: str) -> None:
    """The next life ends too, a few writes later; the third brings it to its end."""
    story = STORIES[name]
    whole = await run(story)
    places = range(1, whole.appends + 1) if PROOF else range(1, whole.appends + 1, 4)
    deaths, runs = 0, 0
    for place in places:
        for later in range(1, 16, 3) if PROOF else [1 + place % 15]:
            found = await run(story, (place, BEFORE), (later, AFTER))
            audit(found, story)
            assert found.told.digests == whole.told.digests, f"another story after crashes at {place}, {later} later"
            deaths, runs = deaths + found.lives - 1, runs + 1
    assert deaths > 1.5 * runs


@pytest.mark.parametrize("name", STORIES if PROOF else ["a task"])
async def test_a_crash_at_every_write_to_a_file(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    whole = await run(story, path=tmp_path / "whole.db")
    audit(whole, story)
    assert whole.told.digests == (await run(story)).told.digests, "a file tells what memory does"
    places = range(1, whole.appends + 1) if PROOF else range(3, whole.appends, 8)
    deaths = 0
    for place, when in product(places, [BEFORE, AFTER]):
        found = await run(story, (place, when), path=tmp_path / f"{when}{place}.db")
        audit(found, story)
        assert found.told.digests == whole.told.digests, f"another story after a crash {when} append {place}"
        deaths += found.lives - 1
    assert deaths >= 0.9 * 2 * len(places), "tasks that are done at once write in fewer batches now and then"


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_while_a_task_is_given_up(when: str) -> None:
    """Its tool runs out of time. In which words the model is told depends on the crash, and nothing else does."""
    whole = await run(HURRIED)
    for place in range(1, whole.appends + 1):
        found = await run(HURRIED, (place, when))
        assert found.lives == 2, f"it did not die at append {place}"
        audit(found, HURRIED)
        assert reasons(found) == reasons(whole) == ["timed_out", "timed_out"]


def reasons(found: Run) -> list[object]:
    """Why a task has failed, as the channel it was given from says, and its own."""
    parent, child = found.told.logs
    [failed] = [each.event_data["reason"] for each in parent if each.event_type == EV_TASK_FAILED]
    return [failed, child[-1].event_data["reason"]]


HURRIED = Story(
    lambda world: world.agent(LEAD, world.hurry(world.agent(CHECKER))),
    ("Refund order 7.",),
    {
        "Refund order 7.": ((LEAD, calls("hurry", {"text": "Check it."})), (LEAD, PAYS), (LEAD, says("Never mind."))),
        "Check it.": ((CHECKER, LOOKS), (CHECKER, calls("dawdle"))),
    },
    ("Never mind.",),
    tasks=("failed",),
)


async def cancelling(story: Story, world: World, store: Store, clock: ManualClock) -> Told:
    """Say something, and cancel the turn while its task takes for ever. The checker is there too."""
    hub = await Hub.over(store, clock=clock)
    await hub.register(world.agents[CHECKER])
    channel = await channel_of(hub, world.agents[LEAD], "t")
    await channel.send(story.says[0], message_id="m0")
    while channel.state.owed and len(await told_of_task(hub, channel.channel_id)) < 3:
        await let_others_run(1)
    await channel.cancel()
    while len(logs := await logs_from(hub, channel.channel_id)) < 2 or logs[1][-1].event_type != EV_CHANNEL_CLOSED:
        await let_others_run(1)
    await let_others_run(20)  # for what is told of it
    logs, active = await logs_from(hub, channel.channel_id), channel.state.active
    await hub.close()
    return Told([], active, logs)


async def told_of_task(hub: Hub, channel_id: str) -> list[Envelope]:
    return [envelope for envelope in await hub.log(channel_id) if envelope.event_type.startswith(TASK)]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_while_a_turn_is_cancelled(when: str) -> None:
    """A task that nobody waits for any more is stopped and reported, also by the next life, and does nothing more."""
    whole = await run(CANCELLED, living=cancelling)
    assert reasons(whole) == ["cancelled", "cancelled"]
    audit_tasks(whole.told.logs, CANCELLED)
    for place in range(1, whole.appends + 1):
        found = await run(CANCELLED, (place, when), living=cancelling)
        assert found.lives == 2, f"it did not die at append {place}"
        same = [one == other for one, other in zip(found.told.digests, whole.told.digests, strict=True)]
        assert same == [True, True], f"another story after a crash {when} append {place}"
        assert found.world.asked[f"{CHECKER} dawdle"] <= 2


CANCELLED = Story(
    giving_time,
    ("Refund order 7.",),
    {
        "Refund order 7.": ((LEAD, CHECK),),
        "Check it.": ((CHECKER, LOOKS), (CHECKER, calls("dawdle", {"seconds": 0}))),
    },
    (),
    tasks=("failed",),
)


# Lives that are too short


@pytest.mark.parametrize("writes", [12, 15])
async def test_a_task_that_outlives_many(writes: int) -> None:
    """Every life ends after a few writes. As long as a task goes on, whoever waits for it is not given up."""
    story = STORIES["a task"]
    whole = await run(story)
    found = await run(story, *[(writes, AFTER)] * 40)
    audit(found, story)
    assert found.told.digests == whole.told.digests
    assert found.lives > whole.appends / writes


async def test_a_task_that_ends_its_process_is_given_up_alone() -> None:
    """No life is long enough for a call of the task to return. Whoever waits for it is told, and goes on."""
    found = await run(STUCK, *[(4, AFTER)] * 100)
    audit_tasks(found.told.logs, STUCK)
    assert [reply.text for reply in found.told.replies] == ["Never mind."]
    assert [each.event_data["crashes"] for each in found.told.logs[1] if each.event_type == EV_TURN_SUSPENDED] == [10]
    [reason] = [each.event_data["reason"] for each in found.told.logs[0] if each.event_type == EV_TASK_FAILED]
    assert reason == "suspended"
    assert found.world.asked[f"{CHECKER} model"] == 0


def giving_one(world: World) -> Agent:
    return world.agent(LEAD, delegate(world.agent(CHECKER)))


STUCK = Story(
    giving_one,
    ("Refund order 7.",),
    {"Refund order 7.": ((LEAD, CHECK), (LEAD, says("Never mind."))), "Check it.": ((CHECKER, says("Fine.")),)},
    ("Never mind.",),
    paid=0,
    tasks=("failed",),
)


# Controls: what the sweep finds when something is wrong


async def complaint(name: str, when: str, *, keyless: bool = False) -> str:
    """What is first found wrong in a sweep."""
    story = STORIES[name]
    whole = await run(story)
    for place in range(1, whole.appends + 1):
        found = await run(story, (place, when), keyless=keyless)
        try:
            audit(found, story)
        except AssertionError as error:
            return str(error)
        if found.told.digests != whole.told.digests:
            return "another story"
    return ""


async def test_a_payment_without_a_key_is_found() -> None:
    assert "('7', 100), ('7', 100)" in await complaint("three levels", BEFORE, keyless=True)


@pytest.mark.parametrize(
    ("name", "forgets"),
    [
        ("three levels", "model"),
        ("three levels", "transfer_to_"),
        ("three levels", "request_help"),
        ("an async step", "step:"),
        ("a summary", "summary"),
        ("a task", "delegate_to_"),
    ],
)
async def test_an_engine_that_forgets_some_calls_is_found(
    name: str, forgets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(entries: Sequence[Envelope], turn_id: str) -> Journal:
        journal = journal_of(entries, turn_id)
        return {
            index: entry
            for index, entry in journal.items()
            if entry.started and not entry.started.name.startswith(forgets)
        }

    monkeypatch.setattr(journal, "journal_of", forgetful)
    assert "had an outcome, and was made again" in await complaint(name, AFTER)


async def test_warnings_of_every_attempt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "warnings_in", lambda entries, turn_id: set())
    assert await complaint("one that only talks", AFTER) == "another story"


def never_the_same(*parts: str) -> str:
    return TimeOrderedIds()()


async def test_a_task_that_does_not_follow_from_its_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "derived_id", never_the_same)
    assert "'completed')" in await complaint("a task", AFTER)


async def test_reports_that_do_not_follow_from_their_task_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_reports, "derived_id", never_the_same)
    assert "of a task is told [2, 1, 0, 0]" in await complaint("a task", AFTER)
