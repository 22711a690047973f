"""MCP servers whose tools an agent can have.

Rule 1: a server is open between `async with` and the end of that block. Then its process and connections are closed.
Rule 2: an error of a server is reported to the model that called its tool. A dead server ends no turn, and every wait
        for it has a limit.
Rule 3: the tools are those that the server offered when it was opened. They are values, and do not change.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack, cast

from antiphon.agents.tool import Tool
from antiphon.agents.tool_options import DEFAULT_TOOL_SECONDS
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.toolsets.mapping import (
    MAX_INSTRUCTIONS_BYTES,
    MAYBE_DONE,
    McpIdempotency,
    RequestUnsent,
    ToolFailed,
    ToolSelection,
    clean_text,
    map_tools,
    result_as_text,
)
from antiphon.toolsets.transports import McpTransport, http_transport, stdio_transport

if TYPE_CHECKING:
    from antiphon.toolsets.connection import McpConnection


CONNECT_TIMEOUT_SECONDS = 30.0
PROBE_SECONDS = 5.0
"""The time in which a server that was late must answer a probe."""
PREFIX_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


class MCPOptions(TypedDict, total=False):
    """Options of every MCP server."""

    prefix: str
    """Put before the names of its tools, with an underscore between."""
    only: Sequence[str] | None
    """The tools to use, by the server's own names; all, if not given."""
    without: Sequence[str]
    """The tools to leave out."""
    timeout: float | None
    """The seconds a call may take: 60, if not given; None for no limit."""
    connect_timeout: float
    """The seconds until the server must be connected and have listed its tools: 30, if not given."""
    idempotency: McpIdempotency | Mapping[str, McpIdempotency] | None
    """What a second call does, for all tools or by name; what the server says, if not given."""


class StdioOptions(MCPOptions, total=False):
    """Options of a child process."""

    env: Mapping[str, str] | None
    """What its environment has besides the few variables that every process needs."""
    cwd: str | PathLike[str] | None
    """The directory it runs in; ours, if not given."""


class HttpOptions(MCPOptions, total=False):
    """Options of a server at a URL."""

    headers: Mapping[str, str] | None
    """Sent with every request."""


DEFAULT_MCP_OPTIONS: MCPOptions = {
    "prefix": "",
    "only": None,
    "without": (),
    "timeout": DEFAULT_TOOL_SECONDS,
    "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    "idempotency": None,
}


class MCPServer:
    """An MCP server as a source of tools. Made by `MCPServer.stdio` or `MCPServer.http`, opened by `async with`."""

    def __init__(self, way: McpTransport, options: MCPOptions) -> None:
        settings: MCPOptions = {**DEFAULT_MCP_OPTIONS, **options}
        _check_mcp_options(settings)
        self._way = way
        self._choice = ToolSelection(settings["prefix"], settings["only"], settings["without"], settings["idempotency"])
        self._timeout = settings["timeout"]
        self._patience = settings["connect_timeout"]
        self._tools: tuple[Tool, ...] | None = None
        self._instructions = ""
        self._link: McpConnection | None = None
        self._closed = False

    @classmethod
    def stdio(cls, command: str, *args: str, **options: Unpack[StdioOptions]) -> MCPServer:
        """A server that runs as a child process: started when this is opened, and stopped when it is closed."""
        env, cwd = options.pop("env", None), options.pop("cwd", None)
        return cls(stdio_transport(command, args, env=env, cwd=cwd), cast("MCPOptions", options))

    @classmethod
    def http(cls, url: str, **options: Unpack[HttpOptions]) -> MCPServer:
        """A server at a URL, over streamable HTTP."""
        headers = options.pop("headers", None)
        return cls(http_transport(url, headers), cast("MCPOptions", options))

    def __repr__(self) -> str:
        return f"<{self._way.label.removeprefix('the ')}>"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools, as they were when it was opened."""
        self._check_opened()
        return self._tools or ()

    @property
    def instructions(self) -> str:
        """The server's instructions; empty if it has none."""
        self._check_opened()
        return self._instructions

    async def __aenter__(self) -> Self:
        """Connect, and read what it offers. `UsageError` says why that is not possible."""
        if self._link is not None:
            raise UsageError(f"{self._way.label} is or was open; make another MCPServer to open it again")
        self._link = link = self._connect()
        try:
            offer = await link.offer()
            self._tools = map_tools(offer.tools, self._choice, call=self._call, label=self._way.label)
        except BaseException as error:
            await self._close()
            if isinstance(error, ToolFailed):
                raise UsageError(str(error)) from error
            raise
        self._instructions = clean_text(offer.instructions, MAX_INSTRUCTIONS_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.end(f"{self._way.label} was closed before it answered; {MAYBE_DONE}")

    def _check_opened(self) -> None:
        if self._tools is None:
            raise UsageError(f"{self._way.label} is not open; use it within 'async with server:'")

    def _connect(self) -> McpConnection:
        try:
            from antiphon.toolsets.connection import McpConnection
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
                raise
            raise UsageError('MCP servers need the package mcp; run: pip install "antiphon[mcp]"') from error
        return McpConnection(self._way, self._patience)

    async def _call(self, tool: str, arguments: dict[str, object]) -> str:
        """The result of a tool. A call that could not be sent, its connection being closed, is sent once more."""
        try:
            return await self._called(tool, arguments)
        except RequestUnsent:
            return await self._called(tool, arguments)

    async def _called(self, tool: str, arguments: dict[str, object]) -> str:
        link = await self._alive(await self._linked())
        try:
            async with asyncio.timeout(self._timeout):
                result = await link.ask(lambda client: client.call_tool(tool, arguments))
        except TimeoutError as error:
            link.doubted = True
            late = f"{self._way.label} did not answer within {self._timeout:g} s"
            raise ToolFailed(f"{late}; {MAYBE_DONE}") from error
        return result_as_text(result)

    async def _linked(self) -> McpConnection:
        """The connection; if it is closed, a new one, which concurrent calls share."""
        link = self._link
        if link is not None and link.over:
            await link.ended()
            if link is self._link and not self._closed:
                self._link = self._connect()
        if self._closed or self._link is None:
            raise ToolFailed(f"{self._way.label} is closed; keep it open for as long as its tools are used")
        link = self._link
        await link.offer()
        return link

    async def _alive(self, link: McpConnection) -> McpConnection:
        """The connection, or a new one if the server has stopped answering on it."""
        if not link.doubted:
            return link
        if await link.answers(min(PROBE_SECONDS, self._patience)):
            link.doubted = False
            return link
        await link.end(f"{self._way.label} has stopped answering; {MAYBE_DONE}")
        return await self._linked()


def _check_mcp_options(options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if option not in DEFAULT_MCP_OPTIONS:
            raise UsageError(f"an MCP server has no option {option!r}; there are: {', '.join(DEFAULT_MCP_OPTIONS)}")
        wanted = _option_misfit(option, value)
        if wanted:
            raise UsageError(f"{option} of an MCP server is {describe(value)}; give {wanted}")


def _option_misfit(option: str, value: object) -> str | None:
    """What the option should be instead; None if it can be this."""
    match option:
        case "prefix":
            fits = value == "" or (isinstance(value, str) and PREFIX_PATTERN.match(value) is not None)
            return None if fits else "up to 32 letters, digits, '_' and '-'"
        case "only" if value is None:
            return None
        case "only" | "without":
            fits = isinstance(value, list | tuple | set | frozenset) and all(isinstance(each, str) for each in value)
            return None if fits else "a list of the names of tools"
        case "timeout":
            return None if value is None or _is_positive_seconds(value) else "seconds above 0, or None for no limit"
        case "connect_timeout":
            return None if _is_positive_seconds(value) else "seconds above 0"
        case _:
            classes = value.values() if isinstance(value, Mapping) else [value]
            fits = value is None or all(each in ("natural", "unsafe") for each in classes)
            advice = "'natural' or 'unsafe', or a dict of these by the names of tools"
            return None if fits else f"{advice}; no server knows the key of a 'keyed' call"


def _is_positive_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
