"""Handoff rules: where a handoff leads to, why one is refused, and what rules are refused."""

from __future__ import annotations

import json

import pytest

from antiphon import RulesInvalid
from antiphon.core.codec import check_json
from antiphon.core.ruleset import ChannelRoster
from antiphon.orchestration.conversation import ConversationState
from antiphon.orchestration.handoff_rules import (
    HandoffRules,
    RefusedHandoff,
    ResolvedHandoff,
    check_handoff_rules,
    handoff_roster_findings,
    handoff_rule_findings,
    handoff_targets,
    resolve_handoff,
)
from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule

KINDS = {"ann": "human", "triage": "agent", "billing": "agent", "Legal": "agent", "crm": "service"}
RULES = HandoffRules(
    agent_aliases={"money": "billing", "Boss": "human"},
    phase_map={"billing": "handling", "human": "escalation"},
    allowed_transitions={"intake": {"handling", "review"}, "handling": {"intake"}, "review": set()},
)
FREE = HandoffRules(RULES.agent_aliases, RULES.phase_map)
INTAKE = ConversationState()
REVIEW = INTAKE.transition(to_phase="review")


def resolved(
    target: str, phase: str | None = None, *, rules: HandoffRules = RULES, conversation: ConversationState = INTAKE
) -> ResolvedHandoff | RefusedHandoff:
    return resolve_handoff(rules, target, phase, kinds=KINDS, speaker="triage", conversation=conversation)


@pytest.mark.parametrize(
    ("target", "phase", "expected"),
    [
        ("billing", None, ResolvedHandoff("billing", "", "handling")),
        ("BILLING", "", ResolvedHandoff("billing", "", "handling")),
        ("money", None, ResolvedHandoff("billing", "", "handling")),
        (" Money ", None, ResolvedHandoff("billing", "", "handling")),
        ("legal", None, ResolvedHandoff("Legal", "", "intake")),
        ("legal", "review", ResolvedHandoff("Legal", "", "review")),
        ("legal", "Review", ResolvedHandoff("Legal", "", "review")),
        ("billing", "intake", ResolvedHandoff("billing", "", "intake")),
        ("human", None, ResolvedHandoff(None, "human", "escalation")),
        ("HUMAN", "closed", ResolvedHandoff(None, "human", "closed")),
        ("boss", None, ResolvedHandoff(None, "human", "escalation")),
        ("Ann", None, ResolvedHandoff(None, "ann", "escalation")),
        ("ann", "p" * 101, ResolvedHandoff(None, "ann", "escalation")),
    ],
)
def test_where_a_handoff_leads_to(target: str, phase: str | None, expected: ResolvedHandoff) -> None:
    assert resolved(target, phase) == expected


def test_an_alias_comes_before_a_participant() -> None:
    rules = HandoffRules(agent_aliases={"legal": "billing"})
    assert resolved("Legal", rules=rules) == ResolvedHandoff("billing", "", "intake")


def test_without_a_phase_for_people_the_phase_is_unchanged() -> None:
    assert resolved("human", rules=HandoffRules(), conversation=REVIEW) == ResolvedHandoff(None, "human", "review")


def test_any_phase_may_follow_if_the_rules_do_not_say() -> None:
    assert resolved("legal", "negotiation", rules=FREE) == ResolvedHandoff("Legal", "", "negotiation")


def test_a_phase_that_stays_is_allowed() -> None:
    assert resolved("legal", "review", conversation=REVIEW) == ResolvedHandoff("Legal", "", "review")
    elsewhere = INTAKE.transition(to_phase="elsewhere")
    assert resolved("legal", conversation=elsewhere) == ResolvedHandoff("Legal", "", "elsewhere")


TARGETS = "Possible targets: money, Boss, billing, Legal, human."


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("sales", f"There is no 'sales' to hand the conversation to. {TARGETS}"),
        ("crm", f"There is no 'crm' to hand the conversation to. {TARGETS}"),
        ("", f"There is no '' to hand the conversation to. {TARGETS}"),
        ("Triage", f"You have the conversation already. {TARGETS}"),
    ],
)
def test_a_target_that_cannot_take_over(target: str, advice: str) -> None:
    assert resolved(target) == RefusedHandoff("target_not_found", advice)


@pytest.mark.parametrize(
    ("target", "phase", "conversation", "advice"),
    [
        (
            "legal",
            "followup",
            INTAKE,
            "from phase 'intake' to 'followup'. Allowed for next_phase: handling, intake, re",
        ),
        (
            "billing",
            None,
            REVIEW,
            "from phase 'review' to 'handling'. Allowed for next_phase: review. A handoff to 'hu",
        ),
        (
            "legal",
            "intake",
            INTAKE.transition(to_phase="odd"),
            "from phase 'odd' to 'intake'. Allowed for next_phase: odd",
        ),
        ("legal", "p" * 101, INTAKE, "give a phase of 1 to 100 characters, or leave it out."),
    ],
)
def test_a_phase_that_must_not_follow(
    target: str, phase: str | None, conversation: ConversationState, advice: str
) -> None:
    refused = resolved(target, phase, conversation=conversation)
    assert isinstance(refused, RefusedHandoff)
    assert refused.reason == "transition_not_allowed"
    assert advice in refused.advice


def test_what_a_model_may_name() -> None:
    assert handoff_targets(RULES, KINDS, "triage") == ["money", "Boss", "billing", "Legal", "human"]
    assert handoff_targets(RULES, KINDS, "billing") == ["Boss", "triage", "Legal", "human"]
    aliases = HandoffRules(agent_aliases={"human": "human", "sales": "absent"})
    assert handoff_targets(aliases, {"triage": "agent"}, "triage") == ["human"]


def test_long_lists_are_cut() -> None:
    kinds = {"triage": "agent", **{f"a{number}": "agent" for number in range(50)}}
    found = resolve_handoff(HandoffRules(), "x", None, kinds=kinds, speaker="triage", conversation=INTAKE)
    assert isinstance(found, RefusedHandoff)
    assert found.advice.endswith("a18, a19 and 31 more.")


# Values


def test_rules_read_back() -> None:
    data = RULES.to_dict()
    check_json(data)
    assert data["allowed_transitions"] == {"intake": ["handling", "review"], "handling": ["intake"], "review": []}
    for form in (data, json.dumps(data), RULES):
        assert HandoffRules.loads(form) == RULES
    assert HandoffRules.loads(None) == HandoffRules() == HandoffRules.loads({})
    assert HandoffRules.loads(HandoffRules().to_dict()).allowed_transitions is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "handoff is no JSON"),
        ([], "handoff is []; give a dict with agent_aliases, phase_map, allowed_transitions"),
        ({"aliases": {}}, "handoff has no field 'aliases'; it has: agent_aliases"),
        ({"agent_aliases": []}, "handoff: agent_aliases is []; give a dict"),
        ({"agent_aliases": {"": "a"}}, "a key of agent_aliases is '', which is empty; give a name for an agent"),
        ({"agent_aliases": {"a": "b c"}}, "agent_aliases['a']: 'b c' is no name"),
        ({"agent_aliases": {"Law": "a", "law": "b"}}, "'Law' and 'law', which are the same in another case; keep one"),
        ({"agent_aliases": {"human": "a"}}, "agent_aliases['human'] is 'a'; 'human' always stands for a person"),
        ({"agent_aliases": {" Human": "a"}}, "agent_aliases['Human'] is 'a'; 'human' always stands for a person"),
        ({"phase_map": {"a": 7}}, "phase_map['a'] is 7; give the name of a phase"),
        ({"phase_map": {"b c": "intake"}}, "a key of phase_map: 'b c' is no name"),
        ({"allowed_transitions": {"a": "b"}}, "allowed_transitions['a'] is 'b'; give a set of phases"),
        ({"allowed_transitions": {"": ["b"]}}, "a key of allowed_transitions is '', which is empty"),
        ({"allowed_transitions": {"a": [""]}}, "an entry of allowed_transitions['a'] is '', which is empty"),
        ({"allowed_transitions": {str(n): [] for n in range(1001)}}, "has 1001 entries; the limit is 1000"),
    ],
)
def test_what_are_no_rules_is_refused(data: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        HandoffRules.loads(data)
    assert why in str(refused.value)


# Rules and their router

ROUTER = ConversationRouter(
    [RoutingRule("billing", RoutingConditions(phases={"negotiation"}))], default_agent_id="triage", supervisor_id="eye"
)


@pytest.mark.parametrize(
    "rules",
    [
        HandoffRules(),
        HandoffRules({"money": "billing", "boss": "human"}, {"triage": "intake", "human": "escalation"}),
        HandoffRules({"Billing": "billing", "HUMAN": "human"}),
        HandoffRules(phase_map={"billing": "negotiation"}),
        HandoffRules(allowed_transitions={"intake": {"talks"}, "talks": {"negotiation", "talks"}}),
        HandoffRules(phase_map={"billing": "talks"}, allowed_transitions={"talks": {"intake"}}),
    ],
)
def test_rules_that_fit_their_router(rules: HandoffRules) -> None:
    check_handoff_rules(rules, ROUTER)


@pytest.mark.parametrize(
    ("rules", "code", "why"),
    [
        (
            HandoffRules({"money": "Billing"}),
            "unknown_agent",
            "agent_aliases['money'] is 'Billing', which is neither an agent that the router names nor 'human'; did you "
            "mean 'billing'?",
        ),
        (HandoffRules({"watch": "eye"}), "unknown_agent", "there are: billing, human, triage"),
        (
            HandoffRules({"triage": "billing"}),
            "hidden_agent",
            "agent_aliases['triage'] is 'billing', and hides 'triage'; give another alias",
        ),
        (HandoffRules({"Triage": "human"}), "hidden_agent", "agent_aliases['Triage'] is 'human', and hides 'triage'"),
        (HandoffRules(phase_map={"sales": "intake"}), "unknown_agent", "phase_map has the key 'sales'"),
        (
            HandoffRules(phase_map={"billing": "Intake"}),
            "unknown_phase",
            "phase_map['billing'] is 'Intake', a phase that no rule names; did you mean 'intake'?",
        ),
        (
            HandoffRules(allowed_transitions={"intake": {"closed"}}),
            "unknown_phase",
            "allowed_transitions['intake'] has 'closed', a phase that no rule names; there are: escalation, followup",
        ),
        (
            HandoffRules(allowed_transitions={"intak": {"intak", "handling"}}),
            "unknown_phase",
            "allowed_transitions has the key 'intak', a phase that no rule names",
        ),
    ],
)
def test_rules_that_do_not_fit_their_router(rules: HandoffRules, code: str, why: str) -> None:
    (fault,) = handoff_rule_findings(rules, ROUTER)
    assert (fault.level, fault.code) == ("error", code)
    assert why in fault.message
    with pytest.raises(RulesInvalid) as refused:
        check_handoff_rules(rules, ROUTER)
    assert str(refused.value) == fault.message


def test_an_alias_in_another_case_hides_no_name() -> None:
    """It leads to the agent that it would hide; that the target is spelt otherwise is the only fault."""
    codes = [each.code for each in handoff_rule_findings(HandoffRules({"BILLING": "Billing"}), ROUTER)]
    assert codes == ["unknown_agent"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (HandoffRules(), []),
        (HandoffRules({"money": "BILLING", "legal": "Legal", "boss": "human"}, {"human": "escalation"}), []),
        (HandoffRules({"LEGAL": "legal"}), []),
        (HandoffRules({"law": "lawyer"}), [("absent_agent", "agent_aliases['law']: 'lawyer' is not a participant")]),
        (HandoffRules({"Ann": "billing"}), [("hidden_agent", "agent_aliases['Ann'] is 'billing', and hides 'ann'")]),
        (HandoffRules({"crm": "human"}), [("hidden_agent", "agent_aliases['crm'] is 'human', and hides 'crm'")]),
        (HandoffRules(phase_map={"legal": "x"}), [("absent_agent", "'legal' is not a participant; did you mean 'Leg")]),
        (
            HandoffRules({"triage": "lawyer"}),
            [("absent_agent", "'lawyer' is not a participant"), ("hidden_agent", "and hides 'triage'")],
        ),
    ],
)
def test_rules_and_the_participants_of_a_channel(rules: HandoffRules, expected: list[tuple[str, str]]) -> None:
    findings = list(handoff_roster_findings(rules, ChannelRoster(KINDS)))
    assert [(each.level, each.code) for each in findings] == [("warning", code) for code, _ in expected]
    for finding, (_, why) in zip(findings, expected, strict=True):
        assert why in finding.message


def test_many_faults_are_counted() -> None:
    rules = HandoffRules(phase_map={f"a{number}": "intake" for number in range(8)})
    with pytest.raises(RulesInvalid, match=r"key 'a4', .*; and 3 more$"):
        check_handoff_rules(rules, ROUTER)
