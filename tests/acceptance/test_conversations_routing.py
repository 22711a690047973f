"""Which agent answers a message: the order of the tiers, each condition, predicates, and what happens if none can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from antiphon import (
    ConversationRouter,
    ConversationState,
    Denied,
    Envelope,
    RulesInvalid,
    State,
    UsageError,
    register_predicate,
    set_conversation_state,
)
from antiphon.orchestration.predicates import PREDICATES
from antiphon.runtime.conversation_plans import conversation_memory
from tests.support.conversation_desk import (
    RULE_FAILED,
    TO_TRIAGE,
    UNROUTED,
    Conversation,
    Desk,
    Slow,
    a_desk,
    hand_over,
    own_predicates,
    rule,
)

TEAM = ("triage", "billing", "support")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann", "dana:human", "code") as found:
        await found.echoes(*TEAM)
        yield found


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Predicates that a test registers are gone after it."""
    with own_predicates():
        yield


async def answered_by(talk: Conversation, text: str = "hi", **options: object) -> str | None:
    """The agent that answers this message."""
    answers = await talk.ask(text, **options)  # type: ignore[arg-type]
    assert len(answers) <= 1, "one message, one answer"
    return answers[0][0] if answers else None


async def make_active(talk: Conversation, agent: str | None, phase: str = "intake") -> None:
    await set_conversation_state(talk.channel, talk.state.transition(to_phase=phase, to_agent=agent))


# The order of the tiers

EVERY_TIER = ConversationRouter([rule("billing", intents={"billing"})], default_agent_id="triage")


async def test_the_default_answers_where_no_rule_matches(desk: Desk) -> None:
    talk = await desk.open(EVERY_TIER, *TEAM)
    assert await answered_by(talk) == "triage"
    assert await talk.assigned() == [("triage", "default")]


async def test_a_rule_comes_before_the_default(desk: Desk) -> None:
    talk = await desk.open(EVERY_TIER, *TEAM)
    assert await answered_by(talk, intent="billing") == "billing"
    assert await talk.assigned() == [("billing", "rule: intent is billing")]


async def test_affinity_comes_before_rules(desk: Desk) -> None:
    talk = await desk.open(EVERY_TIER, *TEAM)
    await make_active(talk, "support")
    assert await answered_by(talk, intent="billing") == "support"
    assert await talk.assigned() == [("support", "affinity")]


async def test_a_hold_comes_before_affinity_and_rules(desk: Desk) -> None:
    await desk.agent("pat", hand_over("human"), "Never asked.")
    talk = await desk.open(ConversationRouter([rule("pat")], default_agent_id="triage"), *TEAM, "pat", "dana")
    await talk.ask("one")
    assert await answered_by(talk) is None


async def test_an_address_comes_before_affinity_and_before_a_hold(desk: Desk) -> None:
    await desk.agent("pat", hand_over("human"))
    talk = await desk.open(EVERY_TIER, *TEAM, "pat", "dana")
    await make_active(talk, "support")
    assert await answered_by(talk, addressed_to="billing") == "billing"
    assert await talk.ask("one", addressed_to="pat") == []
    assert await answered_by(talk, "two") is None, "a person has it"
    assert await answered_by(talk, "three", addressed_to="billing") == "billing"
    assert await answered_by(talk, "four") is None, "a person has it still"


async def test_lower_priorities_are_read_first(desk: Desk) -> None:
    router = ConversationRouter([rule("triage", 10), rule("support", -5, intents={"help"}), rule("billing", 0)])
    talk = await desk.open(router, *TEAM)
    assert await answered_by(talk, intent="help") == "support"
    assert await answered_by(talk) == "billing"


async def test_equal_priorities_are_read_in_the_order_of_the_list(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("support"), rule("billing"), rule("triage")]), *TEAM)
    assert await answered_by(talk) == "support"


async def test_an_address_makes_no_agent_active(desk: Desk) -> None:
    talk = await desk.open(EVERY_TIER, *TEAM)
    assert await answered_by(talk, addressed_to="billing") == "billing"
    assert talk.state.active_agent_id is None
    assert await answered_by(talk) == "triage"


# Conditions


@pytest.mark.parametrize(
    ("conditions", "matching", "other"),
    [
        ({"channel_types": {"sms"}}, {"transport": "sms"}, {"transport": "email"}),
        ({"channel_types": {"sms", "voice"}}, {"transport": "voice"}, {}),
        ({"intents": {"billing"}}, {"intent": "billing"}, {"intent": "refund"}),
        ({"intents": {"billing", "refund"}}, {"intent": "refund"}, {}),
        ({"source_channel_ids": {"+4930"}}, {"source": "+4930"}, {"source": "+4931"}),
        ({"source_channel_ids": {"dana"}}, {"by": "dana"}, {"by": "ann"}),
    ],
)
async def test_each_condition(
    desk: Desk, conditions: dict[str, object], matching: dict[str, str], other: dict[str, str]
) -> None:
    talk = await desk.open(ConversationRouter([rule("billing", **conditions)], "triage"), *TEAM, "dana")
    assert await answered_by(talk, **matching) == "billing"
    assert await answered_by(talk, **other) == "triage"


async def test_phases(desk: Desk) -> None:
    router = ConversationRouter([rule("billing", phases={"handling", "own"})], "triage")
    talk = await desk.open(router, *TEAM)
    found = []
    for phase in ("intake", "handling", "review", "own"):
        await make_active(talk, None, phase)
        found.append(await answered_by(talk))
    assert found == ["triage", "billing", "triage", "billing"]


async def test_custom(desk: Desk) -> None:
    @register_predicate
    def is_gold(event: Envelope, context: State, state: ConversationState) -> bool:
        return (
            context.context_vars.get("tier") == "gold" and state.phase == "intake" and "!" in event.event_data["text"]
        )

    talk = await desk.open(ConversationRouter([rule("billing", custom=is_gold)], "triage"), *TEAM)
    assert await answered_by(talk, "hello!") == "triage"
    assert await answered_by(talk, "hello!", set={"tier": "gold"}) == "billing", "with what its own words write"
    assert await answered_by(talk, "hello") == "triage"
    await make_active(talk, None, "handling")
    assert await answered_by(talk, "hello!") == "triage"


async def test_all_conditions_of_a_rule_must_hold(desk: Desk) -> None:
    @register_predicate
    def polite(event: Envelope, context: State, state: ConversationState) -> bool:
        return "please" in event.event_data["text"]

    everything = rule(
        "billing",
        phases={"handling"},
        channel_types={"sms"},
        intents={"billing"},
        source_channel_ids={"+4930"},
        custom=polite,
    )
    talk = await desk.open(ConversationRouter([everything], "triage"), *TEAM)
    await make_active(talk, None, "handling")
    fitting = {"text": "please", "transport": "sms", "intent": "billing", "source": "+4930"}
    assert await answered_by(talk, **fitting) == "billing"
    for name, other in {"text": "now", "transport": "web", "intent": "refund", "source": "+4931"}.items():
        assert await answered_by(talk, **{**fitting, name: other}) == "triage", name
    await make_active(talk, None, "intake")
    assert await answered_by(talk, **fitting) == "triage"


async def test_without_conditions_a_rule_matches_everything(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("billing")], "triage"), *TEAM)
    assert await answered_by(talk, transport="sms", intent="anything") == "billing"


@pytest.mark.parametrize("field", ["phases", "channel_types", "intents", "source_channel_ids"])
@pytest.mark.parametrize("wrong", [set(), "sms", {7}, 7])
def test_conditions_that_could_never_match_are_refused(field: str, wrong: object) -> None:
    with pytest.raises(RulesInvalid, match=field):
        rule("billing", **{field: wrong})


# Predicates


def raising(event: Envelope, context: State, state: ConversationState) -> bool:
    raise LookupError("no such customer")


def vague(event: Envelope, context: State, state: ConversationState) -> bool:
    return "yes"  # type: ignore[return-value]


def leaving(event: Envelope, context: State, state: ConversationState) -> bool:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("predicate", "error"), [(raising, "no such customer"), (vague, "return True or False"), (leaving, "SystemExit")]
)
async def test_a_predicate_that_fails_does_not_match_and_is_recorded(desk: Desk, predicate: object, error: str) -> None:
    register_predicate(predicate)  # type: ignore[call-overload]
    router = ConversationRouter([rule("billing", custom=predicate), rule("support", intents={"help"})], "triage")
    talk = await desk.open(router, *TEAM)
    said = await talk.say("hi")
    await talk.settled()
    assert await talk.answers() == [("triage", "triage on hi")]
    [failed] = await talk.log(RULE_FAILED)
    assert (failed.event_data["rule"], failed.causation_id, failed.audience) == (0, said.envelope_id, ["hub:operators"])
    assert error in str(failed.event_data["error"])
    assert await answered_by(talk, intent="help") == "support", "later rules are read"


@pytest.mark.parametrize("asks", [False, True])
async def test_a_waiting_message_keeps_its_words_for_predicates_alone(desk: Desk, asks: bool) -> None:
    shown: list[tuple[str, object]] = []

    @register_predicate
    def is_billing(event: Envelope, context: State, state: ConversationState) -> bool:
        shown.append((event.sender_id, event.event_data))
        return event.event_data.get("text") == "three"

    slow = Slow("One.")
    await desk.agent("pat", slow, by="order")
    billing = [rule("billing", custom=is_billing)] if asks else [rule("billing", intents={"i"})]
    talk = await desk.open(ConversationRouter(billing, "support"), *TEAM, "pat", "dana")
    await talk.say("one", addressed_to="pat")
    await slow.begun()
    routed = {"transport": "sms", "source": "+4930", "intent": "i", "addressed_to": "billing"}
    await talk.say("two", **routed)
    await talk.say("three", by="dana", audience=["billing", "ann"])
    await talk.say("four", set={"vip": True})
    two, three, four = conversation_memory(talk.channel._live).waiting
    said = [{"text": "two"}, {"text": "three"}, {"text": "four", "set": {"vip": True}}] if asks else [{}, {}, {}]
    assert [two.data, three.data, four.data] == [{**said[0], **routed}, said[1], said[2]]
    assert (three.sender, three.audience) == ("dana", ("billing", "ann"))
    slow.go_on()
    await talk.settled()
    last = ("support", "support on four")
    third = [("billing", "billing on three")] if asks else []
    assert await talk.answers() == [("pat", "One."), ("billing", "billing on two"), *third, last]
    assert shown == ([("dana", said[1]), ("ann", said[2])] if asks else [])


async def test_a_predicate_that_changes_what_it_is_shown_changes_nothing(desk: Desk) -> None:
    @register_predicate
    def meddling(event: Envelope, context: State, state: ConversationState) -> bool:
        event.event_data["intent"] = "billing"
        context.context_vars["tier"] = "gold"
        context.participants.clear()
        return False

    talk = await desk.open(ConversationRouter([rule("support", custom=meddling)], "triage"), *TEAM)
    said = await talk.say("hi")
    await talk.settled()
    assert await talk.answers() == [("triage", "triage on hi")]
    assert (await talk.log("ag2.msg.text"))[0].event_data == said.event_data == {"text": "hi"}
    assert (talk.channel.state.context_vars, len(talk.channel.state.participants)) == ({}, 4)


async def test_a_predicate_changes_nothing_for_the_rules_behind_it(desk: Desk) -> None:
    @register_predicate
    def meddles(event: Envelope, context: State, state: ConversationState) -> bool:
        event.event_data["intent"], event.event_data["text"] = "billing", "gold"
        state.context["gold"] = True
        return False

    @register_predicate
    def wants_gold(event: Envelope, context: State, state: ConversationState) -> bool:
        return event.event_data["text"] == "gold" or "gold" in state.context

    rules = [rule("support", custom=meddles), rule("billing", intents={"billing"}), rule("billing", custom=wants_gold)]
    talk = await desk.open(ConversationRouter(rules, default_agent_id="triage"), *TEAM)
    assert await answered_by(talk, "tin") == "triage"


async def test_a_predicate_is_named_in_the_knobs(desk: Desk) -> None:
    register_predicate(raising, name="is_vip")
    router = ConversationRouter([rule("billing", custom="is_vip")], "triage")
    assert router.to_dict()["rules"] == [
        {"agent_id": "billing", "conditions": {"custom": "is_vip"}, "priority": 0},
    ]
    assert ConversationRouter.loads(router.to_dict()) == router


def test_a_predicate_that_is_not_registered_is_refused() -> None:
    with pytest.raises(RulesInvalid, match="no registered predicate"):
        rule("billing", custom=raising)
    with pytest.raises(RulesInvalid, match="'is_vip'"):
        rule("billing", custom="is_vip")


async def test_a_channel_whose_predicate_is_unknown_here_is_refused(desk: Desk) -> None:
    register_predicate(raising, name="elsewhere")
    router = ConversationRouter([rule("billing", custom="elsewhere")], "triage")
    knobs = {"router": router.to_dict()}
    del PREDICATES._known["elsewhere"]
    with pytest.raises(RulesInvalid, match="'elsewhere'"):
        await desk.people["ann"].open(type="routed", target=["billing"], knobs=knobs)


# Agents that are not there


async def test_a_rule_that_names_an_absent_agent_is_warned_of_and_falls_through(desk: Desk) -> None:
    router = ConversationRouter([rule("biling", intents={"billing"})], default_agent_id="triage")
    talk = await desk.open(router, *TEAM)
    [(code, message)] = await talk.warnings()
    assert code == "absent_agent"
    assert message == "rule 0: 'biling' is not a participant; there are: ann, triage, billing, support"
    assert await answered_by(talk, intent="billing") == "triage"
    [failed] = await talk.facts(RULE_FAILED)
    assert failed["rule"] == 0
    assert "'biling'" in str(failed["error"])
    assert await answered_by(talk) == "triage"
    assert len(await talk.facts(RULE_FAILED)) == 1, "a rule that does not match names nobody"


@pytest.mark.parametrize("name", ["dana", "code"])
async def test_rules_give_turns_to_agents_alone(desk: Desk, name: str) -> None:
    talk = await desk.open(ConversationRouter([rule(name)], "triage"), *TEAM, "dana", "code")
    assert [code for code, _ in await talk.warnings()] == ["not_an_agent"]
    assert await answered_by(talk) == "triage"


async def test_an_absent_default_leaves_the_message_unrouted(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("billing", intents={"billing"})], "tirage"), *TEAM)
    assert [code for code, _ in await talk.warnings()] == ["absent_agent"]
    said = await talk.say("hi")
    await talk.settled()
    [unrouted] = await talk.log(UNROUTED)
    assert (unrouted.event_data, unrouted.audience) == ({"message": said.envelope_id}, None)
    assert [each["rule"] for each in await talk.facts(RULE_FAILED)] == [None]
    assert await answered_by(talk, intent="billing") == "billing", "the channel waits for the next message"


async def test_nobody_to_answer_is_recorded_and_the_channel_waits(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("billing", intents={"billing"})]), *TEAM)
    said = await talk.say("hi")
    assert [(each.event_data, each.causation_id) for each in await talk.log(UNROUTED)] == [
        ({"message": said.envelope_id}, said.envelope_id)
    ]
    assert (talk.channel.state.status, await talk.assigned()) == ("active", [])
    assert await answered_by(talk, intent="billing") == "billing"
    assert len(await talk.facts(UNROUTED)) == 1


async def test_an_empty_router_is_warned_of(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter(), *TEAM)
    assert [code for code, _ in await talk.warnings()] == ["routes_nothing"]
    assert await answered_by(talk) is None
    await make_active(talk, "support")
    assert await answered_by(talk) == "support"


async def test_a_rule_that_is_never_read_is_warned_of(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("billing"), rule("support", intents={"help"})]), *TEAM)
    assert [code for code, _ in await talk.warnings()] == ["unreachable_rule"]


# Private and addressed messages


async def test_a_private_message_is_routed_among_those_who_heard_it(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter([rule("billing")], "triage"), *TEAM, "dana")
    said = await talk.say("between us", audience=["triage"])
    await talk.settled()
    [packet] = await talk.log("ag2.packet")
    assert (packet.sender_id, packet.causation_id, packet.audience) == ("triage", said.envelope_id, ["triage", "ann"])


async def test_what_people_say_to_each_other_is_not_routed(desk: Desk) -> None:
    talk = await desk.open(TO_TRIAGE, *TEAM, "dana")
    assert await talk.ask("just us", audience=["dana"]) == []
    assert await talk.ask("sure", by="dana", addressed_to="ann") == []
    assert (await talk.assigned(), await talk.facts(UNROUTED)) == ([], [])


async def test_an_address_that_is_not_in_the_channel_is_a_usage_error(desk: Desk) -> None:
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    before = await talk.log()
    for wrong in ("support", "biling", "", 7):
        with pytest.raises(UsageError, match="addressed_to"):
            await talk.say("hi", addressed_to=wrong)
    assert await talk.log() == before


@pytest.mark.parametrize("kind", ["conversation", "discussion", "workflow"])
async def test_an_address_belongs_to_routed_channels(desk: Desk, kind: str) -> None:
    await desk.join("ben")
    graph = {"initial_speaker": "ann", "transitions": [], "default_target": {"name": "stay", "args": {}}}
    knobs = {"graph": graph} if kind == "workflow" else {}
    channel = await desk.people["ann"].open(type=kind, target=["ben"], knobs=knobs)
    with pytest.raises(UsageError, match="addressed_to belongs to routed channels"):
        await channel.send("hi", addressed_to="ben")


async def test_labels_are_recorded_on_any_channel(desk: Desk) -> None:
    await desk.join("ben")
    channel = await desk.people["ann"].open(type="conversation", target=["ben"])
    sent = await channel.send("hi", transport="fax", source="+49", intent="billing", set={"seen": 1})
    assert sent.event_data == {
        "text": "hi",
        "transport": "fax",
        "source": "+49",
        "intent": "billing",
        "set": {"seen": 1},
    }
    assert channel.state.context_vars == {"seen": 1}


@pytest.mark.parametrize("label", ["transport", "source", "intent"])
@pytest.mark.parametrize("wrong", ["", 7, "x" * 1000])
async def test_labels_are_short_texts(desk: Desk, label: str, wrong: object) -> None:
    talk = await desk.open(TO_TRIAGE, *TEAM)
    with pytest.raises(UsageError, match=label):
        await talk.say("hi", **{label: wrong})


async def test_a_participant_from_outside_is_refused(desk: Desk) -> None:
    talk = await desk.open(TO_TRIAGE, *TEAM)
    with pytest.raises(Denied) as caught:
        await desk.hub.post(Envelope("", talk.channel_id, "dana", None, "ag2.msg.text", {"text": "hi"}))
    assert caught.value.reason == "not_a_participant"
