"""What an agent reads of a message that begins with a mention."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Hub, NamedTranscript, ScriptedModel, TokenBudget
from antiphon.testing import ManualClock


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


class Desk:
    """A lead and a sub-agent, and what their models were sent."""

    def __init__(self, **options: object) -> None:
        self.lead, self.below = ScriptedModel(["lead"] * 5), ScriptedModel(["billing"] * 5)
        billing = Agent("billing", model=self.below)
        self.agent = Agent("support", model=self.lead, agents=[billing], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("@billing please pay", "please pay"),
        ("@BILLING\nplease pay\nnow", "please pay\nnow"),
        ("@billing \t  please pay", "please pay"),
        ("@billing @billing twice", "@billing twice"),
        ("@billing", "@billing"),
        ("@billing \n", "@billing \n"),
    ],
)
async def test_mention_is_cut_off_what_the_agent_reads_and_kept_in_the_log(hub: Hub, said: str, read: str) -> None:
    desk = Desk()
    reply = await desk.agent.invoke(said, hub=hub)
    assert (reply.agent, desk.below.requests[0].messages) == ("billing", [("user", read)])
    texts = [each.event_data["text"] for each in await hub.log(reply.channel_id) if each.sender_id == "user"]
    assert texts[-1] == said


@pytest.mark.parametrize("said", ["@nobody please pay", "ask @billing to pay", " @billing please pay"])
async def test_what_is_no_mention_is_read_whole(hub: Hub, said: str) -> None:
    desk = Desk()
    await desk.agent.invoke(said, hub=hub)
    assert desk.lead.requests[0].messages == [("user", said)]


async def test_mention_of_an_earlier_turn_reads_the_same_later(hub: Hub) -> None:
    desk = Desk()
    for text in ("@billing pay", "@lead thanks", "@billing again"):
        await desk.agent.invoke(text, thread_id="t", hub=hub)
    before = [("user", "pay"), ("assistant", "billing"), ("user", "thanks")]
    assert desk.lead.requests[0].messages == before
    assert desk.below.requests[1].messages == [*before, ("assistant", "lead"), ("user", "again")]


async def test_mention_is_cut_off_behind_a_name_and_by_a_bounded_view(hub: Hub) -> None:
    named, bounded = Desk(memory=NamedTranscript()), Desk(memory=TokenBudget(1000))
    await named.agent.invoke("@billing pay", hub=hub)
    assert named.below.requests[0].messages == [("user", "user: pay")]
    other = await Hub.open("memory:", clock=ManualClock())
    await bounded.agent.invoke("@billing pay", hub=other)
    assert bounded.below.requests[0].messages == [("user", "pay")]
    await other.close()


async def test_what_code_says_is_read_whole(hub: Hub) -> None:
    desk = Desk()
    robot, _ = await hub.register("robot"), await hub.register(desk.agent)
    channel = await robot.open(type="consulting", target="support")
    await channel.send("@billing pay")
    assert await channel.closed() == "answered"
    assert desk.lead.requests[0].messages == [("user", "@billing pay")]
