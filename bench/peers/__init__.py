"""Beside peers: the same work done by Antiphon, AG2, LangGraph and the OpenAI Agents SDK in one interleaved run.

Six works. What each contender does for it, and what it syncs, is told in full at the head of its worker
(`with_antiphon`, `with_ag2`, `with_langgraph`, `with_openai_agents`); setting up, importing and closing are outside the
clock for everybody.

1. Conversation: texts of 200 characters, posted one after the other by one participant, delivered to the other while
   posting goes on, acknowledged. The sender lets others run after each post, so that delivery is live, not a batch at
   the end. Ours is synced SQLite; it is held against AG2's SQLite store, which syncs as well, and against its disk
   store, which does not. Ours without syncs is held against that store too: both then survive a killed process only.
2. Reopening: from an open conversation on disk to its state in memory, in a new process. AG2 loads every channel when
   it opens, ours the one that is asked for, so ours has to ask for it inside the clock.
3. Exchange: a message of 100 characters and an answer of 100 characters, in turns, 1,000 messages in all. Ours are
   delivered through two inboxes and acknowledged; LangGraph's are stored as the state of one thread. All sync.
4. Turns of an agent, one after the other on one thread: a question, the model asks for a tool, the tool returns, the
   model answers. The words are the same for everybody (`script`), and the model takes no time, so that what is
   measured is all the rest. One turn before the clock starts does not count. What is kept of a turn differs, and so
   does what the model is shown of the turns before: everything with LangGraph and the OpenAI SDK, all questions and
   answers with ours, the last ten of them with AG2. Each is what one gets without asking for anything else. Who reads
   everything again for each turn costs more with every turn, so a ratio holds for the number of turns it names.
5. Round robin of four: texts of 200 characters by four participants, one after the other, in one channel. Nobody asks a
   model; what is measured is that a text is taken from the one whose turn it is and from nobody else, kept, and
   followed by the next turn. One round before the clock starts does not count. Nobody reads an inbox, so what is
   delivered is what each does by itself: ours leaves a text in the log for whoever reads it, AG2 notifies the three
   others and writes three cursors, LangGraph runs the next node of a ring and refuses nobody, for nobody else can
   speak there. AG2's cost of a turn grows with the log, so here too a ratio holds for the number of turns it names.
6. Handovers, one after the other on one thread: a question, the first agent hands over, the second answers. As in 4 the
   models take no time, and what is kept and shown differs in the same way. Ours also remembers who answers next.

Where a peer's cost grows with the length of the log, its count is capped, and the table names the count: what it
costs at the full count is more. All files are in the system's folder for temporary files; where that is a RAM disk,
a sync costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.figures import Figure
from bench.peers.contest import Entry, Match, Result, contest
from bench.peers.installing import ABSENT, peers_python, versions

MEMORY, SYNCED, UNSYNCED = "Antiphon, memory", "Antiphon, SQLite, synced", "Antiphon, SQLite, not synced"
MOST_ON_AG2_SQLITE = 2_000
NAMES = {
    "ag2": "AG2",
    "langgraph": "LangGraph",
    "langgraph-checkpoint-sqlite": "its SQLite saver",
    "openai-agents": "OpenAI Agents SDK",
}


def conversations(count: int) -> Iterator[Match]:
    """Three matches over so many texts."""

    def by(worker: str, store: str, most: int = count) -> Entry:
        return Entry(worker, store, "conversation", min(count, most))

    on_sqlite = by("ag2", "sqlite", MOST_ON_AG2_SQLITE)
    sqlite = "AG2, SQLite, synced" + (f", only {on_sqlite.count:,}" if on_sqlite.count < count else "")
    disk = ("AG2, disk, not synced", by("ag2", "disk"))
    title = f"conversation of {count:,}"
    yield Match(
        f"{title}, in memory", "a message", ((MEMORY, by("antiphon", "memory")), ("AG2, memory", by("ag2", "memory")))
    )
    yield Match(f"{title}, synced", "a message", ((SYNCED, by("antiphon", "synced")), (sqlite, on_sqlite), disk))
    yield Match(f"{title}, not synced", "a message", ((UNSYNCED, by("antiphon", "unsynced")), disk))


def reopening(count: int) -> Match:
    """From disk to memory."""
    return Match(
        f"reopening a conversation of {count:,}",
        "an opening",
        (
            (SYNCED, Entry("antiphon", "synced", "reopen", count)),
            ("AG2, disk", Entry("ag2", "disk", "reopen", count)),
        ),
    )


def exchange(count: int) -> Match:
    """Questions and answers."""

    def langgraph(how: str) -> Entry:
        return Entry("langgraph", how, "exchange", count)

    return Match(
        f"exchange of {count:,}",
        "a message",
        (
            (SYNCED, Entry("antiphon", "synced", "exchange", count)),
            ("LangGraph, durability sync", langgraph("sync")),
            ("LangGraph, durability exit", langgraph("exit")),
            ("LangGraph, delta channel (beta)", langgraph("delta")),
        ),
    )


def turns(in_memory: int, synced: int) -> Iterator[Match]:
    """So many turns of an agent, in memory and synced."""

    def by(worker: str, store: str) -> Entry:
        return Entry(worker, store, "turns", in_memory if store == "memory" else synced)

    yield Match(
        f"{in_memory:,} turns with a tool, in memory",
        "a turn",
        (
            (MEMORY, by("antiphon", "memory")),
            ("AG2, memory", by("ag2", "memory")),
            ("LangGraph, memory", by("langgraph", "memory")),
            ("OpenAI Agents SDK, memory", by("openai_agents", "memory")),
        ),
    )
    yield Match(
        f"{synced:,} turns with a tool, synced",
        "a turn",
        (
            (SYNCED, by("antiphon", "synced")),
            ("AG2, SQLite, synced", by("ag2", "sqlite")),
            ("LangGraph, durability sync", by("langgraph", "sync")),
            ("OpenAI Agents SDK, SQLite, synced", by("openai_agents", "synced")),
        ),
    )


def handovers(in_memory: int, synced: int) -> Iterator[Match]:
    """So many turns with a handover, in memory and synced."""

    def by(worker: str, store: str) -> Entry:
        return Entry(worker, store, "handovers", in_memory if store == "memory" else synced)

    yield Match(
        f"{in_memory:,} turns with a handover, in memory",
        "a turn",
        (
            (MEMORY, by("antiphon", "memory")),
            ("LangGraph, memory", by("langgraph", "memory")),
            ("OpenAI Agents SDK, memory", by("openai_agents", "memory")),
        ),
    )
    yield Match(
        f"{synced:,} turns with a handover, synced",
        "a turn",
        (
            (SYNCED, by("antiphon", "synced")),
            ("LangGraph, durability sync", by("langgraph", "sync")),
            ("OpenAI Agents SDK, SQLite, synced", by("openai_agents", "synced")),
        ),
    )


def robins(in_memory: int, synced: int) -> Iterator[Match]:
    """So many turns of four, in memory and synced."""

    def by(worker: str, store: str) -> Entry:
        return Entry(worker, store, "robin", in_memory if store == "memory" else synced)

    yield Match(
        f"round robin of four, {in_memory:,} turns, in memory",
        "a turn",
        (
            (MEMORY, by("antiphon", "memory")),
            ("AG2, memory", by("ag2", "memory")),
            ("LangGraph, memory", by("langgraph", "memory")),
        ),
    )
    yield Match(
        f"round robin of four, {synced:,} turns, synced",
        "a turn",
        (
            (SYNCED, by("antiphon", "synced")),
            ("AG2, SQLite, synced", by("ag2", "sqlite")),
            ("LangGraph, durability sync", by("langgraph", "sync")),
        ),
    )


MATCHES = (
    *conversations(1_000),
    *conversations(10_000),
    *map(reopening, (1_000, 10_000, 100_000)),
    exchange(1_000),
    *turns(300, 100),
    *handovers(300, 100),
    *robins(2_000, 400),
)


def section(word: str = "") -> str:
    """The matches whose title has the word as Markdown, or the sentence that says why nothing is compared."""
    python = peers_python()
    if python is None:
        return ABSENT
    matches = tuple(match for match in MATCHES if word in match.title)
    results = _results(matches, python)
    rows = [row for match in matches for row in _rows(match, results)]
    return "\n".join(
        [
            f"Measured: {_named(versions())}. CPU and wall time are for one unit of the work (a message, an"
            " opening, a turn), the median of as many rounds as the last column says. Ratios are ours : theirs; above 1"
            " it is ours that is cheaper. What is synced, and how the peers are configured: `bench/peers`.",
            "",
            "| work | who | CPU | wall | CPU, ours : theirs | wall, ours : theirs | stored | rounds |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def figures() -> list[Figure]:
    """The same as ratios only; none without the peers."""
    python = peers_python()
    if python is None:
        print(ABSENT)
        return []
    return [figure for match in MATCHES for figure in _figures(match, _results(MATCHES, python))]


@cache
def _results(matches: tuple[Match, ...], python: Path) -> dict[Entry, Result]:
    return contest(matches, python)


def _rows(match: Match, results: dict[Entry, Result]) -> Iterator[str]:
    ours = results.get(match.entries[0][1])
    for name, entry in match.entries:
        found = results.get(entry)
        if found is None:
            yield f"| {match.title} | {name} | did not finish | | | | | 0 |"
            continue
        cells = [match.title, name, _time(found.cpu), _time(found.wall)]
        if ours is None or found is ours:
            cells += ["", ""]
        else:
            cells += [f"1 : {found.cpu / ours.cpu:.3g}", f"1 : {found.wall / ours.wall:.3g}"]
        cells += [_bytes(found.stored), str(found.turns)]
        yield f"| {' | '.join(cells)} |"


def _figures(match: Match, results: dict[Entry, Result]) -> Iterator[Figure]:
    ours = results.get(match.entries[0][1])
    for name, entry in match.entries[1:]:
        found = results.get(entry)
        if ours is None or found is None:
            continue
        note = f"wall {found.wall / ours.wall:.3g} ×; CPU {match.unit} {_time(found.cpu)} against {_time(ours.cpu)}"
        if found.stored:
            note += f"; stored {_bytes(found.stored)} against {_bytes(ours.stored)}"
        yield Figure(f"{match.title}: {name}", found.cpu / ours.cpu, "× our CPU", note=note)


def _named(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {found[package]}" for package, name in NAMES.items())


def _time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count else ""
