"""Text messages: an agent hands over to a person, whose replies leave by the transport, also after a restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon import (
    EV_TEXT,
    Agent,
    Channel,
    ConversationRouter,
    Hub,
    InboundMessage,
    OutboundReply,
    Participant,
    ScriptedModel,
    calls,
    get_conversation_state,
    says,
)

ROUTER = ConversationRouter(default_agent_id="support")
HAND_OVER = calls(
    "handoff_conversation",
    {"target": "human", "reason": "wants a person", "summary": "Locked out until the parcel is found."},
    text="A colleague will answer you.",
)


class Gateway:
    """Stands for a provider of text messages, and the customer with a telephone at its other end."""

    def __init__(self) -> None:
        self._incoming: asyncio.Queue[InboundMessage] = asyncio.Queue()
        self._delivered: dict[str, str] = {}
        self._more = asyncio.Event()

    async def deliver(self, reply: OutboundReply) -> None:
        """Take a reply. One that comes again, after a crash, has the same id."""
        if reply.reply_id not in self._delivered:
            self._delivered[reply.reply_id] = reply.text
            print(f"to {reply.recipient}: {reply.text}   [{reply.sender_id}]")
            self._more.set()

    async def receive(self) -> AsyncIterator[InboundMessage]:
        """The messages of the customer. The next one is asked for when the last is recorded."""
        while True:
            yield await self._incoming.get()
            self._incoming.task_done()

    async def write(self, message_id: str, text: str) -> None:
        """Write a message as the customer, and wait until the hub has recorded it."""
        print(f"from +4930: {text}")
        self._incoming.put_nowait(InboundMessage(text, "+4930", message_id))
        await self._incoming.join()

    async def has_delivered(self, count: int) -> None:
        """Wait until so many replies have reached the customer."""
        while len(self._delivered) < count:
            await self._more.wait()
            self._more.clear()


async def start(hub: Hub, gateway: Gateway, model: ScriptedModel) -> Participant:
    """All that the program does when it starts, the first time or again. Returns the person at the desk."""
    phone = await hub.register("phone")
    dana = await hub.register("dana", kind="human")
    await hub.register(Agent("support", model))

    async def channel_of(message: InboundMessage) -> Channel:
        """One channel for each number: opened by its first message, and found again by the next."""
        return await phone.open(
            type="routed", target=["support", "dana"], knobs={"router": ROUTER.to_dict()}, key=message.source
        )

    hub.transport("sms", send=gateway.deliver, receive=gateway.receive, channel=channel_of)
    return dana


async def channel_with(person: Participant, text: str) -> Channel:
    """Read the inbox until this message; the channel it was said in."""
    async for envelope in person.inbox():
        if envelope.event_type == EV_TEXT and envelope.event_data["text"] == text:
            return await person.channel(envelope.channel_id)
    raise RuntimeError("the hub was closed")


async def main() -> None:
    gateway = Gateway()
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'desk.db'}"
        async with Hub.open(url) as hub:
            await start(hub, gateway, ScriptedModel([says("It is at the counter, from nine to five."), HAND_OVER]))
            await gateway.write("m1", "Where is my parcel?")
            await gateway.has_delivered(1)
            await gateway.write("m2", "My keys are in it! May I talk to a person?")
            await gateway.has_delivered(2)
            await gateway.write("m3", "Are you there?")

        print("-- the program is started again --")
        async with Hub.open(url) as hub:
            dana = await start(hub, gateway, ScriptedModel([says("On Saturdays until noon.")]))
            held = await channel_with(dana, "Are you there?")
            print("active agent:", get_conversation_state(held).active_agent_id)
            await held.send("I am. Come by tonight, I wait for you until eight.")
            await gateway.has_delivered(3)
            await held.release(to="support")
            await gateway.write("m4", "Thank you! Are you open on Saturdays, too?")
            await gateway.has_delivered(4)


asyncio.run(main())
