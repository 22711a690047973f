"""Context variables are shared by everybody in a channel, except those that name who may write them."""

import asyncio

from antiphon import Denied, Hub


async def main() -> None:
    async with Hub.open("memory:") as hub:
        writer = await hub.register("writer")
        reviewer = await hub.register("reviewer")
        channel = await writer.open(
            target="reviewer",
            context_vars={"approved": False, "version": 1},
            knobs={"writers": {"approved": ["reviewer"]}},
        )
        as_reviewer = await reviewer.channel(channel.channel_id)

        await channel.set_context(version=2)
        print("the writer may change the version:", channel.state.context_vars)

        try:
            await channel.set_context(approved=True)
        except Denied as denied:
            print("the writer may not approve, and is refused:", denied.reason)

        await as_reviewer.set_context(approved=True)
        print("the reviewer may:", channel.state.context_vars)

        await channel.delete_context("version")
        print("and a variable can go again:", channel.state.context_vars)


asyncio.run(main())
