"""What commands on stores share: their options, the names of their groups, and reading a store."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from antiphon._net import is_loopback
from antiphon.cli.table_layout import escape_unprintable
from antiphon.core.envelope import CHANNEL_ID_PATTERN, NAME_PATTERN, check_name
from antiphon.core.errors import BadUrl
from antiphon.core.text import describe
from antiphon.hub.clock import SystemClock
from antiphon.store.protocol import ChannelRow, Store
from antiphon.store.urls import open_store, sqlite_path_of

if TYPE_CHECKING:
    from click.decorators import FC

T = TypeVar("T")
StoreCallback = Callable[[click.Context, click.Parameter, str | None], str | None]

STORE_VARIABLE = "ANTIPHON_STORE"
MEMORY_URL, SQLITE_URL_PREFIX = "memory:", "sqlite:///"
URL_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
URL_PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")
SERVER_URL_PATTERN = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?\Z")
SPAN_PATTERN = re.compile(r"([0-9]{1,6})([hdw])\Z")
SPAN_UNIT_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}
STORE_ARGUMENT_KEY = "antiphon.store"
"""The key of the argument in `ctx.meta`, until the option is parsed."""
LIST_COMMAND = "list"
MAX_LISTED_CHANNELS = 5
"""How many channels an ambiguous id lists."""


class OptionDecorator(Protocol):
    """Adds options to a command."""

    def __call__(self, function: FC, /) -> FC: ...


class ListingCommands(click.Group):
    """Lists unless a command is named, so that `antiphon channels team.db` works."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named else [LIST_COMMAND, *args])


def combine_options(*decorators: OptionDecorator) -> OptionDecorator:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: FC, /) -> FC:
        for option in reversed(decorators):
            function = option(function)
        return function

    return decorate


def json_option(about: str) -> OptionDecorator:
    """`--json`, and what it writes."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def keep_store_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep the store that was given as an argument."""
    ctx.meta[STORE_ARGUMENT_KEY] = value


def optional_store_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The store from the argument or the option, as a URL."""
    given = ctx.meta.get(STORE_ARGUMENT_KEY)
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if given and value and typed and url_of_store(given) != url_of_store(value):
        raise click.UsageError(f"two stores are named, {given!r} and {value!r}: give one of them.", ctx)
    named = given or value
    return url_of_store(named) if named else None


def required_store_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The store as a URL; an error that says how to name one, if there is none."""
    url = optional_store_url(ctx, param, value)
    if url is None:
        how = "give its path or URL (such as sqlite:///team.db), as STORE or with --store"
        raise click.UsageError(f"no store is named: {how}, or set {STORE_VARIABLE}", ctx)
    return url


def url_of_store(store: str) -> str:
    """A URL as it is; the path of a file as the URL of a SQLite store."""
    return store if URL_SCHEME.match(store) else SQLITE_URL_PREFIX + os.path.abspath(store)


def url_without_password(url: str) -> str:
    """The URL without its password."""
    return URL_PASSWORD.sub(r"\1:…@", url)


def check_name_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A valid name of a participant or tenant."""
    if value is not None and not NAME_PATTERN.match(value):
        raise click.BadParameter(f"{value!r} is no name.", ctx, param)
    return value


store_argument = click.argument(
    "given", metavar="[STORE]", required=False, is_eager=True, expose_value=False, callback=keep_store_argument
)


def _store_option(callback: StoreCallback, about: str) -> OptionDecorator:
    return click.option(
        "--store", metavar="STORE", envvar=STORE_VARIABLE, show_envvar=True, callback=callback, help=about
    )


def optional_store_option(about: str) -> OptionDecorator:
    """`--store` for a command that also works without one."""
    return _store_option(optional_store_url, about)


store_option = _store_option(
    required_store_url,
    "The store to read: the path of its file, or its URL, as sqlite:///team.db or sqlite:////var/lib/team.db.",
)
tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=check_name_option,
    help="The tenant whose channels to read.",
)
reading_options = combine_options(store_argument, store_option, tenant_option)
"""Which store to read."""


def store_file_path(url: str) -> str:
    """The path of the file of a store."""
    path = sqlite_path_of(url)
    if path is None:
        raise BadUrl(f"{url!r} lives and dies with the hub that uses it; there is nothing to read from outside")
    return path


@asynccontextmanager
async def open_store_to_read(url: str, tenant: str) -> AsyncIterator[Store]:
    """A store opened read-only, which a hub may be using."""
    check_name(tenant)
    store_file_path(url)
    store = await open_store(url, tenant=tenant, clock=SystemClock(), read_only=True)
    try:
        yield store
    finally:
        await store.close()


async def read_store(url: str, tenant: str, read: Callable[[Store], Awaitable[T]]) -> T:
    """What this reads of a store, which a hub may be using."""
    async with open_store_to_read(url, tenant) as store:
        return await read(store)


async def find_channel_row(store: Store, channel: str) -> ChannelRow:
    """The channel of this id, or the only one whose id begins so."""
    names: list[str] = []
    if CHANNEL_ID_PATTERN.match(channel):
        behind = await store.names(after=channel, limit=MAX_LISTED_CHANNELS + 1)
        names = [channel] if await store.head(channel) else [name for name in behind if name.startswith(channel)]
    if not names:
        wrong = f"no channel {describe(channel)}; `antiphon channels` lists those there are"
        raise click.ClickException(escape_unprintable(wrong))
    if len(names) > 1:
        listed = ", ".join(names[:MAX_LISTED_CHANNELS]) + ", …" * (len(names) > MAX_LISTED_CHANNELS)
        raise click.ClickException(f"{channel!r} is the beginning of several channels: {listed}; give more of it")
    return await store.row(names[0]) or ChannelRow(names[0])


class StorePlace(TypedDict):
    """Where a command works: in the store of a tenant, or at a server."""

    store: str | None
    server: str | None
    tenant: str


def store_unless_server(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The store, unless a server is named."""
    if not ctx.params.get("server"):
        return required_store_url(ctx, param, value)
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if ctx.meta.get(STORE_ARGUMENT_KEY) or typed:
        raise click.UsageError("a store and a server are named: give one of them.", ctx)
    return None


def check_server_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A valid URL of a server."""
    if value is None:
        return None
    shown = repr(url_without_password(value))
    if not SERVER_URL_PATTERN.match(value):
        raise click.BadParameter(f"{shown} is no URL such as http://127.0.0.1:8484.", ctx, param)
    if value.startswith("http:") and not is_loopback(urlsplit(value).hostname or ""):
        raise click.BadParameter(f"{shown} would be sent a key that anybody can read; use https.", ctx, param)
    return value


def tenant_or_default(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The tenant of the store. A server has its own."""
    if value is not None and ctx.params.get("server"):
        raise click.UsageError("a tenant and a server are named: the server knows its own.", ctx)
    return check_name_option(ctx, param, value) or "default"


def store_or_server_options(scope: str, *, argument: bool = True) -> OptionDecorator:
    """`--server`, which needs a key of this scope, `--store` and `--tenant`, and the argument STORE."""
    server_option = click.option(
        "--server",
        metavar="URL",
        is_eager=True,
        callback=check_server_url,
        help=f"Ask the server that runs here instead of opening its store, with a key of the scope {scope} in "
        "ANTIPHON_KEY.",
    )
    tenant = click.option(
        "--tenant", metavar="NAME", callback=tenant_or_default, help="The tenant of the store; without it, default."
    )
    store = _store_option(store_unless_server, "The store: the path of its file, or its URL.")
    return combine_options(*([store_argument] if argument else []), server_option, store, tenant)


def span_seconds(value: str) -> int | None:
    """The seconds of a span such as 12h, 30d or 8w; None if it is none."""
    span = SPAN_PATTERN.match(value)
    return int(span[1]) * SPAN_UNIT_SECONDS[span[2]] if span else None
