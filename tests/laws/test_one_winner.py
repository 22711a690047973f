"""Of many who race for one place exactly one gets it, whatever the order in which they come."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from antiphon import EV_TEXT, Conflict, Denied, Envelope, Hub
from antiphon.testing import ManualClock
from tests.laws.script_player import run
from tests.support.gated_store import AFTER, BEFORE, GatedStore
from tests.support.hub_places import InMemory
from tests.support.hub_team import Team, team
from tests.support.inspection import fold_of, folded
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run

ROUND = ("alice", "bob", "carol", "dave", "erin")


@given(st.integers(2, 5), st.permutations(range(12)), st.integers(0, 3))
def test_one_turn_has_one_speaker(seats: int, order: list[int], spoken: int) -> None:
    """Everybody says something at once, some of them twice; only who has the turn is heard."""

    async def check() -> None:
        async with team(*ROUND[:seats]) as here:
            channel = await here["alice"].open(type="discussion", target=list(ROUND[1:seats]))
            for place in range(spoken):
                await (await here.held_by(ROUND[place % seats], channel)).send(f"round {place}")
            speaker, before = channel.state.expected_next_speaker, len(await here.log(channel))
            crowd = [ROUND[number % seats] for number in order]
            one_each = list(dict.fromkeys(crowd))
            handles = [await here.held_by(name, channel) for name in one_each]
            outcomes = await asyncio.gather(*(each.send("me") for each in handles), return_exceptions=True)
            heard = [name for name, each in zip(one_each, outcomes, strict=True) if isinstance(each, Envelope)]
            reasons = {each.reason for each in outcomes if isinstance(each, Denied)}
            said = [each for each in (await here.log(channel))[before:] if each.event_type == EV_TEXT]
            assert heard[0] == speaker
            assert [each.sender_id for each in said] == heard
            assert reasons <= {"not_expected_speaker"}
            assert len(heard) + sum(isinstance(each, Denied) for each in outcomes) == len(one_each)

    run(check())


@given(st.integers(2, 6), st.sampled_from([BEFORE, AFTER]))
def test_handles_of_one_speaker_race_for_one_turn(handles: int, gate: str) -> None:
    """While the store is busy with the first, the others wait; when it is their turn, the turn is gone."""

    async def check() -> None:
        clock = ManualClock()
        store = GatedStore(clock)
        async with team("alice", "bob", store=store, clock=clock) as here:
            channel = await here["alice"].open(type="discussion", target="bob")
            store.close_gate(channel.channel_id, gate)
            held = [await here.held_by("alice", channel) for _ in range(handles)]
            racing = [asyncio.ensure_future(each.send(f"take {n}")) for n, each in enumerate(held)]
            await let_others_run()
            assert not any(task.done() for task in racing)
            store.let_pass()
            outcomes = await asyncio.gather(*racing, return_exceptions=True)
            assert [type(each) for each in outcomes] == [Envelope] + [Denied] * (handles - 1)
            assert {each.reason for each in outcomes[1:]} == {"not_expected_speaker"}
            assert [each.event_data for each in await here.log(channel) if each.event_type == EV_TEXT] == [
                {"text": "take 0"}
            ]

    run(check())


@given(st.integers(2, 8), st.integers(0, 5), st.permutations(range(8)))
def test_appends_at_one_place_have_one_winner(racers: int, length: int, order: list[int]) -> None:
    async def check() -> None:
        store = KeptStore()
        for sequence in range(1, length + 1):
            await store.append("here", [stamped(f"old-{sequence}", sequence)], expected=sequence - 1)
        batches = [[stamped(f"{n}-{k}", length + k) for k in (1, 2)] for n in order if n < racers]
        outcomes = await asyncio.gather(
            *(store.append("here", batch, expected=length) for batch in batches), return_exceptions=True
        )
        won = [batch for batch, each in zip(batches, outcomes, strict=True) if not isinstance(each, Exception)]
        lost = [each for each in outcomes if isinstance(each, Exception)]
        assert len(won) == 1
        assert all(isinstance(each, Conflict) and each.head == length + 2 for each in lost)
        assert (await store.read("here", after=length)).envelopes == won[0]

    run(check())


@given(st.integers(2, 4), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_hubs_on_one_store_accept_one_turn_once(hubs: int, order: list[int]) -> None:
    """Each hub believes for itself whose turn it is; only the store decides who was first."""

    async def check() -> None:
        clock = ManualClock()
        place = InMemory(clock)
        here = [await joined(await place.hub(clock), clock) for _ in range(hubs)]
        channel = await here[0]["alice"].open(type="discussion", target="bob")
        for each in here:
            await each["alice"].channel(channel.channel_id)
        for number in order:
            speaker = folded(await here[0].hub.log(channel.channel_id)).state.expected_next_speaker or ""
            racing = [*here[number % hubs :], *here[: number % hubs]]
            handles = [await each[speaker].channel(channel.channel_id) for each in racing]
            outcomes = await asyncio.gather(*(each.send("me") for each in handles), return_exceptions=True)
            assert sum(isinstance(each, Envelope) for each in outcomes) == 1
            assert {each.reason for each in outcomes if isinstance(each, Denied)} == {"not_expected_speaker"}
        log = await here[0].hub.log(channel.channel_id)
        assert [each.sequence for each in log] == list(range(1, len(log) + 1))
        assert sum(each.event_type == EV_TEXT for each in log) == len(order)
        for each in here:
            await (await each["alice"].channel(channel.channel_id)).set_context(seen=True)
        log = await here[0].hub.log(channel.channel_id)
        assert await fold_of(here[-1].hub, channel.channel_id) == folded(log)
        for each in here:
            await each.hub.close()

    run(check())


async def joined(hub: Hub, clock: ManualClock) -> Team:
    here = Team(hub, clock)
    await here.join("alice", "bob")
    return here


def stamped(envelope_id: str, sequence: int) -> Envelope:
    text = Envelope(envelope_id, "here", "alice", None, EV_TEXT, {"text": envelope_id})
    return replace(text, sequence=sequence)
