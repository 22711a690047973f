"""User code that cancels itself, ignores its cancellation, or raises what ends programs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import Agent, Hub, Reply, Request, ScriptedModel, TurnFailed, calls, says, tool
from antiphon.agents.tool import Tool
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_STARTED, EV_TURN_RELEASED
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run, soon

ROOT = Path(__file__).resolve().parent.parent.parent
LATE = "nothing came within 5 seconds; it may have taken effect all the same"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that ignores its cancellation is given up after a moment."""
    monkeypatch.setattr("antiphon.engines.user_code.CLEAN_UP_SECONDS", 0.05)


def of_type(log: list[Envelope], event_type: str, field: str) -> list[object]:
    return [each.event_data[field] for each in log if each.event_type == event_type]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "antiphon.engine"]


def running() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("tool ", "the model "))}


# Code that cancels itself


def cancel_me() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@tool(name="work")
async def cancels_itself() -> str:
    """Work."""
    cancel_me()
    await asyncio.sleep(0)
    return "worked"


@tool(name="work")
async def cancels_itself_twice() -> str:
    """Work."""
    cancel_me()
    cancel_me()
    await asyncio.sleep(0)
    return "worked"


@tool(name="work")
async def is_cancelled_by_its_own_child() -> str:
    """Work."""
    mine = asyncio.current_task()
    assert mine is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: mine.cancel())
        await asyncio.Event().wait()
    return "worked"


@pytest.mark.parametrize("work", [cancels_itself, cancels_itself_twice, is_cancelled_by_its_own_child])
async def test_a_tool_that_cancels_itself_has_failed_and_the_turn_goes_on(hub: Hub, work: Tool) -> None:
    model = ScriptedModel([calls("work"), says("It did not work.")])
    reply = await soon(Agent("bob", model, tools=[work]).invoke("go", hub=hub))
    assert reply.text == "It did not work."
    told = "CancelledError: something that the tool waited for was cancelled"
    assert model.requests[1].messages[-1].text == told
    log = await hub.log(reply.channel_id)
    assert of_type(log, EV_CALL_FAILED, "error") == [told]
    assert of_type(log, EV_TURN_RELEASED, "turn") == [], "nobody began it again"


async def test_a_tool_that_cancels_itself_and_returns_has_returned(hub: Hub) -> None:
    @tool
    async def work() -> str:
        """Work."""
        cancel_me()
        return "worked"

    model = ScriptedModel([calls("work"), says("Fine.")])
    assert (await soon(Agent("bob", model, tools=[work]).invoke("go", hub=hub))).text == "Fine."
    assert model.requests[1].messages[-1].text == "worked"


async def gives_up(request: Request) -> Reply:
    cancel_me()
    await asyncio.sleep(0)
    return says("never")


async def no_prompt(_: object) -> str:
    cancel_me()
    await asyncio.sleep(0)
    return "never"


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (Agent("bob", gives_up), "model_error"),
        (Agent("bob", ScriptedModel(["x"]), system_prompt=no_prompt), "prompt_error"),
    ],
    ids=["model", "prompt"],
)
async def test_a_model_or_prompt_that_cancels_itself_fails_the_turn_by_name(
    hub: Hub, agent: Agent, reason: str
) -> None:
    with pytest.raises(TurnFailed, match="Interrupted: CancelledError") as failed:
        await soon(agent.invoke("go", hub=hub))
    assert failed.value.reason == reason


# Code that ignores its cancellation


class Stubborn:
    """A tool that goes on whatever happens to it."""

    def __init__(self) -> None:
        self.inside, self.cancelled = asyncio.Event(), 0

    async def __call__(self) -> str:
        self.inside.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1

    def tool(self, **options: object) -> Tool:
        async def work() -> str:
            """Work."""
            return await self()

        return tool(work, name="work", **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.usefixtures("brief")
async def test_a_tool_that_ignores_its_timeout_is_left_behind_by_name(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn()
    model = ScriptedModel([calls("work"), says("It takes too long.")])
    async with Hub.open("memory:", clock=clock) as hub:
        asked = asyncio.create_task(Agent("bob", model, tools=[stubborn.tool(timeout=5)]).invoke("go", hub=hub))
        await soon(stubborn.inside.wait())
        clock.advance(5)
        reply = await soon(asked)
        assert reply.text == "It takes too long."
        assert of_type(await hub.log(reply.channel_id), EV_CALL_FAILED, "error") == [f"work: {LATE}"]
        name = f"tool 'work' of agent 'bob' in channel {reply.channel_id}"
        left = f"{name} was cancelled and still runs; its result is dropped; it should let CancelledError pass"
        assert warnings(caplog) == [left]
        assert running() == {name}
    assert running() == set(), "a hub that is closed leaves nothing behind that would hold up the event loop"
    assert stubborn.cancelled >= 2


@pytest.mark.usefixtures("brief")
async def test_a_turn_whose_tool_ignores_cancellation_can_be_cancelled(hub: Hub) -> None:
    stubborn = Stubborn()
    bob = Agent("bob", ScriptedModel([calls("work"), says("And now?")]), tools=[stubborn.tool(timeout=None)])
    asked = asyncio.create_task(bob.invoke("go", thread_id="t", hub=hub))
    await soon(stubborn.inside.wait())
    await (await bob.channel("t", hub)).cancel("enough")
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(asked)
    assert (await soon(bob.invoke("again", thread_id="t", hub=hub))).text == "And now?"


@pytest.mark.usefixtures("brief")
async def test_a_model_that_ignores_its_timeout_fails_the_turn_by_name(hub: Hub, clock: ManualClock) -> None:
    stubborn = Stubborn()

    async def model(request: Request) -> Reply:
        return says(await stubborn())

    asked = asyncio.create_task(Agent("bob", model).invoke("go", thread_id="t", hub=hub))
    await soon(stubborn.inside.wait())
    clock.advance(121)
    with pytest.raises(TurnFailed, match=r"model_timeout.*nothing came within 120 seconds"):
        await soon(asked)


async def test_what_a_cancelled_tool_does_to_clean_up_is_waited_for(hub: Hub, clock: ManualClock) -> None:
    inside, cleaned = asyncio.Event(), list[str]()

    @tool(timeout=5)
    async def work() -> str:
        """Work."""
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await let_others_run(50)
            cleaned.append("clean")
        return "never"

    async def model(request: Request) -> Reply:
        return says(",".join(cleaned)) if request.exchange else calls("work")

    asked = asyncio.create_task(Agent("bob", model, tools=[work]).invoke("go", hub=hub))
    await soon(inside.wait())
    clock.advance(5)
    assert (await soon(asked)).text == "clean"


async def test_a_thread_that_goes_on_is_named(hub: Hub, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    loop, inside, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    @tool(timeout=5)
    def work() -> str:
        """Work."""
        loop.call_soon_threadsafe(inside.set)
        go.wait(10)
        return "too late"

    bob = Agent("bob", ScriptedModel([calls("work"), says("Late.")]), tools=[work])
    asked = asyncio.create_task(bob.invoke("go", hub=hub))
    await soon(inside.wait())
    clock.advance(5)
    reply = await soon(asked)
    go.set()
    assert warnings(caplog) == [
        f"tool 'work' of agent 'bob' in channel {reply.channel_id} was cancelled and still runs in its thread; "
        "its result is dropped"
    ]


# What ends programs, in programs of their own

PROGRAM = """
import asyncio, sys
from antiphon import Agent, Asked, Hub, calls, says, tool

how, store = sys.argv[1:]

@tool
async def in_a_coroutine(kind: str) -> str:
    \"\"\"Raise.\"\"\"
    raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[kind]("enough")

@tool
def in_a_thread(kind: str) -> str:
    \"\"\"Raise.\"\"\"
    raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[kind]("enough")

@tool
async def in_a_task() -> str:
    \"\"\"Raise.\"\"\"
    async def leave() -> str:
        raise SystemExit("enough")
    return await asyncio.create_task(leave())

@tool
async def in_a_group() -> str:
    \"\"\"Raise.\"\"\"
    async def leave() -> str:
        raise SystemExit("enough")
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
    return "never"

@tool(timeout=0.1)
async def stubborn() -> str:
    \"\"\"Go on.\"\"\"
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

KINDS = ({"kind": "interrupt"}, {"kind": "exit"})
PLANS = {
    "raises": [[calls(name, kind) for name in ("in_a_coroutine", "in_a_thread") for kind in KINDS]],
    "starts tasks": [[calls("in_a_task"), calls("in_a_group")]],
    "goes on": [calls("stubborn")],
}
TOOLS = [in_a_coroutine, in_a_thread, in_a_task, in_a_group, stubborn]

async def model(request):
    done = sum(isinstance(item, Asked) for item in request.exchange)
    return PLANS[how][done] if done < len(PLANS[how]) else says("Still here.")

async def main():
    async with Hub.open(f"sqlite:///{store}") as hub:
        reply = await Agent("bob", model, tools=TOOLS).invoke("go", hub=hub)
        print(reply.channel_id, reply.text)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", ["KeyboardInterrupt: enough", "SystemExit: enough"] * 2),
        (
            "starts tasks",
            [
                "Interrupted: SystemExit: enough",
                "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): Interrupted: SystemExit: enough",
            ],
        ),
        ("goes on", ["stubborn: nothing came within 0.1 seconds; it may have taken effect all the same"]),
    ],
)
async def test_no_tool_ends_its_program_or_keeps_it_from_ending(tmp_path: Path, how: str, told: list[str]) -> None:
    path, store = tmp_path / "program.py", tmp_path / "team.db"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path), how, str(store)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=20, cwd=ROOT, env=dict(os.environ)
    )
    assert ended.returncode == 0, ended.stderr
    channel_id, _, text = ended.stdout.strip().partition(" ")
    assert text == "Still here."
    async with Hub.open(f"sqlite:///{store}", engine=None) as hub:
        log = await hub.log(channel_id)
    assert sorted(map(str, of_type(log, EV_CALL_FAILED, "error"))) == sorted(told)
    assert of_type(log, EV_TURN_FAILED, "reason") == []


INTERRUPTED = """
import asyncio, os, signal, sys
from antiphon import Agent, Hub, calls, says, tool

how, store = sys.argv[1:]

@tool
async def work() -> str:
    \"\"\"Work.\"\"\"
    async def part() -> str:
        if how == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        return "worked"
    return await asyncio.create_task(part())

async def model(request):
    return says(request.messages[-1].text) if request.exchange else calls("work")

async def main():
    async with Hub.open(f"sqlite:///{store}") as hub:
        reply = await Agent("bob", model, tools=[work]).invoke("go", hub=hub, thread_id="t", message_id="m")
        print(reply.channel_id, reply.text)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as without asyncio.run, which cancels the program first
asyncio.new_event_loop().run_until_complete(main())
"""


async def test_ctrl_c_in_a_task_of_a_tool_ends_the_program_and_the_next_one_resumes_the_turn(tmp_path: Path) -> None:
    path, store = tmp_path / "program.py", tmp_path / "team.db"
    path.write_text(INTERRUPTED)
    ends = []
    for how in ("ctrl-c", "again"):
        ends.append(
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, str(path), how, str(store)],
                capture_output=True,
                text=True,
                timeout=20,
                cwd=ROOT,
                env=dict(os.environ),
            )
        )
    interrupted, resumed = ends
    assert interrupted.returncode == -signal.SIGINT, interrupted.stderr
    assert "KeyboardInterrupt" in interrupted.stderr
    assert resumed.returncode == 0, resumed.stderr
    channel_id, _, text = resumed.stdout.strip().partition(" ")
    assert text == "worked"
    async with Hub.open(f"sqlite:///{store}", engine=None) as hub:
        log = await hub.log(channel_id)
    assert of_type(log, EV_CALL_FAILED, "error") == []
    assert of_type(log, EV_CALL_STARTED, "name") == ["model", "work", "work", "model"]
