"""The options of `antiphon run` and `antiphon serve`, apart from what they do: help must not load a whole runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from antiphon.cli.store_options import check_name_option, json_option, optional_store_option
from antiphon.engines.engine import DEFAULT_RESUME_LIMIT
from antiphon.server.limits import DEFAULT_HOST, DEFAULT_PORT

if TYPE_CHECKING:
    from antiphon.cli.run_command import RunOptions
    from antiphon.cli.serve_command import ServeOptions

DEFAULT_STOP_SECONDS = 20.0
"""How many seconds stopping may take, unless the command says otherwise."""


@click.command()
@click.argument("path", metavar="FILE")
@optional_store_option("Where to keep what is said: the path of a SQLite file, or its URL. Without it, in memory.")
@click.option("--agent", metavar="NAME", help="The agent to talk to. Without it, the first one of the file.")
@click.option(
    "--message",
    "-m",
    "messages",
    metavar="TEXT",
    multiple=True,
    help="Say this and end, instead of reading lines; may be given several times.",
)
@click.option(
    "--thread-id",
    metavar="ID",
    default="terminal",
    show_default=True,
    help="The conversation; in a store it is resumed.",
)
@click.option(
    "--tokens/--no-tokens",
    default=None,
    help="Show answers as they come, or only whole. Without either, as they come on a terminal.",
)
@json_option("One JSON object a line, one for each thing that happens.")
def run_command(**options: Unpack[RunOptions]) -> None:
    """Chat with the agents that the Python file FILE defines.

    The file is run. It defines `agents`: an Agent, a list of them, or a function that returns them (an async one, or
    one with @asynccontextmanager, if something is to be opened for them and closed at the end). With `graph`, a
    TransitionGraph, the agents talk as its rules say, and you speak for every participant that is no agent. With
    `router` or `pipeline`, a ConversationRouter or ConversationPipeline, each message goes to the agent that it names,
    and agents hand the conversation over as `handoff` allows, a HandoffHandler. With `participants`, the creator first,
    more people take part: /as NAME speaks for one, and /release gives a conversation that one has back to the agents.

    At a terminal what is typed is said, and what begins with a slash is a command: /help lists them. Ctrl-C stops an
    answer; at the prompt it leaves. If standard input is no terminal, each of its lines is said as it is, also one that
    begins with a slash, and a turn that fails ends it with exit code 1.

    \b
    antiphon run team.py --store team.db
    echo "Was I charged twice?" | antiphon run team.py
    """
    from antiphon.cli.run_command import run_program

    if not run_program(options):
        raise SystemExit(1)


@click.command()
@click.argument("path", metavar="[FILE]", required=False)
@optional_store_option("Where to keep everything: the path of a SQLite file, or its URL. Without it, in memory.")
@click.option(
    "--tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=check_name_option,
    help="The tenant whose channels are served.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default=DEFAULT_HOST,
    show_default=True,
    help="The address to listen on; one that other machines reach needs keys.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--stop-within",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    default=DEFAULT_STOP_SECONDS,
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
    default=DEFAULT_RESUME_LIMIT,
    show_default=True,
    help="After a restart, how many of the turns that were owed may ask their models at once.",
)
@json_option('One JSON document when it has begun: {"url": …, "agents": […], …}.')
def serve_command(**options: Unpack[ServeOptions]) -> None:
    """Serve the agents that the Python file FILE defines, and the channels of a store, over HTTP.

    FILE is as for `antiphon run`; without it there are channels alone. Agents are asked with POST
    /agents/NAME/invoke, or /agents/NAME/stream_invoke to stream events as they happen, or by any client of chat
    completions with POST /v1/chat/completions. The conversation that a `router` or `pipeline` routes is one more model,
    called `conversation`, or as the `title` of the file. GET /openapi.json describes everything else.

    While no key was ever made (`antiphon keys make`) only this machine is answered, to requests that show the token
    that is printed at the start. It is kept in a file beside the store (team.db-token) that only you can read. From the
    first key on a key is needed, and the token is void.

    SIGTERM and Ctrl-C stop it within --stop-within seconds, even if a tool blocks; pending turns resume at the next
    start. Exit codes: 0 graceful stop, 1 ended by force or failed, 2 usage error.

    \b
    antiphon serve team.py --store team.db
    curl -H "Authorization: Bearer $(cat team.db-token)" -H 'Content-Type: application/json' \\
      -d '{"text": "Hello"}' localhost:8484/agents/support/invoke
    """
    from antiphon.cli.serve_command import serve_program

    serve_program(options)
