"""`antiphon demo`: a server is killed in the middle of a refund, and the next one resumes it from the file.

Rule 1: the server is `antiphon serve` on `refund_desk.py`, a process of its own; this one is its client and the bank.
Rule 2: this process never writes to the store. What it claims about the file it has read there.
Rule 3: the bank's ledger is outside of the store, survives the kill, and honours idempotency keys.
Rule 4: no process is left behind, and every connection stays on the loopback interface.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.log_command import follow_log
from antiphon.cli.refund_desk import DESK, LOOPBACK, PORT_VARIABLE, CallReport
from antiphon.cli.store_options import SQLITE_URL_PREFIX, STORE_VARIABLE, json_option, open_store_to_read, read_store
from antiphon.cli.table_layout import Cell, Column, number_ranges
from antiphon.core.codec import plain_data, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import CallStarted
from antiphon.core.turns import Journal, journal_of
from antiphon.store.verification import verify_store

if TYPE_CHECKING:
    import httpx2

PACE_SECONDS, TIMEOUT_SECONDS = 0.8, 15.0  # the pause before a line at a terminal; how long the server may be silent
FOLDER_PREFIX, FILE_NAME, TENANT, ORDER_EVENT = "antiphon-demo-", "refunds.db", "default", "shop.order"
QUESTION = {"text": "I was charged twice for order 7.", "thread_id": "demo", "message_id": "order-7"}
SENDERS, ENOUGH, REPEATS = 8, 101, 40
"""Orders sent at the same time; orders acknowledged before the kill; orders sent again after it."""
YES, NO = Cell(" ✓", "bold green"), Cell(" ✗", "bold red")
KEEP_HELP = "The SQLite file to create; without it, one in a new temporary directory. It stays there."
SPOKEN, STATED = [Column("", 2), Column("", 7), Column("")], [Column("", 2), Column("")]


class DemoFailed(AntiphonError):
    """The demo did not finish. What the server's process wrote to standard error says why."""


class Compared(msgspec.Struct, frozen=True):
    """What was acknowledged, compared with what the file holds."""

    acknowledged: int
    missing: int
    doubled: int
    unacknowledged: int  # recorded, with the response still on its way when the process died

    @property
    def holds(self) -> bool:
        """Whether every acknowledged order is in the file once."""
        return self.missing == 0 and self.doubled == 0


class Accounted(msgspec.Struct, frozen=True):
    """The calls of one turn by two processes, compared with its journal and the bank's ledger."""

    calls: int
    read: int  # from the journal by the second process, and not made again
    again: int  # by both processes, under one key each
    anew: int
    payments: int
    entries: int

    @property
    def holds(self) -> bool:
        """Whether each call was made once, but for the payment, which was made twice and booked once."""
        once = self.read + self.again + self.anew == self.calls
        return once and self.read > 0 and self.again == self.entries == 1 and self.payments == 2


def compare_orders(acknowledged: Sequence[Envelope], recorded: Sequence[Envelope]) -> Compared:
    """What was acknowledged, compared with what the file holds."""
    promised, there = ({(e.channel_id, e.sequence, e.envelope_id) for e in some} for some in (acknowledged, recorded))
    contents = Counter((each.channel_id, each.sender_id, to_json(each.event_data)) for each in recorded)
    return Compared(len(promised), len(promised - there), contents.total() - len(contents), len(there - promised))


def account_calls(log: Sequence[Envelope], made: Sequence[Sequence[CallReport]], *, entries: int) -> Accounted:
    """The calls that the first and the second process have made, compared with the journal of their turn."""
    first, second = made
    started = Counter((event.index, event.key) for e in log if isinstance(event := event_of(e), CallStarted))
    again = sum(times > 1 for times in started.values())
    payments = sum(bool(call.key) for call in (*first, *second))
    return Accounted(len(journal_in(log)), len(first) - again, again, len(second) - again, payments, entries)


def journal_in(log: Sequence[Envelope]) -> Journal:
    """The calls of the only turn in a log."""
    turns = (event.turn for e in log if isinstance(event := event_of(e), CallStarted))
    return journal_of(log, next(turns, ""))


class RefundDemo:
    """Two servers one after the other, the kill between them, and the bank."""

    def __init__(self, url: str, out: CommandOutput | None = None, *, pace: float = 0) -> None:
        self._url, self._out, self._pace = url, out, pace
        self._reports: asyncio.Queue[tuple[CallReport, asyncio.StreamWriter]] = asyncio.Queue()
        self._made: dict[int, list[CallReport]] = {}  # by process
        self._ledger: set[str] = set()
        self._acknowledged: list[Envelope] = []
        self.channel_id, self._orders = "", ""  # the channel of the refund, and that of the orders

    async def run(self) -> None:
        """Show everything, as JSON if there is no `out`; `DemoFailed` if anything is not as promised."""
        async with await asyncio.start_server(self._receive, LOOPBACK) as bank:
            port = bank.sockets[0].getsockname()[1]
            async with self._serve("1", port) as (process, http):
                await self._refund_until_killed(process, http)
            await self._inspect_file()
            async with self._serve("3", port) as (process, http):
                await self._resume_refund(http)
                await self._repeat_orders(http)
                process.terminate()
                if code := await process.wait():
                    raise DemoFailed(f"the second server ended with exit code {code}")
        await self._verify_file()
        await self._tell("finished", "4  What is left", {"store": self._url, "channel_id": self.channel_id})

    async def _tell(self, step: str, said: str, facts: object, *, who: str = "", mark: Cell | str = "") -> None:
        """Show one step: its facts as JSON; or what is said by someone, stated with a mark, or a heading."""
        if self._out is None:
            write_json({"step": step, **plain_data(facts)})
            return
        await asyncio.sleep(self._pace)
        if who:
            self._out.row(SPOKEN, [mark, Cell(who, "cyan"), said])
        elif mark:
            self._out.row(STATED, [mark, said])
        else:
            self._out.heading(said)

    async def _check(self, step: str, said: str, facts: object, *, holds: bool) -> None:
        await self._tell(step, said, facts, mark=YES if holds else NO)
        if not holds:
            raise DemoFailed(f"{step} {to_json(facts).decode()}: this must not happen; please report it")

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if line := await reader.readline():
            self._reports.put_nowait((msgspec.json.decode(line, type=CallReport), writer))

    @asynccontextmanager
    async def _serve(self, number: str, port: int) -> AsyncIterator[tuple[Process, httpx2.AsyncClient]]:
        """A server that listens, and a client of it; both are gone at the end."""
        import httpx2

        file, env = Path(__file__).with_name("refund_desk.py"), {**os.environ, PORT_VARIABLE: str(port)}
        words = ("-m", "antiphon", "serve", str(file), "--store", self._url, "--port", "0", "--json")
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE, env=env)
        try:
            assert process.stdout is not None, "it was started with a pipe"
            line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_SECONDS)
            if not line:
                raise DemoFailed(f"the server ended early, with exit code {await process.wait()}")
            url, headers = json.loads(line)["url"], {"Authorization": f"Bearer {json.loads(line)['token']}"}
            client = httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=TIMEOUT_SECONDS)
            title = f"{number}  antiphon serve {file.name} (process {process.pid})"
            await self._tell("served", title, {"process": process.pid, "url": url})
            async with client as http:
                yield process, http
        except (TimeoutError, httpx2.HTTPError) as error:
            raise DemoFailed(f"the server does not answer ({type(error).__name__})") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _refund_until_killed(self, process: Process, http: httpx2.AsyncClient) -> None:
        """Ask for the refund; once the bank has paid, send orders, and kill the server while it writes them."""
        await self._tell("asked", QUESTION["text"], QUESTION, who="you")
        asking = asyncio.create_task(http.post(f"/agents/{DESK}/invoke", json=QUESTION, timeout=None))
        while not (await self._next_call()).key:
            pass
        [row] = (await http.get("/channels")).raise_for_status().json()["channels"]
        opened = (await http.post("/channels", json={"target": [DESK]})).raise_for_status().json()
        self.channel_id, self._orders, numbers = row["channel_id"], opened["channel_id"], count(1)

        async def send() -> None:
            while process.returncode is None:
                self._acknowledged.append(await self._send_order(http, next(numbers)))
                if len(self._acknowledged) == ENOUGH:
                    process.kill()

        await asyncio.gather(*(send() for _ in range(SENDERS)), return_exceptions=True)  # the kill cuts them off
        if len(self._acknowledged) < ENOUGH:
            raise DemoFailed("the server does not take orders")
        await asyncio.gather(asking, return_exceptions=True)
        self._unconfirmed.close()
        sent, code = [(order.sequence, order.envelope_id) for order in self._acknowledged], await process.wait()
        said = f"sends orders: {len(sent)} are acknowledged, as {number_ranges(number for number, _ in sent)}"
        await self._tell("ordered", said, {"channel_id": self._orders, "acknowledged": sent}, who="shop")
        title = f"2  kill -9 {process.pid}: exit code {code}"
        await self._tell("killed", title, {"process": process.pid, "exit_code": code})

    async def _send_order(self, http: httpx2.AsyncClient, number: int) -> Envelope:
        body = {"event_type": ORDER_EVENT, "data": {"order": number}, "message_id": f"order {number}"}
        response = await http.post(f"/channels/{self._orders}/messages", json=body)
        return msgspec.json.decode(response.raise_for_status().content, type=Envelope)

    async def _next_call(self) -> CallReport:
        """Show the next call that is reported, and answer it. What the bank has just paid it does not confirm."""
        call, writer = await asyncio.wait_for(self._reports.get(), TIMEOUT_SECONDS)
        self._made.setdefault(call.process, []).append(call)
        said = f"calls {call.name}: {call.what}" + f", key {call.key[:8]}" * bool(call.key)
        if call.name == "model":
            said = f"its model wants {call.what}" if call.what else "its model has the answer"
        await self._tell("called", said, call, who=DESK)
        known = not call.key or call.key in self._ledger
        if call.key:
            self._ledger.add(call.key)
            said = "knows this key: it has paid, and pays nothing twice" if known else "pays, and is slow to confirm"
            facts = {"key": call.key, "known": known, "entries": len(self._ledger)}
            await self._tell("booked", said, facts, who="bank")
        self._unconfirmed = writer
        if known:
            writer.write(b"confirmed\n")
            writer.close()
        return call

    async def _inspect_file(self) -> None:
        """Compare the file with what was acknowledged, while no process uses it."""
        journal = journal_in(await self._read()).values()
        calls = [(call.started.name, call.outcome is not None) for call in journal if call.started]
        said = ", ".join(name if done else f"{name} without a result" for name, done in calls)
        await self._check("recalled", f"In the log: {said}.", {"calls": calls}, holds=not calls[-1][1])
        found = compare_orders(self._acknowledged, await self._read(ORDER_EVENT))
        said = f"{found.acknowledged} orders acknowledged: {found.missing} missing, {found.doubled} there twice."
        await self._check("compared", said, found, holds=found.holds)

    async def _resume_refund(self, http: httpx2.AsyncClient) -> None:
        """Ask again under the same message id, and follow the turn, which the second server resumes by itself."""
        await self._tell("asked", f"ask again, as message {QUESTION['message_id']}", QUESTION, who="you")
        asking = asyncio.create_task(http.post(f"/agents/{DESK}/invoke", json=QUESTION))
        while (await self._next_call()).what:
            pass
        answer = (await asking).raise_for_status().json()
        await self._tell("answered", answer["text"], answer, who=DESK, mark=YES)
        found = account_calls(await self._read(), list(self._made.values()), entries=len(self._ledger))
        said = f"{found.read} from the log, {found.again} repeated with its key, {found.anew} new"
        said = f"{found.calls} calls: {said}. {found.payments} payments asked for, {found.entries} made."
        await self._check("accounted", said, found, holds=found.holds)

    async def _repeat_orders(self, http: httpx2.AsyncClient) -> None:
        """Send the last orders, and a few more, under the ids that they had."""
        before = len(await self._read(ORDER_EVENT))
        for number in range(before + SENDERS + 1 - REPEATS, before + SENDERS + 1):
            await self._send_order(http, number)
        now = [str(envelope.event_data["order"]) for envelope in await self._read(ORDER_EVENT)]
        facts = {"orders": REPEATS, "added": len(now) - before, "doubled": len(now) - len(set(now))}
        said = f"{REPEATS} orders sent again under their ids: {facts['added']} new, {facts['doubled']} there twice."
        await self._check("repeated", said, facts, holds=not facts["doubled"])

    async def _verify_file(self) -> None:
        found = await read_store(self._url, TENANT, verify_store)
        facts = {"channels": found.channels, "envelopes": found.envelopes, "problems": len(found.problems)}
        said = f"The file: {', '.join(f'{number} {what}' for what, number in facts.items())} in the hash chains."
        await self._check("verified", said, facts, holds=not found.problems)

    async def _read(self, event_type: str = "") -> list[Envelope]:
        """The orders in the file; without a type, the log of the refund."""
        async with open_store_to_read(self._url, TENANT) as store:
            log = follow_log(store, self._orders if event_type else self.channel_id)
            return [envelope async for envelope in log if event_type in ("", envelope.event_type)]


@click.command()
@click.option("--keep", metavar="PATH", type=click.Path(path_type=Path), help=KEEP_HELP)
@click.option("--fast", is_flag=True, help="No pauses between the lines; the default when piped, and under CI.")
@json_option("One JSON object a line, one for each thing that happens.")
def demo_command(*, keep: Path | None, fast: bool, as_json: bool) -> None:
    """Watch a refund that survives the kill of its server.

    An agent with a scripted model runs in `antiphon serve`, on a SQLite file. The process is killed with SIGKILL after
    the bank has paid, and before the result is recorded. A second server opens the same file: every acknowledged
    message is there, once; the turn resumes from its journal; the bank pays nothing twice; the answer arrives. It takes
    about twenty seconds, or three with --fast; no key, no network.
    """
    path = _new_file(keep)
    url, out, called = SQLITE_URL_PREFIX + str(path), select_output(), Path(sys.argv[0])
    if as_json:
        asyncio.run(RefundDemo(url).run())
        return
    out.line("A refund, a kill -9 in the middle of it, and a second server that finishes it.")
    out.line("The models are scripted: no key, no network. Everything is recorded in one file,")
    out.command(Cell(str(path), "dim"))
    demo = RefundDemo(url, out, pace=0 if fast or not out.terminal or os.environ.get("CI") else PACE_SECONDS)
    asyncio.run(demo.run())
    out.line("   The file stays, to look into. Programs to begin with are in the folder examples.")
    there = shutil.which("antiphon") or called.name != "antiphon"
    program = "antiphon" if there else shlex.quote(os.path.relpath(called))
    looks = (f"{program} {words}" for words in ("channels", f"log {demo.channel_id} --audit", "verify"))
    for line in (f"export {STORE_VARIABLE}={shlex.quote(url)}", *looks, removal_command(path)):
        out.command("     ", Cell(line, "bold"))


def removal_command(path: Path) -> str:
    """The shell command that removes what a demo leaves."""
    alone = path.name == FILE_NAME and path.parent.name.startswith(FOLDER_PREFIX)
    return f"rm -r {shlex.quote(str(path.parent))}" if alone else f"rm {shlex.quote(str(path))}*"


def _new_file(keep: Path | None) -> Path:
    """The path of the file, which must not exist yet: another one is not the demo's to write to."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)) / FILE_NAME
    path = keep.absolute()
    if path.parent.is_dir() and not os.path.lexists(path):
        return path
    missing = f"there is no directory {str(path.parent)!r}."
    said = f"{str(keep)!r} exists already; name a new file." if path.parent.is_dir() else missing
    raise click.BadParameter(said, param_hint="--keep")
