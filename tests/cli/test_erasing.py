"""`antiphon channels delete` and `antiphon retention`: what ended is erased, for good, and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.core.envelope import add_seconds
from antiphon.hub.clock import SystemClock
from antiphon.testing import ManualClock
from tests.cli.conftest import Run, Town, typed
from tests.support.served_hub import served_hub


def test_deleting_a_channel_leaves_tombstones(run: Run, town: Town) -> None:
    result = run("channels", "delete", town.council, "--store", town.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"erased  {town.council}: ")
    assert b"mend the bridge" not in town.path.read_bytes()
    listed = run("channels", town.url)
    assert f"{town.council}  discussion    closed  -             erased" in listed.stdout
    log = run("log", town.council, town.url).stdout.splitlines()
    assert log[1].endswith("hub  [erased] ag2.channel.invite")
    assert run("verify", town.url).exit_code == 0
    again = run("channels", "delete", town.council, "--store", town.url, "--json")
    assert json.loads(again.stdout)["channel_id"] == town.council
    audit = run("log", "system:audit", town.url).stdout
    assert audit.count(f"erases {town.council} for command line") == 1


def test_replaying_what_was_erased_is_refused(run: Run, town: Town) -> None:
    run("channels", "delete", town.council, "--store", town.url)
    result = run("replay", town.council, town.url)
    assert result.exit_code == 1
    assert "was erased" in result.stderr


def test_what_cannot_be_deleted_is_told_and_the_rest_is_deleted(run: Run, town: Town) -> None:
    result = run("channels", "delete", town.tavern, "nowhere", town.council, "--store", town.url, "--json")
    assert result.exit_code == 1
    assert "close it first" in result.stderr
    assert "no channel 'nowhere'" in result.stderr
    assert [json.loads(line)["channel_id"] for line in result.stdout.splitlines()] == [town.council]


@pytest.mark.parametrize("words", [("delete", "a b"), ("delete",)])
def test_deleting_used_wrongly(run: Run, town: Town, words: tuple[str, ...]) -> None:
    assert run("channels", *words, "--store", town.url).exit_code == 2


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch()])
def test_deleting_makes_no_store(run: Run, tmp_path: Path, make: object) -> None:
    path = tmp_path / "none.db"
    make(path)  # type: ignore[operator]
    before = path.exists()
    for words in (("channels", "delete", "c"), ("retention", "--older-than", "1d")):
        assert run(*words, "--store", str(path)).exit_code == 1
    assert path.exists() == before
    assert not before or path.stat().st_size == 0


def test_retention_by_when_a_channel_closed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    old, young, opened, expired = asyncio.run(_aged(path))
    before = path.read_bytes()
    dry = run("retention", "--older-than", "90d", "--dry-run", "--json", str(path))
    assert [json.loads(line)["channel_id"] for line in dry.stdout.splitlines()] == [old, expired]
    assert {json.loads(line)["outcome"] for line in dry.stdout.splitlines()} == {"would erase"}
    assert path.read_bytes() == before
    done = run("retention", "--older-than", "90d", str(path))
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [old, expired]
    data = path.read_bytes()
    assert [text in data for text in (b"old words", b"expired words", b"young words", b"open words")] == [
        False,
        False,
        True,
        True,
    ]
    again = run("retention", "--older-than", "90d", str(path))
    assert (again.exit_code, again.stdout) == (0, "")
    assert "nothing to erase" in again.stderr
    assert run("verify", str(path)).exit_code == 0
    rows = [json.loads(line) for line in run("channels", "--json", str(path)).stdout.splitlines()]
    reasons = {row["channel_id"]: (row["status"], row["close_reason"]) for row in rows}
    assert reasons == {
        old: ("closed", "erased"),
        young: ("closed", "closed"),
        opened: ("active", ""),
        expired: ("expired", "erased"),
    }


async def _aged(path: Path) -> tuple[str, str, str, str]:
    """Channels that ended 100 days ago, a moment ago, and not at all; and one that expired 99 days ago."""
    clock = ManualClock(add_seconds(SystemClock().now(), -100 * 86_400.0))
    async with Hub.open(f"sqlite:///{path}", clock=clock) as hub:
        ann = await hub.register("ann")
        await hub.register("ben")
        old, young, opened = [await ann.open(target="ben") for _ in range(3)]
        expired = await ann.open(target="ben", ttl=3600)
        for channel, words in ((old, "old"), (young, "young"), (opened, "open"), (expired, "expired")):
            await channel.send(f"{words} words")
        await old.close()
        await clock.advance(86_400)
        await expired.closed()
        await clock.advance(98 * 86_400)
        await young.close()
        return old.channel_id, young.channel_id, opened.channel_id, expired.channel_id


@pytest.mark.parametrize("span", ["90", "d", "-1d", "90y", ""])
def test_a_span_that_is_none(run: Run, town: Town, span: str) -> None:
    result = run("retention", "--older-than", span, town.url)
    assert result.exit_code == 2
    assert "is no span such as 12h, 90d or 52w" in result.stderr


@pytest.mark.parametrize("span", ["999999w", "200000w"])
def test_a_span_longer_than_the_calendar_erases_nothing(run: Run, town: Town, span: str) -> None:
    result = run("retention", "--older-than", span, town.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{span}' is longer ago than there are dates" in result.stderr
    assert b"mend the bridge" in town.path.read_bytes()


async def test_a_store_that_a_hub_uses_says_what_to_do(run: Run, town: Town) -> None:
    async with Hub.open(town.url, engine=None):
        for words in (("channels", "delete", town.council), ("retention", "--older-than", "0h")):
            refused = await asyncio.to_thread(typed, *words, "--store", town.url)
            assert refused.returncode == 1
            assert "only that hub can change its channels" in refused.stderr
            assert "--server URL" in refused.stderr
        dry = await asyncio.to_thread(typed, "retention", "--older-than", "0h", "--dry-run", "--store", town.url)
        assert dry.returncode == 0
        assert town.council in dry.stdout


async def test_a_server_erases_while_it_runs(town: Town) -> None:
    async with served_hub(url=town.url) as here:
        key = await here.key("ops", "operate", "read")
        for words in (("channels", "delete", town.tavern), ("retention", "--older-than", "0h", "--json")):
            done = await asyncio.to_thread(typed, *words, "--server", here.served.url, ANTIPHON_KEY=key)
            if words[0] == "channels":
                assert done.returncode == 1
                assert "close it first" in done.stderr
            else:
                assert done.returncode == 0, done.stderr
                [row] = map(json.loads, done.stdout.splitlines())
                assert (row["channel_id"], row["outcome"]) == (town.council, "erased")
        [erased] = [row for row in await here.hub.channels() if row.close_reason == "erased"]
        assert erased.channel_id == town.council
        told = [each.event_data["by"] for each in await here.hub.log("system:audit") if "records" in each.event_data]
        assert told == ["ops"]
