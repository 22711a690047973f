"""Rows on terminals of every width: no word is broken, and nothing is left out."""

import re
from pathlib import Path

import pytest

from antiphon.cli.table_layout import Column
from antiphon.cli.terminal_output import TerminalOutput, table_lines
from tests.cli.conftest import Town
from tests.cli.test_output import CODES, on_terminal

COLUMNS = (40, 60, 80, 120)


def lines_on(columns: int, *words: str) -> list[str]:
    lines = [line.rstrip() for line in CODES.sub("", on_terminal(*words, columns=columns)).splitlines()]
    assert max(map(len, lines)) <= columns
    return lines


def words_of(lines: list[str]) -> list[str]:
    return sorted(word for line in lines for word in line.split() if word != "-")


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_table_says_the_same_on_every_width(columns: int, town: Town) -> None:
    lines = lines_on(columns, "channels", str(town.path), "--system")
    assert words_of(lines) == words_of(lines_on(200, "channels", str(town.path), "--system"))
    for channel in (town.council, town.tavern, "system:audit"):
        assert sum(line.split()[0] == channel for line in lines) == 1


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("more", [(), ("--audit",)], ids=" ".join)
def test_a_log_says_the_same_on_every_width(columns: int, more: tuple[str, ...], town: Town) -> None:
    words = ("log", town.council, str(town.path), *more)
    assert words_of(lines_on(columns, *words)) == words_of(lines_on(200, *words))


def test_a_narrow_log_has_what_was_said_below_who_said_it(town: Town) -> None:
    lines = lines_on(40, "log", town.council, str(town.path))
    assert lines[:3] == ["  SEQ  TIME      WHO", "       WHAT", "       2026-01-01"]
    place = lines.index("    8  00:00:00  ada")
    assert lines[place + 1 : place + 3] == ["       Shall we", "       mend the bridge?"]


@pytest.mark.parametrize("columns", [40, 80])
def test_findings_and_verdicts_fit(columns: int, town: Town) -> None:
    for words in (("doctor", str(town.path)), ("verify", str(town.path))):
        lines = [line for line in CODES.sub("", on_terminal(*words, columns=columns)).splitlines()]
        assert [line for line in lines if len(line) > columns and str(town.path.parent) not in line] == []
        assert {"doctor": "durability", "verify": "sound"}[words[0]] in " ".join(lines).split()


def test_the_demonstration_breaks_no_word(tmp_path: Path) -> None:
    lines = CODES.sub("", on_terminal("demo", "--fast", "--keep", str(tmp_path / "d.db"), columns=40)).splitlines()
    long = [line for line in lines if len(line) > 40]
    assert all(re.match(r" *(export|rm|antiphon|/)", line) for line in long), long
    assert {"acknowledged,", "find_order,", "refunded."} <= set(" ".join(lines).split())


LAYOUT = [Column("ID", 6), Column("NAME", 10), Column("N", 4, right=True), Column("WHAT")]


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (60, [[(0, 6), (1, 10), (2, 4), (3, 34)]]),
        (46, [[(0, 6), (1, 10), (2, 4), (3, 20)]]),
        (45, [[(0, 6), (1, 10), (2, 4)], [(3, 37)]]),
        (20, [[(0, 6), (1, 10)], [(2, 4)], [(3, 12)]]),
        (5, [[(0, 5)], [(1, 1)], [(2, 1)], [(3, 1)]]),
    ],
)
def test_columns_that_do_not_fit_go_on_the_next_line(room: int, lines: list[list[tuple[int, int]]]) -> None:
    assert table_lines(LAYOUT, room) == lines


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("one two", ["one two"]),
        ("one two three four", ["one two", "three four"]),
        ("a-word-that-is-longer-than-a-line and more", ["a-word-that-is-longer-than-a-line", "and more"]),
        ("   indented words", ["   indented", "   words"]),
        ("日本 語語 語語", ["日本 語語", "語語"]),
    ],
)
def test_lines_break_between_words(
    text: str, parts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    TerminalOutput().line(text)
    assert capsys.readouterr().out.splitlines() == parts
