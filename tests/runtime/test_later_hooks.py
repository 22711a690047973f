"""Hooks that run after something was recorded: what they hear, in which order, and what holds them up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    ConversationRouter,
    HookEvent,
    HookExecution,
    HookResult,
    HookTrigger,
    ScriptedModel,
    UsageError,
    says,
)
from antiphon.core.conversation_events import EV_CONVERSATION_MOVED, EV_CONVERSATION_REFUSED
from antiphon.core.envelope import Json
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_HOOK_FAILED
from antiphon.engines.engine import current_turn_key
from tests.support.hooked import facts, hide_pin, hook_before, raises, record
from tests.support.hub_team import Team, team
from tests.support.waiting import let_others_run, soon, wait_until

BEFORE, AFTER = HookTrigger.BEFORE_BROADCAST, HookTrigger.AFTER_BROADCAST
MOVED: Json = {
    "from_agent": "triage",
    "to_agent": "billing",
    "from_phase": "intake",
    "to_phase": "handling",
    "reason": "an invoice",
    "summary": "It is about order 7.",
}


@pytest.fixture
async def place() -> AsyncIterator[Team]:
    async with team("ann", "ben") as here:
        yield here


async def test_hooks_hear_what_participants_have_said(place: Team) -> None:
    heard: list[HookEvent] = []

    @place.hub.hook(AFTER)
    async def hear(event: HookEvent) -> None:
        heard.append(event)

    assert hear.__name__ == "hear"  # the function itself is left as it is
    await place.hub.register(Agent("clerk", model=ScriptedModel([says("yes")])))
    channel = await place["ann"].open(target="clerk")
    await channel.set_context(a=1)
    said = await channel.send("well?")
    await wait_until(lambda: len(heard) == 2)
    assert (heard[0].trigger, heard[0].channel_id, heard[0].envelope) == (AFTER, channel.channel_id, said)
    assert [each.data for each in heard] == [{"text": "well?"}, {"text": "yes"}]
    await record(place.hub, channel, EV_TEXT, {"text": "not said by a participant"})
    await let_others_run()
    assert len(heard) == 2


async def test_nothing_waits_for_hooks_that_run_afterwards(place: Team) -> None:
    started = asyncio.Event()

    @place.hub.hook(AFTER)
    async def slow(event: HookEvent) -> None:
        started.set()
        await asyncio.Event().wait()

    channel = await place["ann"].open(target="ben")
    await soon(channel.send("one"))
    await soon(channel.send("two"))
    await soon(started.wait())
    await place.clock.advance(29)
    assert await facts(place.hub, channel, EV_HOOK_FAILED) == []
    await place.clock.advance(1)
    await let_others_run()
    failed = await facts(place.hub, channel, EV_HOOK_FAILED)
    assert failed == [{"trigger": "after_broadcast", "hook": "slow", "error": "it took longer than 30 seconds"}] * 2


async def test_a_hook_is_not_part_of_the_turn_that_caused_it(place: Team) -> None:
    """Otherwise it could not interject where it may: it would seem to wait for the turn that waits for it."""
    turns: list[object] = []
    place.hub.hook(AFTER)(lambda event: turns.append((event.envelope.sender_id, current_turn_key.get())))
    clerk = Agent("clerk", model=ScriptedModel([says("yes")]))
    await clerk.invoke("well?", hub=place.hub)
    await wait_until(lambda: len(turns) == 2)
    assert turns == [("user", None), ("clerk", None)]


async def test_sync_hooks_run_in_order_and_async_ones_beside_them(place: Team) -> None:
    done: list[str] = []
    may_end = asyncio.Event()

    def noting(name: str, priority: int, execution: HookExecution, *, waits: bool = False) -> None:
        async def note(event: HookEvent) -> None:
            if waits:
                await may_end.wait()
            done.append(name)

        place.hub.hook(AFTER, execution=execution, priority=priority)(note)

    noting("second", 2, HookExecution.SYNC)
    noting("first", 1, HookExecution.SYNC, waits=True)
    noting("beside", 3, HookExecution.ASYNC)
    noting("slow", 0, HookExecution.ASYNC, waits=True)
    channel = await place["ann"].open(target="ben")
    await channel.send("hello")
    await let_others_run()
    assert done == ["beside"]
    may_end.set()
    await wait_until(lambda: len(done) == 4)
    assert done.index("first") < done.index("second")


@pytest.mark.parametrize(
    ("hook", "error"),
    [(raises, "RuntimeError: no service"), (lambda event: HookResult.block("no"), "it returned a HookResult, which")],
    ids=["raises", "a result"],
)
async def test_a_later_hook_that_fails_is_recorded_and_stops_no_other(
    place: Team, hook: Callable[[HookEvent], object], error: str
) -> None:
    heard: list[object] = []
    place.hub.hook(AFTER, execution=HookExecution.SYNC)(hook)
    place.hub.hook(AFTER, execution=HookExecution.SYNC)(lambda event: heard.append(event.data) or len(heard))
    channel = await place["ann"].open(target="ben")
    await channel.send("hello")
    await wait_until(lambda: len(heard) == 1)
    [failed] = await facts(place.hub, channel, EV_HOOK_FAILED)
    assert str(failed["error"]).startswith(error)


async def test_the_copies_of_a_fork_are_not_said_again(place: Team) -> None:
    heard: list[object] = []
    channel = await place["ann"].open(target="ben")
    await channel.send("one")
    place.hub.hook(AFTER)(lambda event: heard.append((event.channel_id, event.data["text"])))
    fork = await channel.fork(at=channel.state.sequence)
    await fork.send("two")
    await wait_until(lambda: bool(heard))
    await let_others_run()
    assert heard == [(fork.channel_id, "two")]


@pytest.mark.parametrize(
    ("event_type", "changed", "expected"),
    [
        (EV_CONVERSATION_MOVED, {}, ["on_handoff", "on_phase_transition"]),
        (EV_CONVERSATION_MOVED, {"to_phase": "intake"}, ["on_handoff"]),
        (EV_CONVERSATION_MOVED, {"to_agent": "triage"}, ["on_phase_transition"]),
        (EV_CONVERSATION_MOVED, {"to_agent": None, "to_phase": "intake", "person": "human"}, ["on_handoff"]),
        (
            EV_CONVERSATION_MOVED,
            {"from_agent": None, "to_agent": None, "to_phase": "intake", "person": "human"},
            ["on_handoff"],
        ),
        (EV_CONVERSATION_REFUSED, {"target": "nobody"}, ["on_handoff_rejected"]),
        (EV_CHANNEL_CLOSED, {}, []),
    ],
    ids=["both", "agent", "phase", "a person", "a person after none", "refused", "neither"],
)
async def test_hooks_hear_of_moves(place: Team, event_type: str, changed: Json, expected: list[str]) -> None:
    heard: dict[str, HookEvent] = {}
    for trigger in (HookTrigger.ON_HANDOFF, HookTrigger.ON_PHASE_TRANSITION, HookTrigger.ON_HANDOFF_REJECTED):
        place.hub.hook(trigger)(lambda event: heard.update({event.trigger: event}))
    channel = await place["ann"].open(target="ben")
    data = {**MOVED, **changed}
    await record(place.hub, channel, event_type, data)
    await let_others_run(100)
    assert sorted(heard) == expected
    assert all(event.data == event.envelope.event_data == data for event in heard.values())


async def test_a_move_without_a_summary_has_an_empty_one(place: Team) -> None:
    heard: list[HookEvent] = []
    place.hub.hook(HookTrigger.ON_HANDOFF)(heard.append)
    channel = await place["ann"].open(target="ben")
    await record(place.hub, channel, EV_CONVERSATION_MOVED, {k: v for k, v in MOVED.items() if k != "summary"})
    await wait_until(lambda: bool(heard))
    assert heard[0].data == {**MOVED, "summary": ""}


async def test_appends_call_hooks_only_if_one_wants_to_hear(place: Team) -> None:
    watchers = place.hub.core.channels.deps.on_recorded
    hook_before(place.hub, hide_pin)
    assert watchers == []
    for trigger in (AFTER, AFTER, HookTrigger.ON_HANDOFF):
        place.hub.hook(trigger)(print)
    assert len(watchers) == 1


# A router in the place of a function


ROUTER = ConversationRouter(default_agent_id="triage")


async def test_a_router_becomes_the_default_and_is_no_hook(place: Team) -> None:
    core = place.hub.core
    place.hub.hook(BEFORE, execution=HookExecution.SYNC, priority=-100)(ROUTER.as_hook())
    assert core.conversation_defaults.router == ROUTER.to_dict()
    channel = await place["ann"].open(target="ben", say="hello")
    assert await facts(place.hub, channel, EV_HOOK_FAILED) == []
    with pytest.raises(UsageError, match="a router cannot be a hook for AFTER_BROADCAST"):
        place.hub.hook(AFTER)(ROUTER.as_hook())
