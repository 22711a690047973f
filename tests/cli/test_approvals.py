"""`antiphon approvals`, as it is typed: at a store, beside a hub, and at a server."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Envelope, Hub
from antiphon.cli.chat_view import settle_doubt
from antiphon.cli.event_display import _ending_lines
from antiphon.cli.server_client import SECRET_VARIABLE
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import EV_TURN_RESUMED
from antiphon.runtime.turn_events import FinalStateEvent
from tests.cli.conftest import Run, typed
from tests.cli.test_commands import sentence_of
from tests.support.crash_loop import AGENT, KILL, agent, start_crash_loop
from tests.support.served_hub import served_hub


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which one turn is suspended: its process died once, which is its limit."""
    path = tmp_path_factory.mktemp("crashed") / "team.db"
    for code in (9, 0):
        with start_crash_loop(path, 0, 0.0, "--kill", speed=100.0, crashes=1) as process:
            assert process.wait(60) == code
    return path


@pytest.fixture
def store(crashed: Path, tmp_path: Path) -> Path:
    path = tmp_path / "team.db"
    shutil.copy(crashed, path)
    return path


def listed(run: Run, store: Path) -> list[dict[str, object]]:
    result = run("approvals", str(store), "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def told(store: Path, channel_id: object, event_type: str) -> list[dict[str, object]]:
    async def read() -> list[dict[str, object]]:
        async with Hub.open(f"sqlite:///{store}", engine=None) as hub:
            log = await hub.log(str(channel_id))
            return [envelope.event_data for envelope in log if envelope.event_type == event_type]

    return asyncio.run(read())


def test_a_decision_in_a_shell(store: Path) -> None:
    shown = typed("approvals", str(store))
    assert (shown.returncode, shown.stderr) == (0, "")
    titles, row = shown.stdout.splitlines()
    assert titles.split() == ["APPROVAL", "KIND", "AGENT", "WHAT", "WHO", "MAY", "DECIDE", "BY", "WAITS", "BECAUSE"]
    approval_id, kind, name, _ = row.split(maxsplit=3)
    assert (kind, name) == ("turn", AGENT)
    assert "its process died once" in row
    decided = typed("approvals", "respond", approval_id, str(store), "--as", "dana", "--text", "By hand.")
    assert (decided.returncode, decided.stderr) == (0, "")
    assert decided.stdout == f"respond  {approval_id} by dana: answered with the text that was given\n"
    again = typed("approvals", "approve", approval_id, "--as", "erin", ANTIPHON_STORE=str(store))
    assert again.returncode == 1
    assert "'dana' decided before: respond" in again.stderr
    nothing = typed("approvals", str(store))
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "Nothing waits for a person here.\n")
    channel_id = approval_id.rsplit(".", 4)[0]
    assert told(store, channel_id, EV_TEXT)[-1] == {"text": "By hand.", "by": "dana"}


@pytest.mark.parametrize(("decision", "event_type"), [("approve", EV_TURN_RESUMED), ("reject", EV_TURN_FAILED)])
def test_a_decision_is_recorded_and_told_as_json(run: Run, store: Path, decision: str, event_type: str) -> None:
    [waiting] = listed(run, store)
    approval_id = str(waiting["approval_id"])
    made = run("approvals", decision, approval_id, str(store), "--as", "dana", "--reason", "enough", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout) == {"approval_id": approval_id, "decision": decision, "by": "dana"}
    [data] = told(store, waiting["channel_id"], event_type)
    assert "dana" in str(data)
    assert listed(run, store) == []


def test_a_listing_reads_beside_a_hub_and_a_decision_says_to_ask_it(run: Run, store: Path) -> None:
    async def beside() -> tuple[int, str]:
        async with Hub.open(f"sqlite:///{store}", engine=None):
            shown = await asyncio.to_thread(typed, "approvals", str(store), "--json")
            approval_id = json.loads(shown.stdout)["approval_id"]
            refused = await asyncio.to_thread(typed, "approvals", "approve", approval_id, str(store), "--as", "dana")
            return refused.returncode, refused.stderr

    code, why = asyncio.run(beside())
    assert code == 1
    assert "only that hub can decide this" in why
    assert "--server URL" in why


def test_only_what_waits_in_one_channel(run: Run, store: Path) -> None:
    [waiting] = listed(run, store)
    one = run("approvals", str(store), "--json", "--channel", str(waiting["channel_id"]))
    assert [json.loads(line) for line in one.stdout.splitlines()] == [waiting]
    unknown = run("approvals", str(store), "--channel", "nowhere")
    assert unknown.exit_code == 1


MISTAKES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "nobody": (("approve", "{id}"), 2, "say who decides: --as NAME"),
    "no name": (("approve", "{id}", "--as", "a b"), 2, "'a b' is no name"),
    "an agent": (("approve", "{id}", "--as", AGENT), 1, "only a person (kind human) decides"),
    "no text": (("respond", "{id}", "--as", "dana"), 2, "Missing option '--text'"),
    "an empty text": (("respond", "{id}", "--as", "dana", "--text", ""), 1, "'respond' needs text"),
    "no id": (("approve", "x.y", "--as", "dana"), 1, "nothing waits under 'x.y'"),
    "another digest": (("approve", "{id}", "--as", "dana", "--digest", "0"), 1, "stale_decision"),
    "all of a store": (("list", "--all"), 2, "--all is for a server"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_decides_nothing(run: Run, store: Path, mistake: str) -> None:
    words, code, why = MISTAKES[mistake]
    [waiting] = listed(run, store)
    result = run("approvals", *(word.format(id=waiting["approval_id"]) for word in words), str(store))
    assert result.exit_code == code
    assert why in sentence_of(result)
    assert listed(run, store) == [waiting]


def test_a_store_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    absent = tmp_path / "absent.db"
    assert run("approvals", str(absent)).exit_code == 1
    assert run("approvals", "approve", "c.1.bob.1.turn", str(absent), "--as", "dana").exit_code == 1
    assert not absent.exists()


async def test_at_a_server_the_participant_of_the_key_decides(store: Path) -> None:
    async with served_hub(agent(0.0, 1, deadly=False), url=f"sqlite:///{store}") as here:
        url = here.served.url
        chief, clerk = await here.key("chief"), await here.key("robot", kind="service")
        server = ("--server", url)

        async def asked(*words: str, key: str = chief) -> tuple[int, str, str]:
            done = await asyncio.to_thread(typed, "approvals", *words, *server, **{SECRET_VARIABLE: key})
            return done.returncode, done.stdout, done.stderr

        assert (await asked())[:2] == (0, "")
        code, shown, _ = await asked("--all", "--json")
        assert code == 0
        approval_id = json.loads(shown)["approval_id"]
        code, _, why = await asked("approve", approval_id, "--as", "dana")
        assert (code, "the participant of the key decides" in why) == (2, True)
        code, _, why = await asked("approve", approval_id, key=clerk)
        assert (code, "only a person" in why) == (1, True)
        code, done, _ = await asked("approve", approval_id, "--reason", "the machine was full")
        assert (code, done.split()[:4]) == (0, ["approve", approval_id, "by", "chief:"])
        code, _, why = await asked("reject", approval_id)
        assert (code, "'chief' decided before: approve: the machine was full" in why) == (1, True)
        [row] = await here.hub.channels(participant=AGENT)
        async with asyncio.timeout(20), aclosing(here.hub.subscribe(row.channel_id)) as envelopes:
            said = [each async for each in until_said(envelopes)]
        assert said[-1].event_data["text"] == "I live."


async def until_said(envelopes: AsyncGenerator[Envelope, None]) -> AsyncGenerator[Envelope, None]:
    """Everything up to what the agent says."""
    async for envelope in envelopes:
        yield envelope
        if envelope.event_type == EV_TEXT and envelope.sender_id == AGENT:
            return


@pytest.mark.parametrize(("word", "answer"), [("again", "I live."), ("By hand.", "By hand.")])
async def test_a_suspended_turn_is_settled_in_a_chat(store: Path, word: str, answer: str) -> None:
    clerk = agent(0.0, 1, deadly=False)
    async with Hub.open(f"sqlite:///{store}") as hub:
        channel = await clerk.channel(KILL, hub)
        [turn] = channel.state.owed
        assert await settle_doubt(hub, channel, word) == turn.cause
        reply = await clerk.invoke(KILL, thread_id=KILL, message_id="m", hub=hub)
    assert reply.text == answer


def test_a_chat_says_how_a_suspended_turn_is_settled() -> None:
    final = FinalStateEvent("clerk", "", "suspended", "turn 6/clerk was in progress; decide what becomes of it: …")
    shown = " ".join(str(word) for line in _ending_lines(final) for word in line)
    assert "turn 6/clerk was in progress" in shown
    assert "/settle again" in shown
