"""`antiphon check` finds mistakes in rules, `antiphon draw` draws them, and `antiphon replay` decides a log again."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.log_command import follow_log
from antiphon.cli.rules_file import PROGRAM_SUFFIX, GraphFile, RoutingFile, read_rules_file, run_rules_file
from antiphon.cli.store_options import json_option, open_store_to_read, reading_options
from antiphon.cli.table_layout import Cell, Column, pluralize
from antiphon.core.envelope import HUB, Envelope, Json, is_tombstone
from antiphon.core.errors import LogCorrupt, RulesInvalid, UnknownChannel, UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelCreated
from antiphon.core.replaying import ReplayReport, replay_decisions
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.orchestration.handoff_rules import handoff_rule_findings
from antiphon.orchestration.pipeline import ConversationPipeline
from antiphon.orchestration.rendering import summarize_graph
from antiphon.runtime.envelope_text import describe_envelope

CHECK_COLUMNS = [Column("LEVEL"), Column("CODE"), Column("WHAT")]
FINDING_STYLES = {"error": "bold red", "warning": "yellow"}

file_argument = click.argument("path", metavar="FILE")
rules_option = click.option(
    "--rules",
    metavar="FILE.py",
    help="A Python file to run first: it registers conditions, targets, predicates and adapters that are not built in.",
)


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
    help="Who takes part, the creator first; once for each. Without it, all that the file lists or the rules name.",
)
@rules_option
@json_option('One JSON document: {"ok": …, "participants": […], "findings": […]}.')
def check_command(*, path: str, participants: tuple[str, ...], rules: str | None, as_json: bool) -> None:
    """Check the graph, pipeline or router in FILE, without asking any agent.

    FILE is a Python file as for `antiphon run`, which is executed and needs no agents, or JSON: what to_dict() of a
    TransitionGraph, ConversationPipeline or ConversationRouter gives, or the knobs of a channel: {"graph": …,
    "writers": …, "tier": …} or {"router": …, "handoff": …}, and perhaps "participants". A pipeline is known by its
    "stages", a router by its "rules", a graph by its "transitions".

    Errors would keep a channel from being opened and make the exit code 1; warnings would be recorded on it: rules that
    can never fire, participants who never get the turn, loops that only a cap ends, agents that do not take part.

    \b
    antiphon check team.py
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
        found = read_rules(path)
    except RulesInvalid as error:
        return GraphCheckReport(False, participants, [Finding("error", "invalid", str(error))])
    names = participants or found.participants
    kinds = {name: "human" if name in found.people else "agent" for name in names}
    findings = _graph_findings(found, kinds) if isinstance(found, GraphFile) else _routing_findings(found, kinds)
    return GraphCheckReport(all(each.level != "error" for each in findings), names, findings)


def _graph_findings(found: GraphFile, kinds: dict[str, str]) -> list[Finding]:
    tier = found.knobs.get("tier")
    return found.graph.check(kinds, writers=_writers_knob(found.knobs), tier=tier if isinstance(tier, str) else None)


def _routing_findings(found: RoutingFile, kinds: dict[str, str]) -> list[Finding]:
    routing = found.routing
    router = routing.to_router() if isinstance(routing, ConversationPipeline) else routing
    return [*handoff_rule_findings(found.handoff, router), *routing.check(ChannelRoster(kinds))]


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
    """Draw the graph, pipeline or router in FILE as a Mermaid flowchart.

    FILE is as for `antiphon check`: a Python file, which is executed, or JSON.

    In a graph, rules that need a certain speaker are arrows from that speaker; in a pipeline, dotted arrows lead back.
    Numbers are the places of the rules, from 0.

    \b
    antiphon draw team.py > team.mmd
    """
    run_rules_file(rules)
    found = read_rules(path)
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
@click.option("--graph", metavar="FILE", help="Decide with this graph instead of the one the channel has.")
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


def read_rules(path: str) -> GraphFile | RoutingFile:
    """The graph, pipeline or router in a file: in a JSON file, or in a Python file as `antiphon run` takes it."""
    if not path.endswith(PROGRAM_SUFFIX):
        return read_rules_file(path)
    from antiphon.cli.program import program_rules

    with redirect_stdout(sys.stderr):  # what the file prints is no part of a drawing
        return program_rules(path)


def read_graph_file(path: str) -> GraphFile:
    """The graph in a file: the dict form itself, or the knobs of a channel with it, and perhaps `participants`."""
    found = read_rules(path)
    if not isinstance(found, GraphFile):
        raise RulesInvalid(f"{path} holds a router or a pipeline; give a graph")
    return found
