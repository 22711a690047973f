"""Thinking before tool calls: returned to the model that thought, unchanged and within the turn; shown to nobody."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.models.anthropic import AnthropicModel as BridgedAnthropic
from pydantic_ai.providers.anthropic import AnthropicProvider

from antiphon import Agent, AnthropicModel, BridgedModel, Hub, TurnFailed, Usage, tool
from antiphon.agents.call_results import Reply, Thinking
from antiphon.agents.messages import MAX_THINKING_BYTES, interleave_thinking, thinking_in
from antiphon.core.codec import as_type
from tests.models.model_servers import Answer, Held, plain, serving, streamed
from tests.models.protocols import NAME, AnthropicWording, Speech
from tests.support.crashing_hubs import crashes

WORDING = AnthropicWording()
SECRET = "the customer is poor"
Blocks = list[dict[str, object]]


def thinking(number: int, words: str = SECRET) -> dict[str, object]:
    return {"type": "thinking", "thinking": f"{words} {number}", "signature": f"c2ln{number}=="}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def use(number: int, name: str = "add") -> dict[str, object]:
    given = {"a": number, "b": 1} if name == "add" else {}
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


REDACTED: dict[str, object] = {"type": "redacted_thinking", "data": f"{SECRET}=="}
FIRST: Blocks = [thinking(1), REDACTED, text("Let me "), thinking(2), text("see."), use(1), thinking(3), use(2)]
SECOND: Blocks = [thinking(4), use(3)]
USED = WORDING.usage(Usage(9, 3))
LAST = Speech(("All ", "done."))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def whole(blocks: Blocks) -> Answer:
    return plain(WORDING.frame(blocks, "tool_use", USED))


def in_events(blocks: Blocks) -> Answer:
    """The blocks as the provider streams them: text, thinking, signature and arguments in pieces."""
    events: Blocks = [{"type": "message_start", "message": WORDING.frame([], None, USED)}]
    for index, block in enumerate(blocks):
        match block["type"]:
            case "text":
                start, deltas = text(""), [{"type": "text_delta", "text": part} for part in str(block["text"])]
            case "thinking":
                start = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": part} for part in str(block["thinking"])]
                deltas += [{"type": "signature_delta", "signature": block["signature"]}]
            case "tool_use":
                start = {**block, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in json.dumps(block["input"])]
            case _:
                start, deltas = block, []
        events += WORDING.block(index, start, deltas)
    events += [
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USED},
        {"type": "message_stop"},
    ]
    return streamed([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events], size=64)


def asked_in(body: dict[str, object]) -> list[Blocks]:
    """The content of the messages of the assistant in a request."""
    return [message["content"] for message in body["messages"] if message["role"] == "assistant"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_it_goes_back_as_it_came(stream: bool) -> None:
    answer = in_events if stream else whole
    last = streamed(WORDING.events(LAST)) if stream else plain(WORDING.whole(LAST))
    async with (
        serving(answer(FIRST), answer(SECOND), last, plain(WORDING.whole(LAST))) as server,
        Hub.open("memory:") as hub,
    ):
        agent = Agent("adder", model=WORDING.model(server.url), tools=[add])
        events = [event async for event in agent.stream_invoke("Sums?", thread_id="t", hub=hub, tokens=stream)]
        await agent.invoke("And now?", thread_id="t", hub=hub)
        log = await hub.log(events[-1].channel_id)
    one, two, three, later = (request.body for request in server.requests[:4])
    assert asked_in(one) == []
    assert asked_in(two) == [FIRST]
    assert asked_in(three) == [FIRST, SECOND]
    assert asked_in(later) == [[text("All done.")]]
    assert SECRET not in repr(events)
    assert "".join(event.text for event in events if type(event).__name__ == "TokenEvent") == (
        "Let me see.All done." if stream else ""
    )
    shown = [each for each in log if each.event_type != "antiphon.call.finished"]
    assert SECRET not in json.dumps([each.event_data for each in shown])


async def test_a_turn_that_is_resumed_sends_it() -> None:
    held = Held()
    async with serving(whole(FIRST), held, plain(WORDING.whole(LAST))) as server, crashes() as place:
        await place.next_hub(WORDING.model(server.url), tools=[add])
        await place.open(text="Sums?")
        await server.until(lambda: len(server.requests) == 2)
        await place.next_hub(WORDING.model(server.url), tools=[add])
        assert await place.answered() == ["All done."]
        assert [asked_in(request.body) for request in server.requests[1:]] == [[FIRST], [FIRST]]
        assert server.requests[2].body == server.requests[1].body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_bridge_sends_it_back_as_it_came(stream: bool) -> None:
    answer = in_events if stream else whole
    last = streamed(WORDING.events(LAST)) if stream else plain(WORDING.whole(LAST))
    async with serving(answer(FIRST), last) as server, Hub.open("memory:") as hub:
        provider = AnthropicProvider(base_url=server.url, api_key="key")
        agent = Agent("adder", model=BridgedModel(BridgedAnthropic(NAME, provider=provider)), tools=[add])
        events = [event async for event in agent.stream_invoke("Sums?", hub=hub, tokens=stream)]
    assert events[-1].text == "All done.", events[-1]
    assert asked_in(server.requests[1].body) == [FIRST]
    assert SECRET not in repr(events)


async def test_another_model_does_not_get_it() -> None:
    over: Blocks = [thinking(1), use(1, "transfer_to_billing")]
    async with serving(whole(over), plain(WORDING.whole(LAST))) as server, Hub.open("memory:") as hub:
        other = AnthropicModel(f"{NAME}-small", base_url=server.url, api_key="k")
        billing = Agent("billing", model=other)
        reply = await Agent("lead", model=WORDING.model(server.url), agents=[billing]).invoke("Hi.", hub=hub)
    assert reply.text == "All done."
    assert asked_in(server.requests[1].body) == [[use(1, "transfer_to_billing")]]


async def test_it_is_not_kept_of_an_answer() -> None:
    async with serving(whole([thinking(1), text("Fine.")])) as server, Hub.open("memory:") as hub:
        reply = await Agent("adder", model=WORDING.model(server.url)).invoke("Hi.", hub=hub)
        log = await hub.log(reply.channel_id)
    assert reply.text == "Fine."
    assert SECRET not in json.dumps([each.event_data for each in log])


async def test_more_than_a_journal_keeps_is_an_error_that_says_so() -> None:
    huge = thinking(1, "x" * MAX_THINKING_BYTES)
    async with serving(whole([huge, use(1)])) as server, Hub.open("memory:") as hub:
        with pytest.raises(TurnFailed, match=f"the limit is {MAX_THINKING_BYTES}: give the model a smaller budget"):
            await Agent("adder", model=WORDING.model(server.url), tools=[add]).invoke("Hi.", hub=hub)


def test_a_reply_from_before_there_was_thinking_is_read() -> None:
    old = {"text": "Hm.", "calls": [{"name": "f", "args": {}, "call_id": "c"}], "usage": {}, "cut": False}
    assert not isinstance(as_type(old, Reply).thinking, Thinking)


@given(st.lists(st.sampled_from(["thinking", "text", "use"]), max_size=12))
def test_the_places_are_kept(kinds: list[str]) -> None:
    """Texts beside each other become one, and come before the calls behind them; nothing else moves."""
    blocks: Blocks = []
    for number, kind in enumerate(kinds):
        blocks.append({"thinking": thinking(number), "text": text(f"<{number}>"), "use": use(number)}[kind])
    found = thinking_in(blocks, "m")
    words = "".join(str(block["text"]) for block in blocks if block["type"] == "text")
    calls = [str(block["id"]) for block in blocks if block["type"] == "tool_use"]
    if not isinstance(found, Thinking):
        assert not calls or "thinking" not in kinds
        return
    parts = [part for part in interleave_thinking(found, words, calls) if part]
    assert "".join(part for part in parts if isinstance(part, str) and part.startswith("<")) == words
    assert [part for part in parts if part in calls] == calls
    thoughts = [block for block in blocks if block["type"] == "thinking"]
    assert [part for part in parts if isinstance(part, dict)] == thoughts
    before = {str(block["signature"]): blocks[: blocks.index(block)] for block in thoughts}
    for at, part in enumerate(parts):
        if isinstance(part, dict):
            expected = before[str(part["signature"])]
            assert [each for each in parts[:at] if each in calls] == [
                str(block["id"]) for block in expected if block["type"] == "tool_use"
            ]
