"""What a person at a terminal sees: the commands run on a pseudo-terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from antiphon.cli.console_output import PlainOutput
from antiphon.cli.table_layout import Cell, Column, fit_columns
from tests.cli.conftest import Town

CODES = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*words: str, columns: int, **env: str) -> str:
    """All that the command line writes to a terminal, as it comes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "NO_COLOR")}
    surroundings = {**plain, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}
    command = [sys.executable, "-m", "antiphon", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings) as process:
        os.close(theirs)
        written = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


def test_a_terminal_gets_colours_and_folded_texts(town: Town) -> None:
    written = on_terminal("log", town.council, "--store", town.url, columns=60)
    assert CODES.search(written)
    lines = [line.rstrip() for line in CODES.sub("", written).splitlines()]
    assert max(map(len, lines)) <= 60
    assert lines[:2] == ["  SEQ  TIME      WHO   WHAT", "       2026-01-01"]
    place = lines.index("    8  00:00:00  ada   Shall we")
    assert lines[place + 1] == "                       mend the bridge?"


def test_nothing_recorded_colours_a_terminal(town: Town) -> None:
    written = on_terminal("log", town.council, "--store", town.url, columns=100, NO_COLOR="1", TERM="dumb")
    assert "\x1b" not in written
    assert r"(to ada) \x1b[31mNo.\x1b[0m" in written


@pytest.mark.parametrize("columns", [80, 100])
def test_ids_are_never_folded(columns: int, town: Town) -> None:
    lines = CODES.sub("", on_terminal("channels", "--store", town.url, columns=columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines if line[0] != " "] == ["CHANNEL", town.council, town.tavern]


def test_nothing_to_list_is_said(town: Town) -> None:
    written = on_terminal("channels", "--store", town.url, "--status", "expired", columns=80)
    assert CODES.sub("", written) == "There are no such channels here.\n"


def test_the_demonstration_fits_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "refunds.db"
    written = on_terminal("demo", "--fast", "--keep", str(path), columns=80)
    lines = [line.rstrip() for line in CODES.sub("", written).splitlines()]
    assert [line for line in lines if len(line) > 80 and str(path) not in line] == []
    assert f"     export ANTIPHON_STORE=sqlite:///{path}" in lines
    assert "2  kill -9" in "\n".join(lines)


def test_plain_rows_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = PlainOutput()
    rows = [["1", Cell("a\nb", "bold"), "x"], ["20", "", ""]]
    layout = fit_columns([Column("N", right=True), Column("NAME"), Column("LAST")], rows)
    for row in rows:
        out.row(layout, row)
    assert capsys.readouterr().out == " 1  a\\nb  x\n20\n"
