"""What cannot be an MCP server, or is none: one sentence with the value and the fix."""

import asyncio
import socket
import sys
from collections.abc import Callable

import pytest

from antiphon import MCPServer, UsageError
from tests.toolsets.mcp_processes import SECONDS, nothing_left

SILENT = "import sys; sys.stdin.read()"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: MCPServer.http("localhost:8000"),
            "'localhost:8000' is not the URL of an MCP server; give one such as 'http://127.0.0.1:8000/mcp'",
        ),
        (
            lambda: MCPServer.http("http://x:port/mcp"),
            "'http://x:port/mcp' is not the URL of an MCP server "
            "(Port could not be cast to integer value as 'port'); give one such as 'http://127.0.0.1:8000/mcp'",
        ),
        (
            lambda: MCPServer.http("http://127.0.0.1/mcp", headers={"key": 7}),  # type: ignore[dict-item]
            "headers of an MCP server has 'key' as a int; give texts",
        ),
        (
            lambda: MCPServer.stdio(""),
            "an MCP server cannot be started with ''; give the command and its arguments as texts: "
            'MCPServer.stdio("python", "server.py")',
        ),
        (
            lambda: MCPServer.stdio("x", idempotency="keyed"),  # type: ignore[arg-type]
            "idempotency of an MCP server is 'keyed'; give 'natural' or 'unsafe', or a dict of these by the names of "
            "tools; no server knows the key of a 'keyed' call",
        ),
        (
            lambda: MCPServer.stdio("x", only="add"),
            "only of an MCP server is 'add'; give a list of the names of tools",
        ),
        (
            lambda: MCPServer.stdio("x", prefix="a b"),
            "prefix of an MCP server is 'a b'; give up to 32 letters, digits, '_' and '-'",
        ),
        (
            lambda: MCPServer.stdio("x", timeout=0),
            "timeout of an MCP server is 0; give seconds above 0, or None for no limit",
        ),
        (
            lambda: MCPServer.stdio("x", connect_timeout=None),  # type: ignore[arg-type]
            "connect_timeout of an MCP server is None; give seconds above 0",
        ),
        (
            lambda: MCPServer.stdio("x", patience=3),  # type: ignore[call-arg]
            "an MCP server has no option 'patience'; there are: "
            "prefix, only, without, timeout, connect_timeout, idempotency",
        ),
        (
            lambda: MCPServer.stdio("x").tools,
            "the MCP server 'x' is not open; use it within 'async with server:'",
        ),
    ],
)
def test_refused_where_it_is_written(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: MCPServer.stdio("no-such-command", "--key=secret"),
            "the MCP server 'no-such-command' cannot be started: there is no command 'no-such-command'; "
            "install it, or give its path",
        ),
        (
            lambda: MCPServer.stdio("x", "y", cwd="/no/such/place"),
            "the MCP server 'x y' cannot be started in '/no/such/place': there is no such directory; give another cwd=",
        ),
        (
            lambda: MCPServer.stdio(sys.executable, "-c", "raise SystemExit('no such database')"),
            f"the MCP server {sys.executable!r} ended before it answered; "
            "its last words were 'no such database': run it by hand to see why",
        ),
        (
            lambda: MCPServer.stdio(sys.executable, "-c", SILENT, connect_timeout=0.2),
            f"the MCP server {sys.executable!r} did not answer within 0.2 s; check that it speaks MCP on its "
            "standard output, or give it more time with connect_timeout=",
        ),
    ],
)
async def test_refused_when_it_is_opened(make: Callable[[], MCPServer], expected: str) -> None:
    async with nothing_left():
        with pytest.raises(UsageError) as refused:
            await make().__aenter__()
        assert str(refused.value) == expected


async def test_nobody_answers_over_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and says nothing
        url = f"http://user:secret@127.0.0.1:{listening.getsockname()[1]}/mcp?key=secret"
        place = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        with pytest.raises(UsageError) as silent:
            await MCPServer.http(url, connect_timeout=0.2).__aenter__()
    assert str(silent.value) == (
        f"the MCP server at '{place}' did not answer within 0.2 s; check that the URL is that of an MCP server, or "
        "give it more time with connect_timeout="
    )
    with pytest.raises(UsageError) as absent:
        await MCPServer.http(url).__aenter__()
    assert str(absent.value) == (
        f"the MCP server at '{place}' cannot be reached: nothing answers there; start it, or check host and port"
    )


async def test_an_opening_that_is_cancelled_does_not_wait() -> None:
    reached = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    async with nothing_left(), await asyncio.start_server(say_nothing, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        opening = asyncio.create_task(MCPServer.http(url, connect_timeout=1000).__aenter__())
        async with asyncio.timeout(SECONDS):
            await reached.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening


async def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "mcp_client"):
        monkeypatch.delitem(sys.modules, f"antiphon.toolsets.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError) as refused:
        await MCPServer.stdio("x").__aenter__()
    assert str(refused.value) == 'MCP servers need the package mcp; run: pip install "antiphon[mcp]"'
