"""Tasks as they are given, recorded and reported on: by a model, by a tool, side by side and inside each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    AgentReply,
    AgentTarget,
    AIMessageEvent,
    FinalStateEvent,
    FromSpeaker,
    Hub,
    Limits,
    Reply,
    Request,
    ScriptedModel,
    TerminateTarget,
    ToolResponseEvent,
    ToolUsageEvent,
    Transition,
    TransitionGraph,
    TurnChannel,
    TurnFailed,
    Usage,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.core.envelope import seconds_between
from antiphon.guards.run_limits import DEFAULT_DEPTH_LIMIT
from antiphon.testing import ManualClock
from tests.support.given_tasks import asking, echo, giver, of_tasks, tasks, used, waiting, words
from tests.support.waiting import let_others_run, soon, wait_until


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


@pytest.fixture(params=["memory", "sqlite"])
async def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hub]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'team.db'}"
    async with Hub.open(url, clock=ManualClock()) as hub:
        yield hub


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def researcher() -> Agent:
    script = [calls("look", {"at": "bees"}, usage=Usage(1, 2)), says("Bees hum.", usage=Usage(10, 20))]
    return Agent("researcher", model=ScriptedModel(script), tools=[look])


def boss_of(agent: Agent) -> Agent:
    script = [
        calls(f"delegate_to_{agent.name}", {"task": "What of bees?"}, usage=Usage(100, 200)),
        says("They hum.", usage=Usage(1000, 2000)),
    ]
    return Agent("boss", model=ScriptedModel(script), tools=[delegate(agent)])


# What is recorded


async def test_what_is_recorded_where_a_task_is_given(anywhere: Hub) -> None:
    boss = boss_of(researcher())
    reply = await soon(boss.invoke("Tell me of bees.", hub=anywhere))
    assert (reply.text, reply.agent, reply.usage) == ("They hum.", "boss", Usage(1111, 2222))
    log = await anywhere.log(reply.channel_id)
    message = log[4]
    assert (message.sender_id, message.event_type) == ("user", EV_TEXT)
    about = {"task": "t1", "agent": "researcher", "by": "boss", "turn": "6/boss"}
    usage = used(11, 22)
    (_, started), *rest = await of_tasks(anywhere, reply.channel_id)
    assert started == {**about, "until": started["until"]}
    assert seconds_between(log[10].created_at, str(started["until"])) == pytest.approx(600, abs=5)
    assert rest == [
        ("progress", {**about, "tool": "look", "who": "researcher"}),
        ("completed", {**about, "usage": usage, "stopped": None}),
    ]
    found = [envelope for envelope in log if envelope.event_type.startswith("ag2.task.")]
    assert {(each.sender_id, each.audience, each.causation_id) for each in found} == {
        ("hub", None, message.envelope_id)
    }
    assert [each.event_type.partition(".")[2] for each in log[6:]] == [
        "turn.claimed",
        "call.started",
        "call.finished",
        "call.started",
        "task.started",
        "task.progress",
        "task.completed",
        "call.finished",
        "call.started",
        "call.finished",
        "msg.text",
    ]
    assert log[13].event_data["result"] == {"returned": {"text": "Bees hum.", "usage": usage}}


async def test_what_is_recorded_where_a_task_is_done(anywhere: Hub) -> None:
    reply = await soon(boss_of(researcher()).invoke("Tell me of bees.", hub=anywhere))
    (row,) = [row for row in await anywhere.channels() if row.channel_id != reply.channel_id]
    assert (row.type, row.status, row.close_reason, row.creator_id) == ("consulting", "closed", "answered", "boss")
    log = await anywhere.log(row.channel_id)
    assert log[0].event_data == {
        "type": "consulting",
        "creator": "boss",
        "participants": [{"name": "boss", "kind": "agent"}, {"name": "researcher", "kind": "agent"}],
        "knobs": {"task": {"parent": reply.channel_id, "turn": "6/boss", "depth": 1, "root": reply.channel_id}},
        "ordered": True,
        "ttl": None,
        "context_vars": {},
    }
    said = [(each.sender_id, each.event_data["text"]) for each in log if each.event_type == EV_TEXT]
    assert said == [("boss", "What of bees?"), ("researcher", "Bees hum.")]


async def test_a_model_is_told_the_report_and_nothing_else(hub: Hub) -> None:
    agent = researcher()
    boss = boss_of(agent)
    await soon(boss.invoke("Tell me of bees.", hub=hub))
    assert isinstance(boss.model, ScriptedModel)
    assert isinstance(agent.model, ScriptedModel)
    assert boss.model.requests[1].messages == [
        ("user", "Tell me of bees."),
        ("assistant", ""),
        ("tool", "Bees hum."),
    ]
    assert agent.model.requests[0].messages == [("user", "What of bees?")]


async def test_whoever_is_in_the_channel_sees_what_becomes_of_a_task(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(boss_of(researcher()))
    channel = await ann.open(type="discussion", target=["boss", "dana"])
    await channel.send("Tell me of bees.")
    await wait_until(lambda: channel.state.last_speaker_id == "boss")
    seen: list[str] = []
    async for envelope in hub.subscribe(channel.channel_id, participant="dana"):
        seen.append(envelope.event_type)
        if envelope.sender_id == "boss" and envelope.event_type == EV_TEXT:
            break
    assert [each for each in seen if each.startswith("ag2.task.")] == [
        "ag2.task.started",
        "ag2.task.progress",
        "ag2.task.completed",
    ]
    assert "antiphon.call.started" not in seen


async def test_what_happens_to_tasks_is_no_part_of_the_conversation(hub: Hub) -> None:
    model = ScriptedModel([calls("delegate_to_worker", {"task": "a"}), "one", "two"])
    boss = Agent("boss", model=model, tools=[delegate(Agent("worker", model=echo))])
    await soon(boss.invoke("first", thread_id="t", hub=hub))
    await soon(boss.invoke("second", thread_id="t", hub=hub))
    assert model.requests[2].messages == [("user", "first"), ("assistant", "one"), ("user", "second")]


async def test_progress_is_told_of_every_tool_that_is_called_and_who_of_the_team_calls_it(hub: Hub) -> None:
    expert = Agent("expert", model=ScriptedModel([calls("look", {"at": "c"}), "Seen."]), tools=[look])
    script = [
        [calls("look", {"at": "a"}), calls("look", {"no": "b"}), calls("nothing")],
        calls("transfer_to_expert"),
    ]
    worker = Agent("worker", model=ScriptedModel(script), tools=[look], agents=[expert])
    reply = await soon(giver(worker).invoke("go", hub=hub))
    assert reply.text == "Seen."
    told = [(data.get("tool"), data.get("who")) for word, data in await of_tasks(hub, reply.channel_id)]
    assert sorted(told[1:4], key=str) == [("look", "worker"), ("look", "worker"), ("nothing", "worker")]
    assert told[4:-1] == [("transfer_to_expert", "worker"), ("look", "expert")]


# What is reported


@dataclass
class Verdict:
    good: bool
    why: str


async def test_a_tool_that_gives_a_task_gets_the_whole_report(hub: Hub) -> None:
    replies: list[AgentReply] = []

    @tool
    async def judge(channel: TurnChannel) -> str:
        """Have it judged."""
        replies.append(await channel.delegate(Agent("judge", model=model, output=Verdict), "Is it good?"))
        return "judged"

    model = ScriptedModel([says('{"good": true, "why": "it is"}', usage=Usage(3, 4))])
    reply = await soon(giver(judge).invoke("go", hub=hub))
    (task,) = [row for row in await hub.channels() if row.channel_id != reply.channel_id]
    text = '{"good": true, "why": "it is"}'
    assert replies == [AgentReply(text, "judge", None, Usage(3, 4), task.channel_id, Verdict(True, "it is"))]
    assert (reply.text, reply.usage) == ("judged", Usage(3, 4))


async def test_who_of_a_team_reports_is_named(hub: Hub) -> None:
    replies: list[AgentReply] = []
    expert = Agent("expert", model=echo)
    team = Agent("team", model=ScriptedModel([calls("transfer_to_expert")]), agents=[expert])

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask them."""
        replies.append(await channel.delegate(team, "well?"))
        return replies[0].text

    assert (await soon(giver(ask).invoke("go", hub=hub))).agent == "boss"
    assert (replies[0].agent, replies[0].text) == ("expert", "re: well?")


def costing(name: str, size: int, *tools: object) -> Agent:
    """An agent whose every model call consumes so much; it calls its first tool, if it has any."""
    made = [delegate(each) if isinstance(each, Agent) else each for each in tools]

    async def model(request: Request) -> Reply:
        if made and not request.exchange:
            assert isinstance(made[0], Tool), "an agent was made a tool"
            return calls(made[0].name, {"task": "go"}, usage=Usage(size, 0))
        return says(name, usage=Usage(0, size))

    return Agent(name, model=model, tools=made)


async def test_what_tasks_inside_tasks_consumed_is_summed(anywhere: Hub) -> None:
    boss = costing("boss", 1, costing("middle", 10, costing("last", 100)))
    events = [event async for event in boss.stream_invoke("go", thread_id="t", hub=anywhere, message_id="m")]
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert final.usage == Usage(11, 111)
    assert (await boss.invoke("go", thread_id="t", hub=anywhere, message_id="m")).usage == Usage(11, 111)
    usages = [data["usage"] for _, data in await of_tasks(anywhere, final.channel_id) if "usage" in data]
    assert usages == [used(10, 110)]


async def test_what_a_task_consumed_that_failed_counts_too(hub: Hub) -> None:
    script = [calls("look", {"at": "a"}, usage=Usage(5, 5)), RuntimeError("no capacity")]
    worker = Agent("worker", model=ScriptedModel(script), tools=[look])
    boss = Agent(
        "boss",
        model=ScriptedModel(
            [calls("delegate_to_worker", {"task": "a"}, usage=Usage(1, 1)), says("No.", usage=Usage(1, 1))]
        ),
        tools=[delegate(worker)],
    )
    reply = await soon(boss.invoke("go", hub=hub))
    assert reply.usage == Usage(7, 7)
    told = await of_tasks(hub, reply.channel_id)
    assert told[-1][1]["usage"] == used(5, 5)


async def test_several_tasks_of_one_call_are_summed(hub: Hub) -> None:
    agent = costing("a", 1)
    busy = Agent("busy", model=ScriptedModel([calls("look", usage=Usage(0, 10))]), limits=Limits(model_calls=1))

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask both, one of them twice."""
        found = [await channel.delegate(each, "x") for each in (agent, agent, busy)]
        return " ".join(f"{each.text} {each.stopped}" for each in found)

    reply = await soon(giver(ask).invoke("go", hub=hub))
    assert (reply.text, reply.usage) == ("a None a None  max_model_calls", Usage(0, 12))


# Side by side


async def test_tasks_of_one_message_are_done_side_by_side_and_not_taken_for_each_other(anywhere: Hub) -> None:
    """All six are under way before any of them is answered, and they are answered in the opposite order."""
    under_way: list[str] = []
    gates = {text: asyncio.Event() for text in "abcdef"}

    async def model(request: Request) -> Reply:
        text = request.history[-1].text
        under_way.append(text)
        await gates[text].wait()
        return says(f"{text} done")

    agents = [Agent(name, model=model) for name in ("one", "two")]
    wanted = [calls(f"delegate_to_{'one' if text < 'd' else 'two'}", {"task": text}) for text in gates]
    boss = Agent("boss", model=asking(*wanted), tools=[delegate(agent) for agent in agents])
    asked = asyncio.create_task(boss.invoke("go", hub=anywhere))
    await wait_until(lambda: len(under_way) == 6)
    for text in reversed(gates):
        gates[text].set()
        await let_others_run(3)
    reply = await soon(asked)
    assert reply.text == "a done | b done | c done | d done | e done | f done"
    told = await words(anywhere, reply.channel_id)
    assert (told[:6], told[6:]) == (["started"] * 6, ["completed"] * 6)
    assert await tasks(anywhere) == [("closed", "answered")] * 6


async def test_a_tool_may_give_the_same_task_many_times_at_once(hub: Hub) -> None:
    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask many."""
        replies = await asyncio.gather(*(channel.delegate(worker, f"q{n // 2}") for n in range(10)))
        return " ".join(reply.text for reply in replies)

    worker = Agent("worker", model=echo)
    reply = await soon(giver(ask).invoke("go", hub=hub))
    assert reply.text == " ".join(f"re: q{n // 2}" for n in range(10))
    assert len(await tasks(hub)) == 10


async def test_a_task_is_given_to_somebody_who_is_busy_elsewhere(hub: Hub) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    slow = waiting(inside, gate)

    async def model(request: Request) -> Reply:
        return await slow(request) if request.history[-1].text == "slowly" else says("at once")

    worker = Agent("worker", model=model)
    busy = asyncio.create_task(worker.invoke("slowly", thread_id="t", hub=hub))
    await soon(inside.wait())
    assert (await soon(giver(worker).invoke("go", hub=hub))).text == "at once"
    assert not busy.done()
    gate.set()
    assert (await soon(busy)).text == "re: slowly"


# Inside each other


def chain(length: int) -> Agent:
    """Agents each of which gives a task to the next."""
    agent = Agent("a0", model=echo)
    for number in range(1, length + 1):
        agent = giver(agent, name=f"a{number}")
    return agent


async def test_tasks_stand_inside_each_other_as_deep_as_the_limit(hub: Hub) -> None:
    reply = await soon(chain(DEFAULT_DEPTH_LIMIT).invoke("go", hub=hub))
    assert reply.text == "re: look"
    rows = [row for row in await hub.channels() if row.type == "consulting"]
    knobs = [(await hub.log(row.channel_id))[0].event_data["knobs"] for row in rows]
    depths = [given["task"]["depth"] for given in knobs if isinstance(given, dict)]
    assert sorted(depths) == list(range(1, DEFAULT_DEPTH_LIMIT + 1))


async def test_a_task_that_would_stand_too_deep_is_refused_and_everybody_reports(hub: Hub) -> None:
    reply = await soon(chain(DEFAULT_DEPTH_LIMIT + 1).invoke("go", hub=hub))
    assert reply.text == "UsageError: 8 tasks stand inside each other already, the limit; do it without another"
    assert await tasks(hub) == [("closed", "answered")] * DEFAULT_DEPTH_LIMIT
    assert await words(hub, reply.channel_id) == ["started", "progress", "completed"]


async def test_two_who_give_each_other_tasks_end_at_the_limit(anywhere: Hub) -> None:
    """Neither waits for itself: each task is a turn of its own."""
    agents: dict[str, Agent] = {}

    def passing(to: str) -> Tool:
        @tool(name=f"ask_{to}", timeout=None)
        async def ask(channel: TurnChannel) -> str:
            """Ask the other."""
            return (await channel.delegate(agents[to], "and you?")).text

        return ask

    for name, other in (("ann", "bob"), ("bob", "ann")):
        agents[name] = giver(passing(other), name=name)
    reply = await soon(agents["ann"].invoke("go", hub=anywhere))
    assert "8 tasks stand inside each other already" in reply.text
    rows = [row for row in await anywhere.channels() if row.type == "consulting"]
    assert sorted(row.creator_id for row in rows) == ["ann"] * 4 + ["bob"] * 4
    assert {row.close_reason for row in rows} == {"answered"}


# Whoever gives it, wherever


async def test_a_sub_agent_gives_a_task_in_its_own_name_and_its_leads_turn(hub: Hub) -> None:
    worker = Agent("worker", model=echo)
    script = ScriptedModel([calls("delegate_to_worker", {"task": "look"}), "Looked."])
    billing = Agent("billing", model=script, tools=[delegate(worker)])
    lead = Agent("support", model=ScriptedModel([calls("transfer_to_billing")]), agents=[billing])
    events = [event async for event in lead.stream_invoke("go", hub=hub)]
    named = [
        (type(event).__name__.removesuffix("Event"), event.agent, getattr(event, "tool", getattr(event, "text", "")))
        for event in events
    ]
    assert named == [
        ("ToolUsage", "support", "transfer_to_billing"),
        ("ToolResponse", "support", "transfer_to_billing"),
        ("ToolUsage", "billing", "delegate_to_worker"),
        ("ToolResponse", "billing", "delegate_to_worker"),
        ("AIMessage", "billing", "Looked."),
        ("FinalState", "billing", "Looked."),
    ]
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    told = await of_tasks(hub, final.channel_id)
    assert [(word, data["by"], data["agent"]) for word, data in told] == [
        ("started", "support", "worker"),
        ("completed", "support", "worker"),
    ]


async def test_a_task_is_given_from_a_workflow(anywhere: Hub) -> None:
    graph = TransitionGraph(
        "ann",
        [
            Transition(FromSpeaker("ann"), AgentTarget("boss")),
            Transition(FromSpeaker("boss"), AgentTarget("critic")),
            Transition(FromSpeaker("critic"), TerminateTarget("fin")),
        ],
        TerminateTarget("lost"),
    )
    ann = await anywhere.register("ann")
    await anywhere.register(giver(Agent("worker", model=echo)))
    await anywhere.register(giver(Agent("judge", model=echo), name="critic"))
    channel = await ann.open(type="workflow", target=["boss", "critic"], knobs={"graph": graph.to_dict()})
    await channel.send("go")
    assert await soon(channel.closed()) == "fin"
    told = await of_tasks(anywhere, channel.channel_id)
    assert [(word, data["by"], data["agent"]) for word, data in told] == [
        ("started", "boss", "worker"),
        ("completed", "boss", "worker"),
        ("started", "critic", "judge"),
        ("completed", "critic", "judge"),
    ]
    bodies = [
        envelope.event_data["body"]
        for envelope in await anywhere.log(channel.channel_id)
        if envelope.event_type == "ag2.packet"
    ]
    assert bodies == ["re: look", "re: look"]


async def test_whoever_follows_a_turn_is_told_of_the_call_while_its_task_runs(hub: Hub) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    worker = Agent("worker", model=waiting(inside, gate))
    events = giver(worker).stream_invoke("go", hub=hub, tokens=True)
    first = await soon(anext(events))
    assert isinstance(first, ToolUsageEvent)
    assert (first.agent, first.tool, first.args) == ("boss", "delegate_to_worker", {"task": "look"})
    await soon(inside.wait())
    rest = asyncio.create_task(_all(events))
    await let_others_run(20)
    assert not rest.done()
    gate.set()
    told = await soon(rest)
    assert [type(event) for event in told] == [ToolResponseEvent, AIMessageEvent, FinalStateEvent]
    assert told[0] == ToolResponseEvent("boss", "delegate_to_worker", "re: look", first.call_id)


async def _all(events: AsyncIterator[object]) -> list[object]:
    return [event async for event in events]


async def test_asked_again_with_the_same_id_no_task_is_given_again(anywhere: Hub) -> None:
    boss = boss_of(researcher())
    told = [
        await soon(_all(boss.stream_invoke("Bees?", thread_id="t", hub=anywhere, message_id="m"))) for _ in range(2)
    ]
    assert told[1] == told[0]
    assert [type(event) for event in told[0]] == [ToolUsageEvent, ToolResponseEvent, AIMessageEvent, FinalStateEvent]
    first, again = [await soon(boss.invoke("Bees?", thread_id="t", hub=anywhere, message_id="m")) for _ in range(2)]
    assert (again, first.usage) == (first, Usage(1111, 2222))
    assert await words(anywhere, first.channel_id) == ["started", "progress", "completed"]
    assert await tasks(anywhere) == [("closed", "answered")]


async def test_what_a_task_that_came_to_nothing_raises(hub: Hub) -> None:
    caught: list[TurnFailed] = []

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask."""
        try:
            return (await channel.delegate(worker, "look")).text
        except TurnFailed as failed:
            caught.append(failed)
            return "never mind"

    worker = Agent("worker", model=ScriptedModel([RuntimeError("no capacity")]))
    reply = await soon(giver(ask).invoke("go", hub=hub))
    (row,) = [row for row in await hub.channels() if row.type == "consulting"]
    assert reply.text == "never mind"
    assert [(each.reason, each.channel_id, each.detail) for each in caught] == [
        ("model_error", row.channel_id, "RuntimeError: no capacity")
    ]
