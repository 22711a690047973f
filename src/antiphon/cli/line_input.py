"""Lines of input: from a person at a terminal, a pipe, or the command line.

Rule 1: nothing here blocks the event loop. Blocking calls run in daemon threads, which the program does not wait for.
Rule 2: while an answer is shown, typed text is not echoed. It is kept, and becomes the beginning of the next line.
Rule 3: the terminal is restored at the end.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from antiphon.cli.table_layout import escape_unprintable
from antiphon.hub.blocking_calls import run_blocking

T = TypeVar("T")

MAX_READ_BYTES = 65536
END_OF_INPUT = "\x04"
"""Ctrl-D on a terminal in non-canonical mode."""
ERASE_CHARACTERS = ("\x7f", "\b")
ESCAPE_SEQUENCE = re.compile("\x1b[\\[O][0-9;]*[A-Za-z~]")
"""The sequences of arrow keys and similar keys."""


class ReadLines:
    """Lines that are read, and not typed at a prompt."""

    interactive = False

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def line(self, prompt: str) -> str | None:
        return await anext(self._lines, None)

    async def wait_for_typing(self, *, whole: bool = False) -> None:
        await asyncio.Event().wait()

    def take_typed_line(self) -> str | None:
        return None


async def given_lines(lines: Iterable[str]) -> AsyncIterator[str]:
    """Lines from the command line."""
    for line in lines:
        yield line


async def piped_lines() -> AsyncIterator[str]:
    """The lines of standard input, blank ones left out."""
    decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("backslashreplace")
    rest, over = "", False
    while not over:
        data = await run_blocking(lambda: os.read(sys.stdin.fileno(), MAX_READ_BYTES), "keyboard")
        over = not data
        *lines, rest = (rest + decoder.decode(data, final=over)).split("\n")
        for line in [*lines, rest] if over else lines:
            if line.strip():
                yield line.rstrip("\r")


class KeyboardLines:
    """A person at a terminal, with line editing."""

    interactive = True
    """A person types and sees what is typed."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._found = termios.tcgetattr(self._fd)
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("replace")
        self._typed = ""
        """What was typed before it was asked for."""
        self._editing = False
        self._woken = asyncio.Event()

    def __enter__(self) -> KeyboardLines:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._restore_mode)
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCONT)
        asyncio.get_running_loop().remove_reader(self._fd)
        with suppress(termios.error, OSError):  # the terminal may be gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._found)
            if self._editing:
                print(flush=True)

    async def line(self, prompt: str) -> str | None:
        """The next line, without its end; None at the end of the input."""
        line = self.take_typed_line()
        if line is not None:
            print(f"{prompt}{escape_unprintable(line)}", flush=True)
            return line
        if self._typed.startswith(END_OF_INPUT):
            return None
        asyncio.get_running_loop().remove_reader(self._fd)
        self._set_mode(echo=True)
        self._editing = True
        typed, self._typed = self._typed.rstrip(END_OF_INPUT), ""
        with suppress(EOFError):
            line = await run_blocking(lambda: _edit_line(prompt, typed), "keyboard")
        self._editing = False
        self._listen()
        return line

    async def wait_for_typing(self, *, whole: bool = False) -> None:
        """Wait until a line is begun, or is `whole`."""
        while not self._typed or (whole and "\n" not in self._typed and not self._typed.startswith(END_OF_INPUT)):
            self._woken.clear()
            await self._woken.wait()

    def take_typed_line(self) -> str | None:
        """A line that was typed before it was asked for."""
        line, found, rest = self._typed.partition("\n")
        if not found:
            return None
        self._typed = rest
        return line

    def _listen(self) -> None:
        self._set_mode(echo=False)
        asyncio.get_running_loop().add_reader(self._fd, self._read_keys)

    def _read_keys(self) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(self._fd, MAX_READ_BYTES)
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._fd)
        for character in ESCAPE_SEQUENCE.sub("", self._decoder.decode(data) if data else END_OF_INPUT):
            if character in ERASE_CHARACTERS:
                self._typed = self._typed[:-1] if not self._typed.endswith("\n") else self._typed
            elif character.isprintable() or character in ("\n", END_OF_INPUT):
                self._typed += character
        self._woken.set()

    def _restore_mode(self) -> None:
        """Set the mode again after SIGCONT: other programs have used the terminal meanwhile."""
        if not self._editing:
            self._set_mode(echo=False)

    def _set_mode(self, *, echo: bool) -> None:
        """Read key by key, with or without echo. `input()` adds line editing to that."""
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[3] |= termios.ECHO if echo else 0
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)


LineSource = ReadLines | KeyboardLines


def _edit_line(prompt: str, typed: str) -> str:
    import readline

    readline.set_startup_hook(lambda: readline.insert_text(typed))
    return input(prompt)


class Interrupts:
    """Ctrl-C: the first one during a turn stops the turn, any other ends the program, by cancelling this task."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        self._task = task
        self._stop: Callable[[], object] | None = None
        self._stopped: object = None
        self.left = False
        """Whether the program was ended by a signal."""

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGINT, and end the program on SIGTERM and SIGHUP."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._leave}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup the end of a terminal ends nothing
            handlers[signal.SIGHUP] = self._leave
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        stop, self._stop = self._stop, None
        self._stopped = (stop or self._leave)()  # kept: it may be a task, which a loop alone does not keep

    def _leave(self) -> None:
        if not self.left:  # once: closing must not be interrupted
            self.left = True
            self._task.cancel()

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within this block Ctrl-C calls `stop`."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None
