"""Conversations where their parts meet: staff and customers, holds and handoffs, private words, and forks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    ConversationRouter,
    Denied,
    Handoff,
    HookEvent,
    HookExecution,
    HookTrigger,
    OutboundReply,
    UsageError,
    calls,
    get_conversation_state,
    set_conversation_state,
    tool,
)
from antiphon.core.conversation_events import EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE
from antiphon.core.envelope import Json
from antiphon.core.errors import TransportRefused
from tests.support.conversation_desk import (
    MOVED,
    REFUSED,
    RULE_FAILED,
    TO_TRIAGE,
    UNROUTED,
    Desk,
    Slow,
    a_desk,
    all_done,
    hand_over,
    rule,
    texts,
)

WATCHED = ConversationRouter(default_agent_id="triage", supervisor_id="watch")
ALIASES = {"agent_aliases": {"money": "billing"}}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann", "bob", "dana:human", "erik:human") as found:
        yield found


def connected(desk: Desk, *names: str) -> list[tuple[str, str, str]]:
    """What leaves by these transports: the transport, the recipient and the words."""
    left: list[tuple[str, str, str]] = []

    async def send(reply: OutboundReply) -> None:
        if "refuse" in reply.text:
            raise TransportRefused("no such number")
        left.append((reply.transport, reply.recipient, reply.text))

    for name in names:
        desk.hub.transport(name, send=send)
    return left


# Answers to staff


@pytest.mark.parametrize("audience", [None, ["billing"]])
@pytest.mark.parametrize("escalation", ["same", "sms"])
async def test_answers_to_staff_stay_here(desk: Desk, escalation: str, audience: list[str] | None) -> None:
    """Also after the replies to the customer were switched to another transport."""
    left = connected(desk, "sms", "email")
    await desk.agent("triage", "Welcome.", hand_over("billing", channel_escalation=escalation))
    await desk.agent("billing", "Hello Ann.", "The margin is 90 %.", "Goodbye.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
    await talk.ask("hi", transport="sms", source="+49")
    await talk.ask("an invoice", transport="email", source="ann@x")
    assert await talk.ask("what is our margin?", by="dana", audience=audience) == [("billing", "The margin is 90 %.")]
    await all_done()
    way = ("sms", "+49") if escalation == "sms" else ("email", "ann@x")
    assert left == [("sms", "+49", "Welcome."), (*way, "Hello Ann.")]
    await talk.ask("thanks")
    await all_done()
    assert left[2:] == ([("sms", "+49", "Goodbye.")] if escalation == "sms" else []), "the customer's stay switched"


# A hold


async def test_an_agent_that_is_addressed_in_a_hold_answers_and_ends_no_hold(desk: Desk) -> None:
    model = await desk.agent("triage", hand_over("human"), hand_over("billing"), "I answer this.", "Welcome back.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
    await talk.ask("a person, please")
    assert await talk.ask("give me billing", addressed_to="triage") == [("triage", "I answer this.")]
    assert [(each["target"], each["reason"]) for each in await talk.facts(REFUSED)] == [("billing", "target_not_found")]
    assert "A person has this conversation" in model.requests[-1].exchange[-1].text
    assert talk.state.active_agent_id is None
    assert len(await talk.facts(MOVED)) == 1
    assert await talk.ask("hello?") == []
    await talk.release("dana")
    assert await talk.ask("and now?") == [("triage", "Welcome back.")]


@pytest.mark.parametrize("supervisor", [None, "dana"])
async def test_what_a_person_says_in_a_hold_leaves_to_the_customer(desk: Desk, supervisor: str | None) -> None:
    """Whichever way the person writes by, and also if the person is the observer."""
    left = connected(desk, "sms", "console")
    await desk.agent("triage", hand_over("human"), "Goodbye.")
    router = ConversationRouter(default_agent_id="triage", supervisor_id=supervisor)
    talk = await desk.open(router, "triage", "dana", "erik")
    await talk.ask("help", transport="sms", source="+49")
    await talk.ask("Dana here.", by="dana")
    await talk.ask("From my console.", by="dana", transport="console", source="desk 4")
    await talk.ask("A word to Erik.", by="dana", transport="console", source="desk 4", audience=["erik"])
    await talk.ask("Are you there?", by="dana")
    await talk.ask("Erik here.", by="erik")
    await talk.release("erik")
    await talk.ask("thanks", transport="sms")
    await all_done()
    said = ["Dana here.", "From my console.", "Are you there?", "Erik here.", "Goodbye."]
    assert left == [("sms", "+49", text) for text in said]


# Private words


async def test_the_next_agent_sees_a_private_handoff_by_an_alias(desk: Desk) -> None:
    await desk.agent("triage", hand_over("money", "An old debt."))
    billing = await desk.agent("billing", "I see.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "bob", handoff=ALIASES)
    assert await talk.ask("in private", audience=["triage"]) == [("billing", "I see.")]
    handed = (await talk.log(EV_PACKET))[0]
    routing = handed.event_data["routing"]
    assert isinstance(routing, dict)
    assert (routing["target"], handed.audience) == ("billing", ["triage", "ann", "billing"])
    assert texts(billing.requests[0])[0] == "[Context from previous agent (triage)]: An old debt."
    assert await talk.seen_by("bob") == []


async def test_an_agent_outside_the_audience_cannot_be_addressed(desk: Desk) -> None:
    models = await desk.echoes("triage", "billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
    with pytest.raises(UsageError, match="'billing', who is not in the audience"):
        await talk.say("a secret", audience=["dana"], addressed_to="billing")
    assert await talk.log(EV_TEXT) == []
    data: Json = {"text": "a secret", "addressed_to": "billing"}
    posted = await (await talk.held_by("ann")).post(EV_TEXT, data, audience=["dana", "triage"])
    await talk.settled()
    assert await talk.facts(UNROUTED) == [{"message": posted.envelope_id}]
    [failed] = await talk.facts(RULE_FAILED)
    assert "'billing'" in str(failed)
    await talk.ask("an open word", addressed_to="billing")
    assert [texts(each) for each in models["billing"].requests] == [["ann: an open word"]]


async def test_the_reason_of_a_private_handoff_is_in_no_state(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", reason="a debt"), hand_over("billing", reason="an invoice"))
    await desk.agent("billing", "I see.", hand_over("triage", reason="done"), "I see.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "bob")
    await talk.ask("in private", audience=["triage"])
    for name in ("bob", "ann"):
        state = get_conversation_state(await talk.held_by(name))
        assert [(each.to_agent, each.reason) for each in state.phase_history] == [("billing", "")]
    await talk.ask("openly")
    assert [each.reason for each in talk.state.phase_history] == ["", "done", "an invoice"]


# The place of a message


async def test_a_message_that_names_a_cause_stands_where_it_was_said(desk: Desk) -> None:
    slow = Slow("One.")
    model = await desk.agent("triage", slow, "Two.", "Three.")
    talk = await desk.open(TO_TRIAGE, "triage")
    first = await talk.say("M1")
    await slow.begun()
    await talk.say("M2")
    await talk.say("M3", causation_id=first.envelope_id)
    slow.go_on()
    await talk.settled()
    assert [[text.removeprefix("ann: ") for text in texts(each)] for each in model.requests] == [
        ["M1"],
        ["M1", "One.", "M2"],
        ["M1", "One.", "M2", "Two.", "M3"],
    ]


async def test_a_message_that_names_a_cause_is_not_read_before_its_turn(desk: Desk) -> None:
    slow = Slow(hand_over("billing"))
    await desk.agent("triage", slow)
    billing = await desk.agent("billing", "One.", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    first = await talk.say("M1")
    await slow.begun()
    await talk.say("M2", causation_id=first.envelope_id)
    slow.go_on()
    await talk.settled()
    context = "[Context from previous agent (triage)]: S"
    assert [texts(each) for each in billing.requests] == [
        [context, "ann: M1"],
        [context, "ann: M1", "One.", "ann: M2"],
    ]


# Forks


async def test_no_fork_begins_between_a_handoff_and_its_turn(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.agent("billing", "One.", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("M1")
    [moved] = await talk.log(MOVED)
    with pytest.raises(UsageError, match=f"at is {moved.sequence}, in the middle of a decision"):
        await talk.channel.fork(at=moved.sequence)
    behind = await desk.again((await talk.channel.fork(at=moved.sequence + 1)).channel_id)
    await behind.settled()
    assert await behind.answers() == [("triage", ""), ("billing", "Two.")]


async def test_no_fork_begins_between_a_message_without_an_agent_and_the_next_turn(desk: Desk) -> None:
    slow = Slow("One.")
    await desk.agent("triage", slow, "Three.", "Four.")
    talk = await desk.open(ConversationRouter([rule("triage", intents={"t"})]), "triage", "dana")
    await talk.say("M1", intent="t")
    await slow.begun()
    await talk.say("M2")
    await talk.say("M3", intent="t")
    slow.go_on()
    await talk.settled()
    [unrouted] = await talk.log(UNROUTED)
    with pytest.raises(UsageError, match=f"at is {unrouted.sequence}, in the middle of a decision"):
        await talk.channel.fork(at=unrouted.sequence)
    before = await desk.again((await talk.channel.fork(at=unrouted.sequence - 1)).channel_id)
    await before.settled()
    assert await before.answers() == [("triage", "One."), ("triage", "Four.")]
    assert len(await before.facts(UNROUTED)) == 1


async def test_a_fork_at_a_move_by_a_person(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("M1")
    state = talk.state.transition(to_phase="handling", to_agent="billing")
    await set_conversation_state(await talk.held_by("ann"), state)
    await talk.ask("M2")
    [moved] = await talk.log(MOVED)
    copy = await desk.again((await talk.channel.fork(at=moved.sequence)).channel_id)
    assert (copy.state.phase, copy.state.active_agent_id) == ("handling", "billing")
    assert await copy.ask("M3") == [("billing", "billing on M3")]
    assert [name for name, _ in await copy.answers()] == ["triage", "billing"]


async def test_a_fork_at_a_hold_is_held_until_its_own_release(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"), "Back in the fork.", "Back.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    await talk.ask("a person, please")
    last = (await talk.log())[-1]
    assert last.event_type == MOVED
    copy = await desk.again((await talk.channel.fork(at=last.sequence)).channel_id)
    assert await copy.ask("hello?") == []
    await copy.release("dana")
    assert await copy.ask("and now?") == [("triage", "Back in the fork.")]
    assert await talk.ask("hello?") == [], "the origin is held"
    await talk.release("dana")
    assert await talk.ask("and now?") == [("triage", "Back.")]


async def test_a_fork_routes_no_message_again_that_no_agent_answered(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(ConversationRouter([rule("triage", intents={"t"})]), "triage")
    await talk.ask("M1")
    said = await talk.say("M2")
    copy = await desk.again((await talk.channel.fork(at=(await talk.log())[-1].sequence)).channel_id)
    texts_of_copy = await copy.log(EV_TEXT)
    assert await copy.facts(UNROUTED) == [{"message": each.envelope_id} for each in texts_of_copy]
    assert said.envelope_id not in {each.envelope_id for each in texts_of_copy}
    assert [each.causation_id for each in await copy.log(UNROUTED)] == [each.envelope_id for each in texts_of_copy]
    state = copy.state.transition(to_phase="handling", to_agent="triage")
    await set_conversation_state(copy.channel, state)
    assert await copy.ask("M3") == [("triage", "triage on M3")]
    assert await copy.answers() == [("triage", "triage on M3")], "M1 and M2 wait no longer"


async def test_a_fork_delivers_no_reply_again(desk: Desk) -> None:
    """What has left, and what was refused for good, is recorded of the copied replies."""
    left = connected(desk, "sms")
    await desk.agent("triage", "One.", "I refuse.", "Three.", "Four.")
    talk = await desk.open(TO_TRIAGE, "triage")
    for text in ("M1", "M2", "M3"):
        await talk.ask(text, transport="sms", source="+49")
        await all_done()
    copy = await desk.again((await talk.channel.fork(at=(await talk.log())[-1].sequence)).channel_id)
    await all_done()
    replies = [each.envelope_id for each in await copy.log(EV_PACKET)]
    facts = await copy.log(EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE)
    assert [each.event_data["reply"] for each in facts] == [each.causation_id for each in facts] == replies
    assert not {*replies} & {each.envelope_id for each in await talk.log()}
    assert [text for _, _, text in left] == ["One.", "Three."]
    await copy.ask("M4", transport="sms", source="+49")
    await all_done()
    assert [text for _, _, text in left] == ["One.", "Three.", "Four."]


# Refused


async def test_a_handoff_beside_the_turn_of_another_agent_is_refused(desk: Desk) -> None:
    """What an agent says beside is heard. A handoff would take the conversation from the agent that answers."""
    slow = Slow("Done.")
    await desk.agent("triage", slow)
    await desk.echoes("billing", "support")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "support", "dana")
    await talk.say("hi")
    await slow.begun()
    beside = await talk.held_by("billing")
    for target in ("support", "dana", "human", "nobody"):
        with pytest.raises(Denied) as refused:
            await beside.post(EV_PACKET, {"body": "Mine.", "routing": {"target": target}})
        assert refused.value.reason == "not_expected_speaker", target
    await beside.post(EV_PACKET, {"body": "A remark."})
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("billing", "A remark."), ("triage", "Done.")]
    assert await talk.log(MOVED, REFUSED) == []
    await beside.post(EV_PACKET, {"body": "Mine.", "routing": {"target": "support"}})
    await talk.settled()
    assert talk.state.active_agent_id == "support", "nothing is in progress"


async def test_a_refused_handoff_of_a_tool_that_may_not_run_twice(desk: Desk) -> None:
    @tool(idempotency="unsafe")
    async def give(to: str) -> Handoff:
        """Give the conversation away."""
        return Handoff(to, "why", "S")

    rejected: list[HookEvent] = []

    @desk.hub.hook(HookTrigger.ON_HANDOFF_REJECTED, execution=HookExecution.ASYNC)
    async def hear(event: HookEvent) -> None:
        rejected.append(event)

    model = await desk.agent("triage", calls("give", {"to": "lawyer"}), "Sorry.", tools=[give])
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    assert await talk.ask("hi") == [("triage", "Sorry.")]
    await all_done()
    refused = [(each["from_agent"], each["target"], each["reason"]) for each in await talk.facts(REFUSED)]
    assert refused == [("triage", "lawyer", "target_not_found")]
    assert [(each.data["target"], each.data["reason"]) for each in rejected] == [("lawyer", "target_not_found")]
    assert model.requests[1].exchange[-1].text.startswith("There is no 'lawyer'")


async def test_the_observer_is_no_agent_that_a_conversation_can_be_given_to(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"), "Back.")
    await desk.agent("watch", "Noted.", "Noted.")
    talk = await desk.open(WATCHED, "triage", "watch", "dana")
    dana = await talk.held_by("dana")
    with pytest.raises(Denied) as given:
        await set_conversation_state(dana, talk.state.transition(to_phase="handling", to_agent="watch"))
    assert given.value.reason == "target_not_found"
    await talk.ask("a person, please")
    with pytest.raises(Denied) as released:
        await dana.release(to="watch")
    assert released.value.reason == "target_not_found"
    assert await talk.ask("hello?") == [], "it is held as before"
    assert talk.state.active_agent_id is None
    await dana.release(to="triage")
    assert ("triage", "Back.") in await talk.ask("and now?")
