"""Traces: what a turn does, as OpenTelemetry spans.

Rule 1: names and figures only. No prompt, argument, result or error text is ever part of a span.
Rule 2: a turn is one trace, known by its channel and its name, so that an attempt after a crash, in whatever process,
        belongs to the same one. What the journal answers makes no span.
Rule 3: whoever has set up no tracing pays for a look at it, once a turn. OpenTelemetry is not even loaded then.

The names are those of the semantic conventions for generative AI, written down here once. Their `plan` is left free.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from antiphon.agents.messages import Call, Usage
from antiphon.agents.progress import Path
from antiphon.core.codec import digest_of
from antiphon.core.state import State, Turn
from antiphon.engines.alarms import OutOfTime
from antiphon.hub.redacting import redacted

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer, TracerProvider

    Value = str | int

SCOPE = "antiphon"

INVOKE_AGENT = "invoke_agent"
INVOKE_WORKFLOW = "invoke_workflow"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
AGENT = "gen_ai.agent.name"
WORKFLOW = "gen_ai.workflow.name"
CONVERSATION = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
ERROR = "error.type"
TURN = "antiphon.turn.id"
SEQUENCE = "antiphon.sequence"
"""Where in its channel the turn was given."""
ATTEMPT = "antiphon.attempt"
"""Of a model call, which attempt at it; otherwise, which attempt at the turn. Counted from 1."""

API = "opentelemetry.trace"
BY_ENVIRONMENT = "OTEL_PYTHON_TRACER_PROVIDER"
FAILURES = {OutOfTime: "timeout", asyncio.CancelledError: "cancelled"}


class Marks(Protocol):
    """What is told of a call while it is under way."""

    def used(self, usage: Usage) -> None:
        """A model consumed this."""
        ...

    def failed(self, kind: str) -> None:
        """It came to nothing, for a reason of this name."""
        ...


class Trace(Protocol):
    """What is told of a turn."""

    def asking(self, path: Path, model: object, *, attempt: int) -> AbstractContextManager[Marks]:
        """An attempt at asking a model."""
        ...

    def calling(self, path: Path, call: Call) -> AbstractContextManager[Marks]:
        """A call of a tool."""
        ...

    def failed(self, kind: str) -> None:
        """The turn ends without an answer, for a reason of this name."""
        ...


class _Unmarked:
    def used(self, usage: Usage) -> None:
        """Nobody wants to know."""

    def failed(self, kind: str) -> None:
        """Nobody wants to know."""


_NOTHING: AbstractContextManager[Marks] = nullcontext(_Unmarked())


class Untraced:
    """The trace of a turn that nobody traces."""

    def asking(self, path: Path, model: object, *, attempt: int) -> AbstractContextManager[Marks]:
        return _NOTHING

    def calling(self, path: Path, call: Call) -> AbstractContextManager[Marks]:
        return _NOTHING

    def failed(self, kind: str) -> None:
        """Nobody wants to know."""


_UNTRACED: AbstractContextManager[Trace] = nullcontext(Untraced())


class _Marked:
    """A span, as far as calls tell of themselves."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def used(self, usage: Usage) -> None:
        for key, field in ((INPUT_TOKENS, "input_tokens"), (OUTPUT_TOKENS, "output_tokens")):
            tokens = getattr(usage, field, None)  # what a model says of itself is checked later
            if isinstance(tokens, int):
                self._span.set_attribute(key, tokens)

    def failed(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute(ERROR, redacted(kind))
        self._span.set_status(StatusCode.ERROR)


class Traced:
    """The spans of one attempt at a turn."""

    def __init__(self, tracer: Tracer, state: State, turn: Turn) -> None:
        self._tracer = tracer
        self._facts: dict[str, Value] = {
            CONVERSATION: state.channel_id,
            TURN: turn.turn_id,
            SEQUENCE: turn.sequence,
            ATTEMPT: turn.epoch + 1,
        }
        self._spans = ExitStack()
        self._outer: Span | None = None
        """The workflow that the turn is part of, if it is."""
        self._active: list[tuple[Path, Span, ExitStack]] = []
        """Who is active, and by whom it was made so, outermost first."""

    @contextmanager
    def begun(self, lead: str, origin: SpanContext, *, workflow: str | None) -> Iterator[Trace]:
        """The turn of whoever was asked, in a workflow if it is part of one; all of it ends with this."""
        from opentelemetry import trace

        around = trace.get_current_span()
        links = [trace.Link(around.get_span_context())] if around.is_recording() else []
        context = trace.set_span_in_context(trace.NonRecordingSpan(origin))
        with self._spans:
            if workflow is not None:
                facts = {OPERATION: INVOKE_WORKFLOW, WORKFLOW: workflow, **self._facts}
                name = f"{INVOKE_WORKFLOW} {workflow}"
                self._outer = self._tracer.start_span(name, context, attributes=facts, links=links)
                self._spans.enter_context(_current(self._outer))
                context, links = trace.set_span_in_context(self._outer), []
            span = self._begin((lead,), context, links)
            self._spans.enter_context(_current(span))
            self._active.append(((lead,), span, self._spans))
            yield self

    def asking(self, path: Path, model: object, *, attempt: int) -> AbstractContextManager[Marks]:
        from opentelemetry.trace import SpanKind

        name, provider = _named(model), getattr(model, "provider", None)
        facts: dict[str, Value] = {OPERATION: CHAT, MODEL: name, ATTEMPT: attempt}
        if isinstance(provider, str):
            facts[PROVIDER] = provider
        return self._call(f"{CHAT} {name}", path, facts, kind=SpanKind.CLIENT)

    def calling(self, path: Path, call: Call) -> AbstractContextManager[Marks]:
        from opentelemetry.trace import SpanKind

        facts: dict[str, Value] = {OPERATION: EXECUTE_TOOL, TOOL: call.name}
        if call.call_id:
            facts[TOOL_CALL] = call.call_id
        return self._call(f"{EXECUTE_TOOL} {call.name}", path, facts, kind=SpanKind.INTERNAL)

    def failed(self, kind: str) -> None:
        for span in (self._outer, *(span for _, span, _ in self._active)):
            if span is not None:
                _Marked(span).failed(kind)

    def _call(
        self, name: str, path: Path, facts: Mapping[str, Value], *, kind: SpanKind
    ) -> AbstractContextManager[Marks]:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._agent(path))
        attributes = {**self._facts, AGENT: path[-1], **{key: _safe(value) for key, value in facts.items()}}
        return _current(self._tracer.start_span(redacted(name), context, kind, attributes))

    def _agent(self, path: Path) -> Span:
        """The span of whoever is active now. Those that it does not work for are over."""
        from opentelemetry.trace import set_span_in_context

        while path[: len(self._active[-1][0])] != self._active[-1][0]:
            self._active.pop()[2].close()
        above, span, _ = self._active[-1]
        if above != path:
            span = self._begin(path, set_span_in_context(span), [])
            ends = self._spans.enter_context(ExitStack())
            ends.callback(span.end)
            self._active.append((path, span, ends))
        return span

    def _begin(self, path: Path, context: Context, links: list[Link]) -> Span:
        facts = {OPERATION: INVOKE_AGENT, AGENT: path[-1], **self._facts}
        return self._tracer.start_span(f"{INVOKE_AGENT} {path[-1]}", context, attributes=facts, links=links)


class Tracing:
    """Traces the turns of a hub, if whoever runs the program has set that up."""

    def __init__(self) -> None:
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None

    def turn(self, state: State, turn: Turn, *, workflow: bool) -> AbstractContextManager[Trace]:
        """The trace of an attempt at a turn, which begins and ends with this."""
        if API not in sys.modules and BY_ENVIRONMENT not in os.environ:
            return _UNTRACED
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return _UNTRACED
        if self._tracer is None or provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer(SCOPE)
        origin = _origin(provider, state.channel_id, turn.turn_id)
        traced = Traced(self._tracer, state, turn)
        return traced.begun(turn.speaker, origin, workflow=state.type if workflow else None)


def _origin(provider: TracerProvider, channel_id: str, turn_id: str) -> SpanContext:
    """Where the trace of a turn comes from, whoever runs it: a span that is nowhere, made of its names.

    Whether it is sampled is for the sampler to say that is set up, as of any trace that begins; but by a name that is
    the same for every attempt, so that they are all sampled or none.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, TraceFlags

    digest = digest_of(["trace", channel_id, turn_id])
    trace_id, span_id = int(digest[:32], 16), int(digest[32:48], 16)
    sampler = getattr(provider, "sampler", None)
    sampled = sampler is None or sampler.should_sample(Context(), trace_id, INVOKE_AGENT).decision.is_sampled()
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)


@contextmanager
def _current(span: Span) -> Iterator[_Marked]:
    """Make this the span that whatever is done inside belongs to, and end it with that. What is raised is not told."""
    from opentelemetry.trace import use_span

    marked = _Marked(span)
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield marked
    except BaseException as error:
        marked.failed(_kind(error))
        raise
    finally:
        span.end()


def _safe(value: Value) -> Value:
    """An attribute that a model or a user's code has part in, without secrets."""
    return redacted(value) if isinstance(value, str) else value


def _kind(error: BaseException) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return str(status)
    return FAILURES.get(type(error)) or type(error).__name__


def _named(model: object) -> str:
    """A model as it calls itself; otherwise, the function or the class that it is."""
    names = (getattr(model, "name", None), getattr(model, "__name__", None))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)
