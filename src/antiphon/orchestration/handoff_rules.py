"""Handoff rules: where an agent may hand a conversation over to, and in which phase it continues.

Rule 1: a target is an alias, a participant, or `human`, in any case, looked up in this order.
Rule 2: the phase is the one that was asked for, else the one of the agent, else unchanged.
Rule 3: a person can always be given the conversation, in any phase.
Rule 4: a refusal is a value, with a sentence for the model that asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.envelope import Json, match_name, spelling_advice
from antiphon.core.errors import RulesInvalid
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.core.text import describe
from antiphon.orchestration.conversation import ConversationPhase, ConversationState
from antiphon.orchestration.plain_rules import (
    MAX_PHASE_CHARS,
    check_agent_name,
    check_phase,
    check_phase_set,
    check_short_text,
    error_prefix,
    is_phase,
    list_names,
    parse_rules,
    read_fields,
)
from antiphon.orchestration.router import ConversationRouter

HUMAN = "human"
"""The target that stands for any person."""
TARGET_NOT_FOUND = "target_not_found"
TRANSITION_NOT_ALLOWED = "transition_not_allowed"
HANDOFF_FIELDS = ("agent_aliases", "phase_map", "allowed_transitions")
MAX_HANDOFF_ENTRIES = 1000
MAX_REPORTED_FAULTS = 5


class HandoffRules(msgspec.Struct, frozen=True):
    """Other names of agents, the phases that agents work in, and which phase may follow which."""

    agent_aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """Alias to agent, or to `human`."""
    phase_map: dict[str, str] = msgspec.field(default_factory=dict)
    """Agent, or `human`, to the phase in which it takes over if the handoff names none."""
    allowed_transitions: Mapping[str, Collection[str]] | None = None
    """Phase to the phases that may follow it; None if any may. A phase that is no key has no followers."""

    def __post_init__(self) -> None:
        force_setattr(self, "agent_aliases", _check_aliases(self.agent_aliases))
        phases = _check_mapping(self.phase_map, "phase_map")
        named = {_check_target(name, "a key of phase_map"): phase for name, phase in phases.items()}
        checked = {name: check_phase(phase, f"phase_map[{name!r}]") for name, phase in named.items()}
        force_setattr(self, "phase_map", checked)
        if self.allowed_transitions is not None:
            force_setattr(self, "allowed_transitions", _check_transitions(self.allowed_transitions))

    def to_dict(self) -> Json:
        """The rules as plain data, as the knob `handoff` of a channel takes it."""
        allowed = self.allowed_transitions
        return {
            "agent_aliases": dict(self.agent_aliases),
            "phase_map": dict(self.phase_map),
            "allowed_transitions": None if allowed is None else {key: sorted(each) for key, each in allowed.items()},
        }

    @classmethod
    def loads(cls, data: HandoffRules | Mapping[str, object] | str | bytes | None) -> HandoffRules:
        """The rules of plain data, or of JSON; `RulesInvalid` if it is none. None is no rules."""
        if isinstance(data, HandoffRules):
            return data
        fields = {} if data is None else read_fields(parse_rules(data, "handoff"), "handoff", HANDOFF_FIELDS)
        with error_prefix("handoff"):
            return cls(**fields)  # type: ignore[arg-type]  # the constructor checks what it is given


class ResolvedHandoff(msgspec.Struct, frozen=True):
    """A handoff that is possible: the agent or person that has the conversation next, and the phase."""

    agent: str | None
    """None if a person has it."""
    person: str
    """`human`, or the name of a person in the channel; "" if an agent has it."""
    phase: str


class RefusedHandoff(msgspec.Struct, frozen=True):
    """A handoff that is not possible: a stable reason, and a sentence for the model that asked for it."""

    reason: str
    """`target_not_found` or `transition_not_allowed`."""
    advice: str


def resolve_handoff(
    rules: HandoffRules,
    target: str,
    next_phase: str | None,
    *,
    kinds: Mapping[str, str],
    speaker: str,
    conversation: ConversationState,
) -> ResolvedHandoff | RefusedHandoff:
    """What a handoff to this target leads to. `kinds` are the participants, with their kinds."""
    given = target.strip() if isinstance(target, str) else ""
    alias = match_name(given, rules.agent_aliases)
    wanted = given if alias is None else rules.agent_aliases[alias]
    asked = next_phase.strip() if isinstance(next_phase, str) else ""
    if wanted.lower() == HUMAN:
        return ResolvedHandoff(None, HUMAN, _human_phase(rules, asked, conversation.phase))
    name = match_name(wanted, kinds)
    kind = None if name is None else kinds[name]
    if name is not None and kind == "human":
        return ResolvedHandoff(None, name, _human_phase(rules, asked, conversation.phase))
    if name is None or kind != "agent" or name == speaker:
        return _refuse_target(given, handoff_targets(rules, kinds, speaker), is_speaker=name == speaker)
    current = conversation.phase
    phase = _known_spelling(rules, asked, current) if asked else rules.phase_map.get(name, current)
    return _refuse_phase(rules, current, phase) or ResolvedHandoff(name, "", phase)


def handoff_targets(rules: HandoffRules, kinds: Mapping[str, str], speaker: str) -> list[str]:
    """What the speaker may name as a target: aliases, the other agents, and `human`."""
    others = {name for name, kind in kinds.items() if kind in ("agent", "human") and name != speaker} | {HUMAN}
    aliases = [alias for alias, name in rules.agent_aliases.items() if match_name(name, others) is not None]
    agents = [name for name, kind in kinds.items() if kind == "agent" and name != speaker]
    return list(dict.fromkeys([*(each for each in aliases if each.lower() != HUMAN), *agents, HUMAN]))


def handoff_rule_findings(rules: HandoffRules, router: ConversationRouter) -> list[Finding]:
    """Names in the rules that the router does not know. All findings are errors."""
    return [Finding("error", code, message) for code, message in _rule_faults(rules, router)]


def handoff_roster_findings(rules: HandoffRules, roster: ChannelRoster) -> Iterator[Finding]:
    """Names in the rules that do not fit the participants of a channel. All findings are warnings."""
    known = {*roster.kinds, HUMAN}
    for alias, name in rules.agent_aliases.items():
        if match_name(name, known) is None:
            yield Finding("warning", "absent_agent", f"agent_aliases[{alias!r}]: {_absence_advice(name, roster)}")
        hidden = match_name(alias, roster.kinds)
        if hidden not in (None, match_name(name, roster.kinds)):
            yield Finding("warning", "hidden_agent", _hidden_advice(alias, name, hidden))
    for name in rules.phase_map:
        if name not in known:
            yield Finding("warning", "absent_agent", f"phase_map: {_absence_advice(name, roster)}")


def check_handoff_rules(rules: HandoffRules, router: ConversationRouter) -> None:
    """Refuse, with `RulesInvalid`, rules with names that the router does not know."""
    faults = [found.message for found in handoff_rule_findings(rules, router)]
    if faults:
        further = f"; and {len(faults) - MAX_REPORTED_FAULTS} more" if len(faults) > MAX_REPORTED_FAULTS else ""
        raise RulesInvalid("; ".join(faults[:MAX_REPORTED_FAULTS]) + further)


def _human_phase(rules: HandoffRules, asked: str, current: str) -> str:
    """The phase while a person has the conversation. A person can always be given it, so a bad phase is no refusal."""
    return _known_spelling(rules, asked, current) if is_phase(asked) else rules.phase_map.get(HUMAN, current)


def _known_spelling(rules: HandoffRules, phase: str, current: str) -> str:
    """The phase as the rules spell it, if they name it; models write phases in any case."""
    allowed = rules.allowed_transitions or {}
    followers = (each for phases in allowed.values() for each in phases)
    named = [*allowed, *sorted(followers), *rules.phase_map.values(), *map(str, ConversationPhase)]
    known = dict.fromkeys([current, *named])
    return match_name(phase, known) or phase


def _refuse_target(target: str, known: list[str], *, is_speaker: bool) -> RefusedHandoff:
    if is_speaker:
        why = "You have the conversation already."
    else:
        why = f"There is no {describe(target)} to hand the conversation to."
    return RefusedHandoff(TARGET_NOT_FOUND, f"{why} Possible targets: {list_names(known)}.")


def _refuse_phase(rules: HandoffRules, current: str, phase: str) -> RefusedHandoff | None:
    if not is_phase(phase):
        advice = f"next_phase is {describe(phase)}; give a phase of 1 to {MAX_PHASE_CHARS} characters, or leave it out."
        return RefusedHandoff(TRANSITION_NOT_ALLOWED, advice)
    if rules.allowed_transitions is None or phase == current:
        return None
    followers = rules.allowed_transitions.get(current, ())
    if phase in followers:
        return None
    allowed = list_names(sorted({*followers, current}))
    advice = (
        f"The conversation cannot move from phase {describe(current)} to {describe(phase)}. "
        f"Allowed for next_phase: {allowed}. A handoff to 'human' is always possible."
    )
    return RefusedHandoff(TRANSITION_NOT_ALLOWED, advice)


def _check_mapping(given: object, field: str) -> Mapping[object, object]:
    if not isinstance(given, Mapping):
        raise RulesInvalid(f"{field} is {describe(given)}; give a dict")
    if len(given) > MAX_HANDOFF_ENTRIES:
        raise RulesInvalid(f"{field} has {len(given)} entries; the limit is {MAX_HANDOFF_ENTRIES}")
    return given


def _check_aliases(given: object) -> dict[str, str]:
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for key, target in _check_mapping(given, "agent_aliases").items():
        alias = check_short_text(key, "a key of agent_aliases", "a name for an agent", most=MAX_PHASE_CHARS).strip()
        found[alias] = _check_target(target, f"agent_aliases[{alias!r}]")
        if alias.lower() == HUMAN != found[alias]:
            raise RulesInvalid(f"agent_aliases[{alias!r}] is {found[alias]!r}; 'human' always stands for a person")
        other = spelled.setdefault(alias.lower(), alias)
        if found[other] != found[alias]:
            raise RulesInvalid(
                f"agent_aliases has {other!r} and {alias!r}, which are the same in another case; keep one"
            )
    return found


def _check_target(given: object, what: str) -> str:
    """The name of an agent, or `human`."""
    return HUMAN if isinstance(given, str) and given.lower() == HUMAN else check_agent_name(given, what)


def _check_transitions(given: object) -> dict[str, frozenset[str]]:
    phases = _check_mapping(given, "allowed_transitions")
    return {
        (key := check_phase(phase, "a key of allowed_transitions")): check_phase_set(
            followers, f"allowed_transitions[{key!r}]"
        )
        for phase, followers in phases.items()
    }


def _rule_faults(rules: HandoffRules, router: ConversationRouter) -> Iterator[tuple[str, str]]:
    agents = {*router.agents, HUMAN}
    for alias, name in rules.agent_aliases.items():
        if name not in agents:
            yield "unknown_agent", f"agent_aliases[{alias!r}] is {name!r}, {_agent_advice(name, agents)}"
        hidden = match_name(alias, agents)
        if hidden not in (None, match_name(name, agents)):
            yield "hidden_agent", _hidden_advice(alias, name, hidden)
    for name in rules.phase_map:
        if name not in agents:
            yield "unknown_agent", f"phase_map has the key {name!r}, {_agent_advice(name, agents)}"
    yield from _phase_faults(rules, {*router.phases, *map(str, ConversationPhase)})


def _phase_faults(rules: HandoffRules, usual: set[str]) -> Iterator[tuple[str, str]]:
    allowed = rules.allowed_transitions or {}
    known = usual | allowed.keys()
    for name, phase in rules.phase_map.items():
        if phase not in known:
            yield "unknown_phase", f"phase_map[{name!r}] is {phase!r}, {_phase_advice(phase, known)}"
    # A key that nothing leads to, not even another key, is most likely misspelt.
    entered = {each for key, followers in allowed.items() for each in followers if each != key}
    entered |= usual | set(rules.phase_map.values())
    for key, followers in allowed.items():
        if key not in entered:
            yield "unknown_phase", f"allowed_transitions has the key {key!r}, {_phase_advice(key, usual)}"
        for phase in sorted(set(followers) - known):
            yield "unknown_phase", f"allowed_transitions[{key!r}] has {phase!r}, {_phase_advice(phase, known)}"


def _hidden_advice(alias: str, name: str, hidden: str | None) -> str:
    return f"agent_aliases[{alias!r}] is {name!r}, and hides {hidden!r}; give another alias"


def _absence_advice(name: str, roster: ChannelRoster) -> str:
    advice = spelling_advice(name, roster.kinds) or f"there are: {list_names(list(roster.kinds))}"
    return f"{name!r} is not a participant; {advice}"


def _agent_advice(name: str, agents: Collection[str]) -> str:
    advice = spelling_advice(name, agents) or f"there are: {list_names(sorted(agents))}"
    return f"which is neither an agent that the router names nor 'human'; {advice}"


def _phase_advice(phase: str, known: Collection[str]) -> str:
    return f"a phase that no rule names; {spelling_advice(phase, known) or f'there are: {list_names(sorted(known))}'}"
