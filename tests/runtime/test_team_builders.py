"""What the builders make: swarms that hand over, leads with tasks, and graphs of reviews."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from antiphon import (
    Agent,
    Always,
    Approved,
    BadName,
    ConversationRouter,
    ConversationSetup,
    Reply,
    Request,
    RulesInvalid,
    ScriptedModel,
    TransitionGraph,
    UsageError,
    calls,
    delegate,
    review_loop,
    says,
    supervised,
    swarm,
    tool,
)
from antiphon.core.conditions import TransitionCondition
from antiphon.core.events import TASK_END_TYPES
from antiphon.orchestration.rendering import describe_condition
from tests.support.conversation_desk import REFUSED, WARNED, Conversation, Desk, a_desk, hand_over, texts
from tests.support.given_tasks import asking
from tests.support.waiting import soon, wait_until


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human") as found:
        yield found


def agent(name: str, *script: object, **options: object) -> Agent:
    return Agent(name, model=ScriptedModel(script), **options)  # type: ignore[arg-type]


async def meet(desk: Desk, setup: ConversationSetup, *people: str) -> Conversation:
    """A conversation of ann with everybody in a setup."""
    await setup.register(desk.hub)
    target = [*setup.participants, *people]
    return Conversation(desk, await desk.people["ann"].open(type="routed", target=target, knobs=setup.knobs))


# Swarms


async def test_any_agent_of_a_swarm_hands_over_to_any_other(desk: Desk) -> None:
    a = agent("a", hand_over("b"), "a again")
    b = agent("b", hand_over("c"), "never")
    c = agent("c", "c here", hand_over("a"))
    talk = await meet(desk, swarm([a, b, c]))
    assert await talk.ask("one") == [("c", "c here")]
    assert await talk.ask("two") == [("a", "a again")]
    assert (talk.state.active_agent_id, talk.state.handoff_count) == ("a", 3)
    assert await talk.facts(WARNED) == []


async def test_receiving_agent_reads_the_summary(desk: Desk) -> None:
    model = ScriptedModel(["Paid."])
    talk = await meet(desk, swarm([agent("triage", hand_over("billing", "Invoice 7.")), Agent("billing", model)]))
    await talk.ask("my invoice")
    assert texts(model.requests[0])[0] == "[Context from previous agent (triage)]: Invoice 7."


async def test_entry_answers_first(desk: Desk) -> None:
    talk = await meet(desk, swarm([agent("a", "never"), agent("b", "b here")], entry="b"))
    assert await talk.ask("one") == [("b", "b here")]


async def test_aliases_of_agents_and_of_people(desk: Desk) -> None:
    first = agent("triage", hand_over("Money"), hand_over("boss"))
    setup = swarm([first, agent("billing", hand_over("triage"))], aliases={"money": "billing", "boss": "human"})
    talk = await meet(desk, setup, "dana")
    await talk.ask("one")
    assert [each["to_agent"] for each in await talk.facts("antiphon.conversation.moved")] == ["billing", "triage", None]
    assert setup.handoff["agent_aliases"] == {"money": "billing", "boss": "human"}


async def test_unknown_target_is_refused(desk: Desk) -> None:
    talk = await meet(desk, swarm([agent("a", hand_over("zoe"), "then I do it"), agent("b")]))
    assert await talk.ask("one") == [("a", "then I do it")]
    assert [each["reason"] for each in await talk.facts(REFUSED)] == ["target_not_found"]


async def test_observer_is_one_of_the_agents(desk: Desk) -> None:
    setup = swarm([agent("a", "a here"), agent("watcher", "seen")], supervisor_id="watcher")
    assert setup.participants == ["a", "watcher"]
    talk = await meet(desk, setup)
    assert await talk.ask("one") == [("a", "a here"), ("watcher", "seen")]


async def test_observer_is_a_person_beside_the_agents(desk: Desk) -> None:
    setup = swarm([agent("a", "a here"), agent("b")], supervisor_id="dana")
    assert setup.participants == ["a", "b", "dana"]
    talk = await meet(desk, setup)
    assert await talk.ask("one") == [("a", "a here")]


def test_setup_is_a_plain_value() -> None:
    given = [agent("a"), agent("b")]
    setup = swarm(given, supervisor_id="b", aliases={"x": "b"})
    assert setup.router == ConversationRouter(default_agent_id="a", supervisor_id="b")
    assert setup.knobs == {"router": setup.router.to_dict(), "handoff": setup.handoff}
    setup.knobs.clear()
    setup.handoff["agent_aliases"] = {}
    assert setup.handoff["agent_aliases"] == {"x": "b"}
    assert setup.knobs["router"] == setup.router.to_dict()
    assert [[each.name for each in one.toolbox] for one in setup.agents] == [["handoff_conversation"]] * 2
    assert [one.tools for one in given] == [(), ()]


def test_own_tool_of_that_name_stays() -> None:
    @tool(name="handoff_conversation")
    def mine(target: str) -> str:
        """Mine."""
        return target

    [one] = swarm([agent("a", tools=[mine])]).agents
    assert one.tools == (mine,)


@pytest.mark.parametrize(
    ("args", "options", "complaint"),
    [
        ([], {}, "agents is \\[\\]; give a list of at least one agent"),
        ("ab", {}, "agents is 'ab'; give a list"),
        (["a"], {}, "agents holds 'a'; give a list of agents"),
        ([agent("a"), agent("A")], {}, "agents has two agents called 'A'"),
        ([agent("a")], {"entry": "b"}, "entry is 'b', which is none of the agents; give the name of one of: a"),
        ([agent("a")], {"entry": "A"}, "entry is 'A', which is none of the agents; did you mean 'a'"),
        ([agent("a")], {"entry": 7}, "entry is 7"),
        ([agent("a"), agent("b")], {"supervisor_id": "a"}, "'a' is the observer, which no message is routed to"),
        ([agent("a")], {"aliases": {"x": "zoe"}}, r"aliases\['x'\] is 'zoe', which is neither .*; there are: a, human"),
        ([agent("a")], {"aliases": {"x": "A"}}, "did you mean 'a'"),
        ([agent("a"), agent("b")], {"aliases": {"B": "a"}}, "the alias 'B' for 'a' would hide 'b'"),
        ([agent("a")], {"aliases": {"Human": "a"}}, r"agent_aliases\['Human'\] is 'a'; 'human' always stands for"),
    ],
)
def test_mistakes_in_a_swarm(args: object, options: dict[str, object], complaint: str) -> None:
    with pytest.raises((UsageError, RulesInvalid), match=complaint):
        swarm(args, **options)  # type: ignore[arg-type]


def test_alias_that_spells_its_own_agent_is_fine() -> None:
    assert swarm([agent("a")], aliases={"A": "a", "human": "human"}).handoff["agent_aliases"] == {
        "A": "a",
        "human": "human",
    }


async def test_register_wants_a_hub() -> None:
    with pytest.raises(UsageError, match="hub is None; give an open Hub"):
        await swarm([agent("a")]).register(None)  # type: ignore[arg-type]


# Supervised teams


class Answers:
    """A model that answers each task in a test's own order, with the task in its answer."""

    def __init__(self, *tasks: str) -> None:
        self.gates = {task: asyncio.Event() for task in tasks}
        self.asked: list[str] = []

    async def __call__(self, request: Request) -> Reply:
        task = request.history[-1].text
        self.asked.append(task)
        await self.gates[task].wait()
        return says(f"answer to {task}")


async def test_parallel_tasks_of_one_agent_keep_their_results(desk: Desk) -> None:
    """Three tasks in one message, answered in the opposite order: each call gets the answer to its own task."""
    tasks = ("first", "second", "third")
    model = Answers(*tasks)
    wanted = asking(*(calls("delegate_to_scout", {"task": task}) for task in tasks))
    lead = supervised(Agent("lead", wanted), [Agent("scout", model)])
    asked = asyncio.create_task(lead.invoke("Go.", thread_id="t", hub=desk.hub))
    await wait_until(lambda: len(model.asked) == 3)
    channel = await lead.channel("t", desk.hub)
    for done, task in enumerate(reversed(tasks), 1):
        model.gates[task].set()
        await wait_until(lambda done=done: len(channel.state.open_tasks) == 3 - done)  # type: ignore[misc]
    reply = await soon(asked)
    assert reply.text == "answer to first | answer to second | answer to third"


async def test_parallel_tasks_with_the_same_words_are_different_tasks(desk: Desk) -> None:
    numbers = iter(range(1, 9))

    async def model(request: Request) -> Reply:
        return says(f"answer {next(numbers)}")

    wanted = asking(*(calls("delegate_to_scout", {"task": "look"}) for _ in range(3)))
    reply = await supervised(Agent("lead", wanted), [Agent("scout", model)]).invoke("Go.", hub=desk.hub)
    assert sorted(reply.text.split(" | ")) == ["answer 1", "answer 2", "answer 3"]
    log = await desk.hub.log(reply.channel_id)
    assert len({each.event_data["task"] for each in log if each.event_type in TASK_END_TYPES}) == 3


async def test_parallel_tasks_of_one_failing_and_one_answering(desk: Desk) -> None:
    """A failure stays with the call whose task it was."""

    async def model(request: Request) -> Reply:
        if request.history[-1].text == "bad":
            raise ValueError("no such thing")
        return says("good answer")

    wanted = asking(*(calls("delegate_to_scout", {"task": task}) for task in ("bad", "good")))
    reply = await supervised(Agent("lead", wanted), [Agent("scout", model)]).invoke("Go.", hub=desk.hub)
    failed, answered = reply.text.split(" | ")
    assert "good answer" not in failed
    assert "model_error" in failed
    assert answered == "good answer"


async def test_prompts_stay_as_they_are(desk: Desk) -> None:
    model, scout = ScriptedModel([calls("delegate_to_scout", {"task": "look"}), says("done")]), ScriptedModel(["seen"])
    lead = Agent("lead", model, "You lead.")
    with_team = supervised(lead, [Agent("scout", scout, "You scout.", description="Looks at things.")])
    await with_team.invoke("Go.", hub=desk.hub)
    assert with_team.system_prompt == "You lead."
    shown = [each.requests[0].system.partition("\n\nCurrent date")[0] for each in (model, scout)]
    assert shown == ["You lead.", "You scout."]
    assert lead.tools == ()


async def test_task_that_takes_too_long_ends(desk: Desk) -> None:
    model = Answers("look")
    wanted = asking(calls("delegate_to_scout", {"task": "look"}))
    lead = supervised(Agent("lead", wanted), [Agent("scout", model)], ttl=5)
    asked = asyncio.create_task(lead.invoke("Go.", hub=desk.hub))
    await wait_until(lambda: model.asked == ["look"])
    await desk.clock.advance(6)
    assert "expired" in (await soon(asked)).text


def test_one_tool_for_each_agent_beside_the_own() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    scouts = [agent("scout"), agent("diver")]
    lead = supervised(agent("lead", tools=[look]), scouts)
    assert [each.name for each in lead.toolbox] == ["look", "delegate_to_scout", "delegate_to_diver"]
    assert isinstance(lead, Agent)
    assert supervised(lead, scouts).tools == lead.tools
    assert supervised(agent("lead", tools=[delegate(scouts[0])]), scouts).tools == lead.tools[1:]


@pytest.mark.parametrize(
    ("lead", "agents", "ttl", "complaint"),
    [
        ("lead", [agent("a")], None, "'lead' is no agent; give an Agent as the lead"),
        (agent("lead"), [], None, "give a list of at least one agent"),
        (agent("lead"), ["a"], None, "agents holds 'a'"),
        (agent("lead"), [agent("a"), agent("a")], None, "two agents called 'a'"),
        (agent("lead"), [agent("Lead")], None, "'lead' is the lead and one of its agents"),
        (agent("lead"), [agent("a")], 0, "ttl of tasks for 'a' is 0"),
    ],
)
def test_mistakes_in_a_supervised_team(lead: object, agents: object, ttl: float | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        supervised(lead, agents, ttl=ttl)  # type: ignore[type-var, arg-type]


# Review loops


@pytest.mark.parametrize("rounds", [1, 2, 3, 100])
@pytest.mark.parametrize("opener", [None, "author", "press"])
def test_checker_finds_nothing(rounds: int, opener: str | None) -> None:
    graph = review_loop("author", "reviewer", most_rounds=rounds, opener=opener)
    others = ["press"] if opener == "press" else []
    assert graph.check([*others, "author", "reviewer"]) == []
    assert graph.check({"ann": "human", **dict.fromkeys([*others, "author", "reviewer"], "agent")}) == []
    assert graph.check({"ann": "human", "author": "agent", "reviewer": "human", **dict.fromkeys(others, "agent")}) == []


def test_graph_is_plain_data() -> None:
    graph = review_loop("author", "reviewer", most_rounds=2)
    assert TransitionGraph.loads(graph.to_dict()) == graph
    assert [describe_condition(each.when) for each in graph.transitions] == [
        "from author",
        "from reviewer and approved",
        "once from reviewer",
        "from reviewer",
    ]
    assert '-->|"1. approved"|' in graph.to_mermaid()


def test_agents_may_be_given_themselves() -> None:
    assert review_loop(agent("a"), agent("b")) == review_loop("a", "b")


@pytest.mark.parametrize(
    ("args", "options", "complaint"),
    [
        (("a", "a"), {}, "'a' is the author and the reviewer"),
        (("a", 7), {}, "reviewer is 7; give an agent, or the name of a participant"),
        ((None, "b"), {}, "author is None"),
        (("a", "b c"), {}, "^reviewer: 'b c' is no name"),
        (("", "b"), {}, "^author: '' is no name"),
        (("a", "b"), {"most_rounds": 0}, "most_rounds is 0; give a number of reviews, 1 to 100"),
        (("a", "b"), {"most_rounds": 101}, "most_rounds is 101"),
        (("a", "b"), {"most_rounds": True}, "most_rounds is True"),
        (("a", "b"), {"most_rounds": 2.0}, "most_rounds is 2.0"),
        (("a", "b"), {"approved": "yes"}, r"^approved is 'yes', which is no condition; give one such as Approved\(\)"),
        (("a", "b"), {"approved": Always}, "^approved is .*Always.*, which is no condition"),
        (("a", "b"), {"opener": 7}, "opener is 7"),
        (("a", "b"), {"opener": ""}, "^opener: '' is no name; use 1 to 48"),
    ],
)
def test_mistakes_in_a_review_loop(args: tuple[object, ...], options: dict[str, object], complaint: str) -> None:
    with pytest.raises((UsageError, RulesInvalid, BadName), match=complaint):
        review_loop(*args, **options)  # type: ignore[arg-type]


class Unregistered:
    """A condition that is not registered."""

    name: ClassVar[str] = "builders_unregistered"

    def evaluate(self, state: object, envelope: object) -> bool:
        return True


def test_condition_must_be_registered() -> None:
    with pytest.raises(RulesInvalid, match="Unregistered is not registered; call register_condition"):
        review_loop("a", "b", approved=Unregistered())


# Approved in the checker


def codes(condition: TransitionCondition) -> list[str]:
    """What is found in a review loop that ends on this condition."""
    graph = review_loop("author", "reviewer", most_rounds=2, approved=condition)
    return [found.code for found in graph.check(["author", "reviewer"])]


def test_checker_takes_an_approval_for_possible_and_for_uncertain() -> None:
    assert codes(Approved()) == []
    assert codes(~Approved()) == []
    assert codes(Approved() & ~Approved()) == ["dead_rule"]
    assert codes(Approved() | ~Approved()) == ["dead_rule", "dead_rule"]
