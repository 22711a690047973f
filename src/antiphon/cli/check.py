"""`antiphon check`: what is wrong with a graph, before anybody runs it."""

from __future__ import annotations

import click
import msgspec

from antiphon.cli.output import Cell, Column, Output, output, write_json
from antiphon.cli.plain import counted
from antiphon.cli.rules import GraphFile, graph_argument, read_graph, rules_option, run_rules
from antiphon.core.errors import RulesInvalid
from antiphon.core.rules import Finding

LAYOUT = [Column("LEVEL"), Column("CODE"), Column("WHAT")]
STYLES = {"error": "bold red", "warning": "yellow"}


class Verdict(msgspec.Struct, frozen=True):
    """What a check found. It is sound if there is no error."""

    ok: bool
    participants: tuple[str, ...]
    findings: list[Finding]


@click.command()
@graph_argument
@click.option(
    "--participant",
    "participants",
    metavar="NAME",
    multiple=True,
    help="Who takes part, the creator first; once for each. Without it, everybody the graph names.",
)
@rules_option
@click.option(
    "--json", "as_json", is_flag=True, help='One JSON document: {"ok": …, "participants": […], "findings": […]}.'
)
def command(*, path: str, participants: tuple[str, ...], rules: str | None, as_json: bool) -> None:
    """Check the transition graph in GRAPH.json, without running anything.

    The file holds what TransitionGraph.to_dict() gives, or the knobs of a channel: {"graph": …, "writers": …,
    "tier": …}, and perhaps "participants". Errors would keep a channel from being opened and make the exit code 1;
    warnings would be recorded on it: rules that can never fire, participants who never get the turn, loops that only a
    cap ends.

    \b
    antiphon check triage.json --participant user --participant triage --participant oncall
    """
    run_rules(rules)
    verdict = _checked(path, participants)
    if as_json:
        write_json(verdict)
    else:
        _show(output(), path, verdict)
    if not verdict.ok:
        raise SystemExit(1)


def _checked(path: str, participants: tuple[str, ...]) -> Verdict:
    try:
        found = read_graph(path)
    except RulesInvalid as error:
        return Verdict(False, participants, [Finding("error", "invalid", str(error))])
    people = participants or found.participants
    findings = found.graph.check(list(people), writers=_writers(found), tier=_tier(found))
    return Verdict(all(each.level != "error" for each in findings), people, findings)


def _writers(found: GraphFile) -> dict[str, list[str]] | None:
    """Who may write what, as far as the file says. A graph alone says nothing of it."""
    writers = found.knobs.get("writers")
    if isinstance(writers, dict):
        return {str(key): list(names) if isinstance(names, list) else [] for key, names in writers.items()}
    return {} if _tier(found) == "regulated" else None


def _tier(found: GraphFile) -> str | None:
    tier = found.knobs.get("tier")
    return tier if isinstance(tier, str) else None


def _show(out: Output, path: str, verdict: Verdict) -> None:
    if not verdict.findings:
        out.line(Cell("ok", "bold green"), f"  {path}: nothing is wrong among {', '.join(verdict.participants)}")
        return
    errors = sum(each.level == "error" for each in verdict.findings)
    warnings = len(verdict.findings) - errors
    style = "bold red" if errors else "yellow"
    out.line(Cell(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", style), f"  {path}")
    rows = [[Cell(each.level, STYLES[each.level]), Cell(each.code), Cell(each.message)] for each in verdict.findings]
    out.table(LAYOUT, rows)
