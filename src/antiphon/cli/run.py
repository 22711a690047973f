"""`antiphon run`: talk to the agents of a Python file, or watch its graph at work and take part."""

from __future__ import annotations

import click

from antiphon.cli.options import VARIABLE, store_if_any


@click.command()
@click.argument("path", metavar="FILE")
@click.option(
    "--store",
    metavar="STORE",
    envvar=VARIABLE,
    show_envvar=True,
    callback=store_if_any,
    help="Where to keep what is said: the path of a SQLite file, or its URL. Without it, in memory.",
)
@click.option("--agent", metavar="NAME", help="Whom to talk to. Without it, the first agent of the file.")
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
    help="Which conversation this is. In a store, it goes on where it was.",
)
@click.option(
    "--tokens/--no-tokens",
    default=None,
    help="Show answers as they come, or only whole. Without either, as they come on a terminal.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each thing that happens.")
def command(
    *,
    path: str,
    store: str | None,
    agent: str | None,
    messages: tuple[str, ...],
    **how: str | bool | None,
) -> None:
    """Chat with the agents that the Python file FILE defines.

    The file is run. It defines `agents`: an Agent, a list of them, or a function that returns them (an async one, or
    one with @asynccontextmanager, if something is to be opened for them and closed at the end). With `graph`, a
    TransitionGraph, the agents talk as its rules say, and you speak for everybody in it who is no agent.

    What is typed is said, and what begins with a slash is a command: /help lists them. Ctrl-C stops an answer; at the
    prompt it leaves. If standard input is no terminal, each of its lines is said and answered, and a turn that fails
    ends it with exit code 1.

    \b
    antiphon run team.py --store team.db
    echo "Was I charged twice?" | antiphon run team.py
    """
    from antiphon.cli.conversing import Wishes, converse

    tokens, thread_id = how["tokens"], str(how["thread_id"])
    wishes = Wishes(
        path,
        store,
        agent,
        messages,
        thread_id,
        None if tokens is None else bool(tokens),
        as_json=bool(how["as_json"]),
    )
    if not converse(wishes):
        raise SystemExit(1)
