"""`antiphon check` finds mistakes in rules, `antiphon draw` draws them, and `antiphon replay` decides a log again."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import cast

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.envelope_text import describe_envelope
from antiphon.cli.log_command import follow_log
from antiphon.cli.store_options import json_option, open_store_to_read, reading_options
from antiphon.cli.table_layout import Cell, Column, pluralize
from antiphon.core.conditions import FromSpeaker, leaf_conditions
from antiphon.core.envelope import HUB, Envelope, Json, is_tombstone
from antiphon.core.errors import LogCorrupt, RulesInvalid, UnknownChannel, UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelCreated
from antiphon.core.replaying import ReplayReport, replay_decisions
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.core.targets import target_participants
from antiphon.core.text import describe, describe_error
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.handoff_rules import HandoffRules, handoff_rule_findings
from antiphon.orchestration.pipeline import ConversationPipeline
from antiphon.orchestration.plain_rules import error_prefix
from antiphon.orchestration.rendering import summarize_graph
from antiphon.orchestration.router import ConversationRouter
from antiphon.orchestration.workflow import Workflow

CHECK_COLUMNS = [Column("LEVEL"), Column("CODE"), Column("WHAT")]
FINDING_STYLES = {"error": "bold red", "warning": "yellow"}

file_argument = click.argument("path", metavar="FILE.json")
rules_option = click.option(
    "--rules",
    metavar="FILE.py",
    help="A Python file to run first: it registers conditions, targets, predicates and adapters that are not built in.",
)


class GraphFile(msgspec.Struct, frozen=True):
    """A graph, and the knobs and participants that its file has beside it."""

    graph: TransitionGraph
    knobs: Json
    participants: tuple[str, ...]


class RoutingFile(msgspec.Struct, frozen=True):
    """A router or a pipeline, with the handoff rules and participants that its file has beside it."""

    routing: ConversationRouter | ConversationPipeline
    handoff: HandoffRules
    participants: tuple[str, ...]


class GraphCheckReport(msgspec.Struct, frozen=True):
    """The findings of a check; `ok` if none is an error."""

    ok: bool
    participants: tuple[str, ...]
    findings: list[Finding]


@click.command()
@file_argument
@click.option(
    "--participant",
    "participants",
    metavar="NAME",
    multiple=True,
    help="Who takes part, the creator first; once for each. Without it, everybody the rules name.",
)
@rules_option
@json_option('One JSON document: {"ok": …, "participants": […], "findings": […]}.')
def check_command(*, path: str, participants: tuple[str, ...], rules: str | None, as_json: bool) -> None:
    """Check the graph, pipeline or router in FILE.json, without running anything.

    The file holds what to_dict() of a TransitionGraph, ConversationPipeline or ConversationRouter gives, or the knobs
    of a channel: {"graph": …, "writers": …, "tier": …} or {"router": …, "handoff": …}, and perhaps "participants".
    Errors would keep a channel from being opened and make the exit code 1; warnings would be recorded on it: rules that
    can never fire, participants who never get the turn, loops that only a cap ends, agents that do not take part.

    \b
    antiphon check triage.json --participant user --participant triage --participant oncall
    """
    run_rules_file(rules)
    report = _check_rules_file(path, participants)
    if as_json:
        write_json(report)
    else:
        _print_check(select_output(), path, report)
    if not report.ok:
        raise SystemExit(1)


def _check_rules_file(path: str, participants: tuple[str, ...]) -> GraphCheckReport:
    try:
        found = read_rules_file(path)
    except RulesInvalid as error:
        return GraphCheckReport(False, participants, [Finding("error", "invalid", str(error))])
    people = participants or found.participants
    findings = _graph_findings(found, people) if isinstance(found, GraphFile) else _routing_findings(found, people)
    return GraphCheckReport(all(each.level != "error" for each in findings), people, findings)


def _graph_findings(found: GraphFile, people: tuple[str, ...]) -> list[Finding]:
    tier = found.knobs.get("tier")
    return found.graph.check(
        list(people), writers=_writers_knob(found.knobs), tier=tier if isinstance(tier, str) else None
    )


def _routing_findings(found: RoutingFile, people: tuple[str, ...]) -> list[Finding]:
    routing = found.routing
    router = routing.to_router() if isinstance(routing, ConversationPipeline) else routing
    return [
        *handoff_rule_findings(found.handoff, router),
        *routing.check(ChannelRoster(dict.fromkeys(people, "agent"))),
    ]


def _writers_knob(knobs: Json) -> dict[str, list[str]] | None:
    """The `writers` of the file; None if it has only a graph, which does not define them."""
    writers = knobs.get("writers")
    if isinstance(writers, dict):
        return {str(key): list(names) if isinstance(names, list) else [] for key, names in writers.items()}
    return {} if knobs.get("tier") == "regulated" else None


def _print_check(out: CommandOutput, path: str, verdict: GraphCheckReport) -> None:
    if not verdict.findings:
        out.line(Cell("ok", "bold green"), f"  {path}: nothing is wrong among {', '.join(verdict.participants)}")
        return
    errors = sum(each.level == "error" for each in verdict.findings)
    warnings = len(verdict.findings) - errors
    style = "bold red" if errors else "yellow"
    out.line(Cell(f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}", style), f"  {path}")
    rows = [(Cell(each.level, FINDING_STYLES[each.level]), each.code, each.message) for each in verdict.findings]
    out.table(CHECK_COLUMNS, rows)


@click.command()
@file_argument
@rules_option
@click.option("--table", is_flag=True, help="Print the rules as lines instead, in the order in which they are read.")
@json_option('One JSON document: {"mermaid": "…", "table": […]}.')
def draw_command(*, path: str, rules: str | None, table: bool, as_json: bool) -> None:
    """Draw the graph, pipeline or router in FILE.json as a Mermaid flowchart.

    In a graph, rules that need a certain speaker are arrows from that speaker; in a pipeline, dotted arrows lead back.
    Numbers are the places of the rules, from 0.

    \b
    antiphon draw triage.json > triage.mmd
    """
    run_rules_file(rules)
    found = read_rules_file(path)
    if isinstance(found, GraphFile):
        drawing, lines = found.graph.to_mermaid(), summarize_graph(found.graph)
    else:
        drawing, lines = found.routing.to_mermaid(), found.routing.summarize()
    if as_json:
        write_json({"mermaid": drawing, "table": lines})
    elif table:
        for line in lines:
            select_output().line(line)
    else:
        click.echo(drawing, nl=False)


@click.command()
@click.argument("channel", metavar="CHANNEL")
@reading_options
@click.option("--graph", metavar="GRAPH.json", help="Decide with this graph instead of the one the channel has.")
@rules_option
@json_option('One JSON document: {"same": …, "decisions": …, "difference": …}.')
def replay_command(
    *, channel: str, store: str, tenant: str, graph: str | None, rules: str | None, as_json: bool
) -> None:
    """Decide the log of CHANNEL again with today's rules, and show the first difference.

    What was said stays as it is; only who got the turn for it, or why the channel ended, is asked again. Nothing is
    recorded and nothing is run. A difference makes the exit code 1.

    \b
    antiphon replay 0198c1d2-… team.db --graph triage.json
    """
    run_rules_file(rules)
    found = asyncio.run(_replay_channel(store, tenant, channel=channel, graph=graph))
    if as_json:
        write_json({"same": found.difference is None, **msgspec.structs.asdict(found)})
    else:
        _print_replay(select_output(), found)
    if found.difference is not None:
        raise SystemExit(1)


async def _replay_channel(url: str, tenant: str, *, channel: str, graph: str | None) -> ReplayReport:
    async with open_store_to_read(url, tenant) as store:
        log = [envelope async for envelope in follow_log(store, channel)]
    if not log:
        raise UnknownChannel(channel)
    if is_tombstone(log[0]):
        raise UsageError(f"channel {channel!r} was erased; there is nothing left to replay")
    created = event_of(log[0])
    if not isinstance(created, ChannelCreated):
        raise LogCorrupt(channel, 1, "the log does not begin with the channel's creation")
    return replay_decisions(log, ruleset_for(created.type, _replay_knobs(created, graph)))


def _replay_knobs(created: ChannelCreated, graph: str | None) -> Json:
    if graph is None:
        return created.knobs
    if "graph" not in created.knobs:
        raise UsageError(f"a channel of type {created.type!r} has no graph that another could replace")
    return {**created.knobs, "graph": read_graph_file(graph).graph.to_dict()}


def _print_replay(out: CommandOutput, report: ReplayReport) -> None:
    asked = pluralize(report.decisions, "decision")
    different = report.difference
    if different is None:
        out.line(Cell("same", "bold green"), f"  {asked} made again, each as it was recorded")
        return
    where = f"  after sequence {different.sequence} by {different.speaker}; {asked} made again until then"
    out.line(Cell("different", "bold red"), where)
    out.line("  recorded: ", _describe_decisions(different.recorded))
    out.line("  now:      ", _describe_decisions(different.now))


def _describe_decisions(decisions: tuple[tuple[str, Json], ...]) -> str:
    said = (describe_envelope(Envelope(sender_id=HUB, event_type=kind, event_data=data)) for kind, data in decisions)
    return "; ".join(said) or "nothing follows"


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


def read_rules_file(path: str) -> GraphFile | RoutingFile:
    """The graph, pipeline or router in a file: the dict form itself, or the knobs of a channel with it."""
    data = read_json_file(path)
    if not isinstance(data, dict):
        wanted = "a graph as TransitionGraph.to_dict() gives it, or a pipeline or router as theirs does"
        raise RulesInvalid(f"{path} holds {describe(data)}; it should hold {wanted}")
    with error_prefix(path):
        if "stages" in data:
            pipeline = ConversationPipeline.loads(data)
            return RoutingFile(pipeline, HandoffRules(), pipeline.participants)
        if "rules" in data or "router" in data:
            return _load_routing(data if "router" in data else {"router": data})
        return _load_graph(data)


def read_graph_file(path: str) -> GraphFile:
    """The graph in a file: the dict form itself, or the knobs of a channel with it, and perhaps `participants`."""
    found = read_rules_file(path)
    if not isinstance(found, GraphFile):
        raise RulesInvalid(f"{path} holds a router or a pipeline; give a graph")
    return found


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
        raise RulesInvalid(f"{path} is no JSON: {error}") from error


def graph_participants(graph: TransitionGraph) -> tuple[str, ...]:
    """The participants that a graph names, the first speaker first."""
    leaves = [leaf for rule in graph.transitions for leaf in leaf_conditions(rule.when)]
    speakers = [leaf.agent_id for leaf in leaves if isinstance(leaf, FromSpeaker)]
    targets = [*(rule.then for rule in graph.transitions), graph.default_target]
    named = [name for target in targets for name in target_participants(target)]
    return tuple(dict.fromkeys([graph.initial_speaker, *speakers, *named]))
