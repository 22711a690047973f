"""MCP servers at a URL."""

import asyncio
from pathlib import Path

import pytest

from antiphon import Agent, Hub, MCPServer, ScriptedModel, UsageError, calls
from tests.toolsets.mcp_processes import Place, failure, named, nothing_left, returned

MAYBE = "the call may have taken effect all the same"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_an_agent_uses_the_tools_of_a_server(place: Place) -> None:
    model = ScriptedModel([[calls("add", {"a": 1, "b": 2}), calls("fail")], "3."])
    with place.listening() as listening:
        async with Hub.open("memory:") as hub, MCPServer.http(listening.url, only=["add", "fail", "hang"]) as server:
            agent = Agent("assistant", model=model, tools=[*server.tools])
            reply = await agent.invoke("1 + 2?", hub=hub)
            assert reply.text == "3."
            told = [text for role, text in model.requests[-1].messages if role == "tool"]
            assert told == ["3", "ToolFailed: the sky fell down"]
            hang, add = named(server, "hang"), named(server, "add")
            waiting = [asyncio.create_task(returned(hang)) for _ in range(2)]
            await place.noted("begun", 2)
            assert await asyncio.gather(*(returned(add, a=n, b=0) for n in range(20))) == [str(n) for n in range(20)]
            waiting[0].cancel()
            await place.noted("cancelled")
            last = asyncio.create_task(failure(waiting[1]))
        assert (await last).endswith(f"was closed before it answered; {MAYBE}")


async def test_no_proxy_reads_what_stays_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with place.listening() as listening:
        async with MCPServer.http(listening.url) as server:
            assert await returned(named(server, "add"), a=1, b=1) == "2"


async def test_a_server_that_is_killed_and_comes_back(place: Place) -> None:
    with place.listening() as listening:
        async with MCPServer.http(listening.url) as server:
            hang, add = named(server, "hang"), named(server, "add")
            under_way = [asyncio.create_task(failure(returned(hang))) for _ in range(2)]
            await place.noted("begun", 2)
            listening.kill()
            for each in under_way:
                assert is_lost(await each, listening.url)
            assert await failure(returned(add, a=1, b=1)) == (
                f"the MCP server at '{listening.url}' cannot be reached: nothing answers there; "
                "start it, or check host and port"
            )
            with place.listening(port=listening.port):
                assert await returned(add, a=1, b=1) == "2"


async def test_a_server_of_an_older_kind_that_is_started_anew_does_not_know_the_connection(place: Place) -> None:
    with place.listening("legacy") as listening:
        async with MCPServer.http(listening.url) as server:
            hang, add = named(server, "hang"), named(server, "add")
            assert await returned(add, a=1, b=1) == "2"
            listening.kill()
            with place.listening("legacy", port=listening.port) as again:
                assert await returned(add, a=2, b=1) == "3", "it was not carried out, and is made again"
                under_way = asyncio.create_task(failure(returned(hang)))
                await place.noted("begun")
                again.kill()
                assert is_lost(await under_way, listening.url)


def is_lost(text: str, url: str) -> bool:
    start = f"the connection to the MCP server at '{url}' was lost before it answered"
    return text.startswith(start) and text.endswith(MAYBE)


async def test_credentials(place: Place) -> None:
    with place.listening("modern", "hidden") as listening:
        async with nothing_left():
            with pytest.raises(UsageError) as refused:
                await MCPServer.http(listening.url).__aenter__()
            assert str(refused.value) == (
                f"the MCP server at '{listening.url}' answered with HTTP status 401; "
                "give what it asks for, such as headers={'Authorization': 'Bearer …'}"
            )
            headers = {"Authorization": "Bearer hidden"}
            async with MCPServer.http(listening.url, headers=headers) as server:
                assert await returned(named(server, "add"), a=1, b=1) == "2"
                assert "hidden" not in repr(server)
            with pytest.raises(UsageError, match="HTTP status 404: it is not there; give its URL with the path"):
                await MCPServer.http(listening.url.removesuffix("mcp"), headers=headers).__aenter__()
