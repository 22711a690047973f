"""Requests, replies and errors, translated to and from pydantic-ai.

Rule 1: a request is sent as it is: system prompt, history, exchange of this turn. Only the ids of calls are replaced,
        because another model of the team may have made them, or none.
Rule 2: of an answer, text and calls are kept. Thinking is not text; if the provider signed it and needs it back within
        the turn, the same model gets it unchanged, and all other thinking is left out.
Rule 3: an error says whether a retry may help. An unknown one is raised unchanged.

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

from antiphon.agents.call_results import NO_USAGE, Call, Reply, Thinking, Usage, parse_call
from antiphon.agents.messages import Answered, Asked, Request, interleave_thinking, thinking_in
from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import Json
from antiphon.core.errors import AntiphonError, ModelRefused, ModelUnavailable, ReplyMalformed, UsageError
from antiphon.models.provider_client import with_plain_call_ids
from antiphon.models.provider_errors import RETRYABLE_STATUSES, error_text_of, retry_after_in, shorten_text

ADVERTISEMENT_START = " To try Pydantic AI"
"""The start of an advertisement in an error message."""

PydanticPart = ModelRequestPart | ModelResponsePart


# What is sent


def pydantic_messages_of(request: Request, by: str = "") -> list[ModelMessage]:
    """The messages of a request to the model `by`; consecutive parts of one side are one message."""
    grouped = groupby(
        _request_parts(request, by), key=lambda part: isinstance(part, TextPart | ToolCallPart | ThinkingPart)
    )
    return [
        ModelResponse(parts=cast("list[ModelResponsePart]", list(parts)))
        if answered
        else ModelRequest(parts=cast("list[ModelRequestPart]", list(parts)))
        for answered, parts in grouped
    ]


def _request_parts(request: Request, by: str) -> Iterator[PydanticPart]:
    if request.system:
        yield SystemPromptPart(request.system)
    for role, text in request.history:
        yield TextPart(text) if role == "assistant" else UserPromptPart(text)
    for item in with_plain_call_ids(request.exchange):
        match item:
            case Asked():
                yield from _asked_parts(item, by)
            case Answered(call, text, failed):
                outcome: Literal["failed", "success"] = "failed" if failed else "success"
                yield ToolReturnPart(call.name, text, call.call_id, outcome=outcome)
            case _:
                yield UserPromptPart(item.text)


def _asked_parts(asked: Asked, by: str) -> Iterator[PydanticPart]:
    thinking = asked.thinking if isinstance(asked.thinking, Thinking) and asked.thinking.by == by else Thinking(by, ())
    parts = interleave_thinking(thinking, asked.text, asked.calls)
    yield from (_part_of(part) for part in parts if part or not asked.calls)


def _part_of(part: str | Call | Json) -> PydanticPart:
    match part:
        case str():
            return TextPart(part)
        case Call():
            return ToolCallPart(part.name, part.args, part.call_id)
        case _:
            return as_type(part["part"], ThinkingPart)


def request_parameters_of(request: Request, model: Model[object]) -> ModelRequestParameters:
    """The tools, and the schema of the answer."""
    tools = [
        ToolDefinition(name=spec.name, parameters_json_schema=spec.parameters, description=spec.description)
        for spec in request.specs
    ]
    if request.output is None:
        return ModelRequestParameters(function_tools=tools)
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if _keeps_to_schemas(model, request) else "prompted",
        output_object=OutputObjectDefinition(request.output, name="answer"),
    )


def _keeps_to_schemas(model: Model[object], request: Request) -> bool:
    """Whether the provider enforces the schema. If not, it goes into the prompt, and the turn validates the answer."""
    profile: dict[str, object] = {**model.profile}
    both = not request.specs or profile.get("google_supports_tool_combination", not model.system.startswith("google"))
    an_object = request.output is not None and request.output.get("type") == "object"
    return bool(profile.get("supports_json_schema_output") and both and an_object)


# What is answered


def can_stream(model: Model[object]) -> bool:
    """Whether the model can stream."""
    return type(model).request_stream is not Model.request_stream


def streamed_text_of(event: object) -> str:
    """The text in an event of a stream, if any."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""


def reply_of_response(response: ModelResponse, by: str) -> Reply:
    """The answer of the model `by` as a reply; `ModelError` if there is none."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    cut = response.finish_reason == "length"
    calls = tuple(
        # Arguments of None mean that the provider sent none.
        parse_call(part.tool_name, {} if part.args is None else part.args, part.tool_call_id, cut=cut)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    if response.state == "incomplete":
        raise ModelUnavailable(f"the answer broke off after {len(text)} characters")
    if response.state != "complete" or (response.finish_reason in ("content_filter", "error") and not (text or calls)):
        raise ReplyMalformed(f"there is no answer: it ended as {response.finish_reason or response.state}")
    return Reply(text, calls, _usage_of_response(response.usage), cut, _thinking_of_response(response, by))


def _thinking_of_response(response: ModelResponse, by: str) -> Thinking | UnsetType:
    try:
        return thinking_in([_block_of_part(part) for part in response.parts], by)
    except Malformed as error:
        raise ReplyMalformed(f"the answer of {by} cannot be used: {error}") from error


def _block_of_part(part: object) -> Json:
    """A part as a block: its position counts, and of signed thinking the content, too."""
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


def _usage_of_response(usage: RequestUsage) -> Usage:
    if usage.unmeasured_requests:
        return NO_USAGE
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


# What goes wrong


def model_failure_of(error: Exception, who: str) -> AntiphonError | None:
    """The error of the model `who` as one of ours; None if it is of an unknown kind."""
    said = pydantic_error_text(error)
    match error:
        case ModelHTTPError():
            return _failure_by_status(error, who)
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
            return _failure_of_group(error, who)
        case _:
            return None


def pydantic_error_text(error: Exception) -> str:
    """The message of an error in one line, truncated."""
    return shorten_text(str(error).partition(ADVERTISEMENT_START)[0]) or type(error).__name__


def _failure_by_status(error: ModelHTTPError, who: str) -> ModelUnavailable | ModelRefused:
    status, said = error.status_code, error_text_of(error.body)
    if status in RETRYABLE_STATUSES or status >= 500:
        wait = error.retry_after if error.headers is None else retry_after_in(error.headers)
        return ModelUnavailable(f"{who} answered {status}: {said}", status=status, retry_after=wait)
    return ModelRefused(f"{who} refused the request ({status}): {said}", status=status)


def _failure_of_group(group: ExceptionGroup[Exception], who: str) -> AntiphonError | None:
    """The error of a chain of models, all of which failed: a transient one, or else the first."""
    failures = [model_failure_of(error, who) for error in group.exceptions]
    return next((failure for failure in failures if isinstance(failure, ModelUnavailable)), failures[0])
