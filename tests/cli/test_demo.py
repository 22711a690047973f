"""The demonstration, as a user runs it: what it shows is held against the file it leaves."""

import json
import os
import re
import sqlite3
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antiphon import Envelope
from antiphon.cli.demo import story
from antiphon.cli.demo.beats import Accounted, Called, Compared, Pays, Said
from antiphon.cli.demo.command import _removal
from antiphon.cli.demo.play import ENOUGH, Contact, DemoFailed, Play, accounted, compared
from antiphon.core.envelope import HUB
from antiphon.core.events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TEXT, EV_TURN_CLAIMED
from tests.cli.conftest import Run, typed

GOLDEN = Path(__file__).parent / "demo_log.txt"
SECONDS = 20
OFFLINE = """
import os, sys
def heard(event, args):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
        with open(os.environ["OFFLINE"], "a") as file:
            file.write(f"{event} {args[1:]}\\n")
sys.addaudithook(heard)
with open(os.environ["OFFLINE"], "a") as file:
    file.write("listening\\n")
"""


@dataclass(frozen=True)
class Shown:
    """What one run of the demonstration wrote, and what it left."""

    path: Path
    done: subprocess.CompletedProcess[str]
    seconds: float
    contacts: list[str] = field(default_factory=list)

    @property
    def beats(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.done.stdout.splitlines()]

    def of(self, *steps: str) -> list[dict[str, Any]]:
        return [beat for beat in self.beats if beat["step"] in steps]

    def turn(self) -> list[tuple[str, dict[str, Any]]]:
        """What the log says of the clerk's turn, as SQLite alone reads it: types and data."""
        wanted = (EV_TURN_CLAIMED, EV_CALL_STARTED, EV_CALL_FINISHED)
        connection = sqlite3.connect(self.path)
        bodies = connection.execute("SELECT body FROM log ORDER BY channel, seq").fetchall()
        connection.close()
        entries = [json.loads(body) for (body,) in bodies]
        told = [(each["event_type"], each["event_data"]) for each in entries if each["event_type"] in wanted]
        return [(kind, data) for kind, data in told if data["turn"].endswith(f"/{story.CLERK}")]

    def recorded(self) -> list[tuple[str, int, str]]:
        """The file as SQLite alone reads it."""
        connection = sqlite3.connect(self.path)
        rows = connection.execute("SELECT channel, seq, id FROM log").fetchall()
        connection.close()
        return rows


def shown(directory: Path, *words: str) -> Shown:
    path, contacts = directory / "gazette.db", directory / "contacts"
    (directory / "sitecustomize.py").write_text(OFFLINE)
    begun = time.monotonic()
    done = typed("demo", "--keep", str(path), *words, PYTHONPATH=str(directory), OFFLINE=str(contacts))
    return Shown(path, done, time.monotonic() - begun, contacts.read_text().splitlines())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return shown(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return shown(tmp_path_factory.mktemp("counted"), "--json")


@pytest.fixture(params=["told", "counted"])
def either(request: pytest.FixtureRequest) -> Shown:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Shown)
    return found


def test_it_comes_to_its_end_in_time(either: Shown) -> None:
    assert either.done.returncode == 0, either.done.stderr
    assert either.done.stderr == ""
    assert either.seconds < SECONDS


def test_five_processes_take_part_and_none_leaves_this_machine(either: Shown) -> None:
    assert either.contacts.count("listening") == 5
    contacts = [contact for contact in either.contacts if contact != "listening"]
    assert {contact.split()[0] for contact in contacts} >= {"socket.bind", "socket.connect"}
    assert [contact for contact in contacts if "'127.0.0.1'" not in contact] == []


def test_the_counter_is_talked_to_at_a_terminal_and_over_http(counted: Shown) -> None:
    commanded = counted.of("commanded")
    assert [(beat["name"], beat["file"]) for beat in commanded] == [("run", "counter.py"), ("serve", "counter.py")]
    assert commanded[1]["url"].startswith("http://127.0.0.1:")
    heard = counted.of("heard")
    answers = [(beat["command"], beat["agent"], beat["text"]) for beat in heard if beat["event"] == "ai_message"]
    assert answers == [
        ("run", story.COUNTER, story.COUNTER_SAYS),
        ("run", story.ADVERTISER, "That makes 11 pence, paid in advance."),
        ("serve", story.ADVERTISER, "That makes 22 pence, paid in advance."),
    ]
    assert [beat["command"] for beat in heard if beat["event"] == "done"] == ["run", "run", "serve"]


def test_a_handover_is_shown(told: Shown) -> None:
    assert re.search(r"^ +nell +→ gus$", told.done.stdout, re.MULTILINE)


def test_piped_it_is_plain(either: Shown) -> None:
    assert "\x1b" not in either.done.stdout
    assert "\r" not in either.done.stdout


def test_the_hub_is_killed_for_real(counted: Shown) -> None:
    killed = counted.of("killed")[0]
    first, second = counted.of("began")
    assert killed["exit_code"] == -9
    assert killed["process"] == first["process"]
    assert len({first["process"], second["process"], os.getpid()}) == 3
    for process in (first["process"], second["process"]):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_it_is_killed_in_mid_conversation(counted: Shown) -> None:
    steps = [beat["step"] for beat in counted.beats]
    before = steps[: steps.index("killed")]
    assert before.count("wired") == ENOUGH
    assert before.count("said") == len(story.BEFORE) + 2
    assert "closed" not in before


def test_no_acknowledged_line_is_missing(counted: Shown) -> None:
    recorded = Counter(counted.recorded())
    acknowledged = [(beat["channel_id"], beat["sequence"], beat["envelope_id"]) for beat in counted.of("said", "wired")]
    assert len(acknowledged) == ENOUGH + len(story.BEFORE) + len(story.AFTER) + 4
    assert [place for place in acknowledged if recorded[place] != 1] == []
    summed = {channel: len(sequences) for channel, sequences in counted.of("killed")[0]["acknowledged"].items()}
    assert sum(summed.values()) == counted.of("compared")[0]["acknowledged"] >= ENOUGH


def test_nothing_is_there_twice(counted: Shown) -> None:
    assert counted.of("compared")[0]["doubled"] == 0
    repeated = counted.of("repeated")[0]
    assert (repeated["doubled"], 0 < repeated["added"] < repeated["items"]) == (0, True)


def test_the_channels_go_on_where_they_were(counted: Shown) -> None:
    desk, phone, errand, wire = counted.of("found")
    assert (desk["type"], desk["next_speaker"], desk["turn_count"]) == (
        "discussion",
        story.CHECKER,
        len(story.BEFORE),
    )
    assert (phone["type"], phone["next_speaker"]) == ("consulting", story.KEEPER)
    assert (errand["type"], errand["next_speaker"]) == ("consulting", story.CLERK)
    assert (wire["type"], wire["status"]) == ("conversation", "active")
    assert counted.of("delivered")[0]["text"] == story.QUESTION.text


def test_speaking_out_of_turn_is_refused(counted: Shown) -> None:
    refused = counted.of("refused")[0]
    assert refused["reason"] == "not_expected_speaker"
    assert (refused["speaker"], refused["text"]) == story.OUT_OF_TURN
    connection = sqlite3.connect(counted.path)
    [(times,)] = connection.execute("SELECT count(*) FROM log WHERE instr(body, ?)", (refused["text"],))
    connection.close()
    assert times == 0


def test_the_hub_is_killed_in_mid_turn(counted: Shown) -> None:
    steps = [beat["step"] for beat in counted.beats]
    before = steps[: steps.index("killed")]
    assert [step for step in before if step in ("called", "pays", "booked")] == [*["called"] * 3, "pays", "booked"]
    recalled = counted.of("recalled")
    assert [(call["name"], call["in_flight"]) for call in recalled] == [
        ("model", False),
        ("look_up", False),
        ("model", False),
        ("pay", True),
    ]


def test_the_turn_is_finished_from_its_journal(counted: Shown) -> None:
    steps = [beat["step"] for beat in counted.beats]
    after = counted.beats[steps.index("killed") :]
    assert [beat["name"] for beat in after if beat["step"] == "called"] == ["model", "file", "model"]
    accounted = counted.of("accounted")[0]
    assert [accounted[name] for name in ("calls", "read", "again", "anew")] == [7, 3, 1, 3]
    assert [beat["text"] for beat in counted.of("said") if beat["speaker"] == story.CLERK] == [story.PAID]


def test_the_payment_is_made_twice_and_booked_once(counted: Shown) -> None:
    first, second = counted.of("pays")
    assert first == second
    assert [(beat["known"], beat["entries"]) for beat in counted.of("booked")] == [(False, 1), (True, 1)]


def test_the_log_tells_the_same_of_the_turn(counted: Shown) -> None:
    turn = counted.turn()
    claims = [data for kind, data in turn if kind == EV_TURN_CLAIMED]
    assert [claim["epoch"] for claim in claims] == [1, 2]
    assert len({claim["owner"] for claim in claims}) == 2
    again = turn[turn.index((EV_TURN_CLAIMED, claims[1])) :]
    assert [data["index"] for kind, data in again if kind == EV_CALL_STARTED] == [3, 4, 5, 6]
    assert [data["index"] for kind, data in turn if kind == EV_CALL_FINISHED] == list(range(7))
    keys = [data["key"] for kind, data in turn if kind == EV_CALL_STARTED and data["name"] == "pay"]
    assert keys == [beat["key"] for beat in counted.of("pays")]


def test_all_conversations_are_finished(counted: Shown) -> None:
    assert [beat["reason"] for beat in counted.of("closed")] == ["answered", "answered", story.REASON]


def test_the_file_is_verified(counted: Shown) -> None:
    verified = counted.of("verified")[0]
    assert verified["problems"] == 0
    assert verified["envelopes"] == len(counted.recorded())
    assert verified["channels"] == 7


def test_the_story_names_what_was_acknowledged(told: Shown) -> None:
    text = told.done.stdout
    assert re.search(r"kill -9 \d+\n.*exit code -9", text)
    assert re.search(r"^ +discussion +8, 10, 12, 14, 16$", text, re.MULTILINE)
    assert re.search(r"lines acknowledged: 0 missing, 0 there twice", text)
    assert re.search(r"refused with 'not_expected_speaker':\n +'otto' spoke; the turn is with june\n", text)


def test_the_story_tells_what_was_read_and_what_was_called(told: Shown) -> None:
    turn = told.done.stdout.partition("4  The clerk's turn goes on\n")[2].partition("\n\n")[0]
    assert re.search(r"^ ✓   12  vera   reads: look_up gave Mrs Plum, 12 shillings$", turn, re.MULTILINE)
    key = re.search(r"^ ✓   15  vera   reads: pay has left, under the key (\w{8}); no answer$", turn, re.MULTILINE)
    assert key is not None
    assert f"  vera   calls pay: the same again, under the same key {key[1]}\n" in turn
    assert " ✓  7 calls: 3 read from the journal, 1 made again under its key, 3 new.\n" in turn
    assert turn.endswith(" ✓  The bank was asked twice. Its ledger holds 1 entry.")


def test_the_log_is_shown(told: Shown) -> None:
    table = told.done.stdout.partition("8  What the log says\n")[2].partition("\n\n")[0]
    assert re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<------ time ------>", table) + "\n" == GOLDEN.read_text("utf-8")


def test_lines_fit_a_terminal(told: Shown) -> None:
    lines = [line for line in told.done.stdout.splitlines() if str(told.path) not in line]
    assert [line for line in lines if len(line) > 90] == []


def test_what_to_try_next_can_be_tried(told: Shown) -> None:
    tried = [line.split() for line in told.done.stdout.partition("Try next\n")[2].splitlines()]
    (_, variable), *commands = tried
    name, _, url = variable.partition("=")
    assert [words[:2] for words in commands] == [["antiphon", name] for name in ("channels", "log", "verify", "doctor")]
    for words in commands[:3]:
        done = typed(*words[1:], **{name: url})
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_it_says_what_it_leaves_and_how_to_remove_it(told: Shown) -> None:
    left = told.done.stdout.partition("10  What is left\n")[2].partition("Try next")[0]
    assert f"     rm {told.path}*\n" in left
    assert "--follow" in left
    assert "examples" in left


def test_a_temporary_file_is_removed_with_its_folder() -> None:
    assert _removal(Path("/tmp/antiphon-demo-x y/gazette.db")) == "rm -r '/tmp/antiphon-demo-x y'"
    assert _removal(Path("/home/x y/mine.db")) == "rm '/home/x y/mine.db'*"


def test_a_file_that_is_there_already_is_left_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_text("mine")
    result = run("demo", "--keep", str(path))
    assert result.exit_code == 2
    assert path.read_text() == "mine"
    assert run("demo", "--keep", str(tmp_path / "no" / "such.db")).exit_code == 2


async def test_a_process_that_ends_early_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DemoFailed, match="exit code 1"):
        await Play(f"sqlite:///{tmp_path}/no/such.db", lambda _: None, pace=0).run()
    error = capfd.readouterr().err
    assert error.startswith("Error: ")
    assert error.count("\n") == 1


SAID = [Said("c1", number, f"id-{number}", "mara", f"line {number}") for number in (8, 10)]


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
    assert compared(SAID, log) == expected
    assert expected.holds == (expected.missing == expected.doubled == 0)


MODEL, PAY = Called("vera", "model"), Pays("vera", "k", "Mrs Plum", 12)


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
    log: list[Envelope], second: list[Contact], entries: int, *, expected: bool
) -> None:
    found = accounted(log, ([MODEL, PAY], second), entries=entries)
    assert isinstance(found, Accounted)
    assert found.holds == expected
