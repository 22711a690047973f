"""Who was taken for dead and wakes up again is refused: the log has one answer, and says that somebody was fenced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Envelope, Hub
from antiphon.core.envelope import Json, derived_id
from antiphon.core.events import EV_TURN_ASSIGNED, EV_TURN_FENCED
from antiphon.core.execution_events import EV_TURN_CLAIMED
from antiphon.hub.system_channels import AUDIT_CHANNEL
from tests.crash.zombie_child import AGENT, LONGEST_LIFE, THREAD

FLAGS = ("--plain", "--early", "--deaf", "--no-fence")
"""How the first process is, when it wakes up."""
CHANNEL = derived_id("thread", AGENT, THREAD)


@dataclass(frozen=True)
class Found:
    """What is in the logs when both have ended."""

    log: list[Envelope]
    audit: list[Envelope]
    lease: str
    """Until when the first process had its lease when it was stopped."""

    @property
    def answers(self) -> list[object]:
        said = [envelope for envelope in self.log if envelope.event_type == EV_TEXT]
        return [envelope.event_data["text"] for envelope in said if envelope.sender_id == AGENT]

    @property
    def turn(self) -> str:
        (assigned,) = [envelope for envelope in self.log if envelope.event_type == EV_TURN_ASSIGNED]
        return f"{assigned.sequence}/{AGENT}"

    @property
    def fenced(self) -> list[Json]:
        return [envelope.event_data for envelope in self.audit if envelope.event_type == EV_TURN_FENCED]

    @property
    def claims(self) -> list[Envelope]:
        return [envelope for envelope in self.log if envelope.event_type == EV_TURN_CLAIMED]


@contextmanager
def process(path: Path, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.crash.zombie_child", str(path), name, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_until_stopped(child: subprocess.Popen[bytes]) -> None:
    """The child ends by itself should it never stop, so this does not wait for ever."""
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def woken_too_late(path: Path, flag: str) -> Found:
    """The first process stops in the midst of a model call, the second finishes the turn, then the first goes on."""
    with process(path, "the first", "--ask", "--stop", flag) as first:
        wait_until_stopped(first)
        with process(path, "the second") as second:
            said, _ = second.communicate(timeout=LONGEST_LIFE)
            assert said == b"answered by the second\n"
            assert second.returncode == 0
        first.send_signal(signal.SIGCONT)  # the second has answered and ended: the first was taken for dead
        told, _ = first.communicate(timeout=LONGEST_LIFE)
        assert first.returncode == 0
    return asyncio.run(look(path, lease=told.decode().splitlines()[0]))


async def look(path: Path, lease: str) -> Found:
    async with Hub.open(f"sqlite:///{path}", engine=None) as hub:
        own = [row.channel_id for row in await hub.channels(system=True)]
        return Found(await hub.log(CHANNEL), await hub.log(AUDIT_CHANNEL) if AUDIT_CHANNEL in own else [], lease)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """All of them at once, because they only wait."""
    folder = tmp_path_factory.mktemp("zombie")
    with ThreadPoolExecutor() as threads:
        begun = {flag: threads.submit(woken_too_late, folder / f"team{flag}.db", flag) for flag in FLAGS}
        return {flag: scene.result() for flag, scene in begun.items()}


@pytest.fixture(params=["--plain", "--early", "--deaf"])
def found(request: pytest.FixtureRequest, scenes: dict[str, Found]) -> Found:
    return scenes[request.param]


def test_there_is_one_answer_and_it_is_not_the_sleepers(found: Found) -> None:
    assert found.answers == ["answered by the second"]


def test_the_sleeper_was_fenced_and_the_audit_says_so(found: Found) -> None:
    assert [(data["channel_id"], data["turn"]) for data in found.fenced] == [(CHANNEL, found.turn)]


def test_the_turn_was_taken_over_when_the_lease_had_run_out(found: Found) -> None:
    first, second = found.claims
    assert (first.event_data["epoch"], second.event_data["epoch"]) == (1, 2)
    assert first.event_data["owner"] != second.event_data["owner"]
    assert first.created_at < found.lease <= second.created_at


@pytest.mark.parametrize("flag", ["--deaf", "--early"])
def test_who_does_not_notice_that_its_lease_is_lost_is_refused_by_the_log(flag: str, scenes: dict[str, Found]) -> None:
    (refusal,) = scenes[flag].fenced
    assert "lease" not in str(refusal["why"])


def test_control_without_the_fence_there_are_two_answers(scenes: dict[str, Found]) -> None:
    found = scenes["--no-fence"]
    assert found.answers == ["answered by the second", "answered by the first"]
    assert found.fenced == []
