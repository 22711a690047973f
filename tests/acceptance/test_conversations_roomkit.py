"""What goes wrong in RoomKit, the library whose words these conversations use, and does not here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    EV_PACKET,
    Agent,
    Answered,
    ConversationRouter,
    ConversationState,
    Denied,
    Envelope,
    Reply,
    Request,
    State,
    calls,
    delegate,
    get_conversation_state,
    register_predicate,
    says,
    set_conversation_state,
)
from tests.support.conversation_desk import (
    MOVED,
    REFUSED,
    RULE_FAILED,
    TO_TRIAGE,
    UNROUTED,
    WARNED,
    Desk,
    a_desk,
    hand_over,
    own_predicates,
    rule,
    texts,
)
from tests.support.crashing_hubs import Mind, crashes
from tests.support.waiting import let_others_run, wait_until


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human") as found:
        yield found


async def test_state_is_no_blob_that_the_last_writer_replaces(desk: Desk) -> None:
    """Of simultaneous writers one wins, and the others learn that they have to read again."""
    await desk.echoes("triage", "billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    state = talk.state

    async def write(phase: str) -> str:
        try:
            await set_conversation_state(talk.channel, state.transition(to_phase=phase, to_agent="billing"))
        except Denied as denied:
            return denied.reason
        return phase

    outcomes = await asyncio.gather(*(write(phase) for phase in ("a", "b", "c", "d")))
    assert sorted(outcomes) == ["a", "conflict", "conflict", "conflict"]
    assert [(each.from_phase, each.to_phase) for each in talk.state.phase_history] == [("intake", "a")]
    talk.state.context["lost"] = True
    assert talk.state.context == {}


async def test_a_message_stored_before_a_crash_is_answered_once_and_repeating_it_changes_nothing() -> None:
    knobs = {"router": ConversationRouter(default_agent_id="bob").to_dict()}
    async with crashes() as here:
        dying = Mind()
        await here.next_hub(dying)
        channel = await here.people["ann"].open(type="routed", target=["bob"], knobs=knobs)
        first = await channel.send("Help!", message_id="key-1")
        await wait_until(lambda: dying.thinks or bool(dying.requests))
        await here.next_hub(Mind(says("Here I am.")))
        channel = await here.people["ann"].channel(channel.channel_id)
        assert await channel.send("Help!", message_id="key-1") == first
        await here.clock.advance(60)
        await wait_until(lambda: not channel._live.state.owed)
        assert await channel.send("Help!", message_id="key-1") == first
        packets = [each for each in await here.hub.log(channel.channel_id) if each.event_type == EV_PACKET]
        assert [(each.event_data["body"], each.causation_id) for each in packets] == [("Here I am.", first.envelope_id)]


async def test_four_messages_are_four_generations_one_after_the_other(desk: Desk) -> None:
    running, most = 0, 0

    async def model(request: Request) -> Reply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await let_others_run(5)
        running -= 1
        return says(f"re: {texts(request)[-1]}")

    await desk.hire(Agent("triage", model=model))
    talk = await desk.open(TO_TRIAGE, "triage")
    await asyncio.gather(*(talk.say(text) for text in ("one", "two", "three", "four")))
    await talk.settled()
    assert most == 1
    assert await talk.answers() == [("triage", f"re: {text}") for text in ("one", "two", "three", "four")]


async def test_an_agent_in_two_conversations_keeps_to_the_rules_of_each(desk: Desk) -> None:
    await desk.agent("triage", hand_over("expert", next_phase="handling"), "I stay.", by="position")
    await desk.echoes("billing", "support")
    team = ("triage", "billing", "support")
    first = await desk.open(TO_TRIAGE, *team, handoff={"agent_aliases": {"expert": "billing"}})
    second = await desk.open(TO_TRIAGE, *team, handoff={"agent_aliases": {"expert": "support"}})
    third = await desk.open(TO_TRIAGE, *team)
    talks = (first, second, third)
    answers = await asyncio.gather(*(talk.ask("hi") for talk in talks))
    assert [agent for [(agent, _)] in answers] == ["billing", "support", "triage"]
    assert [talk.state.phase for talk in talks] == ["handling", "handling", "intake"]


async def test_two_delegations_to_one_agent_keep_their_results_apart(desk: Desk) -> None:
    """The second task ends first; each result goes to the call that asked for it."""
    gates = {name: asyncio.Event() for name in ("bees", "wasps")}
    order: list[str] = []

    async def researches(request: Request) -> Reply:
        subject = texts(request)[-1].split()[-1]
        await gates[subject].wait()
        order.append(subject)
        return says(f"all about {subject}")

    researcher = Agent("researcher", model=researches)

    async def asks(request: Request) -> Reply | list[Reply]:
        found = [each for each in request.exchange if isinstance(each, Answered)]
        if not found:
            return [calls("delegate_to_researcher", {"task": f"Look up {each}"}) for each in ("bees", "wasps")]
        return says(" | ".join(f"{each.call.args['task']}: {each.text}" for each in found))

    await desk.hire(Agent("triage", model=asks, tools=[delegate(researcher)]))
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("hi")
    gates["wasps"].set()
    await wait_until(lambda: order == ["wasps"])
    gates["bees"].set()
    await talk.settled()
    assert await talk.answers() == [("triage", "Look up bees: all about bees | Look up wasps: all about wasps")]


async def test_a_refused_handoff_does_not_loop(desk: Desk) -> None:
    """A model that always asks for the same is stopped by the limit that every turn has."""
    model = await desk.agent("triage", *[hand_over("nobody")] * 300)
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    assert await talk.ask("hi") == []
    assert (len(model.requests), {each["reason"] for each in await talk.facts(REFUSED)}) == (25, {"target_not_found"})
    assert talk.channel.state.owed == ()


async def test_two_agents_that_hand_to_each_other_do_not_loop(desk: Desk) -> None:
    triage = await desk.agent("triage", *[hand_over("billing")] * 300)
    billing = await desk.agent("billing", *[hand_over("triage")] * 300)
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    assert (len(await talk.facts(MOVED)), talk.channel.state.owed) == (5, ())
    assert len(triage.requests) + len(billing.requests) == 5 + 25


async def test_human_stops_agents_from_answering(desk: Desk) -> None:
    models = await desk.echoes("billing", "support")
    triage = await desk.agent("triage", hand_over("human"))
    router = ConversationRouter([rule("billing"), rule("support", 5)], default_agent_id="support")
    talk = await desk.open(router, "triage", "billing", "support", "dana")
    await talk.ask("hi", addressed_to="triage")
    for text in ("one", "two", "three"):
        assert await talk.ask(text) == []
    assert talk.state.active_agent_id is None
    assert [len(model.requests) for model in (*models.values(), triage)] == [0, 0, 1]


async def test_a_rule_that_names_an_absent_agent_does_not_end_in_silence(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(ConversationRouter([rule("billing")], default_agent_id="triage"), "triage")
    assert [code for code, _ in await talk.warnings()] == ["absent_agent"]
    assert await talk.ask("hi") == [("triage", "triage on hi")]
    assert len(await talk.facts(RULE_FAILED)) == 1
    alone = await desk.open(ConversationRouter([rule("billing")]), "triage")
    said = await alone.say("hi")
    assert await alone.facts(UNROUTED) == [{"message": said.envelope_id}]
    assert len(await alone.facts(WARNED)) == 1


async def test_a_raising_predicate_makes_no_agent_answer_that_should_not(desk: Desk) -> None:
    def breaks(event: Envelope, context: State, state: ConversationState) -> bool:
        raise KeyError("tier")

    with own_predicates():
        register_predicate(breaks)
        models = await desk.echoes("triage", "billing", "support")
        router = ConversationRouter([rule("billing", custom=breaks)], default_agent_id="triage")
        talk = await desk.open(router, "triage", "billing", "support")
        assert await talk.ask("hi") == [("triage", "triage on hi")]
    assert [len(model.requests) for model in models.values()] == [1, 0, 0]
    [failed] = await talk.facts(RULE_FAILED)
    assert (failed["rule"], "KeyError" in str(failed["error"])) == (0, True)


async def test_the_next_agent_does_not_wait_for_another_message(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("My invoice is wrong.") == [("billing", "billing on My invoice is wrong.")]
    assert [sender for sender, _ in await talk.said()] == ["ann", "triage", "billing"]


async def test_nothing_is_wired_again_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    channel_ids = []
    async with a_desk("ann:human", "dana:human", url=url) as desk:
        await desk.echoes("triage", "billing", "support")
        for target in ("billing", "support"):
            talk = await desk.open(
                TO_TRIAGE, "triage", "billing", "support", handoff={"agent_aliases": {"expert": target}}
            )
            await talk.ask("one")
            channel_ids.append(talk.channel_id)
    async with a_desk("ann:human", "dana:human", url=url) as desk:
        await desk.agent("triage", hand_over("expert"), by="position")
        await desk.echoes("billing", "support")
        talks = [await desk.again(channel_id) for channel_id in channel_ids]
        assert [await talk.ask("two") for talk in talks] == [
            [("billing", "billing on two")],
            [("support", "support on two")],
        ]
        assert [get_conversation_state(talk.channel).active_agent_id for talk in talks] == ["billing", "support"]
