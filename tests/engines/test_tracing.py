"""Traces by the real SDK: which spans a turn makes, how they hang together, and what they never tell."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from antiphon import (
    Agent,
    AgentTarget,
    FromSpeaker,
    Hub,
    Limits,
    Message,
    ModelUnavailable,
    Reply,
    Request,
    ScriptedModel,
    SummarisedTranscript,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnFailed,
    Usage,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import Mind, crashes
from tests.support.waiting import let_others_run, soon, wait_until

SECRET = "the-secret-words"


class Tracer:
    """What was exported."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans, in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self) -> list[str]:
        """The names of all spans, each indented below its parent, and before whatever began after that parent."""
        known = {context_of(span).span_id: span for span in self.spans}

        def place(span: ReadableSpan) -> tuple[int, ...]:
            parent = known.get(span.parent.span_id) if span.parent is not None else None
            return (*(place(parent) if parent is not None else ()), span.start_time or 0)

        return [f"{'  ' * (len(place(span)) - 1)}{span.name}" for span in sorted(known.values(), key=place)]


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def told(span: ReadableSpan, *keys: str) -> tuple[object, ...]:
    return tuple((span.attributes or {}).get(key) for key in keys)


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def traced(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    """A provider that is set up for one test. The global one can be set only once in a process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield Tracer(provider)
    provider.shutdown()


@tool
async def look(at: str) -> str:
    """Look."""
    with trace.get_tracer("mine").start_as_current_span("GET"):
        return f"{SECRET} at {at}"


@tool
def fall(at: str) -> str:
    """Fall."""
    trace.get_tracer("mine").start_span("in a thread of its own").end()
    raise RuntimeError(SECRET)


class Named:
    """A model that says what it is called."""

    provider, name = "acme", "acme-9"

    def __init__(self, *script: object) -> None:
        self._model = ScriptedModel(script)  # type: ignore[arg-type]  # as each test wants it

    async def __call__(self, request: Request) -> Reply:
        return await self._model(request)


async def ask(agent: Agent, *, advancing: bool = False) -> str:
    """Ask once, in a hub of its own; time passes, if it should. Where it was asked."""
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        asked = asyncio.create_task(agent.invoke(SECRET, thread_id="t", hub=hub))
        async with asyncio.timeout(5):
            while advancing and not asked.done():
                await let_others_run(5)
                clock.advance(0.25)
        return (await soon(asked)).channel_id


async def test_a_turn_is_an_agent_that_asks_its_model_and_calls_tools(traced: Tracer) -> None:
    model = Named(
        calls("look", {"at": SECRET}, call_id="c1", usage=Usage(11, 7)),
        [calls("look", {"at": "x"}, call_id="c2"), calls("fall", {"at": "x"}, call_id="c3")],
        says(SECRET, usage=Usage(20, 3)),
    )
    channel_id = await ask(Agent("bob", model=model, tools=[look, fall], system_prompt=SECRET))
    assert traced.tree() == [
        "invoke_agent bob",
        "  chat acme-9",
        "  execute_tool look",
        "    GET",
        "  chat acme-9",
        "  execute_tool look",
        "    GET",
        "  execute_tool fall",
        "    in a thread of its own",
        "  chat acme-9",
    ]
    [root] = traced.named("invoke_agent bob")
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "bob",
        "gen_ai.conversation.id": channel_id,
        "antiphon.turn.id": "6/bob",
        "antiphon.sequence": 6,
        "antiphon.attempt": 1,
    }
    first, _, last = traced.named("chat acme-9")
    assert dict(first.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "acme",
        "gen_ai.request.model": "acme-9",
        "gen_ai.agent.name": "bob",
        "gen_ai.conversation.id": channel_id,
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "antiphon.turn.id": "6/bob",
        "antiphon.sequence": 6,
        "antiphon.attempt": 1,
    }
    assert told(last, "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens") == (20, 3)
    assert (first.kind, root.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    one, two = traced.named("execute_tool look")
    about = ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.agent.name")
    assert told(one, *about) == ("execute_tool", "look", "c1", "bob")
    assert told(two, *about) == ("execute_tool", "look", "c2", "bob")
    [fallen] = traced.named("execute_tool fall")
    assert (fallen.status.status_code, *told(fallen, "error.type")) == (StatusCode.ERROR, "tool_error")
    assert {span.status.status_code for span in traced.spans if span is not fallen} == {StatusCode.UNSET}


async def test_nothing_that_anybody_said_is_part_of_a_trace(traced: Tracer) -> None:
    @tool
    async def loud(at: str) -> str:
        """Raise."""
        raise RuntimeError(SECRET)

    model = ScriptedModel([calls("loud", {"at": SECRET}), ModelUnavailable(SECRET), RuntimeError(SECRET)])
    with pytest.raises(TurnFailed):
        await ask(Agent("bob", model=model, tools=[loud], system_prompt=SECRET), advancing=True)
    assert len(traced.spans) == 5
    assert all(SECRET not in span.to_json() and not span.events for span in traced.spans)


async def test_a_secret_that_a_model_repeats_is_not_part_of_a_trace(traced: Tracer) -> None:
    secret = "sk-4f9c02ab71de4f9c02ab71de"
    model = ScriptedModel([calls("look", {"at": "it"}, call_id=f"call {secret}"), calls(secret), says("Done.")])
    await ask(Agent("support", model, tools=[look]))
    assert "***" in str([(span.name, dict(span.attributes or {})) for span in traced.spans])
    assert secret not in str([(span.name, dict(span.attributes or {})) for span in traced.spans])


async def test_every_attempt_at_a_model_is_a_span(traced: Tracer) -> None:
    model = Named(ModelUnavailable("busy", status=529), ModelUnavailable("gone"), "Here.")
    await ask(Agent("bob", model=model), advancing=True)
    assert traced.tree() == ["invoke_agent bob"] + ["  chat acme-9"] * 3
    attempts = traced.named("chat acme-9")
    assert [told(span, "antiphon.attempt", "error.type") for span in attempts] == [
        (1, "529"),
        (2, "ModelUnavailable"),
        (3, None),
    ]
    codes = [span.status.status_code for span in traced.spans]
    assert codes == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]


async def test_a_turn_that_fails_says_why(traced: Tracer) -> None:
    async def thinker(request: Request) -> Reply:
        await asyncio.Event().wait()
        return says("never")

    with pytest.raises(TurnFailed):
        await ask(Agent("bob", model=thinker, limits=Limits(model_seconds=1)), advancing=True)
    root, chat = traced.spans
    assert [(span.name, *told(span, "error.type")) for span in (root, chat)] == [
        ("invoke_agent bob", "model_timeout"),
        ("chat thinker", "timeout"),
    ]
    assert root.status.status_code == chat.status.status_code == StatusCode.ERROR
    assert (root.status.description, chat.status.description) == (None, None)


@pytest.mark.parametrize("usage", [None, Usage("3", 1)])  # type: ignore[arg-type]
async def test_a_usage_that_is_none_fails_the_turn_as_it_does_untraced(traced: Tracer, usage: Usage) -> None:
    async def odd(request: Request) -> Reply:
        return Reply("Hi.", usage=usage)

    with pytest.raises(TurnFailed, match="its reply cannot be recorded"):
        await ask(Agent("bob", model=odd))
    assert told(traced.spans[0], "error.type") == ("model_error",)


async def test_a_tool_that_takes_too_long_is_a_failure_of_its_own_kind(traced: Tracer) -> None:
    @tool(timeout=1)
    async def dream() -> str:
        """Dream."""
        await asyncio.Event().wait()
        return "never"

    await ask(Agent("bob", model=ScriptedModel([calls("dream"), "So."]), tools=[dream]), advancing=True)
    [dreamt] = traced.named("execute_tool dream")
    assert told(dreamt, "error.type") == ("timeout",)


async def test_a_summary_is_asked_for_in_a_span(traced: Tracer) -> None:
    async def sums_up(messages: list[Message]) -> str:
        return "much"

    memory = SummarisedTranscript(sums_up, recent_n=1)  # type: ignore[arg-type]  # a list is a sequence
    agent = Agent("bob", model=Named("one", "two"), memory=memory)
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for text in ("a", "b"):
            await soon(agent.invoke(text, thread_id="t", hub=hub))
    assert traced.tree() == ["invoke_agent bob", "  chat acme-9", "invoke_agent bob", "  chat sums_up", "  chat acme-9"]


# Teams and workflows


async def test_whoever_becomes_active_is_an_agent_below_whoever_it_works_for(traced: Tracer) -> None:
    refunds = Agent("refunds", model=ScriptedModel([calls("request_help", {"reason": "stuck"})]))
    billing = Agent(
        "billing",
        model=ScriptedModel([calls("transfer_to_refunds"), calls("request_help", {"reason": "x"})]),
        agents=[refunds],
    )
    model = ScriptedModel([calls("transfer_to_billing"), "So."])
    await ask(Agent("lead", model=model, agents=[billing]))
    assert traced.tree() == [
        "invoke_agent lead",
        "  chat ScriptedModel",
        "  execute_tool transfer_to_billing",
        "  invoke_agent billing",
        "    chat ScriptedModel",
        "    execute_tool transfer_to_refunds",
        "    invoke_agent refunds",
        "      chat ScriptedModel",
        "      execute_tool request_help",
        "    chat ScriptedModel",
        "    execute_tool request_help",
        "  chat ScriptedModel",
    ]
    assert len({context_of(span).trace_id for span in traced.spans}) == 1
    agents = [told(span, "gen_ai.agent.name")[0] for span in traced.spans]
    assert agents == ["lead"] * 3 + ["billing"] * 3 + ["refunds"] * 3 + ["billing"] * 2 + ["lead"]
    lead, below = traced.named("invoke_agent lead")[0], traced.named("invoke_agent billing")[0]
    last = traced.named("chat ScriptedModel")[-1]
    assert below.end_time is not None
    assert last.start_time is not None
    assert below.end_time <= last.start_time  # its work was done by then
    assert told(lead, "error.type") == (None,)


async def test_a_turn_in_a_workflow_is_part_of_one(traced: Tracer) -> None:
    graph = TransitionGraph(
        initial_speaker="dana",
        transitions=[
            Transition(FromSpeaker("dana"), AgentTarget("ann")),
            Transition(FromSpeaker("ann"), AgentTarget("bob")),
        ],
        default_target=TerminateTarget("done"),
    )
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for name in ("ann", "bob"):
            await hub.register(Agent(name, model=ScriptedModel([f"{name} was here"])))
        human = await hub.register("dana")
        knobs: dict[str, object] = {"graph": graph.to_dict()}
        channel = await human.open(type="workflow", target=["ann", "bob"], knobs=knobs)
        await channel.send("go")
        await soon(channel.closed())
    assert traced.tree() == [
        "invoke_workflow workflow",
        "  invoke_agent ann",
        "    chat ScriptedModel",
        "invoke_workflow workflow",
        "  invoke_agent bob",
        "    chat ScriptedModel",
    ]
    assert len({context_of(span).trace_id for span in traced.spans}) == 2
    assert {told(span, "gen_ai.conversation.id") for span in traced.spans} == {(channel.channel_id,)}
    about = ("gen_ai.operation.name", "gen_ai.workflow.name")
    assert told(traced.spans[0], *about) == ("invoke_workflow", "workflow")


# One trace for each turn


async def test_an_attempt_after_a_crash_belongs_to_the_same_trace(traced: Tracer) -> None:
    async with crashes() as place:
        mind = Mind(calls("look", {"at": "x"}))
        await place.next_hub(mind, tools=[look])
        await place.open()
        await wait_until(lambda: mind.thinks and len(mind.requests) == 2)
        assert traced.tree() == ["chat Mind", "execute_tool look", "  GET"]  # whoever died tells nothing more
        await place.next_hub(Mind(says("Done.")), tools=[look])
        await place.answered()
        await wait_until(lambda: len(traced.named("invoke_agent bob")) == 1)
        assert traced.tree()[3:] == ["invoke_agent bob", "  chat Mind"]  # what the journal knew makes no span
        assert len({context_of(span).trace_id for span in traced.spans}) == 1
        [root] = traced.named("invoke_agent bob")
        assert told(root, "antiphon.attempt") == (2,)


async def test_a_turn_is_one_trace_wherever_it_runs(traced: Tracer) -> None:
    agent = Agent("bob", model=ScriptedModel(["Hi."] * 4))
    for _ in range(2):
        async with Hub.open("memory:", clock=ManualClock()) as hub:
            for text in ("a", "b"):
                await soon(agent.invoke(text, thread_id="t", hub=hub))
    ids = [context_of(span).trace_id for span in traced.named("invoke_agent bob")]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    parents = [span.parent for span in traced.named("invoke_agent bob")]
    assert all(parent is not None and parent.is_remote for parent in parents)


async def test_a_turn_that_is_put_back_is_no_failure(traced: Tracer) -> None:
    async with crashes() as place:
        hub = await place.next_hub(ScriptedModel([ModelUnavailable("busy", retry_after=3600)]))
        await place.open()
        await place.until("call.retried")
        await hub.close()
        [root] = traced.named("invoke_agent bob")
        assert told(root, "error.type") == (None,)


async def test_what_goes_on_around_the_hub_is_linked(traced: Tracer) -> None:
    with trace.get_tracer("mine").start_as_current_span("around") as around:
        await ask(Agent("bob", model=ScriptedModel(["Hi."])))
    [root] = traced.named("invoke_agent bob")
    assert [link.context.span_id for link in root.links] == [around.get_span_context().span_id]
    assert context_of(root).trace_id != around.get_span_context().trace_id


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_the_sampler_that_is_set_up_decides(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ParentBased(TraceIdRatioBased(share))
    provider = TracerProvider(sampler=sampler)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    traced = Tracer(provider)
    agent = Agent("bob", model=ScriptedModel(["Hi."] * 40))
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        for number in range(40):
            await soon(agent.invoke("go", thread_id=str(number), hub=hub))
    spans = {"0.0": (0, 0), "0.5": (2 * 8, 2 * 32), "1.0": (80, 80)}[str(share)]
    assert spans[0] <= len(traced.spans) <= spans[1]
    assert len(traced.spans) % 2 == 0  # all of a turn, or nothing
    provider.shutdown()


async def test_a_turn_that_is_not_sampled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    traced = Tracer(provider)
    await ask(Agent("bob", model=ScriptedModel([calls("look", {"at": "x"}), "Hi."]), tools=[look]))
    assert traced.spans == []
    provider.shutdown()


# Without tracing

PROGRAM = dedent("""
    import asyncio, sys
    {before}
    from antiphon import Agent, Hub, ScriptedModel, calls, tool
    assert {loaded} or not any(name.startswith("opentelemetry") for name in sys.modules)

    @tool
    async def look() -> str:
        current = sys.modules.get("opentelemetry.trace")
        assert current is None or current.get_current_span() is current.INVALID_SPAN
        return "a cat"

    async def main():
        async with Hub.open("memory:") as hub:
            model = ScriptedModel([calls("look"), "A cat."])
            print((await Agent("bob", model=model, tools=[look]).invoke("What is there?", hub=hub)).text)

    asyncio.run(main())
    print(sorted(name for name in ("opentelemetry.trace", "opentelemetry.sdk") if name in sys.modules))
""")


@pytest.mark.parametrize(
    ("before", "loaded"), [("", []), ("import opentelemetry.trace", ["opentelemetry.trace"])], ids=["unloaded", "unset"]
)
def test_who_traces_nothing_loads_nothing(before: str, loaded: list[str]) -> None:
    program = PROGRAM.format(before=before, loaded=bool(loaded))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"A cat.\n{loaded}\n", "")
