"""Traces: what a turn does, as OpenTelemetry spans.

Rule 1: names and figures only. No prompt, argument, result or error text is ever part of a span.
Rule 2: a turn is one trace, known by its channel and its name, so that an attempt after a crash, in any process,
        belongs to the same one. A call answered from the journal makes no span.
Rule 3: without a tracer set up, a turn pays for one look, and OpenTelemetry is not loaded.

The names are those of the semantic conventions for generative AI, written down here once. `plan`, one of
their operations, is not used.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from antiphon.agents.call_results import Call, Usage
from antiphon.agents.progress import MemberPath
from antiphon.core.codec import digest_of
from antiphon.core.state import State, Turn
from antiphon.hub.clock import DeadlineExceeded
from antiphon.hub.known_secrets import redact_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer, TracerProvider

    AttributeValue = str | int

TRACER_NAME = "antiphon"

INVOKE_AGENT = "invoke_agent"
INVOKE_WORKFLOW = "invoke_workflow"
CHAT_OPERATION = "chat"
EXECUTE_TOOL = "execute_tool"

OPERATION_ATTRIBUTE = "gen_ai.operation.name"
PROVIDER_ATTRIBUTE = "gen_ai.provider.name"
MODEL_ATTRIBUTE = "gen_ai.request.model"
AGENT_ATTRIBUTE = "gen_ai.agent.name"
WORKFLOW_ATTRIBUTE = "gen_ai.workflow.name"
CONVERSATION_ATTRIBUTE = "gen_ai.conversation.id"
INPUT_TOKENS_ATTRIBUTE = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS_ATTRIBUTE = "gen_ai.usage.output_tokens"
TOOL_ATTRIBUTE = "gen_ai.tool.name"
TOOL_CALL_ATTRIBUTE = "gen_ai.tool.call.id"
ERROR_ATTRIBUTE = "error.type"
TURN_ATTRIBUTE = "antiphon.turn.id"
SEQUENCE_ATTRIBUTE = "antiphon.sequence"
"""Where in its channel the turn was given."""
ATTEMPT_ATTRIBUTE = "antiphon.attempt"
"""Of a model call, which attempt at it; otherwise, which attempt at the turn. Counted from 1."""

OTEL_TRACE_MODULE = "opentelemetry.trace"
OTEL_PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"
ERROR_KINDS = {DeadlineExceeded: "timeout", asyncio.CancelledError: "cancelled"}


class CallSpan(Protocol):
    """The span of a call."""

    def used(self, usage: Usage) -> None:
        """Record the usage of a model."""
        ...

    def failed(self, kind: str) -> None:
        """Record that the call failed, for a reason of this name."""
        ...


class TurnTrace(Protocol):
    """The trace of a turn."""

    def model_call(self, path: MemberPath, model: object, *, attempt: int) -> AbstractContextManager[CallSpan]:
        """An attempt at asking a model."""
        ...

    def tool_call(self, path: MemberPath, call: Call) -> AbstractContextManager[CallSpan]:
        """A call of a tool."""
        ...

    def failed(self, kind: str) -> None:
        """The turn ends without an answer, for a reason of this name."""
        ...


class _NoCallSpan:
    def used(self, usage: Usage) -> None:
        """Do nothing."""

    def failed(self, kind: str) -> None:
        """Do nothing."""


_NO_CALL_SPAN: AbstractContextManager[CallSpan] = nullcontext(_NoCallSpan())


class NoTurnTrace:
    """The trace of a turn without tracing."""

    def model_call(self, path: MemberPath, model: object, *, attempt: int) -> AbstractContextManager[CallSpan]:
        return _NO_CALL_SPAN

    def tool_call(self, path: MemberPath, call: Call) -> AbstractContextManager[CallSpan]:
        return _NO_CALL_SPAN

    def failed(self, kind: str) -> None:
        """Do nothing."""


_NO_TURN_TRACE: AbstractContextManager[TurnTrace] = nullcontext(NoTurnTrace())


class _OtelCallSpan:
    """A span, as far as calls tell of themselves."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def used(self, usage: Usage) -> None:
        for key, field in ((INPUT_TOKENS_ATTRIBUTE, "input_tokens"), (OUTPUT_TOKENS_ATTRIBUTE, "output_tokens")):
            tokens = getattr(usage, field, None)  # what a model says of itself is checked later
            if isinstance(tokens, int):
                self._span.set_attribute(key, tokens)

    def failed(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute(ERROR_ATTRIBUTE, redact_text(kind))
        self._span.set_status(StatusCode.ERROR)


class OtelTurnTrace:
    """The spans of one attempt at a turn."""

    def __init__(self, tracer: Tracer, state: State, turn: Turn) -> None:
        self._tracer = tracer
        self._facts: dict[str, AttributeValue] = {
            CONVERSATION_ATTRIBUTE: state.channel_id,
            TURN_ATTRIBUTE: turn.turn_id,
            SEQUENCE_ATTRIBUTE: turn.sequence,
            ATTEMPT_ATTRIBUTE: turn.epoch + 1,
        }
        self._spans = ExitStack()
        self._outer: Span | None = None
        """The workflow that the turn is part of, if it is."""
        self._active: list[tuple[MemberPath, Span, ExitStack]] = []
        """The active agents, outermost first."""

    @contextmanager
    def start(self, lead: str, origin: SpanContext, *, workflow: str | None) -> Iterator[TurnTrace]:
        """The turn of the lead, in a workflow if it is part of one; all its spans end with this."""
        from opentelemetry import trace

        around = trace.get_current_span()
        links = [trace.Link(around.get_span_context())] if around.is_recording() else []
        context = trace.set_span_in_context(trace.NonRecordingSpan(origin))
        with self._spans:
            if workflow is not None:
                facts = {OPERATION_ATTRIBUTE: INVOKE_WORKFLOW, WORKFLOW_ATTRIBUTE: workflow, **self._facts}
                name = f"{INVOKE_WORKFLOW} {workflow}"
                self._outer = self._tracer.start_span(name, context, attributes=facts, links=links)
                self._spans.enter_context(_as_current_span(self._outer))
                context, links = trace.set_span_in_context(self._outer), []
            span = self._begin((lead,), context, links)
            self._spans.enter_context(_as_current_span(span))
            self._active.append(((lead,), span, self._spans))
            yield self

    def model_call(self, path: MemberPath, model: object, *, attempt: int) -> AbstractContextManager[CallSpan]:
        from opentelemetry.trace import SpanKind

        name, provider = model_label(model), getattr(model, "provider", None)
        facts: dict[str, AttributeValue] = {
            OPERATION_ATTRIBUTE: CHAT_OPERATION,
            MODEL_ATTRIBUTE: name,
            ATTEMPT_ATTRIBUTE: attempt,
        }
        if isinstance(provider, str):
            facts[PROVIDER_ATTRIBUTE] = provider
        return self._call(f"{CHAT_OPERATION} {name}", path, facts, kind=SpanKind.CLIENT)

    def tool_call(self, path: MemberPath, call: Call) -> AbstractContextManager[CallSpan]:
        from opentelemetry.trace import SpanKind

        facts: dict[str, AttributeValue] = {OPERATION_ATTRIBUTE: EXECUTE_TOOL, TOOL_ATTRIBUTE: call.name}
        if call.call_id:
            facts[TOOL_CALL_ATTRIBUTE] = call.call_id
        return self._call(f"{EXECUTE_TOOL} {call.name}", path, facts, kind=SpanKind.INTERNAL)

    def failed(self, kind: str) -> None:
        for span in (self._outer, *(span for _, span, _ in self._active)):
            if span is not None:
                _OtelCallSpan(span).failed(kind)

    def _call(
        self, name: str, path: MemberPath, facts: Mapping[str, AttributeValue], *, kind: SpanKind
    ) -> AbstractContextManager[CallSpan]:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._agent(path))
        attributes = {
            **self._facts,
            AGENT_ATTRIBUTE: path[-1],
            **{key: _redact_attribute(value) for key, value in facts.items()},
        }
        return _as_current_span(self._tracer.start_span(redact_text(name), context, kind, attributes))

    def _agent(self, path: MemberPath) -> Span:
        """The span of the active agent. Spans of agents it does not work for are ended."""
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

    def _begin(self, path: MemberPath, context: Context, links: list[Link]) -> Span:
        facts = {OPERATION_ATTRIBUTE: INVOKE_AGENT, AGENT_ATTRIBUTE: path[-1], **self._facts}
        return self._tracer.start_span(f"{INVOKE_AGENT} {path[-1]}", context, attributes=facts, links=links)


class TurnTracer:
    """Traces the turns of a hub, if the program has set up tracing."""

    def __init__(self) -> None:
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None

    def turn(self, state: State, turn: Turn, *, workflow: bool) -> AbstractContextManager[TurnTrace]:
        """The trace of an attempt at a turn, which begins and ends with this."""
        if OTEL_TRACE_MODULE not in sys.modules and OTEL_PROVIDER_VARIABLE not in os.environ:
            return _NO_TURN_TRACE
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return _NO_TURN_TRACE
        if self._tracer is None or provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer(TRACER_NAME)
        origin = _trace_origin(provider, state.channel_id, turn.turn_id)
        traced = OtelTurnTrace(self._tracer, state, turn)
        return traced.start(turn.speaker, origin, workflow=state.type if workflow else None)


def _trace_origin(provider: TracerProvider, channel_id: str, turn_id: str) -> SpanContext:
    """The remote parent of a turn's spans, the same in every process: its ids are derived from the turn's.

    The sampler decides as for any new trace, but by a trace id that is the same for every attempt, so that all
    attempts are sampled or none.
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
def _as_current_span(span: Span) -> Iterator[_OtelCallSpan]:
    """Make this the current span inside, and end it after. The text of an error is not recorded."""
    from opentelemetry.trace import use_span

    marked = _OtelCallSpan(span)
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield marked
    except BaseException as error:
        marked.failed(_error_kind(error))
        raise
    finally:
        span.end()


def _redact_attribute(value: AttributeValue) -> AttributeValue:
    """An attribute that a model or a user's code has part in, without secrets."""
    return redact_text(value) if isinstance(value, str) else value


def _error_kind(error: BaseException) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return str(status)
    return ERROR_KINDS.get(type(error)) or type(error).__name__


def model_label(model: object) -> str:
    """A model as it calls itself; otherwise, the function or the class that it is."""
    names = (getattr(model, "name", None), getattr(model, "__name__", None))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)
