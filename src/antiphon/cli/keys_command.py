"""`antiphon keys`: the API keys of a server.

Rule 1: a secret is written to standard output, once and alone. No part of it is shown elsewhere.
Rule 2: keys are changed where the hub is: in a store that no hub uses, or by the server that uses it.
Rule 3: arguments are checked before a store is opened or a server is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Unpack

import click

from antiphon.cli.console_output import select_output, write_json, write_listing
from antiphon.cli.server_client import COMMAND_LINE_ACTOR, ServerClient, open_hub_to_change, place_file_path
from antiphon.cli.store_options import (
    LIST_COMMAND,
    StorePlace,
    check_name_option,
    json_option,
    read_store,
    span_seconds,
    store_or_server_options,
)
from antiphon.cli.table_layout import Cell, TableRow, escape_unprintable
from antiphon.core.codec import plain_data
from antiphon.core.envelope import Instant, add_seconds, to_instant
from antiphon.core.errors import UsageError
from antiphon.hub.clock import SystemClock
from antiphon.server.api_keys import (
    KEY_HOLDER_KINDS,
    KEY_SCOPES,
    Key,
    KeyRing,
    check_key_id,
    draft_key,
    keys_in,
    keys_of,
)
from antiphon.server.schemas import KeyList, KeyMade, KeyWish
from antiphon.server.server_token import find_server
from antiphon.store.sqlite_files import resolve_path

ALL_SCOPES = "all"
KEY_TITLES = ("KEY", "PARTICIPANT", "KIND", "STATUS", "EXPIRES", "SCOPES", "LABEL")
KEY_STATUS_STYLES = {"active": "green", "expired": "dim", "revoked": "bold red"}


def expiry_instant(ctx: click.Context, param: click.Parameter, value: str | None) -> Instant | None:
    """The instant of a span from now, a date, or a time."""
    if value is None:
        return None
    seconds = span_seconds(value)
    if seconds is not None:
        return add_seconds(SystemClock().now(), seconds)
    try:
        moment = datetime.fromisoformat(value)
        return to_instant(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        wrong = f"{value!r} is neither like 12h, 30d or 8w nor like 2027-01-01."
        raise click.BadParameter(wrong, ctx, param) from error


@click.group(invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.pass_context
def keys_command(ctx: click.Context) -> None:
    """Make, list and revoke the keys of a server.

    Until a first key is made, a server answers its own machine alone. From then on every request needs a key. It
    authenticates as the participant of the key, and may do what its scopes allow:

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


@keys_command.command()
@store_or_server_options("operate")
@click.option(
    "--participant",
    metavar="NAME",
    required=True,
    callback=check_name_option,
    help="The participant this key authenticates as.",
)
@click.option(
    "--kind",
    type=click.Choice(KEY_HOLDER_KINDS),
    default="service",
    show_default=True,
    help="The kind of that participant.",
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([*KEY_SCOPES, ALL_SCOPES]),
    multiple=True,
    required=True,
    help="What the key allows; once for each scope.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    callback=expiry_instant,
    help="When the key ends: in 12h, 30d or 8w, or on 2027-01-01 (UTC). Without it, never.",
)
@click.option("--label", metavar="TEXT", default="", help="What the key is for, in words.")
@json_option('One JSON document: {"secret": …, "key": {…}}.')
def make(
    *,
    participant: str,
    kind: str,
    scopes: tuple[str, ...],
    expires: Instant | None,
    label: str,
    as_json: bool,
    **place: Unpack[StorePlace],
) -> None:
    """Make a key, and show its secret, this once.

    The secret alone goes to standard output. A participant may have several keys: to change one, make the next, and
    revoke the first when it is no longer used. A store that does not exist yet is created.

    \b
    KEY=$(antiphon keys make --participant ada --scope all --expires 30d team.db)
    """
    wanted = KEY_SCOPES if ALL_SCOPES in scopes else scopes
    now = SystemClock().now()
    try:
        wished = draft_key(participant, kind=kind, scopes=wanted, expires_at=expires, label=label, at=now)
        made = _make_key(wished, place)
    except UsageError as error:
        raise click.UsageError(escape_unprintable(str(error))) from error
    key = made.key
    if as_json:
        write_json({"secret": made.secret, "key": _key_record(key)})
        return
    ends = f"until {key.expires_at}" if key.expires_at else "without end"
    about = f"This is the key {key.key_id} of {key.participant}, good for {', '.join(key.scopes)} {ends}."
    click.echo(escape_unprintable(f"{about} It is not shown again; send it as `Authorization: Bearer …`."), err=True)
    click.echo(made.secret)


@keys_command.command(name=LIST_COMMAND)
@store_or_server_options("operate")
@json_option("One JSON object a line, one for each key.")
def list_keys_command(*, as_json: bool, **place: Unpack[StorePlace]) -> None:
    """List all keys that were ever made, oldest first.

    Secrets are not among what is shown: they are not kept. A store is only read, so that a hub may go on using it.

    \b
    antiphon keys list team.db
    """
    if place["server"]:
        keys = ServerClient(place["server"]).request("GET", "/keys", KeyList).keys
    else:
        keys = asyncio.run(read_store(place["store"] or "", place["tenant"], keys_in))
    empty = "There are no keys here."
    write_listing(KEY_TITLES, keys, _key_cells, as_json=as_json, empty=empty, record=_key_record)


@keys_command.command()
@click.argument("key_id", metavar="KEY_ID")
@store_or_server_options("operate")
@json_option("One JSON document: the key.")
def revoke(*, key_id: str, as_json: bool, **place: Unpack[StorePlace]) -> None:
    """End the key KEY_ID, for good.

    KEY_ID is the 12 characters that `antiphon keys list` shows, which are also those behind the `ak_` of its secret.

    \b
    antiphon keys revoke 3f9c02ab71de team.db
    """
    try:
        check_key_id(key_id)
    except UsageError as error:
        raise click.UsageError(escape_unprintable(str(error))) from error
    server = _server_of(place)
    if server is None:
        key = asyncio.run(_revoke_stored_key(key_id, place))
    else:
        key = server.request("DELETE", f"/keys/{key_id}", Key)
    if as_json:
        write_json(_key_record(key))
    else:
        select_output().line(Cell("revoked", KEY_STATUS_STYLES["revoked"]), f"  {key.key_id} of {key.participant}")


def _make_key(wished: Key, place: StorePlace) -> KeyMade:
    server = _server_of(place)
    if server is None:
        return asyncio.run(_make_stored_key(wished, place))
    fields = plain_data(wished)
    return server.request("POST", "/keys", KeyMade, body={name: fields[name] for name in KeyWish.__struct_fields__})


async def _make_stored_key(wished: Key, place: StorePlace) -> KeyMade:
    async with _open_key_ring(place, create=True) as ring:
        secret, key = await ring.make(
            wished.participant,
            kind=wished.kind,
            scopes=wished.scopes,
            expires_at=wished.expires_at,
            label=wished.label,
            by=COMMAND_LINE_ACTOR,
            at=wished.created_at,
        )
        return KeyMade(secret, key)


async def _revoke_stored_key(key_id: str, place: StorePlace) -> Key:
    async with _open_key_ring(place) as ring:
        return await ring.revoke(key_id, by=COMMAND_LINE_ACTOR)


@asynccontextmanager
async def _open_key_ring(place: StorePlace, *, create: bool = False) -> AsyncIterator[KeyRing]:
    async with open_hub_to_change(place, what="change its keys", scope="operate", create=create) as hub:
        yield await keys_of(hub)


def _server_of(place: StorePlace) -> ServerClient | None:
    """The server that was named, or that of this user which uses the store now: only it can change the keys."""
    if place["server"]:
        return ServerClient(place["server"])
    found = find_server(str(resolve_path(place_file_path(place))), place["tenant"])
    return None if found is None else ServerClient(found.url)


def _key_record(key: Key) -> dict[str, object]:
    return {**plain_data(key), "status": key.status(SystemClock().now())}


def _key_cells(key: Key) -> TableRow:
    status, scopes = key.status(SystemClock().now()), ",".join(key.scopes)
    shown = Cell(key.key_id, "bold"), key.participant, key.kind, Cell(status, KEY_STATUS_STYLES[status])
    return *shown, key.expires_at or "never", scopes, key.label or "-"
