"""Guards of users that fail, or answer with nonsense: what becomes of their channel, while others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import msgspec
import pytest

from antiphon import (
    ALLOW,
    Agent,
    Denied,
    Deny,
    Envelope,
    Hub,
    Permission,
    RulesInvalid,
    State,
    TurnFailed,
    register_guard,
    says,
)
from antiphon.core.execution_events import EV_CALL_STARTED
from tests.support.waiting import soon


class Seen(msgspec.Struct, frozen=True):
    """Whether a call has left."""

    call: bool = False


@register_guard
class FailingGuard(msgspec.Struct, frozen=True):
    """Fails in the way that its field says, before or after the first call."""

    name: ClassVar[str] = "tests_failing_guard"
    memory: ClassVar[type] = Seen
    hears: ClassVar[frozenset[str]] = frozenset({EV_CALL_STARTED})
    due_says: str = ""
    """`raise`, `3`, or `raise later`; "" for nothing."""
    no_reason: bool = False

    def evolve(self, memory: Seen, envelope: Envelope) -> Seen:
        return Seen(call=True)

    def permit(self, memory: Seen, state: State, draft: Envelope) -> Permission:
        return Deny("", "not now") if self.no_reason else ALLOW

    def due(self, memory: Seen, state: State) -> None:
        if self.due_says == "3":
            return 3  # type: ignore[return-value]
        if self.due_says == "raise" or (self.due_says and memory.call):
            raise ValueError("the calendar is torn")
        return None


async def answer(request: object) -> object:
    return says("Here I am.")


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:") as hub:
        yield hub


async def ask(hub: Hub, guard: FailingGuard) -> str:
    return (await soon(Agent("bob", model=answer, guards=[guard]).invoke("Go", thread_id="t", hub=hub))).text


async def others_still_answer(hub: Hub) -> bool:
    return (await soon(Agent("cyd", model=answer).invoke("Go", hub=hub))).text == "Here I am."


@pytest.mark.parametrize(
    ("said", "detail"),
    [("raise", "ValueError: the calendar is torn"), ("3", "due of a guard returned 3; return a Deadline or None")],
)
async def test_a_guard_that_cannot_say_what_is_due_refuses_all(hub: Hub, said: str, detail: str) -> None:
    with pytest.raises(Denied) as denied:
        await ask(hub, FailingGuard(due_says=said))
    assert (denied.value.reason, denied.value.detail) == ("rules_failed", detail)
    assert await others_still_answer(hub)


async def test_a_guard_that_fails_over_what_is_due_in_a_turn_ends_its_channel(hub: Hub) -> None:
    with pytest.raises(TurnFailed, match="rules_failed"):
        await ask(hub, FailingGuard(due_says="raise later"))
    assert [(row.status, row.close_reason) for row in await hub.channels()] == [("closed", "rules_failed")]
    assert await others_still_answer(hub)


async def test_a_denial_without_a_reason_lets_no_call_leave(hub: Hub) -> None:
    with pytest.raises(TurnFailed, match="rules_failed"):
        await ask(hub, FailingGuard(no_reason=True))
    [row] = await hub.channels()
    assert row.close_reason == "rules_failed"
    assert [each for each in await hub.log(row.channel_id) if each.event_type == EV_CALL_STARTED] == []
    assert await others_still_answer(hub)


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ({"name": "budget", "tokens": "many"}, "tokens of budget is 'many'; give a number, 0 or more, or 'unlimited'"),
        ({"name": "budget", "dollars": 2.5}, "dollars of budget is 2.5; give a text with at most six decimal places"),
        ({"name": "loop", "repeated_call": "stop"}, "repeated_call of loop is 'stop'; give 'terminate' or 'ask'"),
        ({"name": "deadlines", "step": "30"}, "step of deadlines is '30'; give seconds, 0 or more, or 'unlimited'"),
        ({"name": "turn_limit", "per": "hour"}, "per of turn_limit is 'hour'; give 'channel' or 'message'"),
        ({"name": "tests_failing_guard", "due_says": 3}, "the guard 'tests_failing_guard': due_says is int, not str"),
    ],
)
async def test_a_guard_as_data_with_a_wrong_value_names_the_fix_and_opens_nothing(
    hub: Hub, entry: dict[str, object], advice: str
) -> None:
    ann = await hub.register("ann")
    await hub.register("bob")
    with pytest.raises(RulesInvalid) as refused:
        await ann.open(target="bob", knobs={"guards": [entry]})
    assert advice in str(refused.value)
    assert await hub.channels() == []
