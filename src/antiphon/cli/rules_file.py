"""The rules in a file: a graph, a pipeline or a router, as `to_dict()` gives it or as the knobs of a channel.

The fields of a JSON object decide which of them it is: a pipeline has `stages`, a router `rules`, a graph
`transitions`.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import cast

import click
import msgspec

from antiphon.core.conditions import FromSpeaker, leaf_conditions
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.targets import target_participants
from antiphon.core.text import describe, describe_error
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.orchestration.graph import GRAPH_FIELDS, TransitionGraph
from antiphon.orchestration.handoff_rules import HandoffRules
from antiphon.orchestration.pipeline import ConversationPipeline
from antiphon.orchestration.plain_rules import error_prefix
from antiphon.orchestration.router import ROUTER_FIELDS, ConversationRouter
from antiphon.orchestration.workflow import Workflow

PROGRAM_SUFFIX = ".py"
KINDS_OF_FILES = (
    "a graph has 'transitions', or stands in 'graph'; a router has 'rules', or stands in 'router'; "
    "a pipeline has 'stages'. Write one with json.dumps(pipeline.to_dict())"
)


class GraphFile(msgspec.Struct, frozen=True):
    """A graph, and the knobs and participants that its file has beside it."""

    graph: TransitionGraph
    knobs: Json
    participants: tuple[str, ...]
    people: frozenset[str] = frozenset()
    """The participants that are known to be no agents."""


class RoutingFile(msgspec.Struct, frozen=True):
    """A router or a pipeline, with the handoff rules and participants that its file has beside it."""

    routing: ConversationRouter | ConversationPipeline
    handoff: HandoffRules
    participants: tuple[str, ...]
    people: frozenset[str] = frozenset()


def read_rules_file(path: str) -> GraphFile | RoutingFile:
    """The graph, pipeline or router in a JSON file: the dict form itself, or the knobs of a channel with it."""
    data = read_json_file(path)
    if not isinstance(data, dict):
        raise RulesInvalid(f"{path} holds {describe(data)}; give a JSON object: {KINDS_OF_FILES}")
    if data.keys().isdisjoint({*GRAPH_FIELDS, "graph", *ROUTER_FIELDS, "router", "stages"}):
        raise RulesInvalid(f"{path} holds no graph, router or pipeline: {KINDS_OF_FILES}")
    with error_prefix(path):
        if "stages" in data:
            pipeline = ConversationPipeline.loads(data)
            return RoutingFile(pipeline, HandoffRules(), pipeline.participants)
        if "router" in data:
            return _load_routing(data)
        if "graph" in data or not data.keys().isdisjoint(GRAPH_FIELDS):
            return _load_graph(data)
        return _load_routing({"router": data})


def _load_graph(data: Json) -> GraphFile:
    knobs: Json = data if "graph" in data else {"graph": data}
    graph = TransitionGraph.loads(cast(Json, knobs["graph"]))
    ruleset_for(Workflow.name, {knob: value for knob, value in knobs.items() if knob != "participants"})
    return GraphFile(graph, knobs, _listed_participants(knobs) or graph_participants(graph))


def _load_routing(knobs: Json) -> RoutingFile:
    router = ConversationRouter.loads(cast(Json, knobs["router"]))
    handoff = HandoffRules.loads(cast("Json | None", knobs.get("handoff")))
    return RoutingFile(router, handoff, _listed_participants(knobs) or router.participants)


def _listed_participants(knobs: Json) -> tuple[str, ...]:
    named = knobs.get("participants")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def read_json_file(path: str) -> object:
    """What a JSON file holds; `-` is standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise click.UsageError(f"there is no file {path!r}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {describe_error(error)}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        advice = f"; a Python file is read as one if its name ends in {PROGRAM_SUFFIX}"
        raise RulesInvalid(f"{path} is no JSON: {error}{advice}") from error


def graph_participants(graph: TransitionGraph) -> tuple[str, ...]:
    """The participants that a graph names, the first speaker first."""
    leaves = [leaf for rule in graph.transitions for leaf in leaf_conditions(rule.when)]
    speakers = [leaf.agent_id for leaf in leaves if isinstance(leaf, FromSpeaker)]
    targets = [*(rule.then for rule in graph.transitions), graph.default_target]
    named = [name for target in targets for name in target_participants(target)]
    return tuple(dict.fromkeys([graph.initial_speaker, *speakers, *named]))


def run_rules_file(path: str | None) -> None:
    """Run the file that registers user-defined conditions, targets, predicates and adapters. It is executed as code."""
    if path is None:
        return
    if not Path(path).is_file():
        raise click.UsageError(f"there is no file {path!r}")
    try:
        runpy.run_path(path, run_name="antiphon_rules")
    except Exception as error:
        raise UsageError(f"{path}: {describe_error(error)}") from error
