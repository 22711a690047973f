"""What the creator of a channel says first is recorded together with its opening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon import (
    EV_CHANNEL_OPENED,
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentTarget,
    Denied,
    Envelope,
    FromSpeaker,
    Hub,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UsageError,
)
from antiphon.core.envelope import Instant
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import wait_until
from tests.support.hub_places import OnDisk
from tests.support.kept_store import KeptStore
from tests.support.served_hub import served_hub
from tests.support.waiting import soon


class Batches(KeptStore):
    """Remembers every batch, by channel."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.batches: list[tuple[str, list[Envelope]]] = []

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        self.batches.append((channel, list(batch)))
        return await super().append(channel, batch, expected=expected, due=due)

    def opening(self, channel_id: str) -> list[str]:
        """The types of the batch in which a channel opens."""
        batches = [[each.event_type for each in batch] for name, batch in self.batches if name == channel_id]
        return next(batch for batch in batches if EV_CHANNEL_OPENED in batch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Batches:
    return Batches(clock)


@pytest.fixture
async def hub(store: Batches, clock: ManualClock) -> AsyncIterator[Hub]:
    hub = await Hub.over(store, clock=clock)
    yield hub
    await hub.close()


def workflow(first: str, *rules: Transition) -> dict[str, object]:
    return {"graph": TransitionGraph(first, list(rules), TerminateTarget("over")).to_dict()}


def spoken(log: list[Envelope]) -> list[tuple[str, object]]:
    said = [each for each in log if each.event_type in (EV_TEXT, EV_PACKET)]
    return [(each.sender_id, each.event_data.get("text", each.event_data.get("body"))) for each in said]


@pytest.mark.parametrize("kind", ["service", "human"])
@pytest.mark.parametrize("type_", ["conversation", "consulting", "discussion", "workflow"])
async def test_words_are_recorded_with_the_opening(hub: Hub, store: Batches, kind: str, type_: str) -> None:
    ann, _ = await hub.register("ann", kind=kind), await hub.register("ben")
    knobs = workflow("ann", Transition(FromSpeaker("ann"), AgentTarget("ben"))) if type_ == "workflow" else {}
    channel = await ann.open(type=type_, target="ben", knobs=knobs, say="hello")
    assert len([name for name, _ in store.batches if name == channel.channel_id]) == 1
    assert EV_TEXT in store.opening(channel.channel_id)
    assert spoken(await hub.log(channel.channel_id)) == [("ann", "hello")]
    assert channel.state.turn_count == 1
    assert channel.state.speakers == (() if type_ == "conversation" else ("ben",))


async def test_agent_that_opens_a_workflow_is_not_overtaken_by_its_own_first_turn(hub: Hub) -> None:
    model = ScriptedModel(["I begin by myself."])
    ada, _ = await hub.register(Agent("ada", model=model)), await hub.register("ben")
    channel = await ada.open(type="workflow", target="ben", knobs=workflow("ada"), say="My own words.")
    assert await channel.closed() == "over"
    assert spoken(await hub.log(channel.channel_id)) == [("ada", "My own words.")]
    assert model.requests == []


async def test_without_words_an_agent_that_speaks_first_begins_at_once(hub: Hub) -> None:
    ada = await hub.register(Agent("ada", model=ScriptedModel(["I begin by myself."])))
    await hub.register("ben")
    channel = await ada.open(type="workflow", target="ben", knobs=workflow("ada"))
    assert await soon(channel.closed()) == "over"
    assert spoken(await hub.log(channel.channel_id)) == [("ada", "I begin by myself.")]


# Invitations that wait


@pytest.mark.parametrize("restart", [False, True])
async def test_words_wait_for_the_last_guest_and_come_with_the_opening(
    store: Batches, clock: ManualClock, restart: bool
) -> None:
    hub = await Hub.over(store, clock=clock)
    ann, decide = await hub.register("ann"), asyncio.Event()

    async def slowly(invite: Envelope) -> bool:
        await decide.wait()
        return True

    await hub.register("ben", accept=slowly)
    opening = asyncio.create_task(ann.open(type="discussion", target="ben", say="hello"))
    await wait_until(
        lambda: bool(store.batches) and any("invite" in str(b) for _, b in store.batches), "ben is invited"
    )
    [row] = await hub.channels(status="invited")
    assert spoken(await hub.log(row.channel_id)) == []
    if restart:
        await hub.close()
        await asyncio.gather(opening, return_exceptions=True)
        hub = await Hub.over(store, clock=clock)
        await hub.register("ann")
        await hub.register("ben", accept=lambda invite: True)
        channel_id = row.channel_id
        live = await hub.core.live(channel_id)
        await wait_until(lambda: live.state.status == "active", "it opens")
    else:
        decide.set()
        channel_id = (await soon(opening)).channel_id
    assert store.opening(channel_id)[-2:] == [EV_TEXT, "antiphon.turn.assigned"]
    assert spoken(await hub.log(channel_id)) == [("ann", "hello")]
    assert (await hub.core.live(channel_id)).state.speakers == ("ben",)
    await hub.close()


async def test_words_to_a_guest_who_refuses_are_never_said(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben", accept=lambda invite: False)
    with pytest.raises(Denied, match="invite_rejected:ben") as caught:
        await ann.open(target="ben", say="hello", key="k")
    assert spoken(await hub.log(caught.value.channel_id)) == []
    with pytest.raises(Denied, match="invite_rejected:ben"):
        await ann.open(target="ben", say="hello", key="k")


# Who may speak first


@pytest.mark.parametrize("asks", [False, True])
async def test_words_of_somebody_else_than_the_initial_speaker_are_refused(hub: Hub, asks: bool) -> None:
    ann = await hub.register("ann")
    await hub.register("ben", accept=(lambda invite: True) if asks else None)
    with pytest.raises(Denied) as caught:
        await ann.open(type="workflow", target="ben", knobs=workflow("ben"), say="hello")
    assert caught.value.reason == "not_expected_speaker"
    assert await hub.channels() == []


@pytest.mark.parametrize("asks", [False, True])
async def test_words_of_a_person_who_is_not_the_initial_speaker_are_put_in(
    hub: Hub, store: Batches, asks: bool
) -> None:
    dana = await hub.register("dana", kind="human")
    model = ScriptedModel(["Hello, dana."])
    await hub.register(Agent("ada", model=model), accept=(lambda invite: True) if asks else None)
    channel = await dana.open(type="workflow", target="ada", knobs=workflow("ada"), say="Be brief.")
    assert EV_TEXT in store.opening(channel.channel_id)
    assert await soon(channel.closed()) == "over"
    assert model.requests[0].messages == [("user", "Be brief.")]
    assert channel.state.turn_count == 1


async def test_channel_that_ends_with_what_is_said_first_was_open(hub: Hub) -> None:
    dana, _ = await hub.register("dana", kind="human"), await hub.register("ben")
    stop = Transition(FromSpeaker("dana"), TerminateTarget("stopped"))
    channel = await dana.open(type="workflow", target="ben", knobs=workflow("ben", stop), say="Stop.")
    assert (channel.state.status, channel.state.close_reason) == ("closed", "stopped")


@pytest.mark.parametrize(
    ("say", "reason"), [("x" * 300_000, "too_large"), ("half \ud800", "bad_text"), ("NUL \x00", "bad_text")]
)
async def test_words_that_cannot_be_said_are_refused_before_anything_is_written(
    hub: Hub, say: str, reason: str
) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    with pytest.raises(Denied) as caught:
        await ann.open(target="ben", say=say)
    assert caught.value.reason == reason
    assert await hub.channels() == []


async def test_wrong_options_are_refused(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    for options in ({"say": 7}, {"key": ""}, {"key": 7}, {"key": "x" * 301}, {"words": "hello"}):
        with pytest.raises(UsageError):
            await ann.open(target="ben", **options)  # type: ignore[arg-type]
    assert await hub.channels() == []


# Keys


async def test_key_finds_the_channel_again_and_says_nothing_twice(hub: Hub) -> None:
    ann, ben = await hub.register("ann"), await hub.register("ben")
    first = await ann.open(target="ben", say="hello", key="k")
    again = await ann.open(target="ben", say="hello", key="k")
    found = await ann.open(target="ben", key="k")
    assert first.channel_id == again.channel_id == found.channel_id
    assert spoken(await hub.log(first.channel_id)) == [("ann", "hello")]
    assert (await ann.open(target="ben", key="other")).channel_id != first.channel_id
    assert (await ben.open(target="ann", key="k")).channel_id != first.channel_id


async def test_key_finds_a_channel_that_has_ended(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    channel = await ann.open(target="ben", key="k")
    await channel.close("done")
    assert (await ann.open(target="ben", key="k")).state.close_reason == "done"


@pytest.mark.parametrize(
    "other",
    [
        {"say": "something else"},
        {"target": "cleo"},
        {"type": "discussion"},
        {"ttl": 60},
        {"context_vars": {"a": 1}},
        {"knobs": {"tier": "batch"}},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_key_with_another_content_is_a_conflict(hub: Hub, other: dict[str, object]) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    await hub.register("cleo")
    channel = await ann.open(target="ben", say="hello", key="k")
    with pytest.raises(Denied) as caught:
        await ann.open(**{"target": "ben", "say": "hello", "key": "k", **other})  # type: ignore[arg-type]
    assert (caught.value.reason, caught.value.channel_id) == ("conflict", channel.channel_id)
    assert next(iter(other)).partition("_")[0] in caught.value.detail


async def test_key_of_a_channel_without_words_takes_none_later(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    await ann.open(target="ben", key="k")
    with pytest.raises(Denied, match="conflict"):
        await ann.open(target="ben", key="k", say="hello")


async def test_key_opens_one_channel_however_many_ask_at_once(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    found = await asyncio.gather(*(ann.open(target="ben", say="hello", key="k") for _ in range(10)))
    assert len({channel.channel_id for channel in found}) == 1
    assert spoken(await hub.log(found[0].channel_id)) == [("ann", "hello")]


async def test_key_finds_the_channel_after_a_restart(clock: ManualClock, tmp_path) -> None:  # type: ignore[no-untyped-def]
    place = OnDisk(tmp_path)
    ids = []
    for _ in range(2):
        hub = await place.hub(clock)
        ann, _ = await hub.register("ann"), await hub.register("ben")
        channel = await ann.open(target="ben", say="hello", key="k")
        ids.append(channel.channel_id)
        assert spoken(await hub.log(channel.channel_id)) == [("ann", "hello")]
        await hub.close()
    assert ids[0] == ids[1]


async def test_words_and_key_over_http() -> None:
    async with served_hub(Agent("ada", model=ScriptedModel(["Hello, ann."]))) as served:
        ann = await served.known("ann")
        wanted = {"target": ["ada"], "type": "consulting", "say": "hello", "key": "k"}
        first, again = await ann.post("/channels", json=wanted), await ann.post("/channels", json=wanted)
        assert (first.status_code, again.status_code) == (201, 201)
        channel_id = first.json()["channel_id"]
        assert again.json()["channel_id"] == channel_id
        live = await served.hub.core.live(channel_id)
        await wait_until(lambda: live.state.ended, "it is answered")
        assert spoken(await served.hub.log(channel_id)) == [("ann", "hello"), ("ada", "Hello, ann.")]
        other = await ann.post("/channels", json={**wanted, "say": "something else"})
        assert (other.status_code, other.json()["error"]["reason"]) == (409, "conflict")


async def test_words_that_give_an_agent_a_turn_need_the_scope_to_invoke_it() -> None:
    async with served_hub(Agent("ada", model=ScriptedModel(["Hello."]))) as served:
        ann, clerk = await served.known("ann"), await served.known("ann", "read", "write")
        wanted = {"target": ["ada"], "key": "k"}
        refused = await clerk.post("/channels", json={**wanted, "say": "hello"})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "wrong_scope")
        assert await served.hub.channels() == []
        said = await ann.post("/channels", json={**wanted, "say": "hello"})
        found = await clerk.post("/channels", json=wanted)
        assert found.json()["channel_id"] == said.json()["channel_id"]
