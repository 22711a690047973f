"""Tools with `once`: of calls with equal values one runs, and the others are answered with its result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import NOT_DONE, Agent, Envelope, Hub, ScriptedModel, calls, says, tool
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.core.protection_events import EV_ONCE_REGISTERED
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import crashes
from tests.support.waiting import soon, wait_until


class Bank:
    """Counts what really happens; a payment with a key that it knows happens no second time."""

    def __init__(self, *, fails: int = 0, scope: str = "channel") -> None:
        self.calls: list[tuple[object, str]] = []
        self.effects: Counter[str] = Counter()
        self.fails = fails
        self.gate: asyncio.Event | None = None

        @tool(once=("order",), once_scope=scope)  # type: ignore[call-overload]
        async def refund(order: object, idempotency_key: str, note: str = "") -> str:
            """Pay back."""
            self.calls.append((order, note))
            if len(self.calls) <= self.fails:
                raise RuntimeError("the bank is closed")
            self.effects[idempotency_key] += 1
            if self.gate is not None:
                await self.gate.wait()
            return f"paid as {len(self.effects)}"

        self.refund = refund

    def agent(self, *script: object, name: str = "bob", **options: object) -> Agent:
        model = ScriptedModel(list(script))
        return Agent(name, model=model, tools=[self.refund], **options)  # type: ignore[arg-type]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


def refund(order: object, note: str = "") -> object:
    return calls("refund", {"order": order, "note": note})


def of_type(log: list[Envelope], event_type: str) -> list[dict[str, object]]:
    return [each.event_data for each in log if each.event_type == event_type]


def results(log: list[Envelope]) -> list[str]:
    """What the calls of tools have returned."""
    found = (each["result"] for each in of_type(log, EV_CALL_FINISHED))
    return [each["returned"]["text"] for each in found if "returned" in each]  # type: ignore[index,operator]


async def test_a_second_call_is_answered_with_the_first_result(hub: Hub) -> None:
    bank = Bank()
    agent = bank.agent(refund(7), refund(7), says("Once."))
    reply = await soon(agent.invoke("Refund 7", hub=hub))
    assert (reply.text, len(bank.calls)) == ("Once.", 1)
    log = await hub.log(reply.channel_id)
    assert results(log) == ["paid as 1", "paid as 1"]
    first, second = [each for each in of_type(log, EV_CALL_FINISHED) if "returned" in each["result"]]  # type: ignore[operator]
    assert "first" not in first
    turn = first["turn"]
    assert second["first"] == f"{reply.channel_id} {turn}#{first['index']}"


async def test_an_agent_that_phrases_the_refund_differently_does_not_refund_twice(hub: Hub) -> None:
    bank = Bank()
    agent = bank.agent(
        refund(7, "as the customer asked"), says("Done."), refund(7.0, "the customer wants it back"), says("Done.")
    )
    await soon(agent.invoke("Refund 7", thread_id="t", hub=hub))
    await soon(agent.invoke("Did you? Refund 7!", thread_id="t", hub=hub))
    assert bank.calls == [(7, "as the customer asked")]


async def test_other_values_are_another_call(hub: Hub) -> None:
    bank = Bank()
    agent = bank.agent([refund(1), refund(True), refund("1")], refund(2), says("Four."))
    await soon(agent.invoke("Refund", hub=hub))
    assert len(bank.calls) == 4


async def test_a_call_in_another_channel_is_another_call(hub: Hub) -> None:
    bank = Bank()
    agent = bank.agent(refund(7), says("Done."), refund(7), says("Done."))
    await soon(agent.invoke("Refund 7", thread_id="a", hub=hub))
    await soon(agent.invoke("Refund 7", thread_id="b", hub=hub))
    assert len(bank.calls) == 2


async def test_a_call_that_failed_is_no_result(hub: Hub) -> None:
    bank = Bank(fails=2)
    agent = bank.agent(refund(7), refund(7), refund(7), refund(7), says("Done."))
    reply = await soon(agent.invoke("Refund 7", hub=hub))
    log = await hub.log(reply.channel_id)
    assert len(bank.calls) == 3
    assert results(log) == ["paid as 1", "paid as 1"]
    assert [each["error"] for each in of_type(log, EV_CALL_FAILED)] == ["RuntimeError: the bank is closed"] * 2


async def test_a_hundred_parallel_calls_have_one_effect(hub: Hub) -> None:
    bank = Bank()
    agent = bank.agent([refund(7, f"{number}") for number in range(100)], says("Done."))
    reply = await soon(agent.invoke("Refund 7", hub=hub))
    assert len(bank.calls) == 1
    log = await hub.log(reply.channel_id)
    assert results(log) == ["paid as 1"] * 100
    assert len(of_type(log, EV_ONCE_REGISTERED)) == 1


async def test_a_hundred_channels_of_one_store_have_one_effect(hub: Hub) -> None:
    bank = Bank(scope="store")
    replies = await soon(
        asyncio.gather(
            *(
                bank.agent(refund(7), says("Done."), name=f"bob-{number}").invoke("Refund 7", hub=hub)
                for number in range(100)
            )
        )
    )
    assert len(bank.calls) == 1
    told = [results(await hub.log(reply.channel_id)) for reply in replies]
    assert told == [["paid as 1"]] * 100
    assert len(of_type(await hub.log("system:once"), EV_ONCE_REGISTERED)) == 1


@asynccontextmanager
async def hub_on(path: Path) -> AsyncIterator[Hub]:
    hub = await Hub.over(await SqliteStore.open(str(path), exclusive=False))
    try:
        yield hub
    finally:
        await hub.close()


async def test_two_hubs_on_one_store_make_the_call_once(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    bank = Bank(scope="store")
    bank.gate = asyncio.Event()
    async with hub_on(path) as one, hub_on(path) as other:
        first = asyncio.create_task(bank.agent(refund(7), says("Done."), name="ann").invoke("Go", hub=one))
        await wait_until(lambda: bool(bank.calls))
        second = asyncio.create_task(bank.agent(refund(7), says("Done."), name="bea").invoke("Go", hub=other))
        await wait_until(lambda: "bea" in other.core.agents)
        bank.gate.set()
        replies = await soon(asyncio.gather(first, second))
        assert len(bank.calls) == 1
        assert [results(await one.log(reply.channel_id)) for reply in replies] == [["paid as 1"]] * 2


async def test_a_call_that_waits_too_long_is_not_made(hub: Hub) -> None:
    clock = hub.core.clock
    assert isinstance(clock, ManualClock)
    bank = Bank(scope="store")
    bank.gate = asyncio.Event()
    first = asyncio.create_task(bank.agent(refund(7), says("Done."), name="ann").invoke("Go", hub=hub))
    await wait_until(lambda: bool(bank.calls))
    bank.refund = tool(bank.refund.function, once=("order",), once_scope="store", timeout=5)  # type: ignore[assignment]
    model = ScriptedModel([refund(7), says("Later.")])
    waiting = Agent("bea", model=model, tools=[bank.refund])
    second = asyncio.create_task(waiting.invoke("Go", hub=hub))
    await wait_until(lambda: bool(model.requests))

    async def passing() -> None:
        while not second.done():
            clock.advance(0.5)
            await asyncio.sleep(0)

    await soon(passing())
    assert "has not returned yet" in str(model.requests[1].messages)
    bank.gate.set()
    await soon(first)
    assert len(bank.calls) == 1


@pytest.mark.parametrize("unsafe", [False, True])
async def test_a_call_whose_turn_was_cancelled_is_made_again_with_its_key_or_not_at_all(hub: Hub, unsafe: bool) -> None:
    made: list[str] = []
    never = asyncio.Event()

    @tool(once=("order",), once_scope="store", idempotency="unsafe" if unsafe else "keyed")
    async def pay(order: int, idempotency_key: str) -> str:
        made.append(idempotency_key)
        if len(made) == 1:
            await never.wait()
        return "paid"

    boss = await hub.register("boss", kind="human")
    await hub.register(Agent("ann", model=ScriptedModel([calls("pay", {"order": 7})]), tools=[pay]))
    channel = await boss.open(target="ann", say="Pay 7")
    await wait_until(lambda: bool(made))
    await channel.cancel("no")
    model = ScriptedModel([calls("pay", {"order": 7}), says("Well.")])
    await soon(Agent("bea", model=model, tools=[pay]).invoke("Pay 7", hub=hub))
    heard = str(model.requests[1].messages)
    if unsafe:
        assert len(made) == 1
        assert "it is not known whether it took effect" in heard
    else:
        assert made == [made[0]] * 2


async def test_a_timed_out_call_is_made_again_with_the_same_key(hub: Hub) -> None:
    clock = hub.core.clock
    assert isinstance(clock, ManualClock)
    made: list[str] = []

    @tool(once=("order",), timeout=5)
    async def pay(order: int, idempotency_key: str) -> str:
        made.append(idempotency_key)
        if len(made) == 1:
            await asyncio.Event().wait()
        return "paid"

    model = ScriptedModel([calls("pay", {"order": 7}), calls("pay", {"order": 7}), says("Paid.")])
    turn = asyncio.create_task(Agent("ann", model=model, tools=[pay]).invoke("Pay", hub=hub))
    await wait_until(lambda: bool(made))
    clock.advance(5)
    await soon(turn)
    assert made == [made[0]] * 2


async def test_after_a_crash_the_registered_call_goes_on_and_runs_with_its_key() -> None:
    """Whatever was written when the process ended, the next one finishes the same call."""
    made: list[str] = []

    @tool(once=("order",))
    async def pay(order: int, idempotency_key: str) -> str:
        made.append(idempotency_key)
        if len(made) == 1:
            await asyncio.Event().wait()
        return "paid"

    async with crashes() as place:
        await place.next_hub(ScriptedModel([calls("pay", {"order": 7})]), tools=[pay])
        await place.open()
        await wait_until(lambda: bool(made))
        await place.next_hub(ScriptedModel([calls("pay", {"order": 7}), says("Paid.")], by="position"), tools=[pay])
        await soon(place.answered())
        assert made == [made[0]] * 2
        assert len(await place.told("once.registered")) == 1
        assert results(await place.log()) == ["paid"]


async def test_an_unsafe_call_in_flight_that_only_waited_is_not_in_doubt() -> None:
    """A duplicate has no effect, so that no person is asked about it after a crash."""
    made: list[int] = []

    @tool(once=("order",), idempotency="unsafe", reconcile=lambda order: "found: paid")
    async def pay(order: int) -> str:
        made.append(order)
        await asyncio.Event().wait()
        return "paid"

    both = [calls("pay", {"order": 7}), calls("pay", {"order": 7})]
    async with crashes() as place:
        await place.next_hub(ScriptedModel([both]), tools=[pay])
        await place.open()
        await wait_until(lambda: bool(made))
        await place.next_hub(ScriptedModel([both, says("Paid.")], by="position"), tools=[pay])
        await soon(place.answered())
        log = await place.log()
        assert (made, results(log)) == ([7], ["found: paid", "found: paid"])
        assert len({each["index"] for each in of_type(log, EV_CALL_STARTED) if each["name"] == "pay"}) == 2


@pytest.mark.parametrize(("found", "made"), [("paid before", 1), (NOT_DONE, 2)])
async def test_an_unsafe_call_that_was_cut_off_is_reconciled_before_another_is_made(
    hub: Hub, found: object, made: int
) -> None:
    calls_made: list[int] = []

    @tool(once=("order",), once_scope="store", idempotency="unsafe", reconcile=lambda order: found)
    async def pay(order: int) -> str:
        calls_made.append(order)
        if len(calls_made) == 1:
            await asyncio.Event().wait()
        return "paid now"

    boss = await hub.register("boss", kind="human")
    await hub.register(Agent("ann", model=ScriptedModel([calls("pay", {"order": 7})]), tools=[pay]))
    channel = await boss.open(target="ann", say="Pay 7")
    await wait_until(lambda: bool(calls_made))
    await channel.cancel("no")
    model = ScriptedModel([calls("pay", {"order": 7}), says("Well.")])
    reply = await soon(Agent("bea", model=model, tools=[pay]).invoke("Pay 7", hub=hub))
    assert len(calls_made) == made
    assert results(await hub.log(reply.channel_id)) == ["paid before" if made == 1 else "paid now"]
