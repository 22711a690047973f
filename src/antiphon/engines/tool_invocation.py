"""Calling a tool: the function is run, and what it returned becomes what a model reads.

Rule 1: the outcome of every tool is a `ToolResult`. Only a cancellation of the call itself, from outside,
        passes through: a tool runs in a task of its own, so nothing that it raises can be taken for one.
Rule 2: a function that is not async never runs on the loop; it gets a copy of the caller's context variables, and holds
        up neither another call nor the end of the program.
Rule 3: what failed says so in words that help the model, or the person who wrote the tool.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import NamedTuple

import msgspec

from antiphon.agents.call_results import Finish, Handoff, NotDone, ToolResult, Transfer, failed_result
from antiphon.agents.signature import INJECT_CHANNEL, INJECT_CONTEXT, INJECT_IDEMPOTENCY_KEY, ToolFunction
from antiphon.agents.tool import Tool
from antiphon.agents.type_schemas import encode_hook
from antiphon.core.canonical import text_key
from antiphon.core.codec import MAX_EVENT_BYTES, copy_json, to_json
from antiphon.core.envelope import Json
from antiphon.core.text import describe, describe_error, sanitize
from antiphon.engines.user_code import (
    BLOCKING_ASYNC_ADVICE,
    BLOCKING_TOOL_ADVICE,
    THREAD_NAME_PREFIX,
    RaisedError,
    run_isolated,
)

logger = logging.getLogger("antiphon.engine")

MAX_RESULT_BYTES = 128 * 1024
"""How many bytes of text a result may have."""
MAX_ROUTING_BYTES = 96 * 1024
"""How many bytes of JSON a `Handoff` or a `Finish` may have: the packet that ends the turn has its text twice."""


_result_encoder = msgspec.json.Encoder(enc_hook=encode_hook)


late_result: ContextVar[Callable[[ToolResult], None] | None] = ContextVar("late_result", default=None)
"""Takes the result of a call that was cut off, if it comes all the same."""


class InjectedValues(msgspec.Struct, frozen=True):
    """What the runtime gives to the parameters that are hidden from the model."""

    channel: object
    context: Json
    idempotency_key: str
    caller: str = ""
    """The agent and the channel that the call is made for, as the log of the process names them."""


class CalledTool(NamedTuple):
    """What a call has returned."""

    returned: ToolResult
    progress: str = ""
    """The digest of what the result has reached; "" if the tool does not say."""
    complaint: str = ""
    """Why that is not known; "" if it is, or if the tool does not say."""


async def call_tool(tool: Tool, arguments: Mapping[str, object], given: InjectedValues) -> CalledTool:
    """Call the tool with arguments that `bind_call` has checked."""
    value = await _run_function(tool.function, _add_injected(tool.injected, arguments, given), _call_label(tool, given))
    returned, progress_key = _tool_result_of(value), tool.protections.progress_key
    if progress_key is None or returned.failed:
        return CalledTool(returned)
    try:
        reached: object = progress_key(value)
    except BaseException as error:  # a function of a user: not even its SystemExit ends the process
        return CalledTool(returned, complaint=f"its progress_key failed: {describe_error(error)}")
    if not isinstance(reached, str):
        return CalledTool(returned, complaint=f"its progress_key gave {describe(reached)}; return a text")
    return CalledTool(returned, text_key(reached))


async def reconcile_call(tool: Tool, arguments: Mapping[str, object], given: InjectedValues) -> ToolResult | NotDone:
    """Find out the result of an earlier call, or that it did not take effect.

    If that cannot be found out it counts as a call that failed: to make it again might do harm.
    """
    if tool.reconcile is None:
        return failed_result("It is not known whether the call took effect: the tool has no way to find out.")
    name = f"the reconcile function of {_call_label(tool, given)}"
    value = await _run_function(tool.reconcile, _add_injected(tool.reconcile_injected, arguments, given), name)
    if isinstance(value, RaisedError):
        return failed_result(f"It is not known whether the call took effect: {_failure_text(value.error)}")
    return value if isinstance(value, NotDone) else _tool_result_of(value)


def _add_injected(
    injected: Mapping[str, str], arguments: Mapping[str, object], given: InjectedValues
) -> dict[str, object]:
    wanted = set(injected.values())
    gifts: dict[str, object] = {INJECT_CHANNEL: given.channel, INJECT_IDEMPOTENCY_KEY: given.idempotency_key}
    if INJECT_CONTEXT in wanted:
        gifts[INJECT_CONTEXT] = copy_json(given.context)
    return {**arguments, **{parameter: gifts[what] for parameter, what in injected.items()}}


def _call_label(tool: Tool, given: InjectedValues) -> str:
    return f"tool {tool.name!r}{given.caller and f' of {given.caller}'}"


async def _run_function(function: ToolFunction, arguments: dict[str, object], name: str) -> object:
    """The value that the function returns, or the error that it raises."""

    async def run() -> object:
        if inspect.iscoroutinefunction(function):
            value: object = function(**arguments)
        else:
            value = await _run_in_thread(function, arguments, name)
        value = await value if inspect.isawaitable(value) else value
        task, late = asyncio.current_task(), late_result.get()
        if late is not None and task is not None and task.cancelling():  # it has ignored its cancellation
            late(_tool_result_of(value))
        return value

    # A function that is not async runs in a thread: it is what it returned that may hold the loop.
    return await run_isolated(
        run, name, BLOCKING_TOOL_ADVICE if inspect.iscoroutinefunction(function) else BLOCKING_ASYNC_ADVICE
    )


async def _run_in_thread(function: ToolFunction, arguments: dict[str, object], name: str) -> object:
    """Call the function off the loop. It has a thread to itself: in a pool, calls would wait for each other.

    A thread cannot be stopped. After a cancellation its result is dropped, and it does not keep the program from
    ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()
    context, late = copy_context(), late_result.get()

    def deliver(value: object) -> None:
        if not outcome.done():
            outcome.set_result(value)
        elif late is not None:
            late(_tool_result_of(value))

    def work() -> None:
        value = context.run(_try_function, function, arguments)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=work, name=f"{THREAD_NAME_PREFIX}{name}", daemon=True).start()
    try:
        # The thread delivers errors as values and never cancels this future, so a cancellation is the caller's.
        return await outcome
    except asyncio.CancelledError:
        logger.warning("%s was cancelled and still runs in its thread; its result is dropped", name)
        raise


def _try_function(function: ToolFunction, arguments: dict[str, object]) -> object:
    try:
        return function(**arguments)
    except BaseException as error:  # a tool is anybody's code
        return RaisedError(error)


def _failure_text(error: BaseException) -> str:
    """What an error says; a cancellation says nothing."""
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "CancelledError: something that the tool waited for was cancelled"
    return describe_error(error)


def _tool_result_of(value: object) -> ToolResult:
    match value:
        case RaisedError(error=error):
            return failed_result(_failure_text(error))
        case Handoff() | Finish():
            return _routing_result(value)
        case Transfer(target=target, text=text):
            return msgspec.structs.replace(_text_result(text), transfer=target)
        case None:
            return ToolResult("")
        case str():
            return _text_result(str.__str__(value))  # an enum's text is its value
        case bytes() | bytearray() | memoryview():
            return failed_result(
                f"The tool returned {type(value).__name__}, which no model reads; it should return text."
            )
        case _:
            return _json_result(value)


def _routing_result(value: Handoff | Finish) -> ToolResult:
    try:
        fields = msgspec.structs.asdict(value).items()
        texts = {name: sanitize(given) for name, given in fields if not isinstance(given, bool)}
    except AttributeError:
        return failed_result(f"The tool returned {describe(value)}; its fields should be text.")
    size = len(to_json(texts))
    if size > MAX_ROUTING_BYTES:
        told = f"The {type(value).__name__} has {size} bytes of JSON; the limit is {MAX_ROUTING_BYTES}."
        return failed_result(f"{told} Say it in fewer words.")
    if isinstance(value, Handoff):
        return ToolResult(f"Handed off to {texts['target']}.", handoff=msgspec.structs.replace(value, **texts))
    finish = msgspec.structs.replace(value, **texts)
    return ToolResult(f"Finished: {finish.reason}." if finish.reason else "Finished.", finish=finish)


def _json_result(value: object) -> ToolResult:
    try:
        return _text_result(_encode_json_text(value))
    except BaseException as error:  # the value may be of a user-defined class
        advice = "it should return text, numbers, lists, dicts or dataclasses"
        return failed_result(
            f"The tool returned {type(value).__name__}, which is no JSON ({describe_error(error)}); {advice}."
        )


def _encode_json_text(value: object) -> str:
    try:
        return _result_encoder.encode(value).decode()
    except UnicodeEncodeError:  # half characters, which are written out in the text of the JSON
        plain = msgspec.to_builtins(value, enc_hook=encode_hook)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _text_result(text: str) -> ToolResult:
    text = text if text.isascii() and "\0" not in text else sanitize(text)
    size = len(text.encode())
    if size > MAX_RESULT_BYTES:
        return failed_result(f"The result has {size} bytes; the limit is {MAX_RESULT_BYTES}. Ask for less at once.")
    size = len(to_json(text)) - len('""')
    if size > MAX_EVENT_BYTES:  # control characters, which have six bytes each in the log
        told = f"The result has {size} bytes of JSON; the limit is {MAX_EVENT_BYTES}."
        return failed_result(f"{told} It should be text without control characters.")
    return ToolResult(text)
