"""`antiphon draw`: a graph as a picture."""

from __future__ import annotations

import click

from antiphon.cli.output import write_json
from antiphon.cli.rules import graph_argument, read_graph, rules_option, run_rules


@click.command()
@graph_argument
@rules_option
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"mermaid": "…"}.')
def command(*, path: str, rules: str | None, as_json: bool) -> None:
    """Draw the transition graph in GRAPH.json as a Mermaid flowchart.

    Rules that need a certain speaker are arrows from that speaker; numbers say in which order they are read.

    \b
    antiphon draw triage.json > triage.mmd
    """
    run_rules(rules)
    drawing = read_graph(path).graph.to_mermaid()
    if as_json:
        write_json({"mermaid": drawing})
    else:
        click.echo(drawing, nl=False)
