"""Kill a process while customers write to agents, at random moments, and audit what was answered and what has left.

`python -m tests.crash.conversation_kill FOLDER KILLS SEED` prints what was found.

Rule 1: those who write are in this process, and those who are answered too: they survive. A message that was not
        acknowledged is sent again in the next life, under its id.
Rule 2: the other side of the transport sometimes refuses a reply for the moment, and sometimes takes it and does not
        say so.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from socket import socket
from socketserver import BaseServer
from statistics import median
from typing import Self

from antiphon import EV_PACKET, EV_TEXT, Envelope, Hub
from antiphon.cli.verify_command import verify_url
from antiphon.core.conversation_events import (
    EV_REPLY_DELIVERED,
    RECIPIENT_FIELD,
)
from antiphon.core.envelope import Instant, to_datetime
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_TURN_ASSIGNED, Packet
from antiphon.core.execution_events import EV_TURN_CLAIMED
from antiphon.transports.signed_messages import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signed_headers
from tests.crash.conversation_child import CHANNELS, DESK, PERSON, SECRET, answer_to, plan_of, word_on
from tests.crash.kill import Lines

MOST_KILLS = 8
"""How often the conversations of one file are killed, before another file is begun."""
LONGEST_LIFE_SECONDS, LONGEST_WAIT = 1.0, 60.0
MOST_UNANSWERED = 2
"""So many messages are sent to a channel at most before something comes back."""
MESSAGES_PER_HOLD = 12
"""Each so-manieth message of a file ends in a hold."""


@dataclass(frozen=True)
class Arrival:
    """A reply that the other side has taken."""

    reply_id: str
    recipient: str
    text: str
    is_signed: bool


class Sink:
    """The other side of the transport. Open with `with`."""

    def __init__(self, seed: int) -> None:
        self.arrivals: list[Arrival] = []
        self.refused = 0
        """How many requests were refused, or taken without an answer that says so."""
        self._chance, self._lock = random.Random(seed), threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_port

    def answer(self, headers: dict[str, str], body: bytes) -> int:
        """Take a reply; the status of the response."""
        reply = json.loads(body)
        number, sent = headers[ID_HEADER.lower()], int(headers[TIMESTAMP_HEADER.lower()])
        due = signed_headers(SECRET, message_id=number, timestamp=sent, body=body)[SIGNATURE_HEADER]
        is_signed = due == headers[SIGNATURE_HEADER.lower()] and reply["id"] == number
        with self._lock:
            luck, pause = self._chance.random(), self._chance.uniform(0, 0.03)
            self.refused += luck < 0.08
            if luck >= 0.04:
                self.arrivals.append(Arrival(number, reply["recipient"], reply["text"], is_signed))
        time.sleep(pause)
        return 503 if luck < 0.08 else 204


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, sink: Sink, request: socket, address: tuple[str, int], server: BaseServer) -> None:
        self._sink = sink
        super().__init__(request, address, server)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # who sends it was killed
            return
        status = self._sink.answer({name.lower(): value for name, value in self.headers.items()}, body)
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Kill:
    """A kill, in seconds since 1970: the process lived at the first instant, and at the second no more."""

    before: float
    after: float
    ready_again: float = 0.0
    next_kill: float = float("inf")


@dataclass
class Mailbox:
    """What the customers of one file have written, and what was acknowledged."""

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Channel and text of each message, by its number."""
    acks: dict[str, str] = field(default_factory=dict)
    """The envelope of each message that was acknowledged."""
    doubled: int = 0
    kills: list[Kill] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)
    """How many messages were sent to each channel since something came back."""

    def note_kill(self, kill: Kill) -> None:
        if self.kills:
            self.kills[-1] = replace(self.kills[-1], next_kill=kill.before)
        self.kills.append(kill)

    def heed(self, lines: Iterable[str]) -> None:
        """Note what was acknowledged. The same message is the same envelope each time."""
        for line in lines:
            if line.startswith("ack "):
                _, number, envelope_id, _ = line.split()
                self.doubled += self.acks.setdefault(number, envelope_id) != envelope_id


@dataclass
class ConversationKilling:
    """What was done, and what was found in the end."""

    seed: int = 0
    kills: int = 0
    files: int = 0
    acknowledged: int = 0
    handoffs: int = 0
    holds: int = 0
    unanswered_by_design: int = 0
    """Messages that came in a hold, or waited when it began: they are for the person."""
    kills_mid_message: int = 0
    """Kills between a message and the reply to it, or the delivery of that: the next process had to go on."""
    kills_mid_turn: int = 0
    kills_before_delivery: int = 0
    """Those at which a reply was recorded, and not known to be delivered."""
    lost: int = 0
    """Messages that were acknowledged, and are not recorded as they were."""
    doubled: int = 0
    """Messages that are recorded twice, or acknowledged as another envelope when they were sent again."""
    wrong_answers: int = 0
    """Messages that are not answered once, behind their handoffs, by whom they should be; and holds not ended once."""
    replies: int = 0
    replies_lost: int = 0
    """Replies that are recorded, and have not reached the other side as they are."""
    replies_unknown: int = 0
    """Replies that have reached the other side under an id that is not recorded, or without a signature."""
    replies_misplaced: int = 0
    """Replies that have first arrived behind a later one of their channel."""
    wrong_deliveries: int = 0
    """Replies of which is not recorded once that they were delivered."""
    sent_again: int = 0
    """How often a reply arrived that had arrived before."""
    unsound_files: int = 0
    """Files in which `verify` has found something."""
    slowest_start: float = 0.0
    deliveries_caught_up: list[float] = field(default_factory=list, repr=False)
    """How many seconds after the next process was ready each reply was delivered that had not been."""
    turns_caught_up: list[float] = field(default_factory=list, repr=False)
    """The same until the first turn was claimed again."""
    mailboxes: dict[Path, Mailbox] = field(default_factory=dict, repr=False)
    arrivals: list[Arrival] = field(default_factory=list, repr=False)

    @property
    def sound(self) -> bool:
        return not (
            self.lost
            or self.doubled
            or self.wrong_answers
            or self.replies_lost
            or self.replies_unknown
            or self.replies_misplaced
            or self.wrong_deliveries
            or self.unsound_files
        )

    @property
    def catching_up(self) -> str:
        """How long the next process took to go on."""
        said = []
        for name, seconds in (("turns", self.turns_caught_up), ("replies", self.deliveries_caught_up)):
            if seconds:
                said.append(f"{name} {median(seconds):.2f} s, at most {max(seconds):.2f} s")
        return "; ".join(said)


class ConversationLife:
    """One process in which conversations go on, until it is done or killed. Open with `with`."""

    def __init__(self, path: Path, port: int, flag: str = "") -> None:
        command = [sys.executable, "-m", "tests.crash.conversation_child", str(path), str(port), *filter(None, [flag])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.output = Lines(self.process.stdout.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.output.read_rest()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.__exit__(None, None, None)

    def wait_for(self, line: str) -> None:
        while not self.output.saw(line):
            assert self.output.read(LONGEST_WAIT), f"the process ended, or hangs, before it was {line}"

    def order(self, **order: str) -> None:
        """Have a message sent, or, without one, have it finish."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> Kill:
        """Kill it, which it cannot notice."""
        before = time.time()
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        after = time.time()
        while self.output.read(0.0):
            pass
        return Kill(before, after)


class _Hunt:
    """Lets customers write, several channels on each file, and kills the process that answers them."""

    def __init__(self, folder: Path, sink: Sink, *, kills: int, seed: int, flag: str = "") -> None:
        self.found = ConversationKilling(seed)
        self._folder, self._sink, self._kills, self._flag = folder, sink, kills, flag
        self._chance = random.Random(seed)
        self._heard = 0
        """How many arrivals those who write have heard of."""

    def run(self) -> None:
        while self.found.kills < self._kills:
            self._file(min(MOST_KILLS, self._kills - self.found.kills))

    def _file(self, kills: int) -> None:
        path, box = self._folder / f"f{self.found.files}.db", Mailbox()
        self.found.mailboxes[path] = box
        self.found.files += 1
        for _ in range(kills):
            with self._life(path, box) as life:
                self._write(life, path, self._chance.uniform(0.0, LONGEST_LIFE_SECONDS))
                box.note_kill(life.kill())
                box.heed(life.output.lines)
                self.found.kills += 1
        with self._life(path, box) as life:
            life.order()
            life.wait_for("done")
            box.heed(life.output.lines)
            assert life.process.wait(LONGEST_WAIT) == 0

    def _life(self, path: Path, box: Mailbox) -> ConversationLife:
        """The next process. It is sent what was not acknowledged, and one message that was."""
        life, began = ConversationLife(path, self._sink.port, self._flag), time.monotonic()
        life.wait_for("ready")
        self.found.slowest_start = max(self.found.slowest_start, time.monotonic() - began)
        if box.kills:
            box.kills[-1] = replace(box.kills[-1], ready_again=time.time())
        again = [self._chance.choice(sorted(box.acks))] if box.acks else []
        for number in [*(each for each in box.texts if each not in box.acks), *again]:
            channel, text = box.texts[number]
            life.order(channel=channel, number=number, text=text)
        return life

    def _write(self, life: ConversationLife, path: Path, duration: float) -> None:
        """Write for so long, now and then, in every channel."""
        box, until = self.found.mailboxes[path], time.monotonic() + duration
        for channel in CHANNELS:  # a reply may wait for its channel to be looked at; others are written meanwhile
            box.unanswered[channel] = min(1, box.unanswered[channel])
        while (left := until - time.monotonic()) > 0:
            for arrival in self._sink.arrivals[self._heard :]:
                box.unanswered[arrival.recipient] = 0
                self._heard += 1
            channel = self._chance.choice(CHANNELS)
            if box.unanswered[channel] < MOST_UNANSWERED:
                box.unanswered[channel] += 1
                number = f"{path.stem}m{len(box.texts)}"
                box.texts[number] = channel, self._text(number, hold=len(box.texts) % MESSAGES_PER_HOLD == 5)
                life.order(channel=channel, number=number, text=box.texts[number][1])
            life.output.read(min(left, self._chance.uniform(0.02, 0.15)))

    def _text(self, number: str, *, hold: bool) -> str:
        hops = self._chance.choice((0, 0, 1, 1, 2))
        return f"{number} hops={hops} hold={int(hold)} think={self._chance.uniform(0.05, 0.3):.2f}"


def kill_conversations(folder: Path, kills: int, seed: int, *, flag: str = "") -> ConversationKilling:
    """Kill so many times, see that everything is answered all the same, and audit. The files are left."""
    with Sink(seed) as sink:
        hunt = _Hunt(folder, sink, kills=kills, seed=seed, flag=flag)
        hunt.run()
        hunt.found.arrivals = sink.arrivals
    for path, box in hunt.found.mailboxes.items():
        asyncio.run(audit(path, box, sink.arrivals, hunt.found))
    return hunt.found


async def audit(path: Path, box: Mailbox, arrivals: Sequence[Arrival], found: ConversationKilling) -> None:
    """Compare what was acknowledged, and what has arrived, with what a file holds."""
    found.unsound_files += not (await verify_url(f"sqlite:///{path}")).ok
    async with Hub.open(f"sqlite:///{path}", engine=None) as hub:
        logs = [await hub.log(row.channel_id) for row in await hub.channels()]
    recorded: defaultdict[str, list[str]] = defaultdict(list)
    for log in logs:
        for envelope in log:
            if (envelope.event_type, envelope.sender_id) == (EV_TEXT, DESK):
                recorded[_text_of(envelope).split()[0]].append(envelope.envelope_id)
        _audit_answers(log, found)
        _audit_replies(log, arrivals, found)
    found.acknowledged += len(box.acks)
    found.lost += sum(envelope_id not in recorded[number] for number, envelope_id in box.acks.items())
    found.doubled += box.doubled + sum(max(0, len(ids) - 1) for ids in recorded.values())
    ours = {each.envelope_id for log in logs for each in log}
    mine = [each for each in arrivals if each.text.startswith(f"{path.stem}m")]
    found.replies_unknown += sum(each.reply_id not in ours or not each.is_signed for each in mine)
    for kill in box.kills:
        _note_kill(kill, logs, found)


def _text_of(envelope: Envelope) -> str:
    return str(envelope.event_data.get("body" if envelope.event_type == EV_PACKET else "text", ""))


@dataclass
class _Answered:
    """What a log says of its messages, read without the rules of the product."""

    waiting: dict[str, str] = field(default_factory=dict)
    """The texts of messages that wait for their turn, by envelope."""
    answered: dict[str, str] = field(default_factory=dict)
    for_person: int = 0
    holds: list[str] = field(default_factory=list)
    """What each hold is about."""
    words: list[str] = field(default_factory=list)
    """What the person has said in them."""
    releases: int = 0
    packets: defaultdict[str, list[tuple[str, Packet]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, envelope: Envelope) -> None:
        cause, event = envelope.causation_id or "", event_of(envelope)
        match envelope.event_type:
            case "ag2.msg.text" if envelope.sender_id == DESK:
                if len(self.holds) > self.releases:
                    self.for_person += 1
                else:
                    self.waiting[envelope.envelope_id] = _text_of(envelope)
            case "ag2.msg.text" if envelope.sender_id == PERSON:
                self.words.append(_text_of(envelope))
            case "antiphon.turn.assigned" if cause in self.waiting:
                self.answered[cause] = self.waiting.pop(cause)
            case "antiphon.conversation.moved" if envelope.event_data.get("person"):
                self.holds.append(str(envelope.event_data["summary"]))
                self.for_person += len(self.waiting)
                self.waiting.clear()
            case "antiphon.conversation.released":
                self.releases += 1
            case _:
                if isinstance(event, Packet):
                    self.packets[cause].append((envelope.sender_id, event))


def _audit_answers(log: Sequence[Envelope], found: ConversationKilling) -> None:
    read = _Answered()
    for envelope in log:
        read.read(envelope)
    found.unanswered_by_design += read.for_person
    found.holds += len(read.holds)
    found.handoffs += sum(len(packets) - 1 for packets in read.packets.values())
    found.wrong_answers += len(read.waiting) + len(read.packets.keys() - read.answered.keys())
    found.wrong_answers += read.words != [word_on(number) for number in read.holds] or read.releases != len(read.holds)
    for message, text in read.answered.items():
        found.wrong_answers += not _is_answered(text, read.packets[message])


def _is_answered(text: str, packets: Sequence[tuple[str, Packet]]) -> bool:
    """Whether the packets are the handoffs that were planned, each by the target of the one before, and one answer."""
    number, plan = plan_of(text)
    if len(packets) != plan["hops"] + 1:
        return False
    targets = [packet.routing.target for _, packet in packets]
    speakers = [speaker for speaker, _ in packets]
    last = packets[-1][1]
    due = ("human", "") if plan["hold"] else (None, answer_to(number, speakers[-1]))
    final = (last.routing.target, last.body) == due
    return targets[:-1] == speakers[1:] and final and not any(packet.body for _, packet in packets[:-1])


def _audit_replies(log: Sequence[Envelope], arrivals: Sequence[Arrival], found: ConversationKilling) -> None:
    replies = {each.envelope_id: each for each in log if RECIPIENT_FIELD in each.event_data and _text_of(each)}
    arrived = [each for each in arrivals if each.reply_id in replies]
    as_recorded = {(each.envelope_id, each.event_data[RECIPIENT_FIELD], _text_of(each)) for each in replies.values()}
    found.replies += len(replies)
    found.replies_lost += len(as_recorded - {(each.reply_id, each.recipient, each.text) for each in arrived})
    found.sent_again += len(arrived) - len({each.reply_id for each in arrived})
    came = [replies[reply_id].sequence for reply_id in dict.fromkeys(each.reply_id for each in arrived)]
    found.replies_misplaced += sum(later < earlier for earlier, later in pairwise(came))
    said = sum(_text_of(each) != "" for each in log if each.event_type == EV_PACKET or each.sender_id == PERSON)
    found.wrong_deliveries += abs(said - len(replies))
    told = Counter(str(each.event_data["reply"]) for each in log if each.event_type == EV_REPLY_DELIVERED)
    found.wrong_deliveries += sum(told[reply_id] != 1 for reply_id in {*told, *replies})


def _note_kill(kill: Kill, logs: Iterable[Sequence[Envelope]], found: ConversationKilling) -> None:
    """In the middle of what the process was killed, and how soon the next one went on."""
    in_turn, in_delivery = False, False
    for log in logs:
        ends = {each.causation_id: each for each in log if each.event_type == EV_PACKET}  # the last packet counts
        begun = [each.causation_id for each in log if each.event_type == EV_TURN_ASSIGNED]
        answered = ends.keys() & begun
        spans = [(each, ends[each.envelope_id]) for each in log if each.envelope_id in answered]
        delivered = {str(each.event_data["reply"]): each for each in log if each.event_type == EV_REPLY_DELIVERED}
        left = [(each, delivered[each.envelope_id]) for each in log if each.envelope_id in delivered]
        in_turn = in_turn or any(_spans(kill, *span) for span in spans)
        open_replies = [end for begin, end in left if _spans(kill, begin, end)]
        in_delivery = in_delivery or bool(open_replies)
        found.deliveries_caught_up += _caught_up(kill, open_replies)
        if any(_spans(kill, *span) for span in spans):
            claims = [each for each in log if each.event_type == EV_TURN_CLAIMED]
            found.turns_caught_up += _caught_up(kill, claims)[:1]
    found.kills_mid_turn += in_turn
    found.kills_before_delivery += in_delivery
    found.kills_mid_message += in_turn or in_delivery


def _caught_up(kill: Kill, facts: Iterable[Envelope]) -> list[float]:
    """How soon after the next process was ready each of these was recorded by it."""
    after = (seconds(each.created_at) for each in facts)
    return [max(0.0, at - kill.ready_again) for at in after if kill.after < at < kill.next_kill]


def _spans(kill: Kill, begin: Envelope, end: Envelope) -> bool:
    return seconds(begin.created_at) < kill.before and seconds(end.created_at) > kill.after


def seconds(at: Instant) -> float:
    return to_datetime(at).timestamp()


if __name__ == "__main__":
    killing = kill_conversations(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), flag="".join(sys.argv[4:]))
    print(killing, killing.catching_up, sep="\n")
