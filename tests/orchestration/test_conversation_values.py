"""The state of a conversation: transitions, round trips, and which states follow from which."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon import RulesInvalid
from antiphon.core.codec import as_type, check_json, from_json, plain_data, to_json
from antiphon.orchestration.conversation import (
    MAX_PHASE_HISTORY,
    ConversationPhase,
    ConversationState,
    PhaseTransition,
    pending_transitions,
)
from tests.support.envelopes import at

BEGUN = ConversationState()
MOVED = BEGUN.transition(to_phase="handling", to_agent="billing", reason="an invoice", at=at(1))

moves = st.lists(
    st.tuples(st.sampled_from(["intake", "handling", "review"]), st.sampled_from([None, "ann", "bob"])), max_size=60
)


def moved_by(state: ConversationState, wanted: list[tuple[str, str | None]]) -> ConversationState:
    for phase, agent in wanted:
        state = state.transition(to_phase=phase, to_agent=agent)
    return state


def test_phases_are_texts() -> None:
    values = ["intake", "qualification", "handling", "escalation", "resolution", "followup"]
    assert [*ConversationPhase] == values
    state = BEGUN.transition(to_phase=ConversationPhase.HANDLING)
    assert state == BEGUN.transition(to_phase="handling")
    assert {type(state.phase), type(state.phase_history[0].to_phase)} == {str}
    assert type(ConversationState(phase=ConversationPhase.FOLLOWUP).phase) is str


def test_a_conversation_begins_with_no_agent() -> None:
    assert (BEGUN.phase, BEGUN.active_agent_id, BEGUN.previous_agent_id) == ("intake", None, None)
    assert (BEGUN.handoff_count, BEGUN.phase_history, BEGUN.context, BEGUN.revision) == (0, (), {}, 0)


def test_a_transition_is_a_new_state() -> None:
    assert ConversationState() == BEGUN
    assert (
        ConversationState(
            phase="handling",
            active_agent_id="billing",
            previous_agent_id=None,
            handoff_count=1,
            phase_started_at=at(1),
            phase_history=(PhaseTransition("intake", "handling", None, "billing", "an invoice", at(1)),),
            revision=1,
        )
        == MOVED
    )


def test_only_what_changes_is_counted() -> None:
    other_phase = MOVED.transition(to_phase="review", to_agent="billing", at=at(2))
    assert (other_phase.handoff_count, other_phase.previous_agent_id, other_phase.phase_started_at) == (1, None, at(2))
    other_agent = other_phase.transition(to_phase="review", to_agent="legal", at=at(3))
    assert (other_agent.handoff_count, other_agent.previous_agent_id) == (2, "billing")
    assert other_agent.phase_started_at == at(2)
    assert other_agent.transition(to_phase="done", to_agent="legal").previous_agent_id == "billing"
    cleared = other_agent.transition(to_phase="review")
    assert (cleared.active_agent_id, cleared.previous_agent_id, cleared.handoff_count) == (None, "legal", 3)
    assert (len(cleared.phase_history), cleared.revision) == (4, 4)


def test_the_history_keeps_the_last_transitions() -> None:
    state = BEGUN
    for number in range(MAX_PHASE_HISTORY + 7):
        state = state.transition(to_phase=f"p{number}", to_agent="ann")
    assert len(state.phase_history) == MAX_PHASE_HISTORY
    assert [state.phase_history[0].to_phase, state.phase_history[-1].to_phase] == ["p7", "p56"]
    assert (state.revision, state.handoff_count) == (57, 1)


def test_the_context_is_kept() -> None:
    state = replace(BEGUN, context={"vip": True})
    assert state.transition(to_phase="handling").context == {"vip": True}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"to_phase": ""}, "to_phase is '', which is empty; give the name of a phase"),
        ({"to_phase": 7}, "to_phase is 7; give the name of a phase"),
        ({"to_phase": "p" * 101}, "which has more than 100 characters"),
        ({"to_phase": "\ud800"}, "which cannot be recorded"),
        ({"to_phase": "review", "to_agent": "Ann Smith"}, "to_agent: 'Ann Smith' is no name"),
        ({"to_phase": "review", "to_agent": "human"}, "to_agent: the name 'human' is taken"),
        ({"to_phase": "review", "reason": None}, "reason and at are None and ''; give texts"),
    ],
)
def test_a_wrong_transition_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        MOVED.transition(**options)
    assert why in str(refused.value)


def test_what_was_recorded_is_applied_as_it_is() -> None:
    strange = PhaseTransition("elsewhere", "", "legal", "Ann Smith")
    state = MOVED.apply(strange)
    assert (state.phase, state.active_agent_id, state.handoff_count) == ("", "Ann Smith", 2)
    assert state.phase_history[-1] == strange


def test_an_agent_that_was_not_active_hands_over() -> None:
    state = BEGUN.apply(PhaseTransition("intake", "intake", "triage", "billing"))
    assert (state.active_agent_id, state.previous_agent_id, state.handoff_count) == ("billing", "triage", 1)


# Round trips


@given(moves)
def test_a_state_reads_back(wanted: list[tuple[str, str | None]]) -> None:
    state = replace(moved_by(BEGUN, wanted), context={"tags": ["a", {"b": None}]})
    data = state.to_dict()
    check_json(data)
    assert ConversationState.from_dict(data) == state
    assert ConversationState.from_dict(json.dumps(data)) == state
    assert from_json(to_json(state), ConversationState) == state
    assert as_type(plain_data(state), ConversationState) == state


def test_nothing_is_shared_with_the_data() -> None:
    data = replace(BEGUN, context={"tags": ["a"]}).to_dict()
    state = ConversationState.from_dict(data)
    data["context"]["tags"].append("b")  # type: ignore[index]  # a dict with a list
    assert state.context == {"tags": ["a"]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "the conversation state is no JSON"),
        (7, "it is int, not dict; give what to_dict() gave"),
        ({"phase": 7}, "phase is int, not str"),
        ({"fase": "intake"}, "it has no field 'fase'"),
        ({"phase": " "}, "phase is ' ', which is empty"),
        ({"active_agent_id": "Ann Smith"}, "active_agent_id: 'Ann Smith' is no name"),
        ({"handoff_count": -1}, "handoff_count is -1; give 0 or more"),
        ({"revision": True}, "revision is bool, not int"),
        ({"phase_started_at": "yesterday"}, "phase_started_at is 'yesterday'; give an instant"),
        ({"phase_history": [{"from_phase": "a"}]}, "phase_history[0].to_phase is missing"),
        ({"context": {"when": {1, 2}}}, "set is no JSON value"),
    ],
)
def test_what_is_no_state_is_refused(data: object, why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        ConversationState.from_dict(data)  # type: ignore[arg-type]  # that is the point
    assert why in str(refused.value)


def test_too_long_a_history_is_refused() -> None:
    one = plain_data(MOVED.phase_history[0])
    with pytest.raises(RulesInvalid, match="phase_history has 51 transitions; give the last 50"):
        ConversationState.from_dict({"phase_history": [one] * (MAX_PHASE_HISTORY + 1)})


ONE = MOVED.phase_history[0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"phase": 7}, "phase is int, not str"),
        ({"phase": " "}, "phase is ' ', which is empty; give the name of a phase"),
        ({"phase": "p" * 101}, "which has more than 100 characters"),
        ({"phase": "\ud800"}, "phase is '\\ud800', which cannot be recorded"),
        ({"active_agent_id": "Ann Smith"}, "active_agent_id: 'Ann Smith' is no name"),
        ({"active_agent_id": 7}, "active_agent_id is int, not str"),
        ({"previous_agent_id": "human"}, "previous_agent_id: the name 'human' is taken"),
        ({"handoff_count": -1}, "handoff_count is -1; give 0 or more"),
        ({"handoff_count": "1"}, "handoff_count is str, not int"),
        ({"revision": -1}, "revision is -1; give 0 or more"),
        ({"revision": True}, "revision is bool, not int"),
        ({"phase_started_at": "yesterday"}, "phase_started_at is 'yesterday'; give an instant"),
        ({"phase_started_at": None}, "phase_started_at is None, not str"),
        ({"context": None}, "context is None, not dict"),
        ({"context": {1, 2}}, "context is set, not dict"),
        ({"context": {"rate": float("nan")}}, "context cannot be recorded: nan is no JSON number"),
        ({"phase_history": None}, "phase_history is None; give a tuple"),
        ({"phase_history": (7,)}, "phase_history is (7,); give a tuple"),
        ({"phase_history": (ONE,) * 51}, "phase_history has 51 transitions; give the last 50"),
        ({"phase_history": (replace(ONE, from_phase=""),)}, "phase_history: from_phase is '', which is empty"),
        ({"phase_history": (replace(ONE, to_phase="p" * 101),)}, "phase_history: to_phase is 'p"),
        ({"phase_history": (replace(ONE, from_agent=""),)}, "phase_history: from_agent: '' is no name"),
        ({"phase_history": (ONE, replace(ONE, to_agent="hub"))}, "phase_history: to_agent: the name 'hub' is taken"),
        ({"phase_history": (replace(ONE, reason=None),)}, "phase_history[0].reason is None, not str"),
        ({"phase_history": (replace(ONE, reason=object()),)}, "phase_history[0].reason is dict, not str"),
        ({"phase_history": (replace(ONE, at="noon"),)}, "phase_history: at is 'noon'; give an instant"),
    ],
)
def test_an_impossible_value_is_found_before_it_is_written(given: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        ConversationState(**given).check()  # type: ignore[arg-type]  # that is the point
    assert str(refused.value).startswith("the conversation state: ")
    assert why in str(refused.value)


@given(moves)
def test_a_state_that_transitions_lead_to_is_possible(wanted: list[tuple[str, str | None]]) -> None:
    replace(moved_by(BEGUN, wanted), context={"tags": ["a", {"b": None}]}).check()


# Which states follow from which


@given(moves, st.lists(st.tuples(st.sampled_from(["intake", "x"]), st.sampled_from([None, "cy"])), max_size=50))
def test_prepared_transitions_are_found(
    before: list[tuple[str, str | None]], wanted: list[tuple[str, str | None]]
) -> None:
    current = moved_by(BEGUN, before)
    found = pending_transitions(current, moved_by(current, wanted))
    assert found is not None
    assert [(each.to_phase, each.to_agent) for each in found] == wanted


def test_another_context_is_no_transition() -> None:
    assert pending_transitions(MOVED, replace(MOVED, context={"vip": True})) == ()


def test_the_time_of_new_transitions_does_not_matter() -> None:
    wanted = MOVED.transition(to_phase="review", to_agent="legal", at=at(9))
    early = replace(wanted, phase_started_at="")
    assert pending_transitions(MOVED, early) == wanted.phase_history[-1:]


def test_states_survive_a_round_trip_on_the_way() -> None:
    wanted = ConversationState.from_dict(MOVED.to_dict()).transition(to_phase="review")
    assert pending_transitions(MOVED, wanted) == (PhaseTransition("handling", "review", "billing", None),)


ELSEWHERE = BEGUN.transition(to_phase="handling", to_agent="legal", at=at(1))
NEXT = MOVED.transition(to_phase="review", to_agent="legal")


@pytest.mark.parametrize(
    "wanted",
    [
        BEGUN,  # older
        ELSEWHERE,  # of the same age
        ELSEWHERE.transition(to_phase="review"),  # derived from another state
        replace(NEXT, revision=3),  # more changes than transitions
        replace(NEXT, handoff_count=7),
        replace(NEXT, phase="intake"),
        replace(NEXT, previous_agent_id="ann"),
        replace(NEXT, phase_history=(NEXT.phase_history[1],)),
        replace(MOVED, phase_started_at=at(2)),
        replace(MOVED, active_agent_id="legal"),
        replace(NEXT, phase_history=(MOVED.phase_history[0], PhaseTransition("intake", "review", "billing", "legal"))),
    ],
)
def test_a_stale_state_is_noticed(wanted: ConversationState) -> None:
    assert pending_transitions(MOVED, wanted) is None


def test_more_transitions_than_are_kept_cannot_be_found() -> None:
    ahead = moved_by(BEGUN, [("a", None)] * (MAX_PHASE_HISTORY + 1))
    assert pending_transitions(BEGUN, ahead) is None
