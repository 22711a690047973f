"""The agents of a server that is killed: their models, ledger and tools are behind a socket of the test's process.

`python -m tests.crash.serve_program SECONDS serve FILE …` runs the command line with the wall clock set forward by so
many seconds: what a server sees that is started again after an outage.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from antiphon import Agent, Asked, Reply, Request, Usage, delegate, tool
from antiphon.agents.call_results import Call
from tests.crash.turn_child import post

PORT = int(os.environ.get("ANTIPHON_TEST_WORLD", "0"))
DESK, CHECKER, BRANCHES = "desk", "checker", ("north", "south", "west")


async def ask(place: str, key: str = "", **body: object) -> dict[str, Any]:
    return await post(PORT, "/call", {"place": place, **body}, key)


@tool(timeout=None)
async def pay(place: str, idempotency_key: str) -> str:
    """Pay an invoice. The ledger accepts each idempotency key once."""
    return str((await ask(place, idempotency_key))["text"])


@tool(timeout=None, idempotency="unsafe")
async def wire(place: str) -> str:
    """Wire money. The bank has no idempotency keys: a repeated call is a second transfer."""
    return str((await ask(place))["text"])


def agent(name: str, *tools: object) -> Agent:
    async def model(request: Request) -> Reply:
        said = next(message.text for message in reversed(request.history) if message.role == "user")
        step = sum(isinstance(item, Asked) for item in request.exchange)
        answer = await ask(f"{said.split(': ')[-1]}/{name}/{step}/model")
        return Reply(answer["text"], tuple(Call(tool, args) for tool, args in answer["calls"]), Usage(7, 3))

    return Agent(name, model=model, tools=list(tools))  # type: ignore[arg-type]


def everybody() -> list[Agent]:
    checker = agent(CHECKER, pay)
    return [agent(DESK, pay, wire, delegate(checker)), checker, *(agent(name, pay) for name in BRANCHES)]


agents = everybody() if PORT else []


def main(seconds: float, arguments: list[str]) -> None:
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + seconds  # type: ignore[assignment]
    time.time_ns = lambda: wall_ns() + int(seconds * 1e9)  # type: ignore[assignment]
    from antiphon.cli import main as command_line

    sys.argv = ["antiphon", *arguments]
    command_line()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
