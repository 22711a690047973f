"""A routed conversation: a pipeline of four agents that hand over to each other, an observer, and hooks."""

import asyncio

from antiphon import (
    EV_PACKET,
    Agent,
    Channel,
    ConversationPipeline,
    HandoffHandler,
    HandoffMemoryProvider,
    HookEvent,
    HookTrigger,
    Hub,
    PipelineStage,
    Reply,
    ScriptedModel,
    SlidingWindowMemory,
    calls,
    get_conversation_state,
    says,
    setup_handoff,
)

PIPELINE = ConversationPipeline(
    stages=[
        PipelineStage(phase="intake", agent_id="triage", next="handling"),
        PipelineStage(phase="handling", agent_id="handler", next="review"),
        PipelineStage(phase="review", agent_id="reviewer", next="resolution", can_return_to={"handling"}),
        PipelineStage(phase="resolution", agent_id="resolver", next=None),
    ],
    supervisor_id="watcher",
)


def hand_over(target: str, reason: str, summary: str) -> Reply:
    """What a model answers to hand the conversation over."""
    return calls("handoff_conversation", {"target": target, "reason": reason, "summary": summary})


SCRIPTS: dict[str, list[Reply]] = {
    "triage": [
        hand_over("resolver", "wants money back", "Charged twice."),  # refused: intake is not followed by resolution
        hand_over("refunds", "wants money back", "Order 7 was charged twice."),
    ],
    "handler": [
        says("Which card was it?"),
        hand_over("reviewer", "refund to approve", "Order 7, the blue card."),
        hand_over("reviewer", "refund to approve", "Order 7, the blue card, 42 euros."),
    ],
    "reviewer": [
        hand_over("handler", "no amount", "How much is it?"),
        hand_over("resolver", "approved", "Refund 42 euros."),
    ],
    "resolver": [says("42 euros are on their way to your blue card.")],
    "watcher": [says("Triage took two attempts."), says("The review went round once.")],
}


async def ask(hub: Hub, channel: Channel, text: str) -> None:
    """Say something, and print what follows until it is answered."""
    print(f"ann: {text}")
    sent = await channel.send(text)
    async for envelope in hub.subscribe(channel.channel_id, participant="ann", after=sent.sequence):
        if envelope.event_type == EV_PACKET and envelope.event_data["body"]:
            print(f"{envelope.sender_id}: {envelope.event_data['body']}")
            return


async def main() -> None:
    moves: list[str] = []
    models = {name: ScriptedModel(script) for name, script in SCRIPTS.items()}
    async with Hub.open("memory:") as hub:
        router = PIPELINE.to_router()
        handler = HandoffHandler(
            hub=hub,
            router=router,
            agent_aliases={"refunds": "handler"},
            phase_map=PIPELINE.get_phase_map(),
            allowed_transitions=PIPELINE.get_allowed_transitions(),
        )

        @hub.hook(HookTrigger.ON_HANDOFF)
        async def moved(event: HookEvent) -> None:
            moves.append("{from_agent} → {to_agent}, {to_phase}: {reason}".format(**event.data))

        @hub.hook(HookTrigger.ON_HANDOFF_REJECTED)
        async def rejected(event: HookEvent) -> None:
            moves.append("{from_agent} → {target} refused: {reason}".format(**event.data))

        for name, model in models.items():
            memory = HandoffMemoryProvider(SlidingWindowMemory(max_events=50))
            await hub.register(setup_handoff(Agent(name, model, memory=memory), handler))
        ann = await hub.register("ann")
        channel = await ann.open(type="routed", target=list(models), knobs={"router": router.to_dict()})

        await ask(hub, channel, "I was charged twice for order 7.")
        await ask(hub, channel, "The blue one.")

        print("\nhandoffs:", *moves, sep="\n  ")
        state = get_conversation_state(channel)
        print(f"\nphase: {state.phase}, with {state.active_agent_id}, after {state.handoff_count} handoffs")
        print("resolver was shown:", models["resolver"].requests[0].messages[0].text)
        await notes(hub, channel)


async def notes(hub: Hub, channel: Channel) -> None:
    """Print what the observer says. People other than the creator see it, and so does the operator, as here."""
    count = 0
    async for envelope in hub.subscribe(channel.channel_id):
        if envelope.sender_id == "watcher" and envelope.event_type == EV_PACKET:
            print("watcher:", envelope.event_data["body"])
            count += 1
            if count == len(SCRIPTS["watcher"]):
                return


asyncio.run(main())
