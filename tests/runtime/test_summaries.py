"""Summaries in threads: made once and kept, cumulative, counted, each for whom it is; and what goes wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    FinalStateEvent,
    Hub,
    Limits,
    Message,
    Reply,
    Request,
    ScriptedModel,
    SummarisedTranscript,
    TokenBudget,
    TurnFailed,
    Usage,
    calls,
    says,
)
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.testing import ManualClock
from tests.support.given_tasks import Kept, waiting
from tests.support.waiting import let_others_run, soon, wait_until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Kept:
    return Kept(clock, None if request.param == "memory" else tmp_path / "team.db")


class Summariser:
    """Sums up by naming the first and the last thing said, and remembers what it was given."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.given: list[list[str]] = []

    def __call__(self, messages: Sequence[Message]) -> str:
        self.given.append([message.text for message in messages])
        return f"{self.name}{len(self.given)}: up to {messages[-1].text}"


class Parrot:
    """Answers `q7` with `a7`, and keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        return says(f"a{request.history[-1].text[1:]}")

    def texts(self, place: int = -1) -> list[str]:
        """What was sent with one of the requests."""
        return [message.text for message in self.requests[place].history]


async def talk(agent: Agent, hub: Hub, turns_taken: range) -> None:
    for number in turns_taken:
        await soon(agent.invoke(f"q{number}", thread_id="t", hub=hub))


async def summaries(hub: Hub, agent: Agent) -> list[object]:
    """Which of the team made a summary, turn by turn, as the log has it."""
    log = await hub.log((await agent.channel("t", hub)).channel_id)
    started = [each.event_data for each in log if each.event_type == EV_CALL_STARTED]
    return [data.get("agent", "") for data in started if data["name"] == "summary"]


# Made once, and kept


async def test_a_summary_is_made_when_enough_has_been_added_and_read_until_then(hub: Hub) -> None:
    model, summarise = Parrot(), Summariser()
    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=2))
    await talk(agent, hub, range(1, 8))
    assert [model.texts(place) for place in range(7)] == [
        ["q1"],
        ["q1", "a1", "q2"],
        ["[What the 3 messages before came to]\n1: up to q2", "a2", "q3"],
        ["[What the 3 messages before came to]\n1: up to q2", "a2", "q3", "a3", "q4"],
        ["[What the 7 messages before came to]\n2: up to q4", "a4", "q5"],
        ["[What the 7 messages before came to]\n2: up to q4", "a4", "q5", "a5", "q6"],
        ["[What the 11 messages before came to]\n3: up to q6", "a6", "q7"],
    ]
    assert summarise.given == [
        ["q1", "a1", "q2"],
        ["[What the 3 messages before came to]\n1: up to q2", "a2", "q3", "a3", "q4"],
        ["[What the 7 messages before came to]\n2: up to q4", "a4", "q5", "a5", "q6"],
    ]


async def test_a_summary_is_a_call_of_its_turn_for_operators(hub: Hub) -> None:
    agent = Agent("ada", model=Parrot(), memory=SummarisedTranscript(Summariser(), recent_n=1))
    await talk(agent, hub, range(1, 3))
    log = await hub.log((await agent.channel("t", hub)).channel_id)
    found = [each for each in log if each.event_type.startswith("antiphon.call.")][2:]
    assert [(each.event_type.rpartition(".")[2], each.event_data["index"], each.audience) for each in found] == [
        ("started", 0, ["hub:operators"]),
        ("finished", 0, ["hub:operators"]),
        ("started", 1, ["hub:operators"]),
        ("finished", 1, ["hub:operators"]),
    ]
    turn = found[0].event_data["turn"]
    assert found[1].event_data == {
        "turn": turn,
        "index": 0,
        "result": {"summary": {"text": "1: up to a1", "count": 2, "by": "ada"}},
    }
    assert found[0].event_data["name"] == "summary"


async def test_a_summary_is_kept_when_the_hub_is_opened_again(kept: Kept) -> None:
    model, summarise = Parrot(), Summariser()
    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=2))
    for number in range(1, 8):  # each turn in a hub of its own
        hub = await kept.hub()
        await talk(agent, hub, range(number, number + 1))
        await hub.close()
    assert len(summarise.given) == 3
    assert model.texts(5) == ["[What the 7 messages before came to]\n2: up to q4", "a4", "q5", "a5", "q6"]


async def test_a_summary_is_not_made_again_when_its_turn_is_run_again(kept: Kept) -> None:
    inside, gate, parrot, summarise = asyncio.Event(), asyncio.Event(), Parrot(), Summariser()
    slow = waiting(inside, gate)

    async def model(request: Request) -> Reply:
        reply = await parrot(request)
        return reply if request.history[-1].text == "q1" else await slow(request)

    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=1))
    first = await kept.hub()
    await talk(agent, first, range(1, 2))
    asked = asyncio.create_task(agent.invoke("q2", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    asked.cancel()
    await soon(first.close())

    gate.set()
    second = await kept.hub()
    assert (await soon(agent.invoke("q2", thread_id="t", hub=second, message_id="m"))).text == "re: q2"
    assert len(summarise.given) == 1
    assert parrot.texts(1) == parrot.texts(2) == ["[What the 2 messages before came to]\n1: up to a1", "q2"]
    assert await summaries(second, agent) == [""]
    await second.close()


async def test_a_summary_stays_although_its_turn_fails(hub: Hub) -> None:
    summarise = Summariser()
    model = ScriptedModel(["a1", RuntimeError("no capacity"), "a3"])
    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=1))
    await talk(agent, hub, range(1, 2))
    with pytest.raises(TurnFailed, match="no capacity"):
        await soon(agent.invoke("q2", thread_id="t", hub=hub))
    await talk(agent, hub, range(3, 4))
    assert summarise.given == [["q1", "a1"]]
    assert model.requests[-1].messages == [
        ("user", "[What the 2 messages before came to]\n1: up to a1"),
        ("user", "q2"),
        ("user", "q3"),
    ]


async def test_messages_that_come_at_once_are_not_summed_up_by_each_turn_anew(hub: Hub) -> None:
    """The turns were all assigned before the first of them made a summary; still the second reads it."""
    model, summarise = Parrot(), Summariser()
    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=5))
    await talk(agent, hub, range(1, 6))
    asked = (agent.invoke(f"q{number}", thread_id="t", hub=hub) for number in range(6, 26))
    replies = await soon(asyncio.gather(*asked))
    assert [reply.text for reply in replies] == [f"a{number}" for number in range(6, 26)]
    assert [len(given) for given in summarise.given] == [6, *[1 + 6] * 6], "one for every three turns"
    handed = [text for given in summarise.given for text in given if not text.startswith("[What")]
    assert handed == [f"{who}{number}" for number in range(1, 26) for who in "qa"][: len(handed)]


# What it costs


async def test_prompts_stay_short_and_turns_cost_the_same_however_long_the_thread(hub: Hub) -> None:
    model, summarise = Parrot(), Summariser()
    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=6))
    await talk(agent, hub, range(1, 201))
    lengths = [len(request.history) for request in model.requests]
    assert max(lengths) == 13, "a summary, and twice as many messages as are always shown"
    assert max(lengths[20:60]) == max(lengths[160:])
    assert sum(lengths[20:60]) == sum(lengths[160:])
    sizes = [sum(len(text) for text in model.texts(place)) for place in range(200)]
    assert max(sizes) < 120
    assert [len(given) for given in summarise.given] == [7, *[1 + 8] * 48], "one for every four turns"


async def test_what_a_summary_consumed_is_part_of_its_turn(hub: Hub) -> None:
    async def model(request: Request) -> Reply:
        return says("a", usage=Usage(10, 1))

    async def summarise(messages: Sequence[Message]) -> Reply:
        return says("in short", usage=Usage(100, 5))

    agent = Agent("ada", model=model, memory=SummarisedTranscript(summarise, recent_n=1))
    usages = [(await soon(agent.invoke("q", thread_id="t", hub=hub))).usage for _ in range(3)]
    assert usages == [Usage(10, 1), Usage(110, 6), Usage(110, 6)]
    (final,) = [
        event async for event in agent.stream_invoke("q", thread_id="t", hub=hub) if isinstance(event, FinalStateEvent)
    ]
    assert final.usage == Usage(110, 6)


# Who sums up


async def slowly(messages: Sequence[Message]) -> str:
    await let_others_run(3)
    return "in short"


async def asked(messages: Sequence[Message]) -> Reply:
    return says("in short")


WAYS: dict[str, Callable[[Sequence[Message]], object]] = {
    "a plain function": lambda messages: "in short",
    "an async function": slowly,
    "a model's reply": asked,
    "a plain reply": lambda messages: says("in short"),
    "a function that gives something to await": lambda messages: slowly(messages),
    "content blocks": lambda messages: [{"type": "text", "text": "in short"}],
}


@pytest.mark.parametrize("way", WAYS)
async def test_anything_sums_up_that_gives_a_text(hub: Hub, way: str) -> None:
    model = Parrot()
    agent = Agent("ada", model=model, memory=SummarisedTranscript(WAYS[way], recent_n=1))
    await talk(agent, hub, range(1, 3))
    assert model.texts() == ["[What the 2 messages before came to]\nin short", "q2"]


def fails(messages: Sequence[Message]) -> str:
    raise LookupError("no such model")


async def hangs(messages: Sequence[Message]) -> str:
    await asyncio.Event().wait()
    return "never"


async def is_cancelled(messages: Sequence[Message]) -> str:
    raise asyncio.CancelledError


TROUBLES: dict[str, tuple[Callable[[Sequence[Message]], object], str]] = {
    "raises": (fails, "LookupError: no such model"),
    "nothing": (lambda messages: "", "ValueError: the summary is empty"),
    "no words": (lambda messages: calls("look"), "ValueError: the summary is empty"),
    "None": (lambda messages: None, "TypeError: a model returned NoneType"),
    "a number": (lambda messages: 7, "TypeError: a model returned int"),
    "no text": (lambda messages: Reply(7), "Expected `str`, got `int`"),  # type: ignore[arg-type]  # on purpose
    "half a character": (lambda messages: "\ud800", "half a surrogate pair"),
    "NUL": (lambda messages: "a\x00b", "a text contains a NUL character"),
    "too long": (lambda messages: "x" * 300_000, "the summary has 300044 bytes; the limit is 262144"),
    "hangs": (hangs, "nothing came within 7 seconds"),
    "cancels itself": (is_cancelled, "CancelledError"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_summary_that_fails_fails_its_turn_and_the_next_one_tries_again(
    hub: Hub, clock: ManualClock, trouble: str
) -> None:
    broken, why = TROUBLES[trouble]
    ways = [broken, lambda messages: "in short"]
    model = Parrot()
    agent = Agent(
        "ada",
        model=model,
        memory=SummarisedTranscript(lambda messages: ways.pop(0)(messages), recent_n=1),
        limits=Limits(model_seconds=7),
    )
    await talk(agent, hub, range(1, 2))
    work = asyncio.create_task(agent.invoke("q2", thread_id="t", hub=hub))
    await wait_until(lambda: len(ways) == 1)
    await let_others_run(20)
    await clock.advance(7)
    with pytest.raises(TurnFailed) as caught:
        await soon(work)
    assert caught.value.reason == "summary_error"
    assert why in caught.value.detail
    assert len(model.requests) == 1, "the model was not asked"
    await talk(agent, hub, range(3, 4))
    assert model.texts() == ["[What the 3 messages before came to]\nin short", "q3"]


# For whom


async def test_members_of_a_team_have_their_own_memories(hub: Hub) -> None:
    mine, its = Summariser("lead "), Summariser("billing ")
    below, above = Parrot(), Parrot()
    billing = Agent("billing", model=below, memory=SummarisedTranscript(its, recent_n=2))
    lead = Agent("support", model=above, memory=SummarisedTranscript(mine, recent_n=1), agents=[billing])
    await talk(lead, hub, range(1, 4))
    await soon(lead.invoke("@billing", thread_id="t", hub=hub))
    await talk(lead, hub, range(5, 6))
    assert below.texts(0) == ["[What the 5 messages before came to]\nbilling 1: up to q3", "a3", "@billing"]
    assert below.texts(1) == [*below.texts(0), "abilling", "q5"]
    assert [given[-1] for given in mine.given] == ["a1", "a2"]
    assert [len(given) for given in its.given] == [5]
    assert await summaries(hub, lead) == ["", "", "support/billing"]


async def test_members_without_a_memory_share_the_summaries_of_their_lead(hub: Hub) -> None:
    summarise, below = Summariser(), Parrot()
    tax = Agent("tax", model=below)
    billing = Agent("billing", model=Parrot(), agents=[tax])
    lead = Agent("support", model=Parrot(), memory=SummarisedTranscript(summarise, recent_n=1), agents=[billing])
    await talk(lead, hub, range(1, 3))
    for who in ("billing", "tax", "tax"):
        await soon(lead.invoke(f"@{who}", thread_id="t", hub=hub))
    assert len(summarise.given) == 4, "one a turn, whoever answers"
    assert below.texts() == ["[What the 8 messages before came to]\n4: up to atax", "@tax"]


async def test_whoever_becomes_active_again_in_a_turn_is_shown_the_same(hub: Hub) -> None:
    summarise = Summariser()
    below = ScriptedModel([calls("request_help", {"reason": "too hard"})])
    above = ScriptedModel(["a1", calls("transfer_to_billing"), "I see."])
    billing = Agent("billing", model=below)
    memory = SummarisedTranscript(summarise, recent_n=1)
    lead = Agent("support", model=above, memory=memory, agents=[billing])
    await talk(lead, hub, range(1, 3))
    assert summarise.given == [["q1", "a1"]]
    shown = [("user", "[What the 2 messages before came to]\n1: up to a1"), ("user", "q2")]
    assert [list(request.history) for request in (*above.requests[1:], *below.requests)] == [shown] * 3


async def test_two_agents_of_a_channel_sum_up_for_themselves(hub: Hub) -> None:
    ones, others = Summariser("bob "), Summariser("eve ")
    bob, eve = ScriptedModel(["b1", "b2", "b3"]), ScriptedModel(["e1", "e2", "e3"])
    ann = await hub.register("ann")
    await hub.register(Agent("bob", model=bob, memory=SummarisedTranscript(ones, 1, named=True)))
    await hub.register(Agent("eve", model=eve, memory=SummarisedTranscript(others, 2)))
    channel = await ann.open(type="discussion", target=["bob", "eve"])
    for number in range(1, 4):
        await channel.send(f"q{number}")
        await wait_until(lambda: channel.state.expected_next_speaker == "ann")
    assert ones.given == [
        ["ann: q1", "b1", "eve: e1"],
        ["[What the 3 messages before came to]\n    bob 1: up to eve: e1", "ann: q2", "b2", "eve: e2"],
    ]
    assert others.given == [
        ["q1", "b1", "e1"],
        ["[What the 3 messages before came to]\neve 1: up to e1", "q2", "b2", "e2"],
    ]
    assert bob.requests[-1].messages == [
        ("user", "[What the 6 messages before came to]\n    bob 2: up to eve: e2"),
        ("user", "ann: q3"),
    ]
    assert eve.requests[-1].messages == [
        ("user", "[What the 6 messages before came to]\neve 2: up to e2"),
        ("user", "q3"),
        ("user", "b3"),
    ]


# A budget


async def test_a_budget_bounds_what_a_thread_costs(hub: Hub) -> None:
    model = Parrot()
    agent = Agent("ada", model=model, memory=TokenBudget(12, count=len))
    await talk(agent, hub, range(1, 201))
    assert model.texts(0) == ["q1"]
    assert model.texts(9) == ["[14 earlier messages not shown]", "q8", "a8", "q9", "a9", "q10"]
    assert model.texts() == ["[396 earlier messages not shown]", "q199", "a199", "q200"]
    assert max(len(request.history) for request in model.requests) == 7


async def test_a_count_that_fails_fails_its_turn_with_its_words(hub: Hub) -> None:
    def count(text: str) -> int:
        return 1 if text != "q2" else int(text)

    agent = Agent("ada", model=Parrot(), memory=TokenBudget(12, count=count))
    await talk(agent, hub, range(1, 2))
    with pytest.raises(TurnFailed, match="ValueError: invalid literal"):
        await soon(agent.invoke("q2", thread_id="t", hub=hub))
