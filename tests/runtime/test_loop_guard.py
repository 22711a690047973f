"""Loop detectors in hubs: agents that repeat themselves are stopped, and those that get on are not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Channel,
    FromSpeaker,
    Handoff,
    Hub,
    Limits,
    LoopDetector,
    Poll,
    Reply,
    ScriptedModel,
    TerminateTarget,
    Tier,
    Transition,
    TransitionGraph,
    calls,
    review_loop,
    says,
    tool,
)
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.core.protection_events import EV_AGENT_CORRECTED, EV_LOOP_DETECTED
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import Mind
from tests.support.waiting import soon, wait_until


class Desk:
    """A hub with a tool that notes what it is called with."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub, self.clock = hub, clock
        self.called: list[str] = []

    def search(self, **options: object) -> object:
        @tool(name="search", **options)  # type: ignore[call-overload]
        async def search(q: str, n: int = 1, why: str = "", tags: list[str] | None = None) -> str:
            self.called.append(q)
            return f"nothing for {q}"

        return search

    async def log_of(self, channel_id: str, *types: str) -> list[Mapping[str, object]]:
        return [each.event_data for each in await self.hub.log(channel_id) if each.event_type in types]

    async def actions(self, channel_id: str) -> list[object]:
        return [each["action"] for each in await self.log_of(channel_id, EV_LOOP_DETECTED)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


def look(**args: object) -> Reply:
    return calls("search", {"q": "x", **args}, text="Looking.")


async def test_the_turn_ends_with_what_was_said_and_innocent_calls_are_made(desk: Desk) -> None:
    last = [look(), calls("search", {"q": "other"}), calls("search", {"q": "x"})]
    model = ScriptedModel([look(n=1), look(), look(n=1), last, says("never asked")])
    agent = Agent("bob", model=model, tools=[desk.search()], guards=[LoopDetector()])
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("Looking.", "denied:loop")
    assert desk.called == ["x", "x", "other"]
    assert await desk.actions(reply.channel_id) == ["correct", "terminate"]
    told = [text for role, text in model.requests[3].messages if role == "tool"]
    assert told[-1].startswith("search was not called again: this would be call 3 with the same arguments")
    finished = await desk.log_of(reply.channel_id, EV_CALL_FINISHED)
    assert [each["result"] for each in finished if each["index"] == 8] == [{"returned": {"text": "nothing for other"}}]


async def test_an_agent_that_reads_what_it_did_may_go_on(desk: Desk) -> None:
    model = ScriptedModel([look(), look(), look(), calls("search", {"q": "y"}), says("Nothing for x and y.")])
    agent = Agent("bob", model=model, tools=[desk.search()], guards=["loop"])
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped, desk.called) == ("Nothing for x and y.", None, ["x", "x", "y"])


@pytest.mark.parametrize("tier", ["interactive", "batch"])
async def test_all_guards_of_a_tier_together_end_the_turn(desk: Desk, tier: Tier) -> None:
    model = ScriptedModel([look(n=1), look(n=1.0), look(), look(), says("never asked")])
    agent = Agent("bob", model=model, tools=[desk.search()], tier=tier)
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped, desk.called) == ("Looking.", "denied:loop", ["x", "x"])
    assert await desk.actions(reply.channel_id) == ["correct", "terminate"]


async def test_the_next_message_of_a_person_begins_anew(desk: Desk) -> None:
    model = ScriptedModel([look(), look(), says("Nothing."), look(), look(), says("Still nothing.")])
    agent = Agent("bob", model=model, tools=[desk.search()], tier="batch")
    for text in ("Nothing.", "Still nothing."):
        assert (await soon(agent.invoke("Go", thread_id="t", hub=desk.hub))).text == text
    assert desk.called == ["x"] * 4


@pytest.mark.parametrize(
    ("options", "variants"),
    [
        ({"volatile": ["why"]}, [{"why": "first"}, {"why": "second"}, {"why": "third"}]),
        ({"unordered": ["tags"]}, [{"tags": ["a", "b"]}, {"tags": ["b", "a"]}, {"tags": ["a", "b"]}]),
        ({}, [{}, {"n": 1}, {"n": 1, "tags": None}]),
        ({}, [{"n": 2}, {"n": 2.0}, {"n": 2}]),
    ],
    ids=["volatile", "unordered", "defaults", "numbers"],
)
async def test_the_options_of_a_tool_say_which_calls_are_the_same(
    desk: Desk, options: dict[str, object], variants: list[dict[str, object]]
) -> None:
    script = [*(look(**args) for args in variants), says("Nothing.")]
    agent = Agent("bob", model=ScriptedModel(script), tools=[desk.search(**options)], guards=["loop"])
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (desk.called, await desk.actions(reply.channel_id)) == (["x", "x"], ["correct"])


async def test_without_these_options_the_calls_differ(desk: Desk) -> None:
    script = [look(why="first"), look(why="second"), look(why="third"), look(tags=["a", "b"]), look(tags=["b", "a"])]
    model = ScriptedModel([*script, says("Nothing.")])
    agent = Agent("bob", model=model, tools=[desk.search()], guards=["loop"])
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (len(desk.called), await desk.actions(reply.channel_id)) == (5, [])


def test_runs(desk: Desk, *failing: int) -> object:
    left = iter(failing)

    @tool(progress_key=lambda result: str(result["failing"]))
    async def run_tests() -> dict[str, int]:
        desk.called.append("tests")
        return {"failing": next(left), "seconds": len(desk.called)}

    return run_tests


test_runs.__test__ = False  # type: ignore[attr-defined]


async def test_calls_that_show_progress_are_never_cut(desk: Desk) -> None:
    model = ScriptedModel([*[calls("run_tests")] * 9, says("All pass.")])
    agent = Agent("bob", model=model, tools=[test_runs(desk, *range(8, -1, -1))], tier="batch")
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (reply.text, len(desk.called), await desk.actions(reply.channel_id)) == ("All pass.", 9, [])


async def test_calls_that_show_none_are_cut_at_the_third(desk: Desk) -> None:
    model = ScriptedModel([*[calls("run_tests")] * 4, says("I give up.")])
    agent = Agent("bob", model=model, tools=[test_runs(desk, 5, 3, 3, 3)], tier="batch")
    reply = await soon(agent.invoke("Go", hub=desk.hub))
    assert (len(desk.called), await desk.actions(reply.channel_id)) == (3, ["correct"])
    finished = await desk.log_of(reply.channel_id, EV_CALL_FINISHED)
    digests = [each["progress"] for each in finished if "progress" in each]
    assert (len(digests), len(set(digests))) == (3, 2)
    assert all(isinstance(each, str) and len(each) == 64 for each in digests)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda result: result["missing"], "its progress_key failed: "),
        (lambda result: 7, "its progress_key gave 7; return a text"),
    ],
)
async def test_a_progress_key_that_fails_shows_no_progress(desk: Desk, function: object, why: str) -> None:
    @tool(progress_key=function)  # type: ignore[arg-type]
    async def check() -> str:
        desk.called.append("check")
        return f"state {len(desk.called)}"

    model = ScriptedModel([*[calls("check")] * 3, says("Checked.")])
    reply = await soon(Agent("bob", model=model, tools=[check], guards=["loop"]).invoke("Go", hub=desk.hub))
    assert len(desk.called) == 2
    [warned] = await desk.log_of(reply.channel_id, "antiphon.agent.warned")
    assert why in str(warned["message"])


async def test_a_poll_waits_for_its_time_and_is_no_loop(desk: Desk) -> None:
    @tool(poll=Poll(max=50, min_interval=30))
    async def status(job: int) -> str:
        desk.called.append("status")
        desk.clock.advance(31 if len(desk.called) != 3 else 10)
        return "running" if len(desk.called) < 6 else "done"

    ask = calls("status", {"job": 7})
    model = ScriptedModel([*[ask] * 4, calls("search", {"q": "meanwhile"}), says("It is still running.")])
    reply = await soon(
        Agent("bob", model=model, tools=[status, desk.search()], tier="batch").invoke("Go", hub=desk.hub)
    )
    assert desk.called == ["status"] * 3 + ["meanwhile"]
    told = [text for role, text in model.requests[-1].messages if role == "tool"]
    assert told[3].startswith("status was not called: it may be called again with these arguments in 20 s, at ")
    assert await desk.actions(reply.channel_id) == []


async def test_what_calls_are_compared_by_is_recorded_where_guards_are_asked_alone(desk: Desk) -> None:
    plain = Agent("cyd", model=ScriptedModel([look(), says("Nothing.")]), tools=[desk.search()])
    reply = await soon(plain.invoke("Go", hub=desk.hub))
    started = await desk.log_of(reply.channel_id, EV_CALL_STARTED)
    assert [each.keys() & {"same", "poll_max", "poll_seconds"} for each in started] == [set()] * 3


@pytest.mark.parametrize(("decision", "called"), [("approve", ["x", "x", "x"]), ("reject", ["x", "x"])])
async def test_in_the_regulated_tier_a_person_decides(desk: Desk, decision: str, called: list[str]) -> None:
    model = ScriptedModel([*[look()] * 4, says("That is all I found.")])
    await desk.hub.register(Agent("bob", model=model, tools=[desk.search()]))
    ann = await desk.hub.register("ann", kind="human")
    channel = await ann.open(target="bob", knobs={"tier": "regulated"})
    await channel.send("Go")
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    [request] = await desk.log_of(channel.channel_id, EV_APPROVAL_REQUESTED)
    assert (request["name"], request["guard"], desk.called) == ("search", "loop", ["x", "x"])
    assert await desk.actions(channel.channel_id) == ["correct", "escalate"]
    dana = await desk.hub.register("dana", kind="human")
    [waiting] = await desk.hub.approvals()
    assert waiting.why.startswith("bob repeats itself, also after it was told")
    await dana.decide(waiting.approval_id, decision)
    await wait_until(lambda: channel.state.last_speaker_id == "bob")
    assert desk.called == called
    assert (await desk.hub.log(channel.channel_id))[-1].event_data["text"] == "That is all I found."


async def test_a_crash_between_the_second_and_the_third_call_does_not_hide_the_loop(tmp_path: Path) -> None:
    called: list[str] = []

    @tool
    async def search(q: str) -> str:
        called.append(q)
        return "nothing"

    def agent(*replies: Reply) -> Agent:
        return Agent("bob", model=Mind(*replies), tools=[search], limits=Limits(model_seconds=None))

    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    async with Hub.open(f"sqlite:///{before / 'team.db'}", clock=ManualClock()) as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register(agent(look(), look()))
        channel = await ann.open(target="bob", knobs={"guards": ["loop"]})
        await channel.send("Go")
        await wait_until(lambda: called == ["x", "x"])
        shutil.copytree(before, after)  # what is on disk while the hub still runs
    clock = ManualClock()
    async with Hub.open(f"sqlite:///{after / 'team.db'}", clock=clock) as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register(agent(look(), look(), look(), says("never asked")))
        channel = await ann.channel(channel.channel_id)
        await wait_until(lambda: any(turn.not_before for turn in channel.state.owed))
        clock.advance(5)  # over the pause after a crash
        await wait_until(lambda: channel.state.last_speaker_id == "bob")
        log = await hub.log(channel.channel_id)
    started = [each for each in log if each.event_type == EV_CALL_STARTED and each.event_data["name"] == "search"]
    trips = [each.event_data["action"] for each in log if each.event_type == EV_LOOP_DETECTED]
    assert len({each.event_data["index"] for each in started}) == 4
    assert called[:2] == ["x", "x"]
    assert len(called) <= 3  # the second call was made again if its result was not on disk yet
    assert trips == ["correct", "terminate"]


# What agents say to each other


def repeats(*texts: str) -> ScriptedModel:
    return ScriptedModel([says(text) for text in texts])


async def test_a_discussion_that_goes_nowhere_is_told_once_and_ends(desk: Desk) -> None:
    writer = repeats(*["Please continue with the report."] * 4)
    other = repeats(*[f"I cannot, data set {number} is missing." for number in range(4)])
    ann = await desk.hub.register("ann")
    await desk.hub.register(Agent("writer", model=writer))
    await desk.hub.register(Agent("analyst", model=other))
    turns = [Transition(FromSpeaker("writer"), AgentTarget("analyst"))]
    graph = TransitionGraph("writer", turns, AgentTarget("writer"))
    knobs = {"graph": graph.to_dict(), "guards": ["loop"]}
    channel = await ann.open(type="workflow", target=["writer", "analyst"], knobs=knobs)
    assert await soon(channel.closed()) == "loop"
    [note] = [each for each in await desk.hub.log(channel.channel_id) if each.event_type == EV_AGENT_CORRECTED]
    assert note.audience == ["writer", "hub:operators"]
    shown = [[text for _, text in request.messages] for request in writer.requests]
    assert [sum("[note] You have said the same 3 times" in text for text in texts) for texts in shown] == [0, 0, 0, 1]
    assert not any("[note]" in text for request in other.requests for _, text in request.messages)


def coder(*, stubborn: bool = False) -> ScriptedModel:
    """Writes a new version each time, or always the same one."""
    return repeats(*[f"Here is the patch, version {1 if stubborn else number}." for number in range(12)])


def reviewer(*, same_words: bool = False) -> ScriptedModel:
    """Finds something else each time, or says it in the same words, and approves the tenth version."""
    return repeats(*[f"Not yet: fix line {1 if same_words else number}." for number in range(9)], "Approved.")


async def run_review(desk: Desk, coder: ScriptedModel, *, same_words: bool = False) -> Channel:
    ann = await desk.hub.register("ann")
    await desk.hub.register(Agent("coder", model=coder))
    await desk.hub.register(Agent("reviewer", model=reviewer(same_words=same_words)))
    graph = review_loop("coder", "reviewer", most_rounds=12, opener="ann")
    knobs = {"graph": graph.to_dict(), "tier": "batch"}
    channel = await ann.open(type="workflow", target=["coder", "reviewer"], knobs=knobs)
    await channel.send("Write the patch.")
    return channel


async def test_an_orchestrator_may_hand_over_with_the_same_words(desk: Desk) -> None:
    @tool
    async def assign(worker: str) -> Handoff:
        desk.called.append(worker)
        return Handoff(worker)

    over = calls("assign", {"worker": "worker"}, text="Please continue with the plan.")
    boss = Agent("boss", model=ScriptedModel([*[over] * 5, says("All parts are done.")]), tools=[assign])
    worker = Agent("worker", model=repeats(*[f"Part {number} is done." for number in range(5)]))
    ann = await desk.hub.register("ann")
    await desk.hub.register(boss)
    await desk.hub.register(worker)
    turns = [Transition(FromSpeaker("worker"), AgentTarget("boss"))]
    graph = TransitionGraph("boss", turns, TerminateTarget("done"))
    knobs = {"graph": graph.to_dict(), "tier": "batch"}
    channel = await ann.open(type="workflow", target=["boss", "worker"], knobs=knobs)
    assert await soon(channel.closed()) == "done"
    assert (len(desk.called), await desk.actions(channel.channel_id)) == (5, [])


async def test_members_of_a_team_are_told_apart(desk: Desk) -> None:
    @tool(name="read")
    async def read(page: int) -> str:
        desk.called.append(str(page))
        return "nothing"

    page = calls("read", {"page": 1})
    legal = Agent("legal", model=ScriptedModel([page, page, says("I have read it twice.")]), tools=[read])
    lead = Agent(
        "lead",
        model=ScriptedModel([page, page, calls("transfer_to_legal", {"reason": "to read it"})]),
        tools=[read],
        agents=[legal],
        guards=["loop"],
    )
    reply = await soon(lead.invoke("Read page 1", hub=desk.hub))
    assert (reply.text, desk.called) == ("I have read it twice.", ["1"] * 4)
    assert await desk.actions(reply.channel_id) == []


@pytest.mark.parametrize("same_words", [False, True])
async def test_reviews_that_make_progress_are_never_cut(desk: Desk, same_words: bool) -> None:
    channel = await run_review(desk, coder(), same_words=same_words)
    assert await soon(channel.closed()) == "approved"
    assert await desk.actions(channel.channel_id) == []
    assert channel.state.turn_count == 21


async def test_reviews_that_make_none_are_cut_at_the_stated_repeat(desk: Desk) -> None:
    channel = await run_review(desk, coder(stubborn=True))
    assert await soon(channel.closed()) == "loop"
    loops = await desk.log_of(channel.channel_id, EV_LOOP_DETECTED)
    assert [(each["agent"], each["action"], each["count"]) for each in loops] == [
        ("coder", "correct", 3),
        ("coder", "terminate", 4),
    ]
