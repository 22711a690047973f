"""Access policy: which agent may call which tool, with which arguments, before the call leaves.

Rule 1: what denies comes first: a denied tool, one that is not on the list, a rule on an argument, the named policy.
        Only then a person is asked.
Rule 2: an agent is known by its own name and by its role. A member of a team is known by its path, such as
        `desk/refunds`, never by the name of the team.
Rule 3: what is recorded of a denial names the agent, the tool and the rule, and holds no arguments.
Rule 4: an error of a policy denies, and is recorded as an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from antiphon.core.envelope import OPERATORS, Envelope, Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_STARTED
from antiphon.core.guard import ALLOW, Ask, Deny, Permission
from antiphon.core.protection_events import EV_POLICY_DENIED, EV_POLICY_FAILED, PolicyDenied
from antiphon.core.state import RelatedFact, State
from antiphon.core.text import describe
from antiphon.guards.argument_rules import ArgumentRule as ArgumentRule  # what its rules are made of
from antiphon.guards.policies import PolicyDecision, PolicyRequest, ask_policy, find_policy

POLICY_REASON = "policy"
ALL_AGENTS = "*"
ALL_TOOLS = "*"
ALLOWED = PolicyDecision("allow")
NOT_LISTED = "allow"
DENIED_TOOL = "deny"


class StartedToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool call that has started last: a denial is recorded right behind it."""

    turn: str = ""
    index: int = -1
    tool: str = ""
    agent: str = ""
    args: Json = msgspec.field(default_factory=dict)


class AccessPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tool calls leave only if the allow-lists, the rules on arguments and the named policy let them.

    It is about calls of tools, the ones that hand over and delegate included. Models are not its concern.
    """

    name: ClassVar[str] = "policy"
    memory: ClassVar[type] = StartedToolCall
    hears: ClassVar[frozenset[str]] = frozenset({EV_CALL_STARTED, EV_CALL_FAILED})
    roles: dict[str, str] = msgspec.field(default_factory=dict)
    """The role of each agent."""
    allow: dict[str, list[str]] | None = None
    """For agents, roles or `*`: the tools that they may call, or `*`. None if all may call all."""
    deny: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """For agents, roles or `*`: the tools that they may not call, or `*`."""
    rules: list[ArgumentRule] = msgspec.field(default_factory=list)
    policy: str = ""
    """The name of a policy that is asked about every call that the rest allows."""

    def __post_init__(self) -> None:
        for what, table in (("roles", self.roles), ("allow", self.allow or {}), ("deny", self.deny)):
            if not isinstance(table, dict):
                raise RulesInvalid(f"{what} of policy is {describe(table)}; give a dict by agent or role")
        for what, lists in (("allow", self.allow or {}), ("deny", self.deny)):
            for who, tools in lists.items():
                _check_tools(f"{what} of policy for {who!r}", tools)
        for agent, role in self.roles.items():
            if not isinstance(role, str) or not role:
                raise RulesInvalid(f"the role of {agent!r} in policy is {describe(role)}; give its name")
        strange = next((rule for rule in self.rules if not isinstance(rule, ArgumentRule)), None)
        if strange is not None:
            raise RulesInvalid(f"rules of policy holds {describe(strange)}; give ArgumentRule(tool, arg, op, value)")
        if self.policy:
            find_policy(self.policy)

    def evolve(self, memory: StartedToolCall, envelope: Envelope) -> StartedToolCall:
        call = _tool_call_of(envelope)
        return memory if call is None else call

    def permit(self, memory: StartedToolCall, state: State, draft: Envelope) -> Permission:
        call = _tool_call_of(draft)
        if call is None:
            return ALLOW
        decision = self.decide(call, state)
        if decision.effect == "allow":
            return ALLOW
        if decision.effect == "ask":
            return Ask(decision.detail or f"policy: {decision.rule}", decision.approvers)
        detail = decision.detail or f"the policy does not allow this call ({decision.rule})"
        return Deny("policy", f"{call.tool}: {detail}")

    def notice(self, memory: StartedToolCall, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        data = envelope.event_data
        if envelope.event_type != EV_CALL_FAILED or data.get("denied") != POLICY_REASON:
            return ()
        if (memory.turn, memory.index) != (data.get("turn"), data.get("index")):
            return ()
        decision = self.decide(memory, state)
        if decision.effect != "deny":  # another guard gave this reason
            return ()
        denied = PolicyDenied(memory.agent, memory.tool, decision.rule, memory.turn, memory.index, decision.error)
        return (RelatedFact(EV_POLICY_FAILED if denied.error else EV_POLICY_DENIED, data_of(denied), (OPERATORS,)),)

    def decide(self, call: StartedToolCall, state: State) -> PolicyDecision:
        """What follows for a call."""
        role = _role_of(call.agent, self.roles)
        names = (call.agent,) if role is None else (call.agent, role)
        if _names_tool(self.deny, names, call.tool):
            return PolicyDecision("deny", DENIED_TOOL)
        if self.allow is not None and not _names_tool(self.allow, names, call.tool):
            return PolicyDecision("deny", NOT_LISTED)
        asking = [decision for decision in self._hits(call, names) if decision.effect != "allow"]
        if self.policy and not any(decision.effect == "deny" for decision in asking):
            request = PolicyRequest(call.agent, call.tool, call.args, names[1:], state.channel_id)
            asking.append(ask_policy(self.policy, request))
        first = {decision.effect: decision for decision in reversed(asking)}
        return first.get("deny") or first.get("ask") or ALLOWED

    def _hits(self, call: StartedToolCall, names: Sequence[str]) -> list[PolicyDecision]:
        """What the rules say about the arguments."""
        return [_rule_decision(rule, call.args) for rule in self.rules if rule.concerns(call.tool, names)]


def _rule_decision(rule: ArgumentRule, args: Json) -> PolicyDecision:
    match rule.hit(args):
        case "":
            return ALLOWED
        case "holds":
            return PolicyDecision(rule.then, rule.title, approvers=rule.approvers)
        case "missing":
            return PolicyDecision("deny", rule.title, f"the argument {rule.arg!r} is missing; give it")
        case "not_comparable":
            wanted = "a whole number" if isinstance(rule.value, int) else "a number"
            return PolicyDecision("deny", rule.title, f"the argument {rule.arg!r} must be {wanted}")


def _role_of(agent: str, roles: Mapping[str, str]) -> str | None:
    """The role of an agent, whose name is the same in upper and lower case."""
    if not roles:
        return None
    named = agent.casefold()
    return roles.get(agent) or next((role for name, role in roles.items() if name.casefold() == named), None)


def _names_tool(lists: Mapping[str, Sequence[str]], names: Sequence[str], tool: str) -> bool:
    if not lists:
        return False
    named = {ALL_AGENTS, *(name.casefold() for name in names)}
    return any(who.casefold() in named and (tool in tools or ALL_TOOLS in tools) for who, tools in lists.items())


def _check_tools(what: str, tools: object) -> None:
    if not isinstance(tools, list) or not all(isinstance(tool, str) and tool for tool in tools):
        raise RulesInvalid(f"{what} is {describe(tools)}; give a list of names of tools")


def _tool_call_of(envelope: Envelope) -> StartedToolCall | None:
    """The call that is about to leave, if it is one of a tool: those of models and steps have no arguments."""
    data = envelope.event_data
    args, turn, index = data.get("args"), data.get("turn"), data.get("index")
    if envelope.event_type != EV_CALL_STARTED or not isinstance(args, dict):
        return None
    if not isinstance(turn, str) or not isinstance(index, int):
        return None
    speaker = turn.partition("/")[2]
    return StartedToolCall(turn, index, str(data.get("name", "")), str(data.get("agent") or speaker), args)
