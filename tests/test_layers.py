"""Each contract between modules is noticed when it is broken, in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("place", "line", "contract"),
    [
        ("store/records.py", "import antiphon.hub.live", "Imports go downwards only"),
        ("store/records.py", "import antiphon.guards", "Imports go downwards only"),
        ("core/step.py", "import time", "Core, guards, orchestration and agents are pure"),
        ("agents/loop.py", "import asyncio", "Core, guards, orchestration and agents are pure"),
        (
            "__init__.py",
            "import antiphon.testing",
            "The package itself loads neither its test tools nor its command line",
        ),
        (
            "store/protocol.py",
            "if TYPE_CHECKING:\n    import antiphon.store.records",
            "Modules of a package do not import each other in a circle",
        ),
        (
            "core/evolve.py",
            "def late():\n    import antiphon.core.step",
            "Modules of a package do not import each other in a circle",
        ),
    ],
)
def test_a_broken_contract_is_noticed(place: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "antiphon", tmp_path / "antiphon", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "antiphon" / place).open("a", encoding="utf-8") as module:
        module.write(f"\n{line}\n")
    assert broken_contracts(tmp_path) == [contract]


def test_contracts_are_kept() -> None:
    assert broken_contracts(ROOT / "src") == []


def broken_contracts(source: Path) -> list[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    asked = [linter, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"}
    answer = subprocess.run(asked, env=environment, cwd=source, capture_output=True, text=True, check=False)
    assert "Contracts:" in answer.stdout, answer.stdout + answer.stderr
    return re.findall(r"^(.*) BROKEN", answer.stdout, re.MULTILINE)
