"""Redundant work: three answer the same question at once, without knowing of each other; a judge sees all answers."""

import asyncio

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    FromSpeaker,
    Hub,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
)

PARTICIPANTS = ["user", "ada", "ben", "cleo", "judge"]
GRAPH = TransitionGraph(
    initial_speaker="user",
    transitions=[
        Transition(FromSpeaker("user"), AgentsTarget(["ada", "ben", "cleo"])),
        # read when the last of the three has answered
        Transition(FromSpeaker("ada") | FromSpeaker("ben") | FromSpeaker("cleo"), AgentTarget("judge")),
    ],
    default_target=TerminateTarget("judged"),
)


async def main() -> None:
    answers = {name: ScriptedModel([text]) for name, text in {"ada": "42", "ben": "41", "cleo": "42"}.items()}
    judge = ScriptedModel(["42, by two to one."])
    async with Hub.open("memory:") as hub:
        user = await hub.register("user")
        for name, model in answers.items():
            await hub.register(Agent(name, model=model))
        await hub.register(Agent("judge", model=judge))

        channel = await user.open(type="workflow", target=PARTICIPANTS[1:], knobs={"graph": GRAPH.to_dict()})
        await channel.send("What is six times seven?")
        print("the turn is with", ", ".join(channel.state.speakers))

        print("closed:", await channel.closed(timeout=10))
        for name, model in answers.items():
            print(f"{name} was shown:", [text for _, text in model.requests[0].messages])
        print("the judge was shown:", sorted(text for _, text in judge.requests[0].messages))
        print("turns:", channel.state.turn_count)


if __name__ == "__main__":
    asyncio.run(main())
