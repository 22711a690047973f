"""Calls that wait for approval, at a terminal: shown without hidden characters, and decided in the store's file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from antiphon import Agent, Hub, ScriptedModel, calls, says, tool
from antiphon.cli.chat_decisions import WaitingCallDecision
from antiphon.cli.event_display import approval_notes
from antiphon.cli.table_layout import escape_hidden
from antiphon.core.errors import Denied, UsageError
from tests.cli.conftest import Run
from tests.cli.test_commands import sentence_of
from tests.support.waiting import soon

TRICKY = {"order": "7\x1b[31m\u202e8", "note": "<b>safe</b>\u200d\u3164\ufe0f\u00a0é"}


def desk(paid: list[tuple[str, str]], args: dict[str, str]) -> Agent:
    @tool(approval=True, approvers=["finance", "dana"])
    async def refund(order: str, note: str = "") -> str:
        paid.append((order, note))
        return "done"

    model = ScriptedModel([calls("refund", args), says("Refunded.")], by="position")
    return Agent("support", model=model, tools=[refund], tier="batch")


async def ask(path: Path, paid: list[tuple[str, str]], args: dict[str, str]) -> str:
    async with Hub.open(f"sqlite:///{path}") as hub:
        reply = await soon(desk(paid, args).invoke("Refund.", thread_id="t", message_id="m", hub=hub))
        return reply.stopped or reply.text


def waiting(path: Path, args: dict[str, str]) -> None:
    assert asyncio.run(ask(path, [], args)) == "approval"


def test_what_waits_is_shown_as_it_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    waiting(path, TRICKY)
    shown = run("approvals", str(path))
    assert shown.exit_code == 0, shown.stderr
    titles, row = shown.stdout.splitlines()
    assert titles.split() == ["APPROVAL", "KIND", "AGENT", "WHAT", "WHO", "MAY", "DECIDE", "BY", "WAITS", "BECAUSE"]
    said = (
        r'refund {"order":"7\u001b[31m\u202e8","note":"<b>safe</b>\u200d\u3164\ufe0f\xa0é"}'
        r"  finance, dana  "
    )
    assert said in row
    assert "Z  refund needs approval" in row
    assert row.isprintable()
    [line] = run("approvals", str(path), "--json").stdout.splitlines()
    told = json.loads(line)
    assert (told["args"], told["approvers"], told["kind"]) == (TRICKY, ["finance", "dana"], "approval")
    assert told["decide_by"] is not None


def test_an_edit_in_the_file_of_the_store_leaves_when_a_hub_runs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    waiting(path, {"order": "7"})
    approval_id = json.loads(run("approvals", str(path), "--json").stdout)["approval_id"]
    edit = ("approvals", "edit", approval_id, str(path), "--as", "dana", "--args")
    misfit = run(*edit, '{"order": 7}')
    assert (misfit.exit_code, "The arguments of refund do not fit" in sentence_of(misfit)) == (1, True)
    stranger = run("approvals", "approve", approval_id, str(path), "--as", "eve")
    assert (stranger.exit_code, "those may: finance, dana" in sentence_of(stranger)) == (1, True)
    for bad, why in (("{", "--args is no JSON"), ("[]", "--args is no JSON object")):
        refused = run(*edit, bad)
        assert (refused.exit_code, why in sentence_of(refused)) == (2, True)
    made = run(*edit, '{"order": "8", "note": "checked"}')
    assert (made.exit_code, made.stderr) == (0, "")
    assert "leaves with these arguments as soon as a hub runs its agent" in made.stdout
    again = run("approvals", "approve", approval_id, str(path), "--as", "dana")
    assert (again.exit_code, "'dana' decided before: edit" in sentence_of(again)) == (1, True)
    paid: list[tuple[str, str]] = []
    assert asyncio.run(ask(path, paid, {"order": "7"})) == "Refunded."
    assert paid == [("8", "checked")]


@pytest.mark.parametrize(("decision", "paid"), [("approve", [("7", "")]), ("reject", [])])
async def test_a_person_decides_in_a_chat(decision: str, paid: list[tuple[str, str]]) -> None:
    made: list[tuple[str, str]] = []
    async with Hub.open("memory:") as hub:
        agent = desk(made, {"order": "7"})
        await soon(agent.invoke("Refund.", thread_id="t", message_id="m", hub=hub))
        channel = await agent.channel("t", hub)
        decide = WaitingCallDecision(hub, channel, decision, "user")
        with pytest.raises(Denied, match="'user' may not decide this"):
            await decide("")
        assert await decide("dana") is not None
        reply = await soon(agent.invoke("Refund.", thread_id="t", message_id="m", hub=hub))
        assert (reply.text, made) == ("Refunded.", paid)
        with pytest.raises(UsageError, match="No call waits for approval"):
            await decide("dana")


def test_a_note_of_a_chat_hides_nothing() -> None:
    call, why = approval_notes("refund", {"to": "a\u202eb" + "x" * 500}, "it is\x1b[2J risky", approvers=["finance"])
    assert call.text == r'waits for approval: refund {"to":"a\u202eb' + "x" * 500 + '"}'
    assert why.text == r"it is\x1b[2J risky; finance may decide"
    assert escape_hidden("plain é 日本") == "plain é 日本"
