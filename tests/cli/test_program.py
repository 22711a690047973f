"""A user's file: what it may define, how that is opened and closed, and what is said of its mistakes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click
import pytest

from antiphon import AntiphonError, TransitionGraph, UsageError
from antiphon.cli.program import PROGRAM_MODULE_NAME, Program, load_program

HEAD = """
from contextlib import asynccontextmanager
from pathlib import Path
from antiphon import Agent, ScriptedModel, TransitionGraph, says
ada, ben = (Agent(name, ScriptedModel(["Yes."])) for name in ("ada", "ben"))
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop(PROGRAM_MODULE_NAME, None)


def written(folder: Path, text: str, *, head: str = HEAD) -> str:
    path = folder / "team.py"
    path.write_text(head + dedent(text), encoding="utf-8")
    return str(path)


async def names_in(program: Program) -> list[str]:
    async with program.open() as agents:
        return [agent.name for agent in agents]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("agents = ada", ["ada"]),
        ("agents = [ada, ben]", ["ada", "ben"]),
        ("agents = (ben,)", ["ben"]),
        ("def agents(): return ada", ["ada"]),
        ("async def agents(): return [ada, ben]", ["ada", "ben"]),
        ("@asynccontextmanager\nasync def agents(): yield ada", ["ada"]),
        ("graph = TransitionGraph.sequence(['ada', 'ben'])", []),
    ],
)
async def test_agents_may_be_given_in_many_ways(text: str, names: list[str], tmp_path: Path) -> None:
    assert await names_in(load_program(written(tmp_path, text))) == names


async def test_what_is_opened_for_agents_is_closed(tmp_path: Path) -> None:
    text = """
        @asynccontextmanager
        async def agents():
            Path(__file__).with_name("open").touch()
            yield [ada]
            Path(__file__).with_name("open").unlink()
    """
    program = load_program(written(tmp_path, text))
    assert not (tmp_path / "open").exists()
    async with program.open() as agents:
        assert [agent.name for agent in agents] == ["ada"]
        assert (tmp_path / "open").exists()
    assert not (tmp_path / "open").exists()


async def test_what_goes_wrong_inside_passes_through(tmp_path: Path) -> None:
    program = load_program(written(tmp_path, "@asynccontextmanager\nasync def agents(): yield ada"))
    with pytest.raises(KeyError, match="mine"):
        async with program.open():
            raise KeyError("mine")


def test_a_graph_its_order_and_a_title(tmp_path: Path) -> None:
    text = """
        graph = TransitionGraph.sequence(["ada", "ben"]).to_dict()
        participants, title = ["ben", "ada"], "The council"
    """
    program = load_program(written(tmp_path, text))
    assert program.graph == TransitionGraph.sequence(["ada", "ben"])
    assert (program.participants, program.title) == (("ben", "ada"), "The council")


def test_it_is_run_as_python_runs_a_file(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("name = 'cleo'", encoding="utf-8")
    text = """
        from __future__ import annotations
        from antiphon import Agent, ScriptedModel
        import beside_it, dataclasses, sys, typing
        @dataclasses.dataclass
        class Order:
            item: Item
        class Item: ...
        def agents():
            assert typing.get_type_hints(Order) == {"item": Item}
            return Agent(beside_it.name, ScriptedModel([]))
        title = " ".join((__name__, __file__, sys.path[0]))
    """
    path = written(tmp_path, text, head="")
    program = load_program(path)
    assert program.title == f"{PROGRAM_MODULE_NAME} {path} {tmp_path}"
    assert callable(program.agents)
    assert program.agents().name == "cleo"
    assert load_program(written(tmp_path, "agents = ada")).title == "team"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents = [", r"team.py:6: '\[' was never closed"),
        ("1 / 0", r"team.py:6: ZeroDivisionError: division by zero"),
        ("def boils(): raise ValueError('hot')\nboils()", r"team.py:6: ValueError: hot"),
        ("agents = Agent('no name', ScriptedModel([]))", r"team.py:6: 'no name' is no name"),
        ("import sys\nsys.exit(3)", r"team.py:7: the file ends the program \(SystemExit: 3\)"),
        ("del ada, ben", r"team.py defines neither agents nor a graph; add agents = "),
        ("del ada, ben; AGENTS = [Agent('ada', says)]", r"it has 'AGENTS': call it 'agents'"),
        ("", r"it has 'ada': call it 'agents'"),
        ("del ada, ben; GRAPH = TransitionGraph.sequence(['ada', 'ben'])", r"it has 'GRAPH': call it 'graph'"),
        ("flow = 1", r"team.py defines a flow, which this version cannot run"),
        ("graph = 'a to b'", r"team.py: graph is 'a to b'; give a TransitionGraph"),
        ("graph = {'initial_speaker': 3}", r"team.py: graph: "),
        ("agents = ada\nparticipants = 'ada'", r"participants is 'ada'; give a list of names"),
        ("agents = ada\nparticipants = ['no name']", r"participants: 'no name' is no name"),
        ("agents = ada\nparticipants = ['ada', 'ada']", r"participants names 'ada' twice"),
        ("agents = ada\ntitle = 3", r"title is 3; give a text"),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        load_program(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents = 'ada'", r"team.py: agents is 'ada'; give an Agent, a list of them"),
        ("agents = [ada, 'ben']", r"team.py: agents has 'ben' in it"),
        ("agents = []", r"team.py: agents is empty"),
        ("agents = [ada, Agent('Ada', says)]", r"team.py: agents has 'Ada' twice"),
        ("def agents():\n    return 1 / 0", r"team.py:7: ZeroDivisionError"),
        ("def agents(x): return ada", r"team.py: TypeError: agents\(\) missing 1 required"),
        ("async def agents(): yield ada", r"agents\(\) yields; put @asynccontextmanager above it"),
        ("def agents(): return None", r"team.py: agents is None"),
        (
            "@asynccontextmanager\nasync def agents():\n    raise OSError('no server')\n    yield",
            r":8: OSError: no server",
        ),
        ("@asynccontextmanager\nasync def agents():\n    yield ada\n    raise OSError('stuck')", r":9: OSError: stuck"),
    ],
)
async def test_a_mistake_in_what_it_makes_is_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    program = load_program(written(tmp_path, text))
    with pytest.raises(AntiphonError, match=said):
        await names_in(program)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"there is no file '.*nowhere.py'"):
        load_program(str(tmp_path / "nowhere.py"))
    with pytest.raises(click.UsageError, match="is a folder"):
        load_program(str(tmp_path))
    (tmp_path / "sound.py").write_bytes(b"\x00\xff")
    with pytest.raises(UsageError, match=r"sound.py"):
        load_program(str(tmp_path / "sound.py"))
