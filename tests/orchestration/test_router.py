"""Routers: which agent answers a message, what a router refuses, and what a check of it finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from antiphon import Envelope, RulesInvalid, State
from antiphon.core.codec import check_json
from antiphon.core.ruleset import ChannelRoster
from antiphon.core.state import RuleError
from antiphon.orchestration.conversation import ConversationPhase, ConversationState
from antiphon.orchestration.predicates import PREDICATES, register_predicate
from antiphon.orchestration.router import (
    MAX_ROUTING_RULES,
    ConversationRouter,
    RouteChoice,
    RouterHook,
    RoutingConditions,
    RoutingRule,
)
from tests.support.envelopes import fact

HERE = State(channel_id="here", context_vars={"seen": ["a"]})
BEGUN = ConversationState()


def message(sender: str = "ann", **data: object) -> Envelope:
    return fact(sender, "ag2.msg.text", {"text": "hello", **data})


def agents(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def choice(
    router: ConversationRouter, said: Envelope, *names: str, conversation: ConversationState = BEGUN
) -> RouteChoice:
    return router.select(said, HERE, conversation, can_answer=agents(*names))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Predicates that a test registers are gone after it."""
    known = dict(PREDICATES._known)
    yield
    PREDICATES._known.clear()
    PREDICATES._known.update(known)


def vip(event: Envelope, context: State, state: ConversationState) -> bool:
    return event.event_data.get("text") == "gold"


@dataclass(frozen=True)
class Golden:
    """A predicate that is an object."""

    text: str

    def __call__(self, event: Envelope, context: State, state: ConversationState) -> bool:
        return event.event_data.get("text") == self.text


# Conditions


@pytest.mark.parametrize(
    ("conditions", "said", "expected"),
    [
        (RoutingConditions(), message(), True),
        (RoutingConditions(phases={"intake"}), message(), True),
        (RoutingConditions(phases=["handling", ConversationPhase.INTAKE]), message(), True),
        (RoutingConditions(phases={"handling"}), message(), False),
        (RoutingConditions(channel_types={"sms", "voice"}), message(transport="sms"), True),
        (RoutingConditions(channel_types={"sms"}), message(transport="email"), False),
        (RoutingConditions(channel_types={"sms"}), message(), False),
        (RoutingConditions(channel_types={"sms"}), message(transport=["sms"]), False),
        (RoutingConditions(intents=("billing",)), message(intent="billing"), True),
        (RoutingConditions(intents=("billing",)), message(intent={"billing": 1}), False),
        (RoutingConditions(source_channel_ids={"+4930"}), message(source="+4930"), True),
        (RoutingConditions(source_channel_ids={"ann"}), message(source="+4930"), True),
        (RoutingConditions(source_channel_ids={"bob"}), message(source="+4930"), False),
        (RoutingConditions(phases={"intake"}, intents={"billing"}), message(intent="billing"), True),
        (RoutingConditions(phases={"handling"}, intents={"billing"}), message(intent="billing"), False),
        (RoutingConditions(phases={"intake"}, intents={"billing"}), message(intent="refund"), False),
    ],
)
def test_all_conditions_must_hold(conditions: RoutingConditions, said: Envelope, expected: bool) -> None:
    assert conditions.matches(said, HERE, BEGUN) is expected


def test_a_predicate_is_named() -> None:
    register_predicate(vip)
    by_function, by_name = RoutingConditions(custom=vip), RoutingConditions(custom="vip")
    assert by_function == by_name
    assert by_function.custom == "vip"
    assert by_name.matches(message(text="gold"), HERE, BEGUN)
    assert not by_name.matches(message(text="tin"), HERE, BEGUN)
    assert not RoutingConditions(custom="vip", intents={"billing"}).matches(message(text="gold"), HERE, BEGUN)


def test_a_predicate_that_raises_raises() -> None:
    register_predicate(lambda event, context, state: 1 / 0 > 1, name="broken")
    with pytest.raises(ZeroDivisionError):
        RoutingConditions(custom="broken").matches(message(), HERE, BEGUN)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"phases": set()}, "phases is empty, so that no message could match; name one at least, or give None for any"),
        ({"intents": []}, "intents is empty"),
        ({"channel_types": "sms"}, "channel_types is 'sms'; give a set of texts"),
        ({"phases": "intake"}, "phases is 'intake'; give a set of phases"),
        ({"intents": {"a": 1}}, "intents is {'a': 1}; give a set"),
        ({"intents": {7}}, "an entry of intents is 7; give a text"),
        ({"source_channel_ids": {" "}}, "an entry of source_channel_ids is ' ', which is empty"),
        ({"custom": "unheard_of"}, "custom: no predicate is called 'unheard_of'; register it"),
        ({"custom": vip}, "is no registered predicate; put @register_predicate before its definition"),
        ({"custom": 7}, "custom: 7 is no registered predicate"),
    ],
)
def test_wrong_conditions_are_refused(options: dict[str, None], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        RoutingConditions(**options)
    assert why in str(refused.value)


# Predicates


def test_ways_to_register() -> None:
    @register_predicate
    def plain(event: Envelope, context: State, state: ConversationState) -> bool:
        return True

    @register_predicate("renamed")
    def other(event: Envelope, context: State, state: ConversationState) -> bool:
        return True

    assert register_predicate(vip, name="gold") is vip
    assert register_predicate(name="silver")(vip) is vip
    assert (PREDICATES.find("plain"), PREDICATES.find("renamed"), PREDICATES.find("gold")) == (plain, other, vip)
    assert PREDICATES.find("silver") is vip


def test_a_name_stays_with_its_function() -> None:
    def made(answer: bool) -> Callable[[Envelope, State, ConversationState], bool]:
        return lambda event, context, state: answer

    def again() -> Callable[[Envelope, State, ConversationState], bool]:
        return lambda event, context, state: True

    register_predicate(vip)
    register_predicate(vip)
    register_predicate(again(), name="again")
    register_predicate(again(), name="again")  # as a module that is loaded again does
    register_predicate(made(True), name="made")
    register_predicate(made(True), name="made")
    register_predicate(Golden("gold"), name="golden")
    register_predicate(Golden("gold"), name="golden")
    for name, another in [
        ("vip", lambda event, context, state: True),
        ("made", made(False)),
        ("golden", Golden("tin")),
    ]:
        with pytest.raises(RulesInvalid, match=f"a predicate '{name}' is registered already"):
            register_predicate(another, name=name)
    assert PREDICATES.find("vip") is vip


async def async_predicate(event: Envelope, context: State, state: ConversationState) -> bool:
    return True


class AsyncCall:
    async def __call__(self, event: Envelope, context: State, state: ConversationState) -> bool:
        return True


@pytest.mark.parametrize(
    ("predicate", "why"),
    [
        (async_predicate, "is async or a generator; return True or False at once"),
        (AsyncCall(), "is async or a generator"),
        (lambda event, context, state: True, "has no name of its own; give one"),
        (lambda event: True, "must take three arguments: (event, context, state)"),
        (State, "is no predicate; give a function"),
        (7, "7 is no predicate"),
    ],
)
def test_what_is_no_predicate_is_refused(predicate: object, why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        register_predicate(predicate)  # type: ignore[call-overload]  # that is the point
    assert why in str(refused.value)


@pytest.mark.parametrize("name", ["", " ", "n" * 65, 7, "\ud800"])
def test_a_wrong_name_of_a_predicate_is_refused(name: str) -> None:
    with pytest.raises(RulesInvalid, match="the name of a predicate is"):
        register_predicate(vip, name=name)


def test_a_predicate_is_named_once() -> None:
    with pytest.raises(RulesInvalid, match="the predicate is named twice, 'a' and 'b'; give one name"):
        register_predicate("a", name="b")


# Selection

BILLING = RoutingRule("billing", RoutingConditions(phases={"handling"}, intents={"billing"}))
SUPPORT = RoutingRule("support", RoutingConditions(channel_types={"sms"}), priority=10)
DESK = ConversationRouter([SUPPORT, BILLING], default_agent_id="triage", supervisor_id="watcher")
EVERYBODY = ("billing", "support", "triage")
HANDLING = BEGUN.transition(to_phase="handling")


def test_lower_priority_numbers_are_read_first() -> None:
    both = message(intent="billing", transport="sms")
    found = choice(DESK, both, *EVERYBODY, conversation=HANDLING)
    assert found == RouteChoice("billing", 1, "rule: phase is handling and intent is billing")
    assert choice(DESK, both, *EVERYBODY) == RouteChoice("support", 0, "rule: transport is sms")


def test_equal_priorities_are_read_in_order() -> None:
    router = ConversationRouter([RoutingRule("a"), RoutingRule("b"), RoutingRule("c", priority=-1)])
    assert choice(router, message(), "a", "b", "c") == RouteChoice("c", 2, "rule: always")
    assert choice(ConversationRouter(router.rules[:2]), message(), "a", "b").agent_id == "a"


def test_the_default_answers_what_no_rule_matches() -> None:
    assert choice(DESK, message(), *EVERYBODY) == RouteChoice("triage", reason="default")
    assert choice(ConversationRouter(), message(), *EVERYBODY) == RouteChoice(None)


def test_the_active_agent_keeps_the_conversation() -> None:
    active = HANDLING.transition(to_phase="handling", to_agent="triage")
    said = message(intent="billing")
    assert choice(DESK, said, *EVERYBODY, conversation=active) == RouteChoice("triage", reason="affinity")
    assert choice(DESK, said, "billing", conversation=active).agent_id == "billing"


def test_an_agent_that_cannot_answer_is_passed_over() -> None:
    found = choice(DESK, message(intent="billing", transport="sms"), "support", conversation=HANDLING)
    missing = "names 'billing', who is not an agent of this channel that can answer"
    assert found == RouteChoice("support", 0, "rule: transport is sms", (RuleError(1, f"the rule {missing}"),))


def test_a_default_that_cannot_answer_is_an_error() -> None:
    found = choice(DESK, message(), "billing")
    error = RuleError(None, "the default names 'triage', who is not an agent of this channel that can answer")
    assert found == RouteChoice(None, errors=(error,))


class Odd(BaseException):
    """Something that a predicate should not raise."""


@pytest.mark.parametrize(
    ("raised", "error"),
    [(ZeroDivisionError("no"), "ZeroDivisionError: no"), (SystemExit(3), "SystemExit: 3"), (Odd("x"), "Odd: x")],
)
def test_a_predicate_that_raises_does_not_match(raised: BaseException, error: str) -> None:
    def broken(event: Envelope, context: State, state: ConversationState) -> bool:
        raise raised

    register_predicate(broken)
    router = ConversationRouter([RoutingRule("billing", RoutingConditions(custom=broken)), RoutingRule("triage")])
    found = choice(router, message(), *EVERYBODY)
    assert found == RouteChoice("triage", 1, "rule: always", (RuleError(0, error),))


def test_the_operator_can_interrupt_a_predicate() -> None:
    def interrupted(event: Envelope, context: State, state: ConversationState) -> bool:
        raise KeyboardInterrupt

    register_predicate(interrupted)
    with pytest.raises(KeyboardInterrupt):
        choice(ConversationRouter([RoutingRule("a", RoutingConditions(custom=interrupted))]), message(), "a")


def test_a_predicate_answers_yes_or_no() -> None:
    async def asked() -> bool:
        return True

    register_predicate(lambda event, context, state: 1, name="one")  # type: ignore[arg-type, return-value]
    register_predicate(lambda event, context, state: asked(), name="later")  # type: ignore[arg-type, return-value]
    rules = [RoutingRule("a", RoutingConditions(custom=name)) for name in ("one", "later")]
    first, second = choice(ConversationRouter(rules), message(), "a").errors
    assert first.error == "TypeError: the predicate 'one' returned 1; return True or False"
    assert "TypeError: the predicate 'later' returned <coroutine" in second.error


def test_errors_are_bounded_and_the_default_is_among_them() -> None:
    router = ConversationRouter([RoutingRule(f"a{number}") for number in range(30)], default_agent_id="z")
    errors = choice(router, message()).errors
    assert [each.rule for each in errors] == [*range(9), None]
    assert len(choice(router, message(), "z").errors) == 10
    assert len(choice(router, message(), "a29").errors) == 10


def test_predicates_see_copies() -> None:
    def meddling(event: Envelope, context: State, state: ConversationState) -> bool:
        event.event_data["text"] = "changed"
        context.context_vars["seen"].append("b")  # type: ignore[attr-defined]  # a list
        state.context["vip"] = True
        return True

    register_predicate(meddling)
    said = message()
    assert choice(ConversationRouter([RoutingRule("a", RoutingConditions(custom=meddling))]), said, "a").rule == 0
    assert (said.event_data, HERE.context_vars, BEGUN.context) == ({"text": "hello"}, {"seen": ["a"]}, {})


def test_a_long_reason_is_cut() -> None:
    intents = {f"intent-{number}" for number in range(100)}
    router = ConversationRouter([RoutingRule("a", RoutingConditions(intents=intents))])
    assert len(choice(router, message(intent="intent-7"), "a").reason) == 200


# Values


def test_what_a_router_names() -> None:
    assert DESK.agents == ("support", "billing", "triage")
    assert DESK.participants == ("support", "billing", "triage", "watcher")
    assert DESK.phases == {"handling"}
    assert ConversationRouter(first_phase="greeting").phases == {"greeting"}
    assert DESK.as_hook() == RouterHook(DESK)


def test_a_router_reads_back() -> None:
    register_predicate(vip)
    conditions = RoutingConditions({"intake"}, {"sms"}, {"billing"}, {"+4930", "ann"}, vip)
    router = ConversationRouter([RoutingRule("billing", conditions, -3), SUPPORT], "triage", "watcher", "greeting")
    data = router.to_dict()
    check_json(data)
    assert data["rules"][0]["conditions"]["source_channel_ids"] == ["+4930", "ann"]  # type: ignore[index]  # a list
    for form in (data, json.dumps(data), json.dumps(data).encode(), router):
        assert ConversationRouter.loads(form) == router
    assert hash(ConversationRouter.loads(data)) == hash(router)
    assert "first_phase" not in DESK.to_dict()
    assert ConversationRouter.loads({}) == ConversationRouter()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "the router is no JSON"),
        ('{"rules": [], "rules": []}', "an object has the name 'rules' twice"),
        ([], "the router is []; give a dict with rules, default_agent_id"),
        ({"rulez": []}, "the router has no field 'rulez'; it has: rules, default_agent_id"),
        ({"rules": {}}, "rules is {}; give a list"),
        ({"rules": [{}]}, "rule 0 has no 'agent_id'; it needs: agent_id"),
        ({"rules": [{"agent_id": "a", "when": 1}]}, "rule 0 has no field 'when'"),
        ({"rules": [{"agent_id": "a"}, {"agent_id": "b c"}]}, "rule 1: agent_id: 'b c' is no name"),
        ({"rules": [{"agent_id": "a", "priority": "1"}]}, "rule 0: priority is '1'; give a whole number"),
        ({"rules": [{"agent_id": "a", "priority": True}]}, "rule 0: priority is True"),
        ({"rules": [{"agent_id": "a", "conditions": []}]}, "conditions of rule 0 is []; give a dict"),
        ({"rules": [{"agent_id": "a", "conditions": {"x": 1}}]}, "conditions of rule 0 has no field 'x'"),
        ({"rules": [{"agent_id": "a", "conditions": {"phases": []}}]}, "rule 0: phases is empty"),
        ({"rules": [{"agent_id": "a", "conditions": {"custom": "x"}}]}, "rule 0: custom: no predicate is called 'x'"),
        ({"rules": [{"agent_id": "a", "conditions": {"custom": []}}]}, "rule 0: custom is []; give the name"),
        ({"default_agent_id": "hub"}, "default_agent_id: the name 'hub' is taken"),
        ({"supervisor_id": 7}, "supervisor_id: 7 is no name"),
        ({"first_phase": ""}, "first_phase is '', which is empty"),
        ({"rules": [{"agent_id": "a"}] * (MAX_ROUTING_RULES + 1)}, "rules has 1001 entries; the limit is 1000"),
    ],
)
def test_what_is_no_router_is_refused(data: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        ConversationRouter.loads(data)
    assert why in str(refused.value)


def test_a_router_is_made_of_rules() -> None:
    with pytest.raises(RulesInvalid, match=r"rules holds \{'agent_id': 'a'\}; give a list of RoutingRule"):
        ConversationRouter([{"agent_id": "a"}])  # type: ignore[list-item]  # that is the point
    with pytest.raises(RulesInvalid, match=r"conditions is \{'phases': \['a'\]\}; give RoutingConditions"):
        RoutingRule("a", {"phases": ["a"]})  # type: ignore[arg-type]  # that is the point


# Findings


def found(router: ConversationRouter, **kinds: str) -> list[tuple[str, str]]:
    findings = router.check(ChannelRoster(kinds))
    assert {each.level for each in findings} <= {"warning"}
    return [(each.code, each.message) for each in findings]


def test_a_sound_router_has_no_findings() -> None:
    assert found(DESK, ann="human", billing="agent", support="agent", triage="agent", watcher="agent") == []
    assert found(DESK, ann="human", billing="agent", support="agent", triage="agent", watcher="human") == []


def test_absent_agents_are_found() -> None:
    assert found(DESK, ann="human", Support="agent", triage="agent") == [
        ("absent_agent", "rule 0: 'support' is not a participant; did you mean 'Support'?"),
        ("absent_agent", "rule 1: 'billing' is not a participant; there are: ann, Support, triage"),
        ("absent_agent", "supervisor_id: 'watcher' is not a participant; there are: ann, Support, triage"),
    ]


def test_what_is_no_agent_is_found() -> None:
    router = ConversationRouter([RoutingRule("ann", RoutingConditions(intents={"a"})), RoutingRule("ann")], "desk")
    assert found(router, ann="human", desk="service") == [
        ("not_an_agent", "rule 0, rule 1: 'ann' is of kind human; only agents are given turns by rules"),
        ("not_an_agent", "default_agent_id: 'desk' is of kind service; only agents are given turns by rules"),
    ]


def test_an_observer_that_is_routed_to_is_found() -> None:
    router = ConversationRouter(default_agent_id="watcher", supervisor_id="watcher")
    assert [code for code, _ in found(router, watcher="agent")] == ["observer_routed"]


def test_rules_behind_one_that_matches_everything_are_found() -> None:
    router = ConversationRouter([RoutingRule("a", priority=1), RoutingRule("b", priority=2), BILLING])
    kinds = {"a": "agent", "b": "agent", "billing": "agent"}
    assert found(router, **kinds) == [
        ("unreachable_rule", "rule 1 (always) is never read: rule 0 matches every message")
    ]
    # An agent that is not there is passed over, so that the rules behind are read.
    assert [code for code, _ in found(router, b="agent", billing="agent")] == ["absent_agent"]


def test_a_router_that_routes_nothing_is_found() -> None:
    assert [code for code, _ in found(ConversationRouter(), a="agent")] == ["routes_nothing"]


def test_a_router_in_text() -> None:
    assert DESK.summarize() == [
        "active agent → the same agent",
        "1: phase is handling and intent is billing → billing",
        "0: transport is sms → support",
        "otherwise → triage",
        "observer: watcher",
    ]
    assert DESK.to_mermaid().splitlines() == [
        "flowchart TD",
        '    n1["support"]',
        '    n2["billing"]',
        '    n3["triage"]',
        '    n4["watcher"]',
        "    message([message])",
        '    active["the active agent"]',
        "    message -->|active agent| active",
        '    message -->|"1. phase is handling and intent is billing"| n2',
        '    message -->|"0 (priority 10). transport is sms"| n1',
        "    message -->|otherwise| n3",
        "    message -.->|observer| n4",
    ]


def test_labels_cannot_break_a_drawing() -> None:
    router = ConversationRouter([RoutingRule("a", RoutingConditions(intents={'x"|\n]<b>'}))])
    assert '"0. intent is x#quot;#124; ]#lt;b#gt;"' in router.to_mermaid()
