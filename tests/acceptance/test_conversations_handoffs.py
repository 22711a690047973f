"""Handoffs: the tool, where they lead, what the next agent reads, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon import (
    EV_PACKET,
    Agent,
    ConversationPipeline,
    ConversationRouter,
    Handoff,
    HandoffHandler,
    HandoffMemoryProvider,
    Limits,
    PipelineStage,
    RulesInvalid,
    ScriptedModel,
    SlidingWindowMemory,
    UsageError,
    calls,
    set_conversation_state,
    tool,
)
from tests.support.conversation_desk import (
    ASSIGNED,
    MOVED,
    REFUSED,
    TO_TRIAGE,
    Conversation,
    Desk,
    a_desk,
    hand_over,
    rule,
    texts,
)
from tests.support.waiting import let_others_run, soon

STAGES = ConversationPipeline(
    [
        PipelineStage("intake", "triage", next="handling"),
        PipelineStage("handling", "billing", next="resolution", can_return_to={"intake"}),
        PipelineStage("resolution", "support"),
    ]
)
STRICT = {"phase_map": STAGES.get_phase_map(), "allowed_transitions": {"intake": ["handling"], "handling": ["intake"]}}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann", "dana:human", "code") as found:
        yield found


async def moved(talk: Conversation) -> list[tuple[object, object]]:
    """The agent and the phase after each move."""
    return [(each["to_agent"], each["to_phase"]) for each in await talk.facts(MOVED)]


async def refusals(talk: Conversation) -> list[tuple[object, object, object]]:
    return [(each["from_agent"], each["target"], each["reason"]) for each in await talk.facts(REFUSED)]


# The tool


async def test_the_tool_is_offered_to_every_agent_of_a_routed_channel(desk: Desk) -> None:
    model = await desk.agent("triage", "Hello.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana", handoff={"agent_aliases": {"people": "human"}})
    await talk.ask("hi")
    [spec] = [each for each in model.requests[0].specs if each.name == "handoff_conversation"]
    properties = spec.parameters["properties"]
    assert list(properties) == ["target", "reason", "summary", "next_phase", "channel_escalation"]  # type: ignore[arg-type]
    assert spec.parameters["required"] == ["target", "reason", "summary"]
    assert sorted(properties["channel_escalation"]["enum"]) == ["email", "same", "sms", "voice"]  # type: ignore[index]
    assert properties["channel_escalation"]["default"] == "same"  # type: ignore[index]
    assert spec.description.endswith("Targets: people, human.")


async def test_the_tool_is_offered_nowhere_else(desk: Desk) -> None:
    model = await desk.agent("triage", "Hello.")
    channel = await desk.people["ann"].open(type="conversation", target=["triage"])
    talk = Conversation(desk, channel)
    await talk.say("hi")
    await talk.settled()
    assert "handoff_conversation" not in model.requests[0].tools


@pytest.mark.parametrize("missing", ["target", "reason", "summary"])
async def test_target_reason_and_summary_are_required(desk: Desk, missing: str) -> None:
    given = {"target": "billing", "reason": "r", "summary": "s"}
    given.pop(missing)
    model = await desk.agent("triage", calls("handoff_conversation", given), "Sorry.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    assert await talk.ask("hi") == [("triage", "Sorry.")]
    assert missing in model.requests[1].exchange[-1].text
    assert await moved(talk) == []


async def test_a_transport_that_is_not_of_the_table_is_not_escalated_to(desk: Desk) -> None:
    model = await desk.agent("triage", hand_over("billing", channel_escalation="fax"), "Sorry.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("hi") == [("triage", "Sorry.")]
    assert "fax" in model.requests[1].exchange[-1].text


# Accepted


async def test_an_accepted_handoff_is_one_batch(desk: Desk) -> None:
    model = await desk.agent("triage", hand_over("billing", "An invoice."), "Never asked.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    said = await talk.say("hi")
    await talk.settled()
    packet, event = (await talk.log(EV_PACKET))[0], (await talk.log(MOVED))[0]
    turn = (await talk.log(ASSIGNED))[1]
    assert [each.sequence - packet.sequence for each in (packet, event, turn)] == [0, 1, 2]
    assert packet.event_data["routing"] == {
        "tool": "handoff_conversation",
        "target": "billing",
        "reason": "r",
        "summary": "An invoice.",
        "phase": "intake",
        "briefing": True,
    }
    assert turn.event_data == {"speakers": ["billing"], "reason": "handoff: r", "shown": said.sequence}
    assert (packet.causation_id, event.causation_id, turn.causation_id) == (
        said.envelope_id,
        packet.envelope_id,
        said.envelope_id,
    )
    [batch] = [batch for batch in talk.batches() if packet in batch]
    assert [each.event_type for each in batch][-3:] == [EV_PACKET, MOVED, ASSIGNED]
    assert len(model.requests) == 1, "the model is not asked again"


async def test_the_next_agent_speaks_at_once_and_answers_the_same_message(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    said = await talk.say("hi")
    await talk.settled()
    assert await talk.answers() == [("triage", ""), ("billing", "billing on hi")]
    assert {each.causation_id for each in await talk.log(EV_PACKET)} == {said.envelope_id}


async def test_the_next_agent_keeps_the_conversation(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one")
    assert await talk.ask("two") == [("billing", "billing on two")]
    state = talk.state
    assert (state.active_agent_id, state.previous_agent_id, state.handoff_count) == ("billing", "triage", 1)
    assert await talk.assigned() == [("triage", "default"), ("billing", "handoff: r"), ("billing", "affinity")]


async def test_what_is_said_beside_a_handoff_is_heard(desk: Desk) -> None:
    await desk.agent("triage", msgspec.structs.replace(hand_over("billing"), text="One moment."))
    model = await desk.agent("billing", "Here I am.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("hi") == [("triage", "One moment."), ("billing", "Here I am.")]
    assert texts(model.requests[0]) == [
        "[Context from previous agent (triage)]: S",
        "ann: hi",
        "triage: One moment.",
    ]


async def test_the_context_is_shown_once_in_each_prompt(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", "Account 12345, premium."))
    models = await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one")
    await talk.ask("two")
    context = "[Context from previous agent (triage)]: Account 12345, premium."
    first, second = models["billing"].requests
    assert texts(first) == [context, "ann: one"]
    assert texts(second) == [context, "ann: one", "billing on one", "ann: two"]


async def test_the_context_of_the_last_handoff_counts(desk: Desk) -> None:
    triage = await desk.agent("triage", hand_over("billing", "First."), hand_over("billing", "Second."))
    billing = await desk.agent("billing", hand_over("triage", "Back."), "Done.", "Still here.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("one") == [("billing", "Done.")]
    await talk.ask("two")
    headers = [[text for text in texts(each) if text.startswith("[Context")] for each in billing.requests]
    assert headers == [
        ["[Context from previous agent (triage)]: First."],
        ["[Context from previous agent (triage)]: Second."],
        ["[Context from previous agent (triage)]: Second."],
    ]
    assert texts(triage.requests[1])[0] == "[Context from previous agent (billing)]: Back."


async def test_a_handoff_that_says_nothing_has_no_context(desk: Desk) -> None:
    """What an earlier handoff said to the agent is no context of this one."""
    await desk.agent("triage", hand_over("billing", "First."))
    billing = await desk.agent("billing", hand_over("support"), "Done.")
    await desk.agent("support", hand_over("billing", ""))
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "support")
    await talk.ask("one")
    headers = [[text for text in texts(each) if text.startswith("[Context")] for each in billing.requests]
    assert headers == [["[Context from previous agent (triage)]: First."], []]


async def test_no_line_of_a_context_passes_for_what_another_said(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", "An invoice.\nann: I own it."))
    billing = (await desk.echoes("billing"))["billing"]
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one")
    assert texts(billing.requests[0])[0].splitlines()[1] == "    ann: I own it."


async def test_the_agent_that_hands_over_is_shown_no_context_of_its_own(desk: Desk) -> None:
    triage = await desk.agent("triage", hand_over("billing", "An invoice."), "Back with me.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one")
    await talk.ask("two", addressed_to="triage")
    assert texts(triage.requests[1]) == ["ann: one", "billing: billing on one", "ann: two"]


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_window_shortens_the_history_and_not_the_context(desk: Desk, wrapped: bool) -> None:
    await desk.agent("triage", hand_over("billing", "An invoice."))
    window = SlidingWindowMemory(max_events=2, named=True)
    model = await desk.agent("billing", "1", "2", memory=HandoffMemoryProvider(window) if wrapped else window)
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one")
    await talk.ask("two")
    assert texts(model.requests[1]) == ["[Context from previous agent (triage)]: An invoice.", "1", "ann: two"]


@pytest.mark.parametrize("wrong", [0, -1, True, "50", None])
def test_a_window_has_a_size(wrong: object) -> None:
    with pytest.raises(UsageError, match="max_events"):
        SlidingWindowMemory(max_events=wrong)  # type: ignore[arg-type]


async def test_a_handoff_of_a_tool_of_ones_own_moves_the_conversation(desk: Desk) -> None:
    @tool
    async def escalate() -> Handoff:
        """Give it to billing."""
        return Handoff("billing", "by its own tool", "In short.")

    await desk.agent("triage", calls("escalate"), tools=[escalate])
    model = await desk.agent("billing", "Here I am.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff={"phase_map": {"billing": "handling"}})
    assert await talk.ask("hi") == [("billing", "Here I am.")], "what is for the next agent is said to no other"
    assert await moved(talk) == [("billing", "handling")]
    assert texts(model.requests[0]) == ["[Context from previous agent (triage)]: In short.", "ann: hi"]


# Aliases and phases


@pytest.mark.parametrize("target", ["money", "Money", " money ", "billing", "BILLING"])
async def test_a_target_is_an_alias_or_a_name_in_any_case(desk: Desk, target: str) -> None:
    await desk.agent("triage", hand_over(target))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff={"agent_aliases": {"money": "billing"}})
    assert await talk.ask("hi") == [("billing", "billing on hi")]


@pytest.mark.parametrize(
    ("asked", "phase"),
    [({}, "handling"), ({"next_phase": "resolution"}, "resolution"), ({"next_phase": ""}, "handling")],
)
async def test_the_phase_is_asked_for_or_that_of_the_map(desk: Desk, asked: dict[str, str], phase: str) -> None:
    await desk.agent("triage", hand_over("billing", **asked))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff={"phase_map": {"billing": "handling"}})
    await talk.ask("hi")
    assert await moved(talk) == [("billing", phase)]


async def test_without_a_map_the_phase_stays(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    assert await moved(talk) == [("billing", "intake")]
    assert talk.state.phase_history[-1].from_phase == talk.state.phase == "intake"


async def test_transitions_of_the_pipeline_are_accepted(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"), hand_over("billing"))
    await desk.agent("billing", hand_over("triage"), "Done.")
    await desk.echoes("support")
    talk = await desk.open(STAGES.to_router(), "triage", "billing", "support", handoff=STRICT)
    assert await talk.ask("hi") == [("billing", "Done.")]
    assert await moved(talk) == [("billing", "handling"), ("triage", "intake"), ("billing", "handling")]


# Refused


async def test_an_unknown_target_is_refused_and_the_agent_is_asked_again(desk: Desk) -> None:
    model = await desk.agent("triage", hand_over("refunds"), "I can help myself.")
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana", handoff={"agent_aliases": {"money": "billing"}})
    assert await talk.ask("hi") == [("triage", "I can help myself.")]
    assert await refusals(talk) == [("triage", "refunds", "target_not_found")]
    read = model.requests[1].exchange[-1].text
    assert "'refunds'" in read
    assert "money, billing, human" in read
    assert (talk.state.active_agent_id, talk.state.handoff_count, await moved(talk)) == (None, 0, [])


async def test_an_agent_that_is_refused_may_name_another_target(desk: Desk) -> None:
    await desk.agent("triage", hand_over("refunds"), hand_over("billing"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("hi") == [("billing", "billing on hi")]
    assert await refusals(talk) == [("triage", "refunds", "target_not_found")]
    assert await moved(talk) == [("billing", "intake")]


@pytest.mark.parametrize("target", ["triage", "code", "ann", "nobody", "hub"])
async def test_only_other_agents_and_people_can_be_handed_to(desk: Desk, target: str) -> None:
    await desk.agent("triage", hand_over(target), "I go on.")
    talk = await desk.open(TO_TRIAGE, "triage", "code")
    assert await talk.ask("hi") == [("triage", "I go on.")]
    assert await refusals(talk) == [("triage", target, "target_not_found")]


@pytest.mark.parametrize("target", ["eva", "Eva", "customer"])
async def test_the_person_who_is_helped_is_no_target(desk: Desk, target: str) -> None:
    """A hold by the customer would leave the conversation to be answered by no one."""
    await desk.join("eva:human")
    model = await desk.agent("triage", hand_over(target), hand_over("human"))
    aliases = {"agent_aliases": {"customer": "eva", "people": "human"}}
    talk = await desk.open(TO_TRIAGE, "triage", "dana", creator="eva", handoff=aliases)
    assert await talk.ask("hi", by="eva") == []
    assert await refusals(talk) == [("triage", target, "target_not_found")]
    assert "Possible targets: people, human." in model.requests[1].exchange[-1].text
    assert [each["person"] for each in await talk.facts(MOVED)] == ["human"]


async def test_a_transition_that_is_not_allowed_is_refused(desk: Desk) -> None:
    model = await desk.agent("triage", hand_over("support"), hand_over("billing", next_phase="resolution"), "I go on.")
    await desk.echoes("billing", "support")
    talk = await desk.open(STAGES.to_router(), "triage", "billing", "support", handoff=STRICT)
    assert await talk.ask("hi") == [("triage", "I go on.")]
    assert await refusals(talk) == [
        ("triage", "support", "transition_not_allowed"),
        ("triage", "billing", "transition_not_allowed"),
    ]
    assert "from phase 'intake' to 'resolution'" in model.requests[1].exchange[-1].text
    assert talk.state.phase == "intake"


async def test_a_refusal_is_for_operators_and_caused_by_the_message(desk: Desk) -> None:
    await desk.agent("triage", hand_over("refunds"), "I go on.")
    talk = await desk.open(TO_TRIAGE, "triage")
    said = await talk.say("hi")
    await talk.settled()
    [refused] = await talk.log(REFUSED)
    assert (refused.sender_id, refused.audience) == ("hub", ["hub:operators"])
    assert refused.causation_id == said.envelope_id


async def test_handoffs_of_one_message_are_limited(desk: Desk) -> None:
    """The sixth is refused, and the agent reads that it has to answer itself."""
    triage = await desk.agent("triage", *[hand_over("billing")] * 3, "never")
    billing = await desk.agent("billing", *[hand_over("triage")] * 3, "I stop here.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("hi") == [("billing", "I stop here.")]
    assert await refusals(talk) == [("billing", "triage", "hop_limit:5")]
    assert "5 handoffs" in billing.requests[-1].exchange[-1].text
    assert (len(triage.requests), len(billing.requests), talk.state.handoff_count) == (3, 4, 5)


async def test_the_next_message_has_handoffs_of_its_own(desk: Desk) -> None:
    await desk.agent("triage", *[hand_over("billing")] * 9)
    await desk.agent("billing", hand_over("triage"), hand_over("triage"), "One.", hand_over("triage"), "Two.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", guards=[{"name": "hop_limit", "most": 5}])
    assert await talk.ask("one") == [("billing", "One.")]
    assert await talk.ask("two") == [("billing", "Two.")]
    assert await refusals(talk) == []


async def test_the_limit_is_a_knob(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.agent("billing", hand_over("triage"), "I stop here.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", guards=[{"name": "hop_limit", "most": 1}])
    assert await talk.ask("hi") == [("billing", "I stop here.")]
    assert await refusals(talk) == [("billing", "triage", "hop_limit:1")]
    log = await desk.hub.log(talk.channel_id)
    [reached] = [each.event_data for each in log if each.event_type == "antiphon.flow.limit"]
    assert (reached["kind"], reached["limit"], reached["rejected_target"]) == ("hop", 1, "triage")


async def test_people_can_be_reached_beyond_the_limit(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.agent("billing", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana", guards=[{"name": "hop_limit", "most": 1}])
    await talk.ask("hi")
    assert await moved(talk) == [("billing", "intake"), (None, "intake")]


async def test_a_model_that_insists_is_stopped_by_the_limit_of_calls(desk: Desk) -> None:
    model = await desk.agent("triage", *[hand_over("refunds")] * 50, limits=Limits(model_calls=4))
    talk = await desk.open(TO_TRIAGE, "triage")
    assert await talk.ask("hi") == []
    assert (len(model.requests), len(await refusals(talk))) == (4, 4)
    [packet] = await talk.log(EV_PACKET)
    assert packet.event_data["routing"] == {"tool": "handoff_conversation", "stopped": "max_model_calls"}


@pytest.mark.parametrize("late", [False, True])
async def test_a_handoff_that_has_become_impossible_is_refused(desk: Desk, late: bool) -> None:
    """The phase changes after the tool was called. If the turn ends meanwhile, the message is routed again."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def look_up() -> str:
        """Take a while."""
        begun.set()
        await go_on.wait()
        return "found"

    await desk.agent("triage", [hand_over("billing"), calls("look_up")], "I answer myself.", tools=[look_up])
    await desk.echoes("billing")
    rules = {"phase_map": {"billing": "handling"}, "allowed_transitions": {"intake": ["handling"]}}
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff=rules)
    said = await talk.say("hi")
    await soon(begun.wait())
    assert desk.store is not None
    if late:
        desk.store.close_gate(talk.channel_id)
    moving = asyncio.create_task(set_conversation_state(talk.channel, talk.state.transition(to_phase="review")))
    await let_others_run()
    go_on.set()
    await let_others_run()
    desk.store.let_pass()
    await soon(moving)
    await talk.settled()
    assert [words for _, words in await talk.answers()] == (["", "I answer myself."] if late else ["I answer myself."])
    refused = {"from_agent": "triage", "target": "billing", "reason": "transition_not_allowed"}
    assert await talk.facts(REFUSED) == [{**refused, "late": True} if late else refused]
    assert {each.causation_id for each in await talk.log(ASSIGNED)} == {said.envelope_id}
    assert (talk.state.phase, talk.state.active_agent_id) == ("review", None)


# The handler


def test_a_handler_is_checked_against_its_router() -> None:
    router = ConversationRouter([rule("billing", phases={"handling"})], "triage")
    HandoffHandler(
        router=router, agent_aliases={"money": "billing", "human": "human"}, phase_map={"human": "escalation"}
    )
    for wrong, named in (
        ({"agent_aliases": {"money": "biling"}}, "biling"),
        ({"phase_map": {"biling": "handling"}}, "biling"),
        ({"phase_map": {"billing": "handlin"}}, "handlin"),
        ({"allowed_transitions": {"handlin": {"intake"}}}, "handlin"),
        ({"allowed_transitions": {"intake": {"handlin"}}}, "handlin"),
    ):
        with pytest.raises(RulesInvalid, match=named):
            HandoffHandler(router=router, **wrong)  # type: ignore[arg-type]


def test_a_handler_needs_a_router() -> None:
    with pytest.raises(UsageError, match="give a ConversationRouter"):
        HandoffHandler(router={"rules": []})  # type: ignore[arg-type]


@pytest.mark.parametrize("hub", ["memory:", 0, object()])
def test_the_hub_of_a_handler_is_an_open_one(hub: object) -> None:
    with pytest.raises(UsageError, match="give an open Hub, or leave it out"):
        HandoffHandler(router=TO_TRIAGE, hub=hub)  # type: ignore[arg-type]


def test_the_rules_of_a_handler_are_plain_data() -> None:
    handler = HandoffHandler(
        router=STAGES.to_router(),
        agent_aliases={"money": "billing"},
        phase_map=STAGES.get_phase_map(),
        allowed_transitions=STAGES.get_allowed_transitions(),
    )
    assert handler.to_dict() == {
        "agent_aliases": {"money": "billing"},
        "phase_map": {"triage": "intake", "billing": "handling", "support": "resolution"},
        "allowed_transitions": {"intake": ["handling"], "handling": ["intake", "resolution"], "resolution": []},
    }


async def test_names_that_do_not_fit_the_channel_are_warned_of(desk: Desk) -> None:
    """The rules hold all the same."""
    await desk.agent("triage", hand_over("dana"))
    await desk.echoes("billing")
    rules = {
        "agent_aliases": {"Billing": "billing", "money": "biling", "dana": "billing", "cash": "Billing"},
        "phase_map": {"human": "escalation", "sales": "handling"},
    }
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana", handoff=rules)
    assert await talk.warnings() == [
        (
            "absent_agent",
            "agent_aliases['money']: 'biling' is not a participant; there are: ann, triage, billing, dana",
        ),
        ("hidden_agent", "agent_aliases['dana'] is 'billing', and hides 'dana'; give another alias"),
        ("absent_agent", "phase_map: 'sales' is not a participant; there are: ann, triage, billing, dana"),
    ]
    assert await talk.ask("hi") == [("billing", "billing on hi")]


async def test_rules_that_fit_the_channel_are_not_warned_of(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    rules = {"agent_aliases": {"money": "Billing", "boss": "human"}, "phase_map": {"billing": "handling"}}
    talk = await desk.open(TO_TRIAGE, "triage", "billing", handoff=rules)
    assert await talk.warnings() == []


async def test_an_alias_takes_no_person_the_name_human(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    for alias in ("human", "Human", " HUMAN "):
        with pytest.raises(RulesInvalid, match="'human' always stands for a person"):
            await desk.open(TO_TRIAGE, "triage", "billing", handoff={"agent_aliases": {alias: "billing"}})


async def test_a_handler_that_a_hub_knows_holds_for_channels_of_its_router(desk: Desk) -> None:
    router = ConversationRouter([rule("billing", intents={"billing"})], "triage")
    HandoffHandler(hub=desk.hub, router=router, agent_aliases={"money": "billing"})
    await desk.agent("triage", hand_over("money"), hand_over("money"), "I go on.")
    await desk.echoes("billing")
    known = await desk.open(router, "triage", "billing")
    other = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await known.ask("hi") == [("billing", "billing on hi")]
    assert await other.ask("hi") == [("triage", "I go on.")]
    assert "handoff" not in other.channel.state.knobs


async def test_an_agent_made_active_by_code_reads_no_context(desk: Desk) -> None:
    model = ScriptedModel(["Hello."])
    await desk.hire(Agent("billing", model=model))
    talk = await desk.open(ConversationRouter(), "billing")
    await set_conversation_state(
        talk.channel, talk.state.transition(to_phase="handling", to_agent="billing", reason="x")
    )
    await talk.ask("hi")
    assert texts(model.requests[0]) == ["hi"]
