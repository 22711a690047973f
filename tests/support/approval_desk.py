"""A desk whose tool pays money, and the person who decides about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from antiphon import Agent, AgentReply, Approval, Hub, Participant, ScriptedModel, calls, says, tool
from antiphon.agents.tool import Tool
from antiphon.core.envelope import Envelope
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import NEVER_COMES, let_others_run, soon

QUESTION = "Refund order 7."


class ApprovalDesk:
    """A hub over a store that outlives it, with an agent whose tool notes what it pays."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = KeptStore(clock=self.clock)
        self.paid: list[tuple[str, int]] = []
        self.hub: Hub
        self.dana: Participant
        self.agent: Agent

    def refund(self, **options: object) -> Tool:
        """The tool that pays, which needs approval unless the options say otherwise."""

        @tool(**{"approval": True, **options})  # type: ignore[arg-type]
        async def refund(order: str, cents: int = 100) -> str:
            """Pay money back."""
            self.paid.append((order, cents))
            return f"{cents} for {order}"

        return refund

    def support(self, *replies: object, **options: object) -> Agent:
        """An agent that asks for one refund, unless its replies are given."""
        script = replies or (calls("refund", {"order": "7", "cents": 900}), says("Refunded."))
        settings: dict[str, object] = {"tools": [self.refund()], **options}
        self.agent = Agent("support", model=ScriptedModel(script, by="position"), **settings)  # type: ignore[arg-type]
        return self.agent

    async def next_hub(self) -> Hub:
        """Another hub over the same store, with dana, who takes part in no conversation."""
        self.clock = self.store._clock = ManualClock(self.clock.now())
        self.hub = await Hub.over(self.store, clock=self.clock)
        self.dana = await self.hub.register("dana", kind="human")
        return self.hub

    async def ask(self, agent: Agent | None = None, text: str = QUESTION, *, message_id: str = "m") -> AgentReply:
        """Ask the agent on its thread."""
        return await soon((agent or self.agent).invoke(text, thread_id="t", hub=self.hub, message_id=message_id))

    async def asked(self, *replies: object, **options: object) -> Approval:
        """The approval that an agent waits for, once it was asked."""
        reply = await self.ask(self.support(*replies, **options))
        assert reply.stopped == "approval", reply
        [approval] = reply.approvals
        return approval

    async def waiting(self, count: int = 1) -> list[Approval]:
        """What waits for a person, as soon as it is so much."""
        async with asyncio.timeout(NEVER_COMES):
            while len(found := await self.hub.approvals()) != count:
                await let_others_run(1)
        return found

    async def told(self, channel_id: str, *types: str) -> list[Mapping[str, object]]:
        """The data of what was recorded of these types, by the last words of each."""
        return [each.event_data for each in await self.log(channel_id, *types)]

    async def log(self, channel_id: str, *types: str) -> list[Envelope]:
        log = await self.hub.log(channel_id)
        return [each for each in log if not types or each.event_type.split(".", 1)[1] in types]

    def model_read(self) -> list[str]:
        """The texts that the agent's model was shown last."""
        model = self.agent.model
        assert isinstance(model, ScriptedModel)
        return [text for _, text in model.requests[-1].messages]


@asynccontextmanager
async def approval_desk() -> AsyncIterator[ApprovalDesk]:
    """A desk with an open hub."""
    desk = ApprovalDesk()
    await desk.next_hub()
    try:
        yield desk
    finally:
        await desk.hub.close()
