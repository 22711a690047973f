"""A packet that says the work is finished ends every type of channel, with its reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Channel, Finish, Hub, ScriptedModel
from antiphon.testing import ManualClock


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


async def hand_in(hub: Hub, channel: Channel, sender: str, reason: str = "solved") -> None:
    builder = hub.adapter_for(channel.channel_id)
    await hub.post(builder.build_packet_envelope(sender_id=sender, body="done", finish=Finish(reason)))


@pytest.mark.parametrize("kind", ["conversation", "consulting", "discussion"])
async def test_finish_of_the_first_speaker_ends_the_channel(hub: Hub, kind: str) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    channel = await ann.open(type=kind, target="ben")
    await hand_in(hub, channel, "ann")
    assert (channel.state.status, channel.state.close_reason) == ("closed", "solved")
    log = await hub.log(channel.channel_id)
    assert log[-1].causation_id == log[-2].envelope_id


@pytest.mark.parametrize("kind", ["conversation", "consulting", "discussion"])
async def test_finish_of_the_answer_ends_the_channel_with_its_reason(hub: Hub, kind: str) -> None:
    ann, _ = await hub.register("ann"), await hub.register("ben")
    channel = await ann.open(type=kind, target="ben")
    await channel.send("well?")
    await hand_in(hub, channel, "ben", "")
    assert channel.state.close_reason == "finished"


async def test_finish_leaves_an_agent_no_turn(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register(Agent("ada", model=ScriptedModel(["never"])))
    channel = await ann.open(target="ada")
    await hand_in(hub, channel, "ann")
    assert (channel.state.close_reason, channel.state.owed) == ("solved", ())


@pytest.mark.parametrize("kind", ["consulting", "discussion"])
async def test_finish_put_in_out_of_turn_ends_nothing(hub: Hub, kind: str) -> None:
    ann = await hub.register("ann")
    await hub.register("dana", kind="human")
    channel = await ann.open(type=kind, target="dana")
    await hand_in(hub, channel, "dana")
    assert (channel.state.status, channel.state.speakers) == ("active", ("ann",))
