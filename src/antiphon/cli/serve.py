"""`antiphon serve`: the agents and channels of a hub over HTTP."""

from __future__ import annotations

from typing import TypedDict, Unpack

import click

from antiphon.cli.options import VARIABLE, known_name, store_if_any
from antiphon.engines.resuming import RESUME_AT_ONCE
from antiphon.server.limits import HOST, PORT

STOP_WITHIN = 20.0
"""How many seconds stopping may take, unless the command says otherwise."""


class Listening(TypedDict):
    """Where the server listens, whether it wants a token, how long it may take to stop, and how it resumes turns."""

    host: str
    port: int
    opened: bool
    stop_within: float
    resume_at_once: int


@click.command()
@click.argument("path", metavar="[FILE]", required=False)
@click.option(
    "--store",
    metavar="STORE",
    envvar=VARIABLE,
    show_envvar=True,
    callback=store_if_any,
    help="Where to keep everything: the path of a SQLite file, or its URL. Without it, in memory.",
)
@click.option(
    "--tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=known_name,
    help="Whose channels to serve.",
)
@click.option("--host", metavar="ADDRESS", default=HOST, show_default=True, help="Where to listen; others need keys.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 is any that is free.")
@click.option(
    "--stop-within",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    default=STOP_WITHIN,
    show_default=True,
    help="End the process by force if it has not stopped so long after a signal.",
)
@click.option(
    "--open",
    "opened",
    is_flag=True,
    help="Without keys, let every program on this machine in without the token. Never behind a proxy.",
)
@click.option(
    "--resume-at-once",
    metavar="N",
    type=click.IntRange(min=1),
    default=RESUME_AT_ONCE,
    show_default=True,
    help="After a restart, how many of the turns that were owed may ask their models at once.",
)
@click.option(
    "--json", "as_json", is_flag=True, help='One JSON document when it has begun: {"url": …, "agents": […], …}.'
)
def command(*, path: str | None, store: str | None, tenant: str, as_json: bool, **listening: Unpack[Listening]) -> None:
    """Serve the agents that the Python file FILE defines, and the channels of a store, over HTTP.

    FILE is as for `antiphon run`; without it there are channels alone. Agents are asked with POST
    /agents/NAME/invoke, or /agents/NAME/stream_invoke to be told everything as it happens, or by any client of chat
    completions with POST /v1/chat/completions. GET /openapi.json describes everything else.

    While no key was ever made (`antiphon keys make`) only this machine is answered, to requests that show the token
    that is printed at the start. It is kept in a file beside the store (team.db-token) that only you can read. From the
    first key on a key is needed, and the token is void.

    SIGTERM and Ctrl-C stop it within --stop-within seconds, whatever tools do; pending turns resume at the next start.
    Exit codes: 0 stopped in good order, 1 ended by force or failed, 2 usage error.

    \b
    antiphon serve team.py --store team.db
    curl -H "Authorization: Bearer $(cat team.db-token)" -H 'Content-Type: application/json' \\
      -d '{"text": "Hello"}' localhost:8484/agents/support/invoke
    """
    from antiphon.cli.hosting import Wishes, host_program

    host_program(Wishes(path, store, tenant, as_json=as_json, **listening))
