"""A turn is one packet: what it holds, what is left if the turn fails or its hub dies, and building one by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TEXT,
    AgentTarget,
    ContextEquals,
    Denied,
    Envelope,
    Finish,
    Handoff,
    ModelError,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnChannel,
    UsageError,
    calls,
    delete_context,
    says,
    set_context,
    tool,
)
from tests.acceptance.workflow_team import ASSIGNED, FAILED, Pause, Team, a_team, rule
from tests.support.crashing_hubs import Crashes, Mind, crashes
from tests.support.waiting import wait_until

PAIR = TransitionGraph.sequence(["alice", "ada"])


@tool
async def note(channel: TurnChannel, key: str, value: str) -> str:
    """Write something down."""
    await set_context(channel, **{key: value})
    return "noted"


@tool
async def strike(channel: TurnChannel, key: str) -> str:
    """Strike something out."""
    delete_context(channel, key)
    return "struck"


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "dana:human") as found:
        yield found


# What a packet holds


async def test_packet_is_the_only_thing_an_agent_records_in_its_turn(team: Team) -> None:
    """However often it asks its model and calls tools: one packet, and no text or write of its own."""
    script = [
        [calls("note", {"key": "a", "value": "1"}), calls("note", {"key": "b", "value": "2"})],
        calls("strike", {"key": "a"}),
        says("All written down."),
    ]
    await team.agent("ada", *script, tools=[note, strike])
    workflow = await team.open(PAIR, "alice", "ada", context_vars={"a": 0})
    asked = await workflow.say("alice", "Write.")
    assert await workflow.ended() == "sequence_complete"
    [packet] = [each for each in await workflow.log(EV_PACKET, EV_TEXT, EV_CONTEXT_SET) if each.sender_id == "ada"]
    assert packet.event_type == EV_PACKET
    assert packet.event_data == {
        "body": "All written down.",
        "routing": {},
        "context_updates": {"set": {"b": "2"}, "delete": ["a"]},
    }
    assert packet.causation_id == asked.envelope_id
    assert workflow.state.context_vars == {"b": "2"}


async def test_packet_is_recorded_together_with_what_follows_from_it(team: Team) -> None:
    await team.agent("ada", "A word.")
    workflow = await team.open(TransitionGraph.sequence(["alice", "ada", "bob"]), "alice", "ada", "bob")
    await workflow.say("alice")
    await workflow.comes_to("bob")
    assert team.batches(workflow)[-1][-2:] == [("ada", EV_PACKET), ("hub", ASSIGNED)]
    await workflow.hand_in("bob", "and mine")
    assert team.batches(workflow)[-1] == [("bob", EV_PACKET), ("hub", EV_CHANNEL_CLOSED)]


async def test_packet_of_a_turn_in_which_nothing_was_said_is_recorded_and_the_rules_decide(team: Team) -> None:
    await team.agent("ada", "")
    workflow = await team.open(TransitionGraph.sequence(["alice", "ada", "bob"]), "alice", "ada", "bob")
    await workflow.say("alice")
    await workflow.comes_to("bob")
    packet = await workflow.packet_of("ada")
    assert (packet["body"], packet["routing"]) == ("", {"stopped": "empty_reply"})


async def test_packet_of_code_counts_like_one_of_an_agent(team: Team) -> None:
    flagged = Transition(ContextEquals("flag", 1), TerminateTarget("flagged"))
    workflow = await team.open(TransitionGraph("bob", [flagged], TerminateTarget("not")), "alice", "bob")
    await workflow.hand_in("bob", "done", context_set={"flag": 1})
    assert await workflow.ended() == "flagged"
    assert workflow.state.turn_count == 1


# When the turn fails


async def failing(team: Team, *others: str) -> tuple[object, ...]:
    """An agent writes to the context, and then its model fails: how the channel is then."""
    await team.agent("ada", calls("note", {"key": "paid", "value": "yes"}), ModelError("no answer"), tools=[note])
    paid = Transition(ContextEquals("paid", "yes"), TerminateTarget("wrong"))
    graph = TransitionGraph("alice", [paid, rule("alice", "ada")], TerminateTarget("over"))
    workflow = await team.open(graph, "alice", "ada", *others)
    await workflow.say("alice")
    await workflow.until(lambda state: state.expected_next_speaker != "ada")
    assert await workflow.log(EV_PACKET, EV_CONTEXT_SET) == []
    [failed] = await workflow.log(FAILED)
    assert (failed.event_data["speaker"], failed.event_data["reason"]) == ("ada", "model_error")
    return workflow.state.context_vars, workflow.state.turn_count, workflow.state.last_speaker_id, workflow.next


async def test_failed_turn_leaves_nothing_behind_and_gives_the_turn_to_a_person(team: Team) -> None:
    assert await failing(team, "dana") == ({}, 1, "alice", "dana")


async def test_failed_turn_where_there_is_no_person_ends_the_channel(team: Team) -> None:
    assert await failing(team) == ({}, 1, "alice", None)
    [row] = await team.hub.channels()
    assert row.close_reason == "turn_failed:model_error"


# When the hub dies in the middle of a turn


async def in_the_middle(place: Crashes, mind: Mind, a_tool: Callable[..., object]) -> None:
    """sue asks bob, who is about to be stopped in the middle of his turn."""
    await place.next_hub(mind, tools=[a_tool])
    graph = TransitionGraph.sequence(["sue", "bob"])
    channel = await place.people["sue"].open(type="workflow", target=["bob", "ann"], knobs={"graph": graph.to_dict()})
    place.channel_id = channel.channel_id
    await channel.send("Pay.")


async def test_crash_reverts_the_packet_and_the_input_is_answered_by_the_next_hub() -> None:
    async with crashes() as place:
        mind = Mind(calls("note", {"key": "paid", "value": "yes"}))
        await in_the_middle(place, mind, note)
        await wait_until(lambda: mind.thinks and len(mind.requests) == 2)
        await place.next_hub()
        state = await place.state()
        assert (state.context_vars, state.turn_count, state.expected_next_speaker) == ({}, 1, "bob")
        again = Mind(says("Paid."))
        await place.next_hub(again, tools=[note])
        channel = await place.held_by("sue")
        assert await channel.closed(timeout=5) == "sequence_complete"
        assert again.requests[0].messages[0] == ("user", "sue: Pay.")
        [packet] = await place.told("packet")
        assert packet.event_data["context_updates"] == {"set": {"paid": "yes"}, "delete": []}
        assert channel.state.context_vars == {"paid": "yes"}


async def test_crash_a_call_that_had_returned_is_not_made_again() -> None:
    keys: list[str] = []
    async with crashes() as place:
        mind = Mind(calls("charge", {"cents": 5}))
        await in_the_middle(place, mind, charging(keys))
        await wait_until(lambda: len(mind.requests) == 2)
        await place.next_hub(Mind(says("Paid.")), tools=[charging(keys)])
        assert await (await place.held_by("sue")).closed(timeout=5) == "sequence_complete"
    assert len(keys) == 1


def charging(keys: list[str], pause: Pause | None = None) -> Callable[..., object]:
    """A tool that remembers the keys it was called with, and may stop in the middle."""

    @tool(timeout=None)
    async def charge(cents: int, idempotency_key: str) -> str:
        """Take money."""
        keys.append(idempotency_key)
        if pause is not None:
            await pause.here()
        return f"charged {cents}"

    return charge


async def test_crash_a_call_that_was_under_way_is_made_again_with_the_same_key() -> None:
    """So a service that takes idempotency keys charges once."""
    keys: list[str] = []
    pause = Pause()
    async with crashes() as place:
        await in_the_middle(place, Mind(calls("charge", {"cents": 5})), charging(keys, pause))
        await pause.begun()
        await place.next_hub(Mind(says("Paid.")), tools=[charging(keys)])
        assert await (await place.held_by("sue")).closed(timeout=5) == "sequence_complete"
        assert len(await place.told("packet")) == 1
    assert len(keys) == 2
    assert keys[0] == keys[1] != ""


async def test_crash_a_call_that_must_not_be_made_twice_waits_for_a_person() -> None:
    pause = Pause()
    made: list[int] = []

    @tool(idempotency="unsafe", timeout=None)
    async def launch(number: int) -> str:
        """Cannot be taken back."""
        made.append(number)
        await pause.here()
        return "launched"

    async with crashes() as place:
        await in_the_middle(place, Mind(calls("launch", {"number": 7})), launch)
        await pause.begun()
        mind = Mind(says("It flies."))
        await place.next_hub(mind, tools=[launch])
        [doubt] = await place.until("call.doubted")
        assert (doubt.event_data["name"], made, mind.requests) == ("launch", [7], [])
        ann = await place.held_by("ann")
        await ann.settle(str(doubt.event_data["turn"]), 1, result="launched")
        assert await ann.closed(timeout=5) == "sequence_complete"
        assert made == [7]
        assert [each.event_data["body"] for each in await place.told("packet")] == ["It flies."]


async def test_idempotency_keys_differ_between_calls_turns_and_channels(team: Team) -> None:
    keys: list[str] = []
    twice = [calls("charge", {"cents": 5}), calls("charge", {"cents": 5})]
    script = [twice, says("Twice."), calls("charge", {"cents": 5}), says("Thrice.")] * 2
    await team.agent("ada", *script, tools=[charging(keys)])
    graph = TransitionGraph.round_robin(["alice", "ada"])
    for _ in range(2):
        workflow = await team.open(graph, "alice", "ada")
        for _ in range(2):
            await workflow.say("alice")
            await workflow.comes_to("alice")
    assert len(keys) == len(set(keys)) == 6


# Envelopes built by hand


async def test_builder_makes_a_text_that_the_hub_takes(team: Team) -> None:
    workflow = await team.open(TransitionGraph.sequence(["alice", "bob"]), "alice", "bob")
    builder = team.hub.adapter_for(workflow.channel_id)
    assert builder.name == "workflow"
    cause = workflow.state.last_envelope_id or (await workflow.log())[0].envelope_id
    draft = builder.build_text_envelope(workflow.channel_id, "alice", "hello", audience=["bob"], causation_id=cause)
    assert (draft.event_type, draft.event_data, draft.sequence) == (EV_TEXT, {"text": "hello"}, 0)
    sent = await team.hub.post(draft)
    assert (sent.sender_id, sent.audience, sent.causation_id) == ("alice", ["bob"], cause)
    assert workflow.next == "bob"


async def test_builder_makes_a_packet_that_the_hub_takes(team: Team) -> None:
    graph = TransitionGraph("alice", [], AgentTarget("alice"))
    workflow = await team.open(graph, "alice", "bob", context_vars={"old": 1})
    draft = team.hub.adapter_for(workflow.channel_id).build_packet_envelope(
        workflow.channel_id,
        "alice",
        "over to you",
        handoff=Handoff("bob", "knows more", "so far so good"),
        tool="look_up",
        context_set={"new": [1]},
        context_delete=["old"],
    )
    assert (draft.event_type, draft.event_data) == (
        EV_PACKET,
        {
            "body": "over to you",
            "routing": {"tool": "look_up", "target": "bob", "reason": "knows more", "summary": "so far so good"},
            "context_updates": {"set": {"new": [1]}, "delete": ["old"]},
        },
    )
    await team.hub.post(draft)
    assert (workflow.next, workflow.state.context_vars) == ("bob", {"new": [1]})


async def test_builder_makes_a_packet_that_ends_the_channel(team: Team) -> None:
    workflow = await team.open(TransitionGraph.round_robin(["alice", "bob"]), "alice", "bob")
    await workflow.hand_in("alice", handoff="bob", finish=Finish("done"))
    assert await workflow.ended() == "done"


async def test_builder_makes_nothing_that_turn_order_does_not_hold_for(team: Team) -> None:
    workflow = await team.open(TransitionGraph.sequence(["alice", "bob"]), "alice", "bob")
    before = await workflow.log()
    for draft in (
        team.hub.adapter_for(workflow.channel_id).build_text_envelope(sender_id="bob", text="me first"),
        team.hub.adapter_for(workflow.channel_id).build_packet_envelope(sender_id="bob", body="me first"),
    ):
        assert isinstance(draft, Envelope)
        with pytest.raises(Denied, match="not_expected_speaker"):
            await team.hub.post(draft)
    assert await workflow.log() == before


async def test_builder_says_what_is_wrong(team: Team) -> None:
    workflow = await team.open(TransitionGraph.sequence(["alice", "bob"]), "alice", "bob")
    builder = team.hub.adapter_for(workflow.channel_id)
    with pytest.raises(UsageError, match="not for 'elsewhere'"):
        builder.build_text_envelope("elsewhere", "alice", "x")
    with pytest.raises(UsageError, match=r"no option is called 'target'; there are: .*handoff"):
        builder.build_packet_envelope(sender_id="alice", target="bob")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="handoff is 7"):
        builder.build_packet_envelope(sender_id="alice", handoff=7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'nowhere' is not in use here"):
        team.hub.adapter_for("nowhere")
