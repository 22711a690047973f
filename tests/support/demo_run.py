"""A run of a demonstration in processes of its own: what it wrote, which sockets it used, and the file it left."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED

OFFLINE = """
import os, sys
def heard(event, args):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
        with open(os.environ["OFFLINE"], "a") as file:
            file.write(f"{event} {args[1:]}\\n")
sys.addaudithook(heard)
with open(os.environ["OFFLINE"], "a") as file:
    file.write("listening\\n")
"""
"""The sitecustomize.py of every process that takes part: it notes each contact with the network."""


@dataclass(frozen=True)
class DemoRun:
    """What one run of a demonstration wrote, and what it left."""

    path: Path
    done: subprocess.CompletedProcess[str]
    seconds: float
    speaker: str
    """The agent whose turn is killed."""
    contacts: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.done.stdout.splitlines()]

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [step for step in self.steps if step["step"] in names]

    def turn(self) -> list[tuple[str, dict[str, Any]]]:
        """What the log says of the speaker's turn, as SQLite alone reads it: types and data."""
        wanted = (EV_TURN_CLAIMED, EV_CALL_STARTED, EV_CALL_FINISHED)
        found = [(each["event_type"], each["event_data"]) for each in self.bodies() if each["event_type"] in wanted]
        return [(kind, data) for kind, data in found if data["turn"].endswith(f"/{self.speaker}")]

    def bodies(self) -> list[dict[str, Any]]:
        """Every envelope in the file, as SQLite alone reads it."""
        return [json.loads(body) for (body,) in self._rows("SELECT body FROM log ORDER BY channel, seq")]

    def recorded(self) -> list[tuple[str, int, str]]:
        """The file as SQLite alone reads it."""
        return self._rows("SELECT channel, seq, id FROM log")

    def _rows(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        rows = connection.execute(query).fetchall()
        connection.close()
        return rows


def run_demo(
    directory: Path, run: Callable[[Path, dict[str, str]], subprocess.CompletedProcess[str]], *, speaker: str
) -> DemoRun:
    """Run a demonstration that keeps its file at the given path, with these variables in its environment."""
    path, contacts = directory / "kept.db", directory / "contacts"
    (directory / "sitecustomize.py").write_text(OFFLINE)
    begun = time.monotonic()
    done = run(path, {"PYTHONPATH": str(directory), "OFFLINE": str(contacts)})
    return DemoRun(path, done, time.monotonic() - begun, speaker, contacts.read_text().splitlines())


def outside_contacts(found: DemoRun) -> list[str]:
    """Every contact that left this machine. There were others, so the hook works."""
    contacts = [contact for contact in found.contacts if contact != "listening"]
    assert {contact.split()[0] for contact in contacts} >= {"socket.bind", "socket.connect"}
    return [contact for contact in contacts if "'127.0.0.1'" not in contact]
