"""Two participants talk. Everything that happened, and in which order, is in the log of their channel."""

import asyncio

from antiphon import Hub


async def main() -> None:
    async with Hub.open("memory:") as hub:
        alice = await hub.register("alice")
        bob = await hub.register("bob")

        channel = await alice.open(target="bob")  # a conversation, unless another type is named
        question = await channel.send("Hello, who is there?")

        same = await bob.channel(channel.channel_id)  # the same channel, as Bob holds it
        await same.send("Hello Alice, this is Bob.", causation_id=question.envelope_id)
        await channel.close(reason="said hello")

        print("What was said:")
        log = await hub.log(channel.channel_id)
        for envelope in log:
            if "text" in envelope.event_data:
                print(f"  {envelope.sender_id}: {envelope.event_data['text']}")

        print("What was recorded:")
        for envelope in log:
            print(f"  {envelope.sequence}  {envelope.event_type:26} by {envelope.sender_id}")


asyncio.run(main())
