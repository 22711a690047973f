"""The state of a conversation: what it holds, how it is read, and who may write it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon import (
    ConversationPhase,
    ConversationRouter,
    ConversationState,
    Denied,
    PhaseTransition,
    RulesInvalid,
    UsageError,
    get_conversation_state,
    set_conversation_state,
)
from tests.support.conversation_desk import MOVED, TO_TRIAGE, Conversation, Desk, Slow, a_desk, hand_over, rule

PHASES = {
    "INTAKE": "intake",
    "QUALIFICATION": "qualification",
    "HANDLING": "handling",
    "ESCALATION": "escalation",
    "RESOLUTION": "resolution",
    "FOLLOWUP": "followup",
}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann", "dana:human", "code") as found:
        await found.echoes("triage", "billing")
        yield found


@pytest.fixture
async def talk(desk: Desk) -> Conversation:
    return await desk.open(TO_TRIAGE, "triage", "billing", "dana", "code")


# The value


def test_phases_are_the_six_of_the_table() -> None:
    assert {each.name: each.value for each in ConversationPhase} == PHASES
    assert ConversationPhase.HANDLING == "handling"


def test_a_state_begins_at_intake_with_no_agent() -> None:
    state = ConversationState()
    assert (state.phase, state.active_agent_id, state.previous_agent_id) == ("intake", None, None)
    assert (state.handoff_count, state.phase_history, state.context) == (0, (), {})


def test_a_transition_is_a_new_state() -> None:
    state = ConversationState(active_agent_id="agent-triage")
    after = state.transition(to_phase="handling", to_agent="agent-handler", reason="a billing issue")
    assert (state.phase, state.active_agent_id, state.phase_history) == ("intake", "agent-triage", ())
    assert (after.phase, after.active_agent_id, after.previous_agent_id) == (
        "handling",
        "agent-handler",
        "agent-triage",
    )
    assert after.handoff_count == 1


def test_each_transition_is_kept_in_the_history() -> None:
    state = ConversationState().transition(to_phase="handling", to_agent="billing", reason="money")
    state = state.transition(to_phase="resolution", to_agent="billing", reason="paid")
    assert [f"{t.from_phase} -> {t.to_phase} by {t.from_agent} ({t.reason})" for t in state.phase_history] == [
        "intake -> handling by None (money)",
        "handling -> resolution by billing (paid)",
    ]
    assert state.phase_history[0] == PhaseTransition("intake", "handling", None, "billing", "money")


def test_handoffs_are_counted_only_if_the_agent_changes() -> None:
    state = ConversationState().transition(to_phase="a", to_agent="billing")
    state = state.transition(to_phase="b", to_agent="billing")
    assert (state.handoff_count, state.previous_agent_id) == (1, None)


def test_a_transition_without_an_agent_clears_the_active_one() -> None:
    state = ConversationState(active_agent_id="billing").transition(to_phase="followup")
    assert (state.active_agent_id, state.previous_agent_id, state.handoff_count) == (None, "billing", 1)


@pytest.mark.parametrize("phase", ["handling", ConversationPhase.ESCALATION, "own phase", "prüfen"])
def test_any_text_can_be_a_phase(phase: str) -> None:
    assert ConversationState().transition(to_phase=phase).phase == str(phase)


@pytest.mark.parametrize("phase", ["", " ", None, 7, "x" * 1000])
def test_what_is_no_text_of_a_phase_is_refused(phase: object) -> None:
    with pytest.raises(RulesInvalid, match="to_phase"):
        ConversationState().transition(to_phase=phase)  # type: ignore[arg-type]


def test_a_state_survives_json() -> None:
    state = ConversationState(context={"order": [7, None, {"ü": 1.5}]})
    state = state.transition(to_phase=ConversationPhase.HANDLING, to_agent="billing", reason="“money”")
    assert ConversationState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert ConversationState.from_dict(json.dumps(state.to_dict())) == state


@pytest.mark.parametrize("wrong", ["{", "[]", '{"phase": 7}', '{"stage": "intake"}', '{"handoff_count": -1}', "null"])
def test_what_is_no_state_is_refused(wrong: str) -> None:
    with pytest.raises(RulesInvalid, match="conversation state"):
        ConversationState.from_dict(wrong)


# In a channel


async def test_a_conversation_begins_in_the_first_phase(talk: Conversation) -> None:
    state = talk.state
    assert (state.phase, state.active_agent_id, state.handoff_count) == ("intake", None, 0)
    assert state.phase_started_at == (await talk.log())[0].created_at


async def test_a_router_names_the_first_phase(desk: Desk) -> None:
    router = ConversationRouter(default_agent_id="triage", first_phase="hello")
    assert (await desk.open(router, "triage")).state.phase == "hello"


async def test_a_rule_makes_no_agent_active(talk: Conversation) -> None:
    await talk.ask("hi")
    assert (talk.state.active_agent_id, talk.state.handoff_count) == (None, 0)


async def test_the_start_of_a_phase_moves_with_the_phase(desk: Desk, talk: Conversation) -> None:
    began = talk.state.phase_started_at
    await desk.clock.advance(60)
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="intake", to_agent="billing"))
    assert talk.state.phase_started_at == began
    await desk.clock.advance(60)
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="billing"))
    assert talk.state.phase_started_at == desk.clock.now() != began
    assert talk.state.phase_history[-1].at == desk.clock.now()


async def test_what_is_read_is_a_copy(talk: Conversation) -> None:
    await set_conversation_state(talk.channel, _with_context(talk.state, {"order": [7]}))
    read = talk.state
    read.context["order"] = "gone"
    assert talk.state.context == {"order": [7]}


# Written by code and people


@pytest.mark.parametrize("by", ["ann", "dana", "code"])
async def test_people_and_code_write_the_state(talk: Conversation, by: str) -> None:
    channel = await talk.held_by(by)
    state = get_conversation_state(channel)
    wanted = state.transition(to_phase="handling", to_agent="billing", reason="known customer")
    written = await set_conversation_state(channel, wanted)
    assert written == talk.state
    assert (written.phase, written.active_agent_id, written.handoff_count) == ("handling", "billing", 1)
    assert await talk.facts(MOVED) == [
        {
            "from_phase": "intake",
            "to_phase": "handling",
            "from_agent": None,
            "to_agent": "billing",
            "reason": "known customer",
            "by": by,
        }
    ]
    assert await talk.ask("hi") == [("billing", "billing on hi")]


async def test_several_transitions_are_recorded_in_one_batch(talk: Conversation) -> None:
    state = talk.state.transition(to_phase="a", to_agent="billing").transition(to_phase="b").transition(to_phase="c")
    await set_conversation_state(talk.channel, state)
    assert [(each["from_phase"], each["to_phase"]) for each in await talk.facts(MOVED)] == [
        ("intake", "a"),
        ("a", "b"),
        ("b", "c"),
    ]
    assert [each.event_type for each in talk.batches()[-1]] == [MOVED] * 3
    assert (talk.state.phase, talk.state.active_agent_id, talk.state.previous_agent_id) == ("c", None, "billing")


async def test_context_is_written_without_a_transition(talk: Conversation) -> None:
    await set_conversation_state(talk.channel, _with_context(talk.state, {"account": "12345"}))
    assert (talk.state.context, talk.state.phase, talk.state.phase_history[:-1]) == ({"account": "12345"}, "intake", ())


async def test_the_same_state_again_records_nothing(talk: Conversation) -> None:
    before = await talk.log()
    await set_conversation_state(talk.channel, talk.state)
    assert await talk.log() == before


async def test_a_stale_state_is_a_conflict(desk: Desk, talk: Conversation) -> None:
    state = talk.state
    await set_conversation_state(talk.channel, state.transition(to_phase="handling"))
    before = await talk.log()
    for stale in (state.transition(to_phase="followup"), state, _with_context(state, {"lost": True})):
        with pytest.raises(Denied) as caught:
            await set_conversation_state(talk.channel, stale)
        assert (caught.value.reason, caught.value.channel_id) == ("conflict", talk.channel_id)
    assert await talk.log() == before


async def test_a_handoff_makes_a_state_stale(desk: Desk) -> None:
    await desk.agent("pat", hand_over("billing"))
    talk = await desk.open(ConversationRouter(default_agent_id="pat"), "pat", "billing")
    state = talk.state
    await talk.ask("hi")
    with pytest.raises(Denied) as caught:
        await set_conversation_state(talk.channel, state.transition(to_phase="followup"))
    assert caught.value.reason == "conflict"
    assert talk.state.active_agent_id == "billing"


@pytest.mark.parametrize("agent", ["nobody", "dana", "code", "ann"])
async def test_only_an_agent_of_the_channel_can_be_active(talk: Conversation, agent: str) -> None:
    with pytest.raises(Denied) as caught:
        await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent=agent))
    assert caught.value.reason == "target_not_found"
    assert caught.value.detail == f"{agent!r} is no agent that answers here; there are: triage, billing"
    assert talk.state.phase == "intake"


async def test_agents_may_not_write_the_state(talk: Conversation) -> None:
    channel = await talk.held_by("billing")
    with pytest.raises(Denied) as caught:
        await set_conversation_state(channel, talk.state.transition(to_phase="handling"))
    assert (caught.value.reason, talk.state.phase) == ("not_a_person", "intake")


async def test_the_state_of_a_closed_conversation_stays(talk: Conversation) -> None:
    await talk.channel.close("done")
    with pytest.raises(Denied) as caught:
        await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling"))
    assert (caught.value.reason, talk.state.phase) == ("channel_closed", "intake")


async def test_what_is_no_state_cannot_be_set(talk: Conversation) -> None:
    with pytest.raises(UsageError, match="give what get_conversation_state gave"):
        await set_conversation_state(talk.channel, {"phase": "handling"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("phase", "", "phase is ''"),
        ("phase", 7, "phase is int, not str"),
        ("phase", object(), "phase is"),
        ("active_agent_id", "no name", "active_agent_id: 'no name' is no name"),
        ("previous_agent_id", 7, "previous_agent_id is int, not str"),
        ("handoff_count", -1, "handoff_count is -1"),
        ("handoff_count", "1", "handoff_count is str, not int"),
        ("phase_started_at", "yesterday", "phase_started_at is 'yesterday'"),
        ("phase_started_at", "\ud800", "phase_started_at is"),
        ("phase_history", "x", "phase_history is 'x'; give a tuple of PhaseTransition"),
        ("phase_history", ("x",), "phase_history is ('x',); give a tuple of PhaseTransition"),
        ("phase_history", [PhaseTransition("a", "b", None, None)], "give a tuple of PhaseTransition"),
        ("phase_history", (PhaseTransition("a", object(), None, None),), "phase_history[0].to_phase is"),  # type: ignore[arg-type]
        ("phase_history", (PhaseTransition("", "b", None, None),), "phase_history: from_phase is ''"),
        ("phase_history", (PhaseTransition("a", "x" * 1000, None, None),), "phase_history: to_phase is"),
        ("phase_history", (PhaseTransition("a", "b", None, "no name"),), "phase_history: to_agent: 'no name'"),
        ("phase_history", (PhaseTransition("a", "b", None, None, at="soon"),), "phase_history: at is 'soon'"),
        ("phase_history", (PhaseTransition("a", "b", None, None),) * 51, "phase_history has 51 transitions"),
        ("context", [], "context is list, not dict"),
        ("revision", None, "revision is None, not int"),
    ],
)
async def test_a_state_that_cannot_be_is_refused_by_its_field(
    talk: Conversation, field: str, value: object, told: str
) -> None:
    before = await talk.log()
    wrong = msgspec.structs.replace(talk.state.transition(to_phase="handling"), **{field: value})
    with pytest.raises(RulesInvalid) as caught:
        await set_conversation_state(talk.channel, wrong)
    assert str(caught.value).startswith("the conversation state: ")
    assert told in str(caught.value)
    assert await talk.log() == before


async def test_a_state_is_recorded_before_it_is_too_far_ahead(talk: Conversation) -> None:
    state = talk.state
    for number in range(50):
        state = state.transition(to_phase=f"p{number}")
    with pytest.raises(Denied) as caught:
        await set_conversation_state(talk.channel, state.transition(to_phase="p50"))
    assert (caught.value.reason, caught.value.detail) == (
        "conflict",
        "the state is 51 transitions ahead; record it after 50 at most",
    )
    assert await talk.facts(MOVED) == []
    assert (await set_conversation_state(talk.channel, state)).phase == "p49"
    assert len(await talk.facts(MOVED)) == 50


async def test_a_conversation_that_was_erased_has_no_state(desk: Desk, talk: Conversation) -> None:
    state = talk.state.transition(to_phase="handling")
    await talk.ask("hi")
    await talk.channel.close("done")
    await desk.hub.erase(talk.channel_id)
    with pytest.raises(UsageError, match="this conversation was erased"):
        get_conversation_state(talk.channel)
    with pytest.raises(UsageError, match="this conversation was erased"):
        await set_conversation_state(talk.channel, state)
    with pytest.raises(UsageError, match="this conversation was erased"):
        await talk.channel.release()


async def test_a_state_belongs_to_a_channel(desk: Desk, talk: Conversation) -> None:
    state = talk.state
    for wrong in (talk.channel_id, None, desk.people["ann"]):
        with pytest.raises(UsageError, match="give what participant"):
            get_conversation_state(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="give what participant"):
            await set_conversation_state(wrong, state)  # type: ignore[arg-type]


async def test_an_active_agent_is_cleared_and_messages_are_routed_again(talk: Conversation) -> None:
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="billing"))
    assert await talk.ask("one") == [("billing", "billing on one")]
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="followup"))
    assert await talk.ask("two") == [("triage", "triage on two")]
    assert talk.state.active_agent_id is None


async def test_a_phase_set_by_code_decides_which_rule_matches(desk: Desk) -> None:
    router = ConversationRouter([rule("billing", phases={"handling"})], default_agent_id="triage")
    talk = await desk.open(router, "triage", "billing")
    assert await talk.ask("one") == [("triage", "triage on one")]
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling"))
    assert await talk.ask("two") == [("billing", "billing on two")]


async def test_state_set_during_a_turn_holds_for_the_next_message(desk: Desk) -> None:
    slow = Slow("One.")
    await desk.agent("pat", slow)
    talk = await desk.open(ConversationRouter(default_agent_id="pat"), "pat", "billing")
    await talk.say("one")
    await slow.begun()
    await talk.say("two")
    await set_conversation_state(talk.channel, talk.state.transition(to_phase="handling", to_agent="billing"))
    slow.go_on()
    await talk.settled()
    assert await talk.answers() == [("pat", "One."), ("billing", "billing on two")]


async def test_notes_alone_are_no_transition(desk: Desk) -> None:
    talk = await desk.open(ConversationRouter(default_agent_id="billing"), "billing")
    before = talk.state
    after = await set_conversation_state(talk.channel, _with_context(before, {"vip": True}))
    assert (after.context, after.phase_history, after.handoff_count) == ({"vip": True}, (), 0)
    with pytest.raises(Denied, match="conflict"):
        await set_conversation_state(talk.channel, _with_context(before, {"vip": False}))


def _with_context(state: ConversationState, context: dict[str, object]) -> ConversationState:
    return ConversationState.from_dict({**state.to_dict(), "context": context})
