import json
import sqlite3

import pytest

from tests.cli.conftest import Run, Town, typed


def damage(town: Town, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    connection = sqlite3.connect(town.path)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def test_an_intact_store(run: Run, town: Town) -> None:
    result = run("verify", town.url)
    assert result.exit_code == 0
    assert result.stdout == f"ok  {town.url}: 4 channels, 27 good envelopes, no gaps, hash chain intact\n"
    assert run("verify", str(town.path)).stdout == result.stdout
    assert run("verify", ANTIPHON_STORE=town.url).stdout == result.stdout


def test_an_intact_store_as_json(run: Run, town: Town) -> None:
    result = run("verify", town.url, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"ok": True, "channels": 4, "envelopes": 27, "problems": []}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE log SET body = CAST(replace(body, 'bridge', 'tunnel') AS BLOB)", "hash chain"),
        ("UPDATE log SET hash = zeroblob(32)", "hash chain"),
        ("UPDATE log SET body = CAST('{' AS BLOB)", "not an envelope"),
        ("DELETE FROM log", "missing"),
    ],
)
def test_damage_is_found_where_it_is(statement: str, why: str, run: Run, town: Town) -> None:
    damage(town, f"{statement} WHERE channel = ? AND seq = 8", town.council)
    result = run("verify", town.url)
    assert result.exit_code == 1
    assert result.stderr == ""
    title, _, row = result.stdout.splitlines()
    assert title.startswith("1 problem  ")
    assert row.split()[:2] == [town.council, "8"]
    assert why in row


def test_damage_as_json_names_the_first_bad_sequence_of_each_channel(run: Run, town: Town) -> None:
    for channel, sequence in ((town.council, 12), (town.council, 9), (town.tavern, 2)):
        damage(town, "UPDATE log SET hash = zeroblob(32) WHERE channel = ? AND seq = ?", channel, sequence)
    told = json.loads(run("verify", town.url, "--json").stdout)
    assert told["ok"] is False
    assert [(each["channel_id"], each["sequence"]) for each in told["problems"]] == [
        (town.council, 9),
        (town.tavern, 2),
    ]


def test_a_damaged_log_is_shown_as_far_as_it_is_good(run: Run, town: Town) -> None:
    damage(town, "UPDATE log SET hash = zeroblob(32) WHERE channel = ? AND seq = 10", town.council)
    result = run("log", town.council, "--store", town.url)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].endswith("mend the bridge?")
    assert "sequence 10" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_database(run: Run, town: Town) -> None:
    town.path.write_bytes(b"a letter to the editor, long enough to be looked at" * 100)
    result = run("verify", town.url)
    assert result.exit_code == 1
    assert "no database" in result.stderr


def test_exit_codes_are_the_process_s_own(town: Town) -> None:
    assert typed("verify", town.url).returncode == 0
    damage(town, "DELETE FROM log WHERE channel = ? AND seq = 3", town.tavern)
    assert typed("verify", town.url).returncode == 1
    assert typed("verify").returncode == 2
