"""Where a command works: in a store that it opens, or at a server that runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ParamSpec
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from antiphon.cli.options import ARGUMENT, VARIABLE, known_name, shown_url, store_argument, store_url
from antiphon.core.hosts import is_loopback

P = ParamSpec("P")

SERVER = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?\Z")


def store_or_server(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The store that was named, unless a server was."""
    if not ctx.params.get("server"):
        return store_url(ctx, param, value)
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if ctx.meta.get(ARGUMENT) or typed:
        raise click.UsageError("a store and a server are named: give one of them.", ctx)
    return None


def server_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A URL that a server can have."""
    if value is not None and not SERVER.match(value):
        raise click.BadParameter(f"{shown_url(value)!r} is no URL such as http://127.0.0.1:8484.", ctx, param)
    if value is not None and value.startswith("http:") and not is_loopback(urlsplit(value).hostname or ""):
        raise click.BadParameter(
            f"{shown_url(value)!r} would be sent a key that anybody can read; use https.", ctx, param
        )
    return value


def tenant_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The tenant whose keys they are. Which one a server is of, it knows itself."""
    if value is not None and ctx.params.get("server"):
        raise click.UsageError("a tenant and a server are named: the server knows its own.", ctx)
    return known_name(ctx, param, value) or "default"


def place_options(scope: str, *, argument: bool = True) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Give a command `--server`, which takes a key of this scope, `--store` and `--tenant`, and the argument STORE."""
    decorators = (
        click.option(
            "--server",
            metavar="URL",
            is_eager=True,
            callback=server_url,
            help=f"Ask the server that runs here instead of opening its store, with a key of the scope {scope} in "
            "ANTIPHON_KEY.",
        ),
        click.option(
            "--store",
            metavar="STORE",
            envvar=VARIABLE,
            show_envvar=True,
            callback=store_or_server,
            help="The store: the path of its file, or its URL.",
        ),
        click.option(
            "--tenant", metavar="NAME", callback=tenant_name, help="The tenant of the store; without it, default."
        ),
    )

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        for option in reversed(decorators):
            function = option(function)
        return store_argument(function) if argument else function

    return decorate
