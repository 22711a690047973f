"""Nothing stalls in silence: whatever goes wrong in a turn, its channel comes to a named state in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from antiphon import Agent, Channel, Hub, Limits, Reply, Request, ScriptedModel, calls, says, tool
from antiphon.core.events import EV_CHANNEL_PAUSED, EV_TURN_FAILED
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon


async def never(request: Request) -> Reply:
    await asyncio.Event().wait()
    return says("never")


def until_stopped(stopped: asyncio.Event) -> Callable[[Request], Awaitable[Reply]]:
    """A model that never answers, and says when it was stopped."""

    async def model(request: Request) -> Reply:
        try:
            return await never(request)
        finally:
            stopped.set()

    return model


async def answers_nonsense(request: Request) -> Reply:
    return 7  # type: ignore[return-value]  # on purpose


def broken(messages: object) -> str:
    raise LookupError("no such customer")


def wordless(messages: object) -> str:
    return None  # type: ignore[return-value]  # on purpose


async def huge(request: Request) -> Reply:
    return says("x" * 300_000)


async def half(request: Request) -> Reply:
    return says("\ud800")


TROUBLES: dict[str, tuple[Callable[[], Agent], float, str]] = {
    "model error": (lambda: Agent("bob", model=ScriptedModel([RuntimeError("boom")])), 0, "model_error"),
    "script is over": (lambda: Agent("bob", model=ScriptedModel([])), 0, "model_error"),
    "no reply": (lambda: Agent("bob", model=answers_nonsense), 0, "model_error"),
    "half a character": (lambda: Agent("bob", model=half), 0, "model_error"),
    "too long": (lambda: Agent("bob", model=huge), 0, "model_error"),
    "handler exception": (lambda: Agent("bob", model=never, system_prompt=broken), 0, "prompt_error"),
    "prompt without words": (lambda: Agent("bob", model=never, system_prompt=wordless), 0, "prompt_error"),
    "never returns": (lambda: Agent("bob", model=never), 120, "model_timeout"),
    "never returns, own limit": (
        lambda: Agent("bob", model=never, limits=Limits(model_seconds=7)),
        7,
        "model_timeout",
    ),
    "never returns, no limit": (
        lambda: Agent("bob", model=never, limits=Limits(model_seconds=None)),
        600,
        "deadline",
    ),
}


@dataclass
class Scene:
    """A hub with a person and some code, and a clock to move."""

    hub: Hub
    clock: ManualClock
    opened: list[Channel] = field(default_factory=list)

    async def open(self, kind: str, *others: str) -> Channel:
        ann = await self.hub.register("ann")
        if "dana" in others:
            await self.hub.register("dana", kind="human")
        return await ann.open(type=kind, target=["bob", *others])

    async def failures(self, channel: Channel) -> list[str]:
        log = await self.hub.log(channel.channel_id)
        return [str(envelope.event_data["reason"]) for envelope in log if envelope.event_type == EV_TURN_FAILED]

    async def pass_time(self, seconds: float) -> None:
        """Let whoever can do something do it; then it is later."""
        await let_others_run(50)
        await self.clock.advance(max(0.0, seconds - 1))
        await let_others_run(50)

    async def settled(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not done():
                await let_others_run(1)


@pytest.fixture
async def scene():  # type: ignore[no-untyped-def]  # a fixture
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Scene(hub, clock)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_question_is_closed_with_the_reason(scene: Scene, trouble: str) -> None:
    make, seconds, reason = TROUBLES[trouble]
    await scene.hub.register(make())
    channel = await scene.open("consulting")
    await channel.send("well?")
    await scene.pass_time(seconds)
    if seconds:
        assert channel.state.status == "active", "not before its time"
        await scene.clock.advance(1)
    expected = "expectation_violated:reply_within" if reason == "deadline" else f"turn_failed:{reason}"
    assert await soon(channel.closed()) == expected


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_conversation_is_told_and_goes_on(scene: Scene, trouble: str) -> None:
    make, seconds, reason = TROUBLES[trouble]
    await scene.hub.register(make())
    channel = await scene.open("conversation")
    await channel.send("well?")
    await scene.pass_time(seconds)
    if seconds:
        await scene.clock.advance(1)
    await scene.settled(lambda: not channel.state.owed)
    assert await scene.failures(channel) == [reason]
    assert (channel.state.status, channel.state.speakers) == ("active", ())


@pytest.mark.parametrize("trouble", [name for name in TROUBLES if TROUBLES[name][2] != "deadline"])
async def test_a_discussion_is_given_to_the_person_in_it(scene: Scene, trouble: str) -> None:
    make, seconds, reason = TROUBLES[trouble]
    await scene.hub.register(make())
    channel = await scene.open("discussion", "dana")
    await channel.send("well?")
    await scene.pass_time(seconds)
    if seconds:
        await scene.clock.advance(1)
    await scene.settled(lambda: channel.state.speakers != ("bob",))
    assert channel.state.speakers == ("dana",)
    assert await scene.failures(channel) == [reason]


async def test_two_agents_alone_are_paused(scene: Scene) -> None:
    bob = await scene.hub.register(Agent("bob", model=ScriptedModel(["hello"])))
    await scene.hub.register(Agent("eve", model=ScriptedModel([RuntimeError("boom")])))
    channel = await bob.open(type="conversation", target="eve")
    await channel.send("hello")
    await scene.settled(lambda: bool(channel.state.paused))
    assert channel.state.paused == "turn_failed:model_error"
    await channel.send("again")
    await scene.settled(lambda: bool(channel.state.paused))
    assert await scene.failures(channel) == ["model_error"] * 2


async def test_two_agents_pause_after_twenty_turns_until_somebody_speaks(scene: Scene) -> None:
    async def chat(request: Request) -> Reply:
        return says("and you?")

    bob = await scene.hub.register(Agent("bob", model=chat))
    await scene.hub.register(Agent("eve", model=chat))
    channel = await bob.open(type="conversation", target="eve")
    for said in (21, 42):
        await channel.send("how are you?")
        await scene.settled(lambda: bool(channel.state.paused))
        assert channel.state.turn_count == said
        assert channel.state.paused == "unattended:20"
    log = await scene.hub.log(channel.channel_id)
    assert len([envelope for envelope in log if envelope.event_type == EV_CHANNEL_PAUSED]) == 2


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("conversation", ""),
        ("consulting", "expectation_violated:reply_within"),
        ("discussion", "expectation_violated:turn_within"),
    ],
)
async def test_an_agent_that_nobody_registers_again(kind: str, ends: str) -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    first = await Hub.over(store, clock=clock, engine=None)
    await first.register(Agent("bob", model=never))
    ann = await first.register("ann")
    channel_id = (await ann.open(type=kind, target="bob")).channel_id
    await (await ann.channel(channel_id)).send("well?")
    await first.close()
    async with Hub.open("memory:"):
        hub = await Hub.over(store, clock=clock)
        channel = await (await hub.register("ann")).channel(channel_id)
        await clock.advance(599)
        assert channel.state.expected_next_speaker == "bob"
        await clock.advance(2)
        if ends:
            assert await soon(channel.closed()) == ends
        else:
            log = await hub.log(channel_id)
            failed = [envelope.event_data for envelope in log if envelope.event_type == EV_TURN_FAILED]
            assert [data["reason"] for data in failed] == ["not_run"]
            assert "'bob' is registered" in str(failed[0]["detail"])
        await hub.close()


async def test_a_turn_that_was_owed_runs_once_its_agent_is_registered() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    first = await Hub.over(store, clock=clock, engine=None)
    await first.register(Agent("bob", model=never))
    ann = await first.register("ann")
    channel = await ann.open(type="consulting", target="bob")
    await channel.send("well?")
    await first.close()
    hub = await Hub.over(store, clock=clock)
    again = await (await hub.register("ann")).channel(channel.channel_id)
    await let_others_run(50)
    assert again.state.status == "active"
    await hub.register(Agent("bob", model=ScriptedModel(["well."])))
    assert await soon(again.closed()) == "answered"
    await hub.close()


@pytest.mark.parametrize("slow", ["async", "sync"])
async def test_a_tool_that_does_not_return_in_time_is_told_to_the_model(scene: Scene, slow: str) -> None:
    release = threading.Event()

    @tool(timeout=5)
    async def ponder() -> str:
        """Think."""
        await asyncio.Event().wait()
        return "never"

    @tool(timeout=5)
    def brood() -> str:
        """Think, off the loop."""
        release.wait()
        return "late"

    name = "ponder" if slow == "async" else "brood"
    model = ScriptedModel([calls(name), "I gave up."])
    agent = Agent("bob", model=model, tools=[ponder, brood])
    asked = asyncio.create_task(agent.invoke("think", hub=scene.hub))
    async with asyncio.timeout(5):
        while not model.requests:
            await let_others_run(1)
    await scene.pass_time(5)
    assert len(model.requests) == 1
    await scene.clock.advance(1)
    assert (await soon(asked)).text == "I gave up."
    assert "nothing came within 5 seconds" in model.requests[1].messages[-1].text
    release.set()


async def test_cancelling_stops_a_turn_at_once_and_says_so(scene: Scene) -> None:
    stopped = asyncio.Event()
    await scene.hub.register(Agent("bob", model=until_stopped(stopped)))
    channel = await scene.open("conversation")
    await channel.send("well?")
    await channel.send("still there?")
    await let_others_run(50)
    assert await channel.cancel("no longer needed") == 2
    await soon(stopped.wait())
    assert await scene.failures(channel) == ["cancelled", "cancelled"]
    assert channel.state.owed == ()


async def test_closing_a_channel_stops_its_turns(scene: Scene) -> None:
    stopped = asyncio.Event()
    await scene.hub.register(Agent("bob", model=until_stopped(stopped)))
    channel = await scene.open("conversation")
    await channel.send("well?")
    await let_others_run(50)
    await channel.close("enough")
    await soon(stopped.wait())
    log = await scene.hub.log(channel.channel_id)
    assert log[-1].event_data["reason"] == "enough"
