"""Edges of workflow channels: forks of damaged ones, inboxes, forged asides, doubt, size, and whoever leaves early."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    AgentTarget,
    Channel,
    ContextEquals,
    Denied,
    FromSpeaker,
    Handoff,
    Hub,
    Participant,
    Reply,
    Request,
    RulesInvalid,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.core.codec import count_values, to_json
from antiphon.core.envelope import Json, add_seconds
from antiphon.core.events import EV_GRAPH_WARNED
from antiphon.testing import ManualClock
from tests.support.gated_store import GatedStore
from tests.support.waiting import let_others_run, soon

LESS = "use fewer transitions, or conditions with fewer parts"
LINE = TransitionGraph.sequence(["ann", "bob", "dana"])


class Thinker:
    """A model that answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        return says("thought")


class Room:
    """Ann is code, dana is a person, bob is an agent that thinks."""

    def __init__(self, hub: Hub, store: GatedStore, clock: ManualClock) -> None:
        self.hub, self.store, self.clock = hub, store, clock
        self.people: dict[str, Participant] = {}
        self.bob = Thinker()

    async def asked(self) -> tuple[Channel, Channel]:
        """The channel as ann and dana hold it, when ann has asked bob, who thinks."""
        await self.hub.register(Agent("bob", model=self.bob))
        knobs = {"graph": LINE.to_dict()}
        channel = await self.people["ann"].open(type="workflow", target=["bob", "dana"], knobs=knobs)
        await channel.send("go")
        await soon(self.bob.asked.wait())
        return channel, await self.people["dana"].channel(channel.channel_id)

    async def said(self, channel: Channel) -> list[object]:
        log = await self.hub.log(channel.channel_id)
        return [each.event_data["text"] for each in log if each.event_type == EV_TEXT]


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    clock = ManualClock()
    store = GatedStore(clock)
    hub = await Hub.over(store, clock=clock)
    found = Room(hub, store, clock)
    for name, kind in {"ann": "service", "dana": "human"}.items():
        found.people[name] = await hub.register(name, kind=kind)
    yield found
    await hub.close()


# Words put in


async def test_whoever_leaves_while_something_else_is_recorded_has_said_nothing(room: Room) -> None:
    channel, dana = await room.asked()
    room.store.close_gate(channel.channel_id)
    room.clock._now = add_seconds(room.clock.now(), 130)  # a warning is due, and nobody has told of it yet
    word = asyncio.create_task(dana.send("stop that"))
    await let_others_run(50)
    word.cancel()
    await let_others_run(50)
    assert word.cancelled()
    room.store.let_pass()
    room.bob.may_answer.set()
    async with asyncio.timeout(5):
        while channel.state.expected_next_speaker != "dana":
            await let_others_run(1)
    assert await room.said(channel) == ["go"]


@pytest.mark.parametrize("value", [True, False, None, "x"])
async def test_an_aside_is_not_for_participants_to_claim(room: Room, value: object) -> None:
    knobs = {"graph": TransitionGraph.sequence(["ann", "dana"]).to_dict()}
    channel = await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)
    with pytest.raises(Denied) as refused:
        await channel.post(EV_TEXT, {"text": "by the way", "aside": value})
    assert refused.value.reason == "reserved_field"
    assert (channel.state.expected_next_speaker, channel.state.turn_count) == ("ann", 0)


async def test_nobody_waits_for_a_turn_that_waits_for_a_person(room: Room) -> None:
    @tool(idempotency="unsafe", timeout=5)
    async def pay() -> str:
        """Pay, and never come back."""
        await asyncio.Event().wait()
        return "paid"

    asked = asyncio.Event()

    async def model(request: Request) -> Reply:
        asked.set()
        return says("done") if request.exchange else calls("pay")

    await room.hub.register(Agent("bob", model=model, tools=[pay]))
    channel = await room.people["ann"].open(
        type="workflow", target=["bob", "dana"], knobs={"graph": LINE.to_dict(), "expectations": []}
    )
    await channel.send("go")
    await soon(asked.wait())
    await let_others_run(50)
    dana = await room.people["dana"].channel(channel.channel_id)
    word = asyncio.create_task(dana.send("what happened?"))
    await let_others_run(20)
    assert not word.done()
    await room.clock.advance(6)
    with pytest.raises(Denied) as refused:
        await soon(word)
    assert refused.value.reason == "in_doubt"
    assert "settle it with channel.settle first" in str(refused.value)


async def test_a_handoff_out_of_turn_is_recorded_as_refused(room: Room) -> None:
    knobs = {"graph": TransitionGraph.sequence(["ann", "dana"]).to_dict()}
    channel = await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)
    build = room.hub.adapter_for(channel.channel_id).build_packet_envelope
    sent = await room.hub.post(build(sender_id="dana", body="mine", handoff=Handoff("dana")))
    assert sent.event_data["routing"] == {"target": "dana", "rejected": "not_in_turn"}
    assert channel.state.expected_next_speaker == "ann"


# Forks


async def test_a_fork_is_heard_from_its_last_word_on(room: Room) -> None:
    """Who works off an inbox does not do again what was done in the channel it comes from."""
    ben = await room.hub.register("ben")
    knobs = {"graph": TransitionGraph.round_robin(["ann", "ben"], max_turns=9).to_dict()}
    channel = await room.people["ann"].open(type="workflow", target=["ben"], knobs=knobs)
    as_ben = await ben.channel(channel.channel_id)
    for number in range(3):
        last = await channel.send(f"order {number}")
        if number < 2:
            await as_ben.send(f"done {number}")
    fork = await channel.fork(at=last.sequence)
    heard = []
    async for envelope in ben.inbox():
        if envelope.event_type == EV_TEXT:
            heard.append((envelope.channel_id == fork.channel_id, envelope.event_data["text"]))
        if len(heard) == 4:
            break
    assert [text for is_fork, text in heard if is_fork] == ["order 2"]
    assert [text for is_fork, text in heard if not is_fork] == ["order 0", "order 1", "order 2"]


async def test_the_good_part_of_a_damaged_channel_goes_on_under_its_own_rules(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'town.db'}"
    async with Hub.open(url) as hub:
        ann, ben = await hub.register("ann"), await hub.register("ben")
        channel = await ann.open(type="discussion", target=["ben"])
        place = (await channel.send("one")).sequence
        await (await ben.channel(channel.channel_id)).send("two")
    with sqlite3.connect(tmp_path / "town.db") as file:
        file.execute("UPDATE log SET body = '{' WHERE channel = ? AND seq = ?", (channel.channel_id, place + 2))
        file.execute("DELETE FROM snapshot")
    file.close()
    async with Hub.open(url) as hub:
        ann, ben = await hub.register("ann"), await hub.register("ben")
        damaged = await ann.channel(channel.channel_id)
        assert damaged.state.status == "quarantined"
        fork = await damaged.fork(at=place)
        assert (fork.state.type, fork.state.speakers) == ("discussion", ("ben",))
        with pytest.raises(Denied) as refused:
            await fork.send("out of turn")
        assert refused.value.reason == "not_expected_speaker"


@pytest.mark.parametrize("at", [0, -3, 999])
async def test_a_place_that_is_not_in_the_log_is_named(room: Room, at: int) -> None:
    channel = await room.people["ann"].open(target="dana")
    with pytest.raises(UsageError, match=rf"at is {at}; the log has the sequences 1 to {channel.state.sequence}"):
        await channel.fork(at=at)


# What is too much


async def test_warnings_are_told_up_to_a_number(room: Room) -> None:
    rules = [Transition(FromSpeaker("ann") & ContextEquals(f"key{n}", n), AgentTarget("dana")) for n in range(60)]
    knobs = {"graph": TransitionGraph("ann", rules, TerminateTarget("over")).to_dict()}
    channel = await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)
    [warned] = [e.event_data for e in await room.hub.log(channel.channel_id) if e.event_type == EV_GRAPH_WARNED]
    findings, further = warned["findings"], warned["further"]
    assert isinstance(findings, list)
    assert isinstance(further, int)
    assert len(findings) == 50
    assert further >= 10


async def test_a_graph_that_is_too_large_is_refused_in_words(room: Room) -> None:
    rules = [Transition(ContextEquals("key", f"{n}" * 200), AgentTarget("dana")) for n in range(900)]
    knobs = {"graph": TransitionGraph("ann", rules, TerminateTarget("over")).to_dict()}
    size = len(to_json(knobs["graph"]))
    with pytest.raises(
        UsageError, match=rf"knobs\['graph'\] has {size} bytes of JSON; the limit is 262144 for all knobs: {LESS}"
    ):
        await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)
    assert await room.hub.channels() == []


async def test_a_graph_of_too_many_values_is_named_with_their_number(room: Room) -> None:
    when = FromSpeaker("ann") & ContextEquals("a", 1) & ContextEquals("b", 2)  # 16 values
    graph = TransitionGraph("ann", [Transition(when, AgentTarget("dana"))] * 1000, TerminateTarget("over"))
    counted = count_values(graph.to_dict(), most=100_000)
    assert counted > 20_000
    said = rf"knobs\['graph'\] has {counted} values of JSON; the limit is 20000 for all knobs: {LESS}"
    with pytest.raises(UsageError, match=said):
        await room.people["ann"].open(type="workflow", target=["dana"], knobs={"graph": graph, "writers": {}})
    assert await room.hub.channels() == []


async def test_another_knob_that_is_too_large_is_named(room: Room) -> None:
    knobs: Json = {"graph": TransitionGraph("ann", [], TerminateTarget("over")), "writers": {"a": ["ann"] * 30_000}}
    said = r"knobs\['writers'\] has 30002 values of JSON; the limit is 20000 for all knobs: make it smaller"
    with pytest.raises(UsageError, match=said):
        await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)


async def test_a_knob_that_contains_itself_is_refused(room: Room) -> None:
    endless: list[object] = []
    endless.extend([endless, endless])
    with pytest.raises(UsageError, match=r"knobs\['writers'\] has at least 1000000 values"):
        await room.people["ann"].open(type="workflow", target=["dana"], knobs={"writers": endless})


async def test_a_graph_of_as_many_transitions_as_a_graph_takes_is_opened(room: Room) -> None:
    when = FromSpeaker("ann") & ContextEquals("a", 1)
    graph = TransitionGraph("ann", [Transition(when, AgentTarget("dana"))] * 1000, TerminateTarget("over"))
    channel = await room.people["ann"].open(type="workflow", target=["dana"], knobs={"graph": graph})
    recorded = channel.state.knobs["graph"]
    assert isinstance(recorded, dict)
    assert len(recorded["transitions"]) == 1000


@pytest.mark.parametrize(
    ("guards", "why"),
    [
        ([{"name": "hop_limit", "most": 1}, {"name": "hop_limit", "most": 2}], "names 'hop_limit' twice"),
        ([{"name": "hop_limit", "most": -1}], "most of hop_limit is -1"),
        ([{"name": "hops"}], "no guard is called 'hops'; there are: hop_limit, depth_limit, "),
        ([{"name": "Hop_Limit", "most": 3}], "no guard is called 'Hop_Limit'; did you mean 'hop_limit'"),
        ([{"most": 3}], "guards holds {'most': 3}, which has no name"),
        ([7], "guards holds 7; give a guard, its name, or a dict with name and fields"),
        ("hop_limit", "guards is 'hop_limit'; give a list of guards"),
        ([{"name": "hop_limit", "max": 3}], "the guard 'hop_limit' has no field 'max'; it has: most"),
    ],
)
async def test_a_guard_that_is_not_understood_is_refused(room: Room, guards: list[object], why: str) -> None:
    knobs = {"graph": TransitionGraph.sequence(["ann", "dana"]).to_dict(), "guards": guards}
    with pytest.raises(RulesInvalid, match=why):
        await room.people["ann"].open(type="workflow", target=["dana"], knobs=knobs)
    assert await room.hub.channels() == []


async def test_what_is_no_channel_has_no_builder(room: Room) -> None:
    for nothing in ("nowhere", [], None):
        with pytest.raises(UsageError, match=r"is not in use here; hold it with participant\.channel"):
            room.hub.adapter_for(nothing)  # type: ignore[arg-type]  # on purpose
