"""What a turn tells, and in which order, kept as golden files: the same with tokens, without, and if nobody follows it.

To write the files anew, on purpose, and then to read what has changed:

    ANTIPHON_REWRITE_GOLDEN=1 .venv/bin/python -m pytest tests/acceptance/test_agent_flow_events.py
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from antiphon import (
    Agent,
    AIMessageEvent,
    Answered,
    FinalStateEvent,
    Hub,
    Reply,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    TurnFailed,
)
from antiphon.testing import ManualClock, canonical_digest
from tests.acceptance.agent_flow import (
    CALL_STARTED,
    Event,
    active_in,
    asked,
    events_of,
    line_of,
    log_of,
    without_tokens,
)
from tests.acceptance.agent_flow_scenes import SCENES
from tests.support.waiting import soon

GOLDEN = Path(__file__).parent / "golden" / "agent_flow"
REWRITE = os.environ.get("ANTIPHON_REWRITE_GOLDEN") == "1"
EVERY_SCENE = pytest.mark.parametrize("name", SCENES)

Way = Callable[[Agent, str, Hub, str], Awaitable[list[Event]]]


class Played(msgspec.Struct, frozen=True):
    """One turn of a scene."""

    said: str
    events: list[Event]
    """Nothing but the final one, if nobody followed."""
    active: str
    digest: str
    """Of the log so far."""


async def streamed(who: Agent, text: str, hub: Hub, message_id: str) -> list[Event]:
    return await events_of(who, text, hub, message_id=message_id)


async def with_tokens(who: Agent, text: str, hub: Hub, message_id: str) -> list[Event]:
    return await events_of(who, text, hub, message_id=message_id, tokens=True)


async def invoked(who: Agent, text: str, hub: Hub, message_id: str) -> list[Event]:
    """The final event that the reply, or the failure, stands for."""
    try:
        reply = await soon(who.invoke(text, thread_id="t", hub=hub, message_id=message_id))
    except TurnFailed as failed:
        return [FinalStateEvent(failed.agent, "", failed.reason, failed.detail, channel_id=failed.channel_id)]
    return [FinalStateEvent(reply.agent, reply.text, reply.stopped, "", reply.usage, reply.channel_id)]


async def played(name: str, way: Way) -> list[Played]:
    """A scene in a hub of its own, from its first turn to its last."""
    scene, turns = SCENES[name](), []
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for number, said in enumerate(scene.said):
            events = await way(scene.agent, said, hub, f"message {number}")
            digest = canonical_digest(await log_of(scene.agent, hub))
            turns.append(Played(said, events, await active_in(scene.agent, hub), digest))
    return turns


def as_text(turns: list[Played]) -> str:
    paragraphs = [[f"> {turn.said!r}", *map(line_of, turn.events), f"active: {turn.active}"] for turn in turns]
    return "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"


# The golden files


@EVERY_SCENE
async def test_events_come_in_the_order_of_the_golden_file(name: str) -> None:
    found, file = as_text(await played(name, streamed)), GOLDEN / f"{name}.txt"
    if REWRITE:
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_scene() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(SCENES)


# One turn, followed in three ways


@EVERY_SCENE
async def test_with_tokens_everything_else_is_told_the_same(name: str) -> None:
    whole, pieces = await played(name, streamed), await played(name, with_tokens)
    bare = [msgspec.structs.replace(turn, events=without_tokens(turn.events)) for turn in pieces]
    assert bare == whole


@EVERY_SCENE
async def test_if_nobody_follows_the_turn_comes_to_the_same(name: str) -> None:
    """The log is the same too. Of a turn that failed, only a stream says what it consumed."""
    for turn, plain in zip(await played(name, streamed), await played(name, invoked), strict=True):
        final, [reply] = turn.events[-1], plain.events
        assert isinstance(final, FinalStateEvent)
        assert isinstance(reply, FinalStateEvent)
        assert reply == (final if not final.detail else msgspec.structs.replace(final, usage=reply.usage))
        assert (plain.active, plain.digest) == (turn.active, turn.digest)


@EVERY_SCENE
async def test_asked_again_the_same_is_told_again(name: str) -> None:
    scene = SCENES[name]()
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for number, said in enumerate(scene.said):
            first = await streamed(scene.agent, said, hub, f"message {number}")
            assert await streamed(scene.agent, said, hub, f"message {number}") == first


@EVERY_SCENE
async def test_the_final_event_comes_last_and_once_right_after_the_whole_answer(name: str) -> None:
    for way in (streamed, with_tokens):
        for turn in await played(name, way):
            final = turn.events[-1]
            assert isinstance(final, FinalStateEvent)
            assert sum(isinstance(event, FinalStateEvent) for event in turn.events) == 1
            answers = [event for event in turn.events if isinstance(event, AIMessageEvent)]
            assert answers == ([AIMessageEvent(final.agent, final.text)] if final.text else [])
            assert not answers or turn.events[-2] is answers[0]


@EVERY_SCENE
async def test_every_call_that_is_recorded_is_told_and_so_is_what_it_came_to(name: str) -> None:
    scene = SCENES[name]()
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        events = [event for said in scene.said for event in await events_of(scene.agent, said, hub)]
        started = [each.event_data for each in await log_of(scene.agent, hub, CALL_STARTED)]
    recorded = [f"{data['turn']}/{data['index']}" for data in started if "args" in data]
    told = [event.call_id for event in events if isinstance(event, ToolUsageEvent)]
    answered = [event.call_id for event in events if isinstance(event, ToolResponseEvent)]
    assert told == recorded
    assert len(set(told)) == len(told)
    assert sorted(answered) == sorted(told)
    for call_id in told:
        usage, response = [event for event in events if getattr(event, "call_id", "") == call_id]
        assert isinstance(usage, ToolUsageEvent)
        assert isinstance(response, ToolResponseEvent)
        assert (usage.agent, usage.tool) == (response.agent, response.tool)


def everybody(who: Agent) -> list[Agent]:
    """An agent, and all below it."""
    return [who, *(below for each in who.agents if isinstance(each, Agent) for below in everybody(each))]


@EVERY_SCENE
async def test_a_response_says_what_the_model_was_told(name: str) -> None:
    """Compared with what the last request of each turn says of its calls, in the order of their places."""
    scene = SCENES[name]()
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for said in scene.said:
            before = [len(asked(each)) for each in everybody(scene.agent)]
            events = await events_of(scene.agent, said, hub)
            made = [
                request
                for each, count in zip(everybody(scene.agent), before, strict=True)
                for request in asked(each)[count:]
            ]
            exchanges = [[item for item in request.exchange if isinstance(item, Answered)] for request in made]
            told = max(exchanges, key=len, default=[])
            responses = [event for event in events if isinstance(event, ToolResponseEvent)]
            responses.sort(key=lambda event: int(event.call_id.rpartition("/")[2]))
            found = [(event.tool, event.text, event.failed) for event in responses]
            assert found[: len(told)] == [(item.call.name, item.text, item.failed) for item in told]


# Tokens


def spoken(log: list[dict[str, object]]) -> list[str]:
    """What models said, by the journal, in order."""
    results = [data["result"] for data in log if "result" in data]
    return [text for result in results if isinstance(result, dict) and (text := result.get("text"))]


@EVERY_SCENE
async def test_tokens_are_what_models_say_each_under_the_name_of_who_says_it(name: str) -> None:
    scene = SCENES[name]()
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        events = [event for said in scene.said for event in await events_of(scene.agent, said, hub, tokens=True)]
        log = [each.event_data for each in await log_of(scene.agent, hub, "antiphon.call.finished")]
    runs = [list(run) for kind, run in groupby(events, type) if kind is TokenEvent]
    pieces = ["".join(token.text for token in run if isinstance(token, TokenEvent)) for run in runs]
    assert pieces == spoken(log)
    assert all(len({token.agent for token in run}) == 1 for run in runs)


async def test_tokens_of_everybody_s_own_calls_in_between() -> None:
    [turn] = await played("transfer_with_text", with_tokens)
    assert [line_of(event) for event in turn.events] == [
        'token support: "I "',
        'token support: "hand "',
        'token support: "you "',
        'token support: "over."',
        "tool_usage 6/support/1 support: transfer_to_billing {}",
        'tool_response 6/support/1 support: transfer_to_billing gave "Conversation transferred to billing."',
        'token billing: "You "',
        'token billing: "owe "',
        'token billing: "nothing."',
        'ai_message billing: "You owe nothing."',
        'final billing: "You owe nothing."',
    ]


# What a person is shown

MARKERS = (
    "SYSTEM PROMPT",
    "transfer_to_",
    "request_help",
    "Conversation transferred",
    "Ignored:",
    "support/",
    "__",
    "@",
)


@EVERY_SCENE
async def test_no_mark_of_the_machinery_is_in_anything_that_a_person_reads(name: str) -> None:
    shown = (AIMessageEvent, FinalStateEvent, TokenEvent)
    for turn in await played(name, with_tokens):
        texts = [event.text for event in turn.events if isinstance(event, shown)]
        assert [text for text in texts for marker in MARKERS if marker in text] == []


@EVERY_SCENE
async def test_usage_is_the_sum_over_everybody_who_was_asked(name: str) -> None:
    scene = SCENES[name]()
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        events = [event for said in scene.said for event in await events_of(scene.agent, said, hub)]
        channels = [row.channel_id for row in await hub.channels()]
        logs = [each.event_data for channel_id in channels for each in await hub.log(channel_id)]
    told = [event.usage for event in events if isinstance(event, FinalStateEvent)]
    replies = [data["result"] for data in logs if isinstance(data.get("result"), dict) and "calls" in data["result"]]  # type: ignore[operator]
    used = [msgspec.convert(reply, Reply).usage for reply in replies]
    assert sum(usage.input_tokens for usage in told) == sum(usage.input_tokens for usage in used)
    assert sum(usage.output_tokens for usage in told) == sum(usage.output_tokens for usage in used)
