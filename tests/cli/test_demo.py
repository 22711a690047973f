"""The demonstration, as a user runs it: what it shows is compared with the file it leaves."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from antiphon import Envelope
from antiphon.cli.demo import (
    ENOUGH,
    QUESTION,
    REPEATS,
    Accounted,
    Compared,
    DemoFailed,
    RefundDemo,
    account_calls,
    compare_orders,
    removal_command,
)
from antiphon.cli.refund_desk import DESK, CallReport
from antiphon.core.envelope import HUB
from antiphon.core.events import EV_TEXT
from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED
from tests.cli.conftest import Run, typed
from tests.support.demo_run import DemoRun, outside_contacts, run_demo

SECONDS = 20


def shown(directory: Path, *words: str) -> DemoRun:
    return run_demo(directory, lambda path, given: typed("demo", "--keep", str(path), *words, **given), speaker=DESK)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    return shown(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    return shown(tmp_path_factory.mktemp("counted"), "--json")


@pytest.fixture(params=["told", "counted"])
def either(request: pytest.FixtureRequest) -> DemoRun:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DemoRun)
    return found


def test_it_comes_to_its_end_in_time(either: DemoRun) -> None:
    assert either.done.returncode == 0, either.done.stderr
    assert either.done.stderr == ""
    assert either.seconds < SECONDS


def test_three_processes_take_part_and_none_leaves_this_machine(either: DemoRun) -> None:
    assert either.contacts.count("listening") == 3
    assert outside_contacts(either) == []


def test_piped_it_is_plain(either: DemoRun) -> None:
    assert "\x1b" not in either.done.stdout
    assert "\r" not in either.done.stdout


def test_the_server_is_killed_for_real(counted: DemoRun) -> None:
    killed = counted.of("killed")[0]
    first, second = counted.of("served")
    assert killed["exit_code"] == -9
    assert killed["process"] == first["process"]
    assert len({first["process"], second["process"], os.getpid()}) == 3
    assert all(served["url"].startswith("http://127.0.0.1:") for served in (first, second))
    for process in (first["process"], second["process"]):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_it_is_killed_while_it_takes_orders(counted: DemoRun) -> None:
    names = [step["step"] for step in counted.steps]
    before = names[: names.index("killed")]
    assert before[-1] == "ordered"
    assert "answered" not in before
    assert len(counted.of("ordered")[0]["acknowledged"]) >= ENOUGH


def test_no_acknowledged_order_is_missing(counted: DemoRun) -> None:
    recorded = Counter(counted.recorded())
    ordered = counted.of("ordered")[0]
    acknowledged = [(ordered["channel_id"], *place) for place in ordered["acknowledged"]]
    assert [place for place in acknowledged if recorded[place] != 1] == []
    compared = counted.of("compared")[0]
    assert (compared["acknowledged"], compared["missing"]) == (len(acknowledged), 0)


def test_nothing_is_there_twice(counted: DemoRun) -> None:
    assert counted.of("compared")[0]["doubled"] == 0
    repeated = counted.of("repeated")[0]
    assert (repeated["orders"], repeated["doubled"]) == (REPEATS, 0)
    assert 0 < repeated["added"] < repeated["orders"]
    bodies = counted.bodies()
    said = [each for each in bodies if each["event_data"].get("text") == QUESTION["text"]]
    assert len(said) == 1, "asked twice under one message id"
    orders = [each["event_data"]["order"] for each in bodies if each["event_type"] == "shop.order"]
    assert len(orders) == len(set(orders)) >= ENOUGH


def test_the_server_is_killed_in_mid_turn(counted: DemoRun) -> None:
    names = [step["step"] for step in counted.steps]
    before = counted.steps[: names.index("killed")]
    calls = [step["name"] for step in before if step["step"] == "called"]
    assert calls == ["model", "find_order", "model", "refund"]
    assert [step["known"] for step in before if step["step"] == "booked"] == [False]
    assert counted.of("recalled")[0]["calls"] == [
        ["model", True],
        ["find_order", True],
        ["model", True],
        ["refund", False],
    ]


def test_the_turn_is_finished_from_its_journal(counted: DemoRun) -> None:
    names = [step["step"] for step in counted.steps]
    after = counted.steps[names.index("killed") :]
    calls = [step["name"] for step in after if step["step"] == "called"]
    assert calls == ["refund", "model", "file_receipt", "model"]
    assert {step["process"] for step in after if step["step"] == "called"} == {counted.of("served")[1]["process"]}
    accounted = counted.of("accounted")[0]
    assert [accounted[name] for name in ("calls", "read", "again", "anew")] == [7, 3, 1, 3]
    assert [(step["agent"], step["text"]) for step in counted.of("answered")] == [
        (DESK, "Your 42 euros for order 7 are refunded.")
    ]


def test_the_payment_is_asked_for_twice_and_made_once(counted: DemoRun) -> None:
    first, second = (step for step in counted.of("called") if step["name"] == "refund")
    assert first["key"] == second["key"] != ""
    assert first["process"] != second["process"]
    assert [(step["known"], step["entries"]) for step in counted.of("booked")] == [(False, 1), (True, 1)]


def test_the_log_tells_the_same_of_the_turn(counted: DemoRun) -> None:
    turn = counted.turn()
    claims = [data for kind, data in turn if kind == EV_TURN_CLAIMED]
    assert [claim["epoch"] for claim in claims] == [1, 2]
    assert len({claim["owner"] for claim in claims}) == 2
    again = turn[turn.index((EV_TURN_CLAIMED, claims[1])) :]
    assert [data["index"] for kind, data in again if kind == EV_CALL_STARTED] == [3, 4, 5, 6]
    assert [data["index"] for kind, data in turn if kind == EV_CALL_FINISHED] == list(range(7))
    keys = [data["key"] for kind, data in turn if kind == EV_CALL_STARTED and data["name"] == "refund"]
    assert keys == [step["key"] for step in counted.of("booked")]


def test_the_file_is_verified(counted: DemoRun) -> None:
    verified = counted.of("verified")[0]
    assert verified["problems"] == 0
    assert verified["envelopes"] == len(counted.recorded())
    assert verified["channels"] == 3


def test_the_story_tells_what_was_killed_and_what_was_kept(told: DemoRun) -> None:
    text = told.done.stdout
    assert re.search(r"^2  kill -9 \d+: exit code -9$", text, re.MULTILINE)
    acknowledged = re.search(r"^ +shop +sends orders: (\d+) are acknowledged, as 5–\d+", text, re.MULTILINE)
    assert acknowledged is not None
    assert f" ✓  {acknowledged[1]} orders acknowledged: 0 missing, 0 there twice.\n" in text
    assert " ✓  In the log: model, find_order, model, refund without a result.\n" in text


def test_the_story_tells_what_was_read_and_what_was_called(told: DemoRun) -> None:
    before, _, after = told.done.stdout.partition("2  kill -9")
    key = re.search(r"^    support  calls refund: 42 euros for order 7, key (\w{8})$", before, re.MULTILINE)
    assert key is not None
    assert "    bank     pays, and is slow to confirm\n" in before
    assert f"    support  calls refund: 42 euros for order 7, key {key[1]}\n    bank     knows this key" in after
    assert " ✓  support  Your 42 euros for order 7 are refunded.\n" in after
    assert " ✓  7 calls: 3 from the log, 1 repeated with its key, 3 new. 2 payments asked for, 1 made.\n" in after
    assert " ✓  The file: 3 channels, " in after


def test_lines_fit_a_terminal(told: DemoRun) -> None:
    lines = [line for line in told.done.stdout.splitlines() if str(told.path) not in line]
    assert [line for line in lines if len(line) > 90] == []


def test_what_to_try_next_can_be_tried(told: DemoRun) -> None:
    tried = [line.split() for line in told.done.stdout.splitlines() if line.startswith("     ")]
    (_, variable), *commands, removal = tried
    name, _, url = variable.partition("=")
    assert [words[:2] for words in commands] == [["antiphon", name] for name in ("channels", "log", "verify")]
    for words in commands:
        done = typed(*words[1:], **{name: url})
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    assert removal == ["rm", f"{told.path}*"]


def test_it_says_what_it_leaves(told: DemoRun) -> None:
    left = told.done.stdout.partition("4  What is left\n")[2]
    assert "The file stays" in left
    assert "examples" in left


def test_a_temporary_file_is_removed_with_its_folder() -> None:
    assert removal_command(Path("/tmp/antiphon-demo-x y/refunds.db")) == "rm -r '/tmp/antiphon-demo-x y'"
    assert removal_command(Path("/home/x y/mine.db")) == "rm '/home/x y/mine.db'*"


def test_a_file_that_is_there_already_is_left_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_text("mine")
    result = run("demo", "--keep", str(path))
    assert result.exit_code == 2
    assert path.read_text() == "mine"
    assert run("demo", "--keep", str(tmp_path / "no" / "such.db")).exit_code == 2


async def test_a_process_that_ends_early_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DemoFailed, match="exit code 1"):
        await RefundDemo(f"sqlite:///{tmp_path}/no/such.db").run()
    error = capfd.readouterr().err
    assert error.startswith("Error: ")
    assert error.count("\n") == 1


def recorded(*numbers: int, text: str = "") -> list[Envelope]:
    return [
        Envelope(f"id-{number}", "c1", "mara", None, EV_TEXT, {"text": text or f"line {number}"}, sequence=number)
        for number in numbers
    ]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (recorded(8, 10), Compared(2, missing=0, doubled=0, unacknowledged=0)),
        (recorded(8, 10, 12), Compared(2, missing=0, doubled=0, unacknowledged=1)),
        (recorded(8), Compared(2, missing=1, doubled=0, unacknowledged=0)),
        (recorded(8, 10) + recorded(12, text="line 8"), Compared(2, missing=0, doubled=1, unacknowledged=1)),
        ([], Compared(2, missing=2, doubled=0, unacknowledged=0)),
    ],
)
def test_what_is_lost_or_doubled_would_be_noticed(log: list[Envelope], expected: Compared) -> None:
    assert compare_orders(recorded(8, 10), log) == expected
    assert expected.holds == (expected.missing == expected.doubled == 0)


MODEL, PAY = CallReport(1, "model", "refund"), CallReport(1, "refund", "42 euros", "k")


def journalled(*entries: str) -> list[Envelope]:
    """A log with these calls in it: "0!" has left and "0" has come back; a letter behind it is the key."""
    return [
        Envelope(f"id-{place}", "c1", HUB, [], EV_CALL_STARTED if "!" in entry else EV_CALL_FINISHED, _data(entry))
        for place, entry in enumerate(entries)
    ]


def _data(entry: str) -> dict[str, object]:
    index, left, key = entry.partition("!")
    data: dict[str, object] = {"turn": "7/vera", "index": int(index)}
    return {**data, "name": "pay", "digest": "d", "key": key} if left else {**data, "result": {}}


@pytest.mark.parametrize(
    ("log", "second", "entries", "expected"),
    [
        (journalled("0!", "0", "1!k", "1!k", "1"), [PAY], 1, True),
        (journalled("0!", "0", "1!k", "1!k", "1", "2!", "2"), [PAY, MODEL], 1, True),
        (journalled("0!", "0", "1!k", "1!k", "1"), [MODEL, PAY], 1, False),
        (journalled("0!", "0", "1!k", "1!k", "1"), [PAY], 2, False),
        (journalled("0!", "0", "1!k", "1!j", "1"), [PAY], 1, False),
        (journalled("0!", "0", "1!k", "1"), [], 1, False),
    ],
    ids=["as it should be", "and goes on", "asked again", "paid twice", "another key", "not made again"],
)
def test_a_call_that_is_made_too_often_would_be_noticed(
    log: list[Envelope], second: list[CallReport], entries: int, *, expected: bool
) -> None:
    found = account_calls(log, ([MODEL, PAY], second), entries=entries)
    assert isinstance(found, Accounted)
    assert found.holds == expected
