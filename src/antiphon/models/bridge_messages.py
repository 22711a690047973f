"""Requests, replies and failures, between our words and those of pydantic-ai.

Rule 1: a request is sent as it is: the system's text first, what was said before, what was exchanged in this turn.
        Only the ids of calls are made fit, for another model of the team may have given them, or none.
Rule 2: of an answer, what was said and what is called for is kept. Thinking is no text; what the provider signed and
        wants back within the turn is returned to the same model as it came, and all other thinking is left out.
Rule 3: a failure says whether asking again may help. What is not known here is raised as it came.

This module loads pydantic-ai; `bridge` loads this module when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Literal, cast

import httpx2
from msgspec import UnsetType
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from antiphon.agents.arguments import written_call
from antiphon.agents.messages import (
    NO_USAGE,
    Answered,
    Asked,
    Call,
    Exchange,
    Reply,
    Request,
    ToolSpec,
    Usage,
)
from antiphon.agents.thinking import Thinking, thinking_in, with_thinking
from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import AntiphonError, ModelRefused, ModelUnavailable, ReplyMalformed, UsageError
from antiphon.core.events import Json
from antiphon.core.views import Message
from antiphon.models.exchange import identified
from antiphon.models.faults import PASSING, short, wait_told, words_of

ADVERTISED = " To try Pydantic AI"
"""Where a message goes on about something that is of no use here."""

Part = ModelRequestPart | ModelResponsePart


# What is sent


def messages_of(request: Request, by: str = "") -> list[ModelMessage]:
    """Everything that is said in a request to the model `by`, neighbours of one side in one message."""
    grouped = groupby(_parts(request, by), key=lambda part: isinstance(part, TextPart | ToolCallPart | ThinkingPart))
    return [
        ModelResponse(parts=cast("list[ModelResponsePart]", list(parts)))
        if answered
        else ModelRequest(parts=cast("list[ModelRequestPart]", list(parts)))
        for answered, parts in grouped
    ]


def _parts(request: Request, by: str) -> Iterator[Part]:
    if request.system:
        yield SystemPromptPart(request.system)
    for message in request.history:
        yield _said(message)
    yield from _exchanged(request.exchange, by)


def _said(message: Message) -> Part:
    return TextPart(message.text) if message.role == "assistant" else UserPromptPart(message.text)


def _exchanged(exchange: Exchange, by: str) -> Iterator[Part]:
    for item in identified(exchange):
        match item:
            case Asked():
                yield from _asked(item, by)
            case Answered(call, text, failed):
                outcome: Literal["failed", "success"] = "failed" if failed else "success"
                yield ToolReturnPart(call.name, text, call.call_id, outcome=outcome)
            case _:
                yield UserPromptPart(item.text)


def _asked(asked: Asked, by: str) -> Iterator[Part]:
    thinking = asked.thinking if isinstance(asked.thinking, Thinking) and asked.thinking.by == by else Thinking(by, ())
    parts = with_thinking(thinking, asked.text, asked.calls)
    yield from (_part(part) for part in parts if part or not asked.calls)


def _part(part: str | Call | Json) -> Part:
    match part:
        case str():
            return TextPart(part)
        case Call():
            return ToolCallPart(part.name, part.args, part.call_id)
        case _:
            return as_type(part["part"], ThinkingPart)


def parameters_of(request: Request, model: Model[object]) -> ModelRequestParameters:
    """The tools on offer, and the shape that is wanted of the answer."""
    tools = [_tool(spec) for spec in request.specs]
    if request.output is None:
        return ModelRequestParameters(function_tools=tools)
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if _keeps_to_schemas(model, request) else "prompted",
        output_object=OutputObjectDefinition(request.output, name="answer"),
    )


def _tool(spec: ToolSpec) -> ToolDefinition:
    return ToolDefinition(name=spec.name, parameters_json_schema=spec.parameters, description=spec.description)


def _keeps_to_schemas(model: Model[object], request: Request) -> bool:
    """Whether the provider sees to the shape itself. If not, the model is told of it, and the turn sees to it."""
    profile: dict[str, object] = {**model.profile}
    both = not request.specs or profile.get("google_supports_tool_combination", not model.system.startswith("google"))
    an_object = request.output is not None and request.output.get("type") == "object"
    return bool(profile.get("supports_json_schema_output") and both and an_object)


# What is answered


def can_stream(model: Model[object]) -> bool:
    """Whether the model can be heard while it speaks."""
    return type(model).request_stream is not Model.request_stream


def piece_of(event: object) -> str:
    """The text that an event of a stream brings, if any."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""


def reply_of(response: ModelResponse, by: str) -> Reply:
    """The answer of the model `by` as a reply; `ModelError` if it is none."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
    cut = response.finish_reason == "length"
    calls = tuple(_call(part, cut=cut) for part in asked)
    if response.state == "incomplete":
        raise ModelUnavailable(f"the answer broke off after {len(text)} characters")
    if response.state != "complete" or (response.finish_reason in ("content_filter", "error") and not (text or calls)):
        raise ReplyMalformed(f"there is no answer: it ended as {response.finish_reason or response.state}")
    return Reply(text, calls, _usage(response.usage), cut, _thinking(response, by))


def _thinking(response: ModelResponse, by: str) -> Thinking | UnsetType:
    try:
        return thinking_in([_block(part) for part in response.parts], by)
    except Malformed as error:
        raise ReplyMalformed(f"the answer of {by} cannot be used: {error}") from error


def _block(part: object) -> Json:
    """A part as far as its place counts; signed thinking in full."""
    match part:
        case TextPart(content=text):
            return {"type": "text", "text": text}
        case ToolCallPart():
            return {"type": "tool_use"}
        case ThinkingPart(signature=signature) if signature:
            kept = {name: value for name, value in asdict(part).items() if value is not None}
            return {"type": "thinking", "part": kept}
        case _:
            return {"type": "other"}


def _call(part: ToolCallPart[object], *, cut: bool) -> Call:
    """The call. Where the arguments are None, the provider has said that there are none."""
    return written_call(part.tool_name, {} if part.args is None else part.args, part.tool_call_id, cut=cut)


def _usage(usage: RequestUsage) -> Usage:
    if usage.unmeasured_requests:
        return NO_USAGE
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


# What goes wrong


def failure_of(error: Exception, who: str) -> AntiphonError | None:
    """The failure in our words, `who` being the model; None if it is of no kind that is known here."""
    said = said_by(error)
    match error:
        case ModelHTTPError():
            return _by_status(error, who)
        case ModelRequestRejectedError() | ModelQuotaExceededError():
            return ModelRefused(f"{who} refused the request: {said}")
        case ModelAPIError():
            return ModelUnavailable(f"{who} did not answer: {said}", retry_after=error.retry_after)
        case httpx2.TransportError() | OSError():
            return ModelUnavailable(f"{who} did not answer: {said}")
        case UnexpectedModelBehavior():
            return ReplyMalformed(f"the answer of {who} cannot be used: {said}")
        case UserError() | ImportError():
            return UsageError(f"{who} cannot be asked: {said}")
        case ExceptionGroup():
            return _of_several(error, who)
        case _:
            return None


def said_by(error: Exception) -> str:
    """What an error says that is of use here, in one line and cut short."""
    return short(str(error).partition(ADVERTISED)[0]) or type(error).__name__


def _by_status(error: ModelHTTPError, who: str) -> ModelUnavailable | ModelRefused:
    status, said = error.status_code, words_of(error.body)
    if status in PASSING or status >= 500:
        wait = error.retry_after if error.headers is None else wait_told(error.headers)
        return ModelUnavailable(f"{who} answered {status}: {said}", status=status, retry_after=wait)
    return ModelRefused(f"{who} refused the request ({status}): {said}", status=status)


def _of_several(group: ExceptionGroup[Exception], who: str) -> AntiphonError | None:
    """Of a model that stands for several, all of which failed: the failure that may pass, or else the first."""
    failures = [failure_of(error, who) for error in group.exceptions]
    return next((failure for failure in failures if isinstance(failure, ModelUnavailable)), failures[0])
