"""What `antiphon serve` does: opens a hub, registers the agents of a file, and listens until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from antiphon.cli.options import shown_url
from antiphon.cli.output import Cell, Output, output, write_json
from antiphon.cli.program import Program, load
from antiphon.cli.watchdog import Watchdog
from antiphon.core.errors import UsageError
from antiphon.engines.local import LocalEngine
from antiphon.hub.clock import SystemClock
from antiphon.runtime.agent import Agent
from antiphon.runtime.hub import Hub
from antiphon.runtime.keys import keys_of
from antiphon.server.files import raise_file_limit
from antiphon.server.limits import Limits
from antiphon.server.serving import serving
from antiphon.store.urls import open_store

MEMORY = "memory:"
REQUESTS, CALLS = 0.5, 0.25
"""Of the time that stopping may take: the share of the requests in progress, then that of the calls in progress."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Wishes(msgspec.Struct, frozen=True):
    """What is to be served, and where."""

    path: str | None
    store: str | None
    tenant: str
    host: str
    port: int
    opened: bool
    resume_at_once: int
    as_json: bool
    stop_within: float
    """After how many seconds a process that was told to stop is ended by force."""


class Begun(msgspec.Struct, frozen=True):
    """What is served, for whoever reads JSON."""

    url: str
    agents: list[str]
    store: str
    keys: bool
    """Whether a key is needed."""
    token: str | None
    """What is shown instead while there are no keys; None if there are, or if the server is open."""


def host_program(wishes: Wishes) -> None:
    """Serve what is wished for until a signal comes."""
    logging.basicConfig(level=logging.WARNING, format=FORMAT)
    program = None if wishes.path is None else load(wishes.path)  # before there is a loop: it may run one of its own
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        loop.run(_serve(wishes, program))


async def _serve(wishes: Wishes, program: Program | None) -> None:
    watchdog = Watchdog(wishes.stop_within)
    url = wishes.store or MEMORY
    limits = Limits(stop_seconds=wishes.stop_within * REQUESTS)
    raise_file_limit(limits.connections)
    async with AsyncExitStack() as stack:
        stack.enter_context(watchdog.listening())
        agents = await _agents(program, stack)
        hub = await _hub(url, wishes)
        stack.push_async_callback(hub.close)
        for agent in agents:
            await hub.register(agent)
        listening = serving(hub, host=wishes.host, port=wishes.port, limits=limits, open=wishes.opened)
        served = await stack.enter_async_context(listening)
        names = [agent.name for agent in agents]
        begun = Begun(served.url, names, shown_url(url), keys_of(hub).guarded, served.token or None)
        if wishes.as_json:
            write_json(begun)
        else:
            _tell(begun, output())
        sys.stdout.flush()
        await watchdog.stopping.wait()


async def _hub(url: str, wishes: Wishes) -> Hub:
    clock = SystemClock()
    store = await open_store(url, tenant=wishes.tenant, clock=clock)
    engine = LocalEngine(store, clock, grace=wishes.stop_within * CALLS)
    return await Hub.over(store, clock=clock, engine=engine, resume_at_once=wishes.resume_at_once)


async def _agents(program: Program | None, stack: AsyncExitStack) -> tuple[Agent, ...]:
    if program is None:
        return ()
    opened = await stack.enter_async_context(program.opened())
    if not opened.agents:
        raise UsageError(f"{program.path} defines no agents; a graph alone has nobody to serve")
    return opened.agents


def _tell(begun: Begun, out: Output) -> None:
    out.line("Listening on ", Cell(begun.url, "bold"), "; stop with Ctrl-C.")
    out.line("Agents: ", ", ".join(begun.agents) or "none; channels alone")
    if begun.store == MEMORY:
        out.line("Kept in memory, and gone when it stops; keep it with --store team.db.")
    else:
        out.line("Kept in ", begun.store)
    if begun.keys:
        out.line("Requests need a key.")
    elif begun.token is None:
        out.line("Open to every program on this machine, without a token.")
    else:
        out.line("Requests need this server's token, until a key is made:")
        out.command(f"  curl -H 'Authorization: Bearer {begun.token}' {begun.url}/agents")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made
