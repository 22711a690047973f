import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from antiphon import Denied, Envelope, Hub
from antiphon.cli.log_command import follow_log
from antiphon.core.codec import decode_envelope
from antiphon.store.memory_store import MemoryStore
from antiphon.testing import ManualClock
from tests.cli.conftest import Run, Town
from tests.support.signals import heed_ctrl_c

CONVERSATION = """\
  SEQ  TIME                  WHO   WHAT
    2  2026-01-01T00:00:00Z  hub   invites ben
    3  2026-01-01T00:00:00Z  hub   invites cleo
    4  2026-01-01T00:00:00Z  ben   accepts the invitation
    5  2026-01-01T00:00:00Z  cleo  accepts the invitation
    6  2026-01-01T00:00:00Z  hub   opens the channel
    8  2026-01-01T00:00:00Z  ada   Shall we\\nmend the bridge?
   10  2026-01-01T00:00:00Z  ben   (to ada) \\x1b[31mNo.\\x1b[0m
   12  2026-01-01T00:00:00Z  ada   sets votes = 1, done = null
   13  2026-01-01T00:00:00Z  ada   town.vote {"for":"ada"}
   14  2026-01-01T00:00:00Z  hub   closes the channel for ada: adjourned
"""


def test_the_conversation_and_its_life(run: Run, town: Town) -> None:
    result = run("log", town.council, "--store", town.url)
    assert result.exit_code == 0
    assert result.stdout == CONVERSATION


def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(run: Run, town: Town) -> None:
    end = next(place for place, pair in enumerate(zip(town.council, town.tavern, strict=True)) if len(set(pair)) > 1)
    assert run("log", town.council[: end + 1], "--store", town.url).stdout == CONVERSATION
    assert "registers cleo" in run("log", "system:r", town.url).stdout
    result = run("log", town.council[:end], town.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"beginning of several channels: {town.council}, {town.tavern}; give more of it" in result.stderr


def test_an_unknown_channel_is_told_where_to_look(run: Run, town: Town) -> None:
    result = run("log", "nope", town.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no channel 'nope'; `antiphon channels` lists those there are\n"


def test_nothing_recorded_colours_a_pipe(run: Run, town: Town) -> None:
    for words in ((), ("--audit",), ("--json",), ("--json", "--audit")):
        assert "\x1b" not in run("log", town.council, "--store", town.url, *words).stdout


def test_audit_shows_bookkeeping_and_causes(run: Run, town: Town) -> None:
    lines = run("log", town.council, "--store", town.url, "--audit").stdout.splitlines()
    assert lines[0].split() == ["SEQ", "CAUSE", "TIME", "WHO", "FOR", "EVENT", "WHAT"]
    assert [line.split()[0] for line in lines[1:]] == [*map(str, range(1, 15)), "-"]
    assert lines[-1].endswith("refuses ada: not_expected_speaker")
    assert lines[2].split()[:6] == ["2", "-", "2026-01-01T00:00:00.000Z", "hub", "ben", "ag2.channel.invite"]
    assert lines[9].split(maxsplit=6) == [
        "9",
        "8",
        "2026-01-01T00:00:00.000Z",
        "hub",
        "-",
        "antiphon.turn.assigned",
        "gives the turn to ben: next in the round",
    ]


def test_json_is_the_envelopes(run: Run, town: Town) -> None:
    def shown(*words: str) -> list[Envelope]:
        result = run("log", town.council, "--store", town.url, "--json", *words)
        return [decode_envelope(line.encode()) for line in result.stdout.splitlines()]

    assert shown("--audit") == asyncio.run(logged(town))
    assert [envelope.sequence for envelope in shown()] == [2, 3, 4, 5, 6, 8, 10, 12, 13, 14]


async def logged(town: Town) -> list[Envelope]:
    async with Hub.open(town.url) as hub:
        return await hub.log(town.council)


def test_the_hubs_own_channels_can_be_read(run: Run, town: Town) -> None:
    refused = run("log", "system:audit", "--store", town.url).stdout
    assert f"refuses ada in {town.council}: not_expected_speaker" in refused
    assert "registers cleo (human)" in run("log", "system:registry", "--store", town.url).stdout


def test_following_a_channel_that_has_ended_ends(run: Run, town: Town) -> None:
    assert run("log", town.council, "--store", town.url, "--follow").stdout == CONVERSATION


async def test_following_goes_on_until_the_channel_ends() -> None:
    store = MemoryStore()
    hub = await Hub.over(store, clock=ManualClock())
    ada = await hub.register("ada")
    await hub.register("ben")
    channel = await ada.open(target="ben")
    script = ["one", "two", ""]
    looks = 0

    async def pause() -> None:
        nonlocal looks
        looks += 1
        said = script.pop(0)
        await (channel.send(said) if said else channel.close("done"))

    seen = [envelope.sequence async for envelope in follow_log(store, channel.channel_id, pause=pause)]
    assert seen == [envelope.sequence for envelope in await hub.log(channel.channel_id)]
    assert looks == 3
    await hub.close()


async def following(channel: str, store: Path) -> Process:
    words = ["-m", "antiphon", "log", channel, "--store", str(store), "--follow", "--json"]
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=PIPE, env=os.environ, preexec_fn=heed_ctrl_c
    )


async def said_next(process: Process) -> str:
    """What is said next by somebody in words; what else happens is passed over."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if "text" in (data := json.loads(line)["event_data"]):
            return str(data["text"])
    pytest.fail("the process has ended")


async def test_following_beside_the_hub_that_writes(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Hub.open(f"sqlite:///{tmp_path}/town.db") as hub:
        ada = await hub.register("ada")
        await hub.register("ben")
        channel = await ada.open(target="ben")
        await channel.send("before")
        process = await following(channel.channel_id, tmp_path / "town.db")
        assert await said_next(process) == "before"
        await channel.send("meanwhile")
        assert await said_next(process) == "meanwhile"
        await channel.close("done")
        assert await process.wait() == 0


async def test_following_is_ended_by_ctrl_c(town: Town) -> None:
    async with asyncio.timeout(60):
        process = await following(town.tavern, town.path)
        assert await said_next(process) == "To bridges."
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def refused_in(path: Path) -> str:
    """A channel in which two messages are refused, one before its last envelope and one behind it."""
    clock = ManualClock()
    async with Hub.open(f"sqlite:///{path}", clock=clock) as hub:
        ada, ben = await hub.register("ada"), await hub.register("ben")
        for _ in range(2):
            channel = await ada.open(type="discussion", target="ben")
            with pytest.raises(Denied):
                await (await ben.channel(channel.channel_id)).send("Not yet mine.")
            await clock.advance(1)
        await channel.send("Mine.")
        with pytest.raises(Denied):
            await channel.send("Again mine.")
        return channel.channel_id


def test_the_audit_shows_what_was_refused_at_its_time(run: Run, tmp_path: Path) -> None:
    channel = asyncio.run(refused_in(tmp_path / "town.db"))
    shown = run("log", channel, "--store", str(tmp_path / "town.db"), "--audit").stdout.splitlines()[1:]
    refusals = [place for place, line in enumerate(shown) if "antiphon.draft.refused" in line]
    said = next(place for place, line in enumerate(shown) if line.endswith("  Mine."))
    assert [place < said for place in refusals] == [True, False]
    assert shown[refusals[0]].split(maxsplit=6) == [
        "-",
        "-",
        "2026-01-01T00:00:01.000Z",
        "hub",
        "-",
        "antiphon.draft.refused",
        "refuses ben: not_expected_speaker",
    ]
    sequences = [line.split()[0] for line in shown if line.split()[0] != "-"]
    assert sequences == [str(number + 1) for number in range(len(sequences))]
    plain = run("log", channel, "--store", str(tmp_path / "town.db"))
    assert "refuses" not in plain.stdout
