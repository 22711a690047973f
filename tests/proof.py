"""Everything with full counts: `make proof` runs this and writes docs/proof.md.

The suites are the ones of `make test`, told by the environment to look further; the searches and the bars that only
make sense with numbers are called directly. `python -m tests.proof tests/faults kill-server cost-teams` runs a
suite, a killing and a measurement again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from bench import conversations, flat, protections, subscribers, teams, throughput, turns, workflow
from bench.figures import Figure, table
from tests.crash.conversation_kill import kill_conversations
from tests.crash.kill import kill_again_and_again
from tests.crash.serve_kill import kill_servers
from tests.crash.team_kill import kill_teams
from tests.crash.turn_kill import kill_turns
from tests.faults.searches import nth_sweep, power_images, versions

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "proof.md"
KILLS, IMAGES, CONTROL_IMAGES = 200, 5000, 500
TURN_KILLS, CONTROL_KILLS = 300, 8
"""Some kills come before the claim of a turn or after its answer; at least `KILLS` must not."""
TEAM_KILLS, TEAM_KILLS_MID_TURN = 70, 50
CONVERSATION_KILLS_MID_MESSAGE = 100


@dataclass(frozen=True)
class Line:
    """One promise, what was done for it, what was found."""

    promise: str
    done: str
    found: str
    holds: bool
    seconds: float = 0.0


SUITES = {
    "The laws hold on random histories (500 examples of 50 steps against a reference hub)": "tests/laws",
    "Stores keep their guarantees, damaged records hurt one channel, a second hub is refused": "tests/store",
    "Faults are refused, lifted and recovered from; controls fail as they must": "tests/faults",
    "Bad input is refused with a reason and leaves no trace": "tests/hub/test_bad_input.py",
    "A crash at every write of a turn or workflow tells the same story; takeover, doubt, crash loops": "tests/engines",
    "Every failure of a turn leaves its channel in a named state; interjections; forks": "tests/runtime",
    "Of 10,000 random graphs those without a warning end by a rule; planted faults are found": "tests/orchestration",
    "Workflows and the flow of agents do what their documentation says": "tests/acceptance",
    "Agents, their teams, steps and tools": "tests/agents",
    "Protections hold at their boundaries, after crashes and between hubs": "tests/guards",
    "Each of the faults that are planted in the protections is found by the test named for it": "tests/planted",
    "Models of providers over real HTTP, beside their own clients; bridge and prices": "tests/models",
    "MCP servers as real processes: used, killed, hung, come back": "tests/toolsets",
    "The server: streams resumed at every event, doors, limits, 2,000 fuzzed requests, real clients": "tests/server",
    "Transports against real HTTP and SMTP servers: forged, replayed, down and back": "tests/transports",
    "A stopped owner that wakes up late is fenced": "tests/crash/test_zombie.py",
    "Three minutes of hard use give everything back": "tests/crash/test_soak.py",
}


def suites(only: Collection[str] = tuple(SUITES.values())) -> list[Line]:
    """The test suites, exploring further."""
    return [pytest_line(promise, path) for promise, path in SUITES.items() if path in only]


def pytest_line(promise: str, path: str) -> Line:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
    environment = {**os.environ, "ANTIPHON_PROOF": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else run.stderr.strip()[-200:]
    if run.returncode != 0:
        print(run.stdout[-5000:], run.stderr[-2000:], file=sys.stderr)
    found = last.strip("= ").rsplit(" in ", 1)[0]
    return Line(promise, f"`pytest {path}`", found, run.returncode == 0, time.monotonic() - began)


def killing() -> Line:
    """SIGKILL a sending process at random moments."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_again_and_again(Path(folder) / "team.db", KILLS, seed=int(began * 1000))
    said = (
        f"{len(found.acknowledged):,} acknowledged, {found.lost} lost, {found.doubled} doubled, {found.gaps} gaps, "
        f"{found.misplaced} misplaced; slowest start {found.slowest_start:.2f} s"
    )
    holds = found.sound and found.slowest_start <= 2.0
    return Line(
        "A killed process loses and doubles nothing, and is ready within 2 s",
        f"{KILLS} × SIGKILL",
        said,
        holds,
        time.monotonic() - began,
    )


def turn_killing() -> list[Line]:
    """SIGKILL a process in the middle of an agent's turn; without the journal the same audit must find fault."""
    lines = []
    for promise, kills, journal in (
        ("A killed turn goes on: one payment, no finished call made again, one answer", TURN_KILLS, True),
        ("… control: without the journal finished calls are made again", CONTROL_KILLS, False),
    ):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = kill_turns(Path(folder), kills, seed=int(began * 1000), journal=journal)
        said = (
            f"{found.kills_mid_turn} kills between claim and answer of {found.turns} turns; {found.entries} payments, "
            f"{found.payments_sent_again} sent again with their key, {found.doubled_payments} doubled; "
            f"{found.repeated_finished_calls} finished calls repeated; {found.answers_missing} answers missing, "
            f"{found.answers_doubled} doubled"
        )
        holds = found.sound and found.kills_mid_turn >= KILLS if journal else not found.sound
        lines.append(Line(promise, f"{kills} × SIGKILL, HTTP ledger", said, holds, time.monotonic() - began))
    return lines


def team_killing() -> list[Line]:
    """SIGKILL a process in which a team of three levels answers and gives tasks; and the control, as above."""
    lines = []
    for promise, kills, journal in (
        ("A killed team goes on: same active agent, same answers, no finished call or task again", TEAM_KILLS, True),
        ("… control: without the journal its finished calls are made again", CONTROL_KILLS, False),
    ):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = kill_teams(Path(folder), kills, seed=int(began * 1000), journal=journal)
        said = (
            f"{found.kills_mid_turn} kills between claim and answer on {found.threads} threads of four turns, "
            f"{found.kills_mid_task} in a task; {found.wrong_answers} wrong answers, {found.wrong_active} wrong active "
            f"agents; {found.calls_sent_again} of {found.calls:,} calls sent again, {found.repeated_finished_calls} "
            f"finished ones; {found.wrong_payments} of {found.entries} payments and {found.wrong_tasks} of "
            f"{found.tasks} tasks wrong; seed {found.seed}"
        )
        holds = found.sound and found.kills_mid_turn >= TEAM_KILLS_MID_TURN if journal else not found.sound
        lines.append(Line(promise, f"{kills} × SIGKILL, HTTP ledger", said, holds, time.monotonic() - began))
    return lines


def conversation_killing() -> list[Line]:
    """SIGKILL a process whose agents answer customers by a transport; two controls that must find fault."""
    lines = []
    for promise, kills, flag in (
        ("A killed conversation goes on: every message is answered once, every reply leaves under one id", KILLS, ""),
        ("… control: a transport that says too early that a reply has left loses some", CONTROL_KILLS, "--careless"),
        ("… control: messages sent again without their ids are recorded twice", CONTROL_KILLS, "--no-ids"),
    ):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = kill_conversations(Path(folder), kills, seed=int(began * 1000), flag=flag)
        said = (
            f"{found.kills_mid_message} kills between a message and its reply, {found.kills_before_delivery} before a "
            f"delivery; {found.acknowledged:,} messages, {found.unanswered_by_design} of them for a person, "
            f"{found.handoffs} handoffs, {found.holds} holds; {found.lost} lost, {found.doubled} doubled, "
            f"{found.wrong_answers} wrongly answered; {found.replies_lost} of {found.replies:,} replies lost, "
            f"{found.replies_unknown} unknown, {found.replies_misplaced} out of order, {found.wrong_deliveries} "
            f"wrongly recorded, {found.sent_again} sent again; went on after a median of "
            f"{found.catching_up}; seed {found.seed}"
        )
        enough = found.sound and found.kills_mid_message >= CONVERSATION_KILLS_MID_MESSAGE
        lines.append(
            Line(
                promise,
                f"{kills} × SIGKILL, HTTP transport",
                said,
                not found.sound if flag else enough,
                time.monotonic() - began,
            )
        )
    return lines


def serve_killing() -> Line:
    """SIGKILL a server under retrying HTTP clients, with outages of a day in between."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(kill_servers(Path(folder), KILLS, seed=int(began * 1000)))
    said = (
        f"{found.answered:,} of {found.requests:,} requests answered, {found.takeovers} turns resumed; "
        f"{found.lost} lost, {found.doubled} doubled, {found.given_up} turns given up; "
        f"{found.unsafe} unsafe calls and {found.payments} payments, "
        f"{found.wrong_transfers + found.wrong_payments} wrong; {found.decided} calls in doubt "
        f"and {found.waited} turns decided by a person; {found.outages} outages of a day; seed {found.seed}"
    )
    return Line(
        "A killed server answers every request once, also after an outage of a day",
        f"{found.kills} × SIGKILL, models of 1–15 s, fan-out, tasks, unsafe calls",
        said,
        found.sound and found.kills == KILLS,
        time.monotonic() - began,
    )


def power() -> list[Line]:
    """Cut the power in thousands of ways; the controls must lose."""
    full = power_images(IMAGES)
    normal = power_images(CONTROL_IMAGES, "NORMAL")
    deaf = power_images(CONTROL_IMAGES, heed_syncs=False)
    said = "{images:,} images of {acknowledged:,} acknowledged appends: {lost} lost, {corrupt} corrupt"
    promise = "A power failure loses nothing acknowledged"
    return [
        Line(
            promise, f"SQLite {versions()}", said.format(**full), not (full["lost"] or full["corrupt"]), full["seconds"]
        ),
        Line(
            "… control: synchronous=NORMAL must lose",
            f"{CONTROL_IMAGES} images",
            said.format(**normal),
            bool(normal["lost"]),
            normal["seconds"],
        ),
        Line(
            "… control: a disk that ignores syncs must lose",
            f"{CONTROL_IMAGES} images",
            said.format(**deaf),
            bool(deaf["lost"] or deaf["corrupt"]),
            deaf["seconds"],
        ),
    ]


def sweep() -> Line:
    """Fail every single operation of a workload, in every way."""
    found = nth_sweep()
    said = f"{found['runs']:,} runs, {found['sprung']:,} faults, {found['violations']} violations"
    promise = "A failing disk gives clear errors, no false acknowledgement, and recovers without a restart"
    return Line(
        promise, "I/O error, disk full, busy … at every n-th operation", said, not found["violations"], found["seconds"]
    )


def row(line: Line) -> str:
    verdict = "yes" if line.holds else "**no**"
    return f"| {line.promise} | {line.done} | {line.found} | {verdict} | {line.seconds:.0f} s |"


KILLING: dict[str, Callable[[], list[Line]]] = {
    "kill": lambda: [killing()],
    "kill-turns": turn_killing,
    "kill-teams": team_killing,
    "kill-conversations": conversation_killing,
    "kill-server": lambda: [serve_killing()],
}


COSTS: dict[str, Callable[[], list[Figure]]] = {
    "cost-throughput": throughput.figures,
    "cost-flat": flat.figures,
    "cost-turns": turns.figures,
    "cost-teams": teams.figures,
    "cost-workflow": workflow.figures,
    "cost-conversations": conversations.figures,
    "cost-protections": protections.figures,
    "cost-subscribers": subscribers.figures,
}


def again(names: list[str]) -> int:
    """Run some of the suites, killings and measurements again, and put what is found into the page that is there."""
    lines = [
        line for name in names if name not in COSTS for line in (KILLING[name]() if name in KILLING else suites([name]))
    ]
    page = REPORT.read_text().splitlines()
    for line in lines:
        if not any(old.startswith(f"| {line.promise} |") for old in page):
            page.insert(page.index("|---|---|---|---|---|") + 1, row(line))
        page = [row(line) if old.startswith(f"| {line.promise} |") else old for old in page]
        print(f"{'ok ' if line.holds else 'NO '} {line.promise}: {line.found} ({line.seconds:.0f} s)", flush=True)
    measured = [COSTS[name]() for name in names if name in COSTS]
    for figures in measured:
        known = (at for at, old in enumerate(page) if old.startswith(f"| {figures[0].name} |"))
        first = next(known, len(page))
        page[first : first + len(figures)] = table(figures).splitlines()[2:]
        for figure in figures:
            print(f"{'ok ' if figure.holds else 'NO '} {figure.name}: {figure.shown} {figure.bar}", flush=True)
    REPORT.write_text("\n".join(page) + "\n")
    found = [line.holds for line in lines] + [figure.holds for figures in measured for figure in figures]
    return 0 if found and all(found) else 1


def report(lines: list[Line], figures: list[Figure]) -> str:
    """The page."""
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores"
    return "\n".join(
        [
            "# Proof",
            "",
            f"Written by `make proof` on {time.strftime('%Y-%m-%d')}: {machine}. Run it again on your machine.",
            "",
            "| promise | how | found | holds | took |",
            "|---|---|---|---|---|",
            *map(row, lines),
            "",
            "## Costs",
            "",
            "Syncs are real. Ratios compare things measured in the same run, in alternating rounds.",
            "",
            table(figures),
            "",
        ]
    )


def main() -> int:
    logging.getLogger("antiphon").setLevel(logging.ERROR)  # warnings of faults that are injected are no news
    lines: list[Line] = []
    figures: list[Figure] = []
    steps: list[Callable[[], object]] = [
        lambda: figures.extend(throughput.figures()),
        lambda: figures.extend(flat.figures()),
        lambda: figures.extend(turns.figures()),
        lambda: figures.extend(teams.figures()),
        lambda: figures.extend(workflow.figures()),
        lambda: figures.extend(conversations.figures()),
        lambda: figures.extend(protections.figures()),
        lambda: figures.extend(subscribers.figures()),
        lambda: lines.append(killing()),
        lambda: lines.extend(turn_killing()),
        lambda: lines.extend(team_killing()),
        lambda: lines.extend(conversation_killing()),
        lambda: lines.append(serve_killing()),
        lambda: lines.extend(power()),
        lambda: lines.append(sweep()),
        lambda: lines.extend(suites()),
    ]
    for step in steps:
        done = len(lines), len(figures)
        step()
        for line in lines[done[0] :]:
            print(f"{'ok ' if line.holds else 'NO '} {line.promise}: {line.found} ({line.seconds:.0f} s)", flush=True)
        for figure in figures[done[1] :]:
            print(f"{'ok ' if figure.holds else 'NO '} {figure.name}: {figure.shown} {figure.bar}", flush=True)
    REPORT.write_text(report(lines, figures))
    sound = all(line.holds for line in lines) and all(figure.holds for figure in figures)
    print(f"{'Everything holds' if sound else 'Something does not hold'}: {REPORT.relative_to(ROOT)}")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(again(sys.argv[1:]) if sys.argv[1:] else main())
