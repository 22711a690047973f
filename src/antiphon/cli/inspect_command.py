"""`antiphon inspect`: loop, deadlock and cost guards over a transcript made anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.store_options import json_option
from antiphon.cli.table_layout import Cell, Column, escape_unprintable, pluralize
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.guard import Guard
from antiphon.guards.named_guards import guards_of
from antiphon.orchestration.transcripts import PEOPLE, BadTranscript, Trip, inspect_transcript, read_transcript
from antiphon.runtime.envelope_text import describe_envelope

STANDARD_INPUT = "-"
TRIP_COLUMNS = [Column("LINE", right=True), Column("GUARD"), Column("WHAT")]


class TripReport(msgspec.Struct, frozen=True):
    """One trip, as JSON has it."""

    line: int
    first_line: int
    guard: str
    event: str
    says: str
    data: Json


class InspectReport(msgspec.Struct, frozen=True):
    """What was read, and what has tripped."""

    ok: bool
    lines: int
    trips: list[TripReport]


@click.command()
@click.argument("path", metavar="TRACE.jsonl")
@click.option(
    "--window", type=int, default=5, show_default=True, help="How many calls, or texts, of an agent are compared."
)
@click.option("--threshold", type=int, default=3, show_default=True, help="The equal call, or text, that is a loop.")
@click.option("--dollars", metavar="AMOUNT", default="10", show_default=True, help="What may be spent in an hour.")
@click.option("--person", "people", metavar="NAME", multiple=True, help="A speaker that is a person; once for each.")
@json_option('One JSON document: {"ok": …, "lines": …, "trips": […]}.')
def inspect_command(
    *, path: str, window: int, threshold: int, dollars: str, people: tuple[str, ...], as_json: bool
) -> None:
    """Run the guards against loops, deadlocks and cost over TRACE.jsonl, a transcript made anywhere.

    Each line is one JSON object: {"speaker": …, "text": …} for what was said, {"speaker": …, "tool": …, "args": {…}}
    for a call of a tool. "kind" is "control" for a message that steers and says nothing, which no guard counts, or
    what the speaker is: "agent", "human" or "service". Without it `user`, `human` and each --person are people, and
    all others agents. A line may have "cost" in dollars, "tokens", "at" (a time), "progress" (what the result of a
    tool has reached) and "poll": true. Without "at" it is at the time of the line before. `-` reads standard input.

    Each trip is printed with its line and makes the exit code 1. A file that cannot be read makes it 2.

    \b
    antiphon inspect trace.jsonl
    antiphon inspect trace.jsonl --threshold 4 --window 8 --dollars 2.50
    """
    try:
        lines = read_transcript(_read_lines(path))
        guards = inspecting_guards(window=window, threshold=threshold, dollars=dollars)
        trips = list(inspect_transcript(lines, guards, people=PEOPLE | set(people)))
    except BadTranscript as error:
        raise click.UsageError(escape_unprintable(f"{path}, {error}")) from error
    except RulesInvalid as error:
        raise click.UsageError(escape_unprintable(str(error))) from error
    report = InspectReport(not trips, len(lines), [_report_of(trip) for trip in trips])
    if as_json:
        write_json(report)
    else:
        _print_report(select_output(), path, report)
    if trips:
        raise SystemExit(1)


def inspecting_guards(*, window: int = 5, threshold: int = 3, dollars: str = "10") -> list[Guard]:
    """The guards that a transcript is read by."""
    loop: Json = {"name": "loop", "window": window, "threshold": threshold}
    return guards_of({"guards": [loop, "deadlock", {"name": "cost_velocity", "dollars_per_hour": dollars}]})


def _read_lines(path: str) -> list[bytes]:
    try:
        data = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error
    return data.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _report_of(trip: Trip) -> TripReport:
    envelope = trip.envelope
    return TripReport(
        trip.line,
        trip.first_line,
        trip.guard,
        envelope.event_type,
        describe_envelope(envelope),
        envelope.event_data,
    )


def _print_report(out: CommandOutput, path: str, report: InspectReport) -> None:
    size = pluralize(report.lines, "line")
    if report.ok:
        out.line(Cell("ok", "bold green"), f"  {path}: {size}, nothing tripped")
        return
    out.line(Cell(pluralize(len(report.trips), "trip"), "bold red"), f"  {path}: {size}")
    out.table(TRIP_COLUMNS, [(str(trip.line), trip.guard, _what(trip)) for trip in report.trips])


def _what(trip: TripReport) -> str:
    since = f", since line {trip.first_line}" if trip.first_line else ""
    return f"{trip.says}{since}"
