"""Time in which no hub was open does not count against what is expected by default."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    AgentTarget,
    Channel,
    Envelope,
    FromSpeaker,
    Hub,
    Limits,
    TerminateTarget,
    Transition,
    TransitionGraph,
    register_adapter,
    says,
)
from antiphon.core.codec import encode_envelope
from antiphon.core.ruleset import Expectation
from antiphon.orchestration.adapters import Conversation
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock, ScriptedModel, canonical_digest
from tests.support.given_tasks import Kept, giver, waiting
from tests.support.hub_places import Place
from tests.support.inspection import fold_of
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon

EXTENDED = "antiphon.deadline.extended"
HOUR, DAY = 3600, 86_400
GRAPH = TransitionGraph(
    initial_speaker="ann",
    transitions=[Transition(FromSpeaker("ann"), AgentTarget("bob"))],
    default_target=TerminateTarget("done"),
)


@register_adapter
class Bare(Conversation):
    """A type of channel that says nothing of time itself."""

    name = "bare"
    expectations: tuple[Expectation, ...] = ()


TYPES: dict[str, dict[str, object]] = {
    "conversation": {},
    "consulting": {},
    "discussion": {},
    "workflow": {"graph": GRAPH.to_dict()},
    "bare": {},
}


def bob(text: str = "here I am") -> Agent:
    return Agent("bob", model=ScriptedModel([says(text)] * 3))


async def asked(hub: Hub, kind: str = "conversation", *, ttl: float | None = None, **knobs: object) -> str:
    """A channel in which an agent owes an answer."""
    await hub.register(Agent("bob", model=ScriptedModel([])))
    ann = await hub.register("ann")
    channel = await ann.open(type=kind, target="bob", knobs={**TYPES[kind], **knobs}, ttl=ttl)
    await channel.send("Are you there?")
    return channel.channel_id


async def admitted(place: Place, clock: ManualClock, kind: str = "conversation", **knobs: object) -> str:
    """The same, and the hub is closed before anything of it was run."""
    hub = await place.hub(clock, engine=None)
    channel_id = await asked(hub, kind, **knobs)
    await hub.close()
    return channel_id


async def seen(hub: Hub, channel_id: str) -> Channel:
    return await (await hub.register("ann")).channel(channel_id)


async def answered(hub: Hub, channel_id: str) -> list[object]:
    """What the agent says, as soon as it has."""
    async with asyncio.timeout(10):
        while not (said := [each for each in await hub.log(channel_id) if _is_answer(each)]):
            await let_others_run(1)
    return [each.event_data.get("text", each.event_data.get("body")) for each in said]


def _is_answer(envelope: Envelope) -> bool:
    return envelope.sender_id == "bob" and envelope.event_type in (EV_TEXT, "ag2.packet")


async def extensions(hub: Hub, channel_id: str) -> list[Envelope]:
    return [each for each in await hub.log(channel_id) if each.event_type == EXTENDED]


@pytest.mark.parametrize("outage", [20 * 60, DAY])
@pytest.mark.parametrize("kind", TYPES)
async def test_what_was_acknowledged_before_an_outage_is_answered_after_it(
    place: Place, clock: ManualClock, kind: str, outage: float
) -> None:
    channel_id = await admitted(place, clock, kind)
    await clock.advance(outage)
    hub = await place.hub(clock)
    await clock.advance(30)  # the agent is registered some time after the hub was opened
    await hub.register(bob())
    assert await answered(hub, channel_id) == ["here I am"]
    await hub.close()


async def test_it_is_recorded_for_operators_and_only_where_something_is_late(place: Place, clock: ManualClock) -> None:
    late = await admitted(place, clock)
    await clock.advance(550)
    hub = await place.hub(clock, engine=None)
    ann = await hub.register("ann")
    on_time = (await ann.open(target="bob")).channel_id
    idle = (await ann.open(target="bob", ttl=10 * DAY)).channel_id
    await (await ann.channel(on_time)).send("And you?")
    logs = [await hub.log(each) for each in (on_time, idle)]
    await hub.close()
    await clock.advance(100)
    opened_at = clock.now()
    hub = await place.hub(clock)
    (extended,) = await extensions(hub, late)
    assert (extended.sender_id, extended.audience) == ("hub", ["hub:operators"])
    assert extended.event_data == {"since": opened_at, "reason": "outage", "expectation": "turn_within"}
    assert [await hub.log(each) for each in (on_time, idle)] == logs
    await hub.close()


async def test_the_whole_time_counts_from_the_opening_and_then_it_is_over(place: Place, clock: ManualClock) -> None:
    channel_id = await admitted(place, clock, "discussion")
    await clock.advance(599)
    hub = await place.hub(clock)
    channel = await seen(hub, channel_id)
    await clock.advance(599)
    assert channel.state.status == "active"
    ended = asyncio.ensure_future(channel.closed())
    async with asyncio.timeout(10):
        while not ended.done():
            await clock.advance(1)
    assert ended.result() == "expectation_violated:turn_within"
    await hub.close()


async def test_hub_after_hub_it_is_extended_and_told_once_for_each(place: Place, clock: ManualClock) -> None:
    channel_id = await admitted(place, clock)
    for number in (1, 2, 3):
        await clock.advance(HOUR)
        hub = await place.hub(clock)
        assert len(await extensions(hub, channel_id)) == number
        folded = encode_envelope((await hub.log(channel_id))[-1]), await fold_of(hub, channel_id)
        await hub.close()
        again = await place.hub(clock)
        assert (encode_envelope((await again.log(channel_id))[-1]), await fold_of(again, channel_id)) == folded
        await again.close()
    hub = await place.hub(clock)
    await hub.register(bob())
    assert await answered(hub, channel_id) == ["here I am"]
    told = canonical_digest(await hub.log(channel_id))
    assert told == canonical_digest([each for each in await hub.log(channel_id) if each.event_type != EXTENDED])
    await hub.close()


async def test_what_a_user_expects_holds_through_an_outage(place: Place, clock: ManualClock) -> None:
    mine = [{"name": "turn_within", "seconds": 300, "handler": "fail"}]
    channel_id = await admitted(place, clock, expectations=mine)
    await clock.advance(299)
    await (await place.hub(clock)).close()
    await clock.advance(1)
    hub = await place.hub(clock)
    last = (await hub.log(channel_id))[-1]
    assert (last.event_type, last.event_data["reason"]) == ("antiphon.turn.failed", "not_run")
    assert await extensions(hub, channel_id) == []
    await hub.close()


async def test_a_time_to_live_holds_through_an_outage(place: Place, clock: ManualClock) -> None:
    hub = await place.hub(clock, engine=None)
    channel_id = await asked(hub, ttl=HOUR)
    await hub.close()
    await clock.advance(HOUR)
    hub = await place.hub(clock)
    assert (await seen(hub, channel_id)).state.status == "expired"
    await hub.close()


async def test_an_invitation_waits_through_an_outage(place: Place, clock: ManualClock) -> None:
    hub = await place.hub(clock)
    never = asyncio.Event()

    async def undecided(invite: Envelope) -> bool:
        await never.wait()
        return True

    ann, _ = await hub.register("ann"), await hub.register("eve", accept=undecided)
    opening = asyncio.ensure_future(ann.open(target="eve"))
    async with asyncio.timeout(10):
        while not (rows := await hub.channels()):
            await let_others_run(1)
    await hub.close()
    await asyncio.gather(opening, return_exceptions=True)
    await clock.advance(DAY)
    hub = await place.hub(clock)
    await clock.advance(29)
    await hub.register("eve", accept=lambda invite: True)
    channel = await seen(hub, rows[0].channel_id)
    await soon(hub.core.wait_for_status(channel._live, ["active", "closed"]))
    assert channel.state.status == "active"
    await hub.close()


@pytest.mark.parametrize("file", [None, "team.db"])
async def test_a_task_goes_on_after_an_outage(clock: ManualClock, tmp_path: Path, file: str | None) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    worker = Agent("worker", model=waiting(inside, gate), limits=Limits(model_seconds=None))
    boss = giver(worker)
    kept = Kept(clock, tmp_path / file if file else None)
    first = await kept.hub()
    going = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    going.cancel()
    await soon(first.close())
    await clock.advance(DAY)
    second = await kept.hub()
    await clock.advance(60)
    answer = asyncio.create_task(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    await let_others_run(50)
    await clock.advance(500)
    gate.set()
    assert (await soon(answer)).text == "re: look"
    await second.close()


async def test_no_time_counts_in_a_hub_that_runs_no_turns(clock: ManualClock) -> None:
    store = KeptStore(clock=clock)
    hub = await Hub.over(store, clock=clock, engine=None)
    channel_id = await asked(hub)
    await clock.advance(HOUR)
    assert (await extensions(hub, channel_id))[0].event_data["reason"] == "outage"
    await hub.close()
    hub = await Hub.over(store, clock=clock)
    await hub.register(bob())
    assert await answered(hub, channel_id) == ["here I am"]
    await hub.close()


async def shared(path: Path, clock: ManualClock) -> Hub:
    store = await SqliteStore.open(path, clock=clock, exclusive=False)
    return await Hub.over(store, clock=clock, engine=None)


async def steps(clock: ManualClock, seconds: float) -> None:
    """Let time pass a little at a time, so that open hubs can note that they are."""
    for _ in range(int(seconds / 5)):
        await clock.advance(5)


async def test_of_hubs_that_share_a_file_one_open_is_enough_for_time_to_count(
    clock: ManualClock, tmp_path: Path
) -> None:
    path = tmp_path / "team.db"
    first = await shared(path, clock)
    channel_id = await asked(first)
    await steps(clock, 300)
    second = await shared(path, clock)
    await first.close()
    await steps(clock, 300)
    failed = (await second.log(channel_id))[-1]
    assert (failed.event_type, failed.event_data["reason"]) == ("antiphon.turn.failed", "not_run")
    assert await extensions(second, channel_id) == []
    await second.close()


async def test_of_hubs_that_share_a_file_all_must_have_been_closed_for_an_outage(
    clock: ManualClock, tmp_path: Path
) -> None:
    path = tmp_path / "team.db"
    first, second = await shared(path, clock), await shared(path, clock)
    channel_id = await asked(first)
    await steps(clock, 300)
    await first.close()
    await second.close()
    await clock.advance(HOUR)
    third = await shared(path, clock)
    (extended,) = await extensions(third, channel_id)
    assert extended.event_data["since"] == extended.created_at
    await third.close()
