"""The stores that were written once open, hold, and go on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from antiphon import Agent, Channel, Envelope, Hub, ScriptedModel, calls, says, tool
from antiphon.cli import commands
from antiphon.core.codec import from_json
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.testing import ManualClock
from tests.golden.folds import CHANNELS, FOLDS, NAMES, STORES, digests_of, read_log, ruleset_of
from tests.support.waiting import soon, wait_until

pytestmark = pytest.mark.anyio
RECORDED = json.loads(FOLDS.read_text())["channels"]
SPEECH = ("ag2.msg.text", "ag2.packet")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a store, such as `quiet.db`, that may be changed."""
    return lambda store: Path(shutil.copy(STORES / store, tmp_path / store))


def without_snapshots(path: Path) -> int:
    """Take the snapshots out of a store; how many there were."""
    connection = sqlite3.connect(path)
    with connection:
        count = connection.execute("DELETE FROM snapshot").rowcount
    connection.close()
    return count


@pytest.mark.parametrize("store", CHANNELS)
@pytest.mark.parametrize("snapshots", [True, False], ids=["snapshots", "logs alone"])
async def test_every_channel_is_what_it_was(copied: Callable[[str], Path], store: str, snapshots: bool) -> None:
    path = copied(store)
    if not snapshots:
        assert without_snapshots(path) == (store == "long.db")
    async with Hub.open(f"sqlite:///{path}", engine=None, clock=ManualClock()) as hub:
        for name, channel_id in CHANNELS[store].items():
            assert await hub.log(channel_id) == read_log(name), name
            live = await hub.core.live(channel_id)
            assert digests_of(live.fold).items() <= RECORDED[name].items(), name


async def test_the_snapshot_of_an_unchanged_fold_is_used(copied: Callable[[str], Path]) -> None:
    async with Hub.open(f"sqlite:///{copied('long.db')}", engine=None, clock=ManualClock()) as hub:
        snapshot = await hub.core.store.get_snapshot(CHANNELS["long.db"]["long"])
    assert snapshot is not None
    log = read_log("long")
    ruleset = ruleset_of(log)
    assert snapshot.version == ruleset.version
    restored = restore_fold(ruleset, from_json(snapshot.blob, SavedFold))
    assert restored is not None
    assert digests_of(ruleset.fold_all(restored, log[snapshot.sequence :])).items() <= RECORDED["long"].items()


@pytest.mark.parametrize("store", CHANNELS)
def test_verify_holds(copied: Callable[[str], Path], store: str) -> None:
    result = CliRunner().invoke(commands, ["verify", str(copied(store)), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["ok"] is True


def test_every_log_is_of_a_channel() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in STORES.glob("*.jsonl"))


async def words_after(hub: Hub, channel: Channel, agent: str, after: int) -> list[tuple[str, object]]:
    """Who said what in a channel after an envelope, once this agent owes no turn."""
    await wait_until(lambda: all(turn.speaker != agent for turn in channel.state.owed))
    log: list[Envelope] = await hub.log(channel.channel_id, after=after)
    return [
        (each.sender_id, each.event_data.get("text", each.event_data.get("body")))
        for each in log
        if each.event_type in SPEECH
    ]


@pytest.mark.parametrize(
    "name", ["conversation", "forked", "paused", "discussion", "waiting", "team", "imported", "long"]
)
async def test_a_new_message_is_answered(copied: Callable[[str], Path], name: str) -> None:
    store = "long.db" if name == "long" else "quiet.db"
    speaker, agent = {
        "conversation": ("alice", "bob"),
        "forked": ("alice", "bob"),
        "paused": ("left", "right"),
        "discussion": ("fred", "expert"),
        "waiting": ("editor", "ping"),
        "team": ("user", "chief"),
        "imported": ("user", "oracle"),
        "long": ("alice", "bob"),
    }[name]
    kind = {"fred": "human", "user": "human", "left": "agent"}.get(speaker, "service")
    async with Hub.open(f"sqlite:///{copied(store)}", clock=ManualClock()) as hub:
        channel = await (await hub.register(speaker, kind=kind)).channel(CHANNELS[store][name])
        before = channel.state.sequence
        model = ScriptedModel(["It goes on."])
        await hub.register(Agent(agent, model, agents=[Agent("billing", ScriptedModel([]))] if name == "team" else []))
        await channel.send("Does it go on?")
        if name == "discussion":  # it is a round: first the one who sits between them speaks
            await (await (await hub.register("erin")).channel(channel.channel_id)).send("It is my turn.")
        said = await soon(words_after(hub, channel, agent, before))
        assert said[0] == (speaker, "Does it go on?")
        assert said[-1] == (agent, "It goes on.")
        heard = [message.text for message in model.requests[0].messages]
        assert any("Does it go on?" in text for text in heard)


async def test_an_interrupted_turn_is_resumed_without_its_finished_calls(copied: Callable[[str], Path]) -> None:
    made: list[str] = []

    @tool
    def look_up(word: str) -> str:
        """Look something up."""
        made.append("look_up")
        return "again"

    @tool
    def pay(order: str, idempotency_key: str) -> str:
        """Pay for an order."""
        made.append(idempotency_key)
        return f"paid {order}"

    clock, channel_id = ManualClock(), CHANNELS["crashed.db"]["alice-clerk"]
    async with Hub.open(f"sqlite:///{copied('crashed.db')}", clock=clock) as hub:
        channel = await (await hub.register("alice")).channel(channel_id)
        model = ScriptedModel(
            [calls("look_up", {"word": "7"}), calls("pay", {"order": "7"}), says("Paid.")], by="position"
        )
        await hub.register(Agent("clerk", model, tools=[look_up, pay]))
        await wait_until(lambda: channel.state.clock_stopped)
        await clock.advance(2)  # the pause after a crash
        assert await soon(words_after(hub, channel, "clerk", 5)) == [("clerk", "Paid.")]
        [key] = [each.event_data["key"] for each in read_log("alice-clerk") if each.event_data.get("name") == "pay"]
    assert made == [key]
    assert len(model.requests) == 1


@pytest.mark.parametrize("name", ["alice-printer", "doubt"])
async def test_an_unsafe_call_waits_for_a_person(copied: Callable[[str], Path], name: str) -> None:
    made: list[str] = []

    @tool(idempotency="unsafe")
    def print_letter(to: str) -> str:
        """Print a letter."""
        made.append(to)
        return "printed"

    store, agent = ("quiet.db", "secretary") if name == "doubt" else ("crashed.db", "printer")
    clock, channel_id = ManualClock(), CHANNELS[store][name]
    async with Hub.open(f"sqlite:///{copied(store)}", clock=clock) as hub:
        person = await hub.register("user" if name == "doubt" else "alice", kind="human" if name == "doubt" else None)
        channel = await person.channel(channel_id)
        script = ScriptedModel([calls("print_letter", {"to": "Ann"}), says("Posted.")], by="position")
        await hub.register(Agent(agent, script, tools=[print_letter]))
        await wait_until(lambda: channel.state.clock_stopped)
        await clock.advance(2)
        await wait_until(lambda: bool(channel.state.owed[0].doubts))
        [approval] = await hub.approvals(channel_id)
        assert (approval.kind, approval.tool, approval.args) == ("call", "print_letter", {"to": "Ann"})
        [turn] = channel.state.owed
        await channel.settle(turn.turn_id, turn.doubts[0], result="printed")
        assert await soon(words_after(hub, channel, agent, 5)) == [(agent, "Posted.")]
    assert made == []


async def test_a_workflow_of_then_is_played_to_its_end(copied: Callable[[str], Path]) -> None:
    async with Hub.open(f"sqlite:///{copied('quiet.db')}", clock=ManualClock()) as hub:
        channel = await (await hub.register("editor")).channel(CHANNELS["quiet.db"]["waiting"])
        await hub.register(Agent("ping", ScriptedModel(["Pong.", "Pong."])))
        for _ in range(2):
            await channel.send("Ping.")
            await wait_until(lambda: channel.state.ended or channel.state.speakers == ("editor",))
        assert await soon(channel.closed()) == "max_turns"
