"""What is outside of the process that is killed: a model, a payment ledger and a few tools, behind a real socket.

Rule 1: it lives in the process of the test, so it remembers everything that was asked, whoever died meanwhile.
Rule 2: which step a model takes follows from how far the turn has come, not from how often it was asked. Who asks
        again gets the same step, but never in the same words.
Rule 3: the ledger enters a payment once for each key, and gives the first answer to whoever comes again with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from socketserver import BaseServer
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]

ROUNDS = (("look_up", "stock"), ("pay",), ("notify", "ship", "file"))
"""What the model asks for, message by message. Behind the last it says that it is done."""
PLAN = (
    *(name for step, tools in enumerate(ROUNDS) for name in (f"model {step}", *tools)),
    f"model {len(ROUNDS)}",
)
"""Every call of the turn by its position."""
ROUND = {
    **{f"model {step}": 2 * step for step in range(len(ROUNDS) + 1)},
    **{tool: 2 * step + 1 for step, tools in enumerate(ROUNDS) for tool in tools},
}
"""Which calls are made together: who makes one of a later round has seen what all of the earlier ones came to."""
CENTS = 4200
DELAYS = {"look_up": 0.002, "stock": 0.012, "pay": 0.010, "notify": 0.001, "ship": 0.008, "file": 0.016}
MODEL_DELAY = 0.008
LONGEST_HOLD = 30.0


@dataclass(frozen=True)
class Asked:
    """A request that has arrived whole."""

    run: str
    name: str
    """The tool, or `model` and the number of the step."""
    body: Body
    key: str = ""


@dataclass(frozen=True)
class Entry:
    """A payment that was made."""

    order: str
    cents: int
    memo: str
    key: str


@dataclass
class Hold:
    """A call whose answer is kept back, though it has taken effect."""

    arrived: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Script:
    """What is asked in a turn, and what is answered."""

    reads: Callable[[str, Body, str], Asked]
    """What was asked, from the place, the body and the key of a request."""
    answers: Callable[[Asked, int], Body]
    """What a tool or a model answers to what was asked as the so-manieth request; a model lists its `calls`."""


class World:
    """The servers, and what they remember. Open with `with`."""

    def __init__(self, script: Script | None = None, *, heeds_keys: bool = True) -> None:
        self._script = script or ORDERS
        self.asked: list[Asked] = []
        self.entries: list[Entry] = []
        self.finals: dict[str, list[str]] = {}
        """By run, every wording in which the model has said that it is done."""
        self._heeds_keys = heeds_keys
        self._answers: dict[str, Body] = {}
        self._holds: dict[str, Hold] = {}
        self._lock = threading.Lock()
        self._pause = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pause.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_port

    def asked_by(self, run: str) -> list[Asked]:
        """Everything that a turn has asked for, in the order of arrival."""
        with self._lock:
            return [asked for asked in self.asked if asked.run == run]

    def paid_by(self, run: str) -> list[Entry]:
        """The payments for an order; it is called like the turn."""
        with self._lock:
            return [entry for entry in self.entries if entry.order == run]

    @contextmanager
    def holding(self, name: str) -> Iterator[Hold]:
        """Keep back the answers to this call."""
        hold = self._holds[name] = Hold()
        try:
            yield hold
        finally:
            del self._holds[name]
            hold.let_go.set()

    def answer(self, place: str, body: Body, key: str) -> Body:
        """Do what is asked, and give the answer once it is time."""
        with self._lock:
            asked = self._script.reads(place, body, key)
            self.asked.append(asked)
            answer = self._done(asked, serial=len(self.asked))
        self._pause.wait(DELAYS.get(asked.name.rpartition("/")[2], MODEL_DELAY))
        hold = self._holds.get(asked.name)
        if hold is not None:
            hold.arrived.set()
            hold.let_go.wait(LONGEST_HOLD)
        return answer

    def _done(self, asked: Asked, serial: int) -> Body:
        if asked.key:
            return self._paid(asked)
        answer = self._script.answers(asked, serial)
        if answer.get("calls") == []:
            self.finals.setdefault(asked.run, []).append(answer["text"])
        return answer

    def _paid(self, asked: Asked) -> Body:
        if self._heeds_keys and asked.key in self._answers:
            return self._answers[asked.key]
        body = asked.body
        self.entries.append(Entry(body["order"], body["cents"], body["memo"], asked.key))
        return self._answers.setdefault(asked.key, {"text": f"receipt {len(self.entries)}"})


def _asked(place: str, body: Body, key: str) -> Asked:
    if place == "/model":
        results = sum(role == "tool" for role, _ in body["messages"])
        return Asked(body["run"], f"model {_step(results)}", body)
    if place == "/pay":
        return Asked(body["order"], "pay", body, key)
    return Asked(body["run"], place.removeprefix("/tool/"), body)


def _step(results: int) -> int:
    shown = [sum(map(len, ROUNDS[:step])) for step in range(len(ROUNDS) + 1)]
    return shown.index(results)


def _answer(asked: Asked, serial: int) -> Body:
    if asked.name in DELAYS:
        return {"text": f"{asked.name} is done"}
    step = int(asked.name.removeprefix("model "))
    if step < len(ROUNDS):
        return {"text": "", "calls": [[tool, _arguments(tool, asked.run, serial)] for tool in ROUNDS[step]]}
    return {"text": f"Order {asked.run} is on its way, as request {serial} has it.", "calls": []}


def _arguments(tool: str, run: str, serial: int) -> Body:
    if tool == "pay":
        return {"order": run, "cents": CENTS, "memo": f"for order {run}, as request {serial} puts it"}
    return {"note": f"{tool} for order {run}, as request {serial} puts it"}


ORDERS = Script(_asked, _answer)
"""A turn that sees to an order."""


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, world: World, request: socket, address: tuple[str, int], server: BaseServer) -> None:
        self._world = world
        super().__init__(request, address, server)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        with suppress(ConnectionError):  # whoever asked was killed
            text = self.rfile.read(length)
            if len(text) == length:
                answer = self._world.answer(self.path, json.loads(text), self.headers.get("Idempotency-Key", ""))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
