"""`antiphon replay`: whether today's rules would decide as a log says."""

from __future__ import annotations

import asyncio

import click
import msgspec

from antiphon.cli.options import reading, store_argument, store_option, tenant_option
from antiphon.cli.output import Cell, Output, output, write_json
from antiphon.cli.plain import counted
from antiphon.cli.rules import read_graph, rules_option, run_rules
from antiphon.cli.telling import told
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.erasing import is_erased
from antiphon.core.errors import LogCorrupt, UnknownChannel, UsageError
from antiphon.core.events import Created, Json, event_of
from antiphon.core.replaying import Difference, Replay, replayed
from antiphon.orchestration.lawbook import laws_for
from antiphon.store.protocol import Store


class Outcome(msgspec.Struct, frozen=True):
    """What a replay showed."""

    same: bool
    decisions: int
    difference: Difference | None = None


@click.command()
@click.argument("channel", metavar="CHANNEL")
@store_argument
@store_option
@tenant_option
@click.option("--graph", metavar="GRAPH.json", help="Decide with this graph instead of the one the channel has.")
@rules_option
@click.option(
    "--json", "as_json", is_flag=True, help='One JSON document: {"same": …, "decisions": …, "difference": …}.'
)
def command(*, channel: str, store: str, tenant: str, graph: str | None, rules: str | None, as_json: bool) -> None:
    """Decide the log of CHANNEL again with today's rules, and show the first difference.

    What was said stays as it is; only who got the turn for it, or why the channel ended, is asked again. Nothing is
    recorded and nothing is run. A difference makes the exit code 1.

    \b
    antiphon replay 0198c1d2-… team.db --graph triage.json
    """
    run_rules(rules)
    found = asyncio.run(_replayed(store, tenant, channel=channel, graph=graph))
    outcome = Outcome(found.difference is None, found.decisions, found.difference)
    if as_json:
        write_json(outcome)
    else:
        _show(output(), outcome)
    if not outcome.same:
        raise SystemExit(1)


async def _replayed(url: str, tenant: str, *, channel: str, graph: str | None) -> Replay:
    async with reading(url, tenant) as store:
        log = await _whole(store, channel)
    created = event_of(log[0]) if log else None
    if not log:
        raise UnknownChannel(channel)
    if is_erased(log[0]):
        raise UsageError(f"channel {channel!r} was erased; there is nothing left to replay")
    if not isinstance(created, Created):
        raise LogCorrupt(channel, 1, "the log does not begin with the channel's creation")
    return replayed(log, laws_for(created.type, _knobs(created, graph)))


def _knobs(created: Created, graph: str | None) -> Json:
    if graph is None:
        return created.knobs
    if "graph" not in created.knobs:
        raise UsageError(f"a channel of type {created.type!r} has no graph that another could replace")
    return {**created.knobs, "graph": read_graph(graph).graph.to_dict()}


async def _whole(store: Store, channel: str) -> list[Envelope]:
    log: list[Envelope] = []
    while page := (await store.read(channel, after=len(log))).envelopes:
        log.extend(page)
    return log


def _show(out: Output, outcome: Outcome) -> None:
    asked = counted(outcome.decisions, "decision")
    different = outcome.difference
    if different is None:
        out.line(Cell("same", "bold green"), f"  {asked} made again, each as it was recorded")
        return
    where = f"  after sequence {different.sequence} by {different.speaker}; {asked} made again until then"
    out.line(Cell("different", "bold red"), where)
    out.line("  recorded: ", _words(different.recorded))
    out.line("  now:      ", _words(different.now))


def _words(decisions: tuple[tuple[str, Json], ...]) -> str:
    said = (told(Envelope(sender_id=HUB, event_type=kind, event_data=data)) for kind, data in decisions)
    return "; ".join(said) or "nothing follows"
