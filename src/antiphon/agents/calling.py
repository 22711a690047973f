"""Calling a tool: its arguments checked, the call made, what it returned turned into what a model reads.

Rule 1: whatever a tool does, the outcome is a `Returned`. Only a cancellation of the call itself, from outside, passes
        through: a tool runs in a task of its own, so nothing that it raises can be taken for one.
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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context

import msgspec

from antiphon.agents.arguments import EMPTY
from antiphon.agents.isolation import ASYNC_SHOULD, CODE_PREFIX, TOOL_SHOULD, Raised, outcome_of
from antiphon.agents.messages import NO_USAGE, Call, Usage
from antiphon.agents.patterns import TooMuchWork
from antiphon.agents.results import Finish, Handoff, NotDone, Transfer
from antiphon.agents.schema import from_model, to_model
from antiphon.agents.signature import CHANNEL, CONTEXT, IDEMPOTENCY_KEY, Function
from antiphon.agents.tool import Tool
from antiphon.core.codec import copied
from antiphon.core.events import Json
from antiphon.core.words import LONGEST_STORY, plainly, shown, storable, told

log = logging.getLogger("antiphon.engine")

MAX_RESULT = 128 * 1024
"""How many bytes of text a result may have."""


_encoder = msgspec.json.Encoder(enc_hook=to_model)


class Given(msgspec.Struct, frozen=True):
    """What the runtime gives to the parameters that are hidden from the model."""

    channel: object
    context: Json
    idempotency_key: str
    caller: str = ""
    """The agent and the channel that the call is made for, as the log of the process names them."""


class Returned(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call came to, as the model reads it."""

    text: str
    failed: bool = False
    handoff: Handoff | None = None
    finish: Finish | None = None
    transfer: str | None = None
    """Who of the team becomes active."""
    usage: Usage = NO_USAGE
    """What models consumed within the call."""
    declined: str = ""
    """Why the handoff that it was about does not count, although the call itself did not fail."""

    @property
    def target(self) -> str | None:
        """Who is to go on; None if that is not what the call was about."""
        return self.transfer or (None if self.handoff is None else self.handoff.target)


class BadArguments(ValueError):
    """The arguments do not fit the tool. The message tells the model what to change."""


def refused(text: str) -> Returned:
    """A call that failed, or was not made, for this reason."""
    return Returned(storable(text), failed=True)


def unknown(name: str, known: Iterable[str]) -> Returned:
    """The answer to a call of a tool that there is not."""
    return refused(f"There is no tool {shown(name)}; there are: {_listed(known)}.")


def bound(tool: Tool, args: object) -> dict[str, object]:
    """The arguments of a model as the function wants them; `BadArguments` if they do not fit.

    Nothing is read into a value: "7" is not 7. What was left out is left out, for the function's own default. A tool
    that has its schema from elsewhere gets what the model gave, and checks it itself.
    """
    if not isinstance(args, dict):
        raise _bad(tool, f"they are {type(args).__name__}, not an object with the names of parameters")
    if tool.arguments is None:
        return copied(args)
    _check_names(tool, args, tool.arguments.__struct_fields__)
    try:
        # What has no type would be the model's own object: the function gets a copy, to do with as it likes.
        plain = msgspec.to_builtins(args)
        filled = msgspec.convert(plain, tool.arguments, str_keys=True, dec_hook=from_model)
        tool.text_patterns.check(plain)
    except TooMuchWork as error:
        raise _bad(tool, str(error)) from error
    except msgspec.ValidationError as error:
        raise _bad(tool, _complaint(tool, str(error))) from error
    except BaseException as error:  # a user-defined type: not even its SystemExit ends the process
        raise _bad(tool, told(error)) from error
    values = ((name, getattr(filled, name)) for name in tool.arguments.__struct_fields__)
    return {name: value for name, value in values if value is not msgspec.UNSET}


def bound_call(tool: Tool, call: Call) -> dict[str, object]:
    """The arguments of a call as its function wants them; `BadArguments` if they are no JSON object, or do not fit.

    Empty arguments are accepted for a tool without parameters.
    """
    fault = None if call.fault == EMPTY and not tool.parameters.get("properties") else call.fault
    if isinstance(fault, str):
        raise _bad(tool, f"{fault}; write one JSON object")
    return bound(tool, call.args)


async def called(tool: Tool, arguments: Mapping[str, object], given: Given) -> Returned:
    """Call the tool with arguments that were `bound`."""
    value = await _value(tool.function, _injected(tool.injected, arguments, given), _label(tool, given))
    return _returned(value)


async def reconciled(tool: Tool, arguments: Mapping[str, object], given: Given) -> Returned | NotDone:
    """Find out what an earlier call came to, or that it did not take effect.

    If that cannot be found out it counts as a call that failed: to make it again might do harm.
    """
    if tool.reconcile is None:
        return refused("It is not known whether the call took effect: the tool has no way to find out.")
    name = f"the reconcile function of {_label(tool, given)}"
    value = await _value(tool.reconcile, _injected(tool.reconcile_injected, arguments, given), name)
    if isinstance(value, Raised):
        return refused(f"It is not known whether the call took effect: {_why(value.error)}")
    return value if isinstance(value, NotDone) else _returned(value)


def _check_names(tool: Tool, args: Mapping[str, object], fields: tuple[str, ...]) -> None:
    strange = [name for name in args if name not in fields]
    if strange:
        raise _bad(tool, f"there is no parameter {_listed(map(shown, strange))}; there are: {_listed(fields)}")
    required = tool.parameters["required"]
    missing = [name for name in fields if name not in args and name in _texts(required)]
    if missing:
        raise _bad(tool, f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _complaint(tool: Tool, said: str) -> str:
    sentence = plainly(said)
    what, _, place = said.rpartition(" - at `$.")
    if not what or sentence != said:
        return sentence[:LONGEST_STORY]
    place = place.rstrip("`")
    return f"{place}: {what[:LONGEST_STORY]}{_choice(tool, place)}"


def _choice(tool: Tool, parameter: str) -> str:
    """The values that a parameter may have, if they can be counted."""
    properties = tool.parameters["properties"]
    schema = properties.get(parameter, {}) if isinstance(properties, dict) else {}
    values = schema.get("enum")
    return f"; give one of {_listed(map(shown, values))}" if values else ""


def _bad(tool: Tool, why: str) -> BadArguments:
    return BadArguments(storable(f"The arguments of {tool.name} do not fit: {why}."))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _injected(injected: Mapping[str, str], arguments: Mapping[str, object], given: Given) -> dict[str, object]:
    wanted = set(injected.values())
    gifts: dict[str, object] = {CHANNEL: given.channel, IDEMPOTENCY_KEY: given.idempotency_key}
    if CONTEXT in wanted:
        gifts[CONTEXT] = copied(given.context)
    return {**arguments, **{parameter: gifts[what] for parameter, what in injected.items()}}


def _label(tool: Tool, given: Given) -> str:
    return f"tool {tool.name!r}{given.caller and f' of {given.caller}'}"


async def _value(function: Function, arguments: dict[str, object], name: str) -> object:
    """The value that the function returns, or the error that it raises."""

    async def run() -> object:
        if inspect.iscoroutinefunction(function):
            value: object = function(**arguments)
        else:
            value = await _apart(function, arguments, name)
        return await value if inspect.isawaitable(value) else value

    # A function that is not async runs in a thread: it is what it returned that may hold the loop.
    return await outcome_of(run, name, TOOL_SHOULD if inspect.iscoroutinefunction(function) else ASYNC_SHOULD)


async def _apart(function: Function, arguments: dict[str, object], name: str) -> object:
    """Call the function off the loop. It has a thread to itself: in a pool, calls would wait for each other.

    A thread cannot be stopped. When nobody waits any more, what it returns is dropped, and it does not keep the
    program from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()
    context = copy_context()

    def deliver(value: object) -> None:
        if not outcome.done():
            outcome.set_result(value)

    def work() -> None:
        value = context.run(_attempted, function, arguments)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=work, name=f"{CODE_PREFIX}{name}", daemon=True).start()
    try:
        return await outcome
    except asyncio.CancelledError:
        log.warning("%s was cancelled and still runs in its thread; its result is dropped", name)
        raise


def _attempted(function: Function, arguments: dict[str, object]) -> object:
    try:
        return function(**arguments)
    except BaseException as error:  # a tool is anybody's code
        return Raised(error)


def _why(error: BaseException) -> str:
    """What an error says; a cancellation says nothing."""
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "CancelledError: something that the tool waited for was cancelled"
    return told(error)


def _returned(value: object) -> Returned:
    match value:
        case Raised(error=error):
            return refused(_why(error))
        case Handoff() | Finish():
            return _routed(value)
        case Transfer(target=target, text=text):
            return msgspec.structs.replace(_measured(text), transfer=target)
        case None:
            return Returned("")
        case str():
            return _measured(str.__str__(value))  # an enum's text is its value
        case bytes() | bytearray() | memoryview():
            return refused(f"The tool returned {type(value).__name__}, which no model reads; it should return text.")
        case _:
            return _encoded(value)


def _routed(value: Handoff | Finish) -> Returned:
    try:
        plain = {name: storable(text) for name, text in msgspec.structs.asdict(value).items()}
    except AttributeError:
        return refused(f"The tool returned {shown(value)}; its fields should be text.")
    if isinstance(value, Handoff):
        return Returned(f"Handed off to {plain['target']}.", handoff=Handoff(**plain))
    return Returned(f"Finished: {plain['reason']}." if value.reason else "Finished.", finish=Finish(**plain))


def _encoded(value: object) -> Returned:
    try:
        return _measured(_json(value))
    except BaseException as error:  # the value may be of a user-defined class
        advice = "it should return text, numbers, lists, dicts or dataclasses"
        return refused(f"The tool returned {type(value).__name__}, which is no JSON ({told(error)}); {advice}.")


def _json(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:  # half characters, which are written out in the text of the JSON
        plain = msgspec.to_builtins(value, enc_hook=to_model)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _measured(text: str) -> Returned:
    text = storable(text)
    size = len(text.encode())
    if size > MAX_RESULT:
        return refused(f"The result has {size} bytes; the limit is {MAX_RESULT}. Ask for less at once.")
    return Returned(text)
