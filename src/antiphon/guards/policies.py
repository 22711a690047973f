"""Policies: code that says which actions are allowed, by name.

Rule 1: what is not a clear yes is a no. An exception denies, and so does an answer that is no `PolicyDecision`.
Rule 2: names are closed: an unknown one is an error that lists the known, and a name stays with its policy.
Rule 3: a policy answers at once, and the same to the same question. It is given copies.
Rule 4: the text of an exception goes nowhere: it may hold arguments. Its type is enough to find it.
"""

from __future__ import annotations

import inspect
from typing import Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from antiphon.core.codec import copy_json
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.registry import MAX_RULE_NAME_CHARS, accepts_arguments
from antiphon.core.text import describe

PolicyEffect = Literal["allow", "deny", "ask"]


class PolicyRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a policy is asked about: an agent that wants to call a tool, or a subject at a gate."""

    agent: str
    action: str
    """The name of the tool; of a gate, its name."""
    args: Json = msgspec.field(default_factory=dict)
    roles: tuple[str, ...] = ()
    """The roles that the agent has in the channel."""
    channel_id: str = ""


class PolicyDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a policy says."""

    effect: PolicyEffect
    """`ask` if a person must approve."""
    rule: str = ""
    """Which rule decided, in a stable word. It is recorded, so it holds no arguments."""
    detail: str = ""
    """For the model that made the call."""
    approvers: tuple[str, ...] = ()
    """The people and roles that may approve; empty for those that the channel allows."""
    error: str = ""
    """Why there is no decision, if there is none. The effect is `deny` then."""


@runtime_checkable
class Policy(Protocol):
    """Says whether an action is allowed. `register_policy` gives it a name that channels use.

    Its class may have a `version`, which is recorded with the verdicts of gates.
    """

    def decide(self, request: PolicyRequest) -> PolicyDecision: ...


P = TypeVar("P", bound=Policy)
EFFECTS = frozenset({"allow", "deny", "ask"})

_policies: dict[str, Policy] = {}


def register_policy(name: str, policy: P) -> P:
    """Make a policy available to channels and gates by this name. Another policy of the name is refused."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_RULE_NAME_CHARS:
        wanted = f"give a text of 1 to {MAX_RULE_NAME_CHARS} characters"
        raise RulesInvalid(f"the name of a policy is {describe(name)}; {wanted}")
    decide = getattr(policy, "decide", None)
    if isinstance(policy, type) or not callable(decide) or not accepts_arguments(decide, 1):
        raise RulesInvalid(f"{describe(policy)} is no policy; give an object with decide(request)")
    if inspect.iscoroutinefunction(decide):
        raise RulesInvalid(f"decide of the policy {name!r} is async; a policy answers at once")
    known = _policies.get(name)
    if known is not None and known is not policy and known != policy:
        raise RulesInvalid(f"a policy {name!r} is registered already: {describe(known)}; give another name")
    _policies[name] = policy
    return policy


def find_policy(name: object) -> Policy:
    """The policy of this name."""
    found = _policies.get(name) if isinstance(name, str) else None
    if found is None:
        known = f"there are: {', '.join(sorted(_policies))}" if _policies else "there are none yet"
        raise RulesInvalid(f"no policy is called {describe(name)}; register it with register_policy; {known}")
    return found


def ask_policy(name: str, request: PolicyRequest) -> PolicyDecision:
    """What the policy of this name says. Any error denies."""
    try:
        decision: object = find_policy(name).decide(msgspec.structs.replace(request, args=copy_json(request.args)))
    except Exception as error:  # a policy is code of a user
        return policy_failure(name, type(error).__name__)
    if not isinstance(decision, PolicyDecision):
        return policy_failure(name, f"it returned {type(decision).__name__}, not a PolicyDecision")
    if decision.effect not in EFFECTS:
        return policy_failure(name, "it gave no effect that there is")
    if decision.error and decision.effect != "deny":
        return policy_failure(name, decision.error)
    return decision


def policy_failure(rule: str, error: str) -> PolicyDecision:
    """The denial because there is no decision."""
    return PolicyDecision("deny", rule, "the policy could not be asked", error=error)
