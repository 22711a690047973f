"""An MCP server for the tests, run as a process: `mcp_server.py`, or `mcp_server.py http PORT [legacy] [TOKEN]`.

It speaks over its standard input and output; or over HTTP, and then says on its standard output where. Calls of `hang`
never end. What the server has begun, and what was cancelled, is written to the file that `LEDGER` names.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
PIXEL = "iVBORw0KGgo="
READ_ONLY = types.ToolAnnotations(read_only_hint=True)


def schema(*required: str, **properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


NUMBER = {"type": "integer"}
TREE = {
    "type": "object",
    "$defs": {"node": {"type": "object", "properties": {"of-these": {"$ref": "#/$defs/node"}}}},
    "properties": {"x-node": {"$ref": "#/$defs/node"}, "class": {"type": "string"}, "self": {}},
}
TOOLS = [
    types.Tool(name="add", description="Add two numbers.", input_schema=schema("a", "b", a=NUMBER, b=NUMBER)),
    types.Tool(name="pid", input_schema={"type": "object"}, annotations=READ_ONLY),
    types.Tool(name="env", input_schema=schema("name", name={"type": "string"}), annotations=READ_ONLY),
    types.Tool(name="hang", input_schema={"type": "object"}),
    types.Tool(name="freeze", input_schema={"type": "object"}),
    types.Tool(name="fail", input_schema={"type": "object"}),
    types.Tool(
        name="odd.names/and schemas",
        title="Echo what it is given.",
        input_schema=TREE,
        annotations=types.ToolAnnotations(idempotent_hint=True),
    ),
    types.Tool(name="show", input_schema=schema("kind", kind={"type": "string"}), annotations=READ_ONLY),
    types.Tool(
        name="wrong",
        input_schema={"type": "object"},
        output_schema={"type": "object", "properties": {"n": NUMBER}, "required": ["n"]},
    ),
]
SHOWN: dict[str, types.CallToolResult] = {
    "texts": types.CallToolResult(content=[types.TextContent(text="one"), types.TextContent(text="two")]),
    "nothing": types.CallToolResult(content=[]),
    "structured": types.CallToolResult(content=[], structured_content={"n": 1, "é": [True]}),
    "both": types.CallToolResult(content=[types.TextContent(text="in words")], structured_content={"n": 1}),
    "image": types.CallToolResult(
        content=[types.TextContent(text="a pixel"), types.ImageContent(data=PIXEL, mime_type="image/png")]
    ),
    "audio": types.CallToolResult(content=[types.AudioContent(data="AAAA", mime_type="audio/wav")]),
    "link": types.CallToolResult(content=[types.ResourceLink(name="log", uri="file:///log", mime_type="text/plain")]),
    "file": types.CallToolResult(
        content=[types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a.txt", text="its text"))]
    ),
    "blob": types.CallToolResult(
        content=[
            types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob=PIXEL, mime_type="x/y"))
        ]
    ),
    "large": types.CallToolResult(content=[types.TextContent(text="x" * 200_000)]),
    "mute": types.CallToolResult(content=[], is_error=True),
}


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")


async def listed(
    context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    """Two pages."""
    if params is None or params.cursor is None:
        return types.ListToolsResult(tools=TOOLS[:4], next_cursor="more")
    return types.ListToolsResult(tools=TOOLS[4:])


async def called(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    given = params.arguments or {}
    match params.name:
        case "add":
            return said(str(given["a"] + given["b"]))
        case "pid":
            return said(str(os.getpid()))
        case "env":
            return said(os.environ.get(given["name"], "(not set)"))
        case "hang":
            await hang()
        case "freeze":
            note("frozen")
            os.kill(os.getpid(), 19)  # SIGSTOP: it lives, and says nothing more
        case "fail":
            return types.CallToolResult(content=[types.TextContent(text="the sky fell down")], is_error=True)
        case "show":
            return SHOWN[given["kind"]]
        case "wrong":
            return types.CallToolResult(content=[], structured_content={"n": "no number"})
    return said(repr(dict(sorted(given.items()))))


async def hang() -> None:
    note("begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise


def said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


server = Server("tests", instructions="Add, and do not hang.", on_list_tools=listed, on_call_tool=called)


async def over_stdio() -> None:
    print("on standard error", file=sys.stderr, flush=True)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def over_http(port: int, *, legacy: bool, token: str) -> None:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    app = server.streamable_http_app()

    async def guarded(scope: Scope, receive: Callable[[], Awaitable[Scope]], send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and token and headers.get(b"authorization") != f"Bearer {token}".encode():
            await refuse(send, 401)
        elif legacy and headers.get(b"mcp-method") == b"server/discover":
            await refuse(send, 404)
        else:
            await app(scope, receive, send)

    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(guarded, log_level="critical", lifespan="on")).run(sockets=[listening])


async def refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        over_http(int(sys.argv[2]), legacy="legacy" in sys.argv, token=next(iter(sys.argv[4:]), ""))
    else:
        asyncio.run(over_stdio())
