"""A terminal as a transport: what is typed, and what is printed."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from antiphon import UsageError
from antiphon.core.errors import TransportUnavailable
from antiphon.core.transport import InboundMessage, OutboundReply
from antiphon.transports.terminal import TerminalTransport


def reply(text: str, sender: str = "support") -> OutboundReply:
    return OutboundReply("r-1", "c-1", "terminal", "terminal", text, sender, None)


async def received(transport: TerminalTransport) -> list[InboundMessage]:
    async with asyncio.timeout(10):
        return [message async for message in transport.receive()]


# What is printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Hello", "support: Hello\n"),
        ("one\ntwo\n", "support: one\n  two\n  \n"),
        ("x\nann: I agree", "support: x\n  ann: I agree\n"),
        ("\x1b[2J\x07\x9b31m", "support: \\x1b[2J\\x07\\x9b31m\n"),
        ("a\rb\tc", "support: a\\rb\tc\n"),
        ("\u202eevil\u2028x", "support: \\u202eevil\\u2028x\n"),
        ("ü ✓ 日本", "support: ü ✓ 日本\n"),
    ],
)
async def test_a_reply_is_printed_harmlessly(text: str, printed: str) -> None:
    out = io.StringIO()
    await TerminalTransport(io.StringIO(), out).send(reply(text))
    assert out.getvalue() == printed


async def test_what_the_terminal_cannot_show_is_escaped() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    await TerminalTransport(io.StringIO(), out).send(reply("ü ✓"))
    assert raw.getvalue() == b"support: \\xfc \\u2713\n"


async def test_replies_are_printed_whole() -> None:
    out = io.StringIO()
    transport = TerminalTransport(io.StringIO(), out)
    await asyncio.gather(*(transport.send(reply("x" * 1000, f"a{number}")) for number in range(10)))
    assert sorted(out.getvalue().splitlines()) == sorted(f"a{number}: {'x' * 1000}" for number in range(10))


async def test_a_closed_terminal_is_an_error() -> None:
    out = io.StringIO()
    out.close()
    with pytest.raises(TransportUnavailable, match="the reply cannot be printed: I/O operation on closed file"):
        await TerminalTransport(io.StringIO(), out).send(reply("x"))


# What is typed


async def test_lines_are_messages_with_ids_of_their_own() -> None:
    text = "Hello\n\n  \nWhere is it?\r\nlast"
    one, other = TerminalTransport(io.StringIO(text), source="ann"), TerminalTransport(io.StringIO(text))
    found = await received(one)
    assert [(each.text, each.source) for each in found] == [("Hello", "ann"), ("Where is it?", "ann"), ("last", "ann")]
    assert [each.message_id.rpartition("-")[2] for each in found] == ["1", "4", "5"]
    assert len({each.message_id for each in [*found, *await received(other)]}) == 6
    assert await received(one) == []


async def test_lines_come_through_a_pipe_as_they_are_typed() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as stdin, os.fdopen(writing, "wb", buffering=0) as typed:
        transport = TerminalTransport(stdin)
        async with aclosing(transport.receive()) as messages, asyncio.timeout(10):  # type: ignore[type-var]
            typed.write(b"eins\nzw")
            assert (await anext(messages)).text == "eins"
            waiting = asyncio.ensure_future(anext(messages))
            typed.write("ei ü".encode()[:-1])
            typed.write("ü".encode()[1:] + b"\n\xff\x00\n")
            assert (await waiting).text == "zwei ü"
            assert (await anext(messages)).text == "\\xff\\x00"
            typed.close()
            assert await anext(messages, None) is None


async def test_a_line_is_kept_until_the_next_one_is_asked_for() -> None:
    transport = TerminalTransport(io.StringIO("one\ntwo\n"))
    first = await first_of(transport.receive())
    assert await first_of(transport.receive()) == first
    assert [each.text for each in await received(transport)] == ["one", "two"]


async def first_of(messages: AsyncIterator[InboundMessage]) -> InboundMessage:
    async with aclosing(messages) as lines:  # type: ignore[type-var]
        return await anext(lines)


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as typed:
        transport = TerminalTransport(stdin)
        attempt = asyncio.ensure_future(anext(transport.receive()))
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        typed.write("one\n")
        typed.close()
        assert [each.text for each in await received(transport)] == ["one"]


async def test_a_closed_input_has_ended() -> None:
    stdin = io.StringIO()
    stdin.close()
    assert await received(TerminalTransport(stdin)) == []


PROGRAM = """
import asyncio
from antiphon.transports.terminal import TerminalTransport

async def main():
    messages = TerminalTransport().receive()
    print((await anext(messages)).text, flush=True)
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0.05)
    waiting.cancel()

asyncio.run(main())
"""


def test_a_program_ends_while_a_line_is_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, stderr=-1, text=True)
    assert child.stdin is not None
    try:
        child.stdin.write("hello\n")
        child.stdin.flush()
        assert child.wait(30) == 0  # its input is still open
    finally:
        child.kill()
        said, errors = child.communicate()
    assert (said, errors) == ("hello\n", "")


@pytest.mark.parametrize("source", ["", None, 7])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="the source of what is typed is"):
        TerminalTransport(source=source)
