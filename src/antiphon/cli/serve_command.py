"""What `antiphon serve` does: agents and channels over HTTP, until a signal stops the server.

Rule 1: the deadline holds against any user code. It is kept by a thread, because a tool that blocks the event loop
        blocks everything else too. Only code that keeps the interpreter's lock for good can delay it.
Rule 2: nothing is lost by force. What was acknowledged is on disk, and the next process resumes from it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from types import FrameType
from typing import TypedDict

import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.program import Program, conversation_people, load_program
from antiphon.cli.store_options import MEMORY_URL, url_without_password
from antiphon.cli.table_layout import Cell
from antiphon.core.errors import UsageError
from antiphon.core.ruleset import ChannelRoster
from antiphon.engines.local import LocalEngine
from antiphon.engines.user_code import running_code_names
from antiphon.hub.clock import SystemClock
from antiphon.runtime.hub import Hub
from antiphon.runtime.routed_channels import OfferedConversation, offer_conversation
from antiphon.server.api_keys import keys_of
from antiphon.server.limits import ServerLimits, raise_file_limit
from antiphon.server.serving import serving
from antiphon.store.urls import open_store

logger = logging.getLogger("antiphon.server")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
FORCED_EXIT_CODE = 1
"""The exit code of a process that was ended by force."""
STDERR_FD = 2
LAST_LOG_SECONDS = 1.0
"""The limit for writing the last line of the log: a full pipe must not delay the exit."""


class Watchdog:
    """Stops the server on a signal, and ends the process some seconds later if it still runs."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline: threading.Thread | None = None
        self.stopping = asyncio.Event()
        """Set by a signal."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals of the process; for good once one has come, because the process then ends.

        `loop.add_signal_handler` would not do: its handlers run in the event loop, which a tool may hold.
        """
        before = {number: signal.signal(number, self._take) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            if self._deadline is None:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has stopped, and the process ends
            self._loop.call_soon_threadsafe(self.stopping.set)
        if self._deadline is None:
            name = signal.Signals(number).name
            self._deadline = threading.Thread(target=self._end, args=(name,), name="antiphon watchdog", daemon=True)
            self._deadline.start()
            # This one does not run Python: it also ends a process that hangs while the interpreter shuts down.
            faulthandler.dump_traceback_later(self._seconds + LAST_LOG_SECONDS, file=STDERR_FD, exit=True)

    def _end(self, name: str) -> None:
        time.sleep(self._seconds)
        telling = threading.Thread(target=self._tell, args=(name,), daemon=True)
        telling.start()
        telling.join(LAST_LOG_SECONDS)
        os._exit(FORCED_EXIT_CODE)

    def _tell(self, name: str) -> None:
        logger.critical(
            "the server did not stop within %g seconds of %s and is ended by force (exit code %d); still running: %s; "
            "the main thread is at %s. What was acknowledged is recorded, and resumes at the next start",
            self._seconds,
            name,
            FORCED_EXIT_CODE,
            ", ".join(running_code_names()) or "nothing of an agent's",
            _main_position(),
        )


def _main_position() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


REQUESTS_STOP_SHARE, CALLS_STOP_SHARE = 0.5, 0.25
"""Of the time that stopping may take: the share of the requests in progress, then that of the calls in progress."""
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ServeOptions(TypedDict):
    """The arguments of the command."""

    path: str | None
    store: str | None
    tenant: str
    host: str
    port: int
    opened: bool
    resume_at_once: int
    as_json: bool
    stop_within: float
    """Seconds from the signal until the process is ended by force."""


class ServeStarted(msgspec.Struct, frozen=True):
    """The output of `--json`."""

    url: str
    agents: list[str]
    store: str
    keys: bool
    """Whether requests need a key."""
    token: str | None
    """The token that requests need without keys; None if there are keys, or if the server is open."""
    conversation: str | None = None
    """The routed conversation, by its name among the models; None if the file has no router."""
    warnings: list[str] = []
    """What is probably wrong with the router. It is recorded with each conversation, too."""


def serve_program(options: ServeOptions) -> None:
    """Serve until a signal comes."""
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    path = options["path"]
    program = load_program(path) if path is not None else None  # before there is a loop: it may run one of its own
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        loop.run(_run_server(options, program))


async def _run_server(options: ServeOptions, program: Program | None) -> None:
    seconds, url, clock = options["stop_within"], options["store"] or MEMORY_URL, SystemClock()
    watchdog, limits = Watchdog(seconds), ServerLimits(stop_seconds=seconds * REQUESTS_STOP_SHARE)
    raise_file_limit(limits.connections)
    async with AsyncExitStack() as stack:
        stack.enter_context(watchdog.listening())
        agents = await stack.enter_async_context(program.open()) if program is not None else ()
        if program is not None and not agents:
            raise UsageError(f"{program.path} defines no agents; a graph alone has nobody to serve")
        store = await open_store(url, tenant=options["tenant"], clock=clock)
        engine = LocalEngine(store, clock, grace=seconds * CALLS_STOP_SHARE)
        hub = await Hub.over(store, clock=clock, engine=engine, resume_at_once=options["resume_at_once"])
        stack.push_async_callback(hub.close)
        for agent in agents:
            await hub.register(agent)
        offered = _offer_routing(hub, program, [agent.name for agent in agents])
        listening = serving(hub, host=options["host"], port=options["port"], limits=limits, open=options["opened"])
        served = await stack.enter_async_context(listening)
        names, guarded = [agent.name for agent in agents], (await keys_of(hub)).guarded
        begun = ServeStarted(
            served.url,
            names,
            url_without_password(url),
            guarded,
            served.token or None,
            offered,
            _router_warnings(program, names),
        )
        if options["as_json"]:
            write_json(begun)
        else:
            _print_started(begun, select_output())
        sys.stdout.flush()
        await watchdog.stopping.wait()


def _offer_routing(hub: Hub, program: Program | None, played: Sequence[str]) -> str | None:
    """Offer the conversation that the file's router or pipeline defines; its name, if there is one."""
    if program is None or program.routing is None:
        return None
    routing = program.routing
    handoff = None if routing.handoff is None else routing.handoff.to_dict()
    people = tuple(conversation_people(program, played)[1:])
    offer_conversation(hub, OfferedConversation(routing.router.to_dict(), handoff, people, routing.name))
    return routing.name


def _router_warnings(program: Program | None, played: Sequence[str]) -> list[str]:
    """What is probably wrong with the file's router in a conversation of its agents and people."""
    if program is None or program.routing is None:
        return []
    creator, *others = conversation_people(program, played)
    kinds = {creator: "human", **dict.fromkeys(played, "agent"), **dict.fromkeys(others, "human")}
    found = program.routing.router.check(ChannelRoster(kinds))
    return [f"the router: {each.message}" for each in found]


def _print_started(begun: ServeStarted, out: CommandOutput) -> None:
    out.line("Listening on ", Cell(begun.url, "bold"), "; stop with Ctrl-C.")
    out.line("Agents: ", ", ".join(begun.agents) or "none; channels alone")
    if begun.conversation is not None:
        out.line("Conversation: ", begun.conversation, ", a model of POST /v1/chat/completions beside the agents")
    for warning in begun.warnings:
        out.line(Cell("Warning: ", "yellow"), warning)
    if begun.store == MEMORY_URL:
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
