"""Agents among people, code and other agents, in every kind of channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    Assign,
    Close,
    Decision,
    Envelope,
    Expectation,
    Finish,
    Handoff,
    Hub,
    Reply,
    Request,
    ScriptedModel,
    Seats,
    Signal,
    State,
    calls,
    register_adapter,
    says,
    set_context,
    tool,
)
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon


@register_adapter
class Relay:
    """A turn goes to whom it is handed, and ends in a packet."""

    name: ClassVar[str] = "test_relay"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    packets: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: object) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        routing = envelope.event_data.get("routing")
        routing = routing if isinstance(routing, dict) else {}
        if "finish" in routing:
            return Close(str(routing["finish"]))
        if "target" in routing:
            return Assign((str(routing["target"]),), "handed off")
        order = state.participant_order
        return Assign((order[1 if envelope.sender_id == order[0] else 0],))


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def texts(hub: Hub, channel_id: str) -> list[tuple[str, object]]:
    log = await hub.log(channel_id)
    return [(each.sender_id, each.event_data["text"]) for each in log if each.event_type == EV_TEXT]


async def test_a_question_is_answered_and_the_channel_ends(hub: Hub) -> None:
    await hub.register(Agent("bob", model=ScriptedModel(["It is."])))
    ann = await hub.register("ann")
    channel = await ann.open(type="consulting", target="bob")
    asked = await channel.send("Is it green?")
    assert await soon(channel.closed()) == "answered"
    log = await hub.log(channel.channel_id)
    answer = next(each for each in log if each.sender_id == "bob" and each.event_type == EV_TEXT)
    assert (answer.event_data["text"], answer.causation_id) == ("It is.", asked.envelope_id)


async def test_a_discussion_goes_round_and_everybody_is_told_who_spoke(hub: Hub) -> None:
    bob, eve = ScriptedModel(["b1", "b2"]), ScriptedModel(["e1", "e2"])
    await hub.register(Agent("bob", model=bob))
    await hub.register(Agent("eve", model=eve))
    dana = await hub.register("dana", kind="human")
    channel = await dana.open(type="discussion", target=["bob", "eve"])
    for word in ("d1", "d2"):
        await channel.send(word)
        async with asyncio.timeout(5):
            while channel.state.expected_next_speaker != "dana":
                await let_others_run(1)
    assert [text for _, text in await texts(hub, channel.channel_id)] == ["d1", "b1", "e1", "d2", "b2", "e2"]
    assert eve.requests[1].messages == [
        ("user", "dana: d1"),
        ("user", "bob: b1"),
        ("assistant", "e1"),
        ("user", "dana: d2"),
        ("user", "bob: b2"),
    ]


async def test_what_is_said_to_others_is_not_shown(hub: Hub) -> None:
    model = ScriptedModel(["hello"])
    await hub.register(Agent("bob", model=model))
    ann, eve = await hub.register("ann"), await hub.register("eve")
    channel = await ann.open(type="discussion", target=["eve", "bob"])
    await channel.send("a secret", audience=["eve"])
    await (await eve.channel(channel.channel_id)).send("in the open")
    async with asyncio.timeout(5):
        while not model.requests:
            await let_others_run(1)
    assert model.requests[0].messages == [("user", "eve: in the open")]


async def test_a_word_put_in_during_a_turn_is_for_the_next_speaker(hub: Hub) -> None:
    thinking, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        thinking.set()
        await go_on.wait()
        return says(f"seen {len(request.messages)}")

    eve = ScriptedModel(["noted"])
    await hub.register(Agent("bob", model=slow))
    await hub.register(Agent("eve", model=eve))
    dana = await hub.register("dana", kind="human")
    channel = await dana.open(type="discussion", target=["bob", "eve"])
    await channel.send("begin")
    await soon(thinking.wait())
    waiting = asyncio.create_task(channel.send("by the way"))
    await let_others_run(20)
    assert not waiting.done()
    go_on.set()
    await soon(waiting)
    async with asyncio.timeout(5):
        while channel.state.expected_next_speaker != "dana":
            await let_others_run(1)
    assert ("bob", "seen 1") in await texts(hub, channel.channel_id)
    assert ("user", "dana: by the way") in eve.requests[0].messages


async def test_a_turn_ends_in_a_packet_where_the_channel_wants_one(hub: Hub) -> None:
    @tool
    def pass_on(to: str) -> Handoff:
        """Give the turn away."""
        return Handoff(to, "yours", "what was done")

    @tool
    async def mark(channel: object, key: str) -> Finish:
        """Mark it as done."""
        await set_context(channel, **{key: 1})  # type: ignore[arg-type]  # what is injected has it
        return Finish("all done")

    bob = ScriptedModel([[calls("pass_on", {"to": "mallory"}), calls("pass_on", {"to": "eve"})]])
    await hub.register(Agent("bob", model=bob, tools=[pass_on]))
    await hub.register(Agent("eve", model=ScriptedModel([calls("mark", {"key": "k"}, text="Done.")]), tools=[mark]))
    ann = await hub.register("ann")
    channel = await ann.open(type="test_relay", target=["bob", "eve"])
    await channel.send("go")
    assert await soon(channel.closed()) == "all done"
    packets = [each.event_data for each in await hub.log(channel.channel_id) if each.event_type == EV_PACKET]
    assert packets[0] == {
        "body": "what was done",
        "routing": {"tool": "pass_on", "target": "eve", "reason": "yours", "summary": "what was done"},
        "context_updates": {"set": {}, "delete": []},
    }
    assert packets[1]["routing"] == {"tool": "mark", "finish": "all done"}
    assert packets[1]["context_updates"] == {"set": {"k": 1}, "delete": []}
    assert channel.state.context_vars == {"k": 1}


async def test_a_tool_that_may_not_write_a_key_is_told_so(hub: Hub) -> None:
    @tool
    async def approve(channel: object) -> str:
        """Approve."""
        await set_context(channel, approved=True)  # type: ignore[arg-type]  # what is injected has it
        return "approved"

    model = ScriptedModel([calls("approve"), "I may not."])
    await hub.register(Agent("bob", model=model, tools=[approve]))
    ann = await hub.register("ann")
    channel = await ann.open(type="consulting", target="bob", knobs={"writers": {"approved": ["ann"]}})
    await channel.send("approve it")
    assert await soon(channel.closed()) == "answered"
    assert "not_a_writer" in model.requests[1].messages[-1].text
    assert channel.state.context_vars == {}


async def test_signals_are_heard_by_those_who_take_part_and_recorded_nowhere(hub: Hub) -> None:
    await hub.register(Agent("bob", model=ScriptedModel(["one two"])))
    ann = await hub.register("ann")
    channel = await ann.open(type="consulting", target="bob")
    heard: list[Signal] = []

    async def listen() -> None:
        async for signal in hub.signals(channel.channel_id, participant="ann"):
            heard.append(signal)

    listening = asyncio.create_task(listen())
    await let_others_run(3)
    await channel.send("count")
    await soon(listening)
    assert [(signal.speaker, signal.text) for signal in heard] == [("bob", "one "), ("bob", "two")]


async def test_a_new_definition_holds_from_the_next_turn() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    answers = []
    for word in ("old", "new"):
        hub = await Hub.over(store, clock=clock)
        agent = Agent("bob", model=ScriptedModel([word]))
        answers.append((await agent.invoke("well?", thread_id="t", hub=hub)).text)
        await hub.close()
    assert answers == ["old", "new"]


async def test_without_an_engine_nothing_runs_and_with_one_later_it_does() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    model = ScriptedModel(["yes"])
    admitting = await Hub.over(store, clock=clock, engine=None)
    await admitting.register(Agent("bob", model=model))
    channel = await (await admitting.register("ann")).open(type="consulting", target="bob")
    await channel.send("well?")
    await let_others_run(50)
    assert model.requests == []
    await admitting.close()
    hub = await Hub.over(store, clock=clock)
    await hub.register(Agent("bob", model=model))
    async with asyncio.timeout(5):
        while (await hub.channels())[0].status != "closed":
            await let_others_run(1)
    await hub.close()
