"""Conversations whose process is killed go on: every message is answered once, and every reply leaves under one id."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon import Hub
from tests.crash.conversation_child import DESK
from tests.crash.conversation_kill import ConversationKilling, audit, kill_conversations

KILLS = 50 if os.environ.get("ANTIPHON_PROOF") == "1" else 6


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> ConversationKilling:
    found = kill_conversations(tmp_path_factory.mktemp("conversations"), KILLS, seed=20261118)
    print(found, found.catching_up)
    return found


def test_processes_were_killed_between_messages_and_replies(killing: ConversationKilling) -> None:
    assert killing.kills == KILLS
    assert killing.kills_mid_message >= 0.5 * KILLS
    assert killing.acknowledged >= KILLS
    assert killing.handoffs >= 1
    assert killing.holds >= 1


def test_no_acknowledged_message_is_lost_or_recorded_twice(killing: ConversationKilling) -> None:
    assert (killing.lost, killing.doubled, killing.unsound_files) == (0, 0, 0)


def test_every_message_is_answered_once_and_behind_its_handoffs(killing: ConversationKilling) -> None:
    assert killing.wrong_answers == 0


def test_every_reply_leaves_in_order_and_under_one_id(killing: ConversationKilling) -> None:
    assert killing.replies > 0
    assert (killing.replies_lost, killing.replies_unknown, killing.replies_misplaced) == (0, 0, 0)
    assert killing.wrong_deliveries == 0
    assert killing.sound


# Controls: what the audit finds when something is wrong


def audited(killing: ConversationKilling, path: Path, **planted: object) -> ConversationKilling:
    """What is found in the first file if it is compared with something else."""
    found = ConversationKilling()
    box, arrivals = killing.mailboxes[path], planted.pop("arrivals", killing.arrivals)
    asyncio.run(audit(path, replace(box, **planted), arrivals, found))  # type: ignore[arg-type]
    return found


@pytest.fixture
def path(killing: ConversationKilling) -> Path:
    return next(iter(killing.mailboxes))


def test_control_the_audit_finds_a_reply_that_did_not_arrive(killing: ConversationKilling, path: Path) -> None:
    lost = killing.arrivals[0].reply_id
    found = audited(killing, path, arrivals=[each for each in killing.arrivals if each.reply_id != lost])
    assert (found.replies_lost, found.sound) == (1, False)


def test_control_the_audit_finds_a_reply_under_another_id(killing: ConversationKilling, path: Path) -> None:
    other = replace(killing.arrivals[0], reply_id="another")
    found = audited(killing, path, arrivals=[*killing.arrivals, other])
    assert (found.replies_lost, found.replies_unknown, found.sound) == (0, 1, False)


def test_control_the_audit_finds_replies_in_another_order(killing: ConversationKilling, path: Path) -> None:
    assert audited(killing, path, arrivals=killing.arrivals[::-1]).replies_misplaced > 0


def test_control_the_audit_finds_a_message_that_is_lost(killing: ConversationKilling, path: Path) -> None:
    found = audited(killing, path, acks={**killing.mailboxes[path].acks, "m1000000": "an envelope"})
    assert (found.lost, found.sound) == (1, False)


def test_control_the_audit_finds_what_is_not_answered_and_what_is_there_twice(
    killing: ConversationKilling, path: Path
) -> None:
    """A process without agents has recorded a message that was recorded before."""
    known = next(iter(killing.mailboxes[path].acks))

    async def write() -> None:
        async with Hub.open(f"sqlite:///{path}", engine=None) as hub:
            desk = await hub.register(DESK)
            channel = await desk.channel((await hub.channels())[0].channel_id)
            await channel.send(f"{known} hops=0 hold=0 think=0", transport="sms", source="c0")

    asyncio.run(write())
    found = audited(killing, path)
    assert (found.wrong_answers, found.doubled, found.sound) == (1, 1, False)


def test_control_a_transport_that_says_too_early_that_a_reply_has_left(tmp_path: Path) -> None:
    found = kill_conversations(tmp_path, 3, seed=7, flag="--careless")
    assert found.replies_lost > 0
    assert (found.lost, found.doubled, found.wrong_answers) == (0, 0, 0)
