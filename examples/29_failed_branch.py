"""A branch that fails: of two who work at once, the one that fails is tried again once, and a judge reads both."""

import asyncio

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    BranchFailed,
    FromSpeaker,
    Hub,
    ModelError,
    Once,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
)

PARTICIPANTS = ["user", "ada", "ben", "judge"]
GRAPH = TransitionGraph(
    initial_speaker="user",
    transitions=[
        Transition(FromSpeaker("user"), AgentsTarget(["ada", "ben"])),
        # before the rules that ask who spoke: those match the answer of the other branch too
        Transition(BranchFailed("ada") & BranchFailed("ben"), TerminateTarget("both_failed")),
        Transition(Once(BranchFailed("ada")), AgentTarget("ada")),
        Transition(Once(BranchFailed("ben")), AgentTarget("ben")),
        Transition(FromSpeaker("ada") | FromSpeaker("ben"), AgentTarget("judge")),
    ],
    default_target=TerminateTarget("judged"),
)


async def main() -> None:
    ben = ScriptedModel([ModelError("no capacity"), "41"])
    judge = ScriptedModel(["Ada is right."])
    async with Hub.open("memory:") as hub:
        user = await hub.register("user")
        await hub.register(Agent("ada", model=ScriptedModel(["42"])))
        await hub.register(Agent("ben", model=ben))
        await hub.register(Agent("judge", model=judge))

        knobs = {"graph": GRAPH.to_dict()}
        channel = await user.open(type="workflow", target=PARTICIPANTS[1:], knobs=knobs, say="Six times seven?")
        print("closed:", await channel.closed(timeout=10))
        for envelope in await hub.log(channel.channel_id):
            if envelope.event_type == "antiphon.turn.failed":
                print("failed:", envelope.event_data["speaker"], "-", envelope.event_data["reason"])
        print("ben was asked", len(ben.requests), "times")
        print("the judge was shown:", [text for _, text in judge.requests[0].messages])


if __name__ == "__main__":
    asyncio.run(main())
