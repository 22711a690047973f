"""`antiphon serve`: the agents and channels of a hub over HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import click
import msgspec

from antiphon.cli.options import VARIABLE, known_name, shown_url, store_if_any
from antiphon.cli.output import Cell, Output, output, write_json
from antiphon.cli.program import Program, load
from antiphon.core.errors import UsageError
from antiphon.runtime.agent import Agent
from antiphon.runtime.hub import Hub
from antiphon.runtime.keys import keys_of
from antiphon.server.serving import HOST, PORT, serving

MEMORY = "memory:"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Wishes(msgspec.Struct, frozen=True):
    """What is to be served, and where."""

    program: Program | None
    store: str | None
    tenant: str
    host: str
    port: int


class Begun(msgspec.Struct, frozen=True):
    """What is served, for whoever reads JSON."""

    url: str
    agents: list[str]
    store: str
    keys: bool
    """Whether a key is needed."""


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
    "--json", "as_json", is_flag=True, help='One JSON document when it has begun: {"url": …, "agents": […], …}.'
)
def command(*, path: str | None, store: str | None, tenant: str, host: str, port: int, as_json: bool) -> None:
    """Serve the agents that the Python file FILE defines, and the channels of a store, over HTTP.

    FILE is as for `antiphon run`; without it there are channels alone. Agents are asked with POST
    /agents/NAME/invoke, or /agents/NAME/stream_invoke to be told everything as it happens, or by any client of chat
    completions with POST /v1/chat/completions. GET /openapi.json describes everything else.

    While no key was ever made (`antiphon keys make`) only this machine is answered; from then on nobody without one.
    SIGTERM and Ctrl-C stop it in good order; what was under way goes on when it is started again.

    \b
    antiphon serve team.py --store team.db
    curl -d '{"text": "Hello"}' -H 'Content-Type: application/json' localhost:8484/agents/support/invoke
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    program = None if path is None else load(path)  # before there is an event loop: the file may run one of its own
    wishes = Wishes(program, store, tenant, host, port)
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        loop.run(_serve(wishes, _as_json if as_json else _as_lines))


Tell = Callable[[Begun], None]


async def _serve(wishes: Wishes, tell: Tell) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    url = wishes.store or MEMORY
    async with AsyncExitStack() as stack:
        agents = await _agents(wishes.program, stack)
        hub = await stack.enter_async_context(Hub.open(url, tenant=wishes.tenant))
        for agent in agents:
            await hub.register(agent)
        served = await stack.enter_async_context(serving(hub, host=wishes.host, port=wishes.port))
        names = [agent.name for agent in agents]
        tell(Begun(served.url, names, shown_url(url), keys_of(hub).guarded))
        await stopping.wait()


async def _agents(program: Program | None, stack: AsyncExitStack) -> tuple[Agent, ...]:
    if program is None:
        return ()
    opened = await stack.enter_async_context(program.opened())
    if not opened.agents:
        raise UsageError(f"{program.path} defines no agents; a graph alone has nobody to serve")
    return opened.agents


def _as_json(begun: Begun) -> None:
    write_json(begun)
    sys.stdout.flush()


def _as_lines(begun: Begun) -> None:
    out: Output = output()
    out.line("Listening on ", Cell(begun.url, "bold"), "; stop with Ctrl-C.")
    out.line("Agents: ", ", ".join(begun.agents) or "none; channels alone")
    if begun.store == MEMORY:
        out.line("Kept in memory, and gone when it stops; keep it with --store team.db.")
    else:
        out.line("Kept in ", begun.store)
    out.line("Whoever asks needs a key." if begun.keys else "Open to this machine alone, without a key.")
    sys.stdout.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made
