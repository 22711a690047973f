"""AG2's worker: `ag2.network`, which was `autogen.beta.network` before 1.0.

Configured for this work: no sweepers, no plugin, no inbox cap (with it, longer runs stop). In a conversation, a handler
that counts instead of asking a model, because the default one reads the whole log again for every message. A sender
waits for the hub to record and dispatch; the recipient's receipt moves its cursor, which is written to the store each
time. The clock stops when the cursor has reached the last envelope.

In turns, the agent has the default handler and a model of its `ModelConfig` interface; a turn is over when the user is
notified of the answer. The question and the answer are kept; the call of the tool and what it returned are not, so a
turn that was cut off has nothing to go on from. The model is shown the last ten messages and a line about those before,
which is the view of a conversation as it comes.

In a round robin, four agents send their texts into one workflow channel themselves; the handler is the one that counts.
A text is for everybody, as it comes, so the hub notifies the three others by itself, and a receipt of each moves a
cursor. The clock stops when the cursors of all three have reached the last envelope. Of its CPU time synced, that is
more than half; in memory, where most goes to appending, a small part.

- `memory`: its MemoryKnowledgeStore; nothing is kept.
- `disk`: its DiskKnowledgeStore; files are written and never synced: a killed process loses nothing, a power failure
  may lose anything.
- `sqlite`: its SqliteKnowledgeStore. It has no options, but the journal mode is kept in the file, so the file is put
  into write-ahead mode beforehand: some three times as fast as it comes. Synchronous is FULL, the default of
  SQLite: each append and each cursor is a synced commit of its own, which makes four a turn: two texts and two cursors
  for an agent's, one text and three cursors in a round robin.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ag2 import Agent, tool
from ag2.config import LLMClient, ModelConfig
from ag2.events import BaseEvent, ModelMessage, ModelResponse, ToolCallEvent, ToolCallsEvent, ToolResultsEvent
from ag2.knowledge import DiskKnowledgeStore, KnowledgeStore, MemoryKnowledgeStore, SqliteKnowledgeStore
from ag2.network import (
    EV_TEXT,
    AgentClient,
    Envelope,
    Hub,
    InboxBlock,
    LimitsBlock,
    Rule,
    TransitionGraph,
    default_handler,
    make_id,
)
from ag2.network.hub.layout import wal_path

from bench.peers.script import ANSWER, ARGUMENTS, PROMPT, TEAM, TOOL, WHAT_IT_DOES, found, question
from bench.peers.stopwatch import NOT_COUNTED, Asked, Heard, Stopwatch, asked, size_of

TEXT = "x" * 200
NO_CAP = Rule(limits=LimitsBlock(inbox=InboxBlock(max_pending=0)))


def store_at(store: str, folder: Path) -> KnowledgeStore:
    match store:
        case "memory":
            return MemoryKnowledgeStore()
        case "disk":
            return DiskKnowledgeStore(folder / "disk")
        case _:
            path = folder / "hub.db"
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
            return SqliteKnowledgeStore(path)


async def opened(store: KnowledgeStore) -> Hub:
    return await Hub.open(store, ttl_sweep_interval=0, expectation_sweep_interval=0)


async def closed(hub: Hub, store: KnowledgeStore) -> None:
    """Close both, once nothing is being written: a cursor counts as moved before it is in the store."""
    await hub.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    if isinstance(store, SqliteKnowledgeStore):
        store.close()


async def registered(hub: Hub, name: str) -> AgentClient:
    return await hub.register(Agent(name), attach_plugin=False, rule=NO_CAP)


def listening(client: AgentClient) -> Heard:
    """Count the texts a client is notified of; leave everything else, such as invitations, to the default handler."""
    heard = Heard()

    async def hear(envelope: Envelope) -> None:
        if envelope.event_type == EV_TEXT:
            heard.one()
        else:
            await default_handler(envelope, client)

    client.on_envelope(hear)
    return heard


async def acknowledged(hub: Hub, agent_id: str, envelope: str, *, channel: str) -> None:
    """Wait until an agent's cursor is at this envelope. There is nothing to be woken by."""
    while hub.inbox_cursor(agent_id, channel) != envelope:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def conversation(want: Asked) -> None:
    """One sends, the other is notified at the same time, until all is acknowledged."""
    hub = await opened(store_at(want.store, want.folder))
    alice, bob = await registered(hub, "alice"), await registered(hub, "bob")
    heard = listening(bob)
    channel = await alice.open(type="conversation", target="bob")
    last = await channel.send(NOT_COUNTED)
    await heard.reach(1)
    watch = Stopwatch()
    for _ in range(want.count):
        last = await channel.send(TEXT)
        await asyncio.sleep(0)
    await heard.reach(1 + want.count)
    await acknowledged(hub, bob.agent_id, last, channel=channel.channel_id)
    watch.stop()
    await hub.close()
    watch.tell(want.count)


@tool(name=TOOL, description=WHAT_IT_DOES)
async def look_up(order: str) -> str:
    return found(order)


class Quick(LLMClient):
    """Asks for the tool, then answers."""

    async def __call__(self, messages: Sequence[BaseEvent], *_: object, **__: object) -> ModelResponse:
        if isinstance(messages[-1], ToolResultsEvent):
            return ModelResponse(ModelMessage(ANSWER))
        return ModelResponse(tool_calls=ToolCallsEvent([ToolCallEvent(TOOL, arguments=json.dumps(ARGUMENTS))]))


class Model(ModelConfig):
    """What makes it."""

    def copy(self) -> Model:
        return self

    def create(self) -> Quick:
        return Quick()


async def turns(want: Asked) -> None:
    """So many turns in one conversation, and one before that does not count."""
    store = store_at(want.store, want.folder)
    hub = await opened(store)
    user = await registered(hub, "user")
    clerk = Agent("clerk", PROMPT, config=Model(), tools=[look_up])
    await hub.register(clerk, attach_plugin=False, rule=NO_CAP)
    heard = listening(user)
    channel = await user.open(type="conversation", target="clerk")

    async def turn(number: int) -> None:
        await channel.send(question(number))
        await heard.reach(number + 1)

    await turn(0)
    watch = Stopwatch()
    for number in range(1, want.count + 1):
        await turn(number)
    watch.stop()
    said = [envelope for envelope in await hub.read_wal(channel.channel_id) if envelope.event_type == EV_TEXT]
    assert len(said) == 2 * (want.count + 1)
    assert said[-1].event_data["text"] == ANSWER
    await closed(hub, store)
    watch.tell(want.count, stored=size_of(want.folder))


async def robin(want: Asked) -> None:
    """Four take turns in one channel, and a round before that does not count."""
    store = store_at(want.store, want.folder)
    hub = await opened(store)
    team = [await registered(hub, name) for name in TEAM]
    for client in team:
        listening(client)
    ids = [client.agent_id for client in team]
    graph = TransitionGraph.round_robin(ids)
    channel = (await team[0].open(type="workflow", target=ids[1:], knobs={"graph": graph.to_dict()})).channel_id

    async def turns(count: int) -> None:
        last = ""
        for number in range(count):
            client = team[number % len(team)]
            last = await client.send_envelope(Envelope(channel, client.agent_id, None, EV_TEXT, {"text": TEXT}))
            await asyncio.sleep(0)
        for other in ids[:-1]:
            await acknowledged(hub, other, last, channel=channel)

    await turns(len(team))
    watch = Stopwatch()
    await turns(want.count)
    watch.stop()
    assert hub.adapter_state(channel).turn_count == len(team) + want.count
    await closed(hub, store)
    watch.tell(want.count, stored=size_of(want.folder))


async def fill(want: Asked) -> None:
    """One open conversation of so many texts; all but the first go to its log in one piece, as it would write them."""
    store = store_at(want.store, want.folder)
    hub = await opened(store)
    alice, bob = await registered(hub, "alice"), await registered(hub, "bob")
    listening(bob)
    channel = await alice.open(type="conversation", target="bob")
    watch = Stopwatch()
    first = await channel.send(TEXT)
    await acknowledged(hub, bob.agent_id, first, channel=channel.channel_id)
    said = (await hub.read_wal(channel.channel_id))[-1]
    lines = []
    for _ in range(want.count - 1):
        said.envelope_id = make_id()
        lines.append(said.to_json() + "\n")
    await store.append(wal_path(channel.channel_id), "".join(lines))
    watch.stop()
    await hub.close()
    watch.tell(want.count)


async def reopen(want: Asked) -> None:
    """Open the hub, which loads every conversation, so that one could go on."""
    store = store_at(want.store, want.folder)
    watch = Stopwatch()
    hub = await opened(store)
    (row,) = await hub.list_channels()
    turns = hub.adapter_state(row.channel_id).turn_count
    watch.stop()
    await hub.close()
    assert turns == want.count
    watch.tell(1)


WORKS = {"conversation": conversation, "fill": fill, "reopen": reopen, "robin": robin, "turns": turns}

if __name__ == "__main__":
    asyncio.run(WORKS[asked().work](asked()))
