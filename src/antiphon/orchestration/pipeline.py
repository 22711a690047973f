"""Pipelines: conversations that go from stage to stage, written down as a list of stages.

Rule 1: a pipeline is only another way to write a router, a phase map and allowed transitions; nothing else is run.
Rule 2: it is checked when it is made: a stage leads to stages that exist, and every stage can be reached.
Rule 3: a conversation begins in the phase of the first stage, and its agent answers where no rule matches.
Rule 4: an agent may have several stages. Its phase is that of the first one, unless a handoff names another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.codec import Malformed, check_text
from antiphon.core.envelope import Json, spelling_advice
from antiphon.core.errors import RulesInvalid
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.core.text import describe
from antiphon.orchestration.plain_rules import (
    check_agent_name,
    check_phase,
    check_phase_set,
    error_prefix,
    list_names,
    parse_rules,
    read_fields,
    read_list,
)
from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule, mermaid_label

MAX_STAGES = 1000
PIPELINE_FIELDS = ("stages", "supervisor_id")
STAGE_FIELDS = ("phase", "agent_id", "next", "can_return_to", "description")


class PipelineStage(msgspec.Struct, frozen=True):
    """One phase of a pipeline: the agent that answers in it, and the phases that may follow."""

    phase: str
    agent_id: str
    next: str | None = None
    """The phase after this one; None if it is the last."""
    can_return_to: Collection[str] = frozenset()
    """Other phases that may follow, such as an earlier one."""
    description: str = ""

    def __post_init__(self) -> None:
        phase = check_phase(self.phase, "phase")
        force_setattr(self, "phase", phase)
        with error_prefix(f"stage {phase!r}"):
            force_setattr(self, "agent_id", check_agent_name(self.agent_id, "agent_id"))
            if self.next is not None:
                force_setattr(self, "next", check_phase(self.next, "next"))
            force_setattr(self, "can_return_to", check_phase_set(self.can_return_to, "can_return_to"))
            _check_description(self.description)

    @property
    def followers(self) -> list[str]:
        """The phases that may follow, `next` first."""
        following = [] if self.next is None else [self.next]
        return list(dict.fromkeys([*following, *sorted(self.can_return_to)]))

    def to_dict(self) -> Json:
        """The stage as plain data."""
        data: Json = {
            "phase": self.phase,
            "agent_id": self.agent_id,
            "next": self.next,
            "can_return_to": sorted(self.can_return_to),
        }
        return {**data, "description": self.description} if self.description else data


@dataclass(frozen=True)
class ConversationPipeline:
    """The stages of a conversation, the first one first."""

    stages: Sequence[PipelineStage]
    supervisor_id: str | None = None
    """The observer: it sees every message, and rules give it no turn."""

    def __post_init__(self) -> None:
        stages = tuple(read_list(self.stages, "stages", MAX_STAGES))
        strange = next((stage for stage in stages if not isinstance(stage, PipelineStage)), None)
        if strange is not None:
            raise RulesInvalid(f"stages holds {describe(strange)}; give a list of PipelineStage(…)")
        if not stages:
            raise RulesInvalid("stages is empty; give at least one PipelineStage(…)")
        typed = cast(tuple[PipelineStage, ...], stages)
        _check_references(typed)
        _check_reachable(typed)
        object.__setattr__(self, "stages", typed)
        if self.supervisor_id is not None:
            object.__setattr__(self, "supervisor_id", check_agent_name(self.supervisor_id, "supervisor_id"))

    @property
    def first_phase(self) -> str:
        """The phase in which a conversation begins."""
        return self.stages[0].phase

    @property
    def participants(self) -> tuple[str, ...]:
        """The agents of the stages, each once, and the observer."""
        return self.to_router().participants

    def to_router(self) -> ConversationRouter:
        """A router with a rule for each stage, and the agent of the first stage as default."""
        rules = [RoutingRule(stage.agent_id, RoutingConditions(phases={stage.phase})) for stage in self.stages]
        return ConversationRouter(rules, self.stages[0].agent_id, self.supervisor_id, self.first_phase)

    def get_phase_map(self) -> dict[str, str]:
        """Agent to phase, for handoffs that name no phase. An agent with several stages has that of its first."""
        return {stage.agent_id: stage.phase for stage in reversed(self.stages)}

    def get_allowed_transitions(self) -> dict[str, set[str]]:
        """Phase to the phases that may follow it. A last stage without returns has none."""
        return {stage.phase: set(stage.followers) for stage in self.stages}

    def to_dict(self) -> Json:
        """The pipeline as plain data."""
        return {"stages": [stage.to_dict() for stage in self.stages], "supervisor_id": self.supervisor_id}

    @classmethod
    def loads(cls, data: ConversationPipeline | Mapping[str, object] | str | bytes) -> ConversationPipeline:
        """The pipeline of plain data, or of JSON; `RulesInvalid` if it is none. A pipeline is returned as it is."""
        if isinstance(data, ConversationPipeline):
            return data
        what = "the pipeline"
        fields = read_fields(parse_rules(data, what), what, PIPELINE_FIELDS, needed=("stages",))
        with error_prefix(what):
            stages = read_list(fields["stages"], "stages", MAX_STAGES)
            loaded = [_load_stage(stage, f"stage {place}") for place, stage in enumerate(stages)]
            return cls(loaded, cast("str | None", fields.get("supervisor_id")))

    def check(self, roster: ChannelRoster) -> list[Finding]:
        """What is probably wrong with this pipeline in a channel of these participants, as of its router."""
        return self.to_router().check(roster)

    def summarize(self) -> list[str]:
        """The stages as lines, in their order."""
        lines = [_describe_stage(stage) for stage in self.stages]
        return [*lines, *([] if self.supervisor_id is None else [f"observer: {self.supervisor_id}"])]

    def to_mermaid(self) -> str:
        """The pipeline as a Mermaid flowchart. Solid arrows lead to the next stage, dotted ones back."""
        nodes = {stage.phase: f"n{place}" for place, stage in enumerate(self.stages, 1)}
        lines = ["flowchart TD", *(f'    {nodes[each.phase]}["{_node_label(each)}"]' for each in self.stages)]
        if any(stage.next is None for stage in self.stages):
            lines.append('    finish((("end")))')
        lines.append(f"    start([start]) --> {nodes[self.first_phase]}")
        for stage in self.stages:
            node = nodes[stage.phase]
            lines.append(f"    {node} --> {'finish' if stage.next is None else nodes[stage.next]}")
            lines += [f"    {node} -.-> {nodes[back]}" for back in stage.followers if back != stage.next]
        if self.supervisor_id is not None:
            lines.append(f'    observer>"{mermaid_label(self.supervisor_id)} observes"]')
        return "\n".join(lines) + "\n"


def _load_stage(data: object, where: str) -> PipelineStage:
    fields = read_fields(data, where, STAGE_FIELDS, needed=("phase", "agent_id"))
    with error_prefix(where):
        return PipelineStage(**fields)  # type: ignore[arg-type]  # the constructor checks what it is given


def _check_description(given: object) -> None:
    if not isinstance(given, str):
        raise RulesInvalid(f"description is {describe(given)}; give a text")
    try:
        check_text(given)
    except Malformed as error:
        raise RulesInvalid(f"description is {describe(given)}: {error}") from error


def _check_references(stages: Sequence[PipelineStage]) -> None:
    """Refuse a phase with two stages, and a reference to a phase without one."""
    known: dict[str, PipelineStage] = {}
    for stage in stages:
        if stage.phase in known:
            raise RulesInvalid(f"two stages have the phase {stage.phase!r}; give every stage a phase of its own")
        known[stage.phase] = stage
    for stage in stages:
        for field, phase in _references(stage):
            if phase not in known:
                advice = spelling_advice(phase, known) or f"there are: {list_names(list(known))}"
                raise RulesInvalid(
                    f"stage {stage.phase!r}: {field} names the phase {phase!r}, which no stage has; {advice}"
                )


def _references(stage: PipelineStage) -> Iterator[tuple[str, str]]:
    if stage.next is not None:
        yield "next", stage.next
    for phase in sorted(stage.can_return_to):
        yield "can_return_to", phase


def _check_reachable(stages: Sequence[PipelineStage]) -> None:
    """Refuse a stage that no way from the first one leads to."""
    followers = {stage.phase: stage.followers for stage in stages}
    reached = {stages[0].phase: None}
    waiting = [stages[0].phase]
    while waiting:
        new = [phase for phase in followers[waiting.pop()] if phase not in reached]
        reached.update(dict.fromkeys(new))
        waiting += new
    lost = next((stage.phase for stage in stages if stage.phase not in reached), None)
    if lost is not None:
        raise RulesInvalid(
            f"stage {lost!r} cannot be reached from the first stage {stages[0].phase!r}; "
            f"name it in next or can_return_to of one of: {list_names(list(reached))}"
        )


def _describe_stage(stage: PipelineStage) -> str:
    returns = [phase for phase in stage.followers if phase != stage.next]
    back = f", or back to {' or '.join(returns)}" if returns else ""
    return f"{stage.phase}: {stage.agent_id} → {'end' if stage.next is None else stage.next}{back}"


def _node_label(stage: PipelineStage) -> str:
    lines = [stage.phase, stage.agent_id, *([stage.description] if stage.description else [])]
    return "<br/>".join(map(mermaid_label, lines))
