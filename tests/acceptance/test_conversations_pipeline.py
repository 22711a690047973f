"""Pipelines: stages, the router made of them, and conversations that go through them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    ConversationPipeline,
    ConversationRouter,
    HandoffHandler,
    PipelineStage,
    RoutingConditions,
    RoutingRule,
    RulesInvalid,
)
from tests.support.conversation_desk import MOVED, REFUSED, Desk, a_desk, hand_over

CODING = ConversationPipeline(
    stages=[
        PipelineStage(phase="analysis", agent_id="agent-discuss", next="coding"),
        PipelineStage(phase="coding", agent_id="agent-coder", next="review"),
        PipelineStage(phase="review", agent_id="agent-reviewer", next="report", can_return_to={"coding"}),
        PipelineStage(phase="report", agent_id="agent-writer", next=None),
    ],
    supervisor_id="agent-supervisor",
)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human") as found:
        yield found


# The table of fields


def test_fields_of_a_stage() -> None:
    stage = PipelineStage(phase="review", agent_id="agent-reviewer", next="report", can_return_to={"coding"})
    assert (stage.phase, stage.agent_id, stage.next) == ("review", "agent-reviewer", "report")
    assert stage.can_return_to == {"coding"}
    last = PipelineStage(phase="report", agent_id="agent-writer")
    assert (last.next, last.can_return_to) == (None, frozenset())


def test_router() -> None:
    agents = ["agent-discuss", "agent-coder", "agent-reviewer", "agent-writer"]
    phases = ["analysis", "coding", "review", "report"]
    rules = [RoutingRule(a, RoutingConditions(phases={p})) for a, p in zip(agents, phases, strict=True)]
    assert CODING.to_router() == ConversationRouter(rules, "agent-discuss", "agent-supervisor", "analysis")


def test_phase_map() -> None:
    assert CODING.get_phase_map() == {
        "agent-discuss": "analysis",
        "agent-coder": "coding",
        "agent-reviewer": "review",
        "agent-writer": "report",
    }


def test_allowed_transitions() -> None:
    assert CODING.get_allowed_transitions() == {
        "analysis": {"coding"},
        "coding": {"review"},
        "review": {"report", "coding"},
        "report": set(),
    }


def test_a_pipeline_survives_json() -> None:
    assert ConversationPipeline.loads(json.loads(json.dumps(CODING.to_dict()))) == CODING


# Validation


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([PipelineStage("a", "x", next="b")], "next names the phase 'b'"),
        ([PipelineStage("a", "x", can_return_to={"c"})], "can_return_to names the phase 'c'"),
        ([PipelineStage("a", "x"), PipelineStage("a", "y")], "two stages have the phase 'a'"),
        ([PipelineStage("a", "x"), PipelineStage("b", "y")], "'b' cannot be reached"),
        ([], "give at least one"),
        (["a"], "give a list of PipelineStage"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(stages: list[PipelineStage], message: str) -> None:
    with pytest.raises(RulesInvalid, match=message):
        ConversationPipeline(stages)


def test_a_stage_may_lead_to_itself() -> None:
    pipeline = ConversationPipeline([PipelineStage("a", "x", next="a")])
    assert pipeline.get_allowed_transitions() == {"a": {"a"}}


@pytest.mark.parametrize(
    "wrong", [{"phase": ""}, {"agent_id": "not a name"}, {"next": 7}, {"can_return_to": "coding"}, {"phase": None}]
)
def test_a_stage_that_is_wrong_is_refused(wrong: dict[str, object]) -> None:
    given = {"phase": "a", "agent_id": "x", **wrong}
    with pytest.raises(RulesInvalid, match=next(iter(wrong))):
        PipelineStage(**given)  # type: ignore[arg-type]


# Conversations


def handler() -> HandoffHandler:
    return HandoffHandler(
        router=CODING.to_router(),
        phase_map=CODING.get_phase_map(),
        allowed_transitions=CODING.get_allowed_transitions(),
    )


TEAM = ("agent-discuss", "agent-coder", "agent-reviewer", "agent-writer")


async def test_a_conversation_goes_through_the_stages(desk: Desk) -> None:
    await desk.agent("agent-discuss", hand_over("agent-coder", "Sort a list."))
    await desk.agent("agent-coder", hand_over("agent-reviewer", "Draft."), hand_over("agent-reviewer", "Better."))
    await desk.agent("agent-reviewer", hand_over("agent-coder", "Too slow."), hand_over("agent-writer", "Fine."))
    await desk.agent("agent-writer", "Here is your report.", "You are welcome.")
    await desk.agent("agent-supervisor", "Seen.", "Seen.")
    talk = await desk.open(CODING.to_router(), *TEAM, "agent-supervisor", handoff=handler().to_dict())
    assert talk.state.phase == "analysis"
    answers = await talk.ask("sort a list")
    assert answers == [("agent-writer", "Here is your report."), ("agent-supervisor", "Seen.")]
    assert [each["to_phase"] for each in await talk.facts(MOVED)] == [
        "coding",
        "review",
        "coding",
        "review",
        "report",
    ]
    assert (await talk.ask("thanks"))[0] == ("agent-writer", "You are welcome.")


async def test_stages_cannot_be_skipped(desk: Desk) -> None:
    model = await desk.agent("agent-discuss", hand_over("agent-writer"), hand_over("agent-coder"))
    await desk.echoes("agent-coder", "agent-reviewer", "agent-writer")
    talk = await desk.open(CODING.to_router(), *TEAM, handoff=handler().to_dict())
    assert await talk.ask("write") == [("agent-coder", "agent-coder on write")]
    [refused] = await talk.facts(REFUSED)
    assert (refused["target"], refused["reason"]) == ("agent-writer", "transition_not_allowed")
    assert "'analysis' to 'report'" in model.requests[1].exchange[-1].text


async def test_the_agent_of_the_phase_answers_where_none_is_active(desk: Desk) -> None:
    await desk.agent("agent-discuss", hand_over("human", next_phase="review"))
    await desk.echoes("agent-coder", "agent-reviewer", "agent-writer")
    talk = await desk.open(CODING.to_router(), *TEAM, "dana", handoff=handler().to_dict())
    await talk.ask("hi")
    await talk.release("dana")
    assert await talk.ask("and now?") == [("agent-reviewer", "agent-reviewer on and now?")]


async def test_a_stage_leads_to_itself_in_a_conversation(desk: Desk) -> None:
    loop = ConversationPipeline([PipelineStage("a", "one", next="b"), PipelineStage("b", "two", next="b")])
    await desk.agent("one", hand_over("two"), "One again.")
    await desk.agent("two", hand_over("one", next_phase="b"))
    allowed = {phase: sorted(to) for phase, to in loop.get_allowed_transitions().items()}
    rules = {"phase_map": loop.get_phase_map(), "allowed_transitions": allowed}
    talk = await desk.open(loop.to_router(), "one", "two", handoff=rules)
    assert await talk.ask("hi") == [("one", "One again.")]
    assert [(each["to_agent"], each["to_phase"]) for each in await talk.facts(MOVED)] == [("two", "b"), ("one", "b")]
