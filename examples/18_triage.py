"""Triage: where a case goes is said by a tool that a rule names, or by a tool that hands the turn on itself."""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    FromSpeaker,
    Handoff,
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

PARTICIPANTS = ["user", "triage", "billing", "repairs"]
GRAPH = TransitionGraph(
    initial_speaker="user",
    transitions=[
        Transition(FromSpeaker("user"), AgentTarget("triage")),
        Transition(FromSpeaker("triage") & ToolCalled("about_money"), AgentTarget("billing")),
        Transition(FromSpeaker("triage") & ToolCalled("about_a_machine"), AgentTarget("repairs")),
    ],
    default_target=TerminateTarget("answered"),
)


@tool
def about_money() -> str:
    """The case is about an invoice or a payment."""
    return "noted"


@tool
def about_a_machine() -> str:
    """The case is about something that does not work."""
    return "noted"


@tool
def pass_on(to: str, why: str) -> Handoff:
    """Hand the case to another agent. This wins over the table, and needs no rule."""
    return Handoff(to, reason=why, summary=f"This is for {to}: {why}.")


TRIAGE = [calls("about_a_machine"), says("A machine, I think."), says("We are open until five.")]
REPAIRS = [calls("pass_on", {"to": "billing", "why": "it was never paid for"})]


async def main() -> None:
    async with Hub.open("memory:") as hub:
        user = await hub.register("user")
        await hub.register(Agent("triage", model=ScriptedModel(TRIAGE), tools=[about_money, about_a_machine]))
        await hub.register(Agent("repairs", model=ScriptedModel(REPAIRS), tools=[pass_on]))
        await hub.register(Agent("billing", model=ScriptedModel(["Here is the invoice."])))

        for case in ("It stays dark when I press the button.", "When do you close?"):
            channel = await user.open(type="workflow", target=PARTICIPANTS[1:], knobs={"graph": GRAPH.to_dict()})
            await channel.send(case)
            print(f"{case} ({await channel.closed(timeout=10)})")
            for envelope in await hub.log(channel.channel_id):
                if envelope.event_type == EV_PACKET:
                    print(f"  {envelope.sender_id}: {envelope.event_data['body']} {envelope.event_data['routing']}")


if __name__ == "__main__":
    asyncio.run(main())
