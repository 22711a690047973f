"""What surrounds the steps: memory, tools and models that cannot use them, tasks, default tools, events, patching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    DEFAULT_TOOLS,
    END,
    EV_TASK_COMPLETED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    Agent,
    AgentReply,
    AntiphonError,
    Hub,
    Intent,
    Progress,
    Reply,
    Request,
    ScriptedModel,
    Steps,
    TurnChannel,
    TurnFailed,
    UsageError,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import (
    ASK,
    FIVE,
    GO_ON,
    active_in,
    add,
    agent,
    asked,
    events_of,
    kinds,
    line_of,
    log_of,
    look_up,
    said_in,
    warnings_of,
)
from tests.support.waiting import soon


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def result_of(who: Agent, hub: Hub, thread_id: str = "t") -> str:
    """What the last call of a turn came to, as the model read it."""
    await soon(who.invoke("go", thread_id=thread_id, hub=hub))
    return asked(who)[-1].messages[-1].text


# Memory of threads


async def test_a_thread_is_kept_and_gone_on_with(hub: Hub) -> None:
    support = agent("support", "one", "two", "three")
    replies = [await support.invoke(text, thread_id=key, hub=hub) for text, key in (("a", "x"), ("b", "y"), ("c", "x"))]
    assert replies[0].channel_id == replies[2].channel_id != replies[1].channel_id
    assert asked(support)[2].messages == [("user", "a"), ("assistant", "one"), ("user", "c")]
    assert asked(support)[1].messages == [("user", "b")]


def test_without_a_store_that_is_named_it_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTIPHON_STORE", "POSTGRES_URL"):
        monkeypatch.delenv(name, raising=False)
    billing = agent("billing", "one", "two")
    support = agent("forgetful_support", calls("transfer_to_billing"), agents=[billing])
    replies = [asyncio.run(support.invoke(text, thread_id="kept")) for text in ("a", "b")]
    assert [(reply.text, reply.agent) for reply in replies] == [("one", "billing"), ("two", "billing")]


@pytest.mark.parametrize(
    "url",
    ["postgresql://nobody@127.0.0.1:1/none", "postgres://nobody@127.0.0.1:1/none", "mysql://x", "nonsense", "/x/y"],
)
async def test_a_store_that_is_named_and_cannot_be_used_is_an_error_and_never_memory(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.delenv("ANTIPHON_STORE", raising=False)
    monkeypatch.setenv("POSTGRES_URL", url)
    support = agent("support", "hello", agents=[agent("billing")])
    with pytest.raises(AntiphonError):
        await soon(support.invoke("hello"))
    with pytest.raises(AntiphonError):
        await soon(anext(support.stream_invoke("hello")))
    assert asked(support) == []


async def test_the_store_that_is_named_for_us_goes_before_that_of_everybody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", f"sqlite:///{tmp_path / 'team.db'}")
    monkeypatch.setenv("POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert (await soon(agent("support", "hello").invoke("hello"))).text == "hello"
    assert (tmp_path / "team.db").exists()


async def test_twenty_messages_at_once_are_all_answered_each_after_its_message(hub: Hub) -> None:
    """By a team of which another answers each time: nothing is lost, and nothing is mixed up."""

    async def lead(request: Request) -> Reply:
        return calls("transfer_to_billing") if len(request.messages) % 2 else says("lead")

    async def other(request: Request) -> Reply:
        heard = [text for role, text in request.messages if role == "user"][-1]
        return says(f"re: {heard}")

    support = Agent("support", model=lead, agents=[Agent("billing", model=other)])
    work = (support.invoke(f"m{number}", thread_id="t", hub=hub) for number in range(20))
    replies = await asyncio.wait_for(asyncio.gather(*work), 20)
    assert [reply.text for reply in replies] == [f"re: m{number}" for number in range(20)]
    said = await log_of(support, hub, EV_TEXT)
    places = {each.envelope_id: each for each in said}
    answers = [each for each in said if each.sender_id == "support"]
    assert (len(said), len(answers)) == (40, 20)
    for answer in answers:
        message = places[answer.causation_id or ""]
        assert answer.event_data["text"] == f"re: {message.event_data['text']}"
        assert answer.sequence > message.sequence


# Tools and models


async def test_every_tool_is_offered_to_the_model_from_the_first_call_on(hub: Hub) -> None:
    support = agent("support", "hello", tools=[add, look_up], agents=[agent("billing")])
    await support.invoke("hello", hub=hub)
    assert asked(support)[0].tools == [
        "add",
        "look_up",
        "transfer_to_billing",
        *(name for name in DEFAULT_TOOLS if name != "request_help"),
    ]
    spec = next(spec for spec in asked(support)[0].specs if spec.name == "add")
    assert spec.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}


class Talker(ScriptedModel):
    """A model that calls no tools."""

    calls_tools = False


def talker(name: str, *script: object, **options: object) -> Agent:
    return Agent(name, model=Talker(script), **options)  # type: ignore[arg-type]  # a script, and any option


async def test_a_model_that_calls_no_tools_talks_without_and_that_is_recorded(hub: Hub) -> None:
    support = talker("support", "hello", "again", tools=[add], system_prompt="Be brief.")
    for number in (1, 2):
        await support.invoke("hello", thread_id="t", hub=hub)
        assert await warnings_of(support, hub) == [("no_tool_calls", "support")] * number
    assert [(request.tools, request.specs) for request in asked(support)] == [([], ())] * 2
    [first, _] = await log_of(support, hub, "antiphon.agent.warned")
    assert first.event_data["message"] == (
        "its model calls no tools; it does without: add, get_time_date, list_tools_available,"
        " list_subagents_available, list_intents_available"
    )


async def test_a_model_that_calls_no_tools_may_be_that_of_a_sub_agent(hub: Hub) -> None:
    support = agent("support", calls("transfer_to_billing"), agents=[talker("billing", "hello")])
    assert (await support.invoke("hello", thread_id="t", hub=hub)).text == "hello"
    assert await warnings_of(support, hub) == [("no_tool_calls", "support/billing")]


async def test_a_model_that_calls_no_tools_is_told_of_by_the_list_of_tools(hub: Hub) -> None:
    """An intent can call the tool for it."""
    intents = [Intent("what can you do", tool="list_tools_available")]
    support = talker("support", "I can only talk.", tools=[add], intents=intents)
    await support.invoke("What can you do?", hub=hub)
    assert asked(support)[0].messages[-1].text.splitlines()[:2] == [
        "Your model does not call tools: you can only talk. There would be:",
        "- add: Add two numbers.",
    ]


def test_a_model_that_calls_no_tools_can_be_refused_when_the_agent_is_made() -> None:
    with pytest.raises(UsageError, match="'support' requires tools, which its model does not call"):
        talker("support", require_tools=True)
    assert talker("support", require_tools=False).require_tools is False


@pytest.mark.parametrize(("require", "reason"), [(None, "tools_required"), (False, None)])
async def test_a_model_that_calls_no_tools_fails_its_turn_where_the_tier_is_regulated(
    hub: Hub, require: bool | None, reason: str | None
) -> None:
    support = talker("support", "hello", tools=[add], require_tools=require)
    await hub.register(support)
    dana = await hub.register("dana", kind="human")
    channel = await dana.open(target="support", knobs={"tier": "regulated"})
    await channel.send("hello")
    log = await _until_settled(hub, channel.channel_id)
    failed = [each.event_data["reason"] for each in log if each.event_type == "antiphon.turn.failed"]
    assert failed == ([] if reason is None else [reason])
    assert len(asked(support)) == (1 if reason is None else 0)


async def _until_settled(hub: Hub, channel_id: str) -> list[object]:
    """The log once a turn has ended or failed."""

    async def settled() -> None:
        async for each in hub.subscribe(channel_id):
            if each.event_type == "antiphon.turn.failed" or (
                each.event_type == EV_TEXT and each.sender_id == "support"
            ):
                return

    await soon(settled())
    return list(await hub.log(channel_id))


# Sub-agents, and tasks beside them


async def test_a_sub_agent_runs_its_whole_cycle_and_its_answer_is_the_answer(hub: Hub) -> None:
    billing = agent("billing", calls("look_up", {"order": "7"}), "42 euros", tools=[look_up])
    support = agent("support", calls("transfer_to_billing"), tools=[billing])
    reply = await support.invoke("order 7?", thread_id="t", hub=hub)
    assert (reply.text, reply.agent) == ("42 euros", "billing")
    assert [name for name, _ in await said_in(hub, reply.channel_id)] == ["user", "support"]


async def test_a_task_is_done_elsewhere_and_whoever_gave_it_stays_active(hub: Hub) -> None:
    clerk = agent("clerk", calls("look_up", {"order": "7"}), "42 euros", tools=[look_up])
    script = [calls("delegate_to_clerk", {"task": "order 7"}), "The clerk says 42 euros."]
    support = agent("support", *script, tools=[delegate(clerk)], agents=[agent("billing")])
    reply = await soon(support.invoke("order 7?", thread_id="t", hub=hub))
    assert (reply.text, reply.agent) == ("The clerk says 42 euros.", "support")
    assert await active_in(support, hub) == "support"
    told = await log_of(support, hub, EV_TASK_STARTED, EV_TASK_PROGRESS, EV_TASK_COMPLETED)
    assert [each.event_type for each in told] == [EV_TASK_STARTED, EV_TASK_PROGRESS, EV_TASK_COMPLETED]
    assert {(each.event_data["agent"], each.event_data["by"]) for each in told} == {("clerk", "support")}
    child = str(told[0].event_data["task"])
    assert await said_in(hub, child) == [("support", "order 7"), ("clerk", "42 euros")]
    assert [row.close_reason for row in await hub.channels() if row.channel_id == child] == ["answered"]


async def test_a_task_may_be_given_from_within_a_sub_agent_and_fail_there(hub: Hub) -> None:
    clerk = agent("clerk", RuntimeError("no capacity"))
    failures: list[str] = []

    @tool
    async def consult(channel: TurnChannel) -> str:
        """Ask the clerk."""
        try:
            return (await channel.delegate(clerk, "order 7")).text
        except TurnFailed as failed:
            failures.append(failed.reason)
            return "The clerk is out."

    billing = agent("billing", calls("consult"), "Nobody is there.", tools=[consult])
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    reply = await soon(support.invoke("order 7?", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, failures) == ("Nobody is there.", "billing", ["model_error"])


async def test_a_task_for_an_agent_with_a_team_is_answered_by_its_team(hub: Hub) -> None:
    reports: list[AgentReply] = []
    clerk = agent("clerk", calls("transfer_to_archive"), agents=[agent("archive", "It is in box 3.")])

    @tool
    async def consult(channel: TurnChannel) -> str:
        """Ask the clerk."""
        reports.append(await channel.delegate(clerk, "where is it?"))
        return reports[0].text

    support = agent("support", calls("consult"), "In box 3.", tools=[consult])
    assert (await soon(support.invoke("where?", hub=hub))).text == "In box 3."
    assert [(report.text, report.agent, report.stopped) for report in reports] == [("It is in box 3.", "archive", None)]


# Default tools


async def test_default_tools_of_an_agent_alone_of_a_lead_and_of_a_sub_agent(hub: Hub) -> None:
    billing = agent("billing", "billing here")
    support, alone = agent("support", "lead here", agents=[billing]), agent("alone", "hello")
    await alone.invoke("hello", hub=hub)
    for text in ("hello", "@billing hello"):
        await support.invoke(text, thread_id="t", hub=hub)
    four = ["get_time_date", "list_tools_available", "list_subagents_available", "list_intents_available"]
    both = ["get_current_active_agent", "get_supervisor_agent"]
    assert asked(alone)[0].tools == four
    assert asked(support)[0].tools == ["transfer_to_billing", *four, *both]
    assert asked(billing)[0].tools == [*four, "request_help", *both]
    assert sorted(asked(billing)[0].tools) == sorted(DEFAULT_TOOLS)


@pytest.mark.parametrize(
    ("timezone", "expected"),
    [
        ({}, "2026-01-01T00:00:00+00:00 (Thursday, UTC)"),
        ({"timezone": "Asia/Tokyo"}, "2026-01-01T09:00:00+09:00 (Thursday, Asia/Tokyo)"),
        ({"timezone": "America/New_York"}, "2025-12-31T19:00:00-05:00 (Wednesday, America/New_York)"),
        (
            {"timezone": "Mars/Base"},
            "ValueError: no time zone is known as 'Mars/Base'; give a name such as Europe/Paris",
        ),
        (
            {"timezone": "../../etc/passwd"},
            "ValueError: no time zone is known as '../../etc/passwd'; give a name such as Europe/Paris",
        ),
    ],
)
async def test_get_time_date_gives_the_time_in_a_zone(hub: Hub, timezone: dict[str, object], expected: str) -> None:
    assert await result_of(agent("support", calls("get_time_date", timezone), "done"), hub) == expected


async def test_list_tools_available_lists_all_that_the_agent_can_use(hub: Hub) -> None:
    support = agent("support", calls("list_tools_available"), "done", tools=[add], agents=[agent("billing")])
    lines = (await result_of(support, hub)).splitlines()
    assert lines[0] == "- add: Add two numbers."
    assert [line.removeprefix("- ").partition(":")[0] for line in lines] == asked(support)[0].tools


async def test_list_subagents_available_lists_those_one_level_down(hub: Hub) -> None:
    billing = agent("billing", description="Knows about money.", agents=[agent("tax")])
    support = agent("support", calls("list_subagents_available"), "done", agents=[billing, agent("legal")])
    assert await result_of(support, hub) == "- billing: Knows about money.\n- legal: no description"
    assert await result_of(agent("alone", calls("list_subagents_available"), "done"), hub) == "There are none."


async def test_list_intents_available_lists_what_is_configured(hub: Hub) -> None:
    intents = [
        Intent("opening hours", answer="9 to 5"),
        Intent("my order", tool="look_up", args={"order": "7"}),
        Intent("my bill", agent="billing"),
    ]
    options = {"tools": [look_up], "agents": [agent("billing")], "intents": intents}
    support = agent("support", calls("list_intents_available"), "done", **options)
    assert await result_of(support, hub) == (
        "- 'opening hours': a fixed answer\n- 'my order': the tool look_up\n- 'my bill': the agent billing"
    )
    assert await result_of(agent("alone", calls("list_intents_available"), "done"), hub) == "There are none."


async def test_who_is_active_and_who_leads_at_every_level(hub: Hub) -> None:
    both = [calls("get_current_active_agent"), calls("get_supervisor_agent")]
    tax = agent("tax", both, "done")
    billing = agent("billing", both, "done", agents=[tax])
    support = agent("support", both, "done", agents=[billing])
    expected = {
        support: ["support", "Nobody: you lead this team."],
        billing: ["billing", "support"],
        tax: ["tax", "billing"],
    }
    for who, results in expected.items():
        await support.invoke(f"@{who.name} who?", thread_id="t", hub=hub)
        assert [text for role, text in asked(who)[1].messages if role == "tool"] == results


@pytest.mark.parametrize("name", DEFAULT_TOOLS)
async def test_each_default_tool_can_be_done_without(hub: Hub, name: str) -> None:
    billing = agent("billing", "billing here", without=[name])
    await agent("support", agents=[billing]).invoke("@billing hello", hub=hub)
    assert asked(billing)[0].tools == [each for each in DEFAULT_TOOLS if each != name]


async def test_a_tool_of_one_s_own_stands_in_place_of_a_default_one(hub: Hub) -> None:
    @tool
    async def get_time_date() -> str:
        """Always the same."""
        return "tea time"

    support = agent("support", calls("get_time_date"), "done", tools=[get_time_date])
    assert await result_of(support, hub) == "tea time"
    assert asked(support)[0].tools.count("get_time_date") == 1


# Intents


async def test_intents_of_a_sub_agent_are_known_to_whom_they_are_said(hub: Hub) -> None:
    """Addressed by name, or active: the phrase is what is said to it."""
    billing = agent("billing", intents=[Intent("opening hours", answer="9 to 5")])
    support = agent("support", "Ask billing.", agents=[billing])
    texts = ("opening hours", "@billing opening hours", "Opening  hours?")
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in texts]
    assert [(reply.text, reply.agent) for reply in replies] == [
        ("Ask billing.", "support"),
        ("9 to 5", "billing"),
        ("9 to 5", "billing"),
    ]


# Events, as they are streamed


async def test_every_significant_moment_is_told_by_an_event_of_its_own_type(hub: Hub) -> None:
    support = agent("support", calls("look_up", {"order": "7"}, text="Let me see."), "42 euros.", tools=[look_up])
    events = await events_of(support, "order 7?", hub, tokens=True)
    assert kinds(events) == [
        *["Token"] * 3,
        "ToolUsage",
        "ToolResponse",
        *["Token"] * 2,
        "AIMessage",
        "FinalState",
    ]
    assert [line_of(event) for event in events if "Token" not in type(event).__name__] == [
        'tool_usage 6/support/1 support: look_up {"order":"7"}',
        'tool_response 6/support/1 support: look_up gave "42 euros"',
        'ai_message support: "42 euros."',
        'final support: "42 euros."',
    ]


async def test_every_response_of_a_turn_is_streamed_not_only_the_first(hub: Hub) -> None:
    script = [[calls("add", {"a": number, "b": 1}) for number in range(3)], calls("add", {"a": 9, "b": 9})]
    billing = agent("billing", calls("add", {"a": 5, "b": 5}), "done", tools=[add])
    support = agent("support", *script, calls("transfer_to_billing"), tools=[add], agents=[billing])
    events = await events_of(support, "go", hub)
    texts = [event.text for event in events if type(event).__name__ == "ToolResponseEvent"]  # type: ignore[union-attr]
    assert texts == ["1", "2", "3", "18", "Conversation transferred to billing.", "10"]


# The patcher


async def test_the_patcher_is_called_when_the_agent_is_made_and_gets_the_whole_table(hub: Hub) -> None:
    given: list[list[str]] = []

    def patch(steps: Steps) -> Steps:
        given.append(steps.names)
        return steps

    plain = agent("support", "hello", patcher=patch)
    agent("with_intents", intents=[Intent("hello", answer="hello")], patcher=patch)
    assert given == [FIVE, [*FIVE[:2], "match_intents", *FIVE[2:]]]
    await plain.invoke("hello", hub=hub)
    assert len(given) == 2


async def test_the_patcher_adds_steps_exits_and_conditional_branches(hub: Hub) -> None:
    def count(progress: Progress) -> Progress:
        return progress.replace(notes={"asked": int(progress.notes.get("asked", 0)) + 1})  # type: ignore[call-overload]

    def enough(progress: Progress) -> bool:
        return progress.notes["asked"] == 2

    def patch(steps: Steps) -> Steps:
        return steps.insert_before(ASK, count).branch("count", enough, END)

    support = agent("support", calls("add", {"a": 1, "b": 2}, text="Adding."), tools=[add], patcher=patch)
    reply = await support.invoke("go", hub=hub)
    assert (reply.text, reply.stopped, len(asked(support))) == ("Adding.", None, 1)


@pytest.mark.parametrize(
    ("patch", "complaint"),
    [
        (lambda steps: None, "the patcher of 'support' returned None"),
        (lambda steps: steps.branch(GO_ON, lambda progress: True, "nowhere"), "leads to 'nowhere'; there are: "),
        (lambda steps: steps.insert_before("nowhere", lambda progress: None), "there is no step 'nowhere'"),
    ],
)
def test_a_table_by_which_no_turn_can_be_taken_is_refused_when_the_agent_is_made(patch: object, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        agent("support", patcher=patch)


async def test_a_step_that_raises_fails_the_turn_with_its_words(hub: Hub) -> None:
    def broken(progress: Progress) -> None:
        raise LookupError("no such step")

    support = agent("support", "hello", patcher=lambda steps: steps.insert_before(ASK, broken))
    with pytest.raises(TurnFailed, match="broken: LookupError: no such step") as caught:
        await support.invoke("hello", hub=hub)
    assert caught.value.reason == "step_error"
