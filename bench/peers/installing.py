"""The peers' own virtualenv, `.venv-peers`: made when it is missing, and when the pins have changed.

Nothing here raises for want of a network or a package: what comes back is then a sentence.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-peers"
PINS = Path(__file__).with_name("constraints.txt")
PACKAGES = ("ag2", "langgraph", "langgraph-checkpoint-sqlite", "watchdog")
"""By name; watchdog is what AG2's disk store asks for."""
LONGEST = 600
ABSENT = (
    "The peers are not here and could not be installed (no network, or a package is missing), so nothing is compared"
    " with them. What pip said is in `.venv-peers/install.log`."
)

_TELL_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def peers_python() -> Path | None:
    """The interpreter that has the peers; None if there is none to be had."""
    if not _is_ready():
        _install()
    return _python() if _is_ready() else None


def versions(python: Path) -> dict[str, str]:
    """What is installed there, by package."""
    said = subprocess.run(
        [python, "-c", _TELL_VERSIONS, *PACKAGES], capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, str] = json.loads(said.stdout)
    return found


def _python() -> Path:
    return VENV / "bin" / "python"


def _is_ready() -> bool:
    """Whether everything was installed, with the pins of today."""
    kept = VENV / "installed.txt"
    return kept.is_file() and kept.read_text() == PINS.read_text()


def _install() -> None:
    print("Installing the peers that bench/peers/constraints.txt names into .venv-peers", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    (VENV / ".gitignore").write_text("*\n")
    pip = [_python(), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--retries", "1"]
    with (VENV / "install.log").open("w") as log:
        for command in ([sys.executable, "-m", "venv", VENV], [*pip, "-c", PINS, *PACKAGES]):
            try:
                subprocess.run(command, stdout=log, stderr=log, check=True, timeout=LONGEST)
            except (OSError, subprocess.SubprocessError) as error:
                log.write(f"{error}\n")
                return
    shutil.copyfile(PINS, VENV / "installed.txt")
