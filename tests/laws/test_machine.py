"""A hub and a hub made of dicts do the same things in any order, and stay the same."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon import EV_PACKET, EV_TEXT, Denied, Envelope, State
from antiphon.core.envelope import seconds_between
from antiphon.hub import channel_log
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.laws.reference_hub import OFF, Room, said_of
from tests.laws.script_player import Player
from tests.laws.script_strategies import PROOF, audiences, keys, names, places
from tests.support.hub_places import InMemory, OnDisk, Place
from tests.support.inspection import fold_of, folded
from tests.support.json_strategies import json_values, words

T = TypeVar("T")
DEPTH = settings(max_examples=500 if PROOF else 50, stateful_step_count=50)
SHALLOW = settings(max_examples=50 if PROOF else 5, stateful_step_count=50)

PATIENCE = 2
"""Seconds until an inbox that owes something and gives nothing is a finding. Nothing here waits for them."""

MOST_ROOMS = 4

contents = st.dictionaries(keys, json_values, max_size=2)


class HubAndModel(RuleBasedStateMachine):
    """Everything is done twice; after each step all that can be seen of the channels is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.folder = tempfile.mkdtemp()
        self.distance, channel_log.ENVELOPES_PER_SNAPSHOT = channel_log.ENVELOPES_PER_SNAPSHOT, 5
        self.player = Player(self.place(), self.clock)
        self.rooms: list[Room] = []

    def place(self) -> Place:
        return InMemory(self.clock)

    def wait(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    @property
    def now(self) -> float:
        return seconds_between(MANUAL_CLOCK_START, self.clock.now())

    def teardown(self) -> None:
        channel_log.ENVELOPES_PER_SNAPSHOT = self.distance
        self.wait(self.player.close_hub())
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.wait(self.player.open_hub())

    # What is done

    @precondition(lambda self: len(self.rooms) < MOST_ROOMS)
    @rule(
        channel_type=st.sampled_from(["conversation", "consulting", "discussion"]),
        people=st.lists(names, min_size=2, max_size=4, unique=True),
        ttl=st.none() | st.sampled_from([5.0, 50.0, 500.0]),
        context=contents,
    )
    def open(self, channel_type: str, people: list[str], ttl: float | None, context: dict[str, object]) -> None:
        people = people if channel_type == "discussion" else people[:2]
        channel = self.wait(
            self.player.here[people[0]].open(
                type=channel_type, target=people[1:], ttl=ttl, context_vars=context, knobs={"expectations": OFF}
            )
        )
        room = Room(channel_type, people, None if ttl is None else self.now + ttl, context=dict(context))
        room.begin()
        self.player.channel_ids.append(channel.channel_id)
        self.rooms.append(room)

    @precondition(lambda self: self.rooms)
    @rule(place=places, who=names, text=words, audience=audiences)
    def say(self, place: int, who: str, text: str, audience: tuple[str, ...] | None) -> None:
        room = self.rooms[place % len(self.rooms)]
        if self._posted(place, who, EV_TEXT, {"text": text}, audience):
            room.spoken(who, audience)

    @precondition(lambda self: self.rooms)
    @rule(place=places, text=words)
    def say_in_turn(self, place: int, text: str) -> None:
        room = self.rooms[place % len(self.rooms)]
        self.say(place, (room.speakers or tuple(room.people))[0], text, None)

    @precondition(lambda self: self.rooms)
    @rule(place=places, who=names, body=words, new=contents, gone=st.lists(keys, max_size=2))
    def pack(self, place: int, who: str, body: str, new: dict[str, object], gone: list[str]) -> None:
        room = self.rooms[place % len(self.rooms)]
        data = {"body": body, "routing": {}, "context_updates": {"set": new, "delete": gone}}
        if self._posted(place, who, EV_PACKET, data, None):
            self._written(room, new, gone)
            room.spoken(who)

    @precondition(lambda self: self.rooms)
    @rule(place=places, who=names, new=contents, gone=st.lists(keys, max_size=2))
    def write(self, place: int, who: str, new: dict[str, object], gone: list[str]) -> None:
        room = self.rooms[place % len(self.rooms)]
        if self._posted(place, who, "ag2.context.set", {"set": new, "delete": gone}, None):
            self._written(room, new, gone)

    @precondition(lambda self: self.rooms)
    @rule(place=places, who=names, data=contents, audience=audiences)
    def custom(self, place: int, who: str, data: dict[str, object], audience: tuple[str, ...] | None) -> None:
        self._posted(place, who, "myapp.noted", data, audience)

    @precondition(lambda self: self.rooms)
    @rule(place=places, message_id=st.sampled_from(["m1", "m2"]), text=st.sampled_from(["yes", "no"]))
    def repeat(self, place: int, message_id: str, text: str) -> None:
        """Say something with an id of its own; what was said before with that id is answered from the log."""
        room, channel_id = self._at(place)
        who = (room.speakers or tuple(room.people))[0]
        channel = self.wait(self.player.here[who].channel(channel_id))
        known = room.messages.get((who, message_id))
        refusal = room.refusal(who, None, speaks=True) if known is None else None
        if known is not None and known[1] != text:
            refusal = "conflict"
        sent = self._tried(channel.send(text, message_id=message_id), refusal)
        if sent is None:
            return
        if known is not None:
            assert sent.sequence == known[0]
            return
        room.note(who, EV_TEXT, {"text": text}, None)
        room.messages[who, message_id] = (len(room.log), text, None)
        room.spoken(who)

    @precondition(lambda self: self.rooms)
    @rule(place=places, reason=st.sampled_from(["done", "enough"]), seat=st.integers(0, 3))
    def end(self, place: int, reason: str, seat: int) -> None:
        room, channel_id = self._at(place)
        who = room.people[seat % len(room.people)]
        channel = self.wait(self.player.here[who].channel(channel_id))
        given = self.wait(channel.close(reason))
        if room.status == "active":
            room.end(reason)
        assert given == room.reason

    @rule(seconds=st.sampled_from([1.0, 4.0, 45.0]))
    def time_passes(self, seconds: float) -> None:
        async def passing() -> None:
            await self.clock.advance(seconds)

        self.wait(passing())
        for room in self.rooms:
            if room.status == "active" and room.expires is not None and room.expires <= self.now:
                room.expire()

    @rule()
    def close_and_open_the_hub(self) -> None:
        self.wait(self.player.reopen())

    @rule(seconds=st.sampled_from([1.0, 45.0]))
    def the_hub_is_away(self, seconds: float) -> None:
        """Time passes while no hub is open; what fell due meanwhile is done by the next."""

        async def away() -> None:
            await self.player.close_hub()
            self.clock.advance(seconds)
            await self.player.open_hub()
            await self.clock.advance(2)

        self.wait(away())
        for room in self.rooms:
            if room.status == "active" and room.expires is not None and room.expires <= self.now:
                room.expire()

    @rule(who=names, most=st.integers(1, 6))
    def read_the_inbox(self, who: str, most: int) -> None:
        """The last one that was taken is not acknowledged, and comes again."""
        unread = {self.player.channel_ids[n]: room.unread(who) for n, room in enumerate(self.rooms)}
        count = min(most, sum(map(len, unread.values())))
        taken = self.wait(self._taken(who, count))
        for envelope in taken:
            assert envelope.sequence == unread[envelope.channel_id].pop(0)
        for envelope in taken[:-1]:
            room = self.rooms[self.player.channel_ids.index(envelope.channel_id)]
            room.read[who] = envelope.sequence

    # What is compared

    @invariant()
    def all_that_can_be_seen_is_the_same(self) -> None:
        if self.rooms:
            self.wait(self._compared())

    async def _compared(self) -> None:
        player = self.player
        for room, channel_id in zip(self.rooms, player.channel_ids, strict=True):
            log = await player.hub.log(channel_id)
            assert [envelope.sequence for envelope in log] == list(range(1, len(log) + 1))
            assert [said_of(envelope) for envelope in log] == room.log
            assert folded(log) == await fold_of(player.hub, channel_id)
            self._compare_states(room, (await player.here[room.people[0]].channel(channel_id)).state)
        for name in ("alice", "hugo"):
            assert await player.here[name].pending() == sum(len(room.unread(name)) for room in self.rooms)
        rows = {row.channel_id: (row.type, row.status) for row in await player.hub.channels()}
        assert rows == {
            channel_id: (room.type, room.status)
            for channel_id, room in zip(player.channel_ids, self.rooms, strict=True)
        }

    def _compare_states(self, room: Room, state: State) -> None:
        assert (state.status, state.close_reason) == (room.status, room.reason)
        assert (state.participant_order, state.speakers) == (room.people, room.speakers)
        assert state.expected_next_speaker == (room.speakers[0] if room.speakers else None)
        assert (state.turn_count, state.last_speaker_id) == (room.turns, room.last)
        assert state.context_vars == room.context

    # How

    def _at(self, place: int) -> tuple[Room, str]:
        place %= len(self.rooms)
        return self.rooms[place], self.player.channel_ids[place]

    def _posted(
        self, place: int, who: str, event_type: str, data: dict[str, object], audience: tuple[str, ...] | None
    ) -> bool:
        room, channel_id = self._at(place)
        speaks = event_type in {EV_TEXT, EV_PACKET}
        wanted = None if audience is None else list(audience)
        envelope = Envelope(
            channel_id=channel_id, sender_id=who, audience=wanted, event_type=event_type, event_data=data
        )
        sent = self._tried(self.player.hub.post(envelope), room.refusal(who, audience, speaks=speaks))
        if sent is not None:
            room.note(who, event_type, data, audience)
        return sent is not None

    def _tried(self, sending: Coroutine[object, object, Envelope], refusal: str | None) -> Envelope | None:
        if refusal is None:
            return self.wait(sending)
        with pytest.raises(Denied) as caught:
            self.wait(sending)
        assert caught.value.reason == refusal
        return None

    def _written(self, room: Room, new: dict[str, object], gone: list[str]) -> None:
        room.context = {key: value for key, value in room.context.items() if key not in gone} | new

    async def _taken(self, who: str, count: int) -> list[Envelope]:
        inbox = self.player.here[who].inbox()
        async with asyncio.timeout(PATIENCE):  # a failure that shows, where there would be none
            taken = [await anext(inbox) for _ in range(count)]
        await inbox.aclose()  # type: ignore[attr-defined]  # an async generator
        return taken


class OnDiskAndModel(HubAndModel):
    """The same with a file."""

    def place(self) -> Place:
        return OnDisk(Path(self.folder))


TestInMemory = HubAndModel.TestCase
TestInMemory.settings = DEPTH
TestOnDisk = pytest.mark.proof(OnDiskAndModel.TestCase)
TestOnDisk.settings = SHALLOW
