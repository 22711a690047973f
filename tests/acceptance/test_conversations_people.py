"""People in a conversation: a person holds it, speaks in it, and gives it back to agents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from antiphon import ConversationRouter, Denied, UsageError, get_conversation_state, set_conversation_state
from tests.support.conversation_desk import (
    MOVED,
    OPERATORS,
    REFUSED,
    RELEASED,
    TO_TRIAGE,
    UNROUTED,
    Conversation,
    Desk,
    Slow,
    a_desk,
    hand_over,
    rule,
    texts,
)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human", "emil:human", "code") as found:
        yield found


async def held(desk: Desk, *others: str, target: str = "human", creator: str = "ann", **knobs: object) -> Conversation:
    """A conversation that triage has given to a person. `billing` answers everything else."""
    await desk.echoes("billing")
    await desk.agent("triage", hand_over(target), "Back with triage.", "And again.")
    router = ConversationRouter([rule("billing", intents={"billing"})], default_agent_id="triage")
    talk = await desk.open(router, "triage", "billing", *others, creator=creator, **knobs)
    await talk.say("help", by=creator)
    await talk.settled()
    return talk


# Held


async def test_human_clears_the_active_agent(desk: Desk) -> None:
    talk = await held(desk, "dana", handoff={"phase_map": {"human": "escalation"}})
    assert (talk.state.active_agent_id, talk.state.previous_agent_id, talk.state.phase) == (
        None,
        "triage",
        "escalation",
    )
    [event] = await talk.facts(MOVED)
    assert (event["to_agent"], event["person"], event["by"]) == (None, "human", "triage")
    assert talk.channel.state.owed == ()


@pytest.mark.parametrize("target", ["human", "Human", "HUMAN", " human "])
async def test_human_in_any_case(desk: Desk, target: str) -> None:
    talk = await held(desk, "dana", target=target)
    assert [each["person"] for each in await talk.facts(MOVED)] == ["human"]


async def test_an_alias_of_human(desk: Desk) -> None:
    talk = await held(desk, "dana", target="people", handoff={"agent_aliases": {"people": "human"}})
    assert [each["person"] for each in await talk.facts(MOVED)] == ["human"]


@pytest.mark.parametrize("target", ["dana", "Dana"])
async def test_a_person_of_the_channel_can_be_named(desk: Desk, target: str) -> None:
    talk = await held(desk, "dana", "emil", target=target)
    assert [each["person"] for each in await talk.facts(MOVED)] == ["dana"]
    assert await talk.ask("anyone?") == []


async def test_human_is_allowed_whatever_the_transitions_say(desk: Desk) -> None:
    talk = await held(desk, "dana", handoff={"allowed_transitions": {}})
    assert [each["person"] for each in await talk.facts(MOVED)] == ["human"]


async def test_human_is_possible_without_a_person_in_the_channel(desk: Desk) -> None:
    talk = await held(desk, creator="code")
    assert await talk.ask("anyone?", by="code") == []


async def test_no_agent_answers_while_a_person_has_it(desk: Desk) -> None:
    talk = await held(desk, "dana", "code")
    for by, options in (("ann", {}), ("ann", {"intent": "billing"}), ("dana", {}), ("code", {"intent": "billing"})):
        assert await talk.ask("hello?", by=by, **options) == []
    assert [agent for agent, _ in await talk.assigned()] == ["triage"]
    assert await talk.facts(UNROUTED) == [], "a person is to answer these"


async def test_messages_that_waited_for_the_turn_are_for_the_person(desk: Desk) -> None:
    slow = Slow(hand_over("human"))
    await desk.agent("triage", slow, "Never said.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    slow.go_on()
    await talk.settled()
    await talk.release("dana")
    await talk.settled()
    assert await talk.answers() == [("triage", "")]


async def test_one_may_still_address_an_agent(desk: Desk) -> None:
    talk = await held(desk, "dana")
    assert await talk.ask("what did they say?", by="dana", addressed_to="billing") == [
        ("billing", "billing on what did they say?")
    ]
    assert await talk.ask("hello?") == []


async def test_an_agent_that_is_addressed_cannot_end_the_hold(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"), hand_over("billing"), "I answer myself.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
    await talk.ask("help")
    assert await talk.ask("hello?", addressed_to="triage") == [("triage", "I answer myself.")]
    assert [(each["target"], each["reason"]) for each in await talk.facts(REFUSED)] == [("billing", "target_not_found")]
    assert await talk.ask("hello?") == []


# Released


async def test_after_a_release_the_next_message_is_routed_again(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await talk.release("dana")
    [released] = await talk.log(RELEASED)
    assert (released.event_data, released.sender_id) == (
        {"by": "dana", "to": None, "person": "human", "phase": "intake"},
        "hub",
    )
    assert talk.state.active_agent_id is None
    assert await talk.ask("and now?") == [("triage", "Back with triage.")]
    assert await talk.ask("and now?", intent="billing") == [("billing", "billing on and now?")]


async def test_a_release_can_name_the_agent_that_goes_on(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await talk.release("dana", to="billing")
    assert (talk.state.active_agent_id, talk.state.phase_history[-1].reason) == ("billing", "released")
    assert await talk.ask("and now?") == [("billing", "billing on and now?")]
    assert await talk.ask("still there?") == [("billing", "billing on still there?")]


async def test_what_was_said_meanwhile_is_read_but_not_answered(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await talk.ask("It is about order 7.")
    await talk.ask("I refund it.", by="dana")
    await talk.release("dana", to="billing")
    assert await talk.assigned() == [("triage", "default")], "a release itself is answered by none"
    assert await talk.ask("Thank you.") == [("billing", "billing on Thank you.")]
    [request] = desk.models["billing"].requests
    assert texts(request) == ["ann: help", "ann: It is about order 7.", "dana: I refund it.", "ann: Thank you."]


async def test_another_person_may_release_and_nobody_else(desk: Desk) -> None:
    talk = await held(desk, "dana", "emil", "code")
    for by in ("ann", "code", "triage", "billing"):
        with pytest.raises(Denied) as caught:
            await talk.release(by)
        assert caught.value.reason == "not_a_person", by
    assert await talk.facts(RELEASED) == []
    await talk.release("emil")
    assert await talk.ask("hi") == [("triage", "Back with triage.")]


async def test_the_creator_releases_if_there_is_no_other_person(desk: Desk) -> None:
    talk = await held(desk, "code")
    with pytest.raises(Denied):
        await talk.release("code")
    await talk.release("ann")
    assert await talk.ask("hi") == [("triage", "Back with triage.")]


async def test_a_service_that_opened_it_releases_if_there_is_no_person(desk: Desk) -> None:
    """A gateway opens the conversation for a customer who is no participant."""
    talk = await held(desk, creator="code")
    await talk.release("code")
    assert await talk.ask("hi", by="code") == [("triage", "Back with triage.")]


async def test_a_service_that_opened_it_leaves_the_release_to_a_person(desk: Desk) -> None:
    talk = await held(desk, "dana", creator="code")
    with pytest.raises(Denied) as caught:
        await talk.release("code")
    assert "dana or an operator" in caught.value.detail
    await talk.release("dana")
    assert await talk.ask("hi", by="code") == [("triage", "Back with triage.")]


async def test_a_release_ends_a_hold_once(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await talk.release("dana")
    for by in ("dana", "ann"):
        with pytest.raises(Denied) as caught:
            await talk.release(by)
        assert caught.value.reason == "not_held"
    assert len(await talk.facts(RELEASED)) == 1


@pytest.mark.parametrize("to", ["nobody", "dana", "ann", "human", ""])
async def test_a_release_names_an_agent_of_the_channel(desk: Desk, to: str) -> None:
    talk = await held(desk, "dana")
    with pytest.raises(Denied) as caught:
        await talk.release("dana", to=to)
    assert caught.value.reason == "target_not_found"
    assert caught.value.detail == f"{to!r} is no agent that answers here; there are: triage, billing"
    assert await talk.ask("hi") == [], "the person has it still"


async def test_a_release_belongs_to_routed_channels(desk: Desk) -> None:
    channel = await desk.people["ann"].open(type="conversation", target=["dana"])
    with pytest.raises(UsageError, match="routed"):
        await channel.release()


async def test_a_closed_conversation_is_not_released(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await talk.channel.close("done")
    with pytest.raises(Denied) as caught:
        await talk.release("dana")
    assert caught.value.reason == "channel_closed"


async def test_a_refused_release_is_kept_in_the_audit(desk: Desk) -> None:
    talk = await held(desk, "dana")
    before = await talk.log()
    with pytest.raises(Denied):
        await talk.release("ann")
    assert await talk.log() == before
    audited = [each for each in await desk.hub.log("system:audit") if each.event_type == "antiphon.draft.refused"]
    assert [(each.event_data["reason"], each.event_data["sender_id"]) for each in audited] == [("not_a_person", "ann")]


# The state during a hold


async def test_giving_it_to_an_agent_releases_it(desk: Desk) -> None:
    talk = await held(desk, "dana")
    channel = await talk.held_by("dana")
    state = get_conversation_state(channel)
    wanted = state.transition(to_phase="escalation").transition(to_phase="handling", to_agent="billing")
    await set_conversation_state(channel, wanted.transition(to_phase="handling", to_agent="triage"))
    assert [each.get("released") for each in await talk.facts(MOVED)] == [None, None, "human", None]
    assert await talk.ask("hi") == [("triage", "Back with triage.")]


async def test_the_creator_does_not_release_it_by_writing_the_state(desk: Desk) -> None:
    talk = await held(desk, "dana")
    with pytest.raises(Denied) as caught:
        await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="billing"))
    assert caught.value.reason == "not_a_person"
    assert await talk.ask("hi") == []


async def test_a_phase_can_change_during_a_hold(desk: Desk) -> None:
    talk = await held(desk, "dana")
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="escalation"))
    assert talk.state.phase == "escalation"
    assert await talk.ask("hi") == [], "the person has it still"
    given, changed = await talk.facts(MOVED)
    assert (given["person"], "person" in changed) == ("human", False), "a change of phase gives it to no person anew"
    await talk.release("dana")
    [released] = await talk.facts(RELEASED)
    assert (released["person"], released["phase"]) == ("human", "escalation")
    assert await talk.ask("and now?") == [("triage", "Back with triage.")]


async def test_notes_can_be_taken_during_a_hold(desk: Desk) -> None:
    talk = await held(desk, "dana", target="dana")
    await set_conversation_state(talk.channel, replace(talk.state, context={"account": 7}))
    assert (talk.state.context, await talk.ask("hi")) == ({"account": 7}, [])
    await talk.release("dana")
    assert [(each["person"], each["to"]) for each in await talk.facts(RELEASED)] == [("dana", None)]


async def test_a_phase_and_then_an_agent_end_a_hold(desk: Desk) -> None:
    """Two transitions that are recorded together: the first leaves it with the person, the second does not."""
    talk = await held(desk, "dana", "code")
    channel = await talk.held_by("dana")
    state = talk.state.transition(to_phase="handling").transition(to_phase="resolution", to_agent="billing")
    await set_conversation_state(channel, state)
    assert [each.event_type for each in talk.batches()[-1]] == [MOVED, MOVED]
    assert await talk.ask("hi") == [("billing", "billing on hi")]
    assert (await talk.say("Dana again.", by="dana", transport="console")).event_data == {
        "text": "Dana again.",
        "transport": "console",
    }, "what she says is a message to agents"
    await talk.settled()


async def test_a_hold_lasts_when_an_agent_gives_it_to_another_person(desk: Desk) -> None:
    await desk.agent("triage", hand_over("dana"), hand_over("emil"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "emil", creator="code")
    await talk.ask("help", by="code", transport="sms", source="+4930")
    await talk.ask("Emil knows this.", by="dana", addressed_to="triage")
    assert [each["person"] for each in await talk.facts(MOVED)] == ["dana", "emil"]
    for by in ("dana", "emil"):
        assert (await talk.say("Hello.", by=by)).event_data["recipient"] == "+4930", by
    await talk.release("dana")
    assert [each["person"] for each in await talk.facts(RELEASED)] == ["emil"]


async def test_staff_can_take_a_conversation_over(desk: Desk) -> None:
    """A hold that staff has asked for is about the customer, who may have written long ago."""
    await desk.join("kiosk")
    await desk.agent("triage", "Welcome.", "Welcome.", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "emil", "kiosk", creator="code")
    await talk.ask("hi", by="kiosk", transport="fax", source="+4989")
    await talk.ask("help", by="code", transport="sms", source="+4930")
    await talk.ask("Give it to me.", by="dana", transport="console", source="desk 4")
    for by in ("dana", "emil"):
        said = (await talk.say("Hello.", by=by)).event_data
        assert (said["transport"], said["recipient"]) == ("sms", "+4930"), by


# What people say


async def test_words_of_staff_leave_by_the_transport_during_a_hold(desk: Desk) -> None:
    talk = await held(desk, "dana", "emil", creator="code")
    await talk.say("hello?", by="code", transport="sms", source="+4930")
    said = await talk.say("Dana here.", by="dana")
    assert said.event_data == {"text": "Dana here.", "transport": "sms", "recipient": "+4930"}
    assert (await talk.say("Emil, too.", by="emil")).event_data["recipient"] == "+4930"


async def test_words_of_staff_to_the_customer_by_name_leave(desk: Desk) -> None:
    talk = await held(desk, "dana", creator="code")
    await talk.say("hello?", by="code", transport="sms", source="+4930")
    said = await talk.say("Here is Dana.", by="dana", addressed_to="code")
    assert (said.event_data["transport"], said.event_data["recipient"]) == ("sms", "+4930")


async def test_words_of_staff_are_messages_to_agents_otherwise(desk: Desk) -> None:
    talk = await held(desk, "dana", creator="code")
    await talk.say("hello?", by="code", transport="sms", source="+4930")
    await talk.release("dana")
    said = await talk.say("Dana here.", by="dana")
    await talk.settled()
    assert said.event_data == {"text": "Dana here."}
    assert (await talk.answers())[-1] == ("triage", "Back with triage.")


async def test_words_to_an_agent_or_in_private_do_not_leave(desk: Desk) -> None:
    talk = await held(desk, "dana", "emil", creator="code")
    await talk.say("hello?", by="code", transport="sms", source="+4930")
    addressed = await talk.say("What do you know?", by="dana", addressed_to="billing")
    private = await talk.say("Should I?", by="dana", audience=["emil"])
    assert "recipient" not in {**addressed.event_data, **private.event_data}
    await talk.settled()


async def test_a_private_message_is_not_shown_to_others(desk: Desk) -> None:
    talk = await held(desk, "dana", "emil")
    await talk.say("Should I?", by="dana", audience=["emil"])
    assert ("dana", "Should I?") in await talk.seen_by("emil")
    assert ("dana", "Should I?") not in await talk.seen_by("ann")
    assert OPERATORS not in talk.channel.state.participants
