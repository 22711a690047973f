"""The tools that every agent has: who has which, what each says, and how to do without."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    DEFAULT_TOOLS,
    Agent,
    Hub,
    Intent,
    Reply,
    Request,
    ScriptedModel,
    ToolResponseEvent,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.agents.default_tools import OPTIONAL_DEFAULTS
from antiphon.core.envelope import Json
from antiphon.core.text import describe
from antiphon.testing import ManualClock

MODEL = ScriptedModel([])
ABOUT = ["get_time_date", "list_tools_available", "list_subagents_available", "list_intents_available"]
TEAM = ["get_current_active_agent", "get_supervisor_agent"]
NOON = "2026-07-01T12:34:56.789012Z"


def agent(name: str, *below: Agent, **options: object) -> Agent:
    return Agent(**{"name": name, "model": MODEL, "agents": below, **options})


# Who has which


def test_there_are_seven() -> None:
    assert [*DEFAULT_TOOLS] == [*ABOUT, "request_help", *TEAM]
    assert (*DEFAULT_TOOLS, "current_date") == OPTIONAL_DEFAULTS


LEAD = agent("lead1", agent("middle", agent("leaf"), without=TEAM), agent("other"))


@pytest.mark.parametrize(
    ("lead", "path", "names"),
    [
        (agent("alone"), ("alone",), ABOUT),
        (LEAD, ("lead1",), ["transfer_to_middle", "transfer_to_other", *ABOUT, *TEAM]),
        (LEAD, ("lead1", "middle"), ["transfer_to_leaf", *ABOUT, "request_help"]),
        (LEAD, ("lead1", "middle", "leaf"), [*ABOUT, "request_help", *TEAM]),
        (LEAD, ("lead1", "other"), [*ABOUT, "request_help", *TEAM]),
        (agent("alone", without=DEFAULT_TOOLS), ("alone",), []),
        (agent("alone", without=ABOUT[1:]), ("alone",), ABOUT[:1]),
        (agent("alone", without=["request_help", *TEAM, "current_date"]), ("alone",), ABOUT),
        (agent("alone", without=["get_time_date", "get_time_date"]), ("alone",), ABOUT[1:]),
    ],
)
def test_who_has_which(lead: Agent, path: tuple[str, ...], names: list[str]) -> None:
    member = lead.team.members[path]
    assert list(member.tools) == names == [spec.name for spec in member.specs]


@pytest.mark.parametrize("name", DEFAULT_TOOLS)
def test_each_can_be_done_without(name: str) -> None:
    below = agent("below", without=[name])
    left = agent("above", below).team.members["above", "below"].tools
    assert list(left) == [each for each in DEFAULT_TOOLS if each != name]
    assert below.without == (name,)


@pytest.mark.parametrize(
    ("without", "told"),
    [
        (
            ["time"],
            "'x' cannot do without 'time'; there are: get_time_date, list_tools_available, list_subagents_available",
        ),
        (["get_time_date", "transfer_to_a"], "'x' cannot do without 'transfer_to_a'; there are: "),
        ([""], "'x' cannot do without ''; there are: "),
        ([None], "without of 'x' holds None; give a list of names of default tools"),
        ("get_time_date", "without of 'x' is 'get_time_date'; give a list of names of default tools"),
    ],
)
def test_only_what_is_there_can_be_done_without(without: object, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        agent("x", without=without)
    assert told in str(refused.value)


def test_what_a_model_is_told_of_them() -> None:
    specs = {spec.name: spec for spec in agent("above", agent("below")).team.members["above", "below"].specs}
    assert {name: spec.description for name, spec in specs.items()} == {
        "get_time_date": "The date and time now.",
        "list_tools_available": "The tools that you can use.",
        "list_subagents_available": "The agents that you can hand over to.",
        "list_intents_available": "The phrases that are understood at once, and what each leads to.",
        "request_help": (
            "Give the conversation back to whoever you work for, when you are stuck or it is not your part."
        ),
        "get_current_active_agent": "Who is speaking for the team now.",
        "get_supervisor_agent": "Whom you work for.",
    }
    parameters = {name: spec.parameters["properties"] for name, spec in specs.items() if spec.parameters["properties"]}
    assert parameters == {
        "get_time_date": {
            "timezone": {"type": "string", "default": "UTC", "description": "A name such as Europe/Paris."}
        },
        "request_help": {"reason": {"type": "string", "description": "What you need, or why you cannot go on."}},
    }


# What each says


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock(NOON)) as hub:
        yield hub


async def told(hub: Hub, lead: Agent, text: str = "Hello.") -> list[tuple[str, str, bool]]:
    """What the tools said that were called in a turn: by whom, what, and whether in vain."""
    events = [event async for event in lead.stream_invoke(text, hub=hub)]
    return [(event.agent, event.text, event.failed) for event in events if isinstance(event, ToolResponseEvent)]


def using(name: str, args: Json | None = None) -> ScriptedModel:
    return ScriptedModel([calls(name, args), says("So.")])


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "2026-07-01T12:34:56+00:00 (Wednesday, UTC)"),
        ({"timezone": "UTC"}, "2026-07-01T12:34:56+00:00 (Wednesday, UTC)"),
        ({"timezone": "Europe/Paris"}, "2026-07-01T14:34:56+02:00 (Wednesday, Europe/Paris)"),
        ({"timezone": "America/Los_Angeles"}, "2026-07-01T05:34:56-07:00 (Wednesday, America/Los_Angeles)"),
        ({"timezone": "Pacific/Kiritimati"}, "2026-07-02T02:34:56+14:00 (Thursday, Pacific/Kiritimati)"),
        ({"timezone": "Asia/Kathmandu"}, "2026-07-01T18:19:56+05:45 (Wednesday, Asia/Kathmandu)"),
    ],
)
async def test_the_time_in_any_zone(hub: Hub, args: Json, text: str) -> None:
    assert await told(hub, agent("bob", model=using("get_time_date", args))) == [("bob", text, False)]


async def test_the_time_is_that_of_the_hub() -> None:
    clock = ManualClock("2026-01-31T23:59:59.999999Z")
    async with Hub.open("memory:", clock=clock) as hub:
        script = [calls("get_time_date"), says("So."), calls("get_time_date"), says("So.")]
        bob = agent("bob", model=ScriptedModel(script))
        assert await told(hub, bob) == [("bob", "2026-01-31T23:59:59+00:00 (Saturday, UTC)", False)]
        await clock.advance(1)
        assert await told(hub, bob) == [("bob", "2026-02-01T00:00:00+00:00 (Sunday, UTC)", False)]


ZONES = [
    *[
        "Paris",
        "Europe/Pari",
        "Europe/Paris ",
        "Europe/Paris\n",
        "Europe\\Paris",
        "\N{ZERO WIDTH SPACE}UTC",
        "GMT+25:00",
    ],
    *["", ".", "..", "Europe", "../../etc/passwd", "/etc/localtime", "a" * 500],
]


@pytest.mark.parametrize("zone", ZONES, ids=lambda zone: ascii(zone)[:20])
async def test_a_time_zone_that_there_is_not_is_told_to_the_model(hub: Hub, zone: str) -> None:
    text = f"ValueError: no time zone is known as {describe(zone)}; give a name such as Europe/Paris"
    assert await told(hub, agent("bob", model=using("get_time_date", {"timezone": zone}))) == [("bob", text, True)]


@pytest.mark.parametrize("args", [{"timezone": 7}, {"timezone": None}, {"zone": "UTC"}])
async def test_arguments_that_do_not_fit_are_told_to_the_model(hub: Hub, args: Json) -> None:
    [(_, text, failed)] = await told(hub, agent("bob", model=using("get_time_date", args)))
    assert failed
    assert text.startswith("The arguments of get_time_date do not fit: ")


@tool
def pay(amount: int) -> str:
    """Pay somebody.

    It cannot be undone.
    """
    return f"paid {amount}"


async def test_the_tools_that_there_are(hub: Hub) -> None:
    bob = agent("bob", model=using("list_tools_available"), tools=[pay], without=[ABOUT[2], ABOUT[3]])
    lines = [
        "- pay: Pay somebody.",
        "- get_time_date: The date and time now.",
        "- list_tools_available: The tools that you can use.",
    ]
    assert await told(hub, bob) == [("bob", "\n".join(lines), False)]


async def test_the_sub_agents_that_there_are(hub: Hub) -> None:
    below = [agent("tax", description="Knows taxes."), agent("law")]
    bob = agent("bob", *below, model=using("list_subagents_available"))
    assert await told(hub, bob) == [("bob", "- tax: Knows taxes.\n- law: no description", False)]
    assert await told(hub, agent("ann", model=using("list_subagents_available"))) == [("ann", "There are none.", False)]


async def test_the_phrases_that_are_understood(hub: Hub) -> None:
    intents = [Intent("hi", answer="Ho."), Intent("pay", tool="pay", args={"amount": 7}), Intent("tax", agent="tax")]
    bob = agent("bob", agent("tax"), tools=[pay], intents=intents, model=using("list_intents_available"))
    text = "- 'hi': a fixed answer\n- 'pay': the tool pay\n- 'tax': the agent tax"
    assert await told(hub, bob) == [("bob", text, False)]
    assert await told(hub, agent("ann", model=using("list_intents_available"))) == [("ann", "There are none.", False)]


async def test_who_is_active_and_for_whom(hub: Hub) -> None:
    def asking(then: Reply) -> ScriptedModel:
        return ScriptedModel([[calls(name) for name in TEAM], then])

    leaf = agent("leaf", model=asking(says("So.")))
    middle = agent("middle", leaf, model=asking(calls("transfer_to_leaf", {"reason": "why not"})))
    lead = agent("boss", middle, model=asking(calls("transfer_to_middle")))
    assert await told(hub, lead) == [
        ("boss", "boss", False),
        ("boss", "Nobody: you lead this team.", False),
        ("boss", "Conversation transferred to middle.", False),
        ("middle", "middle", False),
        ("middle", "boss", False),
        ("middle", "Conversation transferred to leaf.", False),
        ("leaf", "leaf", False),
        ("leaf", "middle", False),
    ]


async def test_help_is_the_reason_and_gives_the_turn_back(hub: Hub) -> None:
    below = agent("tax", model=ScriptedModel([calls("request_help", {"reason": "Too hard."})]))
    lead = agent("bob", below, model=ScriptedModel([calls("transfer_to_tax"), says("Let me see.")]))
    reply = await lead.invoke("Hello.", hub=hub)
    assert (reply.text, reply.agent) == ("Let me see.", "bob")
    assert lead.model.requests[1].messages[-1] == ("tool", "Too hard.")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "The arguments of request_help do not fit: reason is missing."),
        ({"reason": 7}, "The arguments of request_help do not fit: reason is int, not str."),
    ],
)
async def test_help_needs_a_reason(hub: Hub, args: Json, text: str) -> None:
    below = agent("tax", model=ScriptedModel([calls("request_help", args), says("So.")]))
    lead = agent("bob", below, model=ScriptedModel([]))
    assert await told(hub, lead, "@tax hello") == [("tax", text, True)]


@pytest.mark.parametrize("name", ["request_help", *TEAM, "transfer_to_bob"])
async def test_what_an_agent_has_not_it_cannot_call(hub: Hub, name: str) -> None:
    text = f"There is no tool {name!r}; there are: {', '.join(ABOUT)}."
    assert await told(hub, agent("bob", model=using(name))) == [("bob", text, True)]


# Tools of one's own, and models that call none


@tool(name="get_time_date")
def my_time() -> str:
    """Tea time, always."""
    return "five"


@tool(name="request_help")
def my_help(reason: str) -> str:
    """Ask the oracle."""
    return f"{reason}? Know thyself."


async def test_a_tool_of_ones_own_stands_in_the_place_of_a_default(hub: Hub) -> None:
    bob = agent("bob", model=using("get_time_date"), tools=[my_time, pay])
    assert [spec.name for spec in bob.team.lead.specs] == ["get_time_date", "pay", *ABOUT[1:]]
    assert bob.team.lead.specs[0].description == "Tea time, always."
    assert await told(hub, bob) == [("bob", "five", False)]


async def test_also_in_the_place_of_help(hub: Hub) -> None:
    below = agent("tax", model=using("request_help", {"reason": "Why"}), tools=[my_help])
    lead = agent("bob", below, model=ScriptedModel([]))
    assert await told(hub, lead, "@tax hello") == [("tax", "Why? Know thyself.", False)]


async def test_also_where_the_default_is_done_without(hub: Hub) -> None:
    bob = agent("bob", model=using("get_time_date"), tools=[my_time], without=["get_time_date"])
    assert await told(hub, bob) == [("bob", "five", False)]


class Talker:
    """A model that calls no tools."""

    calls_tools = False

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        return says(f"I know: {request.messages[-1].text}")


async def test_a_model_that_calls_no_tools_is_told_by_a_phrase_what_there_would_be(hub: Hub) -> None:
    model = Talker()
    tools = Intent("tools", tool="list_tools_available")
    bob = agent("bob", model=model, tools=[pay], intents=[tools], without=[*ABOUT[2:], "get_time_date"])
    text = (
        "Your model does not call tools: you can only talk. There would be:\n"
        "- pay: Pay somebody.\n- list_tools_available: The tools that you can use."
    )
    reply = await bob.invoke("Tools?", hub=hub)
    assert reply.text == f"I know: {text}"
    assert [request.specs for request in model.requests] == [()]
    warned = [each for each in await hub.log(reply.channel_id) if each.event_type == "antiphon.agent.warned"]
    assert [each.event_data["code"] for each in warned] == ["no_tool_calls"]
