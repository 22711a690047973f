"""Asking a model again: how often, after how long, until when, and what is never asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon import (
    Agent,
    FinalStateEvent,
    Hub,
    Limits,
    Message,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    OutcomeUnknown,
    Reply,
    ReplyMalformed,
    Request,
    ScriptedModel,
    SummarisedTranscript,
    TokenEvent,
    TurnFailed,
    UsageError,
    says,
)
from antiphon.core.envelope import OPERATORS, Envelope, Instant
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_RETRIED, EV_TURN_RELEASED, CallRetried
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import crashes
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon, wait_until

BUSY = ModelUnavailable("busy", status=503)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


class Asked:
    """An agent that was asked something, and what the log says of that meanwhile."""

    def __init__(self, hub: Hub, agent: Agent, *, thread_id: str = "t") -> None:
        self._hub, self._agent, self._thread_id = hub, agent, thread_id
        self.reply = asyncio.create_task(agent.invoke("well?", thread_id=thread_id, hub=hub, message_id="m"))

    async def log(self) -> list[Envelope]:
        return await self._hub.log((await self._agent.channel(self._thread_id, self._hub)).channel_id)

    async def entries(self) -> list[Envelope]:
        return [entry for entry in await self.log() if entry.event_type == EV_CALL_RETRIED]

    async def retried(self, count: int) -> CallRetried:
        """The last of so many facts, as soon as there are so many."""
        async with asyncio.timeout(5):
            while len(found := await self.entries()) < count:
                assert not self.reply.done(), self.reply
                await let_others_run(1)
        event = event_of(found[count - 1])
        assert isinstance(event, CallRetried)
        return event

    async def failed(self) -> TurnFailed:
        with pytest.raises(TurnFailed) as failed:
            await soon(self.reply)
        return failed.value


def agent(model: object, name: str = "bob", **limits: object) -> Agent:
    return Agent(name, model=model, limits=Limits(**limits))  # type: ignore[arg-type]  # as each test wants them


async def test_a_model_that_is_unavailable_is_asked_again_after_a_while(hub: Hub, clock: ManualClock) -> None:
    model = ScriptedModel([BUSY, ModelUnavailable("slow down", status=429, retry_after=3), "Here I am."])
    asked = Asked(hub, agent(model))
    first = await asked.retried(1)
    assert (first.index, first.attempt, first.error, first.status) == (0, 1, "ModelUnavailable: busy", 503)
    assert 0 < first.delay <= 0.5
    await clock.advance(first.delay - 0.000_002)
    await let_others_run()
    assert len(model.requests) == 1
    await clock.advance(0.000_002)
    second = await asked.retried(2)
    assert (second.attempt, second.status, second.delay) == (2, 429, 3.0)
    await clock.advance(2.999_999)
    await let_others_run()
    assert len(model.requests) == 2
    await clock.advance(0.000_001)
    assert (await soon(asked.reply)).text == "Here I am."
    assert model.requests[0] == model.requests[1] == model.requests[2]
    assert [entry.audience for entry in await asked.entries()] == [[OPERATORS]] * 2


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_request_that_the_provider_calls_wrong_is_not_sent_again(hub: Hub, status: int) -> None:
    model = ScriptedModel([ModelUnavailable("no", status=status), "too late"])
    failed = await Asked(hub, agent(model)).failed()
    assert (failed.reason, len(model.requests)) == ("model_error", 1)


@pytest.mark.parametrize("status", [None, 408, 409, 425, 429, 500, 529])
def test_what_may_pass(status: int | None) -> None:
    assert ModelUnavailable("later", status=status).may_pass


async def test_when_all_attempts_are_used_up_the_turn_fails_at_once(hub: Hub, clock: ManualClock) -> None:
    model = ScriptedModel([BUSY, BUSY, ModelUnavailable("still busy"), "too late"])
    asked = Asked(hub, agent(model))
    for attempt in (1, 2):
        await clock.advance((await asked.retried(attempt)).delay)
    failed = await asked.failed()
    assert (failed.reason, failed.detail) == ("model_error", "ModelUnavailable: still busy; it was asked 3 times")
    assert (len(model.requests), len(await asked.entries())) == (3, 2)
    [outcome] = [entry for entry in await asked.log() if entry.event_type == EV_CALL_FAILED]
    assert outcome.event_data["error"] == failed.detail


async def test_who_allows_one_attempt_gets_one(hub: Hub) -> None:
    model = ScriptedModel([BUSY, "too late"])
    asked = Asked(hub, agent(model, model_attempts=1))
    assert (await asked.failed()).detail == "ModelUnavailable: busy"
    assert (len(model.requests), await asked.entries()) == (1, [])


@pytest.mark.parametrize(
    "error", [ModelRefused("wrong key", status=401), ModelError("odd"), ReplyMalformed("what?"), RuntimeError("mine")]
)
async def test_whatever_else_a_model_raises_is_final(hub: Hub, clock: ManualClock, error: Exception) -> None:
    model = ScriptedModel([error, "too late"])
    asked = Asked(hub, agent(model))
    assert (await asked.failed()).detail == f"{type(error).__name__}: {error}"
    assert (len(model.requests), await asked.entries()) == (1, [])
    model = ScriptedModel([BUSY, error, "too late"])
    asked = Asked(hub, agent(model, "eve"))
    await clock.advance((await asked.retried(1)).delay)
    assert (await asked.failed()).detail == f"{type(error).__name__}: {error}; it was asked 2 times"


# How long


async def delays(attempts: int, thread_id: str = "t") -> list[float]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        model = ScriptedModel([BUSY] * attempts)
        asked = Asked(hub, agent(model, model_attempts=attempts, model_seconds=None), thread_id=thread_id)
        found = []
        for attempt in range(1, attempts):
            found.append((await asked.retried(attempt)).delay)
            await clock.advance(found[-1])
        await asked.failed()
    return found


async def test_the_waits_grow_up_to_a_bound_and_are_the_same_for_the_same_call() -> None:
    found = await delays(40)
    bounds = [min(20.0, 0.5 * 2.0**k) for k in range(39)]
    assert all(0 < delay < bound for delay, bound in zip(found, bounds, strict=True))
    assert max(found) > 18
    assert min(found[10:]) < 2
    assert await delays(5) == found[:4]
    assert await delays(5, thread_id="u") != found[:4]


async def test_nobody_waits_for_what_cannot_come_in_time(hub: Hub, clock: ManualClock) -> None:
    model = ScriptedModel([ModelUnavailable("later", retry_after=9), "too late"])
    asked = Asked(hub, agent(model, model_seconds=10))
    failed = await asked.failed()
    assert (failed.reason, await asked.entries()) == ("model_error", [])
    assert failed.detail == "ModelUnavailable: later; it could be asked again in 9 seconds, which is too late"
    model = ScriptedModel([ModelUnavailable("later", retry_after=8.999_999), "just in time"])
    asked = Asked(hub, agent(model, "eve", model_seconds=10))
    assert (await asked.retried(1)).delay == 8.999_999
    await clock.advance(8.999_999)
    assert (await soon(asked.reply)).text == "just in time"


async def test_what_has_no_end_is_not_waited_for(hub: Hub) -> None:
    asked = Asked(hub, agent(ScriptedModel([ModelUnavailable("never", retry_after=float("inf"))]), model_seconds=None))
    assert "which is too late" in (await asked.failed()).detail


async def test_all_attempts_share_one_deadline(hub: Hub, clock: ManualClock) -> None:
    """Five seconds for the first attempt and four for the wait leave one for the second, which thinks for ever."""
    over = asyncio.Event()

    async def slowly(request: Request) -> Exception:
        await over.wait()
        return ModelUnavailable("busy", retry_after=3.9)

    async def for_ever(request: Request) -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([slowly, for_ever])  # type: ignore[list-item]  # an error may be given too
    asked = Asked(hub, agent(model, model_seconds=10))
    await wait_until(lambda: len(model.requests) == 1)
    await clock.advance(5)
    over.set()
    await asked.retried(1)
    await clock.advance(3.9)
    await wait_until(lambda: len(model.requests) == 2)
    await clock.advance(1.099_999)
    await let_others_run()
    assert not asked.reply.done()
    await clock.advance(0.000_001)
    failed = await asked.failed()
    assert failed.reason == "model_timeout"
    assert failed.detail == "nothing came within 10 seconds; it was asked 2 times"


class AwayStore(KeptStore):
    """Does not take that anything is tried again while it is away."""

    away = True

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self.away and any(entry.event_type == EV_CALL_RETRIED for entry in batch):
            raise OutcomeUnknown("away")
        return await super().append(channel, batch, expected=expected, due=due)


async def test_a_store_that_is_away_for_too_long_uses_up_the_time(clock: ManualClock) -> None:
    store = AwayStore(clock=clock)
    hub = await Hub.over(store, clock=clock)
    model = ScriptedModel([BUSY, "too late"])
    asked = Asked(hub, agent(model, model_seconds=10))
    await wait_until(lambda: len(model.requests) == 1)
    await let_others_run(50)
    clock.advance(10)
    await let_others_run(50)
    store.away = False
    clock.advance(1)
    failed = await asked.failed()
    assert (failed.reason, failed.detail) == ("model_timeout", "nothing came within 10 seconds")
    assert len(model.requests) == 1
    await hub.close()


# What was heard


class Orator:
    """Speaks in pieces, and breaks off after some of them as often as it is told to."""

    def __init__(self, *breaks: int) -> None:
        self._breaks = list(breaks)
        self.asked = 0

    async def __call__(self, request: Request) -> Reply:
        raise AssertionError("somebody listens")

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        self.asked += 1
        left = self._breaks.pop(0) if self._breaks else 9
        for place, piece in enumerate(("", "Friends, ", "Romans.")):
            if place == left:
                raise ModelUnavailable("the line is dead")
            yield piece
        yield says("Friends, Romans.")


async def listened(hub: Hub, model: Orator, clock: ManualClock) -> tuple[list[str], FinalStateEvent]:
    pieces: list[str] = []

    async def listen() -> FinalStateEvent:
        final = None
        async for event in agent(model).stream_invoke("speak", hub=hub, tokens=True):
            if isinstance(event, TokenEvent):
                pieces.append(event.text)
            final = event
        assert isinstance(final, FinalStateEvent)
        return final

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(5):
        while not listening.done():
            await let_others_run(5)
            clock.advance(0.1)
    return pieces, await listening


async def test_what_was_heard_is_not_said_again(hub: Hub, clock: ManualClock) -> None:
    model = Orator(2)
    pieces, final = await listened(hub, model, clock)
    assert ([piece for piece in pieces if piece], model.asked) == (["Friends, "], 1)
    assert (final.stopped, final.detail) == (
        "model_error",
        "it broke off in mid-answer: ModelUnavailable: the line is dead",
    )


async def test_who_broke_off_before_a_word_was_heard_is_asked_again(hub: Hub, clock: ManualClock) -> None:
    model = Orator(0, 1)
    pieces, final = await listened(hub, model, clock)
    assert ([piece for piece in pieces if piece], model.asked) == (["Friends, ", "Romans."], 3)
    assert (final.text, final.stopped) == ("Friends, Romans.", None)


# Stops, cancellations, crashes


async def test_a_hub_that_closes_puts_the_turn_back_and_the_next_goes_on_counting(clock: ManualClock) -> None:
    store = KeptStore(clock=clock)
    hub = await Hub.over(store, clock=clock)
    asked = Asked(hub, agent(ScriptedModel([ModelUnavailable("busy", retry_after=60)])))
    await asked.retried(1)
    async with asyncio.timeout(2):  # it waits neither for the minute nor for the five seconds that calls under way get
        await hub.close()
    with pytest.raises(UsageError):
        await soon(asked.reply)
    model = ScriptedModel([BUSY, BUSY, "too late"])
    hub = await Hub.over(store, clock=clock)
    asked = Asked(hub, agent(model))
    assert (await asked.retried(2)).attempt == 2
    assert [entry.event_type for entry in await asked.log()].count(EV_TURN_RELEASED) == 1
    clock.advance(2)
    assert (await asked.failed()).detail == "ModelUnavailable: busy; it was asked 3 times"
    assert len(model.requests) == 2
    await hub.close()


async def test_a_crash_loop_does_not_begin_to_count_anew() -> None:
    async with crashes() as place:
        await place.next_hub(ScriptedModel([BUSY]))
        await place.open()
        await place.until("call.retried")
        await place.next_hub(ScriptedModel([BUSY]))
        await place.until("call.retried", 2)
        model = ScriptedModel([BUSY, "too late"])
        await place.next_hub(model)
        await place.until("turn.failed")
        assert [entry.event_data["attempt"] for entry in await place.told("call.retried")] == [1, 2]
        assert len(model.requests) == 1


async def test_a_turn_that_is_cancelled_while_it_waits_ends_at_once() -> None:
    async with crashes() as place:
        model = ScriptedModel([ModelUnavailable("busy", retry_after=3600), "too late"])
        await place.next_hub(model)
        channel = await place.open()
        await place.until("call.retried")
        assert await channel.cancel("never mind") == 1
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "cancelled"
        await place.clock.advance(3600)
        await let_others_run()
        assert len(model.requests) == 1


# Summaries


async def test_a_summary_is_asked_for_again_too(hub: Hub, clock: ManualClock) -> None:
    given: list[int] = []

    async def summarise(messages: Sequence[Message]) -> str:
        given.append(len(messages))
        if len(given) < 3:
            raise BUSY
        return "much was said"

    bob = Agent("bob", model=ScriptedModel(["one", "two"]), memory=SummarisedTranscript(summarise, recent_n=1))
    await soon(bob.invoke("first", thread_id="t", hub=hub))
    asked = Asked(hub, bob)
    for attempt in (1, 2):
        await clock.advance((await asked.retried(attempt)).delay)
    assert (await soon(asked.reply)).text == "two"
    assert len(given) == 3


async def test_a_summary_that_never_comes_is_told_with_how_often_it_was_asked_for(hub: Hub, clock: ManualClock) -> None:
    async def summarise(messages: Sequence[Message]) -> str:
        raise BUSY

    bob = Agent("bob", model=ScriptedModel(["one"]), memory=SummarisedTranscript(summarise, recent_n=1))
    await soon(bob.invoke("first", thread_id="t", hub=hub))
    asked = Asked(hub, bob)
    for attempt in (1, 2):
        await clock.advance((await asked.retried(attempt)).delay)
    failed = await asked.failed()
    assert (failed.reason, failed.detail) == ("summary_error", "ModelUnavailable: busy; it was asked 3 times")
