"""What a draft says it answers must be an envelope of its channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from antiphon import EV_TEXT, Agent, Channel, Denied, Envelope, Hub, ScriptedModel
from antiphon.core.codec import encode_envelope
from antiphon.testing import ManualClock
from tests.support.hub_places import InMemory, Place
from tests.support.kept_store import KeptStore
from tests.support.served_hub import opened, served_hub

FOREIGN = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
async def hub(place: Place, clock: ManualClock) -> AsyncIterator[Hub]:
    hub = await place.hub(clock)
    yield hub
    await hub.close()


async def a_channel(hub: Hub) -> Channel:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    return await ann.open(target="ben")


async def test_unknown_causation_is_refused_and_nothing_is_recorded(hub: Hub) -> None:
    channel = await a_channel(hub)
    other = await (await hub.register("cleo")).open(target="ben")
    elsewhere = await other.send("in another channel")
    before = channel.state.sequence
    builder = hub.adapter_for(channel.channel_id)
    for causation_id in (FOREIGN, elsewhere.envelope_id, "no id at all"):
        attempts = [
            channel.send("x", causation_id=causation_id),
            channel.post("my.event", {}, causation_id=causation_id),
            hub.post(builder.build_text_envelope(sender_id="ann", text="x", causation_id=causation_id)),
            hub.post(builder.build_packet_envelope(sender_id="ann", body="x", causation_id=causation_id)),
        ]
        for attempt in attempts:
            with pytest.raises(Denied) as caught:
                await attempt
            assert (caught.value.reason, caught.value.channel_id) == ("unknown_causation", channel.channel_id)
    assert channel.state.sequence == before


async def test_any_envelope_of_the_channel_can_be_answered_also_after_a_restart(
    place: Place, clock: ManualClock
) -> None:
    hub = await place.hub(clock)
    channel = await a_channel(hub)
    first = await channel.send("first")
    for number in range(300):
        await channel.send(str(number))
    log = await hub.log(channel.channel_id)
    for each in (log[0], first, log[-1]):
        assert (await channel.send("yes", causation_id=each.envelope_id)).causation_id == each.envelope_id
    await hub.close()
    again = await place.hub(clock)
    channel = await (await again.register("ann")).channel(channel.channel_id)
    assert (await channel.send("still", causation_id=first.envelope_id)).causation_id == first.envelope_id
    with pytest.raises(Denied, match="unknown_causation"):
        await channel.send("x", causation_id=FOREIGN)
    await again.close()


async def test_other_refusals_come_first(hub: Hub) -> None:
    channel = await a_channel(hub)
    await hub.register("eve")
    with pytest.raises(Denied, match="not_a_participant"):
        await hub.post(Envelope("", channel.channel_id, "eve", None, EV_TEXT, {"text": "x"}, FOREIGN))
    await channel.close()
    with pytest.raises(Denied, match="channel_closed"):
        await channel.send("x", causation_id=FOREIGN)


class CountingStore(KeptStore):
    """Counts how often envelopes are looked up by id."""

    looked_up = 0

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        self.looked_up += 1
        return await super().find(channel, ids)


async def test_what_was_said_lately_is_not_looked_up_in_the_store(clock: ManualClock) -> None:
    store = CountingStore(clock=clock)
    hub = await Hub.over(store, clock=clock)
    channel = await a_channel(hub)
    recent = [await channel.send(str(number)) for number in range(50)]
    for each in recent:
        await channel.send("re", causation_id=each.envelope_id)
    await hub.close()
    assert store.looked_up == 0


async def test_a_log_written_before_is_folded_and_its_messages_can_be_repeated(clock: ManualClock) -> None:
    """A log may hold causations of other channels. They stay, and repeating such a message gives the first."""
    places = InMemory(clock)
    hub = await places.hub(clock)
    channel = await a_channel(hub)
    first = await channel.send("hello", message_id="m")
    log = await hub.log(channel.channel_id)
    await hub.close()
    store = KeptStore(clock=clock)
    foreign = [*log[:-1], replace(first, causation_id=FOREIGN)]
    registry = await places.store.read("system:registry")
    await store.append("system:registry", registry.envelopes, expected=0)
    await store.append(channel.channel_id, foreign, expected=0)
    again = await Hub.over(store, clock=clock)
    channel = await (await again.register("ann")).channel(channel.channel_id)
    assert (channel.state.turn_count, channel.state.last_envelope_id) == (1, first.envelope_id)
    repeated = await channel.send("hello", message_id="m", causation_id=FOREIGN)
    assert encode_envelope(repeated) == encode_envelope(foreign[-1])
    await again.close()


async def test_unknown_causation_over_http() -> None:
    async with served_hub(Agent("ada", model=ScriptedModel(["hi"]))) as served:
        ann = await served.known("ann")
        channel_id = await opened(ann, "ada")
        path = f"/channels/{channel_id}/messages"
        refused = await ann.post(path, json={"text": "x", "causation_id": FOREIGN})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (422, "unknown_causation")
        said = await ann.post(path, json={"text": "x"})
        answer = await ann.post(path, json={"event_type": "my.note", "causation_id": said.json()["envelope_id"]})
        assert answer.status_code == 201


async def test_many_at_once_answer_one(hub: Hub) -> None:
    channel = await a_channel(hub)
    first = await channel.send("first")
    said = await asyncio.gather(*(channel.send(str(n), causation_id=first.envelope_id) for n in range(20)))
    assert {each.causation_id for each in said} == {first.envelope_id}
