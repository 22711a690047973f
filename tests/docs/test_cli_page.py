"""docs/cli.md is what the command line says."""

import importlib.util
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tests.docs.pages import DOCS, text_of

RUN = "from antiphon.cli import main; main()"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_up_to_date() -> None:
    assert text_of(DOCS / "cli.md") == generator().page(), "run: python docs/generate.py"


@pytest.mark.parametrize("words", [(), *generator().every_command()], ids=" ".join)
def test_page_is_what_a_terminal_shows(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--help"],
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    shown = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert section(" ".join(["antiphon", *words])) == shown.rstrip("\n")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n\n```\n(.*?)\n```$", text_of(DOCS / "cli.md"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title!r}"
    return found[1]
