"""`antiphon inspect`: what it prints, its exit codes, and what it says of a file that it cannot read."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from antiphon.cli import commands
from tests.cli.conftest import Run
from tests.support.transcripts import HEALTHY, SICK, called, jsonl, said

LOOPS_PAGE = Path(__file__).parent.parent.parent / "docs" / "protect-loops.md"


def trace(folder: Path, *lines: object) -> str:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_a_healthy_transcript(run: Run, tmp_path: Path) -> None:
    path = trace(tmp_path, *jsonl(HEALTHY["a debate of three"]))
    result = run("inspect", path)
    assert (result.exit_code, result.stdout) == (0, f"ok  {path}: 19 lines, nothing tripped\n")


def test_a_trip_is_printed_with_its_line(run: Run, tmp_path: Path) -> None:
    path = trace(tmp_path, *jsonl(SICK["… and once more"][0]))
    result = run("inspect", path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"2 trips  {path}: 5 lines",
        "LINE  GUARD  WHAT",
        "   4  loop   notices a loop of bob: search 3 times among the last 5 (the limit is 3), and says so to the "
        "agent, since line 2",
        "   5  loop   stops a loop of bob: search 4 times among the last 5 (the limit is 3), since line 2",
    ]


def test_trips_as_json(run: Run, tmp_path: Path) -> None:
    path = trace(tmp_path, *jsonl(SICK["money in one hour"][0]))
    result = run("inspect", path, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    [trip] = report.pop("trips")
    assert report == {"ok": False, "lines": 3}
    assert (trip["line"], trip["guard"], trip["event"]) == (3, "cost", "antiphon.flow.cost")
    assert (trip["data"]["spent"], trip["data"]["ceiling"]) == (8_000_000, 10_000_000)


def test_the_limits_are_options(run: Run, tmp_path: Path) -> None:
    path = trace(tmp_path, *jsonl(SICK["the same call three times"][0]))
    assert run("inspect", path, "--threshold", "4").exit_code == 0
    assert run("inspect", path, "--threshold", "2", "--window", "2").exit_code == 1
    path = trace(tmp_path, *jsonl(SICK["money in one hour"][0]))
    assert run("inspect", path, "--dollars", "12").exit_code == 0
    assert run("inspect", path, "--dollars", "3.99").exit_code == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--threshold", "1"], "threshold of loop is 1; give a number from 2 to the window, 5, or 'unlimited'"),
        (["--window", "0"], "window of loop is 0; give a number from 2 to 100"),
        (["--dollars", "much"], "dollars_per_hour of cost_velocity is 'much'"),
    ],
)
def test_a_bad_limit_is_used_wrongly(run: Run, tmp_path: Path, options: list[str], why: str) -> None:
    result = run("inspect", trace(tmp_path, said("bob", "hello")), *options)
    assert result.exit_code == 2
    assert why in result.stderr


def test_a_person_begins_anew(run: Run, tmp_path: Path) -> None:
    again = [said("ann", "Once more, please."), called("bob", "search", {"q": "x"})] * 5
    path = trace(tmp_path, *again)
    assert run("inspect", path).exit_code == 1
    assert run("inspect", path, "--person", "ann").exit_code == 0
    again[0] = {**again[0], "kind": "human"}
    assert run("inspect", trace(tmp_path, *again)).exit_code == 0


def test_empty_lines_count_and_a_byte_order_mark_does_not(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = jsonl(SICK["the same call three times"][0])
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode() + b"\r\n")
    result = run("inspect", str(path), "--json")
    assert [trip["line"] for trip in json.loads(result.stdout)["trips"]] == [7]
    assert json.loads(result.stdout)["lines"] == 4


def test_an_empty_transcript(run: Run, tmp_path: Path) -> None:
    path = trace(tmp_path)
    assert run("inspect", path).stdout == f"ok  {path}: 0 lines, nothing tripped\n"


GOOD = '{"speaker": "bob", "text": "hello"}'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"speaker": "bob", "text": "hello"', "it is no JSON: "),
        ('{"speaker": "bob", "text": "a", "text": "b"}', "an object has the name 'text' twice"),
        ('["bob", "hello"]', "give an object with speaker, and text or tool"),
        ('{"text": "hello"}', "speaker is missing"),
        ('{"speaker": 7, "text": "hello"}', "speaker is int, not str"),
        ('{"speaker": " ", "text": "hello"}', "speaker is empty"),
        ('{"speaker": "bob"}', "it has neither text nor tool"),
        ('{"speaker": "bob", "text": 7}', "text is int"),
        ('{"speaker": "bob", "tool": "", "args": {}}', "tool is empty"),
        ('{"speaker": "bob", "tool": "look", "args": [1]}', "args is "),
        ('{"speaker": "bob", "tool": "look", "args": {"n": NaN}}', "it is no JSON"),
        ('{"speaker": "bob", "text": "hello", "args": {}}', "no tool; name the tool"),
        (
            '{"speaker": "bob", "tool": "look", "arguments": {}}',
            "a line has no field 'arguments'; it has: speaker, text",
        ),
        ('{"speaker": "bob", "text": "hello", "kind": "robot"}', "kind"),
        ('{"speaker": "bob", "text": "hello", "kind": "human"}', "'bob' is human here, and was agent before"),
        ('{"speaker": "bob", "text": "hello", "cost": -1}', "cost is -1"),
        ('{"speaker": "bob", "text": "hello", "cost": "cheap"}', "cost is 'cheap'; give dollars, such as 0.25"),
        ('{"speaker": "bob", "text": "hello", "tokens": -5}', "tokens is -5; give 0 or more"),
        ('{"speaker": "bob", "text": "hello", "at": "noon"}', "at is 'noon'; give a time with a time zone"),
        ('{"speaker": "bob", "text": "hello", "at": "2026-05-01T12:00:00"}', "give a time with a time zone"),
        ('{"speaker": "bob", "text": "hello", "at": 1e40}', "give a time with a time zone"),
        ("[" * 2000, "it is no JSON"),
    ],
)
def test_a_bad_line_is_named(run: Run, tmp_path: Path, line: str, why: str) -> None:
    first = GOOD.replace("}", ', "kind": "agent"}')
    path = trace(tmp_path, first, "", line, GOOD)
    result = run("inspect", path)
    assert result.exit_code == 2
    assert f"{path}, line 3: " in result.stderr
    assert why in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("inspect", str(tmp_path / "none.jsonl"))
    assert result.exit_code == 2
    assert "none.jsonl cannot be read: No such file or directory" in result.stderr
    assert run("inspect", str(tmp_path)).exit_code == 2


def test_the_example_of_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, example = LOOPS_PAGE.read_text(encoding="utf-8").partition("```json\n")
    lines, _, shown = example.partition("```\n")
    shown = shown.partition("```text\n$ antiphon inspect trace.jsonl\n")[2].partition("```")[0]
    trace(tmp_path, *lines.splitlines())
    monkeypatch.chdir(tmp_path)
    assert run("inspect", "trace.jsonl").stdout == shown != ""


def test_standard_input() -> None:
    lines = "\n".join(jsonl(SICK["the same call three times"][0]))
    result = CliRunner().invoke(commands, ["inspect", "-"], prog_name="antiphon", input=lines)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 trip  -: 4 lines\n")
