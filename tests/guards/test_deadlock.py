"""The deadlock monitor: what trips it, what never does, and who gets the turn then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Answered,
    DeadlockMonitor,
    FromSpeaker,
    Hub,
    Reply,
    Request,
    RulesInvalid,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.core.codec import from_json, to_json
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.core.step import pending_turns
from antiphon.core.turns import TurnClaim
from antiphon.testing import ManualClock, check_guard
from tests.support.envelopes import fact
from tests.support.pure_channel import PureChannel
from tests.support.waiting import soon

DEADLOCK = "antiphon.flow.deadlock"
PEOPLE = ("user", "ada:agent", "bob:agent", "cid:agent", "dee:agent", "boss:agent")
Words = Sequence[str]


class Team(PureChannel):
    """A workflow in which agents speak as they are told, and hand over or are routed by rules."""

    __test__ = False

    def speaks(self, text: str, to: str | None = None, **context: object) -> str | None:
        """The agent that has the turn says this, perhaps with a handoff. Returns who has the turn then."""
        turn = pending_turns(self.state)[0]
        assert self.claims(turn) == ["turn.claimed"]
        data: dict[str, object] = {"body": text, "context_updates": {"set": context, "delete": []}}
        if to is not None:
            data["routing"] = {"target": to}
        packet = replace(fact(turn.speaker, "ag2.packet", data), causation_id=turn.cause)
        self.ends(TurnClaim(turn.turn_id, turn.epoch + 1), packet)
        return self.state.expected_next_speaker

    def found(self) -> list[tuple[object, object, object]]:
        """What the monitor has recorded: kind, occurrences, action."""
        data = [each.event_data for each in self.log if each.event_type == DEADLOCK]
        return [(each["kind"], each["occurrences"], each["action"]) for each in data]


def handing(*people: str, tier: str | None = None, **fields: object) -> Team:
    """Agents that hand over to each other; ada begins."""
    graph = TransitionGraph("user", [], AgentTarget("ada"))
    guards = [{"name": "deadlock", **fields}, {"name": "hop_limit", "most": 500}]
    knobs: dict[str, object] = {"graph": graph.to_dict(), "guards": guards, **({} if tier is None else {"tier": tier})}
    channel = Team("workflow", *(people or PEOPLE), **knobs)
    channel.says("user", "Solve this.")
    return channel


def routed_by_rules(first: str, then: str, *people: str, **fields: object) -> Team:
    """Two agents in a loop that rules make."""
    rules = [Transition(FromSpeaker(first), AgentTarget(then)), Transition(FromSpeaker(then), AgentTarget(first))]
    graph = TransitionGraph("user", rules, AgentTarget(first))
    knobs = {"graph": graph.to_dict(), "guards": [{"name": "deadlock", **fields}]}
    channel = Team("workflow", *(people or PEOPLE), **knobs)
    channel.says("user", "Write it.")
    return channel


def round_of(channel: Team, names: Words, text: str = "It is your part.") -> None:
    for place, name in enumerate(names):
        assert channel.state.expected_next_speaker == name
        channel.speaks(f"{text} ({name})", names[(place + 1) % len(names)])


# Cycles of handoffs


@pytest.mark.parametrize("names", [("ada", "bob"), ("ada", "bob", "cid")])
def test_the_second_equal_round_is_a_warning_and_the_third_a_deadlock(names: Words) -> None:
    channel = handing()
    round_of(channel, names)
    assert channel.found() == []
    round_of(channel, names)
    assert channel.found() == [("oscillation", 2, "warn")]
    round_of(channel, names)
    assert channel.found() == [("oscillation", 2, "warn"), ("oscillation", 3, "trip")]
    assert (channel.state.status, channel.state.close_reason) == ("closed", "deadlock")
    told = [each.event_data for each in channel.log if each.event_type == DEADLOCK][-1]
    assert sorted(told["cycle"]) == sorted(names)  # type: ignore[call-overload]


def test_case_width_and_space_make_no_progress() -> None:
    channel = handing()
    for text in ("It is YOUR part.", "it  is your part. ", "\uff29t is your part."):
        for name, other in (("ada", "bob"), ("bob", "ada")):
            channel.speaks(f"{text} ({name})", other)
    assert channel.state.close_reason == "deadlock"


def test_an_ordinary_dialogue_goes_on_as_long_as_it_says_anything_new() -> None:
    """A to B to A is what every dialogue does."""
    channel = handing()
    for number in range(100):
        channel.speaks(f"This is question {number}.", "bob")
        channel.speaks("I see.", "ada")
    assert (channel.found(), channel.state.status) == ([], "active")


def test_a_context_variable_that_changes_is_progress() -> None:
    channel = handing()
    for number in range(20):
        channel.speaks("It is your part.", "bob", step=number)
        channel.speaks("It is your part.", "ada")
    assert channel.found() == []


def test_a_context_that_returns_to_what_it_was_is_no_progress() -> None:
    channel = handing()
    for number in range(5):
        if channel.state.ended:
            break
        channel.speaks("It is your part.", "bob", step=number % 2)
        channel.speaks("It is your part.", "ada")
    assert [occurrences for _, occurrences, _ in channel.found()] == [2, 2, 3]


def test_tools_that_are_asked_for_something_else_are_progress() -> None:
    channel = handing()
    for number in range(12):
        turn = pending_turns(channel.state)[0]
        claim = TurnClaim(turn.turn_id, turn.epoch + 1)
        channel.claims(turn)
        data = {"turn": turn.turn_id, "index": 0, "name": "look", "digest": f"d{number}", "args": {"page": number}}
        channel.writes(claim, fact("hub", EV_CALL_STARTED, data))
        routing = {"target": "bob" if turn.speaker == "ada" else "ada"}
        packet = fact(turn.speaker, "ag2.packet", {"body": "", "routing": routing})
        channel.ends(claim, replace(packet, causation_id=turn.cause))
    assert channel.found() == []


def test_a_person_begins_it_anew() -> None:
    channel = handing(*PEOPLE, "hugo:human")
    for _ in range(5):
        round_of(channel, ("ada", "bob"))
        round_of(channel, ("ada", "bob"))
        assert channel.state.status == "active"
        channel.speaks("Well, what is it?", "hugo")
        channel.says("hugo", "Go on.")
        assert channel.state.expected_next_speaker == "ada"
    assert {action for _, _, action in channel.found()} == {"warn"}


# Loops that rules make


def test_a_reviewer_and_a_coder_are_not_cut_while_each_draft_is_new() -> None:
    channel = routed_by_rules("ada", "bob")
    for number in range(50):
        channel.speaks(f"def solve(): return {number}")
        channel.speaks("Please fix the tests.")
    assert (channel.found(), channel.state.status) == ([], "active")


@pytest.mark.parametrize(("most", "rounds"), [(1, 2), (2, 2), (3, 3), (5, 5)])
def test_a_loop_of_rules_without_anything_new_ends_after_its_iterations(most: int, rounds: int) -> None:
    channel = routed_by_rules("ada", "bob", max_iterations=most)
    taken = 0
    while not channel.state.ended:
        channel.speaks("def solve(): return 1")
        channel.speaks("Please fix the tests.")
        taken += 1
    assert (taken, channel.state.close_reason) == (rounds, "deadlock")


# A lead and its workers


def led(workers: Words, answers: bool) -> Team:
    """A lead that gives each worker in turn the same order, in a round of more agents than a cycle has."""
    channel = handing()
    channel.speaks("I take it to the boss.", "boss")
    number = 0
    for _ in range(4):
        for worker, following in zip(workers, (*workers[1:], "boss"), strict=True):
            if channel.state.expected_next_speaker == "boss":
                channel.speaks("Compute the total of all invoices.", worker)
            if channel.state.ended:
                return channel
            number += 1
            channel.speaks(f"Result {number}" if answers else f"I cannot, says {worker}", following)
    return channel


def test_the_same_order_to_the_same_worker_is_a_deadlock_when_nothing_new_comes_back() -> None:
    channel = led(("ada", "bob", "cid", "dee"), answers=False)
    assert ("supervisor", 2, "warn") in channel.found()
    assert ("supervisor", 3, "trip") in channel.found()
    assert channel.state.close_reason == "deadlock"


def test_the_same_order_again_is_no_deadlock_while_workers_bring_something_new() -> None:
    channel = led(("ada", "bob", "cid", "dee"), answers=True)
    assert {action for _, _, action in channel.found()} == {"warn"}
    assert channel.state.status == "active"


# Who gets the turn then


def tripped(channel: Team, names: Words = ("ada", "bob")) -> Team:
    for _ in range(3):
        round_of(channel, names)
    return channel


def test_another_agent_gets_the_turn_once_then_the_channel_ends() -> None:
    channel = tripped(handing(reroute_to="dee"))
    assert channel.state.expected_next_speaker == "dee"
    told = [each.event_data for each in channel.log if each.event_type == DEADLOCK][-1]
    assert (told["action"], told["routed_to"]) == ("trip", "dee")
    channel.speaks("Try it once more.", "ada")
    tripped(channel)
    assert channel.state.close_reason == "deadlock"


@pytest.mark.parametrize("tier", ["interactive", "batch"])
def test_a_tier_reroutes_before_it_asks_a_person(tier: str) -> None:
    channel = tripped(handing(*PEOPLE, "hugo:human", tier=tier, reroute_to="dee"))
    assert channel.state.expected_next_speaker == "dee"
    channel.speaks("Try it once more.", "ada")
    assert tripped(channel).state.expected_next_speaker == "hugo"


def test_in_the_regulated_tier_a_person_decides_and_no_other_agent() -> None:
    channel = tripped(handing(*PEOPLE, "hugo:human", tier="regulated", reroute_to="dee"))
    assert channel.state.expected_next_speaker == "hugo"


def test_without_a_person_the_regulated_tier_ends_the_channel() -> None:
    assert tripped(handing(tier="regulated", reroute_to="dee")).state.close_reason == "deadlock"


def test_an_agent_of_the_cycle_does_not_take_over() -> None:
    assert tripped(handing(reroute_to="bob")).state.close_reason == "deadlock"


def test_two_agents_in_a_conversation_end_it() -> None:
    channel = PureChannel("conversation", "ada:agent", "bob:agent", guards=[{"name": "deadlock"}])
    channel.says("ada", "Hello, how are you?")
    while not channel.state.ended and channel.state.owed:
        channel.answers()
    assert channel.state.close_reason == "deadlock"


# Tasks


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def deadlocks(hub: Hub) -> list[tuple[object, object, object, object]]:
    logs = [await hub.log(row.channel_id) for row in await hub.channels()]
    found = [each.event_data for log in logs for each in log if each.event_type == DEADLOCK]
    return [(each["kind"], each["cycle"], each["occurrences"], each["action"]) for each in found]


def giving(name: str, worker: Agent, tasks: Words, **own: object) -> Agent:
    made = delegate(worker)

    async def model(request: Request) -> Reply:
        told = [item.text for item in request.exchange if isinstance(item, Answered)]
        return calls(made.name, {"task": tasks[len(told)]}) if len(told) < len(tasks) else says(" | ".join(told))

    return Agent(name, model=model, tools=[made], **own)


async def answering(request: Request) -> Reply:
    return says("I cannot.")


async def test_the_third_equal_task_for_the_same_agent_is_a_result_that_the_model_reads(hub: Hub) -> None:
    tasks = ["Find the key", "find the  KEY", "Find the key"]
    boss = giving("boss", Agent("bob", model=answering), tasks, guards=[DeadlockMonitor()])
    reply = await soon(boss.invoke("go", hub=hub))
    assert reply.text.startswith("I cannot. | I cannot. | Denied: loop: bob would have the same task 3 times")
    cycle = ["boss", "bob"]
    assert await deadlocks(hub) == [("supervisor", cycle, 2, "warn"), ("supervisor", cycle, 3, "trip")]


async def test_other_tasks_for_the_same_agent_are_given(hub: Hub) -> None:
    tasks = [f"Look into box {number}" for number in range(6)]
    boss = giving("boss", Agent("bob", model=answering), tasks, guards=[DeadlockMonitor()])
    assert (await soon(boss.invoke("go", hub=hub))).text == " | ".join(["I cannot."] * 6)
    assert await deadlocks(hub) == []


async def test_agents_that_wait_for_each_other_are_a_deadlock_at_once(hub: Hub) -> None:
    """Each gives the other the task that it was given: without the monitor they would, down to the depth limit."""
    agents: dict[str, Agent] = {}

    def passing(to: str) -> Tool:
        @tool(name=f"ask_{to}", timeout=None)
        async def ask(task: str, channel: TurnChannel) -> str:
            """Ask the other."""
            return (await channel.delegate(agents[to], task)).text

        return ask

    def asking(to: str) -> Agent:
        async def model(request: Request) -> Reply:
            told = [item.text for item in request.exchange if isinstance(item, Answered)]
            return says(told[0]) if told else calls(f"ask_{to}", {"task": "What is the total?"})

        return Agent("bob" if to == "ada" else "ada", model=model, tools=[passing(to)])

    agents |= {"ada": asking("bob"), "bob": asking("ada")}
    boss = giving("boss", agents["ada"], ["What is the total?"], guards=[DeadlockMonitor()])
    reply = await soon(boss.invoke("go", hub=hub))
    assert reply.text.startswith(
        "Denied: loop: ada and bob would wait for each other, and this task is being worked on"
    )
    assert await deadlocks(hub) == [("wait_for", ["ada", "bob", "ada"], 1, "trip")]


# The guard itself


async def test_the_agent_that_takes_over_must_be_in_the_channel(hub: Hub) -> None:
    for name in ("ada", "bob"):
        await hub.register(Agent(name, model=answering))
    ann = await hub.register("ann")
    knobs = {"graph": TransitionGraph.round_robin(["ann", "ada"]).to_dict(), "guards": [DeadlockMonitor("bbo")]}
    with pytest.raises(RulesInvalid, match="reroute_to of deadlock names 'bbo', who is not in the channel"):
        await ann.open(type="workflow", target=["ada", "bob"], knobs=knobs)


def test_it_is_checked() -> None:
    check_guard(DeadlockMonitor())
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(RulesInvalid, match="max_iterations of deadlock is"):
            DeadlockMonitor(max_iterations=wrong)  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="reroute_to of deadlock is 'the boss'; give the name of an agent"):
        DeadlockMonitor(reroute_to="the boss")


def test_it_remembers_in_a_snapshot_and_stays_small() -> None:
    channel = handing()
    for number in range(200):
        channel.speaks(f"This is question {number}.", "bob")
        channel.speaks("I see.", "ada")
    saved = to_json(channel.fold)
    assert restore_fold(channel.ruleset, from_json(saved, SavedFold)) == channel.fold
    assert len(saved) < 20_000
