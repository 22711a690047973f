"""`antiphon approvals`: what waits for a person, and the decisions about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypedDict, Unpack

import click

from antiphon.cli.deciders import Decider, DecisionMade, ServerDecider, StoreDecider
from antiphon.cli.options import known_name
from antiphon.cli.output import Cell, Column, output, write_json
from antiphon.cli.places import place_options
from antiphon.cli.plain import printable
from antiphon.core.codec import to_json
from antiphon.core.errors import UsageError
from antiphon.runtime.approvals import Approval, PersonDecision

P = ParamSpec("P")

LAYOUT = [Column("APPROVAL"), Column("KIND"), Column("AGENT"), Column("WHAT"), Column("WAITS BECAUSE")]
LONGEST_ARGS = 80
LIST = "list"
OUTCOMES = {
    "approve": "retried as soon as a hub runs its agent",
    "reject": "given up",
    "respond": "answered with the text that was given",
}


class ApprovalOptions(TypedDict):
    """What the commands have in common."""

    store: str | None
    server: str | None
    tenant: str
    as_json: bool


class DecisionOptions(ApprovalOptions):
    """What the commands that decide have in common."""

    name: str | None
    reason: str
    digest: str | None


class ApprovalCommands(click.Group):
    """A group that lists unless a decision is named, so that `antiphon approvals team.db` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        helps = set(self.get_help_option_names(ctx))
        if not args or (args[0] not in self.commands and args[0] not in helps):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


def decision_options(function: Callable[P, None]) -> Callable[P, None]:
    """Give a command what every decision takes."""
    decorators = (
        click.argument("approval_id", metavar="ID"),
        place_options("approve"),
        click.option(
            "--as",
            "name",
            metavar="NAME",
            callback=known_name,
            help="The person who decides, by name; registered with kind human if new. Required with a store; at a "
            "server the participant of the key decides.",
        ),
        click.option("--reason", metavar="TEXT", default="", help="Why, for the log."),
        click.option(
            "--digest", metavar="DIGEST", help="Refuse unless this is still the digest of what waits under ID."
        ),
        click.option("--json", "as_json", is_flag=True, help='One JSON document: {"approval_id", "decision", "by"}.'),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@click.group(cls=ApprovalCommands, subcommand_metavar="[COMMAND] [ARGS]...")
def command() -> None:
    """List what waits for a person, and decide about it.

    Two things wait for a person: a call in doubt (it left, and its outcome was not recorded) and a suspended turn (its
    process died too often). Without a command they are listed, each with its ID. Then decide:

    \b
    approve   retry: make the call again, or attempt the turn again
    respond   give the result of the call, or the answer of the agent, with --text
    reject    give up: the model reads that the call is not to be relied on, or the turn fails as rejected

    A person decides, by name: --as NAME, who is registered as human if the store does not know them yet. The first
    decision wins. A server that uses the store has to be asked: --server URL, with a key of a person in ANTIPHON_KEY.
    Each of these takes --json.

    \b
    antiphon approvals team.db
    antiphon approvals approve ID team.db --as dana
    antiphon approvals respond ID team.db --as dana --text "Order 7 is refunded."
    """


@command.command(name=LIST)
@place_options("approve")
@click.option("--channel", "channel_id", metavar="CHANNEL", help="Only what waits in this channel.")
@click.option("--all", "everything", is_flag=True, help="At a server: of all channels; needs a key of scope operate.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each approval.")
def listing(*, channel_id: str | None, everything: bool, **options: Unpack[ApprovalOptions]) -> None:
    """List what waits for a person.

    A store is only read, so that a hub may go on using it. At a server, what waits in the channels of the key's
    participant is listed, or with --all in all of them.

    \b
    antiphon approvals team.db --json
    """
    if everything and not options["server"]:
        raise click.UsageError("--all is for a server; of a store everything is listed anyway.")
    found = _decider(options, everything=everything).listed(channel_id)
    if not found:
        click.echo("Nothing waits for a person here.", err=True)
    elif options["as_json"]:
        for approval in found:
            write_json(approval)
    else:
        output().table(LAYOUT, [_cells(approval) for approval in found])


@command.command()
@decision_options
def approve(*, approval_id: str, **options: Unpack[DecisionOptions]) -> None:
    """Retry what waits under ID.

    \b
    antiphon approvals approve ID team.db --as dana
    """
    _decide(approval_id, "approve", options)


@command.command()
@decision_options
def reject(*, approval_id: str, **options: Unpack[DecisionOptions]) -> None:
    """Give up what waits under ID.

    \b
    antiphon approvals reject ID team.db --as dana --reason "the order was cancelled"
    """
    _decide(approval_id, "reject", options)


@command.command()
@decision_options
@click.option("--text", metavar="TEXT", required=True, help="The result of the call, or the answer of the agent.")
def respond(*, approval_id: str, text: str, **options: Unpack[DecisionOptions]) -> None:
    """Give the result or the answer that ID waits for.

    \b
    antiphon approvals respond ID team.db --as dana --text "Order 7 is refunded."
    """
    _decide(approval_id, "respond", options, text=text)


def _decide(approval_id: str, decision: str, options: DecisionOptions, *, text: str | None = None) -> None:
    name = options["name"]
    if options["server"] and name:
        raise click.UsageError("--as and --server are given: at a server the participant of the key decides.")
    if not options["server"] and not name:
        raise click.UsageError("say who decides: --as NAME, a person; the name is registered as human if it is new.")
    choice = PersonDecision(decision, options["reason"], text, digest=options["digest"])
    try:
        made = _decider(options, name=name or "").decide(approval_id, choice)
    except UsageError as error:
        raise click.ClickException(printable(str(error))) from error
    if options["as_json"]:
        write_json(made)
    else:
        _show(made)


def _show(made: DecisionMade) -> None:
    output().line(Cell(made.decision, "bold"), f"  {made.approval_id} by {made.by}: {OUTCOMES[made.decision]}")


def _decider(options: ApprovalOptions | DecisionOptions, *, name: str = "", everything: bool = False) -> Decider:
    if options["server"]:
        return ServerDecider(options["server"], everything=everything)
    assert options["store"], "without a server there is a store"
    return StoreDecider(options["store"], options["tenant"], name)


def _cells(approval: Approval) -> list[Cell]:
    args = to_json(approval.args).decode() if approval.args else ""
    args = args if len(args) <= LONGEST_ARGS else args[: LONGEST_ARGS - 1] + "…"
    what = f"{approval.tool} {args}".strip() or f"turn {approval.turn_id}"
    return [
        Cell(approval.approval_id, "bold"),
        Cell(approval.kind),
        Cell(approval.agent),
        Cell(what),
        Cell(approval.why or "-"),
    ]
