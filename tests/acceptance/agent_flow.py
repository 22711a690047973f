"""Agents that answer by a script, the way they take through their steps, and what a turn tells, as lines of text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    AIMessageEvent,
    Channel,
    Envelope,
    FinalStateEvent,
    Hub,
    Progress,
    Request,
    ScriptedModel,
    Step,
    Steps,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    tool,
)
from tests.support.waiting import let_others_run, soon

FIVE = ["render_system_prompt", "current_active_agent", "continue_conversation", "call_model", "call_tools"]
RENDER, ROUTE, GO_ON, ASK, TOOLS = FIVE
WARNED, CALL_STARTED = "antiphon.agent.warned", "antiphon.call.started"

Event = ToolUsageEvent | ToolResponseEvent | TokenEvent | AIMessageEvent | FinalStateEvent
Walk = list[tuple[str, str]]
"""Who took which step, in order."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    if order != "7":
        raise LookupError(f"no order {order}")
    return "42 euros"


@tool(return_direct=True)
async def receipt(order: str) -> str:
    """The receipt of an order, as it is printed."""
    if order != "7":
        raise LookupError(f"no order {order}")
    return "RECEIPT 7: 42 euros"


def agent(name: str, *script: object, **options: object) -> Agent:
    """An agent whose model answers by this script."""
    return Agent(name, model=ScriptedModel(script), **options)  # type: ignore[arg-type]  # a script, and any option


def asked(who: Agent) -> list[Request]:
    """What the model of an agent was asked."""
    assert isinstance(who.model, ScriptedModel)
    return who.model.requests


def walking(walk: Walk) -> Callable[[Steps], Steps]:
    """A patcher that notes who comes to which of the five steps."""

    def noting(name: str) -> Step:
        def note(progress: Progress) -> None:
            walk.append((progress.agent, name))

        return Step(f"before_{name}", note)

    def patch(steps: Steps) -> Steps:
        for name in FIVE:
            steps = steps.insert_before(name, noting(name))
        return steps

    return patch


async def events_of(
    who: Agent, text: str, hub: Hub, *, thread_id: str = "t", tokens: bool = False, message_id: str | None = None
) -> list[Event]:
    """Everything that a turn tells whoever follows it."""

    async def followed() -> list[Event]:
        stream = who.stream_invoke(text, thread_id=thread_id, hub=hub, tokens=tokens, message_id=message_id)
        return [event async for event in stream]  # type: ignore[misc]  # the same events

    return await soon(followed())


async def active_in(who: Agent, hub: Hub, thread_id: str = "t") -> str:
    """The place of whoever is active on a thread."""
    state = (await who.channel(thread_id, hub)).state
    return state.active.get(who.name, who.name)


async def log_of(who: Agent, hub: Hub, *types: str, thread_id: str = "t") -> list[Envelope]:
    """The log of a thread, or what there is of these types in it."""
    log = await hub.log((await who.channel(thread_id, hub)).channel_id)
    return [each for each in log if each.event_type in types] if types else log


async def said_in(hub: Hub, channel_id: str) -> list[tuple[str, object]]:
    """Who said what in a channel, in order."""
    spoken = [each for each in await hub.log(channel_id) if each.event_type in (EV_TEXT, EV_PACKET)]
    return [(each.sender_id, each.event_data.get("text", each.event_data.get("body"))) for each in spoken]


async def turns_taken(channel: Channel, count: int) -> None:
    """Return when so many turns have been taken in a channel; what never happens, is a failure."""
    async with asyncio.timeout(5):
        while channel.state.turn_count < count:
            await let_others_run(1)


async def warnings_of(who: Agent, hub: Hub, thread_id: str = "t") -> list[tuple[object, object]]:
    """The code of every warning on a thread, and whom it is about."""
    found = await log_of(who, hub, WARNED, thread_id=thread_id)
    assert all(each.audience == ["hub:operators"] for each in found), "only operators are told"
    return [(each.event_data["code"], each.event_data["agent"]) for each in found]


def kinds(events: Sequence[Event]) -> list[str]:
    """What kinds of events these are."""
    return [type(event).__name__.removesuffix("Event") for event in events]


def without_tokens(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, TokenEvent)]


def line_of(event: Event) -> str:
    """An event as one line; usage and the id of the channel are left out."""
    match event:
        case ToolUsageEvent(who, name, args, call_id):
            return f"tool_usage {call_id} {who}: {name} {_written(args)}"
        case ToolResponseEvent(who, name, text, call_id, failed):
            return f"tool_response {call_id} {who}: {name} {'failed' if failed else 'gave'} {_written(text)}"
        case TokenEvent(who, text):
            return f"token {who}: {_written(text)}"
        case AIMessageEvent(who, text):
            return f"ai_message {who}: {_written(text)}"
        case FinalStateEvent(who, text, stopped, detail):
            ending = f" stopped by {stopped}" if stopped else ""
            return f"final {who}: {_written(text)}{ending}{f' ({detail})' if detail else ''}"


def _written(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
