"""Three speak in turn. Who speaks out of turn is refused, and the refusal leaves no trace in their channel."""

import asyncio

from antiphon import Denied, Hub


async def main() -> None:
    async with Hub.open("memory:") as hub:
        people = {name: await hub.register(name) for name in ("ann", "ben", "cleo")}
        opened = await people["ann"].open(type="discussion", target=["ben", "cleo"])
        channel_id = opened.channel_id
        seats = {name: await person.channel(channel_id) for name, person in people.items()}

        await seats["ann"].send("Shall we ship on Friday?")
        print("ann spoke; the turn is with", opened.state.expected_next_speaker)

        before = opened.state.sequence
        try:
            await seats["cleo"].send("Yes!")
        except Denied as denied:
            print("cleo is refused:", denied.reason)
            print("  ", denied.detail)
        print("the log has grown by", opened.state.sequence - before)

        await seats["ben"].send("Only if the tests pass.")
        await seats["cleo"].send("Then yes.")
        print("one round done, the turn is with", opened.state.expected_next_speaker, "again")

        refusals = [e for e in await hub.log("system:audit") if e.event_type == "antiphon.draft.refused"]
        print("the hub remembers", len(refusals), "refusal:", refusals[0].event_data["reason"])


asyncio.run(main())
