"""The observer: it hears everything, is given no turn by rules, and speaks after each answer if it is an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_PACKET,
    EV_TEXT,
    ConversationRouter,
    ConversationState,
    Envelope,
    Finish,
    ModelError,
    Participant,
    calls,
    set_conversation_state,
    tool,
)
from tests.support.conversation_desk import (
    FAILED,
    MOVED,
    REFUSED,
    UNROUTED,
    Conversation,
    Desk,
    Slow,
    a_desk,
    hand_over,
    rule,
    texts,
    words,
)
from tests.support.waiting import soon

WATCHED = ConversationRouter([rule("billing", intents={"billing"})], default_agent_id="triage", supervisor_id="watch")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human", "emil:human", "code") as found:
        await found.echoes("triage", "billing")
        yield found


async def heard_by(participant: Participant, count: int) -> list[tuple[str, str]]:
    """What was said, of the first so many envelopes of an inbox."""
    inbox = participant.inbox()
    taken: list[Envelope] = []
    while len(taken) < count:
        envelope = await soon(anext(inbox))
        if envelope.event_type in (EV_TEXT, EV_PACKET):
            taken.append(envelope)
    await inbox.aclose()  # type: ignore[attr-defined]  # an async generator
    return [(each.sender_id, words(each)) for each in taken]


# As an agent


async def test_the_observer_is_run_after_each_answer(desk: Desk) -> None:
    model = await desk.agent("watch", "Fine.", "Fine too.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch")
    first, second = await talk.say("one"), await talk.say("two", intent="billing")
    await talk.settled()
    assert await talk.answers() == [
        ("triage", "triage on one"),
        ("watch", "Fine."),
        ("billing", "billing on two"),
        ("watch", "Fine too."),
    ]
    assert await talk.assigned() == [
        ("triage", "default"),
        ("watch", "observes"),
        ("billing", "rule: intent is billing"),
        ("watch", "observes"),
    ]
    causes = [each.causation_id for each in await talk.log(EV_PACKET)]
    assert causes == [first.envelope_id, first.envelope_id, second.envelope_id, second.envelope_id]
    assert texts(model.requests[0]) == ["ann: one", "triage: triage on one"]


async def test_what_it_says_is_for_other_people_and_operators(desk: Desk) -> None:
    await desk.agent("watch", "Careful: rude.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana", "emil", "code")
    await talk.ask("one")
    packet = (await talk.log(EV_PACKET))[-1]
    assert (packet.sender_id, packet.audience) == ("watch", ["dana", "emil"])
    pair = ("watch", "Careful: rude.")
    seen = {name: pair in await talk.seen_by(name) for name in ("ann", "dana", "emil", "code", "triage", "watch")}
    assert seen == {"ann": False, "dana": True, "emil": True, "code": False, "triage": False, "watch": True}


async def test_what_it_says_is_not_shown_to_other_agents(desk: Desk) -> None:
    await desk.agent("watch", "Careful.", "Careful.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch")
    await talk.ask("one")
    await talk.ask("two")
    assert texts(desk.models["triage"].requests[1]) == ["ann: one", "triage on one", "ann: two"]


async def test_without_other_people_only_operators_see_what_it_says(desk: Desk) -> None:
    await desk.agent("watch", "Careful.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "code")
    await talk.ask("one")
    assert (await talk.said())[-1] == ("watch", "Careful.")
    for name in ("ann", "code", "triage", "billing"):
        assert await talk.seen_by(name) == [("ann", "one"), ("triage", "triage on one")]


@pytest.mark.parametrize("by", ["ann", "dana"])
async def test_what_it_says_does_not_leave_by_a_transport(desk: Desk, by: str) -> None:
    """Not even to a person that may read it here."""
    await desk.agent("watch", "Careful.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana")
    await talk.ask("one", by=by, transport="sms", source="+4930")
    answer, remark = await talk.log(EV_PACKET)
    assert (answer.event_data["transport"], answer.event_data["recipient"]) == ("sms", "+4930")
    assert not {"transport", "recipient"} & remark.event_data.keys()


async def test_rules_give_it_no_turn(desk: Desk) -> None:
    await desk.agent("watch", "Seen.")
    router = ConversationRouter([rule("watch")], default_agent_id="triage", supervisor_id="watch")
    talk = await desk.open(router, "triage", "watch")
    assert [code for code, _ in await talk.warnings()] == ["observer_routed"]
    assert await talk.ask("one") == [("triage", "triage on one"), ("watch", "Seen.")]


async def test_it_is_run_once_after_a_chain_of_handoffs(desk: Desk) -> None:
    await desk.agent("pat", hand_over("billing"))
    model = await desk.agent("watch", "Seen.")
    router = ConversationRouter(default_agent_id="pat", supervisor_id="watch")
    talk = await desk.open(router, "pat", "billing", "watch")
    assert await talk.ask("one") == [("billing", "billing on one"), ("watch", "Seen.")]
    assert len(model.requests) == 1


async def test_it_is_run_when_no_agent_answers(desk: Desk) -> None:
    await desk.agent("watch", "None has answered.")
    talk = await desk.open(ConversationRouter(supervisor_id="watch"), "triage", "watch")
    assert await talk.ask("one") == [("watch", "None has answered.")]
    assert len(await talk.facts(UNROUTED)) == 1


async def test_it_is_run_after_a_failed_answer(desk: Desk) -> None:
    await desk.agent("pat", ModelError("down"))
    model = await desk.agent("watch", "Pat has failed.")
    router = ConversationRouter(default_agent_id="pat", supervisor_id="watch")
    talk = await desk.open(router, "pat", "watch")
    assert await talk.ask("one") == [("watch", "Pat has failed.")]
    assert len(model.requests) == 1


async def test_a_failure_of_its_own_holds_up_nothing(desk: Desk) -> None:
    await desk.agent("watch", ModelError("down"), "Fine.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch")
    await talk.say("one")
    await talk.say("two")
    await talk.settled()
    assert await talk.answers() == [("triage", "triage on one"), ("triage", "triage on two"), ("watch", "Fine.")]
    [failed] = await talk.log(FAILED)
    assert (failed.event_data["speaker"], "ann" in failed.audience) == ("watch", False)


async def test_it_is_not_run_while_a_person_has_the_conversation(desk: Desk) -> None:
    await desk.agent("pat", hand_over("human"))
    model = await desk.agent("watch", "Seen.")
    talk = await desk.open(ConversationRouter(default_agent_id="pat", supervisor_id="watch"), "pat", "watch", "dana")
    assert await talk.ask("one") == []
    assert await talk.ask("two") == []
    assert model.requests == []


async def test_it_hears_private_words(desk: Desk) -> None:
    model = await desk.agent("watch", "Seen.", "Seen again.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana")
    private = await talk.say("Just you.", audience=["triage"])
    await talk.settled()
    assert private.audience == ["triage", "watch"]
    assert [each.audience for each in await talk.log(EV_PACKET)] == [["triage", "watch", "ann"], ["dana"]]
    await talk.say("Among us.", audience=["dana"])
    await talk.ask("Hello.")
    assert texts(model.requests[0]) == ["ann: Just you.", "triage: triage on Just you."]
    assert "ann: Among us." in texts(model.requests[-1])
    assert ("ann", "Among us.") not in await talk.seen_by("triage")


# Addressed


async def test_what_it_answers_when_it_is_addressed_is_for_staff(desk: Desk) -> None:
    model = await desk.agent("watch", "To staff alone.", "Seen.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana", "emil", "code")
    await talk.ask("What do you think?", addressed_to="watch", transport="sms", source="+4930")
    [packet] = await talk.log(EV_PACKET)
    assert (packet.sender_id, packet.audience) == ("watch", ["dana", "emil"])
    assert "recipient" not in packet.event_data
    assert ("watch", "To staff alone.") not in await talk.seen_by("ann")
    assert await talk.assigned() == [("watch", "addressed")], "it is not run again about its own answer"
    assert await talk.ask("one") == [("triage", "triage on one"), ("watch", "Seen.")]
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("by", "audience", "hearers"),
    [
        ("dana", ["watch"], ["watch", "dana"]),
        ("dana", ["watch", "emil"], ["watch", "emil", "dana"]),
        ("dana", ["watch", "ann"], ["watch", "dana"]),
        ("dana", ["watch", "triage"], ["watch", "triage", "dana"]),
        ("ann", ["watch"], ["watch"]),
    ],
)
async def test_a_private_word_to_it_is_answered_to_those_who_heard_it(
    desk: Desk, by: str, audience: list[str], hearers: list[str]
) -> None:
    await desk.agent("watch", "Between us.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana", "emil")
    assert await talk.ask("In private.", by=by, audience=audience, addressed_to="watch") == [("watch", "Between us.")]
    [packet] = await talk.log(EV_PACKET)
    assert packet.audience == hearers
    seen = {name for name in ("ann", "dana", "emil", "triage") if ("watch", "Between us.") in await talk.seen_by(name)}
    assert seen == {*hearers} - {"watch"}


async def test_without_staff_what_it_answers_is_for_operators(desk: Desk) -> None:
    await desk.agent("watch", "To operators.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "code")
    assert await talk.ask("What do you think?", addressed_to="watch") == [("watch", "To operators.")]
    for name in ("ann", "code", "triage"):
        assert await talk.seen_by(name) == [("ann", "What do you think?")]


# What it may do


async def test_it_hands_the_conversation_over(desk: Desk) -> None:
    await desk.agent("watch", hand_over("billing", "They mean money."), "Fine.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch")
    assert [agent for agent, _ in await talk.ask("one")] == ["triage", "billing"]
    assert (talk.state.active_agent_id, talk.state.handoff_count) == ("billing", 1)
    assert [(each["by"], each["to_agent"]) for each in await talk.facts(MOVED)] == [("watch", "billing")]
    [request] = desk.models["billing"].requests
    assert texts(request)[0] == "[Context from previous agent (watch)]: They mean money."
    assert (await talk.ask("two"))[0] == ("billing", "billing on two")


async def test_it_hands_over_a_message_that_no_agent_answers(desk: Desk) -> None:
    await desk.agent("watch", hand_over("billing"), "Fine.")
    router = ConversationRouter([rule("triage", intents={"tea"})], supervisor_id="watch")
    talk = await desk.open(router, "triage", "billing", "watch")
    assert await talk.ask("one") == [("billing", "billing on one")]
    assert (talk.state.previous_agent_id, talk.state.phase_history[0].from_agent) == (None, None)
    assert ConversationState.from_dict(talk.state.to_dict()) == talk.state
    moved = await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="triage"))
    assert moved.previous_agent_id == "billing"


async def test_what_it_says_beside_a_handoff_is_kept_from_the_next_agent(desk: Desk) -> None:
    said = msgspec.structs.replace(hand_over("billing", "They mean money."), text="A fraud, I think.")
    await desk.agent("watch", said, "Fine.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana")
    await talk.ask("one")
    [request] = desk.models["billing"].requests
    assert texts(request) == [
        "[Context from previous agent (watch)]: They mean money.",
        "ann: one",
        "triage: triage on one",
    ]
    words_of_watch = [each.audience for each in await talk.log(EV_PACKET) if words(each) == "A fraud, I think."]
    assert words_of_watch == [["dana"]]


async def test_it_gives_the_conversation_to_a_person(desk: Desk) -> None:
    await desk.agent("watch", hand_over("human"))
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana")
    assert await talk.ask("one") == [("triage", "triage on one")]
    assert await talk.ask("two") == []
    await talk.release("dana", to="billing")
    assert (await talk.ask("three"))[0] == ("billing", "billing on three")


async def test_no_agent_hands_the_conversation_to_it(desk: Desk) -> None:
    triage = await desk.agent("pat", hand_over("watch"), hand_over("eye"), "I go on.")
    await desk.agent("watch", "Seen.")
    router = ConversationRouter(default_agent_id="pat", supervisor_id="watch")
    talk = await desk.open(router, "pat", "billing", "watch", handoff={"agent_aliases": {"eye": "watch"}})
    assert await talk.ask("one") == [("pat", "I go on."), ("watch", "Seen.")]
    assert [(each["target"], each["reason"]) for each in await talk.facts(REFUSED)] == [
        ("watch", "target_not_found"),
        ("eye", "target_not_found"),
    ]
    assert "Possible targets: billing, human." in triage.requests[1].exchange[-1].text


async def test_it_closes_the_conversation(desk: Desk) -> None:
    @tool
    async def stop(why: str) -> Finish:
        """End the conversation."""
        return Finish(why)

    await desk.agent("watch", calls("stop", {"why": "fraud"}), tools=[stop])
    talk = await desk.open(WATCHED, "triage", "billing", "watch")
    await talk.say("one")
    assert await soon(talk.channel.closed()) == "fraud"
    assert await talk.answers() == [("triage", "triage on one"), ("watch", "fraud")]
    assert len(await talk.log(EV_CHANNEL_CLOSED)) == 1


# As a person, as code


@pytest.mark.parametrize("name", ["emil", "code"])
async def test_a_person_or_code_that_observes_gets_everything(desk: Desk, name: str) -> None:
    router = ConversationRouter(default_agent_id="triage", supervisor_id=name)
    talk = await desk.open(router, "triage", "dana", name)
    await talk.ask("one")
    await talk.ask("Just you.", audience=["triage"])
    await talk.ask("Among us.", audience=["dana"])
    assert await heard_by(desk.people[name], 5) == [
        ("ann", "one"),
        ("triage", "triage on one"),
        ("ann", "Just you."),
        ("triage", "triage on Just you."),
        ("ann", "Among us."),
    ]
    assert [agent for agent, _ in await talk.assigned()] == ["triage", "triage"]


@pytest.mark.parametrize("name", ["emil", "code"])
async def test_words_of_an_observer_are_not_routed(desk: Desk, name: str) -> None:
    """It may address an agent, though."""
    router = ConversationRouter(default_agent_id="triage", supervisor_id=name)
    talk = await desk.open(router, "triage", "billing", name)
    assert await talk.ask("A remark.", by=name) == []
    assert await talk.ask("Take over.", by=name, addressed_to="billing") == [("billing", "billing on Take over.")]


async def test_private_words_stay_private_to_others(desk: Desk) -> None:
    router = ConversationRouter(default_agent_id="triage", supervisor_id="code")
    talk = await desk.open(router, "triage", "dana", "emil", "code")
    await talk.ask("Among us.", audience=["dana"])
    seen = {name: ("ann", "Among us.") in await talk.seen_by(name) for name in ("dana", "emil", "code", "triage")}
    assert seen == {"dana": True, "emil": False, "code": True, "triage": False}


async def test_an_absent_observer_is_warned_of(desk: Desk) -> None:
    talk = await desk.open(WATCHED, "triage", "billing")
    [(code, message)] = await talk.warnings()
    assert (code, "supervisor_id: 'watch'" in message) == ("absent_agent", True)
    assert await talk.ask("one") == [("triage", "triage on one")]


async def test_it_observes_what_is_answered_during_a_hold(desk: Desk) -> None:
    model = await desk.agent("watch", "Seen.", "Seen too.")
    await desk.agent("triage", hand_over("human"), "I am here.", "Still here.")
    talk = await desk.open(WATCHED, "triage", "billing", "watch", "dana")
    await talk.ask("A person, please.")
    await talk.ask("Anybody?")
    await talk.ask("Triage?", addressed_to="triage")
    await talk.ask("Triage!", addressed_to="triage")
    assert [agent for agent, _ in await talk.assigned()] == ["triage", "triage", "watch", "triage", "watch"]
    assert [texts(request)[-1] for request in model.requests] == ["triage: I am here.", "triage: Still here."]


async def test_messages_wait_while_it_observes(desk: Desk) -> None:
    slow = Slow("Seen.")
    await desk.agent("watch", slow, "Seen too.")
    talk: Conversation = await desk.open(WATCHED, "triage", "billing", "watch")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    assert [agent for agent, _ in await talk.assigned()] == ["triage", "watch"]
    slow.go_on()
    await talk.settled()
    assert [agent for agent, _ in await talk.answers()] == ["triage", "watch", "triage", "watch"]


async def test_an_observer_that_opens_the_channel_is_warned_of(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter(default_agent_id="triage", supervisor_id="ann"), "triage")
    [(code, message)] = await talk.warnings()
    assert (code, "'ann' opens the channel" in message) == ("observer_routed", True)
    assert await talk.ask("one") == []


async def test_an_event_of_ones_own_keeps_its_fields_and_its_id(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter(supervisor_id="dana"), "triage", "dana")
    for _ in range(2):
        posted = await talk.channel.post(
            "lab.measurement", {"observed": "yesterday"}, audience=["triage"], message_id="m1"
        )
        assert (posted.event_data["observed"], posted.audience) == ("yesterday", ["triage", "dana"])
