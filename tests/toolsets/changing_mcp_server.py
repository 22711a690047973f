"""An MCP server whose tools are told by its environment, and change when one of them, `grow`, is called.

`OFFER` is a JSON list of tools; `LATER` the list after `grow`, whose change the server announces.
"""

import asyncio
import json
import os
from typing import Any

import mcp_types as types
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.stdio import stdio_server

offer: list[dict[str, Any]] = json.loads(os.environ["OFFER"])


def tool(given: dict[str, Any]) -> types.Tool:
    return types.Tool(**{"input_schema": {"type": "object"}, **given})


async def listed(
    context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[tool(given) for given in offer])


async def called(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name == "grow":
        offer[:] = json.loads(os.environ["LATER"])
        await context.session.send_tool_list_changed()
    return types.CallToolResult(content=[types.TextContent(text=f"{params.name} of {os.environ['CALLED']}")])


server = Server("changing", instructions=os.environ.get("INSTRUCTIONS", ""), on_list_tools=listed, on_call_tool=called)


async def main() -> None:
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, options)


asyncio.run(main())
