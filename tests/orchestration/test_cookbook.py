"""Every graph of the cookbook is checked, drawn and written down, as its example defines it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from antiphon import TransitionGraph

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FILES = sorted([*EXAMPLES.glob("1[4-9]_*.py"), *EXAMPLES.glob("2[0-2]_*.py")])

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cookbook_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_enough_of_them() -> None:
    assert len(FILES) >= 8


@each_file
def test_an_example_has_no_error(path: Path) -> None:
    example = loaded(path)
    assert isinstance(example.GRAPH, TransitionGraph)
    assert [each.message for each in example.GRAPH.check(example.PARTICIPANTS) if each.level == "error"] == []


@each_file
def test_an_example_is_written_down_and_drawn(path: Path) -> None:
    graph = loaded(path).GRAPH
    assert TransitionGraph.loads(graph.to_dict()) == graph
    assert graph.initial_speaker in graph.to_mermaid()
