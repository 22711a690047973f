"""The public checks pass what is sound and fail what is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import EV_TEXT, Assign, Envelope, Hub, State
from antiphon.core.guard import ALLOW, Verdict
from antiphon.core.ruleset import Expectation
from antiphon.core.state import Decision
from antiphon.guards.standard_guards import ContextWriters, ExpectationGuard, Membership, TimeToLive, TurnOrder
from antiphon.orchestration.adapters import Consulting, Conversation, Discussion
from antiphon.testing import canonical_digest, check_adapter, check_guard


@pytest.mark.parametrize("adapter", [Conversation, Consulting, Discussion])
def test_adapters_that_ship_pass(adapter: type) -> None:
    check_adapter(adapter)


@pytest.mark.parametrize(
    "guard",
    [
        Membership(),
        TurnOrder(),
        ContextWriters({"a": frozenset({"ann"})}),
        TimeToLive(),
        *(
            ExpectationGuard(Expectation(name, 5))
            for name in ("acks_within", "reply_within", "max_silence", "turn_within")
        ),
    ],
    ids=lambda guard: guard.name,
)
def test_guards_that_ship_pass(guard: Membership) -> None:
    check_guard(guard)


class Wandering(Discussion):
    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return Assign(("nobody",))


def test_an_adapter_that_names_a_stranger_fails() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        check_adapter(Wandering)


@dataclass
class Living:
    name: ClassVar[str] = "living"
    asked: int = 0

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        self.asked += 1
        return ALLOW if self.asked % 2 else TurnOrder().judge(memory, state, draft)


def test_a_guard_that_remembers_by_living_fails() -> None:
    with pytest.raises(AssertionError, match="asked twice"):
        check_guard(Living())


@dataclass(frozen=True)
class Odd:
    name: ClassVar[str] = "odd"
    memory: ClassVar[type] = set

    def evolve(self, memory: set[str], envelope: Envelope) -> list[object]:
        return [object()]


def test_a_memory_that_is_not_plain_data_fails() -> None:
    with pytest.raises(AssertionError, match="plain data"):
        check_guard(Odd())


class Mute:
    name = "mute"


class Nameless:
    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        return ALLOW


class Forgetful(Nameless):
    name = "forgetful"

    def evolve(self, memory: object, envelope: Envelope) -> object:
        return memory


class Deaf:
    name = "deaf"

    def judge(self, draft: Envelope) -> Verdict:
        return ALLOW


class Late:
    name = "late"

    def due(self, memory: object, state: State) -> None:
        raise KeyError("when")


@pytest.mark.parametrize(
    ("guard", "complaint"),
    [
        (Mute(), "mute has no opinion; it needs one of: evolve, judge, permit"),
        (object(), "needs a name"),
        (Nameless(), "needs a name"),
        (Membership, "Membership'> is a class; give an instance of it"),
        (Forgetful(), "forgetful needs both evolve and memory, or neither"),
        (Deaf(), "the guard deaf raised TypeError"),
        (Late(), "the guard late raised KeyError: 'when'"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_what_is_no_guard_fails(guard: Membership, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_guard(guard)


async def told(*lines: str) -> str:
    async with Hub.open("memory:") as hub:
        ann, _ = await hub.register("ann"), await hub.register("ben")
        channel = await ann.open(type="conversation", target="ben")
        for line in lines:
            await channel.send(line)
        log = await hub.log(channel.channel_id)
        assert any(envelope.event_type == EV_TEXT for envelope in log)
        return canonical_digest(log)


async def test_the_same_story_has_the_same_digest() -> None:
    assert await told("one", "two") == await told("one", "two")
    assert await told("one", "two") != await told("two", "one")
