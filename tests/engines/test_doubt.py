"""Calls of which nobody knows what became, and what is done about them: nothing, unless somebody or something knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from antiphon import NOT_DONE, Denied, Envelope, calls, says, tool, visible_to
from antiphon.agents.call_results import NotDone
from antiphon.core.execution_events import EV_CALL_STARTED
from tests.support.crashing_hubs import Crashes, Mind, crashes
from tests.support.kept_store import KeptStore
from tests.support.waiting import wait_until

HOURS = 3600.0


class Till:
    """A tool that takes money: what it was asked for, and when it answers."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.made: list[tuple[int, str]] = []
        self.looked_up: list[int] = []
        self._hangs = hangs

    async def take(self, amount: int, key: str = "") -> str:
        self.made.append((amount, key))
        if self._hangs:
            await asyncio.Event().wait()
        return f"took {amount}"

    def unsafe(self, *, finds: str | NotDone | None = None, timeout: float | None = None) -> object:
        """The tool as one that must not be called twice; with `finds` there is a way to look it up."""

        async def find(amount: int) -> str | NotDone:
            self.looked_up.append(amount)
            assert finds is not None
            return finds

        @tool(idempotency="unsafe", reconcile=None if finds is None else find, timeout=timeout)
        async def pay(amount: int) -> str:
            return await self.take(amount)

        return pay

    def natural(self) -> object:
        @tool(idempotency="natural")
        async def pay(amount: int) -> str:
            return await self.take(amount)

        return pay

    def keyed(self) -> object:
        @tool
        async def pay(amount: int, idempotency_key: str) -> str:
            return await self.take(amount, idempotency_key)

        return pay


PAY = calls("pay", {"amount": 5})
Kind = Callable[[Till], object]


async def died_while_paying(place: Crashes, kind: Kind) -> Till:
    """A hub that died while a tool was called."""
    till = Till(hangs=True)
    await place.next_hub(Mind(PAY), tools=[kind(till)])
    await place.open()
    await wait_until(lambda: len(till.made) == 1)
    return till


async def in_doubt(place: Crashes) -> tuple[Till, Mind]:
    """A turn that waits for a person, in a new hub with a till and a model that could go on."""
    await died_while_paying(place, Till.unsafe)
    till, mind = Till(), Mind(says("paid"))
    await place.next_hub(mind, tools=[till.unsafe()])
    await place.until("call.doubted")
    await a_while()
    return till, mind


def tool_results(mind: Mind) -> list[str]:
    return [message.text for message in mind.requests[-1].messages if message.role == "tool"]


async def a_while() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


# What was under way


async def test_what_can_be_looked_up_is_recorded_and_not_called_again() -> None:
    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        till, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[till.unsafe(finds="receipt 7")])
        assert await place.answered() == ["paid"]
        assert (till.looked_up, till.made) == ([5], [])
        assert tool_results(mind) == ["receipt 7"]
        assert await place.told("call.doubted") == []


async def test_what_was_looked_up_is_not_looked_up_again() -> None:
    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        first, mind = Till(), Mind()
        await place.next_hub(mind, tools=[first.unsafe(finds="receipt 7")])
        await wait_until(lambda: mind.thinks)
        second = Till()
        await place.next_hub(Mind(says("paid")), tools=[second.unsafe(finds="receipt 8")])
        assert await place.answered() == ["paid"]
        assert (first.looked_up, second.looked_up, second.made) == ([5], [], [])


async def test_what_was_not_done_is_called_again() -> None:
    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        till, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[till.unsafe(finds=NOT_DONE)])
        assert await place.answered() == ["paid"]
        assert (till.looked_up, till.made) == ([5], [(5, "")])
        assert tool_results(mind) == ["took 5"]


async def test_a_lookup_that_fails_leaves_the_doubt() -> None:
    async def broken(amount: int) -> str:
        raise ConnectionError("the bank does not answer")

    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        till = Till()

        @tool(idempotency="unsafe", reconcile=broken)
        async def pay(amount: int) -> str:
            return await till.take(amount)

        await place.next_hub(Mind(says("paid")), tools=[pay])
        await place.until("call.doubted")
        await a_while()
        assert till.made == []


async def test_a_keyed_call_is_made_again_with_the_same_key() -> None:
    async with crashes() as place:
        died = await died_while_paying(place, Till.keyed)
        till, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[till.keyed()])
        assert await place.answered() == ["paid"]
        assert till.made == died.made
        assert till.made[0][1]
        assert tool_results(mind) == ["took 5"]


async def test_two_calls_of_one_turn_have_two_keys() -> None:
    async with crashes() as place:
        till = Till()
        await place.next_hub(Mind(PAY, PAY, says("paid twice")), tools=[till.keyed()])
        await place.open()
        assert await place.answered() == ["paid twice"]
        assert len({key for _, key in till.made}) == 2


async def test_a_natural_call_is_made_again() -> None:
    async with crashes() as place:
        await died_while_paying(place, Till.natural)
        till = Till()
        await place.next_hub(Mind(says("paid")), tools=[till.natural()])
        assert await place.answered() == ["paid"]
        assert till.made == [(5, "")]


@pytest.mark.parametrize("kind", [Till.unsafe, Till.natural, Till.keyed])
async def test_a_call_that_has_finished_is_never_made_again(kind: Kind) -> None:
    async with crashes() as place:
        first, mind = Till(), Mind(PAY)
        await place.next_hub(mind, tools=[kind(first)])
        await place.open()
        await wait_until(lambda: len(mind.requests) == 2)
        second, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[kind(second)])
        assert await place.answered() == ["paid"]
        assert (len(first.made), second.made) == (1, [])
        assert tool_results(mind) == ["took 5"]


async def test_what_finished_beside_a_call_in_doubt_is_kept() -> None:
    """Of three calls made together one had returned, one is harmless, and one nobody knows about."""
    noted: list[str] = []

    async def note(text: str) -> str:
        noted.append(text)
        return "noted"

    async with crashes() as place:
        died, mind = Till(hangs=True), Mind([calls("note", {"text": "a"}), PAY])
        await place.next_hub(mind, tools=[note, died.unsafe()])
        await place.open()
        await wait_until(lambda: len(died.made) == 1)
        await place.until("call.finished", 2)
        till, mind = Till(), Mind(says("both done"))
        await place.next_hub(mind, tools=[note, till.unsafe()])
        await place.until("call.doubted")
        await a_while()
        [turn] = (await place.state()).owed
        assert turn.doubts == (2,)
        await (await place.held_by("ann")).settle(turn.turn_id, 2, result="it went through")
        assert await place.answered() == ["both done"]
        assert noted == ["a"]
        assert tool_results(mind) == ["noted", "it went through"]


# What waits for a person


async def test_a_call_that_nobody_knows_about_waits_for_a_person() -> None:
    async with crashes() as place:
        till, mind = await in_doubt(place)
        [turn] = (await place.state()).owed
        assert turn.doubts == (1,)
        place.clock.advance(24 * HOURS)
        await a_while()
        assert (till.made, mind.requests) == ([], [])
        assert await place.told("turn.failed", "expectation.missed") == []
        assert (await place.state()).owed == (turn,)


async def test_everybody_is_told_of_a_doubt() -> None:
    async with crashes() as place:
        await in_doubt(place)
        [doubted] = await place.told("call.doubted")
        assert doubted.event_data["name"] == "pay"
        assert doubted.event_data["speaker"] == "bob"
        assert visible_to(doubted, "ann")


async def test_a_doubt_outlives_the_next_process() -> None:
    async with crashes() as place:
        await in_doubt(place)
        till, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[till.unsafe()])
        await a_while()
        assert (till.made, mind.requests) == ([], [])
        assert len(await place.told("call.doubted")) == 1
        turn_id = (await place.state()).owed[0].turn_id
        await (await place.held_by("ann")).settle(turn_id, 1, result="it went through")
        assert await place.answered() == ["paid"]


async def test_a_person_says_what_became_of_it() -> None:
    async with crashes() as place:
        till, mind = await in_doubt(place)
        channel = await place.held_by("ann")
        await channel.settle(channel.state.owed[0].turn_id, 1, result="it went through")
        assert await place.answered() == ["paid"]
        assert till.made == []
        assert tool_results(mind) == ["it went through"]
        settled = [entry for entry in await place.told("call.finished") if entry.event_data["index"] == 1]
        assert [entry.event_data["by"] for entry in settled] == ["ann"]


async def test_who_settles_at_once_is_heard() -> None:
    """Before the attempt that has recorded the doubt is over."""
    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        await place.next_hub(Mind(says("paid")), tools=[Till().unsafe()])
        await place.until("call.doubted")
        channel = await place.held_by("ann")
        await channel.settle(channel.state.owed[0].turn_id, 1, result="it went through")
        assert await place.answered() == ["paid"]


async def test_a_person_has_it_made_again() -> None:
    async with crashes() as place:
        till, mind = await in_doubt(place)
        channel = await place.held_by("ann")
        await channel.settle(channel.state.owed[0].turn_id, 1, again=True)
        assert await place.answered() == ["paid"]
        assert till.made == [(5, "")]
        assert tool_results(mind) == ["took 5"]
        assert len(await place.told("call.cleared")) == 1


async def test_a_person_may_take_longer_than_a_turn_may() -> None:
    async with crashes() as place:
        await in_doubt(place)
        channel = await place.held_by("ann")
        place.clock.advance(24 * HOURS)
        await a_while()
        await channel.settle(channel.state.owed[0].turn_id, 1, result="it went through")
        assert await place.answered() == ["paid"]
        assert await place.told("turn.failed") == []


async def test_a_call_made_again_that_is_cut_off_again_is_in_doubt_again() -> None:
    async with crashes() as place:
        await died_while_paying(place, Till.unsafe)
        died = Till(hangs=True)
        await place.next_hub(Mind(says("paid")), tools=[died.unsafe()])
        await place.until("call.doubted")
        await a_while()
        channel = await place.held_by("ann")
        await channel.settle(channel.state.owed[0].turn_id, 1, again=True)
        await wait_until(lambda: len(died.made) == 1)
        till = Till()
        await place.next_hub(Mind(says("paid")), tools=[till.unsafe()])
        await place.until("call.doubted", 2)
        await a_while()
        assert till.made == []
        assert (await place.state()).owed[0].doubts == (1,)


async def test_an_agent_settles_nothing() -> None:
    async with crashes() as place:
        await in_doubt(place)
        channel = await place.held_by("bob")
        for options in ({"result": "it went through"}, {"again": True}):
            with pytest.raises(Denied) as denied:
                await channel.settle(channel.state.owed[0].turn_id, 1, **options)
            assert denied.value.reason == "not_a_person"
        assert (await place.state()).owed[0].doubts == (1,)


async def test_only_what_is_in_doubt_can_be_settled() -> None:
    async with crashes() as place:
        await in_doubt(place)
        channel = await place.held_by("ann")
        turn_id = channel.state.owed[0].turn_id
        for other in ((turn_id, 0), (turn_id, 2), ("99/bob", 1)):
            with pytest.raises(Denied) as denied:
                await channel.settle(*other, result="it went through")
            assert denied.value.reason == "not_in_doubt"
        await channel.settle(turn_id, 1, result="it went through")
        with pytest.raises(Denied) as denied:
            await channel.settle(turn_id, 1, result="it did not")
        assert denied.value.reason == "not_in_doubt"


async def test_a_turn_in_doubt_can_be_cancelled() -> None:
    async with crashes() as place:
        till, _ = await in_doubt(place)
        assert await (await place.held_by("ann")).cancel("never mind") == 1
        await a_while()
        assert [entry.event_data["reason"] for entry in await place.told("turn.failed")] == ["cancelled"]
        assert till.made == []


# What takes too long


async def test_an_unsafe_call_that_takes_too_long_is_in_doubt() -> None:
    async with crashes() as place:
        till, mind = Till(hangs=True), Mind(PAY, says("paid"))
        await place.next_hub(mind, tools=[till.unsafe(timeout=5)])
        await place.open()
        await wait_until(lambda: len(till.made) == 1)
        await a_while()
        place.clock.advance(5)
        await place.until("call.doubted")
        await a_while()
        channel = await place.held_by("ann")
        [turn] = channel.state.owed
        assert (turn.doubts, len(mind.requests)) == ((1,), 1)
        await channel.settle(turn.turn_id, 1, result="it went through")
        assert await place.answered() == ["paid"]
        assert len(till.made) == 1
        assert tool_results(mind) == ["it went through"]


async def test_an_unsafe_call_that_takes_too_long_is_looked_up() -> None:
    async with crashes() as place:
        till, mind = Till(hangs=True), Mind(PAY, says("paid"))
        await place.next_hub(mind, tools=[till.unsafe(finds="receipt 7", timeout=5)])
        await place.open()
        await wait_until(lambda: len(till.made) == 1)
        await a_while()
        place.clock.advance(5)
        assert await place.answered() == ["paid"]
        assert tool_results(mind) == ["receipt 7"]
        assert await place.told("call.doubted") == []


# What does not fit its journal


async def copied_with(place: Crashes, change: Callable[[Envelope], Envelope]) -> None:
    """Go on over a log that is another in some places."""
    kept = KeptStore(clock=place)
    for name in await place.store.names():
        log = (await place.store.read(name)).envelopes
        await kept.append(name, [change(envelope) for envelope in log], expected=0)
    place.store = kept


def asks_for_another(envelope: Envelope) -> Envelope:
    """The call of the tool, as if something else had been asked for."""
    data = envelope.event_data
    if envelope.event_type != EV_CALL_STARTED or data["name"] != "pay":
        return envelope
    return replace(envelope, event_data={**data, "digest": "0" * 64})


@pytest.mark.parametrize("kind", [Till.unsafe, Till.natural, Till.keyed])
@pytest.mark.parametrize("finished", [False, True])
async def test_another_call_in_the_place_of_a_recorded_one_is_a_conflict(kind: Kind, finished: bool) -> None:
    async with crashes() as place:
        first, mind = Till(hangs=not finished), Mind(PAY)
        await place.next_hub(mind, tools=[kind(first)])
        await place.open()
        await wait_until(lambda: len(mind.requests) == 2 if finished else len(first.made) == 1)
        await copied_with(place, asks_for_another)
        till, mind = Till(), Mind(says("paid"))
        await place.next_hub(mind, tools=[kind(till)])
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "idempotency_conflict"
        [conflicted] = await place.told("call.conflicted")
        assert (conflicted.event_data["index"], conflicted.event_data["recorded"]) == (1, "0" * 64)
        await a_while()
        assert (till.made, mind.requests) == ([], [])
        assert await place.answers() == []


async def test_a_model_that_would_be_asked_something_else_is_noted_and_its_answer_kept() -> None:
    async with crashes() as place:
        till, mind = Till(), Mind(PAY)
        await place.next_hub(mind, tools=[till.natural()], system_prompt="Be brief.")
        await place.open()
        await wait_until(lambda: len(mind.requests) == 2)
        mind = Mind(says("paid"))
        await place.next_hub(mind, tools=[till.natural()], system_prompt="Be polite.")
        assert await place.answered() == ["paid"]
        assert [entry.event_data["index"] for entry in await place.told("call.conflicted")] == [0]
        assert (len(till.made), tool_results(mind)) == (1, ["took 5"])
