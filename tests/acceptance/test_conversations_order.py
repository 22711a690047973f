"""Messages during a turn, repeated messages, failures, restarts, and agents that several conversations share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    ConversationRouter,
    ConversationState,
    Denied,
    Envelope,
    Finish,
    HookExecution,
    HookTrigger,
    Hub,
    ModelError,
    State,
    calls,
    register_predicate,
    tool,
)
from antiphon.testing import ManualClock
from tests.support.conversation_desk import (
    FAILED,
    MOVED,
    REFUSED,
    TO_TRIAGE,
    UNROUTED,
    Conversation,
    Desk,
    Echo,
    Slow,
    a_desk,
    all_done,
    hand_over,
    own_predicates,
    rule,
    texts,
)
from tests.support.kept_store import KeptStore
from tests.support.waiting import soon


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human", "code") as found:
        yield found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'desk.db'}"


# During a turn


async def test_messages_during_a_turn_are_answered_in_order(desk: Desk) -> None:
    """Each prompt has the log up to its message, and the answers to earlier ones where they belong."""
    slow = Slow("One.")
    model = await desk.agent("triage", slow, "Two.", "Three.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    sent = [await talk.say("one")]
    await slow.begun()
    sent += [await talk.say("two", by="dana"), await talk.say("three")]
    assert len(model.requests) == 1
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("triage", "One."), ("triage", "Two."), ("triage", "Three.")]
    assert [texts(each) for each in model.requests] == [
        ["ann: one"],
        ["ann: one", "One.", "dana: two"],
        ["ann: one", "One.", "dana: two", "Two.", "ann: three"],
    ]
    causes = [each.causation_id for each in await talk.log(EV_PACKET)]
    assert causes == [each.envelope_id for each in sent]


async def test_a_message_is_routed_when_its_turn_begins(desk: Desk) -> None:
    """A handoff in the turn before it holds for it."""
    slow = Slow(hand_over("billing"))
    await desk.agent("triage", slow)
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("triage", ""), ("billing", "billing on one"), ("billing", "billing on two")]


async def test_context_written_during_a_turn_is_seen_when_the_next_begins(desk: Desk) -> None:
    await desk.agent("triage", "One.", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("one", set={"tier": "gold", "order": 7})
    assert talk.channel.state.context_vars == {"tier": "gold", "order": 7}
    await talk.ask("two", set={"tier": "silver"})
    assert talk.channel.state.context_vars == {"tier": "silver", "order": 7}
    assert [each.event_data for each in await talk.log(EV_TEXT)][1] == {"text": "two", "set": {"tier": "silver"}}


async def test_simultaneous_messages_have_one_turn_at_a_time(desk: Desk) -> None:
    running = 0

    async def model(request: object) -> object:
        nonlocal running
        running += 1
        assert running == 1, "two turns at once"
        await asyncio.sleep(0)
        running -= 1
        return calls("noop")

    @tool(return_direct=True)
    async def noop() -> str:
        """Nothing."""
        return "Done."

    await desk.hire(Agent("triage", model=model, tools=[noop]))  # type: ignore[arg-type]
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "code")
    sent = await asyncio.gather(*(talk.say(f"{n}", by=("ann", "dana", "code")[n % 3]) for n in range(30)))
    await talk.settled()
    packets = await talk.log(EV_PACKET)
    assert [each.causation_id for each in packets] == [each.envelope_id for each in sorted(sent, key=_place)]


async def test_other_conversations_do_not_wait(desk: Desk) -> None:
    slow = Slow("Late.")
    await desk.agent("triage", slow, "At once.")
    one, two = await desk.open(TO_TRIAGE, "triage"), await desk.open(TO_TRIAGE, "triage")
    await one.say("one")
    await slow.begun()
    assert await two.ask("two") == [("triage", "At once.")]
    slow.go_on()
    await one.settled()
    assert await one.answers() == [("triage", "Late.")]


async def test_a_conversation_closed_during_a_turn_answers_nothing_more(desk: Desk) -> None:
    slow = Slow("Too late.")
    await desk.agent("triage", slow, "Never said.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    await talk.channel.close("enough")
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == []
    with pytest.raises(Denied) as caught:
        await talk.say("three")
    assert caught.value.reason == "channel_closed"


async def test_an_agent_closes_the_conversation(desk: Desk) -> None:
    @tool
    async def done() -> Finish:
        """There is nothing left to do."""
        return Finish("solved")

    slow = Slow(calls("done"))
    await desk.agent("triage", slow, "Never said.", tools=[done])
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    slow.go_on()
    assert await soon(talk.channel.closed()) == "solved"
    assert len(await talk.answers()) == 1


# Again


async def test_a_message_id_makes_a_message_repeatable(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    first = await talk.say("hi", transport="sms", message_id="m1")
    await talk.settled()
    again = await talk.say("hi", transport="sms", message_id="m1")
    await talk.settled()
    assert again == first
    assert await talk.answers() == [("triage", "triage on hi")]


async def test_a_message_id_during_its_turn(desk: Desk) -> None:
    slow = Slow("Hello.")
    await desk.agent("triage", slow)
    talk = await desk.open(TO_TRIAGE, "triage")
    first = await talk.say("hi", message_id="m1")
    await slow.begun()
    assert await talk.say("hi", message_id="m1") == first
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("triage", "Hello.")]


@pytest.mark.parametrize("other", [{"text": "ho"}, {"transport": "web"}, {"intent": "billing"}, {"set": {"a": 1}}])
async def test_a_message_id_with_other_content_is_a_conflict(desk: Desk, other: dict[str, object]) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    given: dict[str, object] = {"text": "hi", "transport": "sms", "message_id": "m1"}
    await talk.ask(**given)  # type: ignore[arg-type]
    with pytest.raises(Denied) as caught:
        await talk.say(**{**given, **other})  # type: ignore[arg-type]
    assert caught.value.reason == "conflict"
    assert len(await talk.answers()) == 1


async def test_a_key_finds_the_conversation_again(desk: Desk) -> None:
    await desk.echoes("triage")
    first = await desk.open(TO_TRIAGE, "triage", key="+4930")
    again = await desk.open(TO_TRIAGE, "triage", key="+4930")
    assert again.channel_id == first.channel_id


async def test_a_key_finds_the_conversation_that_has_the_hubs_router(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    ann = desk.people["ann"]
    opened = []
    for agent in ("triage", "billing"):
        hook = ConversationRouter(default_agent_id=agent).as_hook()
        desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC)(hook)
        opened.append(await ann.open(type="routed", target=["triage", "billing"], key="+4930"))
    assert opened[0].channel_id == opened[1].channel_id
    assert await Conversation(desk, opened[1]).ask("hi") == [("triage", "triage on hi")]


# Failures


async def test_after_a_failed_turn_the_next_message_is_routed(desk: Desk) -> None:
    await desk.agent("triage", ModelError("the model is down"), "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    assert await talk.ask("one") == []
    [failed] = await talk.facts(FAILED)
    assert failed["speaker"] == "triage"
    assert await talk.ask("two") == [("triage", "Two.")]


async def test_messages_that_waited_for_a_failed_turn_are_answered(desk: Desk) -> None:
    slow = Slow(ModelError("the model is down"))
    await desk.agent("triage", slow, "Two.", "Three.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    await talk.say("three")
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("triage", "Two."), ("triage", "Three.")]


async def test_a_failure_after_a_handoff_leaves_it_with_the_next_agent(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.agent("billing", ModelError("the model is down"), "Two.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("one") == []
    assert await talk.ask("two") == [("billing", "Two.")]


async def test_a_cancelled_turn_is_followed_by_the_next_message(desk: Desk) -> None:
    slow = Slow("Never said.")
    await desk.agent("triage", slow, "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    assert await talk.channel.cancel("changed my mind") == 1
    await talk.settled()
    assert await talk.answers() == [("triage", "Two.")]


# After a restart


async def test_another_hub_goes_on_with_the_agents_alone(url: str) -> None:
    """Nothing is wired again: the router, the rules and the state stand in the log."""
    clock = ManualClock()
    router = ConversationRouter([rule("billing", phases={"handling"})], "triage")
    rules = {"agent_aliases": {"money": "billing"}, "phase_map": {"billing": "handling"}}
    async with a_desk("ann:human", "dana:human", url=url, clock=clock) as desk:
        await desk.agent("triage", hand_over("money", "Invoice 7."))
        await desk.echoes("billing")
        talk = await desk.open(router, "triage", "billing", "dana", handoff=rules)
        assert await talk.ask("one") == [("billing", "billing on one")]
        state, channel_id = talk.state, talk.channel_id
    async with a_desk("ann:human", "dana:human", url=url, clock=clock) as desk:
        await desk.agent("triage", "Triage is back.")
        billing = await desk.agent("billing", hand_over("triage", "Paid."), hand_over("nobody"), "I stay.")
        talk = await desk.again(channel_id)
        assert talk.state == state
        assert await talk.ask("two") == [("triage", "Triage is back.")]
        assert texts(billing.requests[0])[0] == "[Context from previous agent (triage)]: Invoice 7."
        assert [(each["to_agent"], each["to_phase"]) for each in await talk.facts(MOVED)] == [
            ("billing", "handling"),
            ("triage", "handling"),
        ]


async def test_a_hold_survives_a_restart(url: str) -> None:
    async with a_desk("ann:human", "dana:human", url=url) as desk:
        await desk.agent("triage", hand_over("human"))
        talk = await desk.open(TO_TRIAGE, "triage", "dana")
        await talk.ask("one")
        channel_id = talk.channel_id
    async with a_desk("ann:human", "dana:human", url=url) as desk:
        await desk.echoes("triage")
        talk = await desk.again(channel_id)
        assert await talk.ask("two") == []
        await talk.release("dana")
        assert await talk.ask("three") == [("triage", "triage on three")]


async def test_what_was_owed_is_answered_after_a_restart_in_order(url: str) -> None:
    hub = await Hub.open(url, engine=None, clock=ManualClock())
    ann = await hub.register("ann", kind="human")
    await hub.register(Agent("triage", model=Echo("triage")))
    channel = await ann.open(type="routed", target=["triage"], knobs={"router": TO_TRIAGE.to_dict()})
    for text in ("one", "two", "three"):
        await channel.send(text)
    await hub.close()
    async with a_desk("ann:human", url=url) as desk:
        await desk.echoes("triage")
        talk = await desk.again(channel.channel_id)
        await talk.settled()
        assert await talk.answers() == [("triage", f"triage on {text}") for text in ("one", "two", "three")]


async def test_a_message_id_counts_after_a_restart(url: str) -> None:
    async with a_desk("ann:human", url=url) as desk:
        await desk.echoes("triage")
        talk = await desk.open(TO_TRIAGE, "triage")
        first = await talk.say("hi", message_id="m1")
        await talk.settled()
        channel_id = talk.channel_id
    async with a_desk("ann:human", url=url) as desk:
        await desk.echoes("triage")
        talk = await desk.again(channel_id)
        assert await talk.say("hi", message_id="m1") == first
        await talk.settled()
        assert len(await talk.answers()) == 1


@pytest.mark.parametrize("tells", ["note", "message"])
async def test_a_predicate_that_is_registered_late_holds_from_the_next_record_on(
    tells: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the rules of the channel cannot be made, and what it is owed cannot be known."""

    def registered_late(event: Envelope, context: State, state: ConversationState) -> bool:
        return event.event_data["text"] == "one"

    clock = ManualClock()
    store = KeptStore(clock)
    with own_predicates():
        register_predicate(registered_late)
        router = ConversationRouter([rule("billing", custom=registered_late)], "triage")
        first = Desk(await Hub.over(store, engine=None, clock=clock), clock)
        await first.join("ann:human")
        await first.echoes("triage", "billing")
        talk = await first.open(router, "triage", "billing", say="one")
        await first.hub.close()
    with own_predicates():
        desk = Desk(await Hub.over(store, clock=clock), clock)
        await desk.join("ann:human")
        await desk.echoes("triage", "billing")
        await all_done()
        assert f"what channel {talk.channel_id} is owed cannot be known" in caplog.text
        register_predicate(registered_late)
        talk = await desk.again(talk.channel_id)
        await all_done()
        assert await talk.answers() == []
        await (talk.channel.post("shop.note", {}) if tells == "note" else talk.say("two"))
        await talk.settled()
        answers = [("billing", "billing on one"), ("triage", "triage on two")]
        assert await talk.answers() == answers[: 1 if tells == "note" else 2]
        await desk.hub.close()


# Shared agents


async def test_an_agent_obeys_the_rules_of_each_conversation(desk: Desk) -> None:
    await desk.agent("triage", *[hand_over("expert")] * 2)
    await desk.echoes("billing", "support")
    team = ("triage", "billing", "support")
    first = await desk.open(TO_TRIAGE, *team, handoff={"agent_aliases": {"expert": "billing"}})
    second = await desk.open(
        TO_TRIAGE, *team, handoff={"agent_aliases": {"expert": "support"}, "phase_map": {"support": "handling"}}
    )
    assert await first.ask("hi") == [("billing", "billing on hi")]
    assert (await second.ask("hi"), second.state.phase) == ([("support", "support on hi")], "handling")
    assert (first.state.phase, first.state.active_agent_id) == ("intake", "billing")


async def test_targets_in_the_tool_are_those_of_each_conversation(desk: Desk) -> None:
    model = await desk.agent("triage", "One.", "Two.")
    await desk.echoes("billing", "support")
    first = await desk.open(TO_TRIAGE, "triage", "billing", handoff={"agent_aliases": {"money": "billing"}})
    second = await desk.open(TO_TRIAGE, "triage", "support")
    await first.ask("hi")
    await second.ask("hi")
    targets = [
        next(each.description for each in request.specs if each.name == "handoff_conversation").rpartition("Targets: ")[
            2
        ]
        for request in model.requests
    ]
    assert targets == ["money, billing, human.", "support, human."]


async def test_refused_here_allowed_there(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", next_phase="handling"), "I stay.", by="position")
    await desk.echoes("billing")
    strict = await desk.open(TO_TRIAGE, "triage", "billing", handoff={"allowed_transitions": {"intake": ["review"]}})
    free = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await strict.ask("hi") == [("triage", "I stay.")]
    assert await free.ask("hi") == [("billing", "billing on hi")]
    assert [each["reason"] for each in await strict.facts(REFUSED)] == ["transition_not_allowed"]
    assert (await free.facts(REFUSED), await free.facts(UNROUTED)) == ([], [])


def _place(envelope: object) -> int:
    return envelope.sequence  # type: ignore[attr-defined,no-any-return]
