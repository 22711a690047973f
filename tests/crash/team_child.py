"""The process that is killed while a team of three levels answers what is said on a thread, and gives tasks.

It is told by its arguments where the file is, where the servers are, and which thread to go on with. Every life does
the same: open the hub, and say everything that a person says, one after the other, whatever was said and answered
before. It writes lines to its standard output: `ready` when the hub is open, each `reply`, who is `active` in the end,
and `done`.

`--no-journal` lets the engine forget what calls came to, and `--new-tasks` which task a call has given, as controls.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from antiphon import Agent, Asked, Hub, Message, Progress, Reply, Request, Steps, TurnFailed, Usage, delegate, tool
from antiphon.agents import turn_channel as delegation
from antiphon.agents.call_results import Call
from antiphon.agents.messages import TurnExchange
from antiphon.agents.tool import Tool
from antiphon.hub.clock import TimeOrderedIds
from antiphon.runtime.agent import channel_of
from tests.crash.team_plan import CHECKER, LEAD, LEAF, LOOK_AROUND, MESSAGES, MIDDLE, NATURAL, USAGE
from tests.crash.turn_child import LONGEST_LIFE, forget_calls, post, say, shorten_pauses


class Outside:
    """The agents of a thread, whose models, tools and steps are all on the other side of a socket."""

    def __init__(self, port: int, run: str) -> None:
        self._port, self._run = port, run

    def lead(self) -> Agent:
        """Who is asked, with everybody below it."""
        leaf = self._agent(LEAF, delegate(self._agent(CHECKER)))
        middle = self._agent(MIDDLE, agents=[leaf], patcher=self._looking)
        return self._agent(LEAD, agents=[middle])

    def _agent(self, name: str, *more: Tool, **options: object) -> Agent:
        async def model(request: Request) -> Reply:
            place = f"{_where(request.history, request.exchange)}/model"
            answer = await self._ask("/model", place=place, who=name)
            wanted = tuple(Call(name, args) for name, args in answer["calls"])
            return Reply(answer["text"], wanted, Usage(*USAGE))

        tools = [self._pay(), *map(self._natural, NATURAL), *more]
        return Agent(name, model=model, system_prompt=f"You are {name}.", tools=tools, **options)  # type: ignore[arg-type]

    def _pay(self) -> Tool:
        @tool
        async def pay(place: str, order: str, cents: int, memo: str, idempotency_key: str) -> str:
            """Pay for an order."""
            body = {"order": order, "cents": cents, "memo": memo}
            return str((await self._ask("/pay", idempotency_key, place=place, **body))["text"])

        return pay

    def _natural(self, name: str) -> Tool:
        """A tool that may be called again."""

        async def call(place: str, note: str) -> str:
            return str((await self._ask("/tool", place=place, note=note))["text"])

        return tool(call, name=name, description=f"Do what {name} says.")

    def _looking(self, steps: Steps) -> Steps:
        async def look_around(progress: Progress) -> Progress:
            place = f"{_where(progress.history, progress.exchange)}/{LOOK_AROUND}"
            seen = await self._ask("/step", place=place)
            return progress.replace(system=f"{progress.system}\n{seen['text']}")

        return steps.insert_after("current_active_agent", look_around)

    async def _ask(self, where: str, key: str = "", **body: object) -> dict[str, Any]:
        return await post(self._port, where, {"run": self._run, **body}, key)


def _where(history: Sequence[Message], exchange: TurnExchange) -> str:
    """What is being answered, and how far that has come."""
    said = next(message.text for message in reversed(history) if message.role == "user")
    return f"{said}/{sum(isinstance(item, Asked) for item in exchange)}"


def forget_tasks() -> None:
    """Let every call give another task, also one that is made again."""
    delegation.derived_id = lambda *parts: TimeOrderedIds()()  # type: ignore[assignment]


async def main(path: str, port: int, run: str) -> None:
    lead = Outside(port, run).lead()
    async with Hub.open(f"sqlite:///{path}") as hub:
        say("ready")
        for number, text in enumerate(MESSAGES):
            try:
                reply = await lead.invoke(text, thread_id=run, hub=hub, message_id=f"m{number}")
                told = [reply.text, reply.agent, reply.stopped, reply.usage.input_tokens, reply.usage.output_tokens]
            except TurnFailed as failed:
                told = ["", "", failed.reason, 0, 0]
            say(f"reply {json.dumps(told)}")
        say(f"active {json.dumps((await channel_of(hub, lead, run)).state.active)}")
        say("done")


if __name__ == "__main__":
    signal.alarm(LONGEST_LIFE)
    shorten_pauses()
    if "--no-journal" in sys.argv:
        forget_calls()
    if "--new-tasks" in sys.argv:
        forget_tasks()
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
