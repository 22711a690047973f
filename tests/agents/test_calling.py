"""What a call of a tool comes to."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import enum
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from antiphon.agents.call_results import NOT_DONE, Finish, Handoff, NotDone, ToolResult, failed_result
from antiphon.agents.tool import BadArguments, Tool, bind_arguments, tool, unknown_tool_result
from antiphon.core.codec import check_text
from antiphon.engines.tool_invocation import MAX_RESULT_BYTES, InjectedValues, call_tool, reconcile_call
from tests.agents.test_schema import Address, Colour, Options, Point, Profile, Tree
from tests.support.stable_ids import stable_repr

GIVEN = InjectedValues("the channel", {"tier": "gold"}, "key-1")


@tool
def refund(order: str, cents: int = 0) -> str:
    return f"{cents} for {order}"


@tool
def everything(
    number: float = 0.0,
    whole: int = 0,
    sure: bool = False,
    colour: Colour = Colour.RED,
    size: Literal["s", "m"] = "s",
    to: Address | None = None,
    point: Point | None = None,
    options: Options | None = None,
    who: Profile | None = None,
    people: list[Profile] | None = None,
    tree: Tree | None = None,
    at: datetime | None = None,
    counts: dict[int, str] | None = None,
    anything: object = None,
    bare=None,  # type: ignore[no-untyped-def]
) -> None: ...


# Arguments


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, {}),
        ({"number": 1.5, "whole": 7, "sure": True}, {"number": 1.5, "whole": 7, "sure": True}),
        ({"number": 7}, {"number": 7.0}),
        ({"whole": 7.0, "number": 2.0}, {"whole": 7, "number": 2.0}),
        ({"point": {"x": 1.0}}, {"point": Point(1)}),
        ({"colour": "blue", "size": "m"}, {"colour": Colour.BLUE, "size": "m"}),
        ({"to": {"street": "A"}}, {"to": Address("A", "Ulm")}),
        ({"to": None}, {"to": None}),
        ({"point": {"x": 1}}, {"point": Point(1)}),
        ({"options": {"deep": True}}, {"options": {"deep": True}}),
        ({"tree": {"name": "a", "under": [{"name": "b"}]}}, {"tree": Tree("a", [Tree("b")])}),
        ({"at": "2024-05-01T10:00:00"}, {"at": datetime(2024, 5, 1, 10)}),
        ({"counts": {"1": "a"}}, {"counts": {1: "a"}}),
        ({"anything": {"a": [1, None]}, "bare": "x"}, {"anything": {"a": [1, None]}, "bare": "x"}),
    ],
    ids=str,
)
def test_arguments_that_fit(args: dict[str, object], expected: dict[str, object]) -> None:
    assert bind_arguments(everything, args) == expected


def test_a_class_that_validates_itself() -> None:
    arguments = bind_arguments(everything, {"who": {"name": "ann"}, "people": [{"name": "bob"}]})
    assert isinstance(arguments["who"], Profile)
    assert arguments["who"].name == "ann"
    assert [each.name for each in arguments["people"]] == ["bob"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("made", "args", "why"),
    [
        (refund, {}, "order is missing"),
        (refund, {"order": 7}, "order is int, not str"),
        (refund, {"order": "7", "cents": "7"}, "cents is str, not int"),
        (refund, {"order": "7", "cents": True}, "cents is bool, not int"),
        (refund, {"order": "7", "cents": 7.5}, "cents is float, not int"),
        (refund, {"order": 7.0, "cents": 7}, "order is float, not str"),
        (refund, {"order": "7", "cents": None}, "cents is None, not int"),
        (refund, {"order": "7", "euros": 1}, "there is no parameter 'euros'; there are: order, cents"),
        (refund, {"order": "7", "a": 1, "b": 2}, "there is no parameter 'a', 'b'; there are: order, cents"),
        (refund, [], "they are list, not an object with the names of parameters"),
        (refund, None, "they are NoneType, not an object with the names of parameters"),
        (tool(lambda: 1, name="one"), {"x": 1}, "there is no parameter 'x'; there are: none"),
        (tool(lambda x, y: 1, name="two"), {}, "x, y are missing"),
        (everything, {"number": True}, "number is bool, not float"),
        (everything, {"colour": "green"}, "colour: Invalid enum value 'green'; give one of 'blue', 'red'"),
        (everything, {"colour": "\x00"}, "colour: Invalid enum value '\\x00'; give"),
        (everything, {"size": "xl"}, "size: Invalid enum value 'xl'; give one of 'm', 's'"),
        (everything, {"to": {"city": "A"}}, "to.street is missing"),
        (everything, {"to": {"street": ["A"]}}, "to.street is list, not str"),
        (everything, {"who": {"name": 5}}, "who: a profile has a name"),
        (everything, {"people": [{"name": "a"}, {}]}, "people[1]: a profile has a name"),
        (everything, {"at": "tomorrow"}, "at: Invalid RFC3339 encoded datetime"),
        (everything, {1: 2}, "there is no parameter 1; there are: number, "),
        (everything, {"\udc80": 2}, "there is no parameter '\\udc80'; "),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(made: Tool, args: object, why: str) -> None:
    with pytest.raises(BadArguments) as caught:
        bind_arguments(made, args)
    assert str(caught.value).startswith(f"The arguments of {made.name} do not fit: {why}")


def test_a_function_may_change_what_it_is_given() -> None:
    args: dict[str, object] = {"anything": {"a": [1]}, "bare": [1]}
    arguments = bind_arguments(everything, args)
    arguments["bare"].append(2)  # type: ignore[attr-defined]
    arguments["anything"]["a"].append(2)  # type: ignore[index]
    assert args == {"anything": {"a": [1]}, "bare": [1]}


@dataclass
class Careless:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("less than \x00")
        1 / self.value


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


def test_errors_of_a_type_are_bad_arguments_too() -> None:
    def use(it: Careless) -> None: ...

    assert bind_arguments(tool(use), {"it": {"value": 1}}) == {"it": Careless(1)}
    with pytest.raises(BadArguments, match="ZeroDivisionError: division by zero"):
        bind_arguments(tool(use), {"it": {"value": 0}})
    with pytest.raises(BadArguments, match=r"fit: it: less than \\x00\.\Z"):
        bind_arguments(tool(use), {"it": {"value": -1}})
    with pytest.raises(BadArguments, match="RecursionError"):
        bind_arguments(everything, {"bare": deep(100_000)})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters())
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
names = st.sampled_from(everything.arguments.__struct_fields__)


@for_all(st.dictionaries(names | st.text(), json_values) | json_values)
def test_whatever_a_model_gives_fits_or_is_bad_arguments(args: object) -> None:
    try:
        arguments = bind_arguments(everything, args)
    except BadArguments as error:
        check_text(str(error))
    else:
        assert isinstance(args, dict)
        assert arguments.keys() == args.keys()


# Calls


async def result(function: Callable[..., object], **arguments: object) -> ToolResult:
    return (await call_tool(tool(function, name="it"), arguments, GIVEN)).returned


async def test_what_the_runtime_gives() -> None:
    async def later(text: str, channel: object, context: dict[str, object], idempotency_key: str) -> list[object]:
        return [text, channel, context, idempotency_key]

    def now(text: str, channel, idempotency_key, context) -> list[object]:  # type: ignore[no-untyped-def]
        return [text, channel, context, idempotency_key]

    for function in (later, now):
        assert await result(function, text="a") == ToolResult('["a","the channel",{"tier":"gold"},"key-1"]')


async def test_the_context_is_the_tool_s_own_copy() -> None:
    def change(context: dict[str, object]) -> None:
        context.clear()

    assert await result(change) == ToolResult("")
    assert GIVEN.context == {"tier": "gold"}


async def test_where_a_function_runs() -> None:
    async def on_the_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    def off_the_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    class Awaited:
        async def __call__(self) -> bool:
            return threading.current_thread() is threading.main_thread()

    assert await result(on_the_loop) == ToolResult("true")
    assert await result(Awaited()) == ToolResult("true")
    assert await result(off_the_loop) == ToolResult("false")


WHO = contextvars.ContextVar("WHO", default="nobody")


async def test_a_function_off_the_loop_sees_the_caller_s_context_variables() -> None:
    def who() -> str:
        return WHO.get()

    reset = WHO.set("ann")
    assert await result(who) == ToolResult("ann")
    WHO.reset(reset)


async def test_a_sync_function_may_return_an_awaitable() -> None:
    async def inner() -> str:
        return "later"

    async def failing() -> str:
        raise ValueError("no luck")

    def outer() -> Awaitable[str]:
        return inner()

    def outer_failing() -> Awaitable[str]:
        return failing()

    assert await result(outer) == ToolResult("later")
    assert await result(outer_failing) == ToolResult("ValueError: no luck", failed=True)


class Size(enum.StrEnum):
    SMALL = "s"


class Tone(str, enum.Enum):  # noqa: UP042  # people write it
    LOUD = "loud"


class Dumped:
    def model_dump(self, *, mode: str) -> dict[str, object]:
        return {"mode": mode}


class Stubborn:
    def model_dump(self, *, mode: str) -> dict[str, object]:
        raise LookupError("not today")


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, ""),
        (7, "7"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
        (1.5, "1.5"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": {"b": "ä"}}, '{"a":{"b":"ä"}}'),
        ({1: 2}, '{"1":2}'),
        (Address("A"), '{"street":"A","city":"Ulm"}'),
        (Point(1), '{"x":1,"y":0}'),
        (date(2024, 5, 1), '"2024-05-01"'),
        (Decimal("1.50"), '"1.50"'),
        (UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        (Colour.RED, '"red"'),
        (Size.SMALL, "s"),
        (Tone.LOUD, "loud"),
        (Dumped(), '{"mode":"json"}'),
        ([Dumped()], '[{"mode":"json"}]'),
        ("a \x00 and \udc80", "a \\x00 and \\udc80"),
        (["\x00", "\udc80", "ä", Dumped()], '["\\u0000","\\udc80","ä",{"mode":"json"}]'),
        ("x" * MAX_RESULT_BYTES, "x" * MAX_RESULT_BYTES),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_a_model_reads(value: object, text: str) -> None:
    assert await result(lambda: value) == ToolResult(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"raw", "The tool returned bytes, which no model reads; it should return text."),
        (bytearray(b"raw"), "The tool returned bytearray, which"),
        (memoryview(b"raw"), "The tool returned memoryview, which"),
        (object(), "The tool returned object, which is no JSON (TypeError: object is no JSON value); it should return"),
        ([1 + 2j], "The tool returned list, which is no JSON (TypeError: complex is no JSON value); it should return"),
        ({(1, 2): 3}, "The tool returned dict, which is no JSON ("),
        (Address, "The tool returned type, which is no JSON ("),
        (Dumped, "The tool returned type, which is no JSON ("),
        (Stubborn(), "The tool returned Stubborn, which is no JSON (LookupError: not today); it"),
        (deep(100_000), "The tool returned list, which is no JSON (RecursionError"),
        ("x" * (MAX_RESULT_BYTES + 1), "The result has 131073 bytes; the limit is 131072. Ask for less at once."),
        ("ä" * (MAX_RESULT_BYTES // 2 + 1), "The result has 131074 bytes; the limit is 131072."),
        (["x" * MAX_RESULT_BYTES], "The result has 131076 bytes; the limit is 131072."),
        (Handoff(5), "The tool returned Handoff(target=5); its fields should be text."),  # type: ignore[arg-type]
        (Finish(None), "The tool returned Finish(reason=None); its fields should be text."),  # type: ignore[arg-type]
    ],
    ids=lambda value: stable_repr(value)[:40] if not isinstance(value, list) else "list",
)
async def test_what_no_model_reads(value: object, text: str) -> None:
    returned = await result(lambda: value)
    assert returned.failed
    assert returned.text.startswith(text)


async def test_a_handoff_and_a_finish() -> None:
    handoff, finish = Handoff("bob", "contract", "all of it"), Finish("refunded")
    assert await result(lambda: handoff) == ToolResult("Handed off to bob.", handoff=handoff)
    assert await result(lambda: finish) == ToolResult("Finished: refunded.", finish=finish)
    assert await result(lambda: Finish("")) == ToolResult("Finished.", finish=Finish(""))
    odd = await result(lambda: Handoff("bob", "\x00"))
    assert odd.handoff == Handoff("bob", "\\x00")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (ValueError(), "ValueError: "),
        (Speechless(), "Speechless"),
        (TimeoutError("slow"), "TimeoutError: slow"),
        (ValueError("\udc80"), "ValueError: \\udc80"),
        (concurrent.futures.CancelledError("theirs"), "CancelledError: theirs"),
        (ExceptionGroup("both", [ValueError("a")]), "ExceptionGroup: both (1 sub-exception): ValueError: a"),
    ],
    ids=repr,
)
async def test_an_error_is_told(error: Exception, text: str) -> None:
    async def later() -> None:
        raise error

    def now() -> None:
        raise error

    assert await result(later) == ToolResult(text, failed=True)
    assert await result(now) == ToolResult(text, failed=True)


async def test_an_iterator_that_runs_out_is_an_error_like_any_other() -> None:
    async def later() -> object:
        return next(iter(()))

    def now() -> object:
        raise StopIteration("over")

    assert await result(now) == ToolResult("StopIteration: over", failed=True)
    assert await result(later) == ToolResult("RuntimeError: coroutine raised StopIteration", failed=True)


async def test_a_cancellation_passes_through() -> None:
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(result(wait))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


class Odd(BaseException):
    """Neither an error nor a cancellation."""


CANCELLED = "CancelledError: something that the tool waited for was cancelled"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncio.CancelledError(), CANCELLED),
        (asyncio.CancelledError("by myself"), "CancelledError: by myself"),
        (GeneratorExit(), "GeneratorExit: "),
        (Odd("oh"), "Odd: oh"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt("enough"), "KeyboardInterrupt: enough"),
    ],
    ids=repr,
)
async def test_what_a_tool_raises_of_its_own_is_a_failure_whatever_it_is(error: BaseException, text: str) -> None:
    async def later() -> None:
        raise error

    def now() -> None:
        raise error

    assert await result(later) == ToolResult(text, failed=True)
    assert await result(now) == ToolResult(text, failed=True)
    for reconcile in (later, now):
        made = tool(give_up, idempotency="unsafe", reconcile=reconcile)
        told = f"It is not known whether the call took effect: {text}"
        assert await reconcile_call(made, {}, GIVEN) == ToolResult(told, failed=True)


def give_up() -> None: ...


async def test_a_task_of_the_tool_that_is_cancelled_is_a_failure_of_the_call() -> None:
    async def wait() -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    assert await result(wait) == ToolResult(CANCELLED, failed=True)


def test_a_call_that_is_given_up_with_its_task_is_no_failure() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    call = result(wait)

    async def begin() -> None:
        call.send(None)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    loop.run_until_complete(begin())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    call.close()  # RuntimeError if it went on
    assert call.cr_frame is None


async def test_any_number_of_calls_run_off_the_loop_at_the_same_time() -> None:
    everybody = threading.Barrier(100)  # more than any pool has

    def meet() -> None:
        everybody.wait(10)

    met = await asyncio.gather(*(result(meet) for _ in range(100)))
    assert met == [ToolResult("")] * 100


async def test_what_a_call_returns_that_nobody_waits_for_is_dropped() -> None:
    loop = asyncio.get_running_loop()
    started, go, ended = asyncio.Event(), threading.Event(), asyncio.Event()

    def slow() -> str:
        loop.call_soon_threadsafe(started.set)
        go.wait(10)
        loop.call_soon_threadsafe(ended.set)
        return "too late"

    call = asyncio.ensure_future(result(slow))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go.set()
    await ended.wait()
    assert await result(lambda: "the next") == ToolResult("the next")


def test_a_call_that_hangs_holds_up_neither_its_loop_nor_the_program() -> None:
    running: list[threading.Thread] = []
    started, go = threading.Event(), threading.Event()

    def hang() -> None:
        running.append(threading.current_thread())
        started.set()
        go.wait(10)

    async def impatient() -> None:
        call = asyncio.ensure_future(result(hang))
        await asyncio.to_thread(started.wait, 10)
        call.cancel()

    asyncio.run(impatient())
    [left] = running
    assert left.is_alive()
    assert left.daemon  # so it keeps no program from ending
    go.set()
    left.join(10)
    assert not left.is_alive()  # it found its loop closed, and that is all


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("pay", ["refund", "look"], "There is no tool 'pay'; there are: refund, look."),
        ("pay", [], "There is no tool 'pay'; there are: none."),
        ("\udc80", iter(["refund"]), "There is no tool '\\udc80'; there are: refund."),
    ],
)
def test_a_tool_that_there_is_not(name: str, known: list[str], text: str) -> None:
    assert unknown_tool_result(name, known) == ToolResult(text, failed=True)


def test_a_refusal_can_be_recorded() -> None:
    assert failed_result("a \x00 and \udc80") == ToolResult("a \\x00 and \\udc80", failed=True)


# What became of an earlier call


def charge(cents: int, idempotency_key: str) -> str:
    raise AssertionError("it must not be called")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (NOT_DONE, NOT_DONE),
        ("done", ToolResult("done")),
        ([7, "key-1"], ToolResult('[7,"key-1"]')),
        (Finish("paid"), ToolResult("Finished: paid.", finish=Finish("paid"))),
        (ValueError("no line"), ToolResult("It is not known whether the call took effect: ValueError: no line", True)),
        (StopIteration(), ToolResult("It is not known whether the call took effect: StopIteration: ", True)),
    ],
    ids=repr,
)
async def test_an_earlier_call(found: object, expected: ToolResult | NotDone) -> None:
    def look(cents: int, idempotency_key: str) -> object:
        assert (cents, idempotency_key) == (7, "key-1")
        if isinstance(found, Exception):
            raise found
        return found

    async def look_later(cents: int) -> object:
        assert cents == 7
        if isinstance(found, Exception) and not isinstance(found, StopIteration):
            raise found
        return found

    made = tool(charge, idempotency="unsafe", reconcile=look)
    assert await reconcile_call(made, {"cents": 7}, GIVEN) == expected
    if not isinstance(found, StopIteration):
        made = tool(charge, idempotency="unsafe", reconcile=look_later)
        assert await reconcile_call(made, {"cents": 7}, GIVEN) == expected


async def test_an_earlier_call_that_nobody_can_look_up() -> None:
    returned = await reconcile_call(refund, {"order": "7"}, GIVEN)
    assert returned == ToolResult(
        "It is not known whether the call took effect: the tool has no way to find out.", failed=True
    )


def test_what_a_call_came_to_is_recorded_and_read_back() -> None:
    returned = ToolResult("Handed off to bob.", handoff=Handoff("bob"))
    assert msgspec.json.decode(msgspec.json.encode(returned), type=ToolResult) == returned
