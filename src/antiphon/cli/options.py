"""What the commands have in common: which store, as JSON or not, and how a store is opened to be read."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
from click.core import ParameterSource

from antiphon.core.errors import BadUrl
from antiphon.core.ids import NAME, check_name
from antiphon.hub.clock import SystemClock
from antiphon.store.protocol import Store
from antiphon.store.urls import file_of, open_store

VARIABLE = "ANTIPHON_STORE"
SQLITE = "sqlite:///"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")
ARGUMENT = "antiphon.store"
"""Where the argument is kept until the option is looked at."""


def keep_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Remember the store that was given as an argument."""
    ctx.meta[ARGUMENT] = value


def store_if_any(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The store that was named in one way or the other, as a URL."""
    given = ctx.meta.get(ARGUMENT)
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if given and value and typed and as_url(given) != as_url(value):
        raise click.UsageError(f"two stores are named, {given!r} and {value!r}: give one of them.", ctx)
    named = given or value
    return as_url(named) if named else None


def store_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The store that was named. Where there is none, say how to name one."""
    url = store_if_any(ctx, param, value)
    if url is None:
        how = "give its path or URL (such as sqlite:///team.db), as STORE or with --store"
        raise click.UsageError(f"no store is named: {how}, or set {VARIABLE}", ctx)
    return url


def as_url(store: str) -> str:
    """A URL as it is; the path of a file as the URL of a SQLite store."""
    return store if SCHEME.match(store) else SQLITE + os.path.abspath(store)


def shown_url(url: str) -> str:
    """The URL without its password."""
    return PASSWORD.sub(r"\1:…@", url)


def known_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A name that a participant or tenant can have."""
    if value is not None and not NAME.match(value):
        raise click.BadParameter(f"{value!r} is no name.", ctx, param)
    return value


store_argument = click.argument(
    "given", metavar="[STORE]", required=False, is_eager=True, expose_value=False, callback=keep_argument
)
store_option = click.option(
    "--store",
    metavar="STORE",
    envvar=VARIABLE,
    show_envvar=True,
    callback=store_url,
    help="The store to read: the path of its file, or its URL, as sqlite:///team.db or sqlite:////var/lib/team.db.",
)
tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=known_name,
    help="The tenant whose channels to read.",
)


def file_outside(url: str) -> str:
    """The path of the file in which a store is, so that it can be read beside its hub."""
    path = file_of(url)
    if path is None:
        raise BadUrl(f"{url!r} lives and dies with the hub that uses it; there is nothing to read from outside")
    return path


@asynccontextmanager
async def reading(url: str, tenant: str) -> AsyncIterator[Store]:
    """A store opened to be read and nothing else, so that a hub may go on using it."""
    check_name(tenant)
    file_outside(url)
    store = await open_store(url, tenant=tenant, clock=SystemClock(), read_only=True)
    try:
        yield store
    finally:
        await store.close()
