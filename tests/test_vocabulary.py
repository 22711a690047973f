"""One word for one thing: the names that may not be given, those that may be given once, and the words of the prose.

Each rule is a function that returns complaints, so that it is also tried on a text that breaks it.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
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

# Names of types and modules that say nothing to a reader of the field, and what is said instead.
RETIRED = {
    "alarms": "timers",
    "bell": "WakeUp",
    "book": "journal",
    "cast": "participants",
    "desk": "HubCore",
    "door": "endpoint",
    "ears": "InboxWatcher",
    "entrance": "prompts",
    "given": "EffectResult",
    "held": "handle, or lease",
    "house": "AppState",
    "kept": "UnclosableStore",
    "lawbook": "catalogue",
    "laws": "Ruleset",
    "letter": "ProviderRequest",
    "manner": "TurnOptions",
    "manners": "TurnOptions",
    "means": "CallContext",
    "misstep": "StepError",
    "notes": "JournalWriter",
    "oracle": "OpaqueAnswers",
    "overhearing": "TokenSubscriber",
    "ownchannel": "SystemChannel",
    "performance": "EffectHandler",
    "place": "environment, target, or id",
    "quiet": "SystemAdapter",
    "recent": "TailCache",
    "routine": "default_steps",
    "scene": "StepContext",
    "seating": "participants",
    "standing": "CallerContext",
    "summed": "SummaryOutcome",
    "surely": "ToolOutcome",
    "surroundings": "ChannelDeps",
    "tenure": "LeaseKeeper",
    "told": "TurnEvents",
    "verb": "route",
    "visit": "RequestContext",
    "voice": "MessageMeta",
    "wanted": "Effect",
    "wishes": "options",
    "words": "text",
}

# Names that two places may have. Each entry says why; a name that has become unique is removed here.
SHARED_TYPES: dict[str, str] = {}
SHARED_MODULES: dict[str, str] = {}
SHARED_FUNCTIONS: dict[str, str] = {}

# Docstrings and comments are about things, and use the noun that the field has.
MANNERED = re.compile(
    r"\b(whoever|somebody|nobody|whatever|came\s+to|comes\s+to|(?:is|are)\s+told(?!\s+apart)|lets?\s+go\s+of|puts?\s+in\s+a\s+word"
    r"|under\s+way|in\s+good\s+order)\b",
    re.IGNORECASE,
)
# The docstrings of these are the descriptions of tools that models read.
MODEL_PROSE = {"agents/default_tools.py"}


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


def type_names(tree: ast.Module) -> set[str]:
    """Classes, and aliases of types: what a module assigns to a name in capitals and small letters."""
    aliases = (name for name in constant_names(tree) if re.fullmatch(r"_?(?:[A-Z]+[a-z0-9]+)+[A-Z]*", name))
    return {*class_names(tree), *aliases}


def public_functions(tree: ast.Module) -> set[str]:
    """The functions of a module, each once, however many overloads it has."""
    defined = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in defined if not name.startswith("_")}


def names_of_modules(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    stems = {place: Path(place).stem for place in trees}
    return {place: {stem} for place, stem in stems.items() if not stem.startswith("__")}


def shared_names(names: Mapping[str, set[str]], allowed: Mapping[str, str]) -> list[str]:
    """The names that two places have without being allowed to, and those that are allowed to for nothing."""
    places: dict[str, list[str]] = defaultdict(list)
    for place, found in names.items():
        for name in found:
            places[name].append(place)
    shared = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    return [
        *(f"{name} is in {' and '.join(where)}" for name, where in sorted(shared.items()) if name not in allowed),
        *(f"{name} is no longer shared" for name in sorted(allowed.keys() - shared.keys())),
    ]


def retired_names(place: str, tree: ast.Module) -> list[str]:
    names = [Path(place).stem, *sorted(type_names(tree))]
    return [
        f"{name} is retired; we say {RETIRED[old]}" for name in names if (old := name.strip("_").lower()) in RETIRED
    ]


def mannered_prose(text: str) -> list[str]:
    """What the docstrings and comments of a file say of persons where there are things."""
    return [" ".join(found.split()).lower() for prose in prose_of(text) for found in MANNERED.findall(prose)]


def prose_of(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as docstring)):
                yield docstring
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


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


def test_a_type_has_a_name_of_its_own(trees: dict[str, ast.Module]) -> None:
    assert shared_names({place: type_names(tree) for place, tree in trees.items()}, SHARED_TYPES) == []


def test_a_module_has_a_name_of_its_own(trees: dict[str, ast.Module]) -> None:
    assert shared_names(names_of_modules(trees), SHARED_MODULES) == []


def test_a_function_has_a_name_of_its_own(trees: dict[str, ast.Module]) -> None:
    assert shared_names({place: public_functions(tree) for place, tree in trees.items()}, SHARED_FUNCTIONS) == []


def test_retired_names_stay_retired(trees: dict[str, ast.Module]) -> None:
    assert [complaint for place, tree in trees.items() for complaint in retired_names(place, tree)] == []


def test_prose_is_about_things() -> None:
    found = {path.relative_to(SOURCE).as_posix(): mannered_prose(path.read_text(encoding="utf-8")) for path in FILES}
    assert {place: words for place, words in found.items() if words and place not in MODEL_PROSE} == {}


def test_a_shared_name_is_noticed() -> None:
    names = {"hub/feed.py": {"Feed", "Line"}, "core/text.py": {"Line"}, "core/step.py": {"Step"}}
    assert shared_names(names, {}) == ["Line is in core/text.py and hub/feed.py"]
    assert shared_names(names, {"Line": "a reason"}) == []
    assert shared_names(names, {"Line": "a reason", "Step": "another"}) == ["Step is no longer shared"]


@pytest.mark.parametrize(
    ("text", "types", "functions"),
    [
        ("class Feed:\n    class Inner: ...", {"Feed", "Inner"}, set()),
        ("Decision = Assign | Wait\nH11Event: TypeAlias = object", {"Decision", "H11Event"}, set()),
        ("LIMIT = 5\nT = TypeVar('T')\nT_co = TypeVar('T_co')\nlog = 1", set(), set()),
        ("@overload\ndef tool(): ...\ndef tool(): ...\ndef _line(): ...", set(), {"tool"}),
        ("class Feed:\n    async def close(self): ...\nasync def serve(): ...", {"Feed"}, {"serve"}),
    ],
)
def test_names_that_are_compared(text: str, types: set[str], functions: set[str]) -> None:
    assert (type_names(ast.parse(text)), public_functions(ast.parse(text))) == (types, functions)


def test_modules_that_are_compared() -> None:
    empty = ast.parse("")
    places = ("hub/hub.py", "cli/hub.py", "hub/__init__.py", "cli/__init__.py")
    assert shared_names(names_of_modules(dict.fromkeys(places, empty)), {}) == ["hub is in cli/hub.py and hub/hub.py"]


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("runtime/desk.py", "", ["desk is retired; we say HubCore"]),
        ("engines/turn.py", "class _Notes: ...", ["_Notes is retired; we say JournalWriter"]),
        ("core/rules.py", "LawBook = dict[str, object]", ["LawBook is retired; we say catalogue"]),
        ("core/rules.py", "class ReleaseNotes: ...\ndef told(): ...\nNOTES = 1", []),
    ],
)
def test_a_retired_name_is_noticed(place: str, text: str, expected: list[str]) -> None:
    assert retired_names(place, ast.parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""What it\ncame  to, whoever asks."""', ["came to", "whoever"]),
        ('def f():\n    """Nobody is told."""', ["nobody", "is told"]),
        ("x = 1  # let go of at the end", ["let go of"]),
        ('X = 1\n"""Somebody\'s."""', ["somebody"]),
        ('x = "nobody"\nsay(f"{x} is told")', []),
        ('"""The result; it is retold to every caller."""', []),
    ],
)
def test_mannered_prose_is_noticed(text: str, expected: list[str]) -> None:
    assert mannered_prose(text) == expected
