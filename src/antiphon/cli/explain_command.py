"""`antiphon explain`: why a channel is in the state it is in, or why one envelope was recorded."""

from __future__ import annotations

import asyncio
import os

import click

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.log_command import SEQUENCE_COLUMN
from antiphon.cli.store_options import (
    find_channel_row,
    json_option,
    open_store_to_read,
    reading_options,
    store_file_path,
)
from antiphon.cli.table_layout import Cell, Column
from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt
from antiphon.runtime.approvals import stored_approvals
from antiphon.runtime.explanation import ExplainedStep, Explanation, ExplanationSources, explain
from antiphon.runtime.refusals import RefusalReader
from antiphon.store.paging import all_envelopes, log_page_reader
from antiphon.store.protocol import Store

FIRST_STEPS, LAST_STEPS = 3, 15
"""How many steps of a long chain are shown, from its beginning and from its end."""
MAX_TOLD_CHARS = 300
SECOND_CHARS = 19


@click.command()
@click.argument("channel")
@reading_options
@click.option(
    "--at",
    "sequence",
    type=click.IntRange(min=1),
    metavar="SEQ",
    help="Explain the envelope of this sequence, as `antiphon log` shows it. Without it, the last thing that happened.",
)
@json_option('One JSON document: {"because": […], "steps": […], "waits": […], "actions": […], …}.')
def explain_command(*, channel: str, store: str, tenant: str, sequence: int | None, as_json: bool) -> None:
    """Show why CHANNEL is in the state it is in, what waits for whom, and what can be done.

    CHANNEL is an id as `antiphon channels` lists them, or the beginning of one. The chain of causes is shown from the
    message that began it: who had the turn and by which rule, which guard denied or changed something, what a person
    decided. A store is only read, so that a hub may go on using it.

    \b
    antiphon explain 0199d0a7-… team.db
    antiphon explain 0199d0a7-… team.db --at 12
    """
    shown = os.path.relpath(store_file_path(store))
    found = asyncio.run(_read_explanation(store, tenant, channel=channel, sequence=sequence, shown_store=shown))
    if as_json:
        write_json(found)
    else:
        _print_explanation(select_output(), found)


async def _read_explanation(
    url: str, tenant: str, *, channel: str, sequence: int | None, shown_store: str
) -> Explanation:
    async with open_store_to_read(url, tenant) as store:
        row = await find_channel_row(store, channel)
        log, damage = await _read_whole_log(store, row.channel_id)
        approvals = await stored_approvals(store, row.channel_id) if log and not damage else []
        refusals = await RefusalReader(store, row.channel_id, log[0].created_at).read() if log else []
    return explain(ExplanationSources(log, approvals, refusals, shown_store, damage), sequence)


async def _read_whole_log(store: Store, channel: str) -> tuple[list[Envelope], str]:
    """The log, or the part before its damage, and what the damage is."""
    log: list[Envelope] = []
    try:
        async for envelope in all_envelopes(log_page_reader(store, channel)):
            log.append(envelope)
    except LogCorrupt as error:
        return log, str(error)
    return log, ""


def _print_explanation(out: CommandOutput, found: Explanation) -> None:
    seats = ", ".join(f"{name} ({kind})" for name, kind in found.participants.items()) or "nobody"
    status = f"{found.status}: {found.close_reason}" if found.close_reason else found.status
    out.line(Cell(f"{found.type} {found.channel_id}".strip(), "bold"), f"  {status}  {seats}")
    out.heading(f"Why #{found.sequence}")
    for reason in found.because:
        out.line("  ", _shortened(reason))
    out.heading("How it came to this")
    _print_steps(out, found.steps)
    if found.refused:
        out.heading("What was refused last")
        _print_steps(out, found.refused)
    out.heading("What waits now")
    for wait in found.waits:
        out.line("  ", _shortened(wait))
    out.heading("What can be done")
    for action in found.actions:
        out.line("  ", action.what)
        if action.command:
            out.command("    ", Cell(action.command, "bold"))


def _print_steps(out: CommandOutput, steps: list[ExplainedStep]) -> None:
    layout = [SEQUENCE_COLUMN, Column("TIME", SECOND_CHARS + 1), Column("WHO", max(len(step.who) for step in steps))]
    left_out = len(steps) - FIRST_STEPS - LAST_STEPS
    for place, step in enumerate(steps):
        if place == FIRST_STEPS and left_out > 0:
            out.line(f"{'…':>{SEQUENCE_COLUMN.width}}  {left_out} steps between; --json shows them")
        if left_out > 0 and FIRST_STEPS <= place < FIRST_STEPS + left_out:
            continue
        number, time = Cell(str(step.sequence or "-"), "dim"), Cell(step.at[:SECOND_CHARS] + "Z", "dim")
        out.row([*layout, Column("WHAT")], [number, time, step.who, _shortened(step.what)])


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TOLD_CHARS else text[: MAX_TOLD_CHARS - 1] + "…"
