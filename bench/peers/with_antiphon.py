"""Antiphon's worker.

- `memory`: nothing is kept.
- `synced`: SQLite as `Hub.open("sqlite:///…")` opens it: write-ahead log, synchronous FULL. `send` returns after the
  sync. An acknowledgement is recorded with one of the next commits; the clock stops when the last one is committed.
- `unsynced`: the same file with synchronous NORMAL, which survives a killed process and not a power failure.

In turns, all four messages are kept: question and answer in the channel, the model's replies and what the tool returned
in the journal of the turn, which is what a turn that was cut off is gone on from. Each is synced before the next step
is taken: some five syncs a turn. The model is shown every question and answer so far, and the calls of its own turn;
those of earlier turns stay in the journal.

In handovers, the lead is addressed at the beginning of each turn, because otherwise whoever answered last would answer
at once. Its call and the expert's answer are journalled and synced like every call.

In a round robin, four participants driven by code hold one workflow channel. A text and who is next are recorded as one
batch: one sync a turn. It is for everybody, and stays in the log until somebody reads it, which nobody does here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from antiphon import (
    EV_TEXT,
    Agent,
    Channel,
    Envelope,
    Hub,
    Participant,
    Reply,
    Request,
    TransitionGraph,
    calls,
    says,
    tool,
)
from antiphon.store.sqlite import SqliteStore
from bench.peers.script import ANSWER, ARGUMENTS, EXPERT, PROMPT, TEAM, TOOL, found, question
from bench.peers.stopwatch import NOT_COUNTED, Asked, Heard, Stopwatch, asked, size_of

TEXT, SHORT_TEXT = "x" * 200, "x" * 100
TOGETHER = 100


async def opened(store: str, folder: Path) -> Hub:
    path = folder / "hub.db"
    match store:
        case "memory":
            return await Hub.open("memory:")
        case "synced":
            return await Hub.open(f"sqlite:///{path}")
        case _:
            return await Hub.over(await SqliteStore.open(path, synchronous="NORMAL"))


async def pair(hub: Hub) -> tuple[Participant, Participant, Channel]:
    alice, bob = await hub.register("alice"), await hub.register("bob")
    return alice, bob, await alice.open(type="conversation", target="bob")


async def texts(participant: Participant) -> AsyncIterator[Envelope]:
    """What was said to a participant, from its inbox. Going on to the next acknowledges the last."""
    async for envelope in participant.inbox():
        if envelope.event_type == EV_TEXT:
            yield envelope


async def acknowledged(participant: Participant) -> None:
    """Wait until everything is acknowledged, and the store has written it down."""
    while await participant.pending():  # noqa: ASYNC110  # it is done after one or two rounds
        await asyncio.sleep(0.001)


async def conversation(want: Asked) -> None:
    """One sends, the other reads its inbox at the same time, until all is acknowledged."""
    hub = await opened(want.store, want.folder)
    _, bob, channel = await pair(hub)
    heard = Heard()

    async def hear() -> None:
        async for _ in texts(bob):
            heard.one()

    hearing = asyncio.create_task(hear())
    await channel.send(NOT_COUNTED)
    await heard.reach(1)
    watch = Stopwatch()
    for _ in range(want.count):
        await channel.send(TEXT)
        await asyncio.sleep(0)
    await heard.reach(1 + want.count)
    await acknowledged(bob)
    watch.stop()
    hearing.cancel()
    await hub.close()
    watch.tell(want.count)


async def exchange(want: Asked) -> None:
    """Question and answer in turns, both delivered and acknowledged: so many messages in all."""
    hub = await opened(want.store, want.folder)
    alice, bob, asking = await pair(hub)
    answering = await bob.channel(asking.channel_id)

    async def answer() -> None:
        async for heard in texts(bob):
            await answering.send(SHORT_TEXT, causation_id=heard.envelope_id)

    answers = asyncio.create_task(answer())
    received = texts(alice)
    watch = Stopwatch()
    for _ in range(want.count // 2):
        await asking.send(SHORT_TEXT)
        await anext(received)
    watch.stop()
    answers.cancel()
    await hub.close()
    watch.tell(want.count, stored=size_of(want.folder))


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    return found(order)


async def quick(request: Request) -> Reply:
    """Asks for the tool, then answers."""
    return says(ANSWER) if request.exchange else calls(TOOL, ARGUMENTS)


async def hands_over(request: Request) -> Reply:
    return calls(f"transfer_to_{EXPERT}")


async def answers(request: Request) -> Reply:
    return says(ANSWER)


async def taken(want: Asked, agent: Agent, *, last: str, before: str = "") -> None:
    """So many turns on one thread, which this one of the team ends, and one before that does not count."""
    hub = await opened(want.store, want.folder)

    async def turn(number: int) -> None:
        reply = await agent.invoke(f"{before}{question(number)}", thread_id="one", hub=hub)
        assert (reply.text, reply.agent) == (ANSWER, last)

    await turn(0)
    watch = Stopwatch()
    for number in range(1, want.count + 1):
        await turn(number)
    watch.stop()
    await hub.close()
    watch.tell(want.count, stored=size_of(want.folder))


async def turns(want: Asked) -> None:
    """A question, a call of the tool, the answer."""
    await taken(want, Agent("clerk", model=quick, system_prompt=PROMPT, tools=[look_up]), last="clerk")


async def handovers(want: Asked) -> None:
    """A question, a handover, the answer."""
    expert = Agent(EXPERT, model=answers, system_prompt=PROMPT)
    lead = Agent("clerk", model=hands_over, system_prompt=PROMPT, agents=[expert])
    await taken(want, lead, last=EXPERT, before="@lead ")


async def robin(want: Asked) -> None:
    """Four take turns in one channel, and a round before that does not count."""
    hub = await opened(want.store, want.folder)
    team = [await hub.register(name) for name in TEAM]
    graph = TransitionGraph.round_robin(list(TEAM))
    channel = await team[0].open(type="workflow", target=list(TEAM[1:]), knobs={"graph": graph.to_dict()})
    held = [await participant.channel(channel.channel_id) for participant in team]

    async def turns(count: int) -> None:
        for number in range(count):
            await held[number % len(TEAM)].send(TEXT)
            await asyncio.sleep(0)

    await turns(len(TEAM))
    watch = Stopwatch()
    await turns(want.count)
    watch.stop()
    assert channel.state.turn_count == len(TEAM) + want.count
    await hub.close()
    watch.tell(want.count, stored=size_of(want.folder))


async def fill(want: Asked) -> None:
    """One open conversation of so many texts, said through the hub."""
    hub = await opened(want.store, want.folder)
    _, _, channel = await pair(hub)
    watch = Stopwatch()
    for left in range(want.count, 0, -TOGETHER):
        await asyncio.gather(*(channel.send(TEXT) for _ in range(min(left, TOGETHER))))
    watch.stop()
    await hub.close()
    watch.tell(want.count)


async def reopen(want: Asked) -> None:
    """Open the hub and load the conversation, so that one could go on with it."""
    watch = Stopwatch()
    hub = await opened(want.store, want.folder)
    alice = await hub.register("alice")
    (row,) = await hub.channels()
    turns = (await alice.channel(row.channel_id)).state.turn_count
    watch.stop()
    await hub.close()
    assert turns == want.count
    watch.tell(1)


WORKS = {
    "conversation": conversation,
    "exchange": exchange,
    "fill": fill,
    "handovers": handovers,
    "reopen": reopen,
    "robin": robin,
    "turns": turns,
}

if __name__ == "__main__":
    asyncio.run(WORKS[asked().work](asked()))
