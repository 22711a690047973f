"""Pipelines: the router, phase map and transitions that are made of stages, and what is refused."""

from __future__ import annotations

import json

import pytest

from antiphon import RulesInvalid
from antiphon.core.codec import check_json
from antiphon.core.ruleset import ChannelRoster
from antiphon.orchestration.conversation import ConversationPhase
from antiphon.orchestration.handoff_rules import HandoffRules, check_handoff_rules
from antiphon.orchestration.pipeline import ConversationPipeline, PipelineStage
from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule

CODING = ConversationPipeline(
    stages=[
        PipelineStage(phase="analysis", agent_id="talker", next="coding"),
        PipelineStage(phase="coding", agent_id="coder", next="review"),
        PipelineStage(phase="review", agent_id="reviewer", next="report", can_return_to={"coding"}),
        PipelineStage(phase="report", agent_id="writer", next=None, description="The <last> word"),
    ],
    supervisor_id="watcher",
)
TWICE = ConversationPipeline(
    [
        PipelineStage("draft", "writer", next="check"),
        PipelineStage("check", "editor", next="final", can_return_to=["draft"]),
        PipelineStage("final", "writer"),
    ]
)


def test_a_stage_is_a_rule() -> None:
    assert CODING.to_router() == ConversationRouter(
        [
            RoutingRule("talker", RoutingConditions(phases={"analysis"})),
            RoutingRule("coder", RoutingConditions(phases={"coding"})),
            RoutingRule("reviewer", RoutingConditions(phases={"review"})),
            RoutingRule("writer", RoutingConditions(phases={"report"})),
        ],
        default_agent_id="talker",
        supervisor_id="watcher",
        first_phase="analysis",
    )
    assert CODING.first_phase == "analysis"
    assert CODING.to_router().to_dict()["first_phase"] == "analysis"
    assert ConversationRouter.loads(CODING.to_router().to_dict()) == CODING.to_router()


def test_phases_and_transitions() -> None:
    phases = {"talker": "analysis", "coder": "coding", "reviewer": "review", "writer": "report"}
    assert CODING.get_phase_map() == phases
    assert CODING.get_allowed_transitions() == {
        "analysis": {"coding"},
        "coding": {"review"},
        "review": {"report", "coding"},
        "report": set(),
    }


def test_an_agent_of_two_stages_has_the_phase_of_the_first() -> None:
    assert TWICE.get_phase_map() == {"writer": "draft", "editor": "check"}
    assert TWICE.get_allowed_transitions() == {"draft": {"check"}, "check": {"final", "draft"}, "final": set()}
    assert TWICE.participants == ("writer", "editor")


@pytest.mark.parametrize("pipeline", [CODING, TWICE])
def test_handoff_rules_of_a_pipeline_fit_its_router(pipeline: ConversationPipeline) -> None:
    rules = HandoffRules({"desk": "writer"}, pipeline.get_phase_map(), pipeline.get_allowed_transitions())
    check_handoff_rules(rules, pipeline.to_router())


def test_a_stage_may_lead_to_itself() -> None:
    loop = ConversationPipeline([PipelineStage("chat", "bot", next="chat", can_return_to={"chat"})])
    assert loop.get_allowed_transitions() == {"chat": {"chat"}}


def test_phases_are_plain_texts() -> None:
    stage = PipelineStage(ConversationPhase.INTAKE, "bot", next=ConversationPhase.INTAKE)
    assert (stage.phase, type(stage.phase), type(stage.next)) == ("intake", str, str)


def test_a_pipeline_reads_back() -> None:
    for pipeline in (CODING, TWICE):
        data = pipeline.to_dict()
        check_json(data)
        for form in (data, json.dumps(data), pipeline):
            assert ConversationPipeline.loads(form) == pipeline
    assert "description" not in TWICE.to_dict()["stages"][0]  # type: ignore[index]  # a list of dicts


A, B = PipelineStage("a", "x", next="b"), PipelineStage("b", "y")


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ([], "stages is empty; give at least one PipelineStage"),
        ("ab", "stages is 'ab'; give a list"),
        ([{"phase": "a"}], "stages holds {'phase': 'a'}; give a list of PipelineStage"),
        ([A, B, B], "two stages have the phase 'b'; give every stage a phase of its own"),
        ([A], "stage 'a': next names the phase 'b', which no stage has; there are: a"),
        (
            [A, PipelineStage("b", "y", can_return_to={"A"})],
            "stage 'b': can_return_to names the phase 'A', which no stage has; did you mean 'a'?",
        ),
        (
            [A, B, PipelineStage("c", "z", can_return_to={"a"})],
            "stage 'c' cannot be reached from the first stage 'a'; name it in next or can_return_to of one of: a, b",
        ),
        ([B, A], "stage 'a' cannot be reached from the first stage 'b'"),
    ],
)
def test_wrong_stages_are_refused(stages: list[PipelineStage], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        ConversationPipeline(stages)
    assert why in str(refused.value)


def test_a_stage_that_is_only_returned_to_is_reached() -> None:
    side = PipelineStage("side", "z", next="a")
    assert ConversationPipeline([PipelineStage("a", "x", can_return_to={"side"}), side]).first_phase == "a"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"phase": ""}, "phase is '', which is empty; give the name of a phase"),
        ({"agent_id": "x y"}, "stage 'a': agent_id: 'x y' is no name"),
        ({"next": 7}, "stage 'a': next is 7; give the name of a phase"),
        ({"can_return_to": "b"}, "stage 'a': can_return_to is 'b'; give a set of phases, such as {'handling'}"),
        ({"can_return_to": {"b": 1}}, "stage 'a': can_return_to is {'b': 1}; give a set of phases"),
        ({"can_return_to": None}, "stage 'a': can_return_to is None; give a set"),
        ({"description": None}, "stage 'a': description is None; give a text"),
        ({"description": "\ud800"}, "stage 'a': description is '\\ud800': a text contains half"),
    ],
)
def test_a_wrong_stage_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        PipelineStage(**{"phase": "a", "agent_id": "x", **options})  # type: ignore[arg-type]  # that is the point
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("[", "the pipeline is no JSON"),
        ({}, "the pipeline has no 'stages'; it needs: stages"),
        ({"stages": [], "router": 1}, "the pipeline has no field 'router'; it has: stages, supervisor_id"),
        ({"stages": 7}, "the pipeline: stages is 7; give a list"),
        ({"stages": [{"phase": "a"}]}, "the pipeline: stage 0 has no 'agent_id'; it needs: phase, agent_id"),
        ({"stages": [{"phase": "a", "agent_id": "x", "to": "b"}]}, "stage 0 has no field 'to'; it has: phase"),
        ({"stages": [{"phase": "a", "agent_id": 7}]}, "the pipeline: stage 0: stage 'a': agent_id: 7 is no name"),
        ({"stages": [{"phase": "a", "agent_id": "x"}], "supervisor_id": "hub"}, "supervisor_id: the name 'hub'"),
    ],
)
def test_what_is_no_pipeline_is_refused(data: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        ConversationPipeline.loads(data)
    assert why in str(refused.value)


def test_findings_are_those_of_the_router() -> None:
    kinds = dict.fromkeys(["talker", "coder", "reviewer", "writer", "watcher"], "agent")
    assert CODING.check(ChannelRoster({"ann": "human", **kinds})) == []
    del kinds["coder"]
    assert [each.code for each in CODING.check(ChannelRoster(kinds))] == ["absent_agent"]


def test_a_pipeline_in_text() -> None:
    assert CODING.summarize() == [
        "analysis: talker → coding",
        "coding: coder → review",
        "review: reviewer → report, or back to coding",
        "report: writer → end",
        "observer: watcher",
    ]
    assert CODING.to_mermaid().splitlines() == [
        "flowchart TD",
        '    n1["analysis<br/>talker"]',
        '    n2["coding<br/>coder"]',
        '    n3["review<br/>reviewer"]',
        '    n4["report<br/>writer<br/>The #lt;last#gt; word"]',
        '    finish((("end")))',
        "    start([start]) --> n1",
        "    n1 --> n2",
        "    n2 --> n3",
        "    n3 --> n4",
        "    n3 -.-> n2",
        "    n4 --> finish",
        '    observer>"watcher observes"]',
    ]


def test_a_pipeline_without_an_end_is_drawn_without_one() -> None:
    drawing = ConversationPipeline([PipelineStage("chat", "bot", next="chat")]).to_mermaid()
    assert drawing.splitlines()[1:] == ['    n1["chat<br/>bot"]', "    start([start]) --> n1", "    n1 --> n1"]
