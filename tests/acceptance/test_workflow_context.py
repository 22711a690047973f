"""Routing by context variables: how they are compared, when a write counts, and how not to get stuck."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_CONTEXT_SET,
    EV_PACKET,
    Agent,
    AgentTarget,
    ContextEquals,
    Denied,
    Envelope,
    FromSpeaker,
    Once,
    Reply,
    Request,
    RulesInvalid,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    delete_context,
    says,
    set_context,
    tool,
)
from tests.acceptance.workflow_team import Pause, Team, Workflow, a_team, rule

SPECIALISTS = ("security", "billing", "review")


@tool
async def page(channel: TurnChannel) -> str:
    """Say that it is urgent."""
    await set_context(channel, urgent=True)
    return "paged"


@tool
async def file_under(channel: TurnChannel, domain: str) -> str:
    """Say what it is about."""
    set_context(channel, domain=domain)
    return f"filed under {domain}"


@tool
async def tick_off(channel: TurnChannel) -> str:
    """Forget where it was to go."""
    await delete_context(channel, "route")
    return "ticked off"


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "carol", "dana:human") as found:
        yield found


async def outcome(team: Team, value: object, context: dict[str, object]) -> bool:
    """Whether a variable that has this value is said to equal the other, in a channel that begins with this context."""
    equal = Transition(ContextEquals("key", value), TerminateTarget("equal"))
    graph = TransitionGraph("alice", [equal], TerminateTarget("different"))
    workflow = await team.open(graph, "alice", "bob", context_vars=context)
    await workflow.say("alice")
    return await workflow.ended() == "equal"


# Reading the context in a rule


@pytest.mark.parametrize("value", [True, False, 0, 1, "", "x", [], {}])
async def test_reading_a_key_that_is_not_set_never_equals_anything_but_none(team: Team, value: object) -> None:
    assert not await outcome(team, value, {})


async def test_reading_a_key_that_is_not_set_equals_none(team: Team) -> None:
    assert await outcome(team, None, {})
    assert await outcome(team, None, {"other": 1})
    assert await outcome(team, None, {"key": None})
    for value in (False, 0, "", [], {}):
        assert not await outcome(team, None, {"key": value})


@pytest.mark.parametrize(
    ("held", "wanted", "equal"),
    [
        (True, True, True),
        (True, 1, False),
        (0, False, False),
        (1, 1.0, True),
        ("1", 1, False),
        ("Security", "security", False),
        ([1, "a"], [1.0, "a"], True),
        ([1, 2], [2, 1], False),
        ([True], [1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
    ],
)
async def test_reading_compares_values_as_json_has_them(team: Team, held: object, wanted: object, equal: bool) -> None:
    assert await outcome(team, wanted, {"key": held}) is equal


async def test_reading_happens_anew_with_everything_that_is_said(team: Team) -> None:
    rules = [Transition(ContextEquals("stop", True), TerminateTarget("stopped")), rule("alice", "bob")]
    workflow = await team.open(TransitionGraph("alice", rules, AgentTarget("alice")), "alice", "bob")
    await workflow.walk("alice", "bob")
    await workflow.channel.set_context(stop=True)
    assert workflow.next == "alice", "a write alone moves nothing"
    await workflow.channel.delete_context("stop")
    await workflow.walk("alice", "bob")
    assert workflow.state.status == "active"
    await set_context(workflow.channel, stop=True)
    await workflow.say("alice")
    assert await workflow.ended() == "stopped"


async def test_reading_sees_what_was_deleted_and_set_in_one_write(team: Team) -> None:
    """Deleted first, then set: what is in both is set afterwards."""
    rules = [Transition(ContextEquals("a", 2) & ContextEquals("b", None), TerminateTarget("both"))]
    graph = TransitionGraph("alice", rules, AgentTarget("bob"))
    workflow = await team.open(graph, "alice", "bob", context_vars={"a": 1, "b": 1})
    data = {"set": {"a": 2}, "delete": ["a", "b"]}
    await team.hub.post(
        Envelope(channel_id=workflow.channel_id, sender_id="bob", event_type=EV_CONTEXT_SET, event_data=data)
    )
    await workflow.say("alice")
    assert await workflow.ended() == "both"


# Routing on a flag


FLAG = TransitionGraph(
    "alice",
    [
        Transition(FromSpeaker("oncall"), TerminateTarget("paged")),
        Transition(ContextEquals("urgent", True), AgentTarget("oncall")),
        rule("alice", "triage"),
        rule("triage", "reviewer"),
        Transition(FromSpeaker("reviewer"), TerminateTarget("reviewed")),
    ],
    TerminateTarget("lost"),
)


@pytest.mark.parametrize(
    ("script", "path", "reason"),
    [
        ([calls("page"), says("It burns.")], ["alice", "triage", "oncall"], "paged"),
        ([says("Nothing burns.")], ["alice", "triage", "reviewer"], "reviewed"),
    ],
    ids=["raised", "not raised"],
)
async def test_flag_that_a_tool_raises_reroutes_the_turn_that_raised_it(
    team: Team, script: list[Reply], path: list[str], reason: str
) -> None:
    await team.agent("triage", *script, tools=[page])
    await team.agent("oncall", "On my way.")
    await team.agent("reviewer", "Fine.")
    workflow = await team.open(FLAG, "alice", "triage", "oncall", "reviewer")
    await workflow.say("alice", "A ticket.")
    assert await workflow.ended() == reason
    assert [who for who, _ in await workflow.said()] == path


# Dispatch to several branches


def dispatching(*, generic_first: bool = False) -> TransitionGraph:
    branches = [
        Transition(FromSpeaker("triage") & ContextEquals("domain", name), AgentTarget(name)) for name in SPECIALISTS[:2]
    ]
    unset = Transition(FromSpeaker("triage") & ContextEquals("domain", None), AgentTarget("alice"))
    generic = rule("triage", "review")
    rules = [generic, *branches, unset] if generic_first else [*branches, unset, generic]
    return TransitionGraph("alice", [rule("alice", "triage"), *rules], TerminateTarget("over"))


async def dispatched(team: Team, graph: TransitionGraph, *script: Reply) -> Workflow:
    await team.join(*SPECIALISTS)
    await team.agent("triage", *script, tools=[file_under])
    workflow = await team.open(graph, "alice", "triage", *SPECIALISTS)
    await workflow.say("alice")
    await workflow.after("triage")
    return workflow


@pytest.mark.parametrize(
    ("domain", "speaker"),
    [("security", "security"), ("billing", "billing"), ("gardening", "review"), (None, "alice")],
)
async def test_dispatch_has_one_rule_for_each_branch_and_one_for_unset(
    team: Team, domain: str | None, speaker: str
) -> None:
    script = [says("Looked at it.")] if domain is None else [calls("file_under", {"domain": domain}), says("Filed.")]
    workflow = await dispatched(team, dispatching(), *script)
    assert workflow.next == speaker
    assert workflow.state.context_vars == ({} if domain is None else {"domain": domain})


async def test_dispatch_a_generic_rule_that_stands_first_hides_the_specific_ones_and_is_told(team: Team) -> None:
    graph = dispatching(generic_first=True)
    workflow = await dispatched(team, graph, calls("file_under", {"domain": "security"}), says("Filed."))
    assert workflow.next == "review"
    assert (await workflow.warnings()).count("dead_rule") == 3


async def test_dispatch_by_priority_instead_of_order(team: Team) -> None:
    """A specific rule with a lower number is read first, wherever it stands."""
    rules = [
        rule("alice", "triage"),
        rule("triage", "review"),
        Transition(ContextEquals("domain", "security"), AgentTarget("security"), priority=-1),
    ]
    graph = TransitionGraph("alice", rules, TerminateTarget("over"))
    workflow = await dispatched(team, graph, calls("file_under", {"domain": "security"}), says("Filed."))
    assert workflow.next == "security"


# Speaker and state together


@pytest.mark.parametrize(("flagged", "speaker"), [(True, "carol"), (False, "bob")])
async def test_order_of_rules_is_a_conjunction_with_a_fallback(team: Team, flagged: bool, speaker: str) -> None:
    rules = [Transition(ContextEquals("escalate", True), AgentTarget("carol")), rule("alice", "bob")]
    graph = TransitionGraph("alice", rules, TerminateTarget())
    workflow = await team.open(graph, "alice", "bob", "carol", context_vars={"escalate": flagged})
    assert await workflow.walk("alice") == [speaker]


async def test_a_true_conjunction_needs_the_speaker_and_the_state(team: Team) -> None:
    both = Transition(FromSpeaker("alice") & ContextEquals("escalate", True), AgentTarget("carol"))
    graph = TransitionGraph("alice", [both, rule("alice", "bob")], AgentTarget("alice"))
    workflow = await team.open(graph, "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["bob"]
    await workflow.hand_in("bob", context_set={"escalate": True})
    assert workflow.next == "alice", "the state holds, but it was bob who spoke"
    assert await workflow.walk("alice") == ["carol"]


# Stuck routing


STICKY = Transition(ContextEquals("route", "security"), AgentTarget("security"))
DONE = Transition(FromSpeaker("security"), TerminateTarget("handled"))


async def secured(team: Team, rules: list[Transition], *script: Reply | str) -> Workflow:
    """alice sends everything to security, which answers by this script."""
    await team.agent("security", *script, tools=[tick_off])
    graph = TransitionGraph("alice", rules, TerminateTarget("over"), max_turns=6)
    workflow = await team.open(graph, "alice", "security", writers={"route": ["alice", "security"]})
    await workflow.hand_in("alice", context_set={"route": "security"})
    return workflow


async def test_stuck_routing_goes_round_until_max_turns_and_was_told_at_the_opening(team: Team) -> None:
    workflow = await secured(team, [STICKY, DONE], *["still here"] * 5)
    assert await workflow.ended() == "max_turns"
    assert await workflow.assigned() == [["alice"], *[["security"]] * 5]
    assert "sticky_loop" in await workflow.warnings()


async def test_stuck_routing_is_mended_by_a_rule_that_ends_before_it(team: Team) -> None:
    workflow = await secured(team, [DONE, STICKY], "done")
    assert await workflow.ended() == "handled"
    assert workflow.state.turn_count == 2
    assert await workflow.warnings() == []


async def test_stuck_routing_is_mended_by_clearing_the_key(team: Team) -> None:
    workflow = await secured(team, [STICKY, DONE], calls("tick_off"), "done")
    assert await workflow.ended() == "handled"
    assert workflow.state.turn_count == 2
    assert workflow.state.context_vars == {}
    assert (await workflow.packet_of("security"))["context_updates"] == {"set": {}, "delete": ["route"]}


async def test_stuck_routing_is_mended_by_once(team: Team) -> None:
    workflow = await secured(team, [Transition(Once(STICKY.when), STICKY.then), DONE], "done")
    assert await workflow.ended() == "handled"
    assert workflow.state.turn_count == 2
    assert "sticky_loop" not in await workflow.warnings()


def test_order_check_the_factories_are_not_stuck() -> None:
    names = ["alice", "bob", "carol"]
    assert TransitionGraph.sequence(names).check(names) == []
    assert [found.code for found in TransitionGraph.round_robin(names).check(names)] == ["no_way_to_end"]


# Who writes, and when it counts


async def thinking(team: Team, pause: Pause, rules: list[Transition], **options: object) -> Workflow:
    """A channel in which the agent ada thinks, after its tool has raised a flag, until it is let go."""

    async def ponders(request: Request) -> Reply:
        if not request.exchange:
            return calls("page")
        await pause.here()
        return says("So be it.")

    await team.hire(Agent("ada", model=ponders, tools=[page]))
    graph = TransitionGraph("alice", [*rules, rule("alice", "ada")], TerminateTarget("over"))
    workflow = await team.open(graph, "alice", "ada", "bob", "dana", **options)
    await workflow.say("alice")
    await pause.begun()
    return workflow


@pytest.mark.parametrize("observer", ["bob", "dana", "alice"])
async def test_writes_by_observers_land_at_once_and_count_for_the_packet_under_way(team: Team, observer: str) -> None:
    pause = Pause()
    seen = Transition(FromSpeaker("ada") & ContextEquals("veto", True), TerminateTarget("vetoed"))
    workflow = await thinking(team, pause, [seen])
    written = await (await workflow.held_by(observer)).set_context(veto=True)
    assert workflow.state.context_vars == {"veto": True}
    assert workflow.next == "ada", "it moves nobody's turn"
    pause.go_on()
    assert await workflow.ended() == "vetoed"
    [packet] = await workflow.log(EV_PACKET)
    assert written.sequence < packet.sequence


async def test_writes_by_the_speaker_are_seen_by_nobody_before_its_packet(team: Team) -> None:
    pause = Pause()
    workflow = await thinking(team, pause, [])
    assert workflow.state.context_vars == {}
    assert await workflow.log(EV_CONTEXT_SET) == []
    pause.go_on()
    await workflow.ended()
    assert workflow.state.context_vars == {"urgent": True}
    assert await workflow.log(EV_CONTEXT_SET) == []


async def test_writes_by_the_speaker_come_after_what_others_wrote_meanwhile(team: Team) -> None:
    pause = Pause()
    workflow = await thinking(team, pause, [])
    await (await workflow.held_by("bob")).set_context(urgent=False, by="bob")
    pause.go_on()
    await workflow.ended()
    assert workflow.state.context_vars == {"urgent": True, "by": "bob"}


async def test_writers_of_a_key_are_the_only_ones_who_write_it(team: Team) -> None:
    graph = TransitionGraph.round_robin(["alice", "bob"])
    workflow = await team.open(graph, "alice", "bob", "carol", writers={"route": ["bob"]})
    carol = await workflow.held_by("carol")
    for writing in (
        carol.set_context(route="x"),
        carol.delete_context("route"),
        workflow.hand_in("alice", context_set={"route": 1}),
    ):
        with pytest.raises(Denied) as caught:
            await writing
        assert caught.value.reason == "not_a_writer"
    await (await workflow.held_by("bob")).set_context(route="y")
    await carol.set_context(other=1)
    assert workflow.state.context_vars == {"route": "y", "other": 1}
    assert workflow.next == "alice", "a packet that was refused has not ended the turn"


async def test_writers_a_tool_of_somebody_else_is_told_and_the_turn_goes_on(team: Team) -> None:
    model = await team.agent("ada", calls("page"), "I may not.", tools=[page])
    graph = TransitionGraph.sequence(["alice", "ada"])
    workflow = await team.open(graph, "alice", "ada", writers={"urgent": ["alice"]})
    await workflow.say("alice")
    assert await workflow.ended() == "sequence_complete"
    assert "not_a_writer" in model.requests[1].messages[-1].text
    assert workflow.state.context_vars == {}


async def test_writers_missing_for_a_key_that_routes_are_told_and_in_the_regulated_tier_refused(team: Team) -> None:
    go = Transition(FromSpeaker("alice") & ContextEquals("go", True), AgentTarget("bob"))
    graph = TransitionGraph("alice", [go], TerminateTarget())
    assert await (await team.open(graph, "alice", "bob")).warnings() == ["key_without_writers"]
    assert await (await team.open(graph, "alice", "bob", writers={"go": ["bob"]})).warnings() == []
    with pytest.raises(RulesInvalid, match="anybody may write 'go', by which the turn is routed"):
        await team.open(graph, "alice", "bob", tier="regulated")
