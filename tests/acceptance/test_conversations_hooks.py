"""The triggers of conversations, and hooks that refuse or change what is said in them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    ConversationRouter,
    Denied,
    HookEvent,
    HookExecution,
    HookResult,
    HookTrigger,
    set_conversation_state,
)
from tests.support.conversation_desk import FAILED, RELEASED, TO_TRIAGE, Desk, a_desk, all_done, hand_over, texts

MOVES = (HookTrigger.ON_HANDOFF, HookTrigger.ON_PHASE_TRANSITION, HookTrigger.ON_HANDOFF_REJECTED)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human") as found:
        yield found


def listened(desk: Desk, *triggers: HookTrigger) -> list[HookEvent]:
    """The events of these triggers, from now on."""
    found: list[HookEvent] = []
    for trigger in triggers:

        @desk.hub.hook(trigger, execution=HookExecution.ASYNC, priority=0)
        async def note(event: HookEvent) -> None:
            found.append(event)

    return found


async def test_an_accepted_handoff(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.agent("triage", hand_over("billing", "Invoice 7.", "not mine"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    await all_done()
    [event] = events
    assert (event.trigger, event.channel_id) == (HookTrigger.ON_HANDOFF, talk.channel_id)
    assert event.data == {
        "from_agent": "triage",
        "to_agent": "billing",
        "from_phase": "intake",
        "to_phase": "intake",
        "reason": "not mine",
        "summary": "Invoice 7.",
        "by": "triage",
    }
    assert event.envelope.event_type == "antiphon.conversation.moved"


async def test_a_handoff_into_another_phase_fires_both(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.agent("triage", hand_over("billing", next_phase="handling"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    await all_done()
    assert sorted(each.trigger.name for each in events) == ["ON_HANDOFF", "ON_PHASE_TRANSITION"]
    assert {(each.data["from_phase"], each.data["to_phase"]) for each in events} == {("intake", "handling")}


async def test_a_phase_changed_by_code(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="followup", reason="later"))
    await all_done()
    assert [(each.trigger.name, each.data["reason"]) for each in events] == [("ON_PHASE_TRANSITION", "later")]


async def test_an_agent_made_active_by_code_is_a_handoff(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="intake", to_agent="triage"))
    await all_done()
    assert [(each.trigger.name, each.data["to_agent"]) for each in events] == [("ON_HANDOFF", "triage")]


async def test_a_conversation_that_code_leaves_with_nobody_is_no_handoff(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="triage"))
    await all_done()
    events = listened(desk, *MOVES)
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling"))
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="triage"))
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="resolution"))
    await all_done()
    assert [(each.trigger.name, each.data["from_agent"], each.data["to_agent"]) for each in events] == [
        ("ON_HANDOFF", None, "triage"),
        ("ON_PHASE_TRANSITION", "triage", None),
    ]


async def test_a_person_that_takes_over_is_a_handoff(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.agent("triage", hand_over("human", "Angry."))
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    await talk.ask("hi")
    await all_done()
    [event] = events
    assert (event.trigger.name, event.data["to_agent"], event.data["person"]) == ("ON_HANDOFF", None, "human")


async def test_a_release_to_an_agent_is_a_handoff(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human", next_phase="escalation"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
    await talk.ask("hi")
    events = listened(desk, *MOVES)
    await talk.release("dana", to="billing")
    await all_done()
    [event] = events
    assert (event.trigger, event.channel_id) == (HookTrigger.ON_HANDOFF, talk.channel_id)
    assert event.data == {
        "from_agent": None,
        "to_agent": "billing",
        "from_phase": "escalation",
        "to_phase": "escalation",
        "reason": "released",
        "summary": "",
        "by": "dana",
    }
    assert (event.envelope.event_type, event.envelope.event_data) == (
        RELEASED,
        {"by": "dana", "to": "billing", "person": "human", "phase": "escalation"},
    )


async def test_a_release_to_no_agent_is_no_handoff(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    await talk.ask("hi")
    events = listened(desk, *MOVES)
    await talk.release("dana")
    await all_done()
    assert (events, len(await talk.facts(RELEASED))) == ([], 1)


@pytest.mark.parametrize(
    ("handoff", "rules", "reason"),
    [
        (hand_over("refunds"), {}, "target_not_found"),
        (hand_over("billing", next_phase="x"), {"allowed_transitions": {}}, "transition_not_allowed"),
    ],
)
async def test_a_refused_handoff(desk: Desk, handoff: object, rules: dict[str, object], reason: str) -> None:
    events = listened(desk, *MOVES)
    await desk.agent("triage", handoff, "I go on.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff=rules)
    await talk.ask("hi")
    await all_done()
    [event] = events
    assert (event.trigger, event.data["reason"]) == (HookTrigger.ON_HANDOFF_REJECTED, reason)
    assert event.data["from_agent"] == "triage"


async def test_a_handoff_beyond_the_limit_is_rejected(desk: Desk) -> None:
    events = listened(desk, HookTrigger.ON_HANDOFF_REJECTED)
    await desk.agent("triage", *[hand_over("billing")] * 3)
    await desk.agent("billing", *[hand_over("triage")] * 3, "Enough.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    await all_done()
    assert [each.data["reason"] for each in events] == ["hop_limit:5"]


async def test_answers_by_affinity_fire_nothing(desk: Desk) -> None:
    events = listened(desk, *MOVES)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("one")
    await talk.ask("two")
    await all_done()
    assert events == []


async def test_hooks_see_what_was_said(desk: Desk) -> None:
    events = listened(desk, HookTrigger.AFTER_BROADCAST)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("one", intent="billing")
    await all_done()
    assert [each.envelope.sender_id for each in events] == ["ann", "triage"]
    assert events[0].data == {"text": "one", "intent": "billing"}


async def test_a_failing_hook_holds_up_nothing(desk: Desk) -> None:
    @desk.hub.hook(HookTrigger.ON_HANDOFF)
    async def broken(event: HookEvent) -> None:
        raise RuntimeError("no ticket system")

    await desk.agent("triage", hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("hi") == [("billing", "billing on hi")]
    await all_done()
    [failed] = await talk.log("antiphon.hook.failed")
    assert (failed.event_data["hook"], "no ticket system" in str(failed.event_data["error"])) == ("broken", True)


# Before it is recorded


def moderate(event: HookEvent) -> HookResult | None:
    said = str(event.data.get("text", event.data.get("body")))
    if "idiot" in said:
        return HookResult.block("be polite")
    return HookResult.modify(said.replace("1234", "****")) if "1234" in said else None


def moderated(desk: Desk) -> None:
    desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC)(moderate)


async def test_a_blocked_message_is_denied_and_routed_to_none(desk: Desk) -> None:
    moderated(desk)
    models = await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    before = await talk.log()
    with pytest.raises(Denied) as caught:
        await talk.say("You idiot!")
    assert (caught.value.reason, caught.value.detail) == ("blocked", "be polite")
    assert (await talk.log(), models["triage"].requests) == (before, [])


async def test_a_modified_message_is_what_agents_see(desk: Desk) -> None:
    moderated(desk)
    models = await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    sent = await talk.say("My PIN is 1234.", intent="billing")
    await talk.settled()
    assert sent.event_data["text"] == "My PIN is ****."
    assert sent.event_data["intent"] == "billing"
    assert texts(models["triage"].requests[0]) == ["My PIN is ****."]


async def test_a_blocked_answer_ends_the_turn_and_the_next_message_is_routed(desk: Desk) -> None:
    moderated(desk)
    await desk.agent("triage", "You idiot!", "Sorry.")
    talk = await desk.open(TO_TRIAGE, "triage")
    assert await talk.ask("one") == []
    assert [(each["speaker"], each["reason"]) for each in await talk.facts(FAILED)] == [("triage", "denied:blocked")]
    assert await talk.ask("two") == [("triage", "Sorry.")]


async def test_a_modified_answer_is_recorded_and_leaves_so(desk: Desk) -> None:
    moderated(desk)
    await desk.agent("triage", "Your PIN is 1234.")
    talk = await desk.open(TO_TRIAGE, "triage")
    assert await talk.ask("one", transport="sms", source="+49") == [("triage", "Your PIN is ****.")]
    [packet] = await talk.log("ag2.packet")
    assert packet.event_data["recipient"] == "+49"


async def test_hooks_run_in_the_order_of_their_priority(desk: Desk) -> None:
    """The router of the hub, at -100, is no function: it does not see the message."""
    seen: list[str] = []
    router = ConversationRouter(default_agent_id="triage")
    desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC, priority=-100)(router.as_hook())
    for number in (10, -5, 0):

        @desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC, priority=number)
        async def note(event: HookEvent, number: int = number) -> HookResult:
            seen.append(f"{number}: {event.data.get('text', event.data.get('body'))}")
            return HookResult.modify(f"{event.data.get('text', event.data.get('body'))}.")

    await desk.echoes("triage")
    channel = await desk.people["ann"].open(type="routed", target=["triage"])
    await channel.send("hi")
    assert seen[:3] == ["-5: hi", "0: hi.", "10: hi.."]
