"""The longer demonstration in `examples/demo`, as a user runs it: what it shows is compared with the file it leaves."""

import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED
from tests.docs.pages import EXAMPLES
from tests.support.demo_run import DemoRun, outside_contacts, run_demo

GOLDEN = Path(__file__).parent / "demo_log.txt"
ENOUGH, SPOKEN_BEFORE, SPOKEN_AFTER = 101, 5, 2
CLERK = "vera"


def shown(directory: Path, *words: str) -> DemoRun:
    def run(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / "demo"), "--keep", str(path), *words],
            env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return run_demo(directory, run, speaker=CLERK)


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


def test_it_comes_to_its_end(either: DemoRun) -> None:
    assert either.done.returncode == 0, either.done.stderr
    assert either.done.stderr == ""


def test_five_processes_take_part_and_none_leaves_this_machine(either: DemoRun) -> None:
    assert either.contacts.count("listening") == 5
    assert outside_contacts(either) == []


def test_the_counter_is_talked_to_at_a_terminal_and_over_http(counted: DemoRun) -> None:
    commanded = counted.of("commanded")
    assert [(beat["name"], beat["file"]) for beat in commanded] == [("run", "counter.py"), ("serve", "counter.py")]
    assert commanded[1]["url"].startswith("http://127.0.0.1:")
    heard = counted.of("heard")
    answers = [(beat["command"], beat["agent"], beat["text"]) for beat in heard if beat["event"] == "ai_message"]
    assert answers == [
        ("run", "nell", "One copy, slightly pecked. Anything else?"),
        ("run", "gus", "That makes 11 pence, paid in advance."),
        ("serve", "gus", "That makes 22 pence, paid in advance."),
    ]
    assert [beat["command"] for beat in heard if beat["event"] == "done"] == ["run", "run", "serve"]


def test_a_handover_is_shown(told: DemoRun) -> None:
    assert re.search(r"^ +nell +→ gus$", told.done.stdout, re.MULTILINE)


def test_piped_it_is_plain(either: DemoRun) -> None:
    assert "\x1b" not in either.done.stdout
    assert "\r" not in either.done.stdout


def test_the_hub_is_killed_for_real(counted: DemoRun) -> None:
    killed = counted.of("killed")[0]
    first, second = counted.of("began")
    assert killed["exit_code"] == -9
    assert killed["process"] == first["process"]
    assert len({first["process"], second["process"], os.getpid()}) == 3
    for process in (first["process"], second["process"]):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_it_is_killed_in_mid_conversation(counted: DemoRun) -> None:
    steps = [beat["step"] for beat in counted.steps]
    before = steps[: steps.index("killed")]
    assert before.count("wired") == ENOUGH
    assert before.count("said") == SPOKEN_BEFORE + 2
    assert "closed" not in before


def test_no_acknowledged_line_is_missing(counted: DemoRun) -> None:
    recorded = Counter(counted.recorded())
    acknowledged = [(beat["channel_id"], beat["sequence"], beat["envelope_id"]) for beat in counted.of("said", "wired")]
    assert len(acknowledged) == ENOUGH + SPOKEN_BEFORE + SPOKEN_AFTER + 4
    assert [place for place in acknowledged if recorded[place] != 1] == []
    summed = {channel: len(sequences) for channel, sequences in counted.of("killed")[0]["acknowledged"].items()}
    assert sum(summed.values()) == counted.of("compared")[0]["acknowledged"] >= ENOUGH


def test_nothing_is_there_twice(counted: DemoRun) -> None:
    assert counted.of("compared")[0]["doubled"] == 0
    repeated = counted.of("repeated")[0]
    assert (repeated["doubled"], 0 < repeated["added"] < repeated["items"]) == (0, True)


def test_the_channels_go_on_where_they_were(counted: DemoRun) -> None:
    desk, phone, errand, wire = counted.of("found")
    assert (desk["type"], desk["next_speaker"], desk["turn_count"]) == (
        "discussion",
        "june",
        SPOKEN_BEFORE,
    )
    assert (phone["type"], phone["next_speaker"]) == ("consulting", "finn")
    assert (errand["type"], errand["next_speaker"]) == ("consulting", CLERK)
    assert (wire["type"], wire["status"]) == ("conversation", "active")
    assert counted.of("delivered")[0]["text"] == "Finn, how many geese are holding your bridge?"


def test_speaking_out_of_turn_is_refused(counted: DemoRun) -> None:
    refused = counted.of("refused")[0]
    assert refused["reason"] == "not_expected_speaker"
    assert (refused["speaker"], refused["text"]) == ("otto", "While we wait: FOWL PLAY AT TOLL BRIDGE!")
    connection = sqlite3.connect(counted.path)
    [(times,)] = connection.execute("SELECT count(*) FROM log WHERE instr(body, ?)", (refused["text"],))
    connection.close()
    assert times == 0


def test_the_hub_is_killed_in_mid_turn(counted: DemoRun) -> None:
    steps = [beat["step"] for beat in counted.steps]
    before = steps[: steps.index("killed")]
    assert [step for step in before if step in ("called", "pays", "booked")] == [*["called"] * 3, "pays", "booked"]
    recalled = counted.of("recalled")
    assert [(call["name"], call["in_flight"]) for call in recalled] == [
        ("model", False),
        ("look_up", False),
        ("model", False),
        ("pay", True),
    ]


def test_the_turn_is_finished_from_its_journal(counted: DemoRun) -> None:
    steps = [beat["step"] for beat in counted.steps]
    after = counted.steps[steps.index("killed") :]
    assert [beat["name"] for beat in after if beat["step"] == "called"] == ["model", "file", "model"]
    accounted = counted.of("accounted")[0]
    assert [accounted[name] for name in ("calls", "read", "again", "anew")] == [7, 3, 1, 3]
    assert [beat["text"] for beat in counted.of("said") if beat["speaker"] == CLERK] == [
        "Mrs Plum has her twelve shillings. Once."
    ]


def test_the_payment_is_made_twice_and_booked_once(counted: DemoRun) -> None:
    first, second = counted.of("pays")
    assert first == second
    assert [(beat["known"], beat["entries"]) for beat in counted.of("booked")] == [(False, 1), (True, 1)]


def test_the_log_tells_the_same_of_the_turn(counted: DemoRun) -> None:
    turn = counted.turn()
    claims = [data for kind, data in turn if kind == EV_TURN_CLAIMED]
    assert [claim["epoch"] for claim in claims] == [1, 2]
    assert len({claim["owner"] for claim in claims}) == 2
    again = turn[turn.index((EV_TURN_CLAIMED, claims[1])) :]
    assert [data["index"] for kind, data in again if kind == EV_CALL_STARTED] == [3, 4, 5, 6]
    assert [data["index"] for kind, data in turn if kind == EV_CALL_FINISHED] == list(range(7))
    keys = [data["key"] for kind, data in turn if kind == EV_CALL_STARTED and data["name"] == "pay"]
    assert keys == [beat["key"] for beat in counted.of("pays")]


def test_all_conversations_are_finished(counted: DemoRun) -> None:
    assert [beat["reason"] for beat in counted.of("closed")] == ["answered", "answered", "front page agreed"]


def test_the_file_is_verified(counted: DemoRun) -> None:
    verified = counted.of("verified")[0]
    assert verified["problems"] == 0
    assert verified["envelopes"] == len(counted.recorded())
    assert verified["channels"] == 7


def test_the_story_names_what_was_acknowledged(told: DemoRun) -> None:
    text = told.done.stdout
    assert re.search(r"kill -9 \d+\n.*exit code -9", text)
    assert re.search(r"^ +discussion +8, 10, 12, 14, 16$", text, re.MULTILINE)
    assert re.search(r"lines acknowledged: 0 missing, 0 there twice", text)
    assert re.search(r"refused with 'not_expected_speaker':\n +'otto' spoke; the turn is with june\n", text)


def test_the_story_tells_what_was_read_and_what_was_called(told: DemoRun) -> None:
    turn = told.done.stdout.partition("4  The clerk's turn goes on\n")[2].partition("\n\n")[0]
    assert re.search(r"^ ✓   12  vera   reads: look_up gave Mrs Plum, 12 shillings$", turn, re.MULTILINE)
    key = re.search(r"^ ✓   15  vera   reads: pay has left, under the key (\w{8}); no answer$", turn, re.MULTILINE)
    assert key is not None
    assert f"  vera   calls pay: the same again, under the same key {key[1]}\n" in turn
    assert " ✓  7 calls: 3 read from the journal, 1 made again under its key, 3 new.\n" in turn
    assert turn.endswith(" ✓  The bank was asked twice. Its ledger holds 1 entry.")


def test_the_log_is_shown(told: DemoRun) -> None:
    table = told.done.stdout.partition("8  What the log says\n")[2].partition("\n\n")[0]
    assert re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<------ time ------>", table) + "\n" == GOLDEN.read_text("utf-8")


def test_lines_fit_a_terminal(told: DemoRun) -> None:
    lines = [line for line in told.done.stdout.splitlines() if str(told.path) not in line]
    assert [line for line in lines if len(line) > 90] == []
