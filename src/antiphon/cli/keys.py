"""`antiphon keys`: who is let in by a server, and what for.

Rule 1: a secret is written to standard output, once and alone. Nothing else of it is shown anywhere, nor its beginning.
Rule 2: keys are changed where the hub is: in a store that no hub uses, or by the server that uses it.
Rule 3: what is wished for is checked before anything is opened or asked.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import ParamSpec, TypedDict, Unpack

import click

from antiphon.cli.keepers import AtServer, AtStore, Keeper
from antiphon.cli.options import known_name
from antiphon.cli.output import Cell, Column, output, write_json
from antiphon.cli.places import place_options
from antiphon.cli.plain import printable
from antiphon.core.codec import plain_data
from antiphon.core.errors import UsageError
from antiphon.core.instants import Instant, after, instant
from antiphon.hub.clock import SystemClock
from antiphon.hub.keys import KINDS, SCOPES, Key, check_key_id, wished_key

P = ParamSpec("P")

ALL = "all"
SPAN = re.compile(r"([0-9]{1,6})([hdw])\Z")
SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
LAYOUT = [
    Column("KEY"),
    Column("PARTICIPANT"),
    Column("KIND"),
    Column("STATUS"),
    Column("EXPIRES"),
    Column("SCOPES"),
    Column("LABEL"),
]
STYLES = {"active": "green", "expired": "dim", "revoked": "bold red"}


class Options(TypedDict):
    """What the commands have in common."""

    store: str | None
    server: str | None
    tenant: str
    as_json: bool


def moment_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Instant | None:
    """The instant that was given as a span from now, a day, or a time."""
    if value is None:
        return None
    span = SPAN.match(value)
    if span:
        return after(SystemClock().now(), int(span[1]) * SECONDS[span[2]])
    try:
        moment = datetime.fromisoformat(value)
        return instant(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{value!r} is neither like 12h, 30d or 8w nor like 2027-01-01.", ctx, param
        ) from error


@click.group(invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Make, list and revoke the keys of a server.

    Until a first key is made, a server answers its own machine alone. From then on nobody is let in without one.
    Whoever shows a key speaks as its participant, and may do what its scopes say:

    \b
    invoke   ask agents
    read     read the channels of its participant
    write    open channels, and speak in them; to agents only with invoke
    approve  decide what waits for a person
    operate  look after the server: its keys, and every channel

    Keys are kept in the server's store, and never the secrets themselves. While a server uses the store, it has to be
    asked: --server URL, with a key of the scope operate in ANTIPHON_KEY. Each of these takes --json.

    \b
    KEY=$(antiphon keys make --participant ada --scope invoke --scope read team.db)
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command()
@place_options("operate")
@click.option("--participant", metavar="NAME", required=True, callback=known_name, help="Whom the key speaks for.")
@click.option(
    "--kind", type=click.Choice(KINDS), default="service", show_default=True, help="What kind of participant that is."
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([*SCOPES, ALL]),
    multiple=True,
    required=True,
    help="What the key is good for; once for each.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    callback=moment_of,
    help="When the key ends: in 12h, 30d or 8w, or on 2027-01-01 (UTC). Without it, never.",
)
@click.option("--label", metavar="TEXT", default="", help="What the key is for, in words.")
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"secret": …, "key": {…}}.')
def make(
    *,
    participant: str,
    kind: str,
    scopes: tuple[str, ...],
    expires: Instant | None,
    label: str,
    **options: Unpack[Options],
) -> None:
    """Make a key, and show its secret, this once.

    The secret alone goes to standard output. A participant may have several keys: to change one, make the next, and
    revoke the first when nobody shows it any more. A store that does not exist yet is made.

    \b
    KEY=$(antiphon keys make --participant ada --scope all --expires 30d team.db)
    """
    wanted = SCOPES if ALL in scopes else scopes
    keeper = _keeper(options)
    try:
        now = SystemClock().now()
        wished = wished_key(participant, kind=kind, scopes=wanted, expires_at=expires, label=label, at=now)
        given = keeper.make(wished)
    except UsageError as error:
        raise click.UsageError(printable(str(error))) from error
    if options["as_json"]:
        write_json({"secret": given.secret, "key": _row(given.key)})
        return
    key = given.key
    ends = f"until {key.expires_at}" if key.expires_at else "without end"
    about = f"This is the key {key.key_id} of {key.participant}, good for {', '.join(key.scopes)} {ends}."
    click.echo(printable(f"{about} It is not shown again; send it as `Authorization: Bearer …`."), err=True)
    click.echo(given.secret)


@command.command(name="list")
@place_options("operate")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each key.")
def listing(**options: Unpack[Options]) -> None:
    """List all keys that were ever made, oldest first.

    Secrets are not among what is shown: they are not kept. A store is only read, so that a hub may go on using it.

    \b
    antiphon keys list team.db
    """
    keys = _keeper(options).listed()
    if not keys:
        click.echo("There are no keys here.", err=True)
    elif options["as_json"]:
        for key in keys:
            write_json(_row(key))
    else:
        output().table(LAYOUT, [_cells(key) for key in keys])


@command.command()
@click.argument("key_id", metavar="KEY_ID")
@place_options("operate")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: the key.")
def revoke(*, key_id: str, **options: Unpack[Options]) -> None:
    """End the key KEY_ID, for good.

    KEY_ID is the 12 characters that `antiphon keys list` shows, which are also those behind the `ak_` of its secret.

    \b
    antiphon keys revoke 3f9c02ab71de team.db
    """
    try:
        check_key_id(key_id)
    except UsageError as error:
        raise click.UsageError(printable(str(error))) from error
    key = _keeper(options).revoke(key_id)
    if options["as_json"]:
        write_json(_row(key))
    else:
        output().line(Cell("revoked", STYLES["revoked"]), f"  {key.key_id} of {key.participant}")


def _keeper(options: Options) -> Keeper:
    if options["server"]:
        return AtServer(options["server"])
    assert options["store"], "without a server there is a store"
    return AtStore(options["store"], options["tenant"])


def _row(key: Key) -> dict[str, object]:
    return {**plain_data(key), "status": key.status(SystemClock().now())}


def _cells(key: Key) -> list[Cell]:
    status = key.status(SystemClock().now())
    return [
        Cell(key.key_id, "bold"),
        Cell(key.participant),
        Cell(key.kind),
        Cell(status, STYLES[status]),
        Cell(key.expires_at or "never"),
        Cell(",".join(key.scopes)),
        Cell(key.label or "-"),
    ]
