"""A trip that is booked in steps and can be cancelled, and a world that counts what has really happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from antiphon import Agent, ScriptedModel, calls, says, tool

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
