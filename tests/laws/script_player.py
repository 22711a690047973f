"""Plays a script against a hub: every act is tried, and what is refused is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar

from antiphon import EV_PACKET, Channel, Denied, Envelope, Hub
from antiphon.testing import ManualClock
from tests.laws.script_strategies import KINDS, Act, Custom, End, Open, Pack, Pass, Say, Write
from tests.support.hub_places import Place
from tests.support.hub_team import Team
from tests.support.inspection import fold_of, watched

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)


class Player:
    """A hub with everybody in it, the channels a script has opened, and the refusals it met."""

    def __init__(self, place: Place, clock: ManualClock) -> None:
        self.place, self.clock = place, clock
        self.channel_ids: list[str] = []
        self.refusals: list[str] = []
        self._here: Team | None = None

    @property
    def here(self) -> Team:
        assert self._here is not None, "the hub is open"
        return self._here

    @property
    def hub(self) -> Hub:
        return self.here.hub

    async def open_hub(self) -> None:
        self._here = Team(await self.place.hub(self.clock), self.clock)
        await self.here.join(**KINDS)
        await watched(self.clock)

    async def close_hub(self) -> None:
        if self._here is not None:
            await self._here.hub.close()
            self._here = None

    async def reopen(self) -> None:
        await self.close_hub()
        await self.open_hub()

    async def play(self, script: Sequence[Act]) -> None:
        for act in script:
            await self.do(act)

    async def do(self, act: Act) -> Envelope | None:
        match act:
            case Pass(seconds):
                await self.clock.advance(seconds)
            case Open():
                await self._open(act)
            case _:
                return await self._try(act)
        return None

    async def _open(self, act: Open) -> None:
        expected = [
            {"name": name, "seconds": seconds, "handler": handler} for name, seconds, handler in act.expectations
        ]
        channel = await self.here[act.creator].open(
            type=act.type,
            target=list(act.others),
            ttl=act.ttl,
            knobs={"expectations": expected},
            context_vars={"a": [1]},
        )
        self.channel_ids.append(channel.channel_id)

    async def _try(self, act: Say | Pack | Write | Custom | End) -> Envelope | None:
        channel_id = self.channel_ids[act.channel % len(self.channel_ids)]
        try:
            if act.who not in (await fold_of(self.hub, channel_id)).state.participants:
                return await self.hub.post(_by_hand(act, channel_id))
            return await self._as_member(act, await self.here[act.who].channel(channel_id))
        except Denied as denied:
            self.refusals.append(denied.reason)
            return None

    async def _as_member(self, act: Act, channel: Channel) -> Envelope | None:
        match act:
            case Say(text=text, audience=audience, message_id=message_id):
                wanted = None if audience is None else list(audience)
                return await channel.send(text, audience=wanted, message_id=message_id)
            case Pack(body=body, set=new):
                return await channel.post(EV_PACKET, {"body": body, "context_updates": {"set": new}})
            case Write(set=new, delete=gone):
                return await channel.post("ag2.context.set", {"set": new, "delete": list(gone)})
            case Custom(data=data, audience=audience):
                wanted = None if audience is None else list(audience)
                return await channel.post("myapp.noted", data, audience=wanted)
            case End(reason=reason):
                await channel.close(reason)
        return None


def _by_hand(act: Act, channel_id: str) -> Envelope:
    who = getattr(act, "who", "")
    return Envelope(channel_id=channel_id, sender_id=who, event_type="ag2.msg.text", event_data={"text": "hello"})


def without_ids(logs: Sequence[Sequence[Envelope]]) -> list[list[Envelope]]:
    """The logs with every id replaced by its place in order of appearance, in marks of expectations too."""
    places: dict[str, str] = {}

    def place(name: str | None) -> str | None:
        return name if name is None else places.setdefault(name, f"#{len(places)}")

    def plain(envelope: Envelope) -> Envelope:
        mark = envelope.event_data.get("mark")
        return replace(
            envelope,
            envelope_id=place(envelope.envelope_id) or "",
            channel_id=place(envelope.channel_id) or "",
            event_data={**envelope.event_data, "mark": places.get(str(mark), mark)},
            causation_id=place(envelope.causation_id),
        )

    return [[plain(envelope) for envelope in log] for log in logs]
