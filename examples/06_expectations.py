"""A consultant who does not answer: first everybody is warned, then the channel closes. Ten minutes pass in no time."""

import asyncio

from antiphon import EV_EXPECTATION_VIOLATED, Hub
from antiphon.testing import ManualClock


async def main() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        asker = await hub.register("asker")
        await hub.register("sleeper")
        channel = await asker.open(type="consulting", target="sleeper")
        await channel.send("Are you there?")

        await clock.advance(119)
        print("after 119 seconds:", channel.state.status)

        await clock.advance(1)
        warning = (await hub.log(channel.channel_id))[-1]
        assert warning.event_type == EV_EXPECTATION_VIOLATED
        print("after 120 seconds: everybody sees a warning,", warning.event_data["expectation"])

        await clock.advance(480)
        print("after 600 seconds:", channel.state.status, "-", channel.state.close_reason)

        patient = {"expectations": [{"name": "reply_within", "seconds": 3600, "handler": "auto_close"}]}
        slow = await asker.open(type="consulting", target="sleeper", knobs=patient)
        await slow.send("Take your time.")
        await clock.advance(600)
        print("a channel that allows an hour, after 600 seconds:", slow.state.status)


asyncio.run(main())
