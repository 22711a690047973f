"""The process that is killed while agents answer what customers write, hand over to each other, and a person helps.

It is told by its arguments where the file is, and where replies go. Every life does the same: open the hub, find or
open the channels, and say `ready`. Then it reads orders from its standard input, a JSON object a line: a message to
send, which it acknowledges when it is recorded, or the order to finish, after which it says `done` when everything is
answered and every reply has left.

What an agent does is written in the message: `m7 hops=2 hold=0 think=0.12`. Which handoff of the message it would make
next it knows from the summary of the agent before alone.

`--careless` says that a reply has left before it has, as a control, and `--no-ids` sends messages without their ids.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import aclosing
from itertools import count

from antiphon import (
    Agent,
    Channel,
    ConversationRouter,
    Envelope,
    Hub,
    OutboundReply,
    Participant,
    Reply,
    Request,
    WebhookTransport,
    calls,
    says,
)
from antiphon.core.conversation_events import EV_CONVERSATION_MOVED, EV_CONVERSATION_RELEASED
from antiphon.runtime.conversations import conversation_memory
from tests.crash.turn_child import LONGEST_LIFE, say, shorten_pauses

SECRET = "a-secret-of-this-test-alone"
TRANSPORT = "sms"
RING = ("triage", "billing", "sales")
"""Each of them hands over to the next one."""
CHANNELS = ("c0", "c1", "c2")
DESK, PERSON = "desk", "dana"
PERSON_THINKS = 0.15
CARELESS_SECONDS = 1.0


def agent_after(name: str) -> str:
    return RING[(RING.index(name) + 1) % len(RING)]


def plan_of(text: str) -> tuple[str, dict[str, float]]:
    """The number of a message, and what is to be done about it."""
    number, *wishes = text.split()
    return number, {name: float(value) for name, _, value in (wish.partition("=") for wish in wishes)}


def answer_to(number: str, name: str) -> str:
    return f"{number} is answered by {name}"


def word_on(number: str) -> str:
    """What a person says in a hold."""
    return f"{number} is seen to by {PERSON}"


def agent(name: str) -> Agent:
    async def model(request: Request) -> Reply:
        number, plan = plan_of(request.history[-1].text.partition(": ")[2])
        await asyncio.sleep(plan["think"])
        about, _, made = _summary(request).partition("/")
        done = int(made) if about == number else 0
        if done < plan["hops"]:
            return _hand_over(agent_after(name), f"{number}/{done + 1}")
        return _hand_over("human", number) if plan["hold"] else says(answer_to(number, name))

    return Agent(name, model=model, system_prompt=f"You are {name}.")


def _summary(request: Request) -> str:
    """What the agent before has written; "" if there is none."""
    first = request.history[0].text
    return first.partition("]: ")[2] if first.startswith("[Context from previous agent (") else ""


def _hand_over(target: str, summary: str) -> Reply:
    return calls("handoff_conversation", {"target": target, "reason": "as planned", "summary": summary})


class Person:
    """Ends each hold of a channel: says something, and gives the conversation back."""

    def __init__(self, hub: Hub, channel: Channel) -> None:
        self._hub, self._channel = hub, channel

    async def attend(self) -> None:
        log = await self._hub.log(self._channel.channel_id)
        ends = max((each.sequence for each in log if each.event_type == EV_CONVERSATION_RELEASED), default=0)
        for envelope in log:
            if envelope.sequence > ends:
                await self._heed(envelope)
        async with aclosing(self._hub.subscribe(self._channel.channel_id, after=len(log))) as envelopes:
            async for envelope in envelopes:
                await self._heed(envelope)

    async def _heed(self, envelope: Envelope) -> None:
        if envelope.event_type != EV_CONVERSATION_MOVED or not envelope.event_data.get("person"):
            return
        word = word_on(str(envelope.event_data["summary"]))
        await asyncio.sleep(PERSON_THINKS)
        await self._channel.send(word, message_id=word)
        await asyncio.sleep(PERSON_THINKS)
        await self._channel.release()


class Customers:
    """Sends what it is ordered to, and says what was recorded."""

    def __init__(self, desk: Participant, *, ids: bool) -> None:
        self._desk, self._ids = desk, ids
        self.channels: dict[str, Channel] = {}
        self._sends: set[asyncio.Task[None]] = set()

    async def open(self, name: str) -> Channel:
        knobs = {"router": ConversationRouter(default_agent_id=RING[0]).to_dict()}
        self.channels[name] = await self._desk.open(type="routed", target=[*RING, PERSON], knobs=knobs, key=name)
        return self.channels[name]

    async def follow_orders(self) -> None:
        """Send until it is time to finish."""
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while order := json.loads(await orders.readline() or "{}"):
            self._sends.add(asyncio.create_task(self._send(**order)))
        await asyncio.gather(*self._sends)

    async def _send(self, channel: str, number: str, text: str) -> None:
        options = {"message_id": number} if self._ids else {}
        sent = await self.channels[channel].send(text, transport=TRANSPORT, source=channel, **options)  # type: ignore[arg-type]
        say(f"ack {number} {sent.envelope_id} {sent.sequence}")

    async def all_answered(self) -> None:
        for _ in count():
            if self._idle:
                return
            await asyncio.sleep(0.01)

    @property
    def _idle(self) -> bool:
        """Whether everything is answered, and has left."""
        for channel in self.channels.values():
            memory = conversation_memory(channel._live)
            pending = any(cursor.pending for cursor in memory.outbox.values())
            if channel.state.owed or memory.waiting or memory.person or pending:
                return False
        return True


async def main(path: str, port: int, *, careless: bool, ids: bool) -> None:
    webhook = WebhookTransport(f"http://127.0.0.1:{port}/", secret=SECRET, allow_private=True)
    later: set[asyncio.Task[None]] = set()

    async def send_later(reply: OutboundReply) -> None:
        await asyncio.sleep(CARELESS_SECONDS)
        await webhook.send(reply)

    async def promise(reply: OutboundReply) -> None:
        later.add(asyncio.create_task(send_later(reply)))

    async with Hub.open(f"sqlite:///{path}") as hub:
        hub.transport(TRANSPORT, send=promise if careless else webhook.send)
        customers = Customers(await hub.register(DESK), ids=ids)
        person = await hub.register(PERSON, kind="human")
        for name in RING:
            await hub.register(agent(name))
        attending = []
        for name in CHANNELS:
            channel = await customers.open(name)
            attending.append(asyncio.create_task(Person(hub, await person.channel(channel.channel_id)).attend()))
        say("ready")
        await customers.follow_orders()
        await customers.all_answered()
        await asyncio.gather(*later, return_exceptions=True)
        say("done")
        for each in attending:
            each.cancel()


if __name__ == "__main__":
    signal.alarm(LONGEST_LIFE)
    logging.getLogger("antiphon").setLevel(logging.ERROR)  # that a reply was not taken is no news
    shorten_pauses()
    flags = sys.argv[3:]
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), careless="--careless" in flags, ids="--no-ids" not in flags))
