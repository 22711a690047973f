"""Turns in trouble: code that ends itself in odd ways, stores that come and go, agents that ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from antiphon import (
    Agent,
    Assign,
    Call,
    Decision,
    Envelope,
    Expectation,
    Hub,
    OutcomeUnknown,
    Reply,
    Request,
    ScriptedModel,
    Seats,
    State,
    StoreUnavailable,
    TurnFailed,
    Usage,
    calls,
    register_adapter,
    says,
    tool,
)
from antiphon.core.envelope import Instant
from antiphon.core.events import EV_CHANNEL_CREATED
from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED
from antiphon.engines.local import LocalEngine
from antiphon.store.protocol import Appended, ChannelRow
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon


class TroubledStore(KeptStore):
    """Fails where it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.away = False
        self.lost_replies = 0
        self.listings_fail = 0

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self.away:
            raise StoreUnavailable("away")
        appended = await super().append(channel, batch, expected=expected, due=due)
        if self.lost_replies and any(each.event_type == EV_TURN_CLAIMED for each in batch):
            self.lost_replies -= 1
            raise OutcomeUnknown("the reply was lost")
        return appended

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        if self.listings_fail and participant == "bob" and status == "active":
            self.listings_fail -= 1
            raise StoreUnavailable("away")
        return await super().channels(status=status, participant=participant, after=after, limit=limit)


class Gone(BaseException):
    """Not meant for anybody."""


async def cancelled_inside() -> str:
    inner = asyncio.ensure_future(asyncio.Event().wait())
    inner.cancel()
    await inner
    return "never"


async def gone() -> str:
    raise Gone


@pytest.mark.parametrize("odd", [cancelled_inside, gone])
async def test_a_model_or_a_prompt_that_ends_itself_fails_its_turn(odd: object) -> None:
    async def model(request: Request) -> Reply:
        return says(await odd())  # type: ignore[operator]  # one of the two above

    async def prompt(messages: object) -> str:
        return await odd()  # type: ignore[operator,no-any-return]  # one of the two above

    async with Hub.open("memory:", clock=ManualClock()) as hub:
        with pytest.raises(TurnFailed, match="model_error"):
            await soon(Agent("bob", model=model).invoke("go", hub=hub))
        with pytest.raises(TurnFailed, match="prompt_error"):
            await soon(Agent("eve", model=model, system_prompt=prompt).invoke("go", hub=hub))


@pytest.mark.parametrize("odd", [cancelled_inside, gone])
async def test_a_tool_that_ends_itself_has_failed_and_its_neighbour_is_heard(odd: object) -> None:
    @tool
    async def strange() -> str:
        """Do something odd."""
        return await odd()  # type: ignore[operator,no-any-return]  # one of the two above

    @tool
    async def plain() -> str:
        """Do something."""
        return "plain"

    model = ScriptedModel([[calls("strange"), calls("plain")], "done"])
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        reply = await soon(Agent("bob", model=model, tools=[strange, plain]).invoke("go", hub=hub))
    assert reply.text == "done"
    assert [message.text for message in model.requests[1].messages if message.role == "tool"][1] == "plain"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(7),  # type: ignore[arg-type]
        Reply("", (Call("pay", {}, None),)),  # type: ignore[arg-type]
        Reply("x", usage=Usage(None, 1)),  # type: ignore[arg-type]
    ],
)
async def test_a_reply_that_would_not_read_back_is_an_error_of_the_model(reply: Reply) -> None:
    async def model(request: Request) -> Reply:
        return reply

    async with Hub.open("memory:", clock=ManualClock()) as hub:
        with pytest.raises(TurnFailed, match=r"model_error.*cannot be recorded"):
            await soon(Agent("bob", model=model).invoke("go", hub=hub))


async def test_a_reply_without_words_is_as_good_as_an_empty_one() -> None:
    async def model(request: Request) -> Reply:
        return Reply(None)  # type: ignore[arg-type]  # as some providers have it

    async with Hub.open("memory:", clock=ManualClock()) as hub:
        assert (await soon(Agent("bob", model=model).invoke("go", hub=hub))).stopped == "empty_reply"


async def test_a_claim_whose_reply_is_lost_is_ours_all_the_same() -> None:
    clock = ManualClock()
    store = TroubledStore(clock)
    store.lost_replies = 3
    hub = await Hub.over(store, clock=clock)
    agent = Agent("bob", model=ScriptedModel(["fine"]), system_prompt=lambda messages: "Be brief.")
    asked = asyncio.create_task(agent.invoke("go", hub=hub))
    async with asyncio.timeout(5):
        while not asked.done():
            await clock.advance(1)
            await let_others_run(5)
    assert (await asked).text == "fine"
    await hub.close()


async def test_turns_that_are_owed_are_found_when_the_store_is_back() -> None:
    clock = ManualClock()
    store = TroubledStore(clock)
    first = await Hub.over(store, clock=clock, engine=None)
    await first.register(Agent("bob", model=ScriptedModel([])))
    ann = await first.register("ann")
    channel = await ann.open(type="consulting", target="bob")
    await channel.send("well?")
    await first.close()
    store.listings_fail = 3
    hub = await Hub.over(store, clock=clock)
    again = await (await hub.register("ann")).channel(channel.channel_id)
    await hub.register(Agent("bob", model=ScriptedModel(["well."])))
    async with asyncio.timeout(5):
        while not again.state.ended:
            await clock.advance(1)
            await let_others_run(5)
    assert (again.state.close_reason, store.listings_fail) == ("answered", 0)
    await hub.close()


async def test_a_result_that_could_not_be_written_before_the_close_is_written_with_it() -> None:
    clock = ManualClock()
    store = TroubledStore(clock)
    made = []

    @tool
    async def charge() -> str:
        """Charge."""
        made.append(1)
        store.away = True
        return "charged"

    async def model(request: Request) -> Reply:
        return says("done") if request.exchange else calls("charge")

    agent = Agent("bob", model=model, tools=[charge])
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    asked = asyncio.create_task(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    async with asyncio.timeout(5):
        while not made:
            await let_others_run(1)
    await let_others_run(10)
    store.away = False
    await soon(hub.close())
    await asyncio.gather(asked, return_exceptions=True)
    hub = await Hub.over(store, clock=clock)
    assert (await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))).text == "done"
    assert len(made) == 1
    await hub.close()


@pytest.mark.parametrize("left", ["no tool", "other parameters"])
async def test_a_call_that_was_under_way_and_cannot_be_made_any_more_is_not_told_away(left: str) -> None:
    clock = ManualClock()
    store = TroubledStore(clock)
    inside = asyncio.Event()

    @tool(idempotency="unsafe")
    async def launch() -> str:
        """Launch it."""
        inside.set()
        await asyncio.Event().wait()
        return "never"

    @tool(name="launch", idempotency="unsafe")
    async def launch_at(place: str) -> str:
        """Launch it somewhere."""
        return "launched"

    first = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    await first.register(Agent("bob", model=ScriptedModel([calls("launch")]), tools=[launch]))
    channel = await (await first.register("ann")).open(type="consulting", target="bob")
    await channel.send("go")
    await soon(inside.wait())
    second = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    model = ScriptedModel(["I never had such a tool."])
    await second.register(Agent("bob", model=model, tools=[] if left == "no tool" else [launch_at]))
    held = await (await second.register("ann")).channel(channel.channel_id)
    assert await soon(held.closed()) == "turn_failed:call_lost"
    assert model.requests == []
    await second.close()
    await first.close()


async def test_two_tenants_never_share_a_key(tmp_path: Path) -> None:
    keys = []

    @tool
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        keys.append(idempotency_key)
        return "paid"

    for tenant in ("acme", "globex"):
        async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}", tenant=tenant, clock=ManualClock()) as hub:
            agent = Agent("bob", model=ScriptedModel([calls("pay"), "done"]), tools=[pay])
            await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    assert len(set(keys)) == 2


async def test_an_agent_that_would_wait_for_itself_is_told_so() -> None:
    async with Hub.open("memory:", clock=ManualClock()) as hub:

        @tool
        async def ask_eve() -> str:
            """Ask eve."""
            return (await eve.invoke("and you?", thread_id="e", hub=hub)).text

        @tool
        async def ask_bob(thread_id: str) -> str:
            """Ask bob."""
            return (await bob.invoke("and you?", thread_id=thread_id, hub=hub)).text

        async def bob_model(request: Request) -> Reply:
            if request.messages[0].text == "and you?":
                return says("bob is well")
            return says(request.messages[-1].text) if request.exchange else calls("ask_eve")

        async def eve_model(request: Request) -> Reply:
            if not request.exchange:
                return calls("ask_bob", {"thread_id": "b"})
            if len(request.exchange) == 2:
                return calls("ask_bob", {"thread_id": "other"})
            return says(" / ".join(message.text for message in request.messages if message.role == "tool"))

        bob = Agent("bob", model=bob_model, tools=[ask_eve])
        eve = Agent("eve", model=eve_model, tools=[ask_bob])
        reply = await soon(bob.invoke("how is everybody?", thread_id="b", hub=hub))
    refused, answered = reply.text.split(" / ")
    assert "'bob' cannot answer here" in refused
    assert answered == "bob is well"


async def test_a_message_that_an_agent_may_not_see_gives_it_no_turn() -> None:
    model = ScriptedModel([])
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        await hub.register(Agent("bob", model=model))
        ann = await hub.register("ann")
        channel = await ann.open(type="conversation", target="bob")
        await channel.send("a note to myself", audience=["ann"])
        await let_others_run(20)
        assert (channel.state.owed, model.requests) == ((), [])


@register_adapter
class Unforgiving:
    """Cannot fold that a turn has failed."""

    name: ClassVar[str] = "test_unforgiving"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()
    memory: ClassVar[type] = int

    def __init__(self, knobs: object) -> None:
        pass

    def evolve(self, memory: int, envelope: Envelope) -> int:
        if envelope.event_type == "antiphon.turn.failed":
            raise KeyError("never thought of that")
        return memory

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        order = state.participant_order
        return Assign((order[1] if envelope.sender_id == order[0] else order[0],))


async def test_rules_that_fail_on_a_failure_end_the_channel() -> None:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        await hub.register(Agent("bob", model=ScriptedModel([])))
        ann = await hub.register("ann")
        channel = await ann.open(type="test_unforgiving", target="bob")
        await channel.send("well?")
        assert await soon(channel.closed()) == "rules_failed"


async def test_an_invocation_that_is_given_up_while_its_thread_is_made_makes_it_once(tmp_path: Path) -> None:
    agent = Agent("bob", model=ScriptedModel([str(number) for number in range(40)]))
    async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}") as hub:
        for number in range(10):
            given_up = asyncio.create_task(agent.invoke("go", thread_id=str(number), hub=hub))
            await let_others_run(number)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            reply = await soon(agent.invoke("go", thread_id=str(number), hub=hub))
            log = await hub.log(reply.channel_id)
            assert [each.event_type for each in log].count(EV_CHANNEL_CREATED) == 1


async def test_calls_are_recorded_in_the_order_they_return() -> None:
    """A slow tool beside a quick one: what the quick one came to is on disk while the slow one is under way."""
    go_on = asyncio.Event()

    @tool
    async def quick() -> str:
        """Be quick."""
        return "quick"

    @tool
    async def slow() -> str:
        """Take your time."""
        await go_on.wait()
        return "slow"

    model = ScriptedModel([[calls("slow"), calls("quick")], "done"])
    agent = Agent("bob", model=model, tools=[quick, slow])
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        asked = asyncio.create_task(agent.invoke("go", thread_id="t", hub=hub))
        channel_id = (await agent.channel("t", hub)).channel_id
        async with asyncio.timeout(5):
            while not any(
                e.event_data.get("index") == 2 and e.event_type == EV_CALL_FINISHED for e in await hub.log(channel_id)
            ):
                await let_others_run(1)
        started = [e.event_data["index"] for e in await hub.log(channel_id) if e.event_type == EV_CALL_STARTED]
        assert started == [0, 1, 2]
        go_on.set()
        assert (await soon(asked)).text == "done"
