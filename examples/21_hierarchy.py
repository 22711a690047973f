"""A hierarchy in one graph: a lead, two team leads and their people. Work goes down by tools, results come up."""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentsTarget,
    AgentTarget,
    FromSpeaker,
    Hub,
    ScriptedModel,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)

PARTICIPANTS = ["owner", "lead", "design", "paint", "form", "build", "weld", "wire"]
GRAPH = TransitionGraph(
    initial_speaker="owner",
    transitions=[
        Transition(FromSpeaker("owner"), AgentTarget("lead")),
        Transition(FromSpeaker("lead") & ToolCalled("ask_design"), AgentTarget("design")),
        Transition(FromSpeaker("lead") & ToolCalled("ask_build"), AgentTarget("build")),
        Transition(FromSpeaker("lead"), TerminateTarget("delivered")),
        Transition(FromSpeaker("design") & ToolCalled("share_out"), AgentsTarget(["paint", "form"])),
        Transition(FromSpeaker("build") & ToolCalled("share_out"), AgentsTarget(["weld", "wire"])),
        Transition(FromSpeaker("paint") | FromSpeaker("form"), AgentTarget("design")),
        Transition(FromSpeaker("weld") | FromSpeaker("wire"), AgentTarget("build")),
    ],
    default_target=AgentTarget("lead"),  # a team lead that shares nothing out reports to the lead
)


def give_out(task: str) -> str:
    """Let others do something."""
    return task  # with return_direct the task is what the agent says, and the model is not asked again


ask_design, ask_build, share_out = (
    tool(give_out, name=name, return_direct=True) for name in ("ask_design", "ask_build", "share_out")
)

SCRIPTS = {
    "lead": [
        calls("ask_design", {"task": "A lamp, on paper."}),
        calls("ask_build", {"task": "Now in brass."}),
        says("Here is your lamp."),
    ],
    "design": [calls("share_out", {"task": "Colour and shape!"}), says("A green cone.")],
    "build": [calls("share_out", {"task": "Shade and cable!"}), says("A green cone that shines.")],
    "paint": ["Green."],
    "form": ["A cone."],
    "weld": ["The cone is welded."],
    "wire": ["It shines."],
}
TOOLS = {"lead": [ask_design, ask_build], "design": [share_out], "build": [share_out]}


async def main() -> None:
    async with Hub.open("memory:") as hub:
        owner = await hub.register("owner")
        for name, script in SCRIPTS.items():
            await hub.register(Agent(name, model=ScriptedModel(script), tools=TOOLS.get(name, [])))
        channel = await owner.open(type="workflow", target=PARTICIPANTS[1:], knobs={"graph": GRAPH.to_dict()})
        await channel.send("I would like a lamp.")
        print("closed:", await channel.closed(timeout=10))
        for envelope in await hub.log(channel.channel_id):
            if envelope.event_type == EV_PACKET:
                depth = 0 if envelope.sender_id == "lead" else 2 if envelope.sender_id in TOOLS else 4
                print(f"{' ' * depth}{envelope.sender_id}: {envelope.event_data['body']}")


if __name__ == "__main__":
    asyncio.run(main())
