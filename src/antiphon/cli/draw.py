"""`antiphon draw`: a graph as a picture."""

from __future__ import annotations

import click

from antiphon.cli.output import output, write_json
from antiphon.cli.rules import graph_argument, read_graph, rules_option, run_rules
from antiphon.orchestration.checking import summary


@click.command()
@graph_argument
@rules_option
@click.option("--table", is_flag=True, help="Print the rules as lines instead, in the order in which they are read.")
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"mermaid": "…", "table": […]}.')
def command(*, path: str, rules: str | None, table: bool, as_json: bool) -> None:
    """Draw the transition graph in GRAPH.json as a Mermaid flowchart.

    Rules that need a certain speaker are arrows from that speaker; numbers are the places of the transitions, from 0.

    \b
    antiphon draw triage.json > triage.mmd
    """
    run_rules(rules)
    graph = read_graph(path).graph
    if as_json:
        write_json({"mermaid": graph.to_mermaid(), "table": summary(graph)})
    elif table:
        for line in summary(graph):
            output().line(line)
    else:
        click.echo(graph.to_mermaid(), nl=False)
