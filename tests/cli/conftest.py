"""A small store for the command line to read, and ways to run it: in this process, and as a user does."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from antiphon import Denied, Hub
from antiphon.cli import commands
from antiphon.testing import ManualClock

Run = Callable[..., Result]


@dataclass(frozen=True)
class Town:
    """Where the store is, and the ids of its two channels."""

    path: Path
    council: str
    """A discussion that has ended."""
    tavern: str
    """A conversation that has not."""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return asyncio.run(founded(tmp_path / "town.db"))


async def founded(path: Path) -> Town:
    async with Hub.open(f"sqlite:///{path}", clock=ManualClock()) as hub:
        ada = await hub.register("ada")
        ben = await hub.register("ben")
        await hub.register("cleo", kind="human")
        council = await ada.open(type="discussion", target=["ben", "cleo"])
        await council.send("Shall we\nmend the bridge?")
        with pytest.raises(Denied):
            await council.send("I say yes.")
        await (await ben.channel(council.channel_id)).send("\x1b[31mNo.\x1b[0m", audience=["ada"])
        await council.set_context(votes=1, done=None)
        await council.post("town.vote", {"for": "ada"})
        await council.close("adjourned")
        tavern = await ben.open(target="cleo")
        await tavern.send("To bridges.")
        return Town(path, council.channel_id, tavern.channel_id)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, with nothing set in its surroundings."""
    monkeypatch.delenv("ANTIPHON_STORE", raising=False)

    def run(*words: str, **env: str) -> Result:
        return CliRunner().invoke(commands, list(words), prog_name="antiphon", env=env)

    return run


def typed(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a process of its own, its output piped."""
    surroundings = {name: value for name, value in os.environ.items() if name != "ANTIPHON_STORE"}
    return subprocess.run(
        [sys.executable, "-m", "antiphon", *words],
        env={**surroundings, "PYTHONIOENCODING": "utf-8", **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
