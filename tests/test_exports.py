"""The public face: what `import antiphon` offers, where it is described, and what it costs."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import antiphon

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"
NOT_ON_IMPORT = {
    *("anthropic", "cedarpy", "click", "genai_prices", "httpx", "httpx2", "mcp", "openai", "opentelemetry"),
    *("pydantic", "pydantic_ai", "rich", "starlette", "uvicorn"),
}
IMPORT_SECONDS = 0.1

IMPORT = """
import sys, time
start = time.process_time()
import antiphon
print(time.process_time() - start)
from antiphon import *  # whatever is loaded later
print(*sys.modules)
"""


class Described:
    """Has a docstring, for the tests below."""


def test_all_is_what_is_exported() -> None:
    public = [name for name in dir(antiphon) if not name.startswith("_")]
    exported = [name for name in public if not inspect.ismodule(getattr(antiphon, name))]
    assert sorted(antiphon.__all__) == sorted(exported)


@pytest.mark.parametrize("name", antiphon.__all__)
def test_public_name_is_described(name: str) -> None:
    value = getattr(antiphon, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert own_docstring(value), f"{name} has no docstring"
    assert is_mentioned(name, REFERENCE.read_text(encoding="utf-8")), f"docs/reference.md leaves out {name}"


def own_docstring(value: object) -> str:
    """What was written below the name: not inherited, and not made up by `dataclass`."""
    text = vars(value).get("__doc__") or "" if inspect.isclass(value) else inspect.getdoc(value) or ""
    return "" if text.startswith(f"{getattr(value, '__name__', '')}(") else text


def is_mentioned(name: str, text: str) -> bool:
    """Whether a piece of code in the text has the name; prose is not enough for `Not` and `Once`."""
    return any(re.search(rf"\b{name}\b", code) for code in re.findall(r"`+([^`]+)`+", text))


def test_a_missing_description_is_noticed() -> None:
    @dataclass
    class Silent(Described):
        size: int

    assert own_docstring(Described)
    assert own_docstring(is_mentioned)
    assert not own_docstring(Silent)
    assert not own_docstring(test_all_is_what_is_exported)


def test_a_missing_mention_is_noticed() -> None:
    text = "Once there was `Not(condition)`.\n```python\nhub = Hub.open(url)\n```\n"
    assert [name for name in ("Hub", "Not", "Once", "condition", "Open") if is_mentioned(name, text)] == [
        "Hub",
        "Not",
        "condition",
    ]


def test_import_is_light(tmp_path: Path) -> None:
    """What it takes is the least of several tries: whatever else the machine does only adds to it."""
    runs = [fresh_import(tmp_path) for _ in range(5)]
    loaded = {name.partition(".")[0] for _, modules in runs for name in modules}
    assert "antiphon" in loaded
    assert loaded & NOT_ON_IMPORT == set()
    while min(seconds for seconds, _ in runs) > IMPORT_SECONDS and len(runs) < 40:
        runs.append(fresh_import(tmp_path))
    assert min(seconds for seconds, _ in runs) <= IMPORT_SECONDS


def fresh_import(compiled: Path) -> tuple[float, list[str]]:
    """The processor time that the import takes in a new interpreter, and all it has then loaded."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, modules = done.stdout.splitlines()
    return float(seconds), modules.split()
