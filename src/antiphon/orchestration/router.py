"""The conversation router: an ordered table of rules that says which agent answers a message, as a value.

Rule 1: the active agent keeps the conversation; then rules are read, lower priority numbers first, equal ones in the
        order of the list; then the default agent answers. One that cannot answer is passed over, with a recorded error.
Rule 2: a rule whose predicate raises does not match, and the choice says so.
Rule 3: a router is plain data. What `to_dict` gives, `loads` reads back, equal; predicates stand in it by name.
Rule 4: rules are sorted once, when the router is made; a message without predicates is routed without a copy.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.codec import copy_json
from antiphon.core.envelope import Envelope, Json, spelling_advice
from antiphon.core.errors import RulesInvalid
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.core.state import RuleError, State, detach_state
from antiphon.core.text import describe, describe_error
from antiphon.orchestration.conversation import FIRST_PHASE, ConversationState
from antiphon.orchestration.plain_rules import (
    check_agent_name,
    check_phase,
    check_phase_set,
    check_text_set,
    error_prefix,
    list_names,
    parse_rules,
    read_fields,
    read_list,
)
from antiphon.orchestration.predicates import PREDICATES, RoutingPredicate
from antiphon.orchestration.rendering import MERMAID_ENTITIES
from antiphon.orchestration.rule_table import MAX_REASON_CHARS, MAX_RULE_ERRORS

MAX_ROUTING_RULES = 1000
MAX_ROUTING_PRIORITY = 10**9
ROUTER_FIELDS = ("rules", "default_agent_id", "supervisor_id", "first_phase")
ROUTING_RULE_FIELDS = ("agent_id", "conditions", "priority")
SET_CONDITIONS = ("phases", "channel_types", "intents", "source_channel_ids")
AFFINITY, DEFAULT = "affinity", "default"


class RoutingConditions(msgspec.Struct, frozen=True):
    """What a rule asks of a message; all that is given must hold. None matches anything."""

    phases: Collection[str] | None = None
    """The conversation is in one of these phases."""
    channel_types: Collection[str] | None = None
    """The message came by one of these transports."""
    intents: Collection[str] | None = None
    """The message was sent with one of these intents."""
    source_channel_ids: Collection[str] | None = None
    """The message came from one of these sources, or was sent by a participant of this name."""
    custom: RoutingPredicate | str | None = None
    """A registered predicate, given itself or by its name. The name is kept."""

    def __post_init__(self) -> None:
        for field in SET_CONDITIONS:
            given = getattr(self, field)
            if given is not None:
                force_setattr(self, field, _check_condition_set(field, given))
        if self.custom is not None:
            with error_prefix("custom"):
                force_setattr(self, "custom", PREDICATES.name_of(self.custom))

    def matches(self, envelope: Envelope, state: State, conversation: ConversationState) -> bool:
        """Whether a message matches. What a predicate raises is raised here."""
        data = envelope.event_data
        sources = self.source_channel_ids
        return (
            (self.phases is None or conversation.phase in self.phases)
            and _is_among(data.get("transport"), self.channel_types)
            and _is_among(data.get("intent"), self.intents)
            and (_is_among(data.get("source"), sources) or _is_among(envelope.sender_id, sources))
            and (self.custom is None or _ask_predicate(str(self.custom), (envelope, state, conversation)))
        )

    def to_dict(self) -> Json:
        """The conditions that are given, as plain data."""
        sets: Json = {field: sorted(given) for field in SET_CONDITIONS if (given := getattr(self, field)) is not None}
        return sets if self.custom is None else {**sets, "custom": self.custom}

    def describe(self) -> str:
        """The conditions as a phrase: `phase is handling and intent is billing or refund`."""
        nouns = zip(SET_CONDITIONS, ("phase", "transport", "intent", "source"), strict=True)
        given = [(noun, getattr(self, field)) for field, noun in nouns]
        phrases = [f"{noun} is {' or '.join(sorted(wanted))}" for noun, wanted in given if wanted is not None]
        return " and ".join([*phrases, *([] if self.custom is None else [str(self.custom)])]) or "always"


ANY_MESSAGE = RoutingConditions()


class RoutingRule(msgspec.Struct, frozen=True):
    """A message that matches is answered by this agent."""

    agent_id: str
    conditions: RoutingConditions = ANY_MESSAGE
    priority: int = 0
    """Lower numbers are read first."""

    def __post_init__(self) -> None:
        force_setattr(self, "agent_id", check_agent_name(self.agent_id, "agent_id"))
        if not isinstance(self.conditions, RoutingConditions):
            raise RulesInvalid(f"conditions is {describe(self.conditions)}; give RoutingConditions(…), or leave it out")
        if type(self.priority) is not int or not -MAX_ROUTING_PRIORITY <= self.priority <= MAX_ROUTING_PRIORITY:
            raise RulesInvalid(f"priority is {describe(self.priority)}; give a whole number")


class RouteChoice(msgspec.Struct, frozen=True):
    """Which agent answers a message; None if there is none that can."""

    agent_id: str | None
    rule: int | None = None
    """The place in the list of the rule that says so; None if none does."""
    reason: str = ""
    """`affinity`, `rule: <its conditions>` or `default`; "" if there is no agent."""
    errors: tuple[RuleError, ...] = ()
    """The rules that were passed over although they should not have been. `rule` is None for the default agent."""


class RouterHook(msgspec.Struct, frozen=True):
    """A router as `hub.hook` takes it: it routes the routed channels that bring no router of their own."""

    router: ConversationRouter


@dataclass(frozen=True)
class ConversationRouter:
    """Which agent answers a message: the active one, else the first rule that matches says, else the default agent."""

    rules: Sequence[RoutingRule] = ()
    default_agent_id: str | None = None
    supervisor_id: str | None = None
    """The observer: it sees every message, and rules give it no turn."""
    first_phase: str = FIRST_PHASE
    """The phase in which a conversation begins."""
    _ranked: tuple[tuple[int, RoutingRule], ...] = dataclasses.field(init=False, repr=False, compare=False)
    asks_predicates: bool = dataclasses.field(init=False, repr=False, compare=False)
    """Whether code that is not ours is asked, which must not change what it is shown."""

    def __post_init__(self) -> None:
        rules = tuple(read_list(self.rules, "rules", MAX_ROUTING_RULES))
        strange = next((rule for rule in rules if not isinstance(rule, RoutingRule)), None)
        if strange is not None:
            raise RulesInvalid(f"rules holds {describe(strange)}; give a list of RoutingRule(…)")
        typed = cast(tuple[RoutingRule, ...], rules)
        for field in ("default_agent_id", "supervisor_id"):
            given = getattr(self, field)
            object.__setattr__(self, field, None if given is None else check_agent_name(given, field))
        object.__setattr__(self, "first_phase", check_phase(self.first_phase, "first_phase"))
        object.__setattr__(self, "rules", typed)
        object.__setattr__(self, "_ranked", tuple(sorted(enumerate(typed), key=lambda each: each[1].priority)))
        object.__setattr__(self, "asks_predicates", any(rule.conditions.custom is not None for rule in typed))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that rules or the default name, each once."""
        default = [] if self.default_agent_id is None else [self.default_agent_id]
        return tuple(dict.fromkeys([*(rule.agent_id for rule in self.rules), *default]))

    @property
    def participants(self) -> tuple[str, ...]:
        """The agents, and the observer."""
        observer = () if self.supervisor_id is None else (self.supervisor_id,)
        return tuple(dict.fromkeys([*self.agents, *observer]))

    @property
    def phases(self) -> frozenset[str]:
        """The phases that rules name, and the first phase if it is not the usual one."""
        named = frozenset(phase for rule in self.rules for phase in rule.conditions.phases or ())
        return named if self.first_phase == FIRST_PHASE else named | {self.first_phase}

    def select(
        self,
        envelope: Envelope,
        state: State,
        conversation: ConversationState,
        *,
        can_answer: Callable[[str], bool],
    ) -> RouteChoice:
        """The agent that answers this message."""
        active = conversation.active_agent_id
        if active is not None and can_answer(active):
            return RouteChoice(active, reason=AFFINITY)
        if self.asks_predicates:
            state = detach_state(state)
        errors: list[RuleError] = []
        for place, rule in self._ranked:
            try:
                if not rule.conditions.matches(envelope, state, conversation):
                    continue
            except KeyboardInterrupt:  # by the operator
                raise
            except BaseException as error:  # a predicate may raise anything, SystemExit too
                errors.append(RuleError(place, describe_error(error)))
                continue
            if can_answer(rule.agent_id):
                reason = f"rule: {rule.conditions.describe()}"[:MAX_REASON_CHARS]
                return RouteChoice(rule.agent_id, place, reason, tuple(errors[:MAX_RULE_ERRORS]))
            errors.append(_absence_error(place, "the rule", rule.agent_id))
        default = self.default_agent_id
        if default is not None and can_answer(default):
            return RouteChoice(default, reason=DEFAULT, errors=tuple(errors[:MAX_RULE_ERRORS]))
        # The default's error is always kept: it is why the message has no answer.
        last = [] if default is None else [_absence_error(None, "the default", default)]
        return RouteChoice(None, errors=(*errors[: MAX_RULE_ERRORS - len(last)], *last))

    def to_dict(self) -> Json:
        """The router as plain data, as the knob `router` of a channel takes it."""
        data: Json = {
            "rules": [
                {"agent_id": rule.agent_id, "conditions": rule.conditions.to_dict(), "priority": rule.priority}
                for rule in self.rules
            ],
            "default_agent_id": self.default_agent_id,
            "supervisor_id": self.supervisor_id,
        }
        return data if self.first_phase == FIRST_PHASE else {**data, "first_phase": self.first_phase}

    @classmethod
    def loads(cls, data: ConversationRouter | Mapping[str, object] | str | bytes) -> ConversationRouter:
        """The router of plain data, or of JSON; `RulesInvalid` if it is none. A router is returned as it is."""
        if isinstance(data, ConversationRouter):
            return data
        fields = read_fields(parse_rules(data, "the router"), "the router", ROUTER_FIELDS)
        rules = read_list(fields.get("rules", ()), "rules", MAX_ROUTING_RULES)
        with error_prefix("the router"):
            return cls(
                [_load_rule(rule, f"rule {place}") for place, rule in enumerate(rules)],
                cast("str | None", fields.get("default_agent_id")),
                cast("str | None", fields.get("supervisor_id")),
                cast(str, fields.get("first_phase", FIRST_PHASE)),
            )

    def check(self, roster: ChannelRoster) -> list[Finding]:
        """What is probably wrong with this router in a channel of these participants. All findings are warnings."""
        if not self.rules and self.default_agent_id is None:
            message = "the router has no rules and no default_agent_id; only an active agent would answer"
            nothing = [Finding("warning", "routes_nothing", message)]
        else:
            nothing = []
        return [*nothing, *_unfit_agents(self, roster), *_unreachable_rules(self._ranked, roster)]

    def summarize(self) -> list[str]:
        """The table as lines, in the order in which it is read."""
        lines = [f"{place}: {rule.conditions.describe()} → {rule.agent_id}" for place, rule in self._ranked]
        default = [] if self.default_agent_id is None else [f"otherwise → {self.default_agent_id}"]
        observer = [] if self.supervisor_id is None else [f"observer: {self.supervisor_id}"]
        return ["active agent → the same agent", *lines, *default, *observer]

    def to_mermaid(self) -> str:
        """The router as a Mermaid flowchart, made from the table."""
        nodes = {name: f"n{place}" for place, name in enumerate(self.participants, 1)}
        lines = ["flowchart TD", *(f'    {node}["{mermaid_label(name)}"]' for name, node in nodes.items())]
        lines += ["    message([message])", '    active["the active agent"]', "    message -->|active agent| active"]
        for place, rule in self._ranked:
            number = f"{place}" if rule.priority == 0 else f"{place} (priority {rule.priority})"
            label = mermaid_label(f"{number}. {rule.conditions.describe()}")
            lines.append(f'    message -->|"{label}"| {nodes[rule.agent_id]}')
        if self.default_agent_id is not None:
            lines.append(f"    message -->|otherwise| {nodes[self.default_agent_id]}")
        if self.supervisor_id is not None:
            lines.append(f"    message -.->|observer| {nodes[self.supervisor_id]}")
        return "\n".join(lines) + "\n"

    def as_hook(self) -> RouterHook:
        """The router for `hub.hook`."""
        return RouterHook(self)


def mermaid_label(text: str) -> str:
    """Text for a label of a Mermaid flowchart, on one line."""
    return " ".join(text.splitlines()).translate(MERMAID_ENTITIES)


def _check_condition_set(field: str, given: object) -> frozenset[str]:
    checked = check_phase_set(given, field) if field == "phases" else check_text_set(given, field)
    if not checked:
        raise RulesInvalid(f"{field} is empty, so that no message could match; name one at least, or give None for any")
    return checked


def _is_among(value: object, allowed: Collection[str] | None) -> bool:
    return allowed is None or (isinstance(value, str) and value in allowed)


def _ask_predicate(name: str, asked: tuple[Envelope, State, ConversationState]) -> bool:
    """What a predicate says. It is given copies, because what it changes must not reach the rules behind its own."""
    envelope, state, conversation = asked
    audience = None if envelope.audience is None else list(envelope.audience)
    answer: object = PREDICATES.find(name)(
        dataclasses.replace(envelope, audience=audience, event_data=copy_json(envelope.event_data)),
        state,
        msgspec.structs.replace(conversation, context=copy_json(conversation.context)),
    )
    if isinstance(answer, bool):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise TypeError(f"the predicate {name!r} returned {describe(answer)}; return True or False")


def _absence_error(place: int | None, what: str, agent: str) -> RuleError:
    return RuleError(place, f"{what} names {agent!r}, who is not an agent of this channel that can answer")


def _load_rule(data: object, where: str) -> RoutingRule:
    fields = read_fields(data, where, ROUTING_RULE_FIELDS, needed=("agent_id",))
    given = read_fields(fields.get("conditions", {}), f"conditions of {where}", (*SET_CONDITIONS, "custom"))
    with error_prefix(where):
        _check_custom_name(given.get("custom"))
        conditions = RoutingConditions(**given)  # type: ignore[arg-type]  # the constructor checks what it is given
        return RoutingRule(cast(str, fields["agent_id"]), conditions, cast(int, fields.get("priority", 0)))


def _check_custom_name(given: object) -> None:
    if given is not None and not isinstance(given, str):
        raise RulesInvalid(f"custom is {describe(given)}; give the name of a registered predicate")


def _unfit_agents(router: ConversationRouter, roster: ChannelRoster) -> Iterator[Finding]:
    """Names that stand for no agent of the channel, each once."""
    places: dict[str, list[str]] = {}
    for place, rule in enumerate(router.rules):
        places.setdefault(rule.agent_id, []).append(f"rule {place}")
    if router.default_agent_id is not None:
        places.setdefault(router.default_agent_id, []).append("default_agent_id")
    for name, where in places.items():
        kind, origin = roster.kinds.get(name), list_names(where)
        if kind is None:
            yield _absent_finding(origin, name, roster)
        elif kind != "agent":
            message = f"{origin}: {name!r} is of kind {kind}; only agents are given turns by rules"
            yield Finding("warning", "not_an_agent", message)
        elif name == router.supervisor_id:
            message = f"{origin}: {name!r} is the observer (supervisor_id), which is given no turn by rules"
            yield Finding("warning", "observer_routed", message)
    observer = router.supervisor_id
    if observer is None:
        return
    if observer not in roster.kinds:
        yield _absent_finding("supervisor_id", observer, roster)
    elif observer == next(iter(roster.kinds)) and roster.kinds[observer] != "agent":
        message = f"supervisor_id: {observer!r} opens the channel; no agent answers what the observer says"
        yield Finding("warning", "observer_routed", message)


def _absent_finding(origin: str, name: str, roster: ChannelRoster) -> Finding:
    advice = spelling_advice(name, roster.kinds) or f"there are: {list_names(list(roster.kinds))}"
    return Finding("warning", "absent_agent", f"{origin}: {name!r} is not a participant; {advice}")


def _unreachable_rules(ranked: Sequence[tuple[int, RoutingRule]], roster: ChannelRoster) -> Iterator[Finding]:
    """Rules that are read after one that matches everything, and whose agent can answer."""
    blocking: int | None = None
    for place, rule in ranked:
        if blocking is not None:
            message = (
                f"rule {place} ({rule.conditions.describe()}) is never read: rule {blocking} matches every message"
            )
            yield Finding("warning", "unreachable_rule", message)
        elif rule.conditions == ANY_MESSAGE and roster.kinds.get(rule.agent_id) == "agent":
            blocking = place
