"""What the commands have in common: which store, as JSON or not, and how a store is opened to be read."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from antiphon.core.errors import BadUrl
from antiphon.core.ids import NAME
from antiphon.hub.clock import SystemClock
from antiphon.hub.directory import check_name
from antiphon.store.protocol import Store
from antiphon.store.urls import open_store

VARIABLE = "ANTIPHON_STORE"
SQLITE = "sqlite:///"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")


def store_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The store that was named. Where there is none, say how to name one."""
    if not value:
        given = "--store URL" if isinstance(param, click.Option) else "its URL"
        raise click.UsageError(f"no store is named: give {given} (such as sqlite:///team.db), or set {VARIABLE}", ctx)
    return as_url(value)


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


store_option = click.option(
    "--store",
    metavar="URL",
    envvar=VARIABLE,
    show_envvar=True,
    callback=store_url,
    help="The store to read: sqlite:///team.db, sqlite:////var/lib/team.db, or the path of the file.",
)
store_argument = click.argument("store", metavar="[STORE]", required=False, envvar=VARIABLE, callback=store_url)
tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=known_name,
    help="The tenant whose channels to read.",
)


@asynccontextmanager
async def reading(url: str, tenant: str) -> AsyncIterator[Store]:
    """A store opened to be read and nothing else, so that a hub may go on using it."""
    check_name(tenant)
    if url.startswith("memory:"):
        raise BadUrl(f"{url!r} lives and dies with the hub that uses it; there is nothing to read from outside")
    store = await open_store(url, tenant=tenant, clock=SystemClock(), read_only=True)
    try:
        yield store
    finally:
        await store.close()
