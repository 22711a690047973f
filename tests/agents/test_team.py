"""A team: who stands where, how each can be addressed, who is asked, what each is told, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from antiphon import DEFAULT_TOOLS, Agent, Limits, Message, Reply, Request, ScriptedModel, UsageError, calls, says, tool
from antiphon.agents.loop import TurnResult, add_current_date, add_lead_preamble
from antiphon.agents.messages import Answered, Asked
from antiphon.agents.progress import MemberPath
from antiphon.agents.team import format_member_path, parse_member_path
from tests.agents.played_turn import DAY, HISTORY, play

MODEL = ScriptedModel([])


def agent(name: str, *below: Agent, **options: object) -> Agent:
    return Agent(**{"name": name, "model": MODEL, "agents": below, **options})


def chain(*names: str) -> Agent:
    """Each works for the one before it."""
    first, *others = names
    return agent(first, *([chain(*others)] if others else []))


TAX = agent("tax")
BILLING = agent("billing", TAX, agent("Refunds"))
LEGAL = agent("legal", TAX)
SUPPORT = agent("support", BILLING, LEGAL)


# Places


def test_everybody_has_a_place() -> None:
    assert list(SUPPORT.team.members) == [
        ("support",),
        ("support", "billing"),
        ("support", "billing", "tax"),
        ("support", "billing", "Refunds"),
        ("support", "legal"),
        ("support", "legal", "tax"),
    ]
    assert SUPPORT.team.root == ("support",)
    assert SUPPORT.team.lead.declaration is SUPPORT
    assert all(path[-1] == member.name and member.path == path for path, member in SUPPORT.team.members.items())
    assert SUPPORT.team.members["support", "billing", "tax"].declaration is TAX
    assert SUPPORT.team.members["support", "legal", "tax"].declaration is TAX


@pytest.mark.parametrize(
    ("path", "reach"),
    [
        (("support",), {"billing": ("support", "billing"), "legal": ("support", "legal")}),
        (
            ("support", "billing"),
            {
                "tax": ("support", "billing", "tax"),
                "Refunds": ("support", "billing", "Refunds"),
                "support": ("support",),
            },
        ),
        (("support", "billing", "tax"), {"support": ("support",), "billing": ("support", "billing")}),
        (("support", "legal", "tax"), {"support": ("support",), "legal": ("support", "legal")}),
    ],
)
def test_whom_each_can_hand_over_to(path: MemberPath, reach: dict[str, MemberPath]) -> None:
    member = SUPPORT.team.members[path]
    assert dict(member.reach) == reach
    assert [name for name in member.tools if name.startswith("transfer_to_")] == [
        f"transfer_to_{name}" for name in reach if len(reach[name]) > len(path)
    ]
    assert ("request_help" in member.tools) == member.helps == (len(path) > 1)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 12])
def test_teams_are_as_deep_as_one_likes(depth: int) -> None:
    names = [f"a{number}" for number in range(depth)]
    team = chain(*names).team
    places = [tuple(names[: end + 1]) for end in range(depth)]
    assert list(team.members) == places
    assert team.names == {**dict(zip(names, places, strict=True)), "lead": ("a0",)}
    for place in places:
        below = {names[len(place)]: (*place, names[len(place)])} if len(place) < depth else {}
        above = {name: place[: depth + 1] for depth, name in enumerate(place[:-1])}
        assert team.members[place].reach == {**below, **above}


def test_an_agent_among_tools_is_a_sub_agent_once() -> None:
    def look() -> None: ...

    lead = agent("support", BILLING, tools=[look, TAX, BILLING])
    assert lead.agents == (BILLING, TAX)
    assert [each.name for each in lead.toolbox] == ["look"]
    assert [spec.name for spec in lead.team.lead.specs] == [
        "look",
        "transfer_to_billing",
        "transfer_to_tax",
        *DEFAULT_TOOLS[:4],
        *DEFAULT_TOOLS[5:],
    ]
    assert replace(lead, name="desk").agents == lead.agents


def test_a_lead_is_told_what_its_sub_agents_are_for() -> None:
    lead = agent("support", agent("billing", description="Knows all bills."), TAX)
    told = {spec.name: spec for spec in lead.team.lead.specs}
    assert told["transfer_to_billing"].description == (
        "Hand the conversation over to billing, who answers from then on. Knows all bills."
    )
    assert told["transfer_to_tax"].description == "Hand the conversation over to tax, who answers from then on."
    assert told["transfer_to_tax"].parameters["properties"] == {"reason": {"type": "string", "default": ""}}
    assert told["transfer_to_tax"].parameters["required"] == []


def test_who_works_in_two_teams_is_the_same_in_both() -> None:
    one, two = agent("one", TAX), agent("two", agent("three", TAX))
    assert one.team.members["one", "tax"].declaration is two.team.members["two", "three", "tax"].declaration
    assert TAX.team.members.keys() == {("tax",)}


@pytest.mark.parametrize("path", [(), ("support",), ("support", "billing", "tax")])
def test_a_place_reads_back_as_it_is_written(path: MemberPath) -> None:
    assert parse_member_path(format_member_path(path)) == path


# Names


@pytest.mark.parametrize(
    ("lead", "name", "place"),
    [
        (SUPPORT, "support", ("support",)),
        (SUPPORT, "lead", ("support",)),
        (SUPPORT, "refunds", ("support", "billing", "Refunds")),
        (SUPPORT, "Refunds", None),
        (SUPPORT, "tax", ("support", "billing", "tax")),
        (agent("support", BILLING, TAX), "tax", ("support", "tax")),
        (agent("support", agent("lead")), "lead", ("support", "lead")),
        (agent("Lead", agent("deputy")), "lead", ("Lead",)),
        (SUPPORT, "nobody", None),
    ],
)
def test_whom_a_name_means(lead: Agent, name: str, place: MemberPath | None) -> None:
    """Of several the nearest; of those the first."""
    assert lead.team.names.get(name) == place


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"agents": [agent("a"), agent("b"), agent("a")]},
            "'x' has two sub-agents called 'a'; give one of them another",
        ),
        ({"agents": [agent("Tax"), agent("tAX")]}, "'x' has two sub-agents called 'tax'"),
        ({"agents": [agent("a")], "tools": [agent("a")]}, "'x' has two sub-agents called 'a'"),
        ({"agents": [agent("x")]}, "x/x: an agent cannot work for one of its own name; give one another name"),
        ({"agents": [agent("X")]}, "x/X: an agent cannot work for one of its own name"),
        ({"agents": [chain("a", "b", "c", "x")]}, "x/a/b/c/x: an agent cannot work for one of its own name"),
        (
            {"agents": [agent("a")], "tools": [tool(lambda: None, name="transfer_to_a", description="Mine.")]},
            "'x' has a tool 'transfer_to_a' of its own; its sub-agent needs that name",
        ),
        (
            {"agents": [agent("a")], "tools": [tool(lambda: None, name="transfer_to_A", description="Mine.")]},
            "'x' has a tool 'transfer_to_A' of its own",
        ),
        ({"agents": [None]}, "agents of 'x' holds None; give a list of agents"),
        ({"agents": ["a"]}, "agents of 'x' holds 'a'; give a list of agents"),
        ({"agents": agent("a")}, "agents of 'x' is Agent(name='a'"),
        ({"description": None}, "description of 'x' is None; give a text"),
    ],
)
def test_what_a_team_may_not_be(options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Agent(**{"name": "x", "model": MODEL, **options})
    assert told in str(refused.value)


def test_one_name_in_two_branches_is_fine() -> None:
    lead = agent("x", agent("a", agent("c")), agent("b", agent("c"), agent("a")))
    assert len(lead.team.members) == 6
    assert lead.team.names["c"] == ("x", "a", "c")
    assert lead.team.names["a"] == ("x", "a")


@pytest.mark.parametrize("handoffs", [-1, 1.0, True, "5", None])
def test_what_a_limit_of_handoffs_may_not_be(handoffs: object) -> None:
    with pytest.raises(UsageError, match=r"handoffs is .*; give a number of handoffs, 0 or more"):
        Limits(handoffs=handoffs)  # type: ignore[arg-type]


# Who is asked


@pytest.mark.parametrize(
    ("heard", "last_active", "place"),
    [
        (None, (), ()),
        ("Hello.", (), ()),
        ("Hello.", ("billing",), ("billing",)),
        ("Hello.", ("billing", "tax"), ("billing", "tax")),
        (None, ("legal", "tax"), ("legal", "tax")),
        ("Hello.", ("billing", "gone"), ()),
        ("Hello.", ("gone",), ()),
        ("Hello.", ("Billing",), ()),
        ("@billing", (), ("billing",)),
        ("@BILLING hello", ("legal",), ("billing",)),
        ("@Refunds", (), ("billing", "Refunds")),
        ("@refunds\nhello", (), ("billing", "Refunds")),
        ("@tax hello", (), ("billing", "tax")),
        ("@tax hello", ("legal", "tax"), ("legal", "tax")),
        ("@lead hello", ("billing",), ()),
        ("@support hello", ("billing", "tax"), ()),
        ("@nobody hello", ("legal",), ("legal",)),
        ("@nobody hello", ("gone",), ()),
        ("hello @billing", (), ()),
        (" @billing", ("legal",), ("legal",)),
        ("@billing, hello", ("legal",), ("legal",)),
        ("@billing", ("gone",), ("billing",)),
        (None, ("gone",), ()),
    ],
)
def test_who_handles_a_turn(heard: str | None, last_active: MemberPath, place: MemberPath) -> None:
    """Whom a person addresses, then whoever answered last, then whoever is asked."""
    assert SUPPORT.team.route(heard, last_active) == ("support", *place)
    played = play(SUPPORT, says("So."), heard=heard, last_active=last_active)
    who = place[-1] if place else "support"
    assert played.trace == [f"enter {who}", f"ask {who}"]
    assert played.said == TurnResult("So.", path=place)


@pytest.mark.parametrize(
    ("heard", "meant"),
    [
        ("@billing hours", " hours"),
        ("@BILLING\thours", "\thours"),
        ("@lead", ""),
        ("@nobody hours", "@nobody hours"),
        ("@billing: hours", "@billing: hours"),
        ("hours @billing", "hours @billing"),
        ("", ""),
    ],
)
def test_what_is_said_beside_a_name(heard: str, meant: str) -> None:
    assert SUPPORT.team.without_mention(heard) == meant


# What each is told

TO_BILLING = calls("transfer_to_billing")
WORKS = "SUPERVISOR SYSTEM PROMPT:\nYou are a specialist who works for support. Keep to your own part."
HELP = " If you are not sure, call `request_help` and say why."
TODAY = f"Current date: {DAY}"


@pytest.mark.parametrize(
    ("prompt", "options", "told"),
    [
        ("Be kind.", {}, f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\nBe kind.\n\n{TODAY}"),
        ("", {}, f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\n\n\n{TODAY}"),
        ("Be kind.", {"without": ["current_date"]}, f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\nBe kind."),
        ("Be kind.", {"without": ["request_help"]}, f"{WORKS}\n\nSUBAGENT SYSTEM PROMPT:\nBe kind.\n\n{TODAY}"),
        (f"It is {DAY}.", {}, f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\nIt is {DAY}."),
        ("CURRENT DATE: today", {}, f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\nCURRENT DATE: today"),
        ("SUPERVISOR SYSTEM PROMPT:\nMine.", {}, f"SUPERVISOR SYSTEM PROMPT:\nMine.\n\n{TODAY}"),
        (
            lambda messages: f"{len(messages)} so far.",
            {},
            f"{WORKS}{HELP}\n\nSUBAGENT SYSTEM PROMPT:\n1 so far.\n\n{TODAY}",
        ),
    ],
)
def test_a_sub_agent_is_told_for_whom_it_works_and_the_date_once(
    prompt: object, options: dict[str, object], told: str
) -> None:
    lead = agent("support", agent("billing", system_prompt=prompt, **options), system_prompt="Lead.")
    for played in (
        play(lead, TO_BILLING, says("So.")),
        play(lead, calls("look"), says("So."), heard="@billing hello"),
        play(lead, calls("look"), says("So."), last_active=("billing",)),
    ):
        assert played.requests[-1].system == told
    assert play(lead, TO_BILLING, says("So.")).requests[0].system == f"Lead.\n\n{TODAY}"


def test_prompts_are_rendered_anew_for_whoever_becomes_active() -> None:
    help_me = calls("request_help", {"reason": "Why?"})
    rendered = iter(range(10))

    def counted(messages: Sequence[Message]) -> str:
        return f"Lead {next(rendered)}."

    lead = agent("support", agent("billing"), system_prompt=counted)
    played = play(lead, TO_BILLING, help_me, TO_BILLING, help_me, says("So."))
    assert [request.system.partition("\n")[0] for request in played.requests] == [
        "Lead 0.",
        "SUPERVISOR SYSTEM PROMPT:",
        "Lead 1.",
        "SUPERVISOR SYSTEM PROMPT:",
        "Lead 2.",
    ]
    assert all(request.system.count("Current date:") == 1 for request in played.requests)
    assert all(request.system.count("SUPERVISOR SYSTEM PROMPT:") < 2 for request in played.requests)


@pytest.mark.parametrize("name", ["a0", "a1", "a2", "a3"])
def test_each_works_for_the_one_right_above_it(name: str) -> None:
    lead = chain("a0", "a1", "a2", "a3")
    system = play(lead, says("So."), heard=f"@{name}").requests[0].system
    assert system.count("who works for") == (0 if name == "a0" else 1)
    assert name == "a0" or f"who works for a{int(name[1]) - 1}." in system


@pytest.mark.parametrize("system", ["", "Be kind.", "Current date: x", f"On {DAY}", "Be kind.\n"])
def test_preamble_and_date_stand_there_once_however_often_they_are_put(system: str) -> None:
    once = add_current_date(add_lead_preamble(system, "ann", helps=True), DAY)
    assert add_current_date(add_lead_preamble(once, "ann", helps=True), DAY) == once
    assert add_lead_preamble(system, None, helps=False) == system
    assert add_current_date(system, "") == system


# Shapes, limits, models that call no tools


@pytest.mark.parametrize(
    ("lead", "below", "schemas", "answers"),
    [
        (None, None, [None, None], ["7"]),
        (int, None, ["integer", "integer"], ["7"]),
        (None, int, [None, "integer"], ["7"]),
        (int, str, ["integer", "integer"], ["7"]),
        (str, int, ["string", "string"], ["7", "7"]),
        (None, int, [None, "integer"], ["x", "x"]),
    ],
)
def test_the_shape_that_the_lead_wants_binds_whoever_answers(
    lead: object, below: object, schemas: list[object], answers: list[str]
) -> None:
    team = agent("support", agent("billing", output=below), output=lead)
    played = play(team, TO_BILLING, *map(says, answers))
    asked = [None if request.output is None else request.output["type"] for request in played.requests[:2]]
    assert asked == schemas
    assert (played.said.text, played.said.path) == (answers[-1], ("billing",))
    assert played.said.stopped == (None if len(answers) == 1 else "invalid_output")


@pytest.mark.parametrize(
    ("lead", "below", "stopped"),
    [(3, 1, None), (2, 25, "max_model_calls"), (1, 25, "max_model_calls"), (3, 25, None)],
)
def test_the_limits_of_the_lead_hold_for_everybody(lead: int, below: int, stopped: str | None) -> None:
    limits = [Limits(model_calls=calls) for calls in (lead, below)]
    team = agent("support", agent("billing", limits=limits[1]), limits=limits[0])
    replies = [replace_text(TO_BILLING, "One."), replace_text(calls("look"), "Two."), says("Three.")]
    played = play(team, *replies[:lead])
    assert played.said.stopped == stopped
    assert played.said.text == ["One.", "Two.", "Three."][min(lead, 3) - 1]
    assert played.said.path == ("billing",)


def replace_text(reply: Reply, text: str) -> Reply:
    return Reply(text, reply.calls)


class Talker:
    """A model that calls no tools."""

    calls_tools = False

    async def __call__(self, request: Request) -> Reply:
        return says("So.")


def test_a_model_that_calls_no_tools_is_told_of_none() -> None:
    lead = agent("support", agent("billing", model=Talker()), agent("legal", model=MODEL))
    played = play(lead, TO_BILLING, says("So."))
    assert played.requests[0].tools == [spec.name for spec in lead.team.lead.specs]
    assert played.requests[1].specs == ()
    member = lead.team.members["support", "billing"]
    assert (member.calls_tools, len(member.specs), member.offered) == (False, 7, ())
    assert lead.team.members["support", "legal"].offered == lead.team.members["support", "legal"].specs


@pytest.mark.parametrize("required", [1, "yes", 0, []])
def test_whether_tools_are_required_is_yes_no_or_none(required: object) -> None:
    with pytest.raises(UsageError, match=r"require_tools of 'x' is .*; give True, False or None"):
        agent("x", require_tools=required)


def test_a_model_without_tools_where_they_are_required() -> None:
    with pytest.raises(UsageError) as refused:
        agent("x", model=Talker(), require_tools=True)
    assert str(refused.value) == (
        "'x' requires tools, which its model does not call; give it a model that does, or require_tools=False"
    )
    assert agent("x", model=Talker()).team.lead.offered == ()
    assert agent("x", model=Talker(), require_tools=False).require_tools is False


def test_everybody_is_shown_the_whole_exchange_of_the_turn() -> None:
    look = calls("look", text="Let me see.")
    played = play(SUPPORT, look, TO_BILLING, calls("transfer_to_tax"), says("So."))
    first = (Asked("Let me see.", look.calls), Answered(look.calls[0], "look done"))
    second = (Asked("", TO_BILLING.calls), Answered(TO_BILLING.calls[0], "Conversation transferred to billing."))
    assert [request.exchange[: len(first) + len(second)] for request in played.requests] == [
        (),
        first,
        first + second,
        first + second,
    ]
    assert played.requests[3].exchange[4:] == (
        Asked("", calls("transfer_to_tax").calls),
        Answered(calls("transfer_to_tax").calls[0], "Conversation transferred to tax."),
    )
    assert all(request.history == HISTORY for request in played.requests)
