"""Asking an agent on a thread: answers, events, limits, threads that know nothing of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    DEFAULT_TOOLS,
    EV_TEXT,
    Agent,
    AIMessageEvent,
    Channel,
    Denied,
    FinalStateEvent,
    Finish,
    Handoff,
    Hub,
    Limits,
    Reply,
    Request,
    ScriptedModel,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    TurnChannel,
    TurnFailed,
    Usage,
    UsageError,
    WindowedSummary,
    calls,
    delete_context,
    says,
    set_context,
    tool,
)
from antiphon.core.events import EV_CHANNEL_PAUSED
from antiphon.engines import environment
from antiphon.engines.local import LocalEngine
from antiphon.store.memory_store import MemoryStore
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run, soon


async def echo(request: Request) -> Reply:
    """Answers the last message with itself."""
    return says(f"re: {request.messages[-1].text}")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def test_an_answer_says_what_who_and_how_much(hub: Hub) -> None:
    model = ScriptedModel([calls("add", {"a": 1, "b": 2}), says("3", usage=Usage(5, 1))])
    agent = Agent("bob", model=model, system_prompt="Be brief.", tools=[add])
    reply = await agent.invoke("1+2?", thread_id="t", hub=hub)
    first = model.requests[0]
    assert (reply.text, reply.agent, reply.stopped) == ("3", "bob", None)
    assert reply.usage.input_tokens > 5
    assert (first.system, first.messages) == ("Be brief.\n\nCurrent date: 2026-01-01", [("user", "1+2?")])
    assert first.tools == ["add", *DEFAULT_TOOLS[:4]]
    assert model.requests[1].messages == [("user", "1+2?"), ("assistant", ""), ("tool", "3")]


async def test_a_thread_remembers_and_another_does_not(hub: Hub) -> None:
    model = ScriptedModel(["one", "two", "three"])
    agent = Agent("bob", model=model)
    one = await agent.invoke("a", thread_id="x", hub=hub)
    await agent.invoke("b", thread_id="y", hub=hub)
    again = await agent.invoke("c", thread_id="x", hub=hub)
    assert one.channel_id == again.channel_id
    assert [request.messages for request in model.requests] == [
        [("user", "a")],
        [("user", "b")],
        [("user", "a"), ("assistant", "one"), ("user", "c")],
    ]


async def test_without_a_thread_id_every_message_begins_a_new_thread(hub: Hub) -> None:
    agent = Agent("bob", model=echo)
    one, other = [await agent.invoke("a", hub=hub) for _ in range(2)]
    assert one.channel_id != other.channel_id


async def test_twenty_simultaneous_messages_on_one_thread(hub: Hub) -> None:
    agent = Agent("bob", model=echo)
    replies = await soon(asyncio.gather(*(agent.invoke(f"m{n}", thread_id="t", hub=hub) for n in range(20))))
    assert [reply.text for reply in replies] == [f"re: m{n}" for n in range(20)]
    log = await hub.log(replies[0].channel_id)
    said = [envelope for envelope in log if envelope.event_type == EV_TEXT]
    assert len(said) == 40
    assert EV_CHANNEL_PAUSED not in {envelope.event_type for envelope in log}
    places = {envelope.envelope_id: envelope for envelope in said}
    for answer in (envelope for envelope in said if envelope.sender_id == "bob"):
        message = places[answer.causation_id or ""]
        assert answer.event_data["text"] == f"re: {message.event_data['text']}"
        assert answer.sequence > message.sequence


async def test_messages_that_wait_are_answered_one_after_the_other_as_if_they_had_come_so(hub: Hub) -> None:
    """While the first is answered two more come; each turn sees those before it with their answers."""
    seen: list[list[tuple[str, str]]] = []
    gate, inside = asyncio.Event(), 0

    async def model(request: Request) -> Reply:
        nonlocal inside
        inside += 1
        assert inside == 1, "a speaker takes one turn at a time"
        seen.append(list(request.messages))
        await gate.wait()
        inside -= 1
        return says(f"re: {request.messages[-1].text}")

    agent = Agent("bob", model=model)
    work = [asyncio.create_task(agent.invoke(text, thread_id="t", hub=hub)) for text in "abc"]
    async with asyncio.timeout(5):
        while len(await hub.channels()) == 0 or not seen:
            await let_others_run(1)
    gate.set()
    assert [reply.text for reply in await soon(asyncio.gather(*work))] == ["re: a", "re: b", "re: c"]
    assert seen[-1] == [("user", "a"), ("assistant", "re: a"), ("user", "b"), ("assistant", "re: b"), ("user", "c")]


async def test_two_threads_never_see_each_other(hub: Hub) -> None:
    seen: dict[str, set[str]] = {"x": set(), "y": set()}

    async def model(request: Request) -> Reply:
        await let_others_run(3)
        mine = request.messages[-1].text[0]
        seen[mine] |= {message.text for message in request.messages}
        return says(f"{mine} answer")

    agent = Agent("bob", model=model)
    asked = (agent.invoke(f"{key}{n}", thread_id=key, hub=hub) for n in range(10) for key in "xy")
    await soon(asyncio.gather(*asked))
    assert {text[0] for text in seen["x"]} == {"x"}
    assert {text[0] for text in seen["y"]} == {"y"}


async def test_events_of_a_turn_in_order_with_the_final_one_last(hub: Hub) -> None:
    model = ScriptedModel([[calls("add", {"a": 1, "b": 2}), calls("add", {"a": "x"})], says("3")])
    agent = Agent("bob", model=model, tools=[add])
    events = [event async for event in agent.stream_invoke("1+2?", thread_id="t", hub=hub)]
    kinds = [type(event) for event in events]
    assert sorted(kinds[:4], key=str) == [ToolResponseEvent] * 2 + [ToolUsageEvent] * 2
    assert kinds[4:] == [AIMessageEvent, FinalStateEvent]
    used = [event for event in events if isinstance(event, ToolUsageEvent)]
    answered = {event.call_id: event for event in events if isinstance(event, ToolResponseEvent)}
    by_args = {str(event.args): answered[event.call_id] for event in used}
    assert by_args["{'a': 1, 'b': 2}"].text == "3"
    assert by_args["{'a': 'x'}"].failed
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, final.stopped) == ("3", None)


async def test_tokens_come_in_pieces_before_the_whole_and_are_not_recorded(hub: Hub) -> None:
    agent = Agent("bob", model=ScriptedModel(["one two three"]))
    events = [event async for event in agent.stream_invoke("count", thread_id="t", hub=hub, tokens=True)]
    pieces = [event.text for event in events if isinstance(event, TokenEvent)]
    assert len(pieces) == 3
    assert "".join(pieces) == "one two three"
    assert [type(event) for event in events[3:]] == [AIMessageEvent, FinalStateEvent]
    (row,) = await hub.channels()
    said = [envelope.event_data.get("text") for envelope in await hub.log(row.channel_id)]
    assert [text for text in said if text] == ["count", "one two three"]


async def test_a_failed_turn_raises_and_the_thread_goes_on(hub: Hub) -> None:
    agent = Agent("bob", model=ScriptedModel([RuntimeError("no capacity"), "fine"]))
    with pytest.raises(TurnFailed, match="no capacity") as caught:
        await agent.invoke("a", thread_id="t", hub=hub)
    assert caught.value.reason == "model_error"
    assert (await agent.invoke("b", thread_id="t", hub=hub)).text == "fine"


async def test_a_failed_turn_ends_a_stream_with_its_reason(hub: Hub) -> None:
    agent = Agent("bob", model=ScriptedModel([RuntimeError("no capacity")]))
    events = [event async for event in agent.stream_invoke("a", thread_id="t", hub=hub)]
    assert [(type(event), getattr(event, "stopped", "")) for event in events] == [(FinalStateEvent, "model_error")]


async def test_a_limit_is_a_result_with_what_there_is(hub: Hub) -> None:
    script = [calls("add", {"a": 1, "b": n}, text=f"step {n}") for n in range(5)]
    agent = Agent("bob", model=ScriptedModel(script), tools=[add], limits=Limits(model_calls=3))
    reply = await agent.invoke("go", thread_id="t", hub=hub)
    assert (reply.text, reply.stopped) == ("step 2", "max_model_calls")


async def test_an_empty_reply_is_recorded_and_named(hub: Hub) -> None:
    reply = await Agent("bob", model=ScriptedModel([says("")])).invoke("go", hub=hub)
    assert (reply.text, reply.stopped) == ("", "empty_reply")
    said = [envelope for envelope in await hub.log(reply.channel_id) if envelope.sender_id == "bob"]
    assert said[-1].event_data == {"text": "", "stopped": "empty_reply"}


async def test_tools_read_and_write_the_context_with_the_turn(hub: Hub) -> None:
    seen = []

    @tool
    async def note(channel, context: dict[str, object], key: str) -> str:  # type: ignore[no-untyped-def]  # injected
        """Note something."""
        seen.append((dict(context), channel.channel_id))
        await set_context(channel, **{key: True})
        delete_context(channel, "old")
        return "noted"

    model = ScriptedModel([calls("note", {"key": "a"}), calls("note", {"key": "b"}), "done"])
    reply = await Agent("bob", model=model, tools=[note]).invoke("go", thread_id="t", hub=hub)
    assert [context for context, _ in seen] == [{}, {"a": True}]
    assert {channel_id for _, channel_id in seen} == {reply.channel_id}
    log = await hub.log(reply.channel_id)
    assert [envelope.event_type for envelope in log[-2:]] == ["ag2.context.set", EV_TEXT]
    assert log[-2].event_data == {"set": {"a": True, "b": True}, "delete": ["old"]}
    assert log[-2].sender_id == "bob"


async def test_finish_closes_the_thread_and_a_handoff_has_nowhere_to_go(hub: Hub) -> None:
    @tool
    def leave() -> Finish:
        """Say goodbye."""
        return Finish("all done")

    @tool
    def pass_on() -> Handoff:
        """Give it to somebody else."""
        return Handoff("carol")

    model = ScriptedModel([calls("pass_on"), calls("leave", text="Bye.")])
    agent = Agent("bob", model=model, tools=[leave, pass_on])
    reply = await agent.invoke("go", thread_id="t", hub=hub)
    assert "conversation" in model.requests[1].messages[-1].text
    (row,) = await hub.channels()
    assert (reply.text, row.status, row.close_reason) == ("Bye.", "closed", "all done")


async def test_a_prompt_may_be_a_function_of_what_was_said(hub: Hub) -> None:
    model = ScriptedModel(["x", "y"])

    async def prompt(messages: object) -> str:
        return f"{len(list(messages))} so far"  # type: ignore[call-overload]  # a sequence of messages

    agent = Agent("bob", model=model, system_prompt=prompt)
    await agent.invoke("a", thread_id="t", hub=hub)
    await agent.invoke("b", thread_id="t", hub=hub)
    assert [request.system.splitlines()[0] for request in model.requests] == ["1 so far", "3 so far"]


async def test_memory_bounds_what_is_shown(hub: Hub) -> None:
    model = ScriptedModel([str(n) for n in range(5)])
    agent = Agent("bob", model=model, memory=WindowedSummary(2))
    for text in "abc":
        await agent.invoke(text, thread_id="t", hub=hub)
    assert model.requests[-1].messages == [
        ("user", "[3 earlier messages not shown]"),
        ("assistant", "1"),
        ("user", "c"),
    ]


async def test_an_agent_is_invoked_whose_turns_run_here(hub: Hub) -> None:
    agent = Agent("bob", model=echo)
    await hub.register(agent)
    assert (await agent.invoke("a", hub=hub)).text == "re: a"
    with pytest.raises(UsageError, match="another agent is registered as 'bob'"):
        await Agent("bob", model=ScriptedModel(["x"])).invoke("a", hub=hub)
    await hub.register("carol")
    with pytest.raises(UsageError, match="somebody whom code drives"):
        await Agent("carol", model=echo).invoke("a", hub=hub)


@pytest.mark.parametrize("thread_id", [7, "", "\ud800", b"t"])
async def test_a_thread_id_is_a_text(hub: Hub, thread_id: object) -> None:
    with pytest.raises(UsageError, match="thread_id"):
        await Agent("bob", model=echo).invoke("a", thread_id=thread_id, hub=hub)  # type: ignore[arg-type]  # on purpose


async def test_a_hub_is_a_hub() -> None:
    with pytest.raises(UsageError, match="hub is 'memory:'"):
        await Agent("bob", model=echo).invoke("a", hub="memory:")  # type: ignore[arg-type]  # on purpose


async def test_a_user_of_another_kind_stays_what_it_is(hub: Hub) -> None:
    await hub.register("user", kind="service")
    reply = await Agent("bob", model=echo).invoke("a", hub=hub)
    created = (await hub.log(reply.channel_id))[0]
    assert created.event_data["participants"][0] == {"name": "user", "kind": "service"}  # type: ignore[index]  # a list


def test_without_a_hub_a_thread_lives_as_long_as_the_process() -> None:
    model = ScriptedModel(["one", "two"])
    agent = Agent("forgetful", model=model)
    for text in ("a", "b"):  # in two event loops, one after the other
        asyncio.run(agent.invoke(text, thread_id="kept"))
    assert model.requests[1].messages == [("user", "a"), ("assistant", "one"), ("user", "b")]


def test_the_store_that_the_environment_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", f"sqlite:///{tmp_path / 'team.db'}")
    model = ScriptedModel(["one", "two", "three"])
    agent = Agent("bob", model=model)

    async def three() -> None:
        await agent.invoke("a", thread_id="t")
        await asyncio.gather(*(agent.invoke(text, thread_id="t") for text in "bc"))

    asyncio.run(three())
    assert len(model.requests[2].messages) == 5
    assert (tmp_path / "team.db").exists()


async def test_a_store_that_cannot_be_used_is_an_error_not_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(Exception, match="PostgreSQL"):
        await Agent("bob", model=echo).invoke("a")


async def test_closing_the_hub_tells_whoever_waits() -> None:
    started, never = asyncio.Event(), asyncio.Event()

    async def model(request: Request) -> Reply:
        started.set()
        await never.wait()
        return says("never")

    clock = ManualClock()
    store = MemoryStore(clock=clock)
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    waiting = asyncio.create_task(Agent("bob", model=model).invoke("a", hub=hub))
    await soon(started.wait())
    closing = asyncio.create_task(hub.close())
    with pytest.raises(UsageError, match="closed while the agent was answering"):
        await soon(waiting)
    never.set()
    await soon(closing)


async def test_asked_again_with_the_same_id_nothing_is_said_twice(hub: Hub) -> None:
    model = ScriptedModel([calls("add", {"a": 1, "b": 2}), "three", "other"])
    agent = Agent("bob", model=model, tools=[add])
    first, again = [await agent.invoke("1+2?", thread_id="t", hub=hub, message_id="m") for _ in range(2)]
    assert (first.text, again) == ("three", first)
    events = [event async for event in agent.stream_invoke("1+2?", thread_id="t", hub=hub, message_id="m")]
    assert [type(event).__name__ for event in events] == [
        "ToolUsageEvent",
        "ToolResponseEvent",
        "AIMessageEvent",
        "FinalStateEvent",
    ]
    assert model.left == 1
    with pytest.raises(Denied, match="conflict"):
        await agent.invoke("something else", thread_id="t", hub=hub, message_id="m")


async def test_tokens_come_after_what_was_told_before_their_call(hub: Hub) -> None:
    model = ScriptedModel([calls("add", {"a": 1, "b": 2}, text="let me see"), "it is three"])
    agent = Agent("bob", model=model, tools=[add])
    events = [event async for event in agent.stream_invoke("1+2?", thread_id="t", hub=hub, tokens=True)]
    told = ["".join(kind.__name__.removesuffix("Event")) for kind in map(type, events)]
    assert told == ["Token"] * 3 + ["ToolUsage", "ToolResponse"] + ["Token"] * 3 + ["AIMessage", "FinalState"]


async def test_a_turn_that_waits_for_a_person_says_so(hub: Hub) -> None:
    @tool(idempotency="unsafe", timeout=5)
    async def launch() -> str:
        """Launch it."""
        await asyncio.Event().wait()
        return "launched"

    model = ScriptedModel([calls("launch"), "It flies.", "That too."])
    agent = Agent("bob", model=model, tools=[launch])
    asked = asyncio.create_task(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    clock = hub.core.clock
    assert isinstance(clock, ManualClock)
    async with asyncio.timeout(5):
        while not model.requests:
            await let_others_run(1)
    await let_others_run(20)
    await clock.advance(6)
    with pytest.raises(TurnFailed, match=r"launch: .*channel.settle\('6/bob', 1") as caught:
        await soon(asked)
    assert caught.value.reason == "in_doubt"
    with pytest.raises(TurnFailed, match=r"launch: .*channel.settle"):
        await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    with pytest.raises(UsageError, match="index is '1'"):
        await (await agent.channel("t", hub)).settle("6/bob", "1", again=True)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TurnFailed, match=r"in_doubt.*call 1 of an earlier turn"):
        await soon(agent.invoke("and this?", thread_id="t", hub=hub))
    channel = await agent.channel("t", hub)
    await channel.settle("6/bob", 1, result="launched")
    assert (await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))).text == "It flies."


async def test_a_hub_that_runs_no_turns_does_not_let_anybody_wait() -> None:
    async with Hub.open("memory:", engine=None) as hub:
        with pytest.raises(UsageError, match="engine=None"):
            await Agent("bob", model=echo).invoke("a", hub=hub)


async def test_an_option_that_does_not_exist_is_refused(hub: Hub) -> None:
    with pytest.raises(UsageError, match="no option is called 'thread'"):
        async for _ in Agent("bob", model=echo).stream_invoke("a", thread="t", hub=hub):  # type: ignore[call-arg]
            pass


async def test_inside_a_tool_the_channel_says_what_it_has(hub: Hub) -> None:
    @tool
    async def shout(channel: Channel) -> str:
        """Shout."""
        await channel.send("hey")
        return "done"

    model = ScriptedModel([calls("shout"), "I cannot."])
    await Agent("bob", model=model, tools=[shout]).invoke("go", hub=hub)
    assert "inside a tool the channel has no 'send'" in model.requests[1].messages[-1].text


async def test_whoever_listens_to_one_turn_hears_no_other(hub: Hub) -> None:
    agent = Agent("bob", model=ScriptedModel(["one two", "three four"]))

    async def heard(text: str) -> list[str]:
        events = agent.stream_invoke(text, thread_id="t", hub=hub, tokens=True)
        return [event.text async for event in events if isinstance(event, TokenEvent)]

    assert await soon(asyncio.gather(heard("a"), heard("b"))) == [["one ", "two"], ["three ", "four"]]


async def test_a_thread_is_looked_at_in_an_open_hub() -> None:
    with pytest.raises(UsageError, match="hub is None"):
        await Agent("bob", model=echo).channel("t", None)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("text", [None, 3, b"x"])
async def test_what_is_said_is_a_text_and_nothing_is_opened_for_what_is_not(hub: Hub, text: object) -> None:
    with pytest.raises(UsageError, match="text is "):
        await Agent("bob", model=echo).invoke(text, hub=hub)  # type: ignore[arg-type]  # on purpose
    assert await hub.channels() == []


async def test_an_agent_is_not_the_user(hub: Hub) -> None:
    with pytest.raises(UsageError, match="'user' is whoever speaks to an agent"):
        await Agent("user", model=echo).invoke("a", hub=hub)


async def test_a_hub_that_is_not_open_yet_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="await it, or use `async with`"):
        await Agent("bob", model=echo).invoke("a", hub=Hub.open("memory:"))  # type: ignore[arg-type]  # on purpose


def test_a_hub_of_another_event_loop_says_so() -> None:
    async def opened() -> Hub:
        return await Hub.open("memory:")

    hub = asyncio.run(opened())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(Agent("bob", model=echo).invoke("a", hub=hub))


async def test_the_same_agent_declared_again_is_the_same(hub: Hub) -> None:
    def price(item: str) -> int:
        """What it costs."""
        return 3

    for _ in range(2):
        assert (await Agent("bob", model=echo, tools=[price]).invoke("a", hub=hub)).text == "re: a"


async def test_a_tool_that_wants_to_exit_is_told_to_the_model(hub: Hub) -> None:
    @tool
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    model = ScriptedModel([calls("leave"), "I stay."])
    assert (await soon(Agent("bob", model=model, tools=[leave]).invoke("go", hub=hub))).text == "I stay."
    assert model.requests[1].messages[-1].text == "SystemExit: 3"


async def test_a_channel_kept_after_its_call_takes_nothing_more(hub: Hub) -> None:
    kept = []

    @tool
    async def keep(channel: TurnChannel) -> str:
        """Keep it."""
        kept.append(channel)
        return "kept"

    model = ScriptedModel([calls("keep"), "done"])
    await soon(Agent("bob", model=model, tools=[keep]).invoke("go", hub=hub))
    with pytest.raises(UsageError, match="the call is over"):
        set_context(kept[0], a=1)


async def test_what_is_remembered_of_threads_is_bounded_and_read_again_when_needed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MAX_CACHED_HISTORIES", 2)
    monkeypatch.setattr(environment, "HISTORY_READS_PER_TIDY", 1)
    monkeypatch.setattr(environment, "MAX_CACHED_HISTORY_CHARS", 10)
    model = ScriptedModel([f"answer {number}" for number in range(8)])
    agent = Agent("bob", model=model)
    for text in ("a", "b"):
        for key in "xyz":
            await agent.invoke(f"{text} in {key}", thread_id=key, hub=hub)
    assert model.requests[-1].messages == [("user", "a in z"), ("assistant", "answer 2"), ("user", "b in z")]
