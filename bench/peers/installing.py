"""The peers' own virtualenv, `.venv-peers`: made when it is missing, and when the pins have changed.

Nothing here raises for want of a network or a package: what comes back is then a sentence.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-peers"
PINS = Path(__file__).with_name("constraints.txt")
PACKAGES = ("ag2", "langgraph", "langgraph-checkpoint-sqlite", "openai-agents", "watchdog")
"""By name; watchdog is what AG2's disk store asks for."""
LONGEST = 600
ABSENT = (
    "The peers are not here and could not be installed (no network, or a package is missing), so nothing is compared"
    " with them. What pip said is in `.venv-peers/install.log`."
)


def peers_python() -> Path | None:
    """The interpreter that has the peers; None if there is none to be had."""
    if not _is_ready():
        _install()
    return _python() if _is_ready() else None


def versions() -> dict[str, str]:
    """What is installed there, by package."""
    pins = (line.partition("==") for line in PINS.read_text().splitlines() if "==" in line)
    return {name: version for name, _, version in pins}


def _python() -> Path:
    return VENV / "bin" / "python"


def _is_ready() -> bool:
    """Whether everything was installed, with the pins of today."""
    kept = VENV / "installed.txt"
    return _python().exists() and kept.is_file() and kept.read_text() == PINS.read_text()


def _install() -> None:
    print("Installing the peers that bench/peers/constraints.txt names into .venv-peers", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        VENV.mkdir()
        (VENV / ".gitignore").write_text("*\n")
        with (VENV / "install.log").open("w") as log:
            _run([sys.executable, "-m", "venv", str(VENV)], log)
            pip = [str(_python()), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--retries", "1"]
            _run([*pip, "-c", str(PINS), *PACKAGES], log)
        shutil.copyfile(PINS, VENV / "installed.txt")
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)


def _run(command: list[str], log: IO[str]) -> None:
    subprocess.run(command, stdout=log, stderr=log, check=True, timeout=LONGEST)
