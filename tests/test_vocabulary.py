"""One word for one thing: the names that classes, functions, modules and constants do not get."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "antiphon"
FILES = sorted(SOURCE.rglob("*.py"))

# A class or module that ends in one of these does not say what it owns.
EMPTY = {"base", "helper", "manager", "mixin", "processor", "service", "util"}

REPLACED = {
    "bus": "feed",
    "checkpoint": "snapshot",
    "checkpointer": "store",
    "executor": "engine",
    "guardrail": "guard",
    "listener": "feed",
    "room": "channel",
    "runner": "engine",
    "saver": "store",
    "session": "channel",
    "thread": "channel",
    "tripwire": "verdict",
    "wal": "log",
    "worker": "participant",
}

# A thread of the operating system is called a thread, in the folders that have any.
THREADED = ("engines/", "store/")


def complaints(place: str, text: str) -> list[str]:
    """What is wrong with the names defined in a file, `place` being its path below the package."""
    tree = ast.parse(text)
    owners = [*Path(place).with_suffix("").parts, *class_names(tree)]
    empty = [f"{name} ends in {word}" for name in owners for word in words(name)[-1:] if word in EMPTY]
    replaced = [
        f"{name} says {word}; we say {REPLACED[word]}"
        for name in [*owners, *function_names(tree), *constant_names(tree)]
        for word in words(name.replace("thread_id", ""))
        if word in REPLACED and not (word == "thread" and place.startswith(THREADED))
    ]
    return empty + replaced


def words(name: str) -> list[str]:
    """The words of a name in any case, small and singular where we know the plural."""
    found = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]
    return [single if (single := word.removesuffix("s")) in EMPTY | REPLACED.keys() else word for word in found]


def class_names(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def function_names(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def constant_names(tree: ast.Module) -> Iterator[str]:
    assigned = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    names = (name for node in assigned for name in ast.walk(node) if isinstance(name, ast.Name))
    return (name.id for name in names if isinstance(name.ctx, ast.Store))


def test_there_are_files_to_read() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_names(path: Path) -> None:
    assert complaints(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("core/utils.py", "", ["utils ends in util"]),
        ("helpers/rows.py", "", ["helpers ends in helper"]),
        ("hub/feed.py", "class StateManager: ...", ["StateManager ends in manager"]),
        ("hub/feed.py", "def run():\n    class Base: ...", ["Base ends in base"]),
        ("store/wal.py", "", ["wal says wal; we say log"]),
        ("hub/feed.py", "class SQLiteSession: ...", ["SQLiteSession says session; we say channel"]),
        ("hub/feed.py", "async def list_sessions(): ...", ["list_sessions says session; we say channel"]),
        ("hub/feed.py", "EV_SESSION_OPENED: str = 'x'", ["EV_SESSION_OPENED says session; we say channel"]),
        ("hub/feed.py", "class MemorySaver: ...", ["MemorySaver says saver; we say store"]),
        ("hub/feed.py", "def thread_name(): ...", ["thread_name says thread; we say channel"]),
    ],
)
def test_a_wrong_name_is_noticed(place: str, text: str, expected: list[str]) -> None:
    assert complaints(place, text) == expected


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("store/sqlite.py", "def start_thread(): ..."),
        ("agents/agent.py", "def of_thread_id(): ..."),
        ("store/database.py", "class Database: ..."),
        ("hub/feed.py", "SERVICE = 'service'"),
        ("hub/feed.py", "def f(session):\n    wal = session"),
    ],
)
def test_a_right_name_is_left_alone(place: str, text: str) -> None:
    assert complaints(place, text) == []
