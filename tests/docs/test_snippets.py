"""Every piece of Python in the README and the documentation runs, and prints what the page says.

The pieces of one page share their names and one event loop, as if they stood one after the other in one function; and
so they can be run, as docs/README.md says.
"""

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest

from antiphon import Hub
from antiphon.core.conditions import CONDITIONS
from antiphon.core.targets import TARGETS
from antiphon.guards import gate_checks, named_guards, policies
from antiphon.orchestration import catalogue
from antiphon.orchestration.predicates import PREDICATES
from tests.docs.pages import DOCS, PAGES, Snippet, named, snippets, text_of

WITH_CODE = [page for page in PAGES if snippets(text_of(page))]
TO_BE_TRIED = [page for page in WITH_CODE if page.parent == DOCS and page.name != "README.md"]


def run(page: str, pieces: list[Snippet]) -> Iterator[tuple[Snippet, str]]:
    """Run the pieces one after the other; give what each of them printed."""
    names: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as loop:
        try:
            for piece in pieces:
                yield piece, run_one(page, piece, names, loop)
        finally:
            for hub in [value for value in names.values() if isinstance(value, Hub)]:
                loop.run(hub.close())


def run_one(page: str, piece: Snippet, names: dict[str, object], loop: asyncio.Runner) -> str:
    said = io.StringIO()
    source = "\n" * (piece.line - 1) + piece.code
    code = builtins.compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(said):
        if code.co_flags & inspect.CO_COROUTINE:
            loop.run(eval(code, names))
        else:
            exec(code, names)
    return said.getvalue()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A page may silence a logger; the next test is to hear it again."""
    logger = logging.getLogger("antiphon")
    level = logger.level
    yield
    logger.setLevel(level)


def test_there_are_pages_with_code() -> None:
    assert len(WITH_CODE) >= 8
    assert DOCS / "concepts.md" in PAGES


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for piece, said in run(named(page), snippets(text_of(page))):
        if piece.output is not None:
            assert said == piece.output, f"{named(page)}, line {piece.line}"


def in_one_function(pieces: list[Snippet]) -> str:
    """The pieces put into the program of docs/README.md, as its reader does."""
    [program] = snippets(text_of(DOCS / "README.md"))
    body = indent("\n".join(piece.code for piece in pieces), "    ")
    source, count = re.subn(r"    pass  # here the snippets.*\n", lambda _: body, program.code)
    assert count == 1
    return source


@pytest.mark.parametrize("page", TO_BE_TRIED, ids=named)
def test_page_runs_in_one_function(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_registered_adapters", {})  # as in a program of its own
    monkeypatch.setattr(named_guards, "_registered_guards", {})
    for names in (CONDITIONS, TARGETS):
        monkeypatch.setattr(names, "_registered", {})
    monkeypatch.setattr(PREDICATES, "_known", {})
    monkeypatch.setattr(gate_checks, "_checks", {})
    monkeypatch.setattr(policies, "_policies", {})
    pieces = snippets(text_of(page))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(builtins.compile(in_one_function(pieces), named(page), "exec"), {"__name__": "__main__"})
    assert said.getvalue() == "".join(piece.output or "" for piece in pieces)


def test_a_wrong_page_is_noticed() -> None:
    text = "# Page\n\n```python\nx = 1\nprint(x)\n```\n\n```text\n2\n```\n\nProse.\n\n```python\nawait 1\n```\n"
    first, second = snippets(text)
    assert (first.line, first.output, second.output) == (4, "2\n", None)
    ran = run("page.md", [first, second])
    assert next(ran) == (first, "1\n")
    with pytest.raises(TypeError, match="await"):
        next(ran)
