"""Kill `antiphon serve` at random moments while HTTP clients retry, and audit what the bank and the logs say.

`python -m tests.crash.serve_kill FOLDER KILLS SEED [SCALE]` prints the result. SCALE shortens model calls (1–15 s) and
the time between kills.

Every request carries a `message_id`, so a client repeats it until it is answered. Calls in doubt, and turns that
reached the limit of crashes, are decided by a person who looks at the bank first.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import httpx2

from antiphon import AgentsTarget, Envelope, FromSpeaker, Hub, TerminateTarget, Transition, TransitionGraph
from antiphon.core.event_data import event_of
from antiphon.core.events import FailedTurn
from antiphon.core.execution_events import CallFailed, CallFinished, CallStarted, TurnClaimed
from tests.crash.outside_world import Body, World
from tests.crash.serve_program import BRANCHES, CHECKER, DESK

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = "tests/crash/serve_program.py"
DAY = 86_400.0
KINDS = ("plain", "pay", "wire", "task", "fan")
CLIENTS = 6
LONGEST_CALL, SHORTEST_CALL = 15.0, 1.0
LONGEST_TRANSFER = 4.0
"""A transfer takes effect at once; how long the bank may take to say so."""
LONGEST_LIFE = 16.0
"""The server is killed after a random part of this time."""
READY = 0.9
"""How likely it is that a server is killed after it was ready, not while it starts."""
LONGEST_START = 30.0
LONGEST_TAIL = 900.0
"""How long clients may wait for their last answers once the kills are over."""

GRAPH = TransitionGraph(
    initial_speaker="shop",
    transitions=[Transition(FromSpeaker("shop"), AgentsTarget(list(BRANCHES)))],
    default_target=TerminateTarget("done"),
)
SCRIPT: dict[tuple[str, str], tuple[str, ...]] = {
    ("plain", DESK): (),
    ("pay", DESK): ("pay",),
    ("wire", DESK): ("wire",),
    ("task", DESK): (f"delegate_to_{CHECKER}",),
    ("task", CHECKER): ("pay",),
    **{("fan", branch): ("pay",) for branch in BRANCHES},
}
"""The tools that an agent calls, one a model call, by the kind of request."""
PAYERS: dict[str, tuple[str, ...]] = {"pay": (DESK,), "task": (CHECKER,), "fan": BRANCHES}


RETRIED = ("stopping", "store_unavailable", "in_doubt", "suspended")
"""Refusals after which a client asks again."""


class Unanswered(Exception):
    """The server says that there will be no answer."""


@dataclass
class ServerKilling:
    """What was done, and what was found in the end."""

    seed: int = 0
    kills: int = 0
    outages: int = 0
    """Restarts with the wall clock a day later."""
    requests: int = 0
    answered: int = 0
    takeovers: int = 0
    """Claims of turns that another process had claimed before."""
    decided: int = 0
    """Calls in doubt that a person decided."""
    waited: int = 0
    """Turns that reached the limit of crashes and were approved by a person."""
    unsafe: int = 0
    payments: int = 0
    lost: int = 0
    """Answered or acknowledged requests that the logs do not have, or have without an answer."""
    doubled: int = 0
    """Messages or answers that the logs have twice."""
    given_up: int = 0
    """Turns that failed."""
    wrong_transfers: int = 0
    """Unsafe calls that did not take effect exactly once."""
    wrong_payments: int = 0
    repeated_finished_calls: int = 0
    slowest_tail: float = 0.0
    """Seconds from the last start to the last answer."""
    reasons: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def sound(self) -> bool:
        wrong = (self.lost, self.doubled, self.given_up, self.wrong_transfers, self.wrong_payments)
        return not any(wrong) and not self.repeated_finished_calls and self.answered == self.requests

    def add(self, other: ServerKilling) -> None:
        """Count what another hunt has found."""
        for each in fields(self):
            mine, its = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, its) if each.name == "slowest_tail" else mine + its)


class Bank(World):
    """The models and the bank: answers after 1–15 s, and remembers every transfer."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__()
        self._seed, self._scale = seed, scale
        self._served = 0
        self.transfers: Counter[str] = Counter()
        """Unsafe calls by place."""
        self.paid: Counter[str] = Counter()
        """Payments by place, each idempotency key once."""
        self._receipts: set[str] = set()
        self._guard = threading.Lock()

    def answer(self, place: str, body: Body, key: str) -> Body:
        where = str(body["place"])
        with self._guard:
            self._served += 1
            chance = random.Random(f"{self._seed} {where} {self._served}")
            answer = self._said(where) if where.endswith("/model") else self._moved(where, key)
        if "calls" in answer:
            self._pause.wait((SHORTEST_CALL + (LONGEST_CALL - SHORTEST_CALL) * chance.random() ** 3) * self._scale)
        else:
            self._pause.wait(LONGEST_TRANSFER * chance.random() * self._scale)
        return answer

    def _moved(self, where: str, key: str) -> Body:
        if not key:
            self.transfers[where] += 1
        elif key not in self._receipts:
            self._receipts.add(key)
            self.paid[where] += 1
        return {"text": "done"}

    def _said(self, where: str) -> Body:
        request, who, step, _ = where.split("/")
        tools = SCRIPT[request.split("-")[0], who]
        if int(step) == len(tools):
            return {"text": f"{who} answers {request}", "calls": []}
        name = tools[int(step)]
        args = {"task": request} if name.startswith("delegate_") else {"place": f"{request}/{who}/{step}/{name}"}
        return {"text": "", "calls": [[name, args]]}


class Server:
    """`antiphon serve` as a process that is started again on the same port and store."""

    def __init__(self, store: Path, port: int, bank: Bank) -> None:
        self._store, self._port, self._bank = store, port, bank
        self.offset = 0.0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = ["-m", "tests.crash.serve_program", str(self.offset), "serve", PROGRAM]
        options = ["--store", str(self._store), "--port", str(self._port)]
        environment = {**os.environ, "ANTIPHON_TEST_WORLD": str(self._bank.port)}
        with self._store.with_suffix(".log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *options, cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    async def ready(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(LONGEST_START), httpx2.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"http://127.0.0.1:{self._port}/health")
                    return
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()


class _Clients:
    """Clients that send one request after the other, each until it is answered."""

    def __init__(self, url: str, key: str, found: ServerKilling) -> None:
        self._http = httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=None)
        self._found = found
        self.done: list[tuple[str, str]] = []
        """Request and channel, of those that were answered."""
        self.stopping = False

    async def run(self) -> None:
        async with self._http, asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        turn = number
        while not self.stopping:
            request = f"{KINDS[turn % len(KINDS)]}-{number}-{turn}"
            self._found.requests += 1
            turn += 1
            try:
                channel_id = await (self._fan(request) if request.startswith("fan") else self._ask(request))
            except Unanswered as error:
                self._found.reasons[str(error)] += 1
                continue
            self.done.append((request, channel_id))
            self._found.answered += 1

    async def _ask(self, request: str) -> str:
        body = {"text": request, "thread_id": request.rsplit("-", 1)[0], "message_id": request}
        answer = await self._retried("POST", f"/agents/{DESK}/invoke", body)
        return str(answer["channel_id"])

    async def _fan(self, request: str) -> str:
        opening = {"type": "workflow", "target": list(BRANCHES), "knobs": {"graph": GRAPH.to_dict()}}
        channel_id = str((await self._retried("POST", "/channels", opening))["channel_id"])
        body = {"text": request, "message_id": request}
        await self._retried("POST", f"/channels/{channel_id}/messages", body)
        while True:
            state = await self._retried("GET", f"/channels/{channel_id}")
            if state["close_reason"] == "done":
                return channel_id
            if state["status"] != "active":
                raise Unanswered(f"closed: {state['close_reason']}")
            await asyncio.sleep(0.2)

    async def _retried(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        while True:
            try:
                answer = await self._http.request(method, path, json=body)
            except httpx2.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.is_success:
                found: dict[str, Any] = answer.json()
                return found
            reason = answer.json()["error"]["reason"]
            if reason not in RETRIED:
                raise Unanswered(f"{answer.status_code} {reason}")
            await asyncio.sleep(0.2)


class _Person:
    """Decides what waits: a transfer that the bank knows is answered for, everything else is retried."""

    def __init__(self, url: str, key: str, bank: Bank, found: ServerKilling) -> None:
        self._http = httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        self._bank, self._found = bank, found

    async def run(self) -> None:
        async with self._http:
            while True:
                await asyncio.sleep(0.3)
                try:
                    await self._look()
                except httpx2.TransportError:
                    continue

    async def _look(self) -> None:
        answer = await self._http.get("/approvals", params={"view": "operator"})
        for approval in answer.json()["approvals"] if answer.is_success else ():
            place = str(approval["args"].get("place", ""))
            choice = {"decision": "approve", "digest": approval["digest"]}
            if self._bank.transfers[place]:
                choice = {"decision": "respond", "text": "done", "digest": approval["digest"]}
            decided = await self._http.post(f"/approvals/{approval['approval_id']}", json=choice)
            self._found.decided += decided.is_success and bool(approval["tool"])
            self._found.waited += decided.is_success and not approval["tool"]


async def kill_server(folder: Path, kills: int, seed: int, scale: float = 1.0) -> ServerKilling:
    """Kill one server so many times under load, let every client finish, and audit. The files are left."""
    found, chance = ServerKilling(seed), random.Random(seed)
    store = folder / "team.db"
    shop, person = await _keys(store)
    port = _free_port()
    with Bank(seed, scale) as bank:
        server, url = Server(store, port, bank), f"http://127.0.0.1:{port}"
        clients = _Clients(url, shop, found)
        working = asyncio.create_task(clients.run())
        deciding = asyncio.create_task(_Person(url, person, bank, found).run())
        try:
            for number in range(kills):
                if number in (kills // 2, kills - 1):
                    server.offset += DAY
                    found.outages += 1
                await server.start()
                if chance.random() < READY:
                    await server.ready()
                await asyncio.wait([working, deciding], timeout=chance.uniform(0.0, LONGEST_LIFE * scale))
                await server.end(signal.SIGKILL)
                found.kills += 1
            server.offset += DAY
            found.outages += 1
            clients.stopping = True
            await server.start()
            began = time.monotonic()
            async with asyncio.timeout(LONGEST_TAIL):
                await working
            found.slowest_tail = time.monotonic() - began
        finally:
            deciding.cancel()
            working.cancel()
            await asyncio.gather(deciding, working, return_exceptions=True)
            await server.end(signal.SIGTERM)
        await audit(store, bank, clients.done, found)
    return found


async def _keys(store: Path) -> tuple[str, str]:
    """The secrets of the clients' key and of the person's."""
    secrets = []
    for options in (("shop", "service", "invoke", "read", "write"), ("dana", "human", "all")):
        name, kind, *scopes = options
        command = ["-m", "antiphon", "keys", "make", str(store), "--participant", name, "--kind", kind]
        command += [word for scope in scopes for word in ("--scope", scope)]
        made = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        secrets.append((await made.communicate())[0].decode().strip())
    return secrets[0], secrets[1]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def audit(store: Path, bank: Bank, done: list[tuple[str, str]], found: ServerKilling) -> None:
    """Compare what clients were answered with the logs and the bank."""
    async with Hub.open(f"sqlite:///{store}", engine=None) as hub:
        logs = {row.channel_id: await hub.log(row.channel_id) for row in await hub.channels()}
    for log in logs.values():
        _audit_calls(log, found)
    for request, channel_id in done:
        _audit_request(request, logs.get(channel_id, []), found)
        _audit_bank(request, bank, found)
    found.unsafe, found.payments = sum(bank.transfers.values()), sum(bank.paid.values())


def _audit_calls(log: list[Envelope], found: ServerKilling) -> None:
    ended: Counter[tuple[str, int]] = Counter()
    for event in map(event_of, log):
        match event:
            case TurnClaimed(epoch=epoch):
                found.takeovers += epoch > 1
            case CallStarted(turn=turn, index=index):
                found.repeated_finished_calls += ended[turn, index]
            case CallFinished(turn=turn, index=index) | CallFailed(turn=turn, index=index):
                found.repeated_finished_calls += ended[turn, index]
                ended[turn, index] += 1
            case FailedTurn(reason=reason):
                found.given_up += 1
                found.reasons[f"turn failed: {reason}"] += 1
            case _:
                pass


def _audit_request(request: str, log: list[Envelope], found: ServerKilling) -> None:
    said = [each for each in log if each.event_data.get("text") == request and each.sender_id == "shop"]
    found.lost += not said
    found.doubled += max(0, len(said) - 1)
    for who in BRANCHES if request.startswith("fan") else (DESK,):
        words = f"{who} answers {request}"
        answers = [each for each in log if words in (each.event_data.get("text"), each.event_data.get("body"))]
        found.lost += not answers
        found.doubled += max(0, len(answers) - 1)


def _audit_bank(request: str, bank: Bank, found: ServerKilling) -> None:
    kind = request.split("-")[0]
    if kind == "wire":
        found.wrong_transfers += bank.transfers[f"{request}/{DESK}/0/wire"] != 1
    for who in PAYERS.get(kind, ()):
        found.wrong_payments += bank.paid[f"{request}/{who}/0/pay"] != 1


async def kill_servers(folder: Path, kills: int, seed: int, *, hunts: int = 4, scale: float = 1.0) -> ServerKilling:
    """Kill several servers at once, each on its own store, `kills` times in all."""
    found = ServerKilling()
    folders = [folder / f"hunt{number}" for number in range(hunts)]
    for each in folders:
        each.mkdir()
    shares = [kills // hunts + (number < kills % hunts) for number in range(hunts)]
    each_hunt = zip(folders, shares, range(hunts), strict=True)
    for part in await asyncio.gather(*(kill_server(where, share, seed + n, scale) for where, share, n in each_hunt)):
        found.add(part)
    found.seed = seed
    return found


if __name__ == "__main__":
    arguments = sys.argv[1:]
    result = asyncio.run(
        kill_servers(Path(arguments[0]), int(arguments[1]), int(arguments[2]), scale=float([*arguments, "1"][3]))
    )
    print(result)
    print(dict(result.reasons))
