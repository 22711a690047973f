"""MCP servers that are processes of ours."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import Agent, Hub, MCPServer, ScriptedModel, UsageError, calls
from tests.toolsets.mcp_processes import Place, children, dead, eventually, failure, named, nothing_left, returned

MAYBE = "the call may have taken effect all the same"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where the server is that nothing is done to."""
    place = Place(tmp_path_factory.mktemp("shared"))
    place.env["GIVEN"] = "given"
    return place


@pytest.fixture(scope="module")
async def server(shared: Place) -> AsyncIterator[MCPServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "secret")
        async with shared.stdio() as server:
            yield server


async def test_an_agent_uses_the_tools_of_a_server(server: MCPServer) -> None:
    model = ScriptedModel(
        [
            [calls("add", {"a": 1, "b": 2}), calls("add", {"a": 3, "b": 4}), calls("fail")],
            [calls("add", {"a": "x", "b": 2}), calls("show", {"kind": "large"}), calls("wrong")],
            "3 and 7.",
        ]
    )
    async with Hub.open("memory:") as hub:
        agent = Agent("assistant", model=model, tools=[*server.tools])
        reply = await agent.invoke("1 + 2, 3 + 4?", hub=hub)
    assert reply.text == "3 and 7."
    told = [text for role, text in model.requests[-1].messages if role == "tool"]
    assert told[:3] == ["3", "7", "ToolFailed: the sky fell down"]
    assert told[3].startswith("ToolFailed: ")
    assert told[4] == "The result has 200000 bytes; the limit is 131072. Ask for less at once."
    assert told[5].startswith("ToolFailed: RuntimeError: Invalid structured content returned by tool wrong: ")
    spec = next(each for each in model.requests[0].specs if each.name == "add")
    assert spec.description == "Add two numbers."
    assert spec.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }


async def test_what_a_model_is_told_of_results_and_strange_arguments(server: MCPServer) -> None:
    show = named(server, "show")
    shown = {
        "texts": "one\ntwo",
        "nothing": "",
        "structured": '{"n":1,"é":[true]}',
        "both": "in words",
        "image": "a pixel\n[image: image/png, 8 bytes]",
        "audio": "[audio: audio/wav, 3 bytes]",
        "link": "[resource: file:///log, text/plain, not included]",
        "file": "[resource: file:///a.txt, of unknown type]\nits text",
        "blob": "[resource: file:///b, x/y, 8 bytes]",
    }
    assert {kind: await returned(show, kind=kind) for kind in shown} == shown
    assert await failure(returned(show, kind="mute")) == "the tool says that it failed, and not why"
    odd = named(server, "odd_names_and_schemas")
    assert odd.description == "Echo what it is given."
    assert odd.parameters["$defs"] == {"node": {"type": "object", "properties": {"of-these": {"$ref": "#/$defs/node"}}}}
    arguments = {"x-node": {"of-these": {}}, "class": "x", "self": None}
    assert await returned(odd, **arguments) == "{'class': 'x', 'self': None, 'x-node': {'of-these': {}}}"
    assert await returned(odd) == "{}"


async def test_classes_environment_and_instructions(server: MCPServer) -> None:
    assert server.instructions == "Add, and do not hang."
    assert {tool.name: tool.idempotency for tool in server.tools} == {
        "add": "unsafe",
        "pid": "natural",
        "env": "natural",
        "hang": "unsafe",
        "freeze": "unsafe",
        "fail": "unsafe",
        "odd_names_and_schemas": "natural",
        "show": "natural",
        "wrong": "unsafe",
    }
    env = named(server, "env")
    assert await returned(env, name="GIVEN") == "given"
    assert await returned(env, name="OPENAI_API_KEY") == "(not set)"
    assert await returned(env, name="PATH") == os.environ["PATH"]


async def test_a_server_that_is_killed_while_it_is_asked(place: Place) -> None:
    async with nothing_left(), place.stdio() as server:
        pid, hang, add = (named(server, name) for name in ("pid", "hang", "add"))
        first = int(await returned(pid))
        under_way = [asyncio.create_task(failure(returned(hang))) for _ in range(3)]
        await place.noted("begun", 3)
        os.kill(first, signal.SIGKILL)
        for each in under_way:
            assert (await each).endswith(f" ended before it answered; {MAYBE}")
        answers = await asyncio.gather(*(returned(add, a=n, b=1) for n in range(3)), returned(pid))
        assert answers[:3] == ["1", "2", "3"]
        assert int(answers[3]) != first
        assert len({await returned(pid) for _ in range(3)}) == 1, "one process was started for all who asked"
        second = int(answers[3])
        os.kill(second, signal.SIGKILL)
        await dead(second)
        assert int(await returned(pid)) not in (first, second), "nobody asked, and yet its end was noticed"


async def test_a_server_that_freezes_is_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.toolsets.mcp.PROBE_SECONDS", 1.5)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.1)
    monkeypatch.setattr("mcp.client.stdio.FORCE_KILL_TIMEOUT", 0.1)
    async with nothing_left(), place.stdio(timeout=1.5) as server:
        pid, freeze, hang = (named(server, name) for name in ("pid", "freeze", "hang"))
        first = await returned(pid)
        late = await failure(returned(hang))
        assert late.endswith(f"did not answer within 1.5 s; {MAYBE}")
        assert await returned(pid) == first, "a server that is only slow is kept"
        assert "within 1.5 s" in await failure(returned(freeze))
        assert await returned(pid) != first


async def test_a_caller_that_is_cancelled_cancels_its_request(server: MCPServer, shared: Place) -> None:
    hang, add = named(server, "hang"), named(server, "add")
    waiting = asyncio.create_task(returned(hang))
    await shared.noted("begun")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await shared.noted("cancelled")
    assert await returned(add, a=1, b=1) == "2"


async def test_closing_ends_what_is_under_way(
    place: Place, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "antiphon.mcp")
    async with nothing_left():
        async with place.stdio(prefix="t") as server:
            hang, add = named(server, "t_hang"), named(server, "t_add")
            under_way = asyncio.create_task(failure(returned(hang)))
            await place.noted("begun")
        assert (await under_way).endswith(f" was closed before it answered; {MAYBE}")
        closed = await failure(returned(add, a=1, b=1))
        assert closed.endswith(" is closed; keep it open for as long as its tools are used")
        assert add in server.tools
        with pytest.raises(UsageError, match="is or was open"):
            await server.__aenter__()
    record = next(each for each in caplog.records if "on standard error" in each.getMessage())
    assert (record.name, record.levelno) == ("antiphon.mcp", logging.DEBUG)
    assert capfd.readouterr() == ("", ""), "nothing is for the terminal"


async def test_closing_while_it_connects_anew(place: Place) -> None:
    async with nothing_left():
        async with place.stdio() as server:
            pid, add = named(server, "pid"), named(server, "add")
            first = int(await returned(pid))
            os.kill(first, signal.SIGKILL)
            await dead(first)
            processes = children()
            under_way = asyncio.create_task(failure(returned(add, a=1, b=1)))
            await eventually(lambda: children() != processes, "it should be starting the server again")
        assert "closed" in await under_way
