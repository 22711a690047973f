"""A hub with agents under protections: tools that note what they really did, and what the log says about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from antiphon import Agent, AgentReply, Envelope, Hub, ModelUnavailable, Reply, Request, UnknownChannel, says, tool
from antiphon.testing import ManualClock
from tests.support.waiting import soon

T = TypeVar("T")
Data = dict[str, object]
STEP_SECONDS = 0.5


class Desk:
    """A hub on a clock that is moved, and what the tools of its agents have done."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub, self.clock = hub, clock
        self.done: list[tuple[str, object]] = []
        """Each call that a tool really had, with its most telling argument."""

        @tool(volatile=("reason",))
        async def search(q: str, n: float = 1, exact: bool | None = None, reason: str = "") -> str:
            """Search."""
            self.done.append(("search", q))
            return f"nothing about {q}"

        @tool
        async def pay(order: str, cents: int = 1) -> str:
            """Pay an order back."""
            self.done.append(("pay", order))
            return f"{order} is paid back"

        self.tools = [search, pay]

    def agent(self, model: object, name: str = "bob", **options: object) -> Agent:
        """An agent with the tools of this desk."""
        return Agent(name, model=model, **{"tools": self.tools, **options})  # type: ignore[arg-type]

    async def ask(self, agent: Agent, text: str = "Go", **options: object) -> AgentReply:
        """The reply of an agent; time passes meanwhile."""
        return await self.meanwhile(agent.invoke(text, hub=self.hub, **options))  # type: ignore[arg-type]

    async def meanwhile(self, work: Coroutine[object, object, T], seconds: float = STEP_SECONDS) -> T:
        """What comes of this while time passes."""
        working = asyncio.ensure_future(work)

        async def pass_time() -> None:
            while not working.done():
                await self.clock.advance(seconds)
                await asyncio.sleep(0)

        await soon(pass_time())
        return working.result()

    async def events(self, channel_id: str, event_type: str) -> list[Data]:
        """What is recorded of a type, in a channel or in a ledger of the hub, which is made when it is first needed."""
        try:
            return [each.event_data for each in await self.log(channel_id) if each.event_type == event_type]
        except UnknownChannel:
            return []

    async def log(self, channel_id: str) -> list[Envelope]:
        return await self.hub.log(channel_id)


class Provider:
    """A model of a provider, which is down or not, and counts how often it is asked."""

    def __init__(self, *, down: bool = False, status: int = 503) -> None:
        self.down, self.status, self.asked = down, status, 0
        self.gate: asyncio.Event | None = None
        """Set to hold back answers until it opens."""

    def model(self, name: str = "far") -> Callable[[Request], Awaitable[Reply]]:
        """A model of this provider by this name."""

        async def answer(request: Request) -> Reply:
            self.asked += 1
            down = self.down
            if self.gate is not None:
                await self.gate.wait()
            if down:
                raise ModelUnavailable("the provider is down", status=self.status)
            return says("here")

        answer.__name__ = name
        return answer
