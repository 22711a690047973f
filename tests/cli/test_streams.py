"""Where standard output goes: whatever it is, JSON is JSON, and what cannot be written is one sentence."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon import Hub
from tests.cli.conftest import Town

TEXT = "naïve 日本語 👩\u200d🚒 \u2028"


@pytest.fixture
def channel(town: Town) -> str:
    async def said() -> str:
        async with Hub.open(town.url) as hub:
            ada, _ = await hub.register("ada"), await hub.register("ben")
            channel = await ada.open(target="ben")
            await channel.send(TEXT)
            return channel.channel_id

    return asyncio.run(said())


def shell(script: str, *words: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a shell, which sends its output somewhere."""
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHON": sys.executable}
    command = ["sh", "-c", f'"$PYTHON" -m antiphon "$@" {script}', "antiphon", *words]
    return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "utf-8", "utf-16"])
def test_json_is_json_in_every_encoding(encoding: str, channel: str, town: Town) -> None:
    done = shell("", "log", channel, str(town.path), "--json", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    texts = [json.loads(line)["event_data"].get("text") for line in done.stdout.decode(encoding).split("\n")[:-1]]
    assert TEXT in texts


UNWRITABLE = [(">&-", b"there is no standard output to write to")]
if Path("/dev/full").exists():  # Linux has a device that is always full
    UNWRITABLE.append((">/dev/full", b"standard output cannot be written (No space left on device)"))


@pytest.mark.parametrize("words", [(), ("--help",), ("channels",), ("channels", "--json"), ("verify",), ("doctor",)])
@pytest.mark.parametrize(
    ("where", "why"),
    UNWRITABLE,
)
def test_an_output_that_takes_nothing(where: str, why: bytes, words: tuple[str, ...], town: Town) -> None:
    store = [str(town.path)] if words and words != ("--help",) else []
    done = shell(where, *words, *store)
    assert done.returncode == 1
    assert done.stderr == b"Error: " + why + b"\n"


def test_another_trouble_of_the_system_is_one_sentence_too(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && {sys.executable} -P -m antiphon channels team.db"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 2] No such file or directory\n"


def test_a_reader_that_leaves_early_is_no_error(channel: str, town: Town) -> None:
    done = shell("--audit | head -n 1", "log", channel, str(town.path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0] == b"SEQ"
