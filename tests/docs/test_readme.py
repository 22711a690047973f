"""The README is short, its promises are kept by tests that exist, and its first program is a small one."""

import re

from tests.docs.pages import README, ROOT, links, snippets, text_of

LINES = 120
FIRST_PROGRAM = 20


def promises(text: str) -> list[str]:
    section = text.partition("## What is promised")[2].partition("\n## ")[0]
    return re.findall(r"^- .+(?:\n  .+)*$", section, re.MULTILINE)


def unkept(text: str) -> list[str]:
    return [line for line in promises(text) if not all_tests(list(links(line)))]


def all_tests(targets: list[str]) -> bool:
    return bool(targets) and all(is_a_test(target) for target in targets)


def is_a_test(target: str) -> bool:
    path = ROOT / target
    return path.is_file() and path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")


def test_every_promise_names_its_test() -> None:
    assert len(promises(text_of(README))) >= 8
    assert unkept(text_of(README)) == []


def test_a_promise_without_a_test_is_noticed() -> None:
    kept = "- It folds: [tests](tests/docs/test_readme.py)."
    empty = ["- It flies.", "- It swims: [tests](tests/test_gone.py).", "- It walks: [tests](tests/docs/pages.py)."]
    assert unkept("## What is promised\n\n" + "\n".join([kept, *empty]) + "\n\n## Next\n\n- not a promise\n") == empty


def test_it_is_short() -> None:
    assert len(text_of(README).splitlines()) <= LINES
    program = snippets(text_of(README))[0]
    assert len(program.code.splitlines()) <= FIRST_PROGRAM


def test_its_commands_exist() -> None:
    makefile = text_of(ROOT / "Makefile")
    commands = re.findall(r"`?\bmake (\w+)", text_of(README))
    assert commands
    assert [name for name in commands if f"\n{name}:" not in makefile] == []
