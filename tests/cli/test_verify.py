import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.store.protocol import Snapshot
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock
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
    size = "tenant default, 4 channels, 27 good envelopes"
    assert result.stdout == f"ok  {town.url}: {size}, no gaps, hash chain intact, file sound\n"
    assert run("verify", str(town.path)).stdout == result.stdout
    assert run("verify", "--store", town.url).stdout == result.stdout
    assert run("verify", "--tenant", "default", town.url).stdout == result.stdout
    assert run("verify", ANTIPHON_STORE=town.url).stdout == result.stdout


def test_an_intact_store_as_json(run: Run, town: Town) -> None:
    result = run("verify", town.url, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "ok": True,
        "tenants": ["default"],
        "channels": 4,
        "envelopes": 27,
        "problems": [],
    }


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


async def settle_acme(town: Town) -> str:
    """Another tenant moves in, with one channel beside the hub's own."""
    async with Hub.open(town.url, tenant="acme", clock=ManualClock()) as hub:
        ada, _ = await hub.register("ada"), await hub.register("ben")
        return (await ada.open(target="ben")).channel_id


def test_every_tenant_is_checked(run: Run, town: Town) -> None:
    channel = asyncio.run(settle_acme(town))
    assert "tenants acme, default, 6 channels" in run("verify", town.url).stdout
    damage(town, "UPDATE log SET hash = zeroblob(32) WHERE channel = ? AND seq = 2", channel)
    result = run("verify", town.url)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split()[:3] == [channel, "2", "acme"]
    assert run("verify", town.url, "--tenant", "acme").exit_code == 1
    result = run("verify", town.url, "--tenant", "default")
    assert (result.exit_code, "tenant default, 4 channels" in result.stdout) == (0, True)
    told = json.loads(run("verify", town.url, "--json").stdout)
    assert told["tenants"] == ["acme", "default"]
    assert [(each["tenant"], each["channel_id"], each["sequence"]) for each in told["problems"]] == [
        ("acme", channel, 2)
    ]


def test_an_unknown_tenant_is_an_error_that_lists_the_known_ones(run: Run, town: Town) -> None:
    asyncio.run(settle_acme(town))
    result = run("verify", town.url, "--tenant", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no tenant 'nobody'; there are: acme, default" in result.stderr


@pytest.mark.parametrize("part", ["log_id", "member", "log_seq", "channel"])
def test_damage_beside_the_records_is_found(part: str, run: Run, town: Town) -> None:
    connection = sqlite3.connect(town.path)
    [(size,)] = connection.execute("PRAGMA page_size")
    [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (part,))
    connection.close()
    with town.path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    result = run("verify", town.url)
    assert (result.exit_code, result.stderr) == (1, "")
    table = "log" if part.startswith("log") else part
    assert f"SQLite says: table {table}: database disk image is malformed" in result.stdout


def test_a_log_that_lost_its_end_is_found_by_its_snapshot(run: Run, town: Town) -> None:
    asyncio.run(fold(town))
    assert run("verify", town.url).exit_code == 0
    damage(town, "DELETE FROM log WHERE channel = ? AND seq = 14", town.council)
    result = run("verify", town.url)
    assert result.exit_code == 1
    [row] = [line for line in result.stdout.splitlines() if line.startswith(town.council)]
    assert row.split()[:2] == [town.council, "14"]
    assert "lost its end: it had 14 envelopes" in row


async def fold(town: Town) -> None:
    store = await SqliteStore.open(town.path)
    await store.put_snapshot(town.council, Snapshot(14, "1", b"a fold"))
    await store.close()


def test_an_empty_file_is_no_store_yet(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    result = run("verify", str(tmp_path / "empty.db"))
    assert result.exit_code == 1
    assert "is empty: there is no store in it" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["empty.db"]


def test_a_store_without_anything_in_it(run: Run, tmp_path: Path) -> None:
    async def opened() -> None:
        await (await SqliteStore.open(tmp_path / "fresh.db")).close()

    asyncio.run(opened())
    result = run("verify", str(tmp_path / "fresh.db"))
    assert result.exit_code == 0
    assert "no tenant yet, 0 channels" in result.stdout


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
