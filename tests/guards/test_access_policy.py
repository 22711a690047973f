"""Access policies: allow-lists, rules on arguments, named policies, and what is recorded of a denial."""

from collections.abc import Callable

import pytest

from antiphon import RulesInvalid
from antiphon.core.codec import to_json
from antiphon.core.envelope import OPERATORS
from antiphon.core.guard import Deny
from antiphon.guards.access_policy import AccessPolicy
from antiphon.guards.argument_rules import ArgumentRule
from antiphon.guards.named_guards import guard_from_data, guard_to_data
from antiphon.guards.policies import PolicyDecision, PolicyRequest, ask_policy, find_policy, register_policy
from antiphon.testing import check_guard
from tests.guards.called_tools import ToolDesk

SEEN: list[PolicyRequest] = []


class Remembering:
    """Answers as it is made to, and keeps what it was asked."""

    def __init__(self, answer: Callable[[PolicyRequest], object]) -> None:
        self.answer = answer

    def decide(self, request: PolicyRequest) -> PolicyDecision:
        SEEN.append(request)
        return self.answer(request)


def failing(request: PolicyRequest) -> object:
    raise KeyError("the secret")


def greedy(request: PolicyRequest) -> object:
    request.args.clear()
    return PolicyDecision("allow")


for name, answer in {
    "access.allows": lambda request: PolicyDecision("allow"),
    "access.denies": lambda request: PolicyDecision("deny", "night", "come back tomorrow"),
    "access.asks": lambda request: PolicyDecision("ask", "large", approvers=("finance",)),
    "access.raises": failing,
    "access.gives_none": lambda request: None,
    "access.gives_true": lambda request: True,
    "access.gives_maybe": lambda request: PolicyDecision("maybe"),
    "access.allows_with_error": lambda request: PolicyDecision("allow", error="half of it failed"),
    "access.greedy": greedy,
}.items():
    register_policy(name, Remembering(answer))


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def policy(**fields: object) -> dict[str, object]:
    return {"name": "policy", **fields}


# Lists


@pytest.mark.parametrize(
    ("fields", "tool", "expected"),
    [
        ({}, "refund", "leaves"),
        ({"allow": {}}, "refund", "allow"),
        ({"allow": {"bob": ["refund"]}}, "refund", "leaves"),
        ({"allow": {"bob": ["refund"]}}, "Refund", "allow"),
        ({"allow": {"bob": ["refund"]}}, "refunds", "allow"),
        ({"allow": {"ben": ["refund"]}}, "refund", "allow"),
        ({"allow": {"*": ["refund"]}}, "refund", "leaves"),
        ({"allow": {"bob": ["*"]}}, "refund", "leaves"),
        ({"allow": {"support": ["refund"]}}, "refund", "allow"),
        ({"allow": {"support": ["refund"]}, "roles": {"bob": "support"}}, "refund", "leaves"),
        ({"allow": {"support": ["refund"]}, "roles": {"ben": "support"}}, "refund", "allow"),
        ({"allow": {"*": ["*"]}, "deny": {"bob": ["refund"]}}, "refund", "deny"),
        ({"allow": {"*": ["*"]}, "deny": {"support": ["*"]}, "roles": {"bob": "support"}}, "refund", "deny"),
        ({"deny": {"*": ["refund"]}}, "refund", "deny"),
        ({"deny": {"*": ["refund"]}}, "look", "leaves"),
        ({"deny": {"ben": ["*"]}}, "look", "leaves"),
        ({"deny": {"BOB": ["refund"]}}, "refund", "deny"),  # an agent is the same in upper and lower case
        ({"allow": {"Bob": ["refund"]}}, "refund", "leaves"),
        ({"deny": {"support": ["refund"]}, "roles": {"Bob": "support"}}, "refund", "deny"),
        ({"deny": {"Support": ["refund"]}, "roles": {"bob": "support"}}, "refund", "deny"),
        ({"rules": [{"tool": "refund", "arg": "x", "op": ">", "value": 1, "roles": ["BOB"]}]}, "refund", "refund.x"),
    ],
)
def test_lists(fields: dict[str, object], tool: str, expected: str) -> None:
    assert ToolDesk(policy(**fields)).leaves(tool, {}) == expected


def test_a_member_of_a_team_is_known_by_its_path() -> None:
    desk = ToolDesk(policy(allow={"bob": ["look"], "bob/refunds": ["refund"]}))
    assert desk.leaves("refund", {}, agent="bob/refunds") == "leaves"
    assert desk.leaves("look", {}, agent="bob/refunds") == "allow"
    assert desk.leaves("refund", {}) == "allow"


def test_models_and_steps_are_not_its_concern() -> None:
    desk = ToolDesk(policy(allow={}))
    assert [desk.leaves(name, None) for name in ("model", "summary", "step:ask")] == ["leaves"] * 3


# Rules on arguments: op, value, the arguments, and what follows

RULE_CASES: list[tuple[str, object, dict[str, object], str]] = [
    ("==", 1, {"arg": 1}, "hit"),
    ("==", 1, {"arg": 1.0}, "hit"),
    ("==", 1.0, {"arg": 1}, "hit"),
    ("==", 1, {"arg": True}, "leaves"),
    ("==", True, {"arg": 1}, "leaves"),
    ("==", True, {"arg": True}, "hit"),
    ("==", 0, {"arg": False}, "leaves"),
    ("==", 1, {"arg": "1"}, "leaves"),
    ("==", None, {"arg": None}, "hit"),
    ("==", None, {"arg": 0}, "leaves"),
    ("==", "EUR", {"arg": "EUR"}, "hit"),
    ("==", "EUR", {"arg": "eur"}, "leaves"),
    ("==", [1, True], {"arg": [1.0, True]}, "hit"),
    ("==", [1, True], {"arg": [1, 1]}, "leaves"),
    ("==", {"a": 1, "b": 2}, {"arg": {"b": 2, "a": 1}}, "hit"),
    ("==", {"a": 1}, {"arg": {"a": True}}, "leaves"),
    ("==", 2**53 + 1, {"arg": 2**53}, "leaves"),
    ("==", 1, {}, "denied"),
    ("!=", "EUR", {"arg": "EUR"}, "leaves"),
    ("!=", "EUR", {"arg": "USD"}, "hit"),
    ("!=", 1, {"arg": True}, "hit"),
    ("!=", 1, {"arg": 1.0}, "leaves"),
    ("!=", "EUR", {}, "denied"),
    (">", 10000, {"arg": 10000}, "leaves"),
    (">", 10000, {"arg": 10001}, "hit"),
    (">", 10000, {"arg": 10000.0}, "leaves"),
    (">", 10000, {"arg": 10000.5}, "denied"),
    (">", 10000, {"arg": "5"}, "denied"),
    (">", 10000, {"arg": True}, "denied"),
    (">", 10000, {"arg": None}, "denied"),
    (">", 10000, {"arg": [5]}, "denied"),
    (">", 10000, {}, "denied"),
    (">", 10000, {"Arg": 5}, "denied"),
    (">", 2**53, {"arg": 2**53 + 1}, "hit"),
    (">", 0.5, {"arg": 0.75}, "hit"),
    (">", 0.5, {"arg": 0}, "leaves"),
    (">=", 100, {"arg": 100}, "hit"),
    (">=", 100, {"arg": 99}, "leaves"),
    ("<", 0, {"arg": -1}, "hit"),
    ("<", 0, {"arg": 0}, "leaves"),
    ("<=", 0, {"arg": 0}, "hit"),
    ("<=", 0, {"arg": -0.0}, "hit"),
    ("in", ["a", 1], {"arg": 1.0}, "hit"),
    ("in", ["a", 1], {"arg": True}, "leaves"),
    ("in", [], {"arg": "a"}, "leaves"),
    ("in", ["a"], {}, "denied"),
    ("not in", ["DE", "FR"], {"arg": "DE"}, "leaves"),
    ("not in", ["DE", "FR"], {"arg": "US"}, "hit"),
    ("not in", ["DE", "FR"], {"arg": ["DE"]}, "hit"),
    ("not in", ["DE", "FR"], {}, "denied"),
]


@pytest.mark.parametrize(("op", "value", "args", "expected"), RULE_CASES)
def test_rules_on_arguments(op: str, value: object, args: dict[str, object], expected: str) -> None:
    rule = {"tool": "refund", "arg": "arg", "op": op, "value": value, "then": "ask"}
    told = ToolDesk(policy(rules=[rule])).leaves("refund", args)
    assert told == {"hit": "asks", "leaves": "leaves", "denied": "refund.arg"}[expected]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"order": {"total": 5}}, "leaves"),
        ({"order": {"total": 50}}, "refund.order.total"),
        ({"order": {}}, "refund.order.total"),
        ({"order": [5]}, "refund.order.total"),
        ({"order.total": 5}, "leaves"),
        ({"order.total": 5, "order": {"total": 5}}, "refund.order.total"),
    ],
)
def test_a_rule_may_look_inside_of_an_argument(args: dict[str, object], told: str) -> None:
    rule = {"tool": "refund", "arg": "order.total", "op": ">", "value": 10}
    assert ToolDesk(policy(rules=[rule])).leaves("refund", args) == told


def test_a_rule_concerns_its_tool_and_its_roles() -> None:
    rule = {"tool": "refund", "arg": "cents", "op": ">", "value": 100, "roles": ["support"], "name": "limit"}
    assert ToolDesk(policy(rules=[rule])).leaves("refund", {"cents": 500}) == "leaves"
    desk = ToolDesk(policy(rules=[rule], roles={"bob": "support"}))
    assert desk.leaves("refund", {"cents": 500}) == "limit"
    assert desk.leaves("pay", {"cents": 500}) == "leaves"


def test_what_denies_comes_before_what_asks() -> None:
    asking = {"tool": "refund", "arg": "cents", "op": ">", "value": 100, "then": "ask", "approvers": ["finance"]}
    denying = {"tool": "refund", "arg": "cents", "op": ">", "value": 1000, "name": "never"}
    desk = ToolDesk(policy(rules=[asking, denying]))
    assert [desk.leaves("refund", {"cents": cents}) for cents in (100, 101, 1001)] == ["leaves", "asks", "never"]
    [asked] = [each for each in desk.channel.log if each.event_type == "antiphon.approval.requested"]
    assert (asked.event_data["approvers"], asked.event_data["why"]) == (["finance"], "policy: refund.cents")


def test_a_call_that_a_person_has_approved_leaves_unless_it_is_denied() -> None:
    asking = {"tool": "refund", "arg": "cents", "op": ">", "value": 100, "then": "ask"}
    denying = {"tool": "refund", "arg": "cents", "op": ">", "value": 1000}
    desk = ToolDesk(policy(rules=[asking, denying]))
    assert desk.call("refund", {"cents": 500}, approved="dana") == ["call.started"]
    assert desk.call("refund", {"cents": 5000}, approved="dana") == ["call.started", "call.failed", "authz.denied"]


# Named policies


@pytest.mark.parametrize(
    ("name", "told", "error"),
    [
        ("access.allows", "leaves", None),
        ("access.greedy", "leaves", None),
        ("access.asks", "asks", None),
        ("access.denies", "night", ""),
        ("access.raises", "access.raises", "KeyError"),
        ("access.gives_none", "access.gives_none", "it returned NoneType, not a PolicyDecision"),
        ("access.gives_true", "access.gives_true", "it returned bool, not a PolicyDecision"),
        ("access.gives_maybe", "access.gives_maybe", "it gave no effect that there is"),
        ("access.allows_with_error", "access.allows_with_error", "half of it failed"),
    ],
)
def test_a_named_policy_decides(name: str, told: str, error: str | None) -> None:
    desk = ToolDesk(policy(policy=name))
    assert desk.leaves("refund", {"cents": 5}) == told
    if error is not None:
        assert desk.last.event_type == f"antiphon.authz.{'error' if error else 'denied'}"
        assert desk.last.event_data.get("error", "") == error


def test_a_policy_is_asked_about_what_the_lists_and_rules_allow() -> None:
    rule = {"tool": "refund", "arg": "cents", "op": ">", "value": 100}
    fields = policy(policy="access.allows", allow={"support": ["refund"]}, roles={"bob": "support"}, rules=[rule])
    desk = ToolDesk(fields)
    for tool, cents in (("look", 5), ("refund", 500), ("refund", 5)):
        desk.leaves(tool, {"cents": cents})
    assert [PolicyRequest("bob", "refund", {"cents": 5}, ("support",), "here")] == SEEN


def test_a_policy_that_is_no_longer_registered_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = AccessPolicy(policy="access.allows")
    monkeypatch.setattr("antiphon.guards.policies._policies", {})
    assert ask_policy(guard.policy, PolicyRequest("bob", "refund")).error == "RulesInvalid"


# What is recorded


def test_a_denial_is_recorded_without_arguments_for_operators() -> None:
    desk = ToolDesk(policy(rules=[{"tool": "refund", "arg": "cents", "op": ">", "value": 100}]))
    desk.call("refund", {"cents": 500, "card": "4111 1111"})
    failed, denied = desk.channel.log[-2:]
    assert failed.event_data["denied"] == "policy"
    assert failed.event_data["error"] == "refund: the policy does not allow this call (refund.cents)"
    assert denied.event_data == {
        "agent": "bob",
        "tool": "refund",
        "rule": "refund.cents",
        "turn": desk.claim.turn_id,
    }
    assert denied.audience == [OPERATORS]
    assert b"4111" not in to_json([failed, denied])


def test_the_text_of_an_error_is_recorded_nowhere() -> None:
    desk = ToolDesk(policy(policy="access.raises"))
    desk.call("refund", {"cents": 5})
    assert b"the secret" not in to_json(desk.channel.log)


def test_a_denial_by_another_guard_is_not_recorded_as_one_of_the_policy() -> None:
    gate = {"name": "gate", "gate": {"required": ["order"]}, "applies_to": "tool:refund"}
    desk = ToolDesk(policy(allow={"bob": ["refund"]}), gate)
    assert desk.call("refund", {}) == ["call.started", "flow.gate", "call.failed"]


def test_the_order_of_evaluation_is_policy_then_gate() -> None:
    gate = {"name": "gate", "gate": {"required": ["order"]}, "applies_to": "tool:refund"}
    desk = ToolDesk(gate, policy(allow={}))
    desk.call("refund", {})
    assert [each.event_data.get("denied") for each in desk.channel.log if "denied" in each.event_data] == ["policy"]


# The guard as data


def test_the_guard_is_data() -> None:
    rule = ArgumentRule("refund", "cents", ">", 100, then="ask", approvers=("finance",))
    guard = AccessPolicy(roles={"bob": "support"}, allow={"support": ["refund"]}, rules=[rule], policy="access.allows")
    data = guard_to_data(guard)
    assert guard_from_data(data) == guard
    assert data["rules"] == [
        {"tool": "refund", "arg": "cents", "op": ">", "value": 100, "then": "ask", "approvers": ["finance"]}
    ]


def test_the_guard_is_a_guard() -> None:
    check_guard(AccessPolicy(allow={"*": ["look"]}))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: AccessPolicy(allow={"bob": "refund"}), "allow of policy for 'bob' is 'refund'; give a list of names"),
        (lambda: AccessPolicy(deny={"bob": [""]}), "deny of policy for 'bob' is ['']; give a list of names of tools"),
        (lambda: AccessPolicy(deny="refund"), "deny of policy is 'refund'; give a dict by agent or role"),
        (lambda: AccessPolicy(roles=["bob"]), "roles of policy is ['bob']; give a dict by agent or role"),
        (lambda: AccessPolicy(roles={"bob": ""}), "the role of 'bob' in policy is ''; give its name"),
        (lambda: AccessPolicy(rules=[{"tool": "x"}]), "give ArgumentRule(tool, arg, op, value)"),
        (lambda: AccessPolicy(policy="access.unknown"), "no policy is called 'access.unknown'; register it with"),
        (lambda: ArgumentRule("", "cents", ">", 1), "a rule of policy is about tool '', arg 'cents'; name both"),
        (lambda: ArgumentRule("pay", "cents", "=", 1), "op of the rule 'pay.cents' is '='; give one of: ==, !="),
        (lambda: ArgumentRule("pay", "cents", ">", "9"), "value of the rule 'pay.cents' is '9'; > wants a number"),
        (lambda: ArgumentRule("pay", "cents", ">", True), "value of the rule 'pay.cents' is True; > wants a number"),
        (lambda: ArgumentRule("pay", "to", "in", "DE"), "value of the rule 'pay.to' is 'DE'; in wants a list"),
        (lambda: ArgumentRule("pay", "to", "==", {1}), "value of the rule 'pay.to' is {1}: set is no JSON value"),
        (lambda: ArgumentRule("pay", "to", "==", 1, approvers=("x",)), "denies, and has approvers; give then='ask'"),
        (lambda: guard_from_data(policy(rules=[{"tool": "pay"}])), "the guard 'policy'"),
        (lambda: register_policy("", Remembering(greedy)), "the name of a policy is ''"),
        (lambda: register_policy("access.class", Remembering), "is no policy; give an object with decide(request)"),
        (lambda: register_policy("access.allows", Remembering(greedy)), "a policy 'access.allows' is registered"),
    ],
)
def test_a_mistake_is_explained(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        make()
    assert complaint in str(refused.value)


def test_a_policy_answers_at_once() -> None:
    class Waiting:
        async def decide(self, request: PolicyRequest) -> PolicyDecision:
            return PolicyDecision("allow")

    with pytest.raises(RulesInvalid, match="is async; a policy answers at once"):
        register_policy("access.waiting", Waiting())


def test_the_same_policy_may_be_registered_again() -> None:
    known = find_policy("access.allows")
    assert register_policy("access.allows", known) is known


def test_a_denial_is_no_end_of_the_turn() -> None:
    desk = ToolDesk(policy(allow={}))
    desk.call("refund", {})
    assert "final" not in desk.channel.log[-2].event_data
    assert Deny("policy").final is False
