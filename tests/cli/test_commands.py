"""What holds for every command: it explains itself, its exit codes mean something, and its errors are sentences."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from antiphon.cli import COMMAND_MODULES
from antiphon.cli.store_options import url_of_store, url_without_password
from tests.cli.conftest import Run, Town, typed

READING = [("channels", "--store"), ("log", "some-channel", "--store"), ("verify",)]


def sentence_of(result: Result) -> str:
    """The one line that an error is."""
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize("name", COMMAND_MODULES)
def test_each_command_explains_itself(name: str, run: Run) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: antiphon {name} ")
    assert "--json" in result.stdout


def test_the_help_lists_all_commands(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = result.stdout.partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in listed if line.strip()] == list(COMMAND_MODULES)


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("antiphon 0.")


def test_it_runs_as_a_module() -> None:
    done = typed("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: antiphon [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    "words",
    [
        ("dance",),
        ("channels", "--colour"),
        ("log",),
        ("channels", "--store", "x.db", "--status", "asleep"),
        ("channels", "--store", "x.db", "--participant", "no name"),
        ("channels", "--store", "x.db", "--tenant", "../x"),
    ],
    ids=" ".join,
)
def test_used_wrongly(words: tuple[str, ...], run: Run) -> None:
    result = run(*words)
    assert result.exit_code == 2
    sentence_of(result)


@pytest.mark.parametrize("words", [("channels",), ("log", "some-channel"), ("verify",)], ids=" ".join)
def test_without_a_store_it_says_how_to_name_one(words: tuple[str, ...], run: Run) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "sqlite:///team.db" in sentence_of(result)
    assert "ANTIPHON_STORE" in sentence_of(result)


@pytest.mark.parametrize("words", READING, ids=" ".join)
@pytest.mark.parametrize("url", ["carrier-pigeon:coop", "sqlite:///", "sqlite:///a.db?mode=rw", "memory:"])
def test_a_url_that_names_no_store_is_used_wrongly(words: tuple[str, ...], url: str, run: Run) -> None:
    result = run(*words, url)
    assert result.exit_code == 2
    assert url in sentence_of(result)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_store_that_is_not_there_is_not_made(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    result = run(*words, f"sqlite:///{tmp_path}/nowhere.db")
    assert result.exit_code == 1
    assert "nowhere.db" in sentence_of(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_file_of_somebody_else_is_refused(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE pet (name TEXT)")
    theirs.close()
    result = run(*words, str(path))
    assert result.exit_code == 1
    assert "another program" in sentence_of(result)


@pytest.mark.parametrize("channel", ["nobody-knows", "no channel at all", "-", "system:nothing"])
def test_an_unknown_channel_fails(channel: str, run: Run, town: Town) -> None:
    result = run("log", channel, "--store", town.url)
    assert result.exit_code == 1
    assert repr(channel) in sentence_of(result)


def test_bytes_that_are_no_text_are_no_channel(run: Run, town: Town) -> None:
    result = run("log", "\udcff", "--store", town.url)
    assert result.exit_code == 1
    assert r"\udcff" in sentence_of(result)


@pytest.mark.parametrize("words", [("channels",), ("log", "system:audit"), ("verify",), ("doctor",)], ids=" ".join)
def test_the_store_may_be_named_in_every_way(words: tuple[str, ...], run: Run, town: Town) -> None:
    def shown(*more: str, **env: str) -> str:
        result = run(*words, *more, **env)
        assert (result.exit_code, result.stderr) == (0, "")
        return re.sub("[0-9.]+ (ms|GiB)", "", result.stdout)

    told = shown(str(town.path))
    assert told
    assert shown(town.url) == shown("--store", town.url) == shown("--store", str(town.path)) == told
    assert shown(ANTIPHON_STORE=town.url) == shown(town.url, ANTIPHON_STORE="carrier-pigeon:coop") == told
    assert shown(town.url, "--store", str(town.path)) == told


def test_two_stores_are_one_too_many(run: Run, town: Town) -> None:
    result = run("channels", town.url, "--store", "other.db")
    assert result.exit_code == 2
    assert "'other.db'" in sentence_of(result)


def test_without_a_word_it_explains_itself(run: Run) -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run("--help").stdout


@pytest.mark.parametrize(("typo", "meant"), [("chanels", "channels"), ("verfy", "verify"), ("xyz", "")])
def test_a_command_that_is_nearly_one(typo: str, meant: str, run: Run) -> None:
    result = run(typo)
    assert result.exit_code == 2
    assert repr(typo) in sentence_of(result)
    assert sentence_of(result).endswith(f"Did you mean {meant!r}?" if meant else ".")


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_place_that_cannot_be_reached_is_one_sentence(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path / "round")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("round", "circle"), ("n" * 300, "too long"), ("pipe", "no regular file")):
        result = run(*words, str(tmp_path / name))
        assert result.exit_code == 1
        assert why in sentence_of(result)


def test_the_store_may_come_from_the_environment(run: Run, town: Town) -> None:
    named = run("channels", "--store", town.url)
    assert named.exit_code == 0
    assert named.stdout
    assert run("channels", ANTIPHON_STORE=town.url).stdout == named.stdout
    assert run("channels", ANTIPHON_STORE=str(town.path)).stdout == named.stdout
    assert run("channels", "--store", town.url, ANTIPHON_STORE="carrier-pigeon:coop").stdout == named.stdout


def test_another_tenant_sees_nothing(run: Run, town: Town) -> None:
    assert run("channels", "--store", town.url, "--tenant", "other").stdout == ""
    assert run("log", town.council, "--store", town.url, "--tenant", "other").exit_code == 1


def test_a_path_is_the_url_of_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert url_of_store("team.db") == f"sqlite:///{tmp_path}/team.db"
    assert url_of_store("sqlite:///team.db") == "sqlite:///team.db"


def test_a_password_is_not_shown() -> None:
    assert url_without_password("postgresql://ada:p@ss:word@db/team") == "postgresql://ada:…@db/team"
    assert url_without_password("sqlite:////var/lib/a@b.db") == "sqlite:////var/lib/a@b.db"


LOADED = """
import sys
from antiphon.cli import commands
print("click" in sys.modules, "rich" in sys.modules, "antiphon.cli.log_command" in sys.modules)
commands(["channels", "--store", sys.argv[1]], standalone_mode=False)
print("rich" in sys.modules, "antiphon.cli.log_command" in sys.modules)
"""


def test_only_what_is_used_is_loaded(town: Town) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, town.url], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "True False False"
    assert lines[-1] == "False False"
    assert len(lines) == 5


def test_an_encoding_without_some_character_still_shows_the_rest() -> None:
    done = typed("log", "--help", PYTHONIOENCODING="iso8859-1")
    assert done.returncode == 0
    assert r"antiphon log 0199d0a7-\u2026" in done.stdout
