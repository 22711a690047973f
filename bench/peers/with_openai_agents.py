"""The worker of the OpenAI Agents SDK: `Runner.run` with a session, no tracing, and a model of its `Model` interface.

All four messages of a turn are kept, as items of one session. The whole session is read again for every turn, and the
model is shown all of it. A session keeps what was said; going on with a run that was cut off is no part of it.

- `memory`: its SQLiteSession as it comes, which is SQLite's own `:memory:`; nothing is kept.
- `synced`: its SQLiteSession over a file, which it puts into write-ahead mode; synchronous is FULL, the default of
  SQLite: each of its commits is synced. It commits three times a turn: the question, the call with what it returned,
  the answer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from agents.items import TResponseInputItem, TResponseStreamEvent
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from bench.peers.script import ANSWER, ARGUMENTS, EXPERT, MESSAGES, PROMPT, TOOL, WHAT_IT_DOES, found, question
from bench.peers.stopwatch import Asked, Stopwatch, asked, size_of

QUIET = RunConfig(tracing_disabled=True)


@function_tool(name_override=TOOL, description_override=WHAT_IT_DOES)
async def look_up(order: str) -> str:
    return found(order)


class Quick(Model):
    """Asks for the tool, then answers."""

    def __init__(self) -> None:
        self._ids = map(str, itertools.count())

    async def get_response(
        self, system_instructions: str | None, input: str | list[TResponseInputItem], *_: object, **__: object
    ) -> ModelResponse:
        answers = isinstance(input, list) and input[-1].get("type") == "function_call_output"
        return ModelResponse([self._answer() if answers else self._call()], Usage(), None)

    def stream_response(self, *_: object, **__: object) -> AsyncIterator[TResponseStreamEvent]:
        raise RuntimeError("this model is measured without streaming")

    def _call(self) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            arguments=json.dumps(ARGUMENTS), call_id=next(self._ids), name=TOOL, type="function_call"
        )

    def _answer(self) -> ResponseOutputMessage:
        text = ResponseOutputText(annotations=[], text=ANSWER, type="output_text")
        return ResponseOutputMessage(
            id=next(self._ids), content=[text], role="assistant", status="completed", type="message"
        )


class HandsOver(Quick):
    """Hands over, always."""

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        call = ResponseFunctionToolCall(
            arguments="{}", call_id=next(self._ids), name=f"transfer_to_{EXPERT}", type="function_call"
        )
        return ModelResponse([call], Usage(), None)


class Answers(Quick):
    """Answers, always."""

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        return ModelResponse([self._answer()], Usage(), None)


async def taken(want: Asked, agent: Agent, last: str) -> None:
    """So many turns in one session, which this agent ends, and one before that does not count."""
    session = SQLiteSession("one", ":memory:" if want.store == "memory" else want.folder / "session.db")

    async def turn(number: int) -> None:
        result = await Runner.run(agent, question(number), session=session, run_config=QUIET)
        assert (result.final_output, result.last_agent.name) == (ANSWER, last)

    await turn(0)
    watch = Stopwatch()
    for number in range(1, want.count + 1):
        await turn(number)
    watch.stop()
    assert len(await session.get_items()) == MESSAGES * (want.count + 1)
    session.close()
    watch.tell(want.count, stored=size_of(want.folder))


async def turns(want: Asked) -> None:
    """A question, a call of the tool, the answer."""
    await taken(want, Agent("clerk", instructions=PROMPT, model=Quick(), tools=[look_up]), "clerk")


async def handovers(want: Asked) -> None:
    """A question, a handover, the answer."""
    expert = Agent(EXPERT, instructions=PROMPT, model=Answers())
    await taken(want, Agent("clerk", instructions=PROMPT, model=HandsOver(), handoffs=[expert]), EXPERT)


WORKS = {"handovers": handovers, "turns": turns}

if __name__ == "__main__":
    asyncio.run(WORKS[asked().work](asked()))
