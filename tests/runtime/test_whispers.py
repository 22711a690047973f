"""An agent that answers a message with an audience answers those who heard it, and nothing of its turn leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    Channel,
    Envelope,
    FromSpeaker,
    Handoff,
    Hub,
    ModelError,
    Reply,
    Request,
    ScriptedModel,
    Signal,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnChannel,
    UsageError,
    calls,
    says,
    set_context,
    tool,
    visible_to,
)
from antiphon.engines.local import LocalEngine
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import wait_until
from tests.support.kept_store import KeptStore
from tests.support.served_hub import opened, poll_until, served_hub
from tests.support.waiting import soon

SECRET = "the code is 4711"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as opened:
        yield opened


def graph(*rules: Transition, end: str = "over") -> dict[str, object]:
    return {"graph": TransitionGraph("ann", list(rules), TerminateTarget(end)).to_dict()}


def after(name: str, to: str) -> Transition:
    return Transition(FromSpeaker(name), AgentTarget(to))


async def of(hub: Hub, channel: Channel, sender: str, kind: str = "") -> list[Envelope]:
    """What somebody has said, or the hub in events of a kind."""
    log = await hub.log(channel.channel_id)
    return [each for each in log if each.sender_id == sender and kind in each.event_type]


async def leaked(hub: Hub, channel: Channel, *readers: str, what: str = "4711") -> list[Envelope]:
    """What these may see that tells the secret."""
    log = await hub.log(channel.channel_id)
    return [each for each in log for name in readers if visible_to(each, name) and what in str(each.event_data)]


async def said_by(hub: Hub, channel: Channel, sender: str) -> Envelope:
    await wait_until(lambda: sender not in channel.state.speakers, f"{sender} answers")
    return next(each for each in reversed(await of(hub, channel, sender)) if "channel" not in each.event_type)


# The answer


@pytest.mark.parametrize("kind", ["conversation", "consulting", "discussion"])
async def test_answer_has_the_audience_of_the_question_and_its_sender(hub: Hub, kind: str) -> None:
    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=ScriptedModel([f"Yes, {SECRET}"])))
    others = ["cleo"] if kind == "discussion" else []
    channel = await ann.open(type=kind, target=["bob", *others])
    await channel.send(SECRET, audience=["bob"])
    answer = await said_by(hub, channel, "bob")
    assert answer.audience == ["bob", "ann"]
    assert await leaked(hub, channel, "cleo") == []


async def test_answer_to_everybody_is_for_everybody(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=ScriptedModel(["one", "two"])))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send("hello")
    assert (await said_by(hub, channel, "bob")).audience is None


async def test_packet_that_answers_is_seen_by_the_rules_and_by_nobody_else(hub: Hub) -> None:
    @tool
    def escalate(channel: TurnChannel) -> str:
        set_context(channel, level=2)
        return "noted"

    ann = await hub.register("ann")
    cleo, eve = ScriptedModel(["cleo here"]), ScriptedModel(["eve here"])
    script = ScriptedModel([calls("escalate"), says(f"Yes, {SECRET}")])
    await hub.register(Agent("bob", model=script, tools=[escalate]))
    await hub.register(Agent("cleo", model=cleo))
    await hub.register(Agent("eve", model=eve))
    urgent = Transition(FromSpeaker("bob") & ToolCalled("escalate"), AgentTarget("cleo"))
    knobs = graph(after("ann", "bob"), urgent, after("cleo", "eve"))
    channel = await ann.open(type="workflow", target=["bob", "cleo", "eve"], knobs=knobs)
    await channel.send(SECRET, audience=["bob"])
    assert await channel.closed() == "over"
    packet = next(each for each in await of(hub, channel, "bob") if each.event_type == EV_PACKET)
    assert (packet.audience, packet.event_data["body"]) == (["bob", "ann"], f"Yes, {SECRET}")
    assert channel.state.context_vars == {"level": 2}
    assert "4711" not in str([*cleo.requests[0].messages, *eve.requests[0].messages])
    assert [each.audience for each in await of(hub, channel, "cleo") if each.event_type == EV_PACKET] == [None]
    assert await leaked(hub, channel, "cleo", "eve") == []


async def test_answer_to_an_answer_stays_among_those_who_heard_it(hub: Hub) -> None:
    ann = await hub.register("ann")
    for name in ("bob", "cleo", "eve"):
        await hub.register(Agent(name, model=ScriptedModel([f"{name}: {SECRET}"])))
    knobs = graph(after("ann", "bob"), after("bob", "cleo"))
    channel = await ann.open(type="workflow", target=["bob", "cleo", "eve"], knobs=knobs)
    await channel.send(SECRET, audience=["bob", "cleo"])
    await channel.closed()
    answers = [
        each for name in ("bob", "cleo") for each in await of(hub, channel, name) if each.event_type == EV_PACKET
    ]
    assert [sorted(each.audience or []) for each in answers] == [["ann", "bob", "cleo"]] * 2
    assert await leaked(hub, channel, "eve") == []


async def test_whoever_is_handed_the_turn_hears_the_handoff_and_answers_in_private(hub: Hub) -> None:
    @tool
    def pass_on() -> Handoff:
        return Handoff("cleo", reason=SECRET, summary=f"For cleo: {SECRET}")

    ann, _ = await hub.register("ann"), await hub.register("eve")
    cleo = ScriptedModel([f"Noted: {SECRET}"])
    await hub.register(Agent("bob", model=ScriptedModel([calls("pass_on")]), tools=[pass_on]))
    await hub.register(Agent("cleo", model=cleo))
    channel = await ann.open(type="workflow", target=["bob", "cleo", "eve"], knobs=graph(after("ann", "bob")))
    await channel.send(SECRET, audience=["bob"])
    assert await channel.closed() == "over"
    assert cleo.requests[0].messages[-1].text == f"bob: For cleo: {SECRET}"
    answer = next(each for each in await of(hub, channel, "cleo") if each.event_type == EV_PACKET)
    assert set(answer.audience or []) == {"ann", "bob", "cleo"}
    assert await leaked(hub, channel, "eve") == []


async def test_handoff_of_a_packet_that_its_target_may_not_see_tells_it_no_reason(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("bob")
    channel = await ann.open(type="workflow", target=["bob"], knobs=graph())
    builder = hub.adapter_for(channel.channel_id)
    handoff = Handoff("bob", reason=SECRET)
    await hub.post(builder.build_packet_envelope(sender_id="ann", body="x", handoff=handoff, audience=["ann"]))
    assert channel.state.speakers == ("bob",)
    assert await leaked(hub, channel, "bob") == []


async def test_agent_that_did_not_hear_the_whisper_answers_everybody(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=ScriptedModel(["What is it about?"])))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send(SECRET, audience=["cleo"])
    assert (await said_by(hub, channel, "bob")).audience is None


# Several messages


@pytest.mark.parametrize("whisper_first", [True, False])
async def test_answer_to_several_messages_is_for_those_who_heard_all_of_them(hub: Hub, whisper_first: bool) -> None:
    ann, dana = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(Agent("bob", model=ScriptedModel([f"Yes, {SECRET}"])))
    channel = await ann.open(type="discussion", target=["bob", "dana"])
    as_dana = await dana.channel(channel.channel_id)
    if whisper_first:
        await as_dana.send(SECRET, audience=["bob"])
        await channel.send("go on, bob")
    else:
        live = channel._live
        assert live.state.speakers == ("ann",)
        await as_dana.send("a word for all")
        await channel.send(SECRET, audience=["bob"])
    answer = await said_by(hub, channel, "bob")
    assert set(answer.audience or []) == ({"bob", "dana"} if whisper_first else {"bob", "ann"})


async def test_turn_that_is_given_again_by_a_word_put_in_stays_private(hub: Hub) -> None:
    idle = await Hub.over(KeptStore(), engine=None)
    ann, dana = await idle.register("ann"), await idle.register("dana", kind="human")
    await idle.register(Agent("bob", model=ScriptedModel(["never"])))
    channel = await ann.open(type="discussion", target=["bob", "dana"])
    await channel.send(SECRET, audience=["bob"])
    await (await dana.channel(channel.channel_id)).send("what is going on?")
    [turn] = channel.state.owed
    assert turn.audience == ("bob", "ann")
    await idle.close()


async def test_turn_after_a_failed_one_stays_private(hub: Hub) -> None:
    """Nothing was said in between, so the turn answers what the failed one was to answer."""
    ann = await hub.register("ann")
    await hub.register(Agent("bob", model=ScriptedModel([ModelError("x")])))
    await hub.register("dana", kind="human")
    channel = await ann.open(type="discussion", target=["bob", "dana"])
    await channel.send(SECRET, audience=["bob"])
    await wait_until(lambda: channel.state.speakers == ("dana",), "a person goes on")
    assert channel.state.answering == {"bob": ("bob", "ann")}


# What else a turn tells


async def test_failure_is_told_to_those_who_heard_the_question(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(Agent("bob", model=ScriptedModel([ModelError(SECRET)])))
    channel = await ann.open(type="discussion", target=["bob", "dana"])
    await channel.send(SECRET, audience=["bob"])
    await wait_until(lambda: channel.state.speakers == ("dana",), "a person goes on")
    [failed] = await of(hub, channel, "hub", "turn.failed")
    assert failed.audience == ["bob", "ann"]
    assert await leaked(hub, channel, "dana") == []


async def test_call_in_doubt_is_told_to_those_who_heard_the_question(clock: ManualClock, hub: Hub) -> None:
    started = asyncio.Event()

    @tool(idempotency="unsafe", timeout=5)
    async def pay(code: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    ann, _ = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(Agent("bob", model=ScriptedModel([calls("pay", {"code": SECRET})]), tools=[pay]))
    channel = await ann.open(type="discussion", target=["bob", "dana"])
    await channel.send(SECRET, audience=["bob"])
    await soon(started.wait())
    await clock.advance(6)
    await wait_until(lambda: bool(channel.state.owed and channel.state.owed[0].doubts), "it is in doubt")
    [doubted] = await of(hub, channel, "hub", "call.doubted")
    assert doubted.audience == ["bob", "ann"]


async def test_task_is_told_to_those_who_heard_the_question(hub: Hub) -> None:
    clerk = Agent("clerk", model=ScriptedModel([calls("look"), says("done")]), tools=[tool(lambda_look)])

    @tool
    async def ask(channel: TurnChannel) -> str:
        return (await channel.delegate(clerk, SECRET)).text

    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=ScriptedModel([calls("ask"), says("Done.")]), tools=[ask]))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send(SECRET, audience=["bob"])
    await said_by(hub, channel, "bob")
    events = await of(hub, channel, "hub", "ag2.task.")
    assert [each.event_type for each in events] == ["ag2.task.started", "ag2.task.progress", "ag2.task.completed"]
    assert [each.audience for each in events] == [["bob", "ann"]] * 3


def lambda_look() -> str:
    return "nothing"


lambda_look.__name__ = "look"


class Streaming:
    """A model that speaks in pieces."""

    async def __call__(self, request: Request) -> Reply:
        return says(SECRET)

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        for piece in SECRET.split():
            yield piece
        yield await self(request)


async def test_tokens_are_heard_by_those_who_heard_the_question(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=Streaming()))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    heard: dict[str | None, list[Signal]] = {"ann": [], "cleo": [], None: []}

    async def listen(name: str | None) -> None:
        async for signal in hub.signals(channel.channel_id, participant=name):
            heard[name].append(signal)

    listeners = [asyncio.create_task(listen(name)) for name in heard]
    await asyncio.sleep(0)
    await channel.send(SECRET, audience=["bob"])
    await said_by(hub, channel, "bob")
    await channel.close()
    await soon(asyncio.gather(*listeners))
    assert [len(signals) for signals in heard.values()] == [4, 0, 4]


async def test_tokens_are_heard_by_those_whom_a_tool_has_chosen(hub: Hub) -> None:
    class Choosing(Streaming):
        async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
            if not request.exchange:
                yield calls("whisper")
                return
            async for piece in super().stream(request):
                yield piece

    @tool
    async def whisper(channel: TurnChannel) -> str:
        channel.set_audience(["ann"])
        return "ok"

    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=Choosing(), tools=[whisper]))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    heard: dict[str | None, list[Signal]] = {"ann": [], "cleo": [], None: []}

    async def listen(name: str | None) -> None:
        async for signal in hub.signals(channel.channel_id, participant=name):
            heard[name].append(signal)

    listeners = [asyncio.create_task(listen(name)) for name in heard]
    await asyncio.sleep(0)
    await channel.send("In public.")
    await said_by(hub, channel, "bob")
    await channel.close()
    await soon(asyncio.gather(*listeners))
    assert [len(signals) for signals in heard.values()] == [4, 0, 4]


async def test_nothing_leaks_over_http(clock: ManualClock) -> None:
    @tool(idempotency="unsafe", timeout=5)
    async def pay(code: str) -> str:
        await asyncio.Event().wait()
        return ""

    agent = Agent("bob", model=ScriptedModel([calls("pay", {"code": SECRET})]), tools=[pay])
    async with served_hub(agent, clock=clock) as served:
        ann, dana = await served.known("ann"), await served.known("dana", "read", "write", "approve")
        channel_id = await opened(ann, "bob", "dana", type="discussion")
        live = await served.hub.core.live(channel_id)
        await ann.post(f"/channels/{channel_id}/messages", json={"text": SECRET, "audience": ["bob"]})
        await poll_until(lambda: live.state.owed[0].epoch > 0, "the turn begins")
        while not live.state.owed[0].doubts:
            await clock.advance(6)
            await asyncio.sleep(0.01)
        for path in (f"/channels/{channel_id}/log", "/approvals", f"/channels/{channel_id}"):
            assert "4711" not in (await dana.get(path)).text
        [approval] = (await ann.get("/approvals")).json()["approvals"]
        assert (await dana.get("/approvals")).json()["approvals"] == []
        choice = {"decision": "respond", "digest": approval["digest"], "text": "x"}
        decided = await dana.post(f"/approvals/{approval['approval_id']}", json=choice)
        assert (decided.status_code, decided.json()["error"]["reason"]) == (404, "unknown_approval")


# Saying otherwise


@pytest.mark.parametrize(("names", "audience"), [(None, None), (["cleo"], ["cleo"])])
async def test_tool_can_choose_another_audience(hub: Hub, names: list[str] | None, audience: list[str] | None) -> None:
    @tool
    def publish(channel: TurnChannel) -> str:
        channel.set_audience(names)
        return "ok"

    ann, _ = await hub.register("ann"), await hub.register("cleo")
    script = [calls("publish"), says("Here."), calls("publish"), says("Again.")]
    await hub.register(Agent("bob", model=ScriptedModel(script), tools=[publish]))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send(SECRET, audience=["bob"])
    assert (await said_by(hub, channel, "bob")).audience == audience


async def test_audience_of_strangers_is_refused_with_a_hint(hub: Hub) -> None:
    found: list[str] = []

    @tool
    def publish(channel: TurnChannel) -> str:
        for names in (["zoe"], ["Cleo"], "cleo", []):
            with pytest.raises(UsageError) as caught:
                channel.set_audience(names)  # type: ignore[arg-type]
            found.append(str(caught.value))
        return "ok"

    ann, _ = await hub.register("ann"), await hub.register("cleo")
    await hub.register(Agent("bob", model=ScriptedModel([calls("publish"), says("Here.")]), tools=[publish]))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send("hello")
    await said_by(hub, channel, "bob")
    assert ["zoe" in found[0], "'cleo'" in found[1], "list" in found[2], len(found)] == [True, True, True, 4]


async def test_chosen_audience_survives_a_restart(clock: ManualClock) -> None:
    begun = asyncio.Event()

    @tool
    def publish(channel: TurnChannel) -> str:
        channel.set_audience(None)
        return "ok"

    async def halting(request: Request) -> Reply:
        if not request.exchange:
            return calls("publish")
        begun.set()
        await asyncio.Event().wait()
        return says("never")

    store = KeptStore(clock=clock)
    first = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    ann, _ = await first.register("ann"), await first.register("cleo")
    await first.register(Agent("bob", model=halting, tools=[publish]))
    channel = await ann.open(type="discussion", target=["bob", "cleo"])
    await channel.send(SECRET, audience=["bob"])
    await soon(begun.wait())
    await first.close()
    second = await Hub.over(store, clock=clock)
    held = await (await second.register("ann")).channel(channel.channel_id)
    await second.register(Agent("bob", model=ScriptedModel(["Here."]), tools=[publish]))
    assert (await said_by(second, held, "bob")).audience is None
    await second.close()
