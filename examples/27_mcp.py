"""An agent with the tools of an MCP server. This file is both: with the argument `serve` it runs as the server."""

import asyncio
import sys

from antiphon import Agent, Hub, MCPServer, ScriptedModel, calls


async def main() -> None:
    model = ScriptedModel([calls("weather_in", {"city": "Bergen"}), "It rains in Bergen, as ever."])
    async with Hub.open("memory:") as hub, MCPServer.stdio(sys.executable, __file__, "serve") as server:
        agent = Agent("assistant", model=model, system_prompt=server.instructions, tools=[*server.tools])
        reply = await agent.invoke("What is the weather like in Bergen?", hub=hub)
    for tool in server.tools:
        print(f"the server offers {tool.name}: {tool.description} ({tool.idempotency})")
    print(f"it answered: {model.requests[-1].messages[-1].text}")
    print(f"{reply.agent}: {reply.text}")


def serve() -> None:
    from mcp.server import MCPServer as Server
    from mcp.types import ToolAnnotations

    server = Server("weather", instructions="You know the weather.")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def weather_in(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    server.run()


if sys.argv[1:] == ["serve"]:
    serve()
else:
    asyncio.run(main())
