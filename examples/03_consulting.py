"""One question, one answer, and the channel closes by itself. The consultant is a loop over an inbox."""

import asyncio

from antiphon import EV_TEXT, Hub, Participant

ANSWERS = {"What is the boiling point of water?": "100 degrees Celsius, at sea level.", "And on Everest?": "About 70."}


async def consult(who: Participant) -> None:
    """Answer every question, until the hub closes."""
    async for envelope in who.inbox():
        if envelope.event_type == EV_TEXT:  # an inbox also tells of invitations, openings and closings
            channel = await who.channel(envelope.channel_id)
            await channel.send(ANSWERS[str(envelope.event_data["text"])], causation_id=envelope.envelope_id)


async def main() -> None:
    async with asyncio.TaskGroup() as tasks, Hub.open("memory:") as hub:
        asker = await hub.register("asker")
        tasks.create_task(consult(await hub.register("physicist")))

        for question in ANSWERS:
            channel = await asker.open(type="consulting", target="physicist")
            await channel.send(question)
            reason = await channel.closed(timeout=10)

            log = await hub.log(channel.channel_id)
            asked, answered = (envelope for envelope in log if envelope.event_type == EV_TEXT)
            print(f"{asked.sender_id}: {asked.event_data['text']}")
            print(f"{answered.sender_id}: {answered.event_data['text']}")
            print("closed:", reason)


asyncio.run(main())
