"""A trip that is booked in steps and can be cancelled, and a world that counts what has really happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from antiphon import Agent, Channel, Envelope, Hub, ScriptedModel, calls, says, tool
from antiphon.core.saga_events import EV_SAGA_FINISHED
from antiphon.testing import ManualClock
from tests.support.waiting import NEVER_COMES, let_others_run, wait_until

STEPS = ("flight", "hotel", "car", "tour", "taxi")


class TripWorld:
    """Bookings and cancellations outside of the hub. What has a key that is known does not happen again."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        self.cancelled: dict[str, str] = {}
        """By key, in the order in which they happened."""
        self.calls: Counter[str] = Counter()
        """How often each cancellation was asked for."""
        self.refuses: dict[str, int] = {}
        """How often the cancellation of something fails."""
        self.gates: dict[str, asyncio.Event] = {}
        """Bookings that have taken effect, and return only then."""
        self.slow: dict[str, asyncio.Event] = {}
        """Cancellations that have taken effect, and return only then."""
        self.results: list[str] = []

        @tool
        async def cancel(what: str, idempotency_key: str, result: str = "") -> str:
            """Cancel a booking."""
            self.calls[what] += 1
            if self.refuses.get(what, 0):
                self.refuses[what] -= 1
                raise RuntimeError(f"no answer about {what}")
            self.cancelled.setdefault(idempotency_key, what)
            self.results.append(result)
            if what in self.slow:
                await self.slow[what].wait()
            return f"{what} cancelled"

        @tool(compensate=cancel, timeout=20)
        async def book(what: str, idempotency_key: str, price: int = 0) -> str:
            """Book something."""
            if what.startswith("no "):
                raise RuntimeError("sold out")
            self.booked.setdefault(idempotency_key, what)
            if what in self.gates:
                await self.gates[what].wait()
            return f"{what} booked"

        self.cancel, self.book = cancel, book

    @property
    def order(self) -> list[str]:
        """What was cancelled, in order."""
        return list(self.cancelled.values())

    def agent(self, *script: object, name: str = "bob", **options: object) -> Agent:
        """An agent that books."""
        model = ScriptedModel(list(script), by="position")  # type: ignore[arg-type]
        return Agent(name, model=model, tools=[self.book], **options)  # type: ignore[arg-type]

    def booking(self, steps: Sequence[str] = STEPS) -> list[object]:
        """A script that books these one after the other."""
        return [*(calls("book", {"what": each}) for each in steps), says("Booked.")]


class Travel:
    """A hub, a person, and an agent that books."""

    def __init__(self, hub: Hub, world: TripWorld | None = None) -> None:
        self.hub, self.world = hub, world or TripWorld()
        clock = hub.core.clock
        assert isinstance(clock, ManualClock)
        self.clock = clock

    async def open(self, *script: object, **options: object) -> Channel:
        """A channel in which the agent has been asked to book."""
        ann = await self.hub.register("ann", kind="human")
        await self.hub.register(self.world.agent(*script))
        return await ann.open(target="bob", say="Book", **options)  # type: ignore[arg-type]

    async def log(self, channel: Channel, *types: str) -> list[Envelope]:
        return [each for each in await self.hub.log(channel.channel_id) if not types or each.event_type in types]

    async def until(self, channel: Channel, event_type: str, **fields: object) -> Envelope:
        """The first event of this type with these fields."""
        async with asyncio.timeout(NEVER_COMES):
            while True:
                for each in await self.log(channel, event_type):
                    if fields.items() <= each.event_data.items():
                        return each
                await let_others_run(1)

    async def answered(self, channel: Channel) -> None:
        await wait_until(lambda: channel.state.turn_count == 2)

    async def finished(self, channel: Channel) -> dict[str, object]:
        return (await self.until(channel, EV_SAGA_FINISHED)).event_data
