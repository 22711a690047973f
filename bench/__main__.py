"""`make bench`: measure, print, and write docs/performance.md."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from pathlib import Path

from bench import (
    conversations,
    fan_out,
    flat,
    opening,
    peers,
    protections,
    subscribers,
    teams,
    throughput,
    turns,
    workflow,
)
from bench.figures import table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def main() -> None:
    parts = {
        "On top of the store": throughput.figures(),
        "Flat costs": flat.figures(),
        "Opening": opening.figures(),
        "Turns of agents": turns.figures(),
        "Teams": teams.figures(),
        "Workflows": workflow.figures(),
        "Conversations": conversations.figures(),
        "Fan-out": fan_out.figures(),
        "Protections": protections.figures(),
        "Subscribers": subscribers.figures(),
    }
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores"
    page = [f"# Performance\n\nWritten by `make bench` on {time.strftime('%Y-%m-%d')}: {machine}. Trust the ratios.\n"]
    for title, figures in parts.items():
        page.append(f"## {title}\n\n{table(figures)}\n")
    page.append(f"## Beside peers\n\n{peers.section()}\n")
    PAGE.write_text("\n".join(page))
    print("\n".join(page))


if __name__ == "__main__":
    main()
