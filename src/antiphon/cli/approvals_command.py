"""`antiphon approvals`: what waits for a person, and the decisions about it.

Rule 1: a listing only reads, beside any hub. A decision asks the server, or opens the store as a hub without turns.
Rule 2: in a store a person decides by name; at a server, as the participant of the key.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Unpack
from urllib.parse import quote

import click

from antiphon.cli.console_output import select_output, write_json, write_listing
from antiphon.cli.server_client import ServerClient, open_hub_to_change
from antiphon.cli.store_options import (
    LIST_COMMAND,
    ListingCommands,
    StorePlace,
    check_name_option,
    combine_options,
    json_option,
    read_store,
    store_or_server_options,
)
from antiphon.cli.table_layout import Cell, TableRow, escape_hidden, escape_unprintable
from antiphon.core.approval_rules import ASKED_CALL, Approval
from antiphon.core.codec import Malformed, parse_json, to_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.runtime.approvals import stored_approvals
from antiphon.runtime.decisions import PersonDecision, decide_approval
from antiphon.runtime.participant import ensure_person_registered
from antiphon.server.schemas import ApprovalList, Decided

OWN_VIEW, OPERATOR_VIEW = "own", "operator"
UNSEEN_DIGEST = "-"
"""Matches nothing: the server then answers what became of an approval that is no longer listed."""
APPROVAL_TITLES = ("APPROVAL", "KIND", "AGENT", "WHAT", "WHO MAY", "DECIDE BY", "WAITS BECAUSE")
DECISION_OUTCOMES = {
    "approve": "retried as soon as a hub runs its agent",
    "edit": "leaves with these arguments as soon as a hub runs its agent",
    "reject": "given up",
    "respond": "answered with the text that was given",
}
APPROVED_CALL = "leaves as soon as a hub runs its agent"
"""The outcome of `approve` for a call that has not left."""


class DecisionOptions(StorePlace):
    """What every decision takes."""

    approval_id: str
    name: str | None
    reason: str
    digest: str | None
    as_json: bool


decision_options = combine_options(
    click.argument("approval_id", metavar="ID"),
    store_or_server_options("approve"),
    click.option(
        "--as",
        "name",
        metavar="NAME",
        callback=check_name_option,
        help="The person who decides, by name; registered with kind human if new. Required with a store; at a "
        "server the participant of the key decides.",
    ),
    click.option("--reason", metavar="TEXT", default="", help="Why, for the log."),
    click.option("--digest", metavar="DIGEST", help="Refuse unless this is still the digest of what waits under ID."),
    json_option('One JSON document: {"approval_id", "decision", "by"}.'),
)
"""The arguments and options of every decision."""


@click.group(cls=ListingCommands, subcommand_metavar="[COMMAND] [ARGS]...")
def approvals_command() -> None:
    """List what waits for a person, and decide about it.

    Three things wait for a person: a call that needs approval before it leaves, a call in doubt (it left, and its
    outcome was not recorded) and a suspended turn (its process died too often). Without a command they are listed, each
    with its ID. Then decide:

    \b
    approve   let the call leave; or retry: make the call again, or attempt the turn again
    edit      let the call leave with other arguments: --args JSON, all of them
    respond   give the result of the call, or the answer of the agent, with --text
    reject    give up: the model reads that the call was not made, or the turn fails as rejected

    A person decides, by name: --as NAME, who is registered as human if the store does not know them yet. Approvers may
    be named by the tool or the channel; without any, the person who asked may not decide. The first decision wins. A
    server that uses the store has to be asked: --server URL, with a key of a person in ANTIPHON_KEY. Each of these
    takes --json.

    \b
    antiphon approvals team.db
    antiphon approvals approve ID team.db --as dana
    antiphon approvals edit ID team.db --as dana --args '{"order": "7", "cents": 100}'
    """


@approvals_command.command()
@decision_options
def approve(**options: Unpack[DecisionOptions]) -> None:
    """Let the call leave that waits under ID, or retry what is in doubt.

    \b
    antiphon approvals approve ID team.db --as dana
    """
    _decide_and_show("approve", options)


@approvals_command.command()
@decision_options
@click.option(
    "--args",
    "args_json",
    metavar="JSON",
    required=True,
    help="All arguments of the call as they are to be, as an object.",
)
def edit(*, args_json: str, **options: Unpack[DecisionOptions]) -> None:
    """Let the call that waits under ID leave with other arguments.

    They are checked by the schema of the tool, and by all guards again.

    \b
    antiphon approvals edit ID team.db --as dana --args '{"order": "7", "cents": 100}'
    """
    try:
        args = parse_json(args_json)
    except Malformed as error:
        raise click.UsageError(f"--args is no JSON: {escape_unprintable(str(error))}.") from error
    if not isinstance(args, dict):
        raise click.UsageError('--args is no JSON object; give the arguments by name, such as {"cents": 100}.')
    _decide_and_show("edit", options, args=args)


@approvals_command.command(name=LIST_COMMAND)
@store_or_server_options("approve")
@click.option("--channel", "channel_id", metavar="CHANNEL", help="Only what waits in this channel.")
@click.option("--all", "everything", is_flag=True, help="At a server: of all channels; needs a key of scope operate.")
@json_option("One JSON object a line, one for each approval.")
def list_approvals_command(
    *, channel_id: str | None, everything: bool, as_json: bool, **place: Unpack[StorePlace]
) -> None:
    """List what waits for a person.

    A store is only read, so that a hub may go on using it. At a server, what waits in the channels of the key's
    participant is listed, or with --all in all of them.

    \b
    antiphon approvals team.db --json
    """
    if everything and not place["server"]:
        raise click.UsageError("--all is for a server; of a store everything is listed anyway.")
    if place["server"]:
        served = _served_approvals(ServerClient(place["server"]), OPERATOR_VIEW if everything else OWN_VIEW)
        found = [approval for approval in served if channel_id in (None, approval.channel_id)]
    else:
        read = partial(stored_approvals, channel_id=channel_id)
        found = asyncio.run(read_store(place["store"] or "", place["tenant"], read))
    empty = "Nothing waits for a person here."
    write_listing(APPROVAL_TITLES, found, _approval_cells, as_json=as_json, empty=empty)


@approvals_command.command()
@decision_options
def reject(**options: Unpack[DecisionOptions]) -> None:
    """Give up what waits under ID.

    \b
    antiphon approvals reject ID team.db --as dana --reason "the order was cancelled"
    """
    _decide_and_show("reject", options)


@approvals_command.command()
@decision_options
@click.option("--text", metavar="TEXT", required=True, help="The result of the call, or the answer of the agent.")
def respond(*, text: str, **options: Unpack[DecisionOptions]) -> None:
    """Give the result or the answer that ID waits for.

    \b
    antiphon approvals respond ID team.db --as dana --text "Order 7 is refunded."
    """
    _decide_and_show("respond", options, text=text)


def _decide_and_show(
    decision: str, options: DecisionOptions, *, text: str | None = None, args: Json | None = None
) -> None:
    name = options["name"]
    if options["server"] and name:
        raise click.UsageError("--as and --server are given: at a server the participant of the key decides.")
    if not options["server"] and not name:
        raise click.UsageError("say who decides: --as NAME, a person; the name is registered as human if it is new.")
    choice = PersonDecision(decision, options["reason"], text, args, options["digest"])
    try:
        if options["server"]:
            made = _decide_at_server(ServerClient(options["server"]), options["approval_id"], choice)
        else:
            made = asyncio.run(_decide_in_store(options, choice))
    except UsageError as error:
        raise click.ClickException(escape_unprintable(str(error))) from error
    if options["as_json"]:
        write_json(made)
    else:
        asked = made.decision == "approve" and made.approval_id.endswith(f".{ASKED_CALL}")
        outcome = APPROVED_CALL if asked else DECISION_OUTCOMES[made.decision]
        outcome = f"  {made.approval_id} by {made.by}: {outcome}"
        select_output().line(Cell(made.decision, "bold"), outcome)


async def _decide_in_store(options: DecisionOptions, choice: PersonDecision) -> Decided:
    approval_id, name = options["approval_id"], options["name"] or ""
    async with open_hub_to_change(options, what="decide this", scope="approve") as hub:
        await ensure_person_registered(hub.core, name)
        kind = hub.core.directory.find(name).kind
        await decide_approval(hub.core, approval_id, choice, by=name, kind=kind)
    return Decided(approval_id, choice.decision, name)


def _decide_at_server(server: ServerClient, approval_id: str, choice: PersonDecision) -> Decided:
    digest = choice.digest or _digest_at_server(server, approval_id)
    body: dict[str, object] = {"decision": choice.decision, "digest": digest, "reason": choice.reason}
    if choice.text is not None:
        body["text"] = choice.text
    if choice.args is not None:
        body["args"] = choice.args
    return server.request("POST", f"/approvals/{quote(approval_id, safe='')}", Decided, body=body)


def _digest_at_server(server: ServerClient, approval_id: str) -> str:
    """The digest of what waits under this id: in the channels of the key's participant, or in all if the key may."""
    for view in (OWN_VIEW, OPERATOR_VIEW):
        try:
            found = _served_approvals(server, view)
        except click.ClickException:
            if view == OWN_VIEW:
                raise
            return UNSEEN_DIGEST  # the key has no right to read all channels
        for approval in found:
            if approval.approval_id == approval_id:
                return approval.digest
    return UNSEEN_DIGEST


def _served_approvals(server: ServerClient, view: str) -> list[Approval]:
    return [approval for page in server.pages("/approvals", ApprovalList, view=view) for approval in page.approvals]


def _approval_cells(approval: Approval) -> TableRow:
    """An approval as a row. What the call would do is shown whole, and without hidden characters."""
    args = to_json(approval.args).decode() if approval.args else ""
    what = escape_hidden(f"{approval.tool} {args}".strip()) or f"turn {approval.turn_id}"
    who = ", ".join(approval.approvers) or "-"
    by = f"{approval.decide_by[:19]}Z" if approval.decide_by else "-"
    why = escape_hidden(approval.why) or "-"
    return Cell(approval.approval_id, "bold"), approval.kind, approval.agent, what, escape_hidden(who), by, why
