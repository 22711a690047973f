"""The steps of a turn, and two of one's own: one that keeps a secret out of the prompt, one that looks something up."""

import asyncio

from antiphon import Agent, Hub, Message, Progress, ScriptedModel, Steps


def keep_secrets(progress: Progress) -> Progress:
    """Plain, so it must be pure: it is run again whenever the turn is."""
    shown = [Message(role, text.replace("4711", "****")) for role, text in progress.history]
    return progress.replace(history=shown)


async def look_up_customer(progress: Progress) -> Progress:
    """Async, so it may touch the world: it is journalled, and not run again once it has returned."""
    return progress.replace(system=f"{progress.system}\nYou speak with Ann, a customer since 1999.")


def patched(steps: Steps) -> Steps:
    return steps.insert_before("call_model", keep_secrets).insert_before("keep_secrets", look_up_customer)


async def main() -> None:
    model = ScriptedModel(["Your card is safe."])
    agent = Agent("bank", model, "Be kind.", patcher=patched, without=["current_date"])
    print(" > ".join(agent.steps.names))
    async with Hub.open("memory:") as hub:
        reply = await agent.invoke("My PIN is 4711, is that all right?", hub=hub)
        print("the model was shown:", model.requests[0].messages[-1].text)
        print("and told:", model.requests[0].system.splitlines()[-1])
        names = [
            e.event_data["name"] for e in await hub.log(reply.channel_id) if e.event_type == "antiphon.call.started"
        ]
        print("journalled:", names)


asyncio.run(main())
