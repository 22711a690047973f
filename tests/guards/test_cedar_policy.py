"""Policies in Cedar: what is allowed, the cases in which Cedar itself allows too much, and what is refused unasked."""

import sys

import pytest

from antiphon import RulesInvalid, UsageError
from antiphon.guards.policies import PolicyRequest, register_policy
from antiphon.runtime.cedar_policy import CedarPolicy
from tests.guards.called_tools import ToolDesk

SCHEMA = """
entity Role;
entity Agent in [Role];
entity Channel;
action refund appliesTo {
    principal: [Agent], resource: [Channel],
    context: { args: { cents: Long, order?: String, lines?: Set<Long>, to?: Agent } }
};
"""
POLICIES = """
@id("support_refunds")
permit(principal in Role::"support", action == Action::"refund", resource) when { context.args.cents <= 10000 };
@id("frozen_order")
forbid(principal, action, resource) when { context.args has order && context.args.order == "X" };
"""
OVERFLOWING = """
permit(principal, action, resource);
@id("too_much") forbid(principal, action, resource) when { context.args.cents * 1000 > 5000000 };
"""


def request(agent: str = "bob", action: str = "refund", **args: object) -> PolicyRequest:
    return PolicyRequest(agent, action, args, ("support",), "here")


@pytest.fixture(scope="module")
def cedar() -> CedarPolicy:
    return CedarPolicy(POLICIES, schema=SCHEMA)


@pytest.mark.parametrize(
    ("asked", "effect", "rule"),
    [
        (request(cents=10000), "allow", "support_refunds"),
        (request(cents=10001), "deny", "default"),
        (request(cents=5, order="7"), "allow", "support_refunds"),
        (request(cents=5, order="X"), "deny", "frozen_order"),
        (PolicyRequest("bob", "refund", {"cents": 5}, (), "here"), "deny", "default"),
        (PolicyRequest('b"; permit', "refund", {"cents": 5}, ('x" || "',), "here"), "deny", "default"),
    ],
)
def test_decisions(cedar: CedarPolicy, asked: PolicyRequest, effect: str, rule: str) -> None:
    decision = cedar.decide(asked)
    assert (decision.effect, decision.rule, decision.error) == (effect, rule, "")


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(cents="5"),
        request(cents=True),
        request(cents=5, strange=1),
        request(action="pay", cents=5),
    ],
    ids=lambda asked: f"{asked.action}-{asked.args}",
)
def test_what_does_not_fit_the_schema_is_denied_as_an_error(cedar: CedarPolicy, asked: PolicyRequest) -> None:
    decision = cedar.decide(asked)
    assert (decision.effect, decision.error) == ("deny", "no_decision")


def test_an_allow_with_an_error_is_a_denial() -> None:
    """Cedar leaves out a `forbid` that fails, and allows."""
    overflowing = CedarPolicy(OVERFLOWING, schema=SCHEMA)
    assert overflowing.decide(request(cents=5)).effect == "allow"
    assert overflowing.decide(request(cents=5001)).effect == "deny"
    decision = overflowing.decide(request(cents=2**62))
    assert (decision.effect, decision.error) == ("deny", "allow_with_errors")


def test_a_forbid_over_an_attribute_that_may_be_missing_is_not_loaded() -> None:
    forbid = (
        'permit(principal, action, resource);\nforbid(principal, action, resource) when { context.args.order == "X" };'
    )
    with pytest.raises(RulesInvalid, match=r"do not fit their schema.*optional attribute `args.order`"):
        CedarPolicy(forbid, schema=SCHEMA)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"cents": 5.0}, "a float"),
        ({"cents": None}, "null"),
        ({"cents": 2**63}, "an integer of more than 64 bits"),
        ({"cents": -(2**63) - 1}, "an integer of more than 64 bits"),
        ({"cents": 5, "lines": [1, 2.5]}, "a float"),
        ({"cents": 5, "to": {"__entity": {"type": "Agent", "id": "eve"}}}, "a reference to an entity"),
        ({"cents": 5, "to": {"__extn": {"fn": "ip", "arg": "::1"}}}, "a reference to an entity"),
    ],
)
def test_what_cedar_cannot_represent_is_denied_unasked(cedar: CedarPolicy, args: dict[str, object], why: str) -> None:
    decision = cedar.decide(request(**args))
    assert (decision.effect, decision.error) == ("deny", why)


def test_the_largest_integers_are_taken(cedar: CedarPolicy) -> None:
    assert cedar.decide(request(cents=-(2**63))).effect == "allow"
    assert cedar.decide(request(cents=2**63 - 1)).effect == "deny"


def test_roles_of_listed_agents_are_those_of_the_list() -> None:
    listed = {"uid": {"type": "Agent", "id": "bob"}, "attrs": {}, "parents": []}
    cedar = CedarPolicy(POLICIES, schema=SCHEMA, entities=[listed])
    assert cedar.decide(request("bob", cents=5)).effect == "deny"
    assert cedar.decide(request("ben", cents=5)).effect == "allow"


@pytest.mark.parametrize(
    ("policies", "schema", "entities", "complaint"),
    [
        ("permit(", SCHEMA, (), "cannot be used: unexpected end of input"),
        (POLICIES, "entity (", (), "cannot be used: error parsing schema"),
        (POLICIES, {"": 5}, (), "cannot be used"),
        ("", SCHEMA, (), "are empty, and would deny everything"),
        ('permit(principal == User::"x", action, resource);', SCHEMA, (), "do not fit their schema"),
        (POLICIES, SCHEMA, ({"type": "Agent"},), "entities of CedarPolicy holds {'type': 'Agent'}; give"),
        (POLICIES, SCHEMA, ({"uid": {"type": "User", "id": "x"}, "attrs": {}, "parents": []},), "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_loaded(
    policies: str, schema: object, entities: tuple[object, ...], complaint: str
) -> None:
    with pytest.raises(RulesInvalid) as refused:
        CedarPolicy(policies, schema=schema, entities=entities)
    assert complaint in str(refused.value)


def test_without_cedarpy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cedarpy", None)
    with pytest.raises(UsageError, match=r'pip install "antiphon\[cedar\]"'):
        CedarPolicy(POLICIES, schema=SCHEMA)


def test_policies_are_compared_by_what_they_say() -> None:
    register_policy("cedar.same", CedarPolicy(POLICIES, schema=SCHEMA))
    register_policy("cedar.same", CedarPolicy(POLICIES, schema=SCHEMA))
    with pytest.raises(RulesInvalid, match="is registered already"):
        register_policy("cedar.same", CedarPolicy(OVERFLOWING, schema=SCHEMA))


def test_in_a_channel(cedar: CedarPolicy) -> None:
    register_policy("cedar.channel", cedar)
    desk = ToolDesk({"name": "policy", "policy": "cedar.channel", "roles": {"bob": "support"}})
    assert desk.leaves("refund", {"cents": 10000}) == "leaves"
    assert desk.leaves("refund", {"cents": 10001}) == "default"
    assert desk.last.event_type == "antiphon.authz.denied"
    assert desk.leaves("refund", {"cents": "a lot"}) == "default"
    assert desk.last.event_type == "antiphon.authz.error"
    assert desk.last.event_data["error"] == "no_decision"
