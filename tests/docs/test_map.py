"""docs/map.md is true: its packages and files exist, and its walks are what runs, in that order."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, text_of
from tests.support.call_trace import PACKAGE, CallTrace
from tests.support.traced_walks import trace_send, trace_turn

PAGE = text_of(DOCS / "map.md")
WALKS = {"send": trace_send, "turn": trace_turn}
MOST_FILES = {"send": 21, "turn": 45}
"""How many files a walk passes at most: a reader has to open them. Entries may only be lowered."""

Step = tuple[str, str]


def walk(name: str, page: str = PAGE) -> list[Step]:
    """The steps of the fenced block that begins with `# walk: <name>`, as (file, function)."""
    [block] = re.findall(rf"```text\n# walk: {name}\n(.*?)```", page, flags=re.S)
    steps: list[Step] = []
    for line in block.splitlines():
        if found := re.match(r"(\S+\.py) +(\S+(?:, \S+)*?)(?:  .*)?$", line):
            steps.extend((found[1], function) for function in found[2].split(", "))
    return steps


def departures(steps: list[Step], trace: CallTrace) -> list[str]:
    """Which steps are not taken, or are taken before the one above them."""
    order = {step: place for place, step in enumerate(trace.functions)}
    missing = [f"{file} {name} does not run" for file, name in steps if (file, name) not in order]
    places = [(order[step], step) for step in steps if step in order]
    early = [f"{step} runs before {above}" for (first, above), (then, step) in pairwise(places) if then < first]
    return missing + early


@pytest.mark.parametrize("name", WALKS)
async def test_walk(name: str, tmp_path: Path) -> None:
    steps = walk(name)
    assert steps
    trace = await WALKS[name](tmp_path)
    assert departures(steps, trace) == []
    assert len(trace.files) <= MOST_FILES[name], trace.files


async def test_a_wrong_walk_is_noticed(tmp_path: Path) -> None:
    steps = walk("send")
    trace = await trace_send(tmp_path)
    assert len(departures([*steps[1:], steps[0]], trace)) == 1
    assert departures([*steps, ("hub/live.py", "LiveChannel.fly")], trace) == [
        "hub/live.py LiveChannel.fly does not run"
    ]


def test_every_package_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|", PAGE, flags=re.M)
    assert sorted(rows) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_every_file_it_names_exists() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|md))`", PAGE)
    assert named
    root = PACKAGE.parent.parent
    assert [each for each in named if not (PACKAGE / each).exists() and not (root / each).exists()] == []
