import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.cli.explain_command import FIRST_STEPS, LAST_STEPS
from antiphon.testing import ManualClock
from tests.cli.conftest import Run, Town, typed

COUNCIL = """\
discussion {council}  closed: adjourned  ada (service), ben (service), cleo (human)

Why #14
  ada closed the channel: adjourned.

How it came to this
   14  2026-01-01T00:00:00Z  hub  closes the channel for ada: adjourned

What was refused last
    -  2026-01-01T00:00:00Z  ada  was refused ag2.msg.text: not_expected_speaker (another participant had the turn)

What waits now
  nothing: the channel is closed

What can be done
  go on from a place before the end, in a copy of this channel
    await (await participant.channel("{council}")).fork(at=SEQUENCE)
  see everything that was decided
    antiphon log {council} {store} --audit
"""


def test_why_a_channel_has_ended(run: Run, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(town.path.parent)
    result = run("explain", town.council, town.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == COUNCIL.format(council=town.council, store="town.db")


def test_why_one_envelope_was_recorded(run: Run, town: Town) -> None:
    shown = run("explain", town.council, town.url, "--at", "9").stdout
    assert "Why #9\n  ben got the turn because a discussion goes round, and this is the next.\n" in shown
    assert "says: Shall we\\nmend the bridge?" in shown


def test_the_structured_form(run: Run, town: Town) -> None:
    found = json.loads(run("explain", town.tavern, town.url, "--json").stdout)
    assert found["channel_id"] == town.tavern
    assert (found["status"], found["participants"]) == ("active", {"ben": "service", "cleo": "human"})
    assert [step["what"] for step in found["steps"]] == ["says: To bridges."]
    assert found["waits"] == ["nothing: any participant may speak"]
    assert found["because"] == ["ben said it of their own accord."]


def test_the_beginning_of_an_id_is_enough(run: Run, town: Town) -> None:
    end = next(place for place, pair in enumerate(zip(town.council, town.tavern, strict=True)) if len(set(pair)) > 1)
    assert f"discussion {town.council}" in run("explain", town.council[: end + 1], town.url).stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nope",), 1, "Error: no channel 'nope'; `antiphon channels` lists those there are\n"),
        (("{council}", "--at", "99"), 1, "Error: the channel has no envelope 99; it has 1 to 14\n"),
        (("{council}", "--at", "0"), 2, "0 is not in the range x>=1"),
    ],
)
def test_what_cannot_be_explained(run: Run, town: Town, words: tuple[str, ...], code: int, said: str) -> None:
    result = run("explain", *(word.format(council=town.council) for word in words), "--store", town.url)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_the_hubs_own_channels_are_explained_too(run: Run, town: Town) -> None:
    assert "registers cleo (human)" in run("explain", "system:registry", town.url).stdout


async def long_talk(path: Path, turns: int) -> str:
    async with Hub.open(f"sqlite:///{path}", clock=ManualClock()) as hub:
        ada, ben = await hub.register("ada"), await hub.register("ben")
        channel = await ada.open(type="discussion", target="ben")
        held = [channel, await ben.channel(channel.channel_id)]
        for number in range(turns):
            await held[number % 2].send(f"number {number}")
        return channel.channel_id


def test_of_a_long_chain_the_beginning_and_the_end_are_shown(run: Run, tmp_path: Path) -> None:
    channel = asyncio.run(long_talk(tmp_path / "town.db", 30))
    lines = run("explain", channel, str(tmp_path / "town.db")).stdout.splitlines()
    shown = lines[lines.index("How it came to this") + 1 : lines.index("What waits now") - 1]
    assert len(shown) == FIRST_STEPS + LAST_STEPS + 1
    assert shown[0].endswith("says: number 0")
    assert shown[FIRST_STEPS] == f"    …  {60 - FIRST_STEPS - LAST_STEPS} steps between; --json shows them"
    assert shown[-2].endswith("says: number 29")


async def test_a_store_that_a_hub_uses(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Hub.open(f"sqlite:///{tmp_path}/town.db") as hub:
        ada = await hub.register("ada")
        await hub.register("ben")
        channel = await ada.open(type="discussion", target="ben")
        await channel.send("Your turn.")
        result = await asyncio.to_thread(typed, "explain", channel.channel_id, "--store", f"{tmp_path}/town.db")
    assert (result.returncode, result.stderr) == (0, "")
    assert "the channel waits for ben, driven by code, to speak" in result.stdout


def test_a_damaged_log_is_explained_up_to_the_damage(run: Run, town: Town) -> None:
    with sqlite3.connect(town.path) as store:
        store.execute("UPDATE log SET body = zeroblob(20) WHERE channel = ? AND seq = 12", (town.council,))
    store.close()
    shown = run("explain", town.council, town.url).stdout
    assert "the log is damaged" in shown
    assert "Why #11" in shown
    assert "antiphon verify" in shown
