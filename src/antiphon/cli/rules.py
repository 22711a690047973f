"""What commands about graphs share: reading the file they are given, and running one that registers what is needed."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import click
import msgspec

from antiphon.core.conditions import FromSpeaker, leaves
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.events import Json
from antiphon.core.targets import named_in
from antiphon.core.words import shown, told
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.lawbook import laws_for
from antiphon.orchestration.workflow import Workflow

graph_argument = click.argument("path", metavar="GRAPH.json")
rules_option = click.option(
    "--rules",
    metavar="FILE.py",
    help="A Python file to run first: it registers the conditions, targets and adapters that are not built in.",
)


class GraphFile(msgspec.Struct, frozen=True):
    """A graph, and what else its file says of the channel it is for."""

    graph: TransitionGraph
    knobs: Json
    participants: tuple[str, ...]


def run_rules(path: str | None) -> None:
    """Run the file that registers what is not built in. It is code, and does what code does."""
    if path is None:
        return
    if not Path(path).is_file():
        raise click.UsageError(f"there is no file {path!r}")
    try:
        runpy.run_path(path, run_name="antiphon_rules")
    except Exception as error:
        raise UsageError(f"{path}: {told(error)}") from error


def read_graph(path: str) -> GraphFile:
    """The graph in a file: the dict form itself, or the knobs of a channel with it, and perhaps `participants`."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise RulesInvalid(f"{path} holds {shown(data)}; it should hold a graph as TransitionGraph.to_dict() gives it")
    knobs = data if "graph" in data else {"graph": data}
    try:
        graph = TransitionGraph.loads(knobs["graph"])
        laws_for(Workflow.name, {knob: value for knob, value in knobs.items() if knob != "participants"})
    except RulesInvalid as error:
        raise RulesInvalid(f"{path}: {error}") from error
    named = knobs.get("participants")
    people = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return GraphFile(graph, knobs, tuple(people) or everybody_in(graph))


def read_json(path: str) -> object:
    """What a JSON file holds; `-` is standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise click.UsageError(f"there is no file {path!r}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {told(error)}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RulesInvalid(f"{path} is no JSON: {error}") from error


def everybody_in(graph: TransitionGraph) -> tuple[str, ...]:
    """Everybody whom a graph names, the first speaker first."""
    speakers = [
        leaf.agent_id for rule in graph.transitions for leaf in leaves(rule.when) if isinstance(leaf, FromSpeaker)
    ]
    targets = [name for rule in graph.transitions for name in named_in(rule.then)]
    return tuple(dict.fromkeys([graph.initial_speaker, *speakers, *targets, *named_in(graph.default_target)]))
