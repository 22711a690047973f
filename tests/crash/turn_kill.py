"""Kill a process while its agent takes a turn, at random moments, and audit what the world and the log say of it.

`python -m tests.crash.turn_kill FOLDER KILLS SEED` prints what was found.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antiphon import EV_TEXT, Envelope, Hub
from antiphon.core.envelope import derived_id
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import CallFailed, CallFinished, CallStarted, TurnClaimed
from tests.crash.kill import Lines
from tests.crash.outside_world import PLAN, ROUND, Asked, World
from tests.crash.turn_child import AGENT

LONGEST_WAIT = 30.0
TURNS_PER_FILE = 5
MOST_KILLS = 3
"""How often one turn is killed. Each time it goes on, until it is killed again or ends."""
AGAIN = 0.5
"""How likely it is that a turn is killed again."""


@dataclass
class TurnKilling:
    """What was done, and what was found in the end."""

    kills: int = 0
    turns: int = 0
    kills_mid_turn: int = 0
    """Kills between the claim of a turn and its answer: the turn had to be taken over."""
    calls: int = 0
    """Requests that reached the servers."""
    entries: int = 0
    payments_sent_again: int = 0
    """Payments that were in flight at a kill, and arrived again with their key."""
    payments_missing: int = 0
    doubled_payments: int = 0
    altered_payments: int = 0
    """Payments that came again with other words, or are not what the journal says."""
    repeated_finished_calls: int = 0
    unaccounted_calls: int = 0
    """Calls that arrived more often than the journal says they left, or than kills explain."""
    answers_missing: int = 0
    answers_doubled: int = 0
    slowest_start: float = 0.0
    turn_seconds: float = 0.0
    """How long a turn takes that nobody kills."""
    killed: Counter[str] = field(default_factory=Counter, repr=False)
    """How often each turn was."""

    @property
    def sound(self) -> bool:
        return not (
            self.payments_missing
            or self.doubled_payments
            or self.altered_payments
            or self.repeated_finished_calls
            or self.unaccounted_calls
            or self.answers_missing
            or self.answers_doubled
        )


class Life:
    """One process that takes turns, until it is done or killed. Open with `with`."""

    def __init__(
        self, path: Path, world: World, run: str, *, journal: bool = True, child: str = "turn_child", flag: str = ""
    ) -> None:
        flags = [*([] if journal else ["--no-journal"]), *filter(None, [flag])]
        command = [sys.executable, "-m", f"tests.crash.{child}", str(path), str(world.port), run, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self._lines = Lines(self.process.stdout.fileno())

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._lines.read_rest()
        self.process.__exit__(None, None, None)

    @property
    def done(self) -> bool:
        return self._lines.saw("done")

    def told(self, word: str) -> list[str]:
        """What it has said behind this word, line by line."""
        return [line.removeprefix(f"{word} ") for line in self._lines.lines if line.startswith(f"{word} ")]

    def start(self) -> float:
        """Wait until it is ready; how long that took."""
        began = time.monotonic()
        self._wait_for("ready")
        return time.monotonic() - began

    def _wait_for(self, line: str) -> None:
        while not self._lines.saw(line):
            assert self._lines.read(LONGEST_WAIT), f"the process ended, or hangs, before it was {line}"

    def let_be(self, seconds: float) -> None:
        """Let it go on for so long, or until it is done."""
        until = time.monotonic() + seconds
        while not self.done and (left := until - time.monotonic()) > 0:
            assert self._lines.read(left) or self.process.poll() is None, "the process ended before it was done"

    def finish(self) -> None:
        """Wait until it is done."""
        self._wait_for("done")

    def end(self) -> None:
        """Let it end by itself."""
        self.finish()
        assert self.process.wait(LONGEST_WAIT) == 0

    def kill(self) -> None:
        """Kill it, which it cannot notice. Whether it was done is known after that."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        while self._lines.read(0.0):
            pass


class _Hunt:
    """Takes turns, a few on each file, and kills them."""

    def __init__(self, folder: Path, world: World, *, kills: int, seed: int, journal: bool) -> None:
        self.found = TurnKilling()
        self._folder, self._world, self._journal = folder, world, journal
        self._kills, self._chance = kills, random.Random(seed)
        self._shares = [(number + self._chance.random()) / kills for number in range(kills)]
        self._chance.shuffle(self._shares)

    def run(self) -> None:
        """Take one turn in peace, to see how long it takes; then kill so many times, all over that time."""
        self._turn(killing=False)
        while self.found.kills < self._kills:
            self._turn(killing=True)

    def _turn(self, *, killing: bool) -> None:
        run, path = f"r{self.found.turns}", place_of(self._folder, self.found.turns)
        self.found.turns += 1
        spent, done = 0.0, False
        while not done:
            with Life(path, self._world, run, journal=self._journal) as life:
                self.found.slowest_start = max(self.found.slowest_start, life.start())
                began = time.monotonic()
                if killing and self._may_kill(run):
                    life.let_be(self._moment(spent if self._journal else 0.0))
                else:
                    life.finish()
                spent += time.monotonic() - began
                done = self._over(life, run)
        if not self.found.killed[run]:
            self.found.turn_seconds = spent

    def _over(self, life: Life, run: str) -> bool:
        """Whether the turn is; otherwise kill it."""
        if life.done:
            life.end()
            return True
        life.kill()
        self.found.kills += 1
        self.found.killed[run] += 1
        return life.done

    def _may_kill(self, run: str) -> bool:
        times = self.found.killed[run]
        if self.found.kills == self._kills or times == MOST_KILLS:
            return False
        return not times or self._chance.random() <= AGAIN

    def _moment(self, spent: float) -> float:
        whole = self.found.turn_seconds
        return self._shares[self.found.kills] * max(whole - spent, whole / 4)


def kill_turns(folder: Path, kills: int, seed: int, *, journal: bool = True) -> TurnKilling:
    """Kill turns so many times, see that each is finished all the same, and audit. The files are left in the folder."""
    with World() as world:
        hunt = _Hunt(folder, world, kills=kills, seed=seed, journal=journal)
        hunt.run()
        asyncio.run(audit(folder, world, hunt.found))
    return hunt.found


def place_of(folder: Path, number: int) -> Path:
    """The file on which the turn of this number is taken."""
    return folder / f"team{number // TURNS_PER_FILE}.db"


async def audit(folder: Path, world: World, found: TurnKilling) -> None:
    """Compare what has reached the world with what the logs say."""
    for number in range(found.turns):
        run = f"r{number}"
        async with Hub.open(f"sqlite:///{place_of(folder, number)}", engine=None) as hub:
            log = await hub.log(derived_id("thread", AGENT, run))
        asked = world.asked_by(run)
        found.calls += len(asked)
        _audit_calls(found, run, asked, log)
        _audit_payment(found, run, world, log)
        _audit_answer(found, log, world.finals.get(run, []))


def _audit_calls(found: TurnKilling, run: str, asked: Sequence[Asked], log: Sequence[Envelope]) -> None:
    claims, started, ended = 0, Counter[int](), Counter[int]()
    for envelope in log:
        match event_of(envelope):
            case TurnClaimed():
                claims += 1
            case CallStarted(index=index):
                started[index] += 1
                found.repeated_finished_calls += ended[index]
            case CallFinished(index=index) | CallFailed(index=index):
                found.repeated_finished_calls += ended[index]
                ended[index] += 1
    found.kills_mid_turn += claims - 1
    arrived = Counter(each.name for each in asked)
    for index, name in enumerate(PLAN):
        left = min(started[index], 1 + found.killed[run])
        found.unaccounted_calls += max(0, arrived[name] - left)
    found.repeated_finished_calls += turned_back(asked, ROUND)


def turned_back(asked: Sequence[Asked], rounds: Mapping[str, int]) -> int:
    """Calls that were made although later ones had been: what they came to was known. The log is not asked."""
    furthest, back = 0, 0
    for each in asked:
        back += rounds[each.name] < furthest
        furthest = max(furthest, rounds[each.name])
    return back


def _audit_payment(found: TurnKilling, run: str, world: World, log: Sequence[Envelope]) -> None:
    entries = world.paid_by(run)
    found.entries += len(entries)
    found.payments_missing += not entries
    found.doubled_payments += max(0, len(entries) - 1)
    arrived = [(each.key, *each.body.items()) for each in world.asked_by(run) if each.name == "pay"]
    sent = set(arrived)
    found.payments_sent_again += len(arrived) - 1
    events = [event_of(envelope) for envelope in log]
    journal = {(e.key, *(e.args or {}).items()) for e in events if isinstance(e, CallStarted) and e.name == "pay"}
    made = {(each.key, ("order", each.order), ("cents", each.cents), ("memo", each.memo)) for each in entries}
    found.altered_payments += max(0, len(sent) - 1) + len(made ^ journal)


def _audit_answer(found: TurnKilling, log: Sequence[Envelope], finals: Sequence[str]) -> None:
    """The answer is there once, in words that the model has used; with a journal, in those that it recorded."""
    answers = [e.event_data["text"] for e in log if (e.event_type, e.sender_id) == (EV_TEXT, AGENT)]
    found.answers_missing += not any(answer in finals for answer in answers)
    found.answers_doubled += max(0, len(answers) - 1)
    events = [event_of(envelope) for envelope in log]
    last = [e.result["text"] for e in events if isinstance(e, CallFinished) and e.index == len(PLAN) - 1]
    found.answers_missing += bool(last) and last != answers


if __name__ == "__main__":
    print(kill_turns(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
