"""Policies in Cedar, behind the policy protocol.

Rule 1: allowed is what Cedar allows without any error. A `forbid` that fails, over a missing attribute or an overflow,
        leaves an Allow with an error: that is denied, as is everything else that is no clean Allow.
Rule 2: policies are checked against their schema when they are loaded. What does not pass is not used.
Rule 3: a request that holds what Cedar cannot represent, or reads as something else, is denied before Cedar is asked.
Rule 4: names of agents, tools and channels are given as data, and never pasted into Cedar's language.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType

from antiphon.core.codec import digest_of, to_json
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.text import describe
from antiphon.guards.policies import PolicyDecision, PolicyRequest

MAX_CEDAR_LONG = 2**63 - 1
ESCAPE_KEYS = frozenset({"__entity", "__extn", "__expr"})
"""Keys by which Cedar's JSON marks references to entities: arguments of a model may not hold any."""
MAX_SHOWN_ERRORS = 3
DEFAULT_RULE = "default"
VERSION_CHARS = 12


class CedarPolicy:
    """Policies written in Cedar, with their schema.

    The principal is `Agent::"<name>"`, a member of `Role::"<role>"` for each of its roles; the action is
    `Action::"<tool>"`, the resource `Channel::"<id>"`, and the arguments are `context.args`. `entities` are what Cedar
    is to know beside that, as Cedar's JSON: for an agent that is listed there, its roles are those of the list.
    """

    def __init__(self, policies: str, *, schema: str | Json, entities: Sequence[Json] = ()) -> None:
        self._cedar = _load_cedarpy()
        self._entities = list(entities)
        self._listed = {_id_of(each) for each in self._entities}
        self.version = digest_of([policies, schema, self._entities])[:VERSION_CHARS]
        """Recorded with the verdicts of gates."""
        try:
            self._schema = self._parse_schema(schema)
            self._policies = self._cedar.PolicySet.from_str(policies)
            checked = self._cedar.validate_policies(policies, self._schema)
            self._cedar.Entities.from_json_str(to_json(self._entities).decode(), self._schema)
        except (ValueError, TypeError) as error:
            raise RulesInvalid(f"the Cedar policies cannot be used: {error}") from error
        if not checked.validation_passed:
            shown = "; ".join(str(each.error) for each in checked.errors[:MAX_SHOWN_ERRORS])
            raise RulesInvalid(f"the Cedar policies do not fit their schema: {shown}")
        if not len(self._policies):
            raise RulesInvalid("the Cedar policies are empty, and would deny everything; give a permit at least")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CedarPolicy) and other.version == self.version

    def __hash__(self) -> int:
        return hash(self.version)

    def decide(self, request: PolicyRequest) -> PolicyDecision:
        """What Cedar says about a call."""
        refused = next(_refused_values(request.args), None)
        if refused is not None:
            return PolicyDecision(
                "deny", refused, f"an argument is {refused}, which no policy can check", error=refused
            )
        asked: Json = {
            "principal": {"type": "Agent", "id": request.agent},
            "action": {"type": "Action", "id": request.action},
            "resource": {"type": "Channel", "id": request.channel_id},
            "context": {"args": request.args},
        }
        answer = self._cedar.is_authorized(asked, self._policies, self._entities_for(request), self._schema)
        rule = next((_rule_name(answer.diagnostics, each) for each in answer.diagnostics.reasons), DEFAULT_RULE)
        decision = answer.decision.name
        if answer.diagnostics.errors or decision not in ("Allow", "Deny"):  # whose texts may hold arguments
            return PolicyDecision("deny", rule, error="allow_with_errors" if decision == "Allow" else "no_decision")
        return PolicyDecision("allow" if decision == "Allow" else "deny", rule)

    def _parse_schema(self, schema: str | Json) -> object:
        parse = self._cedar.Schema
        return parse.from_str(schema) if isinstance(schema, str) else parse.from_json_str(to_json(schema).decode())

    def _entities_for(self, request: PolicyRequest) -> list[Json]:
        """What Cedar knows in this request: few entities, so that nothing is parsed for long."""
        if ("Agent", request.agent) in self._listed:
            return self._entities
        parents = [{"type": "Role", "id": role} for role in request.roles]
        agent: Json = {"uid": {"type": "Agent", "id": request.agent}, "attrs": {}, "parents": parents}
        return [*self._entities, agent]


def _load_cedarpy() -> ModuleType:
    try:
        return import_module("cedarpy")
    except ImportError as error:
        raise UsageError('policies in Cedar need cedarpy: pip install "antiphon[cedar]"') from error


def _id_of(entity: Json) -> tuple[str, str]:
    uid = entity.get("uid") if isinstance(entity, dict) else None
    if not isinstance(uid, dict) or not {"type", "id"} <= uid.keys():
        wanted = 'give {"uid": {"type": …, "id": …}, "attrs": {…}, "parents": […]}'
        raise RulesInvalid(f"entities of CedarPolicy holds {describe(entity)}; {wanted}")
    return str(uid["type"]), str(uid["id"])


def _rule_name(diagnostics: object, policy_id: str) -> str:
    """The `@id` of a policy, or else its place."""
    named: dict[str, str] = getattr(diagnostics, "id_annotations_by_reason", {})
    return named.get(policy_id) or policy_id


def _refused_values(value: object) -> Iterator[str]:
    """What Cedar cannot represent, or would read as something else, in words."""
    left = [value]
    while left:
        match left.pop():
            case None:
                yield "null"
            case float():
                yield "a float"
            case bool() | str():
                continue
            case int() as number if not -MAX_CEDAR_LONG - 1 <= number <= MAX_CEDAR_LONG:
                yield "an integer of more than 64 bits"
            case dict() as fields:
                if ESCAPE_KEYS & fields.keys():
                    yield "a reference to an entity"
                left.extend(fields.values())
            case list() as items:
                left.extend(items)
