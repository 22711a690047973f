"""Limits of a run: handoffs, the depth of tasks, tasks, and turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    ContextEquals,
    DepthLimit,
    FromSpeaker,
    Handoff,
    HopLimit,
    Hub,
    Reply,
    Request,
    RoundRobinTarget,
    RulesInvalid,
    ScriptedModel,
    SpawnLimit,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnFailed,
    TurnLimit,
    UsageError,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.core.codec import from_json, to_json
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.core.step import step
from antiphon.guards.named_guards import guards_of
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing import ManualClock, check_guard
from tests.support.envelopes import at, fact
from tests.support.given_tasks import Kept, asking, echo, giver, results, tasks, waiting
from tests.support.inspection import fold_of
from tests.support.pure_channel import PureChannel
from tests.support.waiting import soon

LIMIT = "antiphon.flow.limit"
CHARGED = "antiphon.run.charged"
Told = dict[str, object]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def reached(hub: Hub) -> list[tuple[object, object, object]]:
    """What limits were reached, in all channels."""
    logs = [await hub.log(row.channel_id) for row in await hub.channels()]
    found = [each.event_data for log in logs for each in log if each.event_type == LIMIT]
    return [(each["kind"], each["limit"], each["count"]) for each in found]


# Depth


def chain(length: int, **own: object) -> Agent:
    """Agents each of which gives a task to the next; the first has these guards."""
    agent = Agent("a0", model=echo)
    for number in range(1, length):
        agent = giver(agent, name=f"a{number}")
    made = delegate(agent)
    return Agent(f"a{length}", model=asking(calls(made.name, {"task": "look"})), tools=[made], **own)


@pytest.mark.parametrize(("most", "length"), [(0, 0), (1, 1), (5, 5), (8, 8), (9, 9)])
async def test_tasks_stand_inside_each_other_as_deep_as_the_guard_allows(hub: Hub, most: int, length: int) -> None:
    root = chain(length, guards=[DepthLimit(most=most)]) if length else Agent("a0", model=echo)
    await soon(root.invoke("go", hub=hub))
    assert await tasks(hub) == [("closed", "answered")] * length
    assert await reached(hub) == []


@pytest.mark.parametrize("most", [0, 1, 5, 8])
async def test_a_task_one_deeper_is_a_result_that_the_model_reads(hub: Hub, most: int) -> None:
    reply = await soon(chain(most + 1, guards=[DepthLimit(most=most)]).invoke("go", hub=hub))
    assert reply.text.startswith("Denied: depth_limit: ")
    assert await tasks(hub) == [("closed", "answered")] * most
    assert await reached(hub) == [("depth", most, most)]


@pytest.mark.parametrize(("own", "error"), [({}, "UsageError"), ({"tier": "batch"}, "Denied: depth_limit")])
async def test_the_default_depth_is_8_without_a_guard_and_in_a_tier(hub: Hub, own: Told, error: str) -> None:
    reply = await soon(chain(9, **own).invoke("go", hub=hub))
    assert reply.text == f"{error}: 8 tasks stand inside each other already, the limit; do it without another"
    assert await reached(hub) == [("depth", 8, 8)]


async def test_an_unlimited_depth_goes_beyond_the_default(hub: Hub) -> None:
    reply = await soon(chain(11, guards=[DepthLimit(most="unlimited")]).invoke("go", hub=hub))
    assert (reply.text, len(await tasks(hub))) == ("re: look", 11)


async def test_opening_a_new_channel_does_not_reset_the_depth(hub: Hub) -> None:
    """Each task is in a channel of its own, and an agent of one gives the next in its own name."""
    await soon(chain(4, guards=[DepthLimit(most=3)]).invoke("go", hub=hub))
    rows = [row for row in await hub.channels() if row.type == "consulting"]
    depths = [(await fold_of(hub, row.channel_id)).state.task_depth for row in rows]
    assert sorted(depths) == [1, 2, 3]


async def test_a_client_cannot_supply_a_depth(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register("bob")
    forged = {"task": {"parent": "x", "turn": "1/ann", "depth": -100, "root": "x"}}
    for kind in ("consulting", "conversation"):
        with pytest.raises(RulesInvalid, match="task"):
            await ann.open(type=kind, target="bob", knobs=forged)


# Tasks of a run


def spawner(worker: Agent, count: int, name: str = "boss", **own: object) -> Agent:
    """An agent that gives so many tasks, one after the other, and says how each went."""
    made = delegate(worker)

    async def model(request: Request) -> Reply:
        told = results(request)
        return says(" | ".join(told)) if len(told) >= count else calls(made.name, {"task": f"task {len(told)}"})

    return Agent(name, model=model, tools=[made], **own)


@pytest.mark.parametrize(("most", "count", "given"), [(0, 1, 0), (1, 2, 1), (5, 5, 5), (5, 6, 5), (8, 9, 8)])
async def test_a_run_gives_as_many_tasks_as_the_guard_allows(hub: Hub, most: int, count: int, given: int) -> None:
    boss = spawner(Agent("bob", model=echo), count, guards=[SpawnLimit(most=most)])
    reply = await soon(boss.invoke("go", hub=hub))
    assert reply.text.count("re: task") == given == len(await tasks(hub))
    assert reply.text.count("Denied: spawn_limit: ") == count - given
    assert await reached(hub) == [("spawn", most, most)] * (count - given)


async def test_the_limit_holds_across_three_channels(hub: Hub) -> None:
    """The boss gives two leads a task, each of whom gives three: with those of the leads there are five, not eight."""
    worker = Agent("bob", model=echo)
    lead = spawner(worker, 3, name="lead")
    boss = spawner(lead, 2, guards=[SpawnLimit(most=5)])
    reply = await soon(boss.invoke("go", hub=hub))
    assert len(await tasks(hub)) == 5
    assert reply.text.count("re: task") == 3
    assert reply.text.count("Denied: spawn_limit") == 3
    charged = [each.event_data["kind"] for each in await hub.log(reply.channel_id) if each.event_type == CHARGED]
    assert charged == ["task"] * 3


async def test_a_task_that_is_resumed_by_the_next_hub_counts_once() -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    boss = spawner(Agent("bob", model=waiting(inside, gate)), 2, guards=[SpawnLimit(most=2)])
    kept = Kept(ManualClock())
    hub = await kept.hub()
    asked = asyncio.create_task(boss.invoke("go", hub=hub, thread_id="t"))
    await soon(inside.wait())
    await hub.close()
    with pytest.raises(UsageError):
        await soon(asked)
    hub = await kept.hub()
    try:
        gate.set()
        await hub.register(boss)
        [channel_id] = [row.channel_id for row in await hub.channels() if row.type == "conversation"]
        async for envelope in hub.subscribe(channel_id):
            if envelope.sender_id == "boss" and "text" in envelope.event_data:
                break
        assert envelope.event_data["text"] == "re: task 0 | re: task 1"
        assert await reached(hub) == []
    finally:
        await hub.close()


async def test_in_a_tier_each_message_of_a_person_has_its_own_tasks(hub: Hub) -> None:
    boss = spawner(Agent("bob", model=echo), 2, tier="interactive", guards=[SpawnLimit(most=2)])
    for _ in range(3):
        reply = await soon(boss.invoke("go", hub=hub, thread_id="t"))
        assert reply.text.count("re: task") == 2
    assert await reached(hub) == []


# Handoffs


@pytest.mark.parametrize(("most", "refused"), [(5, 6), (0, 1), (1, 2)])
async def test_a_handoff_beyond_the_limit_is_recorded_as_a_limit(hub: Hub, most: int, refused: int) -> None:
    names = [f"a{number}" for number in range(8)]

    @tool
    def pass_on(to: str) -> Handoff:
        """Give the turn to another."""
        return Handoff(to, "your turn")

    def passing(to: str) -> Agent:
        async def model(request: Request) -> Reply:
            return says("I keep it") if results(request) else calls("pass_on", {"to": to})

        return Agent(names[names.index(to) - 1], model=model, tools=[pass_on])

    for name in names[1:]:
        await hub.register(passing(name))
    await hub.register(Agent(names[-1], model=echo))
    ann = await hub.register("ann")
    graph = TransitionGraph("ann", [Transition(FromSpeaker("ann"), AgentTarget("a0"))], TerminateTarget("done"))
    knobs = {"graph": graph.to_dict(), "guards": [HopLimit(most=most)]}
    channel = await ann.open(type="workflow", target=names, knobs=knobs)
    await channel.send("go")
    assert await soon(channel.closed()) == "done"
    assert channel.state.last_speaker_id == names[refused - 1]
    assert await reached(hub) == [("hop", most, most)]


async def test_a_packet_of_code_that_hands_on_too_often_is_kept_and_recorded_as_a_limit(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register("bob")
    graph = TransitionGraph("ann", [], TerminateTarget("done"))
    knobs = {"graph": graph.to_dict(), "guards": [HopLimit(most=0)]}
    channel = await ann.open(type="workflow", target="bob", knobs=knobs)
    build = hub.adapter_for(channel.channel_id)
    packet = build.build_packet_envelope(sender_id="ann", body="my work", handoff=Handoff("bob"))
    recorded = await hub.post(packet)
    assert recorded.event_data["routing"] == {"target": "bob", "rejected": "hop_limit:0"}
    [told] = [each for each in await hub.log(channel.channel_id) if each.event_type == LIMIT]
    assert told.event_data == {"kind": "hop", "limit": 0, "count": 0, "chain": ["ann"], "rejected_target": "bob"}
    assert told.causation_id == recorded.envelope_id


# Turns


def discussing(*guards: object, people: tuple[str, ...] = ("ann", "bob")) -> PureChannel:
    return PureChannel("discussion", *people, guards=list(guards))


def spoken(channel: PureChannel) -> int:
    """How many turns a discussion takes until it ends."""
    turns = 0
    while not channel.state.ended and turns < 100:
        speaker = channel.state.speakers[0]
        channel.says(speaker, f"word {turns}")
        turns += 1
    return turns


@pytest.mark.parametrize("most", [1, 2, 5, 50])
def test_a_channel_ends_after_as_many_turns(most: int) -> None:
    channel = discussing({"name": "turn_limit", "most": most})
    assert (spoken(channel), channel.state.close_reason) == (most, "max_turns")
    [told] = [each for each in channel.log if each.event_type == LIMIT]
    assert (told.event_data["kind"], told.event_data["count"]) == ("turns", most)


def test_without_turns_none_is_given() -> None:
    channel = discussing({"name": "turn_limit", "most": 0})
    assert (channel.state.close_reason, channel.state.turn_count) == ("max_turns", 0)


def test_unlimited_turns_go_on() -> None:
    assert spoken(discussing({"name": "turn_limit", "most": "unlimited"})) == 100


def workflow(most: int) -> PureChannel:
    """Round and round, until bob says that it is done."""
    rules = [Transition(FromSpeaker("bob") & ContextEquals("done", True), TerminateTarget("ready"))]
    graph = TransitionGraph("ann", rules, RoundRobinTarget())
    guards = [{"name": "turn_limit", "most": most}]
    return PureChannel("workflow", "ann", "bob", graph=graph.to_dict(), guards=guards)


def test_a_terminate_rule_on_the_last_turn_names_the_reason() -> None:
    channel = workflow(2)
    channel.says("ann", "begin")
    draft = fact("bob", "ag2.packet", {"body": "ready", "context_updates": {"set": {"done": True}, "delete": []}})
    channel.took(step(channel.fold, draft, ruleset=channel.ruleset, at=at(9), new_id=channel.new_id))
    assert channel.state.close_reason == "ready"


def test_a_default_target_that_does_not_end_is_not_followed_beyond_the_last_turn() -> None:
    channel = workflow(2)
    channel.says("ann", "begin")
    channel.says("bob", "not yet")
    assert (channel.state.close_reason, channel.state.turn_count) == ("max_turns", 2)


def test_turns_in_a_tier_count_from_the_last_message_of_a_person_or_code() -> None:
    people = ("ann", "bob:agent", "cid:agent")
    guards = [{"name": "turn_limit", "most": 6}]
    channel = PureChannel("discussion", *people, guards=guards, tier="interactive")
    for _ in range(4):
        channel.says("ann")
        for _ in range(2):
            channel.answers()
    assert (channel.state.turn_count, channel.state.ended) == (12, False)


# All of them


@pytest.mark.parametrize("kind", [HopLimit, DepthLimit, SpawnLimit, TurnLimit])
def test_a_limit_is_a_number_or_unlimited_and_never_unlimited_when_regulated(kind: type[DepthLimit]) -> None:
    check_guard(kind())
    for wrong in (-1, 1.5, True, "8", None):
        with pytest.raises(RulesInvalid, match=rf"most of {kind.name} is .*; give a number, 0 or more, or 'unlimited'"):
            kind(most=wrong)  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="which the regulated tier does not take"):
        guards_of({"tier": "regulated", "guards": [{"name": kind.name, "most": "unlimited"}]})
    assert guards_of({"tier": "batch", "guards": [{"name": kind.name, "most": "unlimited"}]})


@pytest.mark.parametrize("kind", [SpawnLimit, TurnLimit])
def test_what_a_limit_counts_in_is_checked(kind: type[SpawnLimit]) -> None:
    with pytest.raises(RulesInvalid, match=r"per of .* is 'run'; give 'channel' or 'message'"):
        kind(per="run")  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", ["interactive", "batch", "regulated"])
def test_every_tier_brings_the_limits(tier: str) -> None:
    found = {guard.name: guard for guard in guards_of({"tier": tier})}
    limits = [getattr(found[name], "most", None) for name in ("hop_limit", "depth_limit", "spawn_limit", "turn_limit")]
    assert limits == [5, 8, 32, 50]


async def test_the_counts_survive_a_snapshot(hub: Hub) -> None:
    boss = spawner(Agent("bob", model=echo), 2, guards=[SpawnLimit(most=2), TurnLimit(per="message")])
    reply = await soon(boss.invoke("go", hub=hub))
    fold = await fold_of(hub, reply.channel_id)
    ruleset = ruleset_for("conversation", fold.state.knobs)
    assert restore_fold(ruleset, from_json(to_json(fold), SavedFold)) == fold


async def test_without_a_tier_all_turns_of_a_thread_count(hub: Hub) -> None:
    agent = Agent("bob", model=ScriptedModel([says("one")]), guards=[TurnLimit(most=3)])
    assert (await soon(agent.invoke("go", hub=hub, thread_id="t"))).text == "one"
    with pytest.raises(TurnFailed, match="max_turns"):
        await soon(agent.invoke("go", hub=hub, thread_id="t"))
