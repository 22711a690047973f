"""Who is told what: inboxes that remember their place, subscribers at their own pace, and nothing twice or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_TEXT,
    Channel,
    Envelope,
    Participant,
    SlowConsumer,
    UsageError,
)
from antiphon.testing import ManualClock
from tests.support.gated_store import BEFORE, GatedStore
from tests.support.hub_places import Place
from tests.support.hub_team import Team, team
from tests.support.waiting import let_others_run, soon


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", "carol", store=GatedStore(clock), clock=clock) as found:
        yield found


def words(envelopes: list[Envelope]) -> list[object]:
    """The texts among these."""
    return [each.event_data["text"] for each in envelopes if each.event_type == EV_TEXT]


async def taken(reader: Participant, count: int) -> list[Envelope]:
    """So many from the inbox; the last one is not acknowledged."""
    inbox = reader.inbox()
    found = [await soon(anext(inbox)) for _ in range(count)]
    await inbox.aclose()  # type: ignore[attr-defined]  # an async generator
    return found


async def settled_inbox(reader: Participant) -> None:
    """Acknowledge everything there is."""
    count = await reader.pending()
    inbox = reader.inbox()
    for _ in range(count):
        await soon(anext(inbox))
    asking = asyncio.ensure_future(anext(inbox))
    await let_others_run()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await reader.pending() == 0


# The inbox


async def test_an_inbox_has_what_is_addressed_to_its_owner_by_others(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", "carol"])
    await channel.send("for all")
    await (await here.held_by("bob", channel)).send("my own word")
    await (await here.held_by("carol", channel)).post("myapp.secret", {}, audience=["alice"])
    await channel.close()
    assert await here["bob"].pending() == 5
    found = await taken(here["bob"], 5)
    assert [each.event_type for each in found] == [
        "ag2.channel.invite",
        "ag2.channel.invite.ack",
        "ag2.channel.opened",
        EV_TEXT,
        "ag2.channel.closed",
    ]
    assert [each.sender_id for each in found] == ["hub", "carol", "hub", "alice", "hub"]
    assert [each.sequence for each in found] == sorted(each.sequence for each in found)


async def test_the_one_that_was_not_acknowledged_comes_again(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await settled_inbox(here["bob"])
    for number in range(4):
        await channel.send(f"no. {number}")
    assert words(await taken(here["bob"], 2)) == ["no. 0", "no. 1"]
    assert await here["bob"].pending() == 3
    assert words(await taken(here["bob"], 3)) == ["no. 1", "no. 2", "no. 3"]
    assert await here["bob"].pending() == 1


async def test_what_is_pending_falls_when_the_next_is_asked_for(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await settled_inbox(here["bob"])
    await channel.send("one")
    await channel.send("two")
    inbox = here["bob"].inbox()
    counts = [await here["bob"].pending()]
    for _ in range(2):
        await soon(anext(inbox))
        counts.append(await here["bob"].pending())
    waiting = asyncio.ensure_future(anext(inbox))
    await let_others_run()
    counts.append(await here["bob"].pending())
    assert counts == [2, 2, 1, 0]
    await channel.send("three")
    assert words([await soon(waiting)]) == ["three"]


async def test_a_place_is_remembered_by_the_next_hub(place: Place, clock: ManualClock) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    channel = await first["alice"].open(target="bob")
    await settled_inbox(first["bob"])
    for number in range(4):
        await channel.send(f"no. {number}")
    await taken(first["bob"], 3)
    await first.hub.close()
    then = Team(await place.hub(clock), clock)
    await then.join("alice", "bob")
    assert await then["bob"].pending() == 2
    assert words(await taken(then["bob"], 2)) == ["no. 2", "no. 3"]
    await then.hub.close()


async def test_two_readers_have_two_places(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", "carol"])
    for name in ("bob", "carol"):
        await settled_inbox(here[name])
    await channel.send("for both")
    await settled_inbox(here["bob"])
    assert (await here["bob"].pending(), await here["carol"].pending()) == (0, 1)
    assert words(await taken(here["carol"], 1)) == ["for both"]


async def test_channels_opened_while_nobody_reads_are_found(here: Team) -> None:
    await settled_inbox(here["bob"])
    channel = await here["alice"].open(target="bob")
    await channel.send("hello")
    assert words(await taken(here["bob"], await here["bob"].pending())) == ["hello"]


async def test_channels_opened_while_somebody_reads_are_found(here: Team) -> None:
    inbox = here["bob"].inbox()
    waiting = asyncio.ensure_future(anext(inbox))
    await let_others_run()
    channel = await here["alice"].open(target="bob")
    assert (await soon(waiting)).channel_id == channel.channel_id


async def test_a_busy_channel_does_not_hide_the_others(here: Team) -> None:
    busy = await here["alice"].open(target="bob")
    for number in range(1500):
        await busy.send(str(number))
    quiet = await here["carol"].open(target="bob")
    await quiet.send("psst")
    inbox = here["bob"].inbox()
    seen: list[Envelope] = []
    while "psst" not in words(seen):
        seen.append(await soon(anext(inbox)))
    assert len(seen) < 1200
    while len(seen) < 1500 + 1 + 2 + 2:
        seen.append(await soon(anext(inbox)))
    assert words([each for each in seen if each.channel_id == busy.channel_id]) == [str(n) for n in range(1500)]


async def test_the_newest_reader_of_an_inbox_takes_over(here: Team) -> None:
    await here["alice"].open(target="bob")
    before = here["bob"].inbox()
    first = await soon(anext(before))
    after = here["bob"].inbox()
    assert await soon(anext(after)) == first
    with pytest.raises(StopAsyncIteration):
        await soon(anext(before))
    assert (await soon(anext(after))).sequence > first.sequence


async def test_an_inbox_ends_when_the_hub_closes(here: Team) -> None:
    await here["alice"].open(target="bob")
    await settled_inbox(here["alice"])
    reading, waiting = here["bob"].inbox(), here["alice"].inbox()
    await soon(anext(reading))
    asked = asyncio.ensure_future(anext(waiting, None))
    await let_others_run()
    await here.hub.close()
    assert await soon(asked) is None
    assert await soon(anext(reading, None)) is None


# Subscriptions


async def heard(here: Team, channel: Channel, **options: object) -> list[Envelope]:
    """Everything up to the end of a channel that has ended."""
    return [each async for each in here.hub.subscribe(channel.channel_id, **options)]  # type: ignore[arg-type]


async def test_a_subscriber_hears_the_past_then_the_present(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.send("before")
    listening = asyncio.ensure_future(heard(here, channel))
    await let_others_run()
    await channel.send("after")
    await channel.close()
    log = await here.log(channel)
    assert await soon(listening) == log
    assert words(log) == ["before", "after"]


async def test_a_subscriber_begins_where_it_says(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    for number in range(3):
        await channel.send(str(number))
    await channel.close()
    log = await here.log(channel)
    for after in range(len(log) + 1):
        assert await soon(heard(here, channel, after=after)) == log[after:]


async def test_a_subscriber_that_resumes_misses_nothing(here: Team) -> None:
    """It goes and comes back after every few envelopes, while others keep talking."""
    channel = await here["alice"].open(target="bob")
    seen: list[Envelope] = []
    for number in range(20):
        await channel.send(str(number))
        reading = here.hub.subscribe(channel.channel_id, after=len(seen))
        for _ in range(min(number % 4, channel.state.sequence - len(seen))):
            seen.append(await soon(anext(reading)))
        await reading.aclose()  # type: ignore[attr-defined]  # an async generator
    await channel.close()
    seen.extend(await soon(heard(here, channel, after=len(seen))))
    assert seen == await here.log(channel)


async def test_a_subscription_moves_no_cursor(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.send("hello")
    await channel.close()
    before = await here["bob"].pending()
    await soon(heard(here, channel, participant="bob"))
    assert await here["bob"].pending() == before


async def all_of(reading: AsyncIterator[Envelope], seen: list[Envelope]) -> None:
    async for envelope in reading:
        seen.append(envelope)


async def test_a_slow_reader_is_cut_off_and_resumes_where_it_was(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    reading = here.hub.subscribe(channel.channel_id, participant="bob", max_lag=5)
    seen = [await soon(anext(reading))]
    for number in range(6):
        await channel.send(str(number))
    with pytest.raises(SlowConsumer) as caught:
        await soon(all_of(reading, seen))
    cut = caught.value
    assert cut.channel_id == channel.channel_id
    assert f"after={cut.cursor}" in str(cut)
    assert cut.behind > 5
    await channel.close()
    seen.extend(await soon(heard(here, channel, participant="bob", after=cut.cursor)))
    assert seen == [each for each in await here.log(channel) if each.audience in (None, ["bob"])]


async def test_a_reader_that_keeps_up_is_not_cut_off(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    for number in range(50):
        await channel.send(str(number))
    reading = here.hub.subscribe(channel.channel_id, max_lag=2)
    seen = [await soon(anext(reading)) for _ in range(channel.state.sequence)]
    for number in range(50):
        await channel.send(f"live {number}")
        seen.append(await soon(anext(reading)))
    assert seen == await here.log(channel)


async def test_stalled_readers_cost_a_sender_nothing(here: Team) -> None:
    """What the store is asked for a send is the same, however many stand still."""
    store = here.store
    assert isinstance(store, GatedStore)
    channel = await here["alice"].open(target="bob")
    stalled = [here.hub.subscribe(channel.channel_id) for _ in range(100)]
    for reading in stalled:
        await soon(anext(reading))
    before = len(store.appends)
    for number in range(200):
        assert (await soon(channel.send(str(number)))).event_data == {"text": str(number)}
    assert len(store.appends) == before + 200
    rest = [await soon(anext(stalled[0])) for _ in range(channel.state.sequence - 1)]
    assert words(rest) == [str(number) for number in range(200)]


async def test_one_reader_cannot_change_what_another_reads(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    after = channel.state.sequence
    readers = [here.hub.subscribe(channel.channel_id, after=after) for _ in range(2)]
    asked = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await let_others_run()
    sent = await channel.post("myapp.list", {"items": [1]}, audience=["bob"])
    sent.event_data["items"] = "changed by the sender"
    first = await soon(asked[0])
    first.event_data.clear()
    assert first.audience is not None
    first.audience.append("carol")
    second = await soon(asked[1])
    assert (second.event_data, second.audience) == ({"items": [1]}, ["bob"])
    assert (await here.log(channel))[-1].event_data == {"items": [1]}


async def test_a_subscription_to_what_has_ended_ends(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.close()
    assert (await soon(heard(here, channel)))[-1].event_type == "ag2.channel.closed"
    assert await soon(heard(here, channel, after=1000)) == []


async def test_every_subscription_ends_when_the_hub_closes(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    listening = [asyncio.ensure_future(heard(here, channel, participant=name)) for name in (None, "alice", "bob")]
    await let_others_run()
    await here.hub.close()
    everything, *_ = await soon(asyncio.gather(*listening))
    assert len(everything) == 4


async def test_a_subscriber_hears_what_another_hub_recorded(clock: ManualClock) -> None:
    """Not at once: when this hub next has something to do with the channel."""
    store = GatedStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(target="bob")
        listening = asyncio.ensure_future(heard(here, channel))
        await let_others_run()
        other = Team(await type(here.hub).over(store, clock=clock), clock)
        await other.join("alice", "bob")
        far = await other.held_by("bob", channel)
        for number in range(3):
            await channel.send(f"here {number}")
            await far.send(f"afar {number}")
        await channel.close()
        assert await soon(listening) == await here.log(channel)
        assert words(await here.log(channel)) == ["here 0", "afar 0", "here 1", "afar 1", "here 2", "afar 2"]
        for task in other.hub.core._tasks:
            task.cancel()


# Closing


async def test_a_hub_that_closes_finishes_what_it_has_begun(here: Team) -> None:
    store = here.store
    assert isinstance(store, GatedStore)
    channel = await here["alice"].open(target="bob")
    store.close_gate(channel.channel_id, BEFORE)
    sending = [asyncio.ensure_future(channel.send(str(number))) for number in range(5)]
    await let_others_run()
    closing = asyncio.ensure_future(here.hub.close())
    await let_others_run()
    assert not closing.done()
    assert not any(task.done() for task in sending)
    store.let_pass()
    sent = await soon(asyncio.gather(*sending))
    await soon(closing)
    assert words(list(sent)) == ["0", "1", "2", "3", "4"]
    recorded = [each for name, batch in store.appends for each in batch if name == channel.channel_id]
    assert words(recorded) == ["0", "1", "2", "3", "4"]


async def test_a_closed_hub_is_closed(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await here.hub.close()
    await here.hub.close()
    good = Envelope(channel_id=channel.channel_id, sender_id="alice", event_type=EV_TEXT, event_data={"text": "x"})
    for call in (
        lambda: channel.send("hello?"),
        lambda: channel.post("myapp.thing", {}),
        lambda: channel.set_context(a=1),
        lambda: channel.close(),
        lambda: here.hub.post(good),
        lambda: here.hub.log(channel.channel_id),
        lambda: here.hub.channels(),
        lambda: here.hub.register("zoe"),
        lambda: here["alice"].open(target="bob"),
        lambda: here["alice"].channel(channel.channel_id),
        lambda: here["alice"].pending(),
        lambda: anext(here["alice"].inbox()),
        lambda: anext(here.hub.subscribe(channel.channel_id)),
    ):
        with pytest.raises(UsageError, match="closed"):
            await soon(call())
    assert channel.state.status == "active"
