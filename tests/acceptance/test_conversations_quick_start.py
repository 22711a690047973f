"""The quick start, and what happens between a message and its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    ConversationPipeline,
    ConversationRouter,
    HandoffHandler,
    HandoffMemoryProvider,
    HookExecution,
    HookTrigger,
    Hub,
    PipelineStage,
    RoutingConditions,
    RoutingRule,
    RulesInvalid,
    ScriptedModel,
    SlidingWindowMemory,
    UsageError,
    get_conversation_state,
    setup_handoff,
)
from tests.support.conversation_desk import (
    ASSIGNED,
    MOVED,
    TO_TRIAGE,
    Conversation,
    Desk,
    a_desk,
    hand_over,
    rule,
    texts,
)

PIPELINE = ConversationPipeline(
    stages=[
        PipelineStage(phase="intake", agent_id="agent-triage", next="handling"),
        PipelineStage(phase="handling", agent_id="agent-handler", next="review"),
        PipelineStage(phase="review", agent_id="agent-reviewer", next="resolution", can_return_to={"handling"}),
        PipelineStage(phase="resolution", agent_id="agent-resolver", next=None),
    ],
    supervisor_id="agent-supervisor",
)
SCRIPTS: dict[str, list[object]] = {
    "agent-triage": [hand_over("agent-handler", "An invoice.")],
    "agent-handler": ["Which invoice?", hand_over("agent-reviewer", "Invoice 7."), "Sent to you again."],
    "agent-reviewer": [hand_over("agent-handler", "Look again."), "Never asked."],
    "agent-resolver": [],
    "agent-supervisor": ["Seen.", "Seen again."],
}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human") as found:
        yield found


async def quick_start(desk: Desk) -> tuple[Conversation, dict[str, ScriptedModel]]:
    """The quick start, with the hub in place of the kit and agents in place of channels."""
    hub = desk.hub
    router = PIPELINE.to_router()
    handler = HandoffHandler(hub=hub, router=router, phase_map=PIPELINE.get_phase_map())
    models = {name: ScriptedModel(script) for name, script in SCRIPTS.items()}  # type: ignore[arg-type]
    for name, model in models.items():
        memory = HandoffMemoryProvider(SlidingWindowMemory(max_events=50))
        await desk.hire(setup_handoff(Agent(name, model=model, memory=memory), handler))
    hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC, priority=-100)(router.as_hook())
    channel = await desk.people["ann"].open(type="routed", target=list(models))
    return Conversation(desk, channel), models


async def test_quick_start(desk: Desk) -> None:
    talk, models = await quick_start(desk)
    assert talk.state.phase == "intake"
    assert await talk.ask("My invoice is wrong.") == [
        ("agent-handler", "Which invoice?"),
        ("agent-supervisor", "Seen."),
    ]
    assert (talk.state.phase, talk.state.active_agent_id, talk.state.handoff_count) == ("handling", "agent-handler", 1)
    assert await talk.ask("Number 7.") == [("agent-handler", "Sent to you again."), ("agent-supervisor", "Seen again.")]
    assert [(each.from_phase, each.to_phase) for each in talk.state.phase_history] == [
        ("intake", "handling"),
        ("handling", "review"),
        ("review", "handling"),
    ]
    assert [len(model.requests) for model in models.values()] == [1, 3, 1, 0, 2]


async def test_quick_start_gives_the_agents_their_context_before_the_history(desk: Desk) -> None:
    talk, models = await quick_start(desk)
    await talk.ask("My invoice is wrong.")
    [first] = models["agent-handler"].requests
    assert texts(first) == ["[Context from previous agent (agent-triage)]: An invoice.", "My invoice is wrong."]


async def test_what_the_hub_knows_is_copied_into_the_channel(desk: Desk) -> None:
    """The channel is opened without knobs; its log holds the router and the rules for handoffs."""
    talk, _ = await quick_start(desk)
    knobs = talk.channel.state.knobs
    assert knobs["router"] == PIPELINE.to_router().to_dict()
    assert knobs["handoff"] == {
        "agent_aliases": {},
        "phase_map": PIPELINE.get_phase_map(),
        "allowed_transitions": None,
    }


async def test_a_router_installed_later_changes_no_channel_that_is_open(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    before = await desk.open(TO_TRIAGE, "triage", "billing")
    other = ConversationRouter(default_agent_id="billing")
    desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC, priority=-100)(other.as_hook())
    after = Conversation(desk, await desk.people["ann"].open(type="routed", target=["triage", "billing"]))
    own = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await before.ask("hi") == [("triage", "triage on hi")]
    assert await after.ask("hi") == [("billing", "billing on hi")]
    assert await own.ask("hi") == [("triage", "triage on hi")], "a channel that brings a router keeps to it"


async def test_a_routed_channel_without_any_router_is_refused(desk: Desk) -> None:
    await desk.echoes("triage")
    with pytest.raises(RulesInvalid, match="has no router"):
        await desk.people["ann"].open(type="routed", target=["triage"])


@pytest.mark.parametrize(
    "knobs",
    [{"router": "triage"}, {"router": {"default": "triage"}}, {"router": TO_TRIAGE.to_dict(), "handoff": []}],
)
async def test_knobs_that_are_no_rules_are_refused(desk: Desk, knobs: dict[str, object]) -> None:
    await desk.echoes("triage")
    with pytest.raises(RulesInvalid):
        await desk.people["ann"].open(type="routed", target=["triage"], knobs=knobs)
    assert await desk.hub.channels(status="active") == []


# From a message to its answer


async def test_a_message_and_its_turn_are_one_batch(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    said = await talk.say("hi")
    await talk.settled()
    [batch] = [batch for batch in talk.batches() if said.envelope_id in [each.envelope_id for each in batch]]
    assert [each.event_type for each in batch][:2] == [EV_TEXT, ASSIGNED]
    assert (batch[1].causation_id, batch[1].event_data) == (
        said.envelope_id,
        {"speakers": ["triage"], "reason": "default", "shown": said.sequence},
    )


async def test_an_answer_is_a_packet_caused_by_the_message(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    said = await talk.say("hi")
    await talk.settled()
    [packet] = await talk.log(EV_PACKET)
    assert (packet.sender_id, packet.event_data["body"]) == ("triage", "triage on hi")
    assert (packet.causation_id, packet.audience) == (said.envelope_id, None)


async def test_only_the_agent_that_is_routed_to_is_asked(desk: Desk) -> None:
    models = await desk.echoes("triage", "billing", "support")
    router = ConversationRouter([rule("billing", intents={"billing"})], default_agent_id="triage")
    talk = await desk.open(router, "triage", "billing", "support")
    await talk.ask("hi", intent="billing")
    assert {name: len(model.requests) for name, model in models.items()} == {"triage": 0, "billing": 1, "support": 0}


async def test_a_handoff_changes_state_and_says_so_in_the_log(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", "An invoice.", "not mine", next_phase="handling"))
    await desk.echoes("billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("hi")
    assert await talk.facts(MOVED) == [
        {
            "from_phase": "intake",
            "to_phase": "handling",
            "from_agent": "triage",
            "to_agent": "billing",
            "reason": "not mine",
            "summary": "An invoice.",
            "by": "triage",
        }
    ]
    assert await talk.ask("and now?") == [("billing", "billing on and now?")], "it keeps the conversation"


async def test_creators_first_words_are_routed(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage", say="hello")
    await talk.settled()
    assert await talk.said() == [("ann", "hello"), ("triage", "triage on hello")]


async def test_an_agent_that_sends_by_code_is_not_routed(desk: Desk) -> None:
    """What agents say is never routed, so that two of them cannot answer each other for ever."""
    models = await desk.echoes("triage", "billing")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    assert await talk.ask("Please look into it.", by="billing") == []
    assert (await talk.assigned(), models["triage"].requests) == ([], [])
    assert await talk.ask("hi") == [("triage", "triage on hi")]


async def test_setup_handoff_leaves_the_agent_as_it_is(desk: Desk) -> None:
    handler = HandoffHandler(hub=desk.hub, router=TO_TRIAGE)
    agent = Agent("triage", model=ScriptedModel([]))
    wired = setup_handoff(agent, handler)
    assert [tool.name for tool in agent.toolbox] == []
    assert [tool.name for tool in wired.toolbox] == ["handoff_conversation"]
    again = setup_handoff(wired, handler)
    assert [tool.name for tool in again.toolbox] == ["handoff_conversation"]


@pytest.mark.parametrize("wrong", ["triage", None, ScriptedModel([])])
def test_setup_handoff_takes_an_agent(wrong: object) -> None:
    with pytest.raises(UsageError, match="is no agent; give an Agent"):
        setup_handoff(wrong, HandoffHandler(router=TO_TRIAGE))  # type: ignore[type-var]


def test_setup_handoff_takes_a_handler() -> None:
    with pytest.raises(UsageError, match="give a HandoffHandler"):
        setup_handoff(Agent("triage", model=ScriptedModel([])), TO_TRIAGE)  # type: ignore[arg-type]


async def test_state_of_another_channel_type_is_a_usage_error(desk: Desk) -> None:
    await desk.join("ben")
    channel = await desk.people["ann"].open(type="conversation", target=["ben"])
    with pytest.raises(UsageError, match="type 'conversation' has no conversation state"):
        get_conversation_state(channel)


async def test_the_hook_of_a_router_has_one_trigger() -> None:
    async with Hub.open("memory:") as hub:
        router = ConversationRouter([RoutingRule("triage", RoutingConditions())])
        with pytest.raises(UsageError):
            hub.hook(HookTrigger.ON_HANDOFF)(router.as_hook())
