"""Where lines come from: a person at a terminal, a pipe, or the command line.

Rule 1: nothing here blocks the event loop; whatever blocks does it elsewhere, and is left behind at the end.
Rule 2: while somebody else writes to the terminal nothing that is typed shows. It is kept, and stands in the next line.
Rule 3: the terminal is left as it was found.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from antiphon.cli.plain import printable

T = TypeVar("T")

MOST_BYTES = 65536
END = "\x04"
"""What Ctrl-D is to a terminal that does not collect lines."""
ERASE = ("\x7f", "\b")
SEQUENCE = re.compile("\x1b[\\[O][0-9;]*[A-Za-z~]")
"""What arrows and the like send."""


class Lines(Protocol):
    """Gives lines, one at a time."""

    interactive: bool
    """Whether there is a person who types and sees what is typed."""

    async def line(self, prompt: str) -> str | None:
        """The next line, without its end; None if there is none any more."""
        ...

    async def begun(self, *, whole: bool = False) -> None:
        """Wait until somebody has begun to type a line, or has typed it whole; where nobody types, for ever."""
        ...

    def whole(self) -> str | None:
        """A line that was typed while nobody asked for one."""
        ...


class Given:
    """Lines that are known from the beginning."""

    interactive = False

    def __init__(self, lines: Sequence[str]) -> None:
        self._left = deque(lines)

    async def line(self, prompt: str) -> str | None:
        return self._left.popleft() if self._left else None

    async def begun(self, *, whole: bool = False) -> None:
        await asyncio.Event().wait()

    def whole(self) -> str | None:
        return None


class Piped:
    """The lines of standard input, blank ones left out."""

    interactive = False

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("backslashreplace")
        self._text, self._over = "", False

    async def line(self, prompt: str) -> str | None:
        while True:
            line, found, rest = self._text.partition("\n")
            if not found and not self._over:
                await self._more()
                continue
            self._text = rest
            if line.strip():
                return line.rstrip("\r")
            if not found:
                return None

    async def begun(self, *, whole: bool = False) -> None:
        await asyncio.Event().wait()

    def whole(self) -> str | None:
        return None

    async def _more(self) -> None:
        data = await elsewhere(lambda: os.read(sys.stdin.fileno(), MOST_BYTES))
        self._over = not data
        self._text += self._decoder.decode(data, final=self._over)


class Keyboard:
    """A person at a terminal, with line editing."""

    interactive = True

    def __init__(self) -> None:
        import readline
        import termios

        self._readline, self._termios = readline, termios
        self._fd = sys.stdin.fileno()
        self._found = termios.tcgetattr(self._fd)
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("replace")
        self._typed = ""
        """What was typed while nobody asked."""
        self._editing = False
        self._woken = asyncio.Event()

    def __enter__(self) -> Keyboard:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCONT, self._resumed)
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCONT)
        asyncio.get_running_loop().remove_reader(self._fd)
        with suppress(self._termios.error, OSError):  # a terminal that is gone has nothing to be left as
            self._termios.tcsetattr(self._fd, self._termios.TCSADRAIN, self._found)
            if self._editing:
                sys.stdout.write("\n")
                sys.stdout.flush()

    async def line(self, prompt: str) -> str | None:
        line = self.whole()
        if line is not None:
            sys.stdout.write(f"{prompt}{printable(line)}\n")
            sys.stdout.flush()
            return line
        if self._typed.startswith(END):
            return None
        asyncio.get_running_loop().remove_reader(self._fd)
        self._set(echo=True)
        self._editing = True
        typed, self._typed = self._typed.rstrip(END), ""
        try:
            line = await elsewhere(lambda: self._edited(prompt, typed))
        except EOFError:
            line = None
        self._editing = False
        self._listen()
        return line

    async def begun(self, *, whole: bool = False) -> None:
        while not self._typed or (whole and "\n" not in self._typed and not self._typed.startswith(END)):
            self._woken.clear()
            await self._woken.wait()

    def whole(self) -> str | None:
        line, found, rest = self._typed.partition("\n")
        if not found:
            return None
        self._typed = rest
        return line

    def _edited(self, prompt: str, typed: str) -> str:
        readline = self._readline
        readline.set_startup_hook(lambda: readline.insert_text(typed))
        return input(prompt)

    def _listen(self) -> None:
        self._set(echo=False)
        asyncio.get_running_loop().add_reader(self._fd, self._heard)

    def _heard(self) -> None:
        for character in SEQUENCE.sub("", self._decoder.decode(self._read())):
            if character in ERASE:
                self._typed = self._typed[:-1] if not self._typed.endswith("\n") else self._typed
            elif character.isprintable() or character in ("\n", END):
                self._typed += character
        self._woken.set()

    def _read(self) -> bytes:
        """What was typed; where there is no terminal any more, that nothing will be."""
        try:
            data = os.read(self._fd, MOST_BYTES)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        return data or END.encode()

    def _resumed(self) -> None:
        """The program was stopped, and goes on in a terminal that others have used."""
        if not self._editing:
            self._set(echo=False)

    def _set(self, *, echo: bool) -> None:
        """Let keys come one by one, and be shown or not. Line editing takes over from there."""
        termios = self._termios
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[3] |= termios.ECHO if echo else 0
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)


async def elsewhere(work: Callable[[], T]) -> T:
    """What this comes to, done where it may block. The program may end without waiting for it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    def run() -> None:
        result, raised = None, None
        try:
            result = work()
        except BaseException as error:
            raised = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=run, daemon=True).start()
    return await outcome


class Interrupts:
    """What Ctrl-C does: it stops what can be stopped, once; otherwise one leaves."""

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave = leave
        self._stop: Callable[[], object] | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """From here on Ctrl-C comes here, and being told to end is to leave, as is the end of the terminal."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGINT: self.pressed,
            signal.SIGTERM: self._leave,
        }
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup the end of a terminal ends nothing
            handlers[signal.SIGHUP] = self._leave
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def pressed(self) -> None:
        """Ctrl-C."""
        stop, self._stop = self._stop, None
        (stop or self._leave)()

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Meanwhile Ctrl-C does this."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None
