"""Kill a process while a team answers in it, at random moments, and audit what the world and the logs say of it.

`python -m tests.crash.team_kill FOLDER KILLS SEED` prints what was found.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon import (
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    Envelope,
    Hub,
)
from antiphon.core.envelope import derived_id
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import CallFailed, CallFinished, CallStarted, TurnClaimed
from antiphon.runtime.agent import DEFAULT_SPEAKER
from tests.crash.outside_world import Asked, World
from tests.crash.team_plan import (
    ACTIVE,
    AT_ONCE,
    LEAD,
    LOOK_AROUND,
    MESSAGES,
    PAY,
    PAYMENTS,
    REPLIES,
    ROUND,
    TASKS,
    TEAM,
)
from tests.crash.turn_kill import Life, turned_back
from tests.support.inspection import logs_from

MOST_KILLS = 8
"""How often one thread is killed, before another one is begun: fewer than the crashes after which a turn waits."""
WITHOUT_JOURNAL = 2
"""The same if nothing is remembered, so that the control stays short."""
FACTS = (EV_TASK_STARTED, EV_TASK_PROGRESS, EV_TASK_COMPLETED, EV_TASK_FAILED, EV_TASK_EXPIRED)


@dataclass
class TeamKilling:
    """What was done, and what was found in the end."""

    seed: int = 0
    kills: int = 0
    threads: int = 0
    kills_mid_turn: int = 0
    """Kills between the claim of a turn and its answer: the turn had to be taken over."""
    kills_mid_task: int = 0
    """Those of them in which a task was under way, whose turn had to be taken over as well."""
    calls: int = 0
    """Requests that reached the servers."""
    calls_sent_again: int = 0
    """Those that were in flight at a kill, and arrived again."""
    entries: int = 0
    wrong_payments: int = 0
    """Payments that are missing, doubled, came again with other words, or are not what the journal says."""
    repeated_finished_calls: int = 0
    unaccounted_calls: int = 0
    """Calls that arrived more often than the journal says they left, or than kills explain."""
    wrong_answers: int = 0
    """Messages that are not answered once, in the words, by whom and at the cost of a thread that nobody killed."""
    wrong_active: int = 0
    """Threads in whose end somebody else is active than in one that nobody killed."""
    tasks: int = 0
    wrong_tasks: int = 0
    """Tasks of which is not told once that they were given, each of their calls, and that they were done."""
    slowest_start: float = 0.0
    thread_seconds: float = 0.0
    """How long a thread takes that nobody kills."""
    killed: Counter[str] = field(default_factory=Counter, repr=False)
    """How often each thread was."""
    told: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the last process of each thread said of it."""

    @property
    def sound(self) -> bool:
        return not (
            self.wrong_payments
            or self.repeated_finished_calls
            or self.unaccounted_calls
            or self.wrong_answers
            or self.wrong_active
            or self.wrong_tasks
        )


class _Hunt:
    """Lets teams answer, a thread on each file, and kills them."""

    def __init__(self, folder: Path, world: World, *, kills: int, seed: int, journal: bool) -> None:
        self.found = TeamKilling(seed)
        self._folder, self._world, self._journal = folder, world, journal
        self._kills, self._chance = kills, random.Random(seed)
        self._shares = [(number + self._chance.random()) / kills for number in range(kills)]
        self._chance.shuffle(self._shares)

    def run(self) -> None:
        """Let one team answer in peace, to see how long it takes; then kill so many times, all over that time."""
        self._thread(killing=False)
        while self.found.kills < self._kills:
            self._thread(killing=True)

    def _thread(self, *, killing: bool) -> None:
        run = f"r{self.found.threads}"
        self.found.threads += 1
        spent, done = 0.0, False
        while not done:
            with Life(place_of(self._folder, run), self._world, run, journal=self._journal, child="team_child") as life:
                self.found.slowest_start = max(self.found.slowest_start, life.start())
                began = time.monotonic()
                if killing and self._may_kill(run):
                    life.let_be(self._moment(spent if self._journal else 0.0))
                else:
                    life.finish()
                spent += time.monotonic() - began
                done = self._over(life, run)
        if not self.found.killed[run]:
            self.found.thread_seconds = spent

    def _over(self, life: Life, run: str) -> bool:
        """Whether everything is answered; otherwise kill it."""
        if life.done:
            life.end()
            self.found.told[run] = tell(life)
            return True
        life.kill()
        self.found.kills += 1
        self.found.killed[run] += 1
        return False

    def _may_kill(self, run: str) -> bool:
        most = MOST_KILLS if self._journal else WITHOUT_JOURNAL
        return self.found.kills < self._kills and self.found.killed[run] < most

    def _moment(self, spent: float) -> float:
        whole = self.found.thread_seconds
        return self._shares[self.found.kills] * max(whole - spent, whole / 4)


def tell(life: Life) -> dict[str, Any]:
    """What a process that has come to the end said of it."""
    return {"replies": [json.loads(line) for line in life.told("reply")], "active": json.loads(life.told("active")[0])}


def kill_teams(folder: Path, kills: int, seed: int, *, journal: bool = True) -> TeamKilling:
    """Kill teams so many times, see that each comes to its end all the same, and audit. The files are left."""
    with World(TEAM) as world:
        hunt = _Hunt(folder, world, kills=kills, seed=seed, journal=journal)
        hunt.run()
        asyncio.run(audit(folder, world, hunt.found))
    return hunt.found


def place_of(folder: Path, run: str) -> Path:
    """The file of a thread."""
    return folder / f"{run}.db"


async def audit(folder: Path, world: World, found: TeamKilling) -> None:
    """Compare what has reached the world with what the logs say, and every thread with what is planned."""
    for run, told in found.told.items():
        async with Hub.open(f"sqlite:///{place_of(folder, run)}", engine=None) as hub:
            logs = await logs_from(hub, derived_id("thread", LEAD, run))
        asked = world.asked_by(run)
        found.calls += len(asked)
        again = len(asked) - len({each.name for each in asked})
        found.calls_sent_again += again
        found.unaccounted_calls += max(0, again - AT_ONCE * found.killed[run])
        claims = [sum(isinstance(event_of(envelope), TurnClaimed) for envelope in log) for log in logs]
        found.kills_mid_turn += claims[0] - len(MESSAGES)
        found.kills_mid_task += sum(claims[1:]) - len(claims[1:])
        _audit_calls(found, asked, logs, kills=found.killed[run])
        _audit_payments(found, run, world, logs)
        _audit_answers(found, told, logs[0])
        _audit_tasks(found, logs)


def _audit_calls(found: TeamKilling, asked: Sequence[Asked], logs: Sequence[Sequence[Envelope]], *, kills: int) -> None:
    left: Counter[str] = Counter()
    for log in logs:
        ended: Counter[tuple[str, int]] = Counter()
        for event in map(event_of, log):
            match event:
                case CallStarted(turn=turn, index=index, name=name, args=args):
                    left[str(args["place"]) if args and "place" in args else name] += 1
                    found.repeated_finished_calls += ended[turn, index]
                case CallFinished(turn=turn, index=index) | CallFailed(turn=turn, index=index):
                    found.repeated_finished_calls += ended[turn, index]
                    ended[turn, index] += 1
                case _:
                    pass
    arrived = Counter(each.name for each in asked)
    found.unaccounted_calls += sum(max(0, count - 1 - kills) for count in arrived.values())
    found.unaccounted_calls += sum((Counter(map(_as_in_the_log, arrived.elements())) - left).values())
    found.repeated_finished_calls += turned_back(asked, ROUND)


def _as_in_the_log(place: str) -> str:
    """What a call is known by there: models and steps are not told their places."""
    what = place.rpartition("/")[2]
    return {"model": "model", LOOK_AROUND: f"step:{LOOK_AROUND}"}.get(what, place)


def _audit_payments(found: TeamKilling, run: str, world: World, logs: Sequence[Sequence[Envelope]]) -> None:
    entries = world.paid_by(run)
    found.entries += len(entries)
    sent = {(each.key, *each.body.items()) for each in world.asked_by(run) if each.key}
    events = [event_of(envelope) for log in logs for envelope in log]
    journal = {(e.key, *(e.args or {}).items()) for e in events if isinstance(e, CallStarted) and e.name == PAY}
    made = Counter((entry.key, entry.memo) for entry in entries)
    found.wrong_payments += abs(len(entries) - PAYMENTS) + abs(len(sent) - PAYMENTS)
    found.wrong_payments += len(made.keys() ^ {(key, dict(args)["memo"]) for key, *args in journal})


def _audit_answers(found: TeamKilling, told: dict[str, Any], log: Sequence[Envelope]) -> None:
    found.wrong_answers += sum(reply != planned for reply, planned in zip(told["replies"], REPLIES, strict=True))
    answered = Counter(e.causation_id for e in log if (e.event_type, e.sender_id) == (EV_TEXT, LEAD))
    said = [e.envelope_id for e in log if (e.event_type, e.sender_id) == (EV_TEXT, DEFAULT_SPEAKER)]
    found.wrong_answers += sum(answered[message] != 1 for message in said) + abs(len(said) - len(MESSAGES))
    found.wrong_active += told["active"] != ACTIVE


def _audit_tasks(found: TeamKilling, logs: Sequence[Sequence[Envelope]]) -> None:
    told = Counter(
        (str(each.event_data["task"]), each.event_type) for log in logs for each in log if each.event_type in FACTS
    )
    given = {task for task, _ in told}
    found.tasks += len(given)
    found.wrong_tasks += abs(len(given) - len(TASKS))
    for log in logs[1:]:
        task = log[0].channel_id
        once = [told[task, fact] for fact in FACTS]
        calls = {(e.turn, e.index) for e in map(event_of, log) if isinstance(e, CallStarted) and e.args is not None}
        found.wrong_tasks += once != [1, len(calls), 1, 0, 0]


if __name__ == "__main__":
    print(kill_teams(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
