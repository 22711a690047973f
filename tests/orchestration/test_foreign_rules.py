"""Conditions and targets that are not ours: what they may be, and that they cannot do harm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import InitVar, dataclass
from typing import ClassVar

import pytest

from antiphon import (
    AgentTarget,
    Channel,
    Envelope,
    Hub,
    RulesInvalid,
    State,
    TerminateTarget,
    Transition,
    TransitionCondition,
    TransitionDecision,
    TransitionGraph,
    register_condition,
    register_target,
)
from antiphon.core.conditions import CONDITIONS
from antiphon.core.events import EV_RULE_FAILED
from antiphon.core.targets import TARGETS


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (CONDITIONS, TARGETS):
        monkeypatch.setattr(names, "_registered", {})


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:") as found:
        yield found


async def opened(hub: Hub, condition: TransitionCondition) -> Channel:
    """Ann may speak, and ben gets the turn if the condition holds."""
    ann, _ = await hub.register("ann"), await hub.register("ben")
    graph = TransitionGraph("ann", [Transition(condition, AgentTarget("ben"))], TerminateTarget("not held"))
    return await ann.open(type="workflow", target=["ben"], knobs={"graph": graph.to_dict()})


async def test_a_condition_cannot_change_what_it_is_shown(hub: Hub) -> None:
    @register_condition
    @dataclass(frozen=True)
    class Counting:
        name: ClassVar[str] = "counting"

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            state.context_vars["n"] = 7
            state.knobs.clear()
            return True

    channel = await opened(hub, Counting())
    await channel.send("go")
    assert channel.state.expected_next_speaker == "ben"
    assert channel.state.context_vars == {}
    assert "graph" in channel.state.knobs


@pytest.mark.parametrize("answer", ["no", 0, 1, None, []])
async def test_what_is_neither_yes_nor_no_does_not_match_and_is_told(hub: Hub, answer: object) -> None:
    @register_condition
    @dataclass(frozen=True)
    class Vague:
        name: ClassVar[str] = "vague"

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return answer  # type: ignore[return-value]  # on purpose

    channel = await opened(hub, Vague())
    await channel.send("go")
    assert channel.state.close_reason == "not held"
    [failed] = [each.event_data for each in await hub.log(channel.channel_id) if each.event_type == EV_RULE_FAILED]
    assert failed == {"rule": 0, "error": f"TypeError: evaluate returned {answer!r}; return True or False"}


def test_rules_wait_for_nothing() -> None:
    class Slow:
        name: ClassVar[str] = "slow"

        async def evaluate(self, state: State, envelope: Envelope) -> bool:
            return False

    with pytest.raises(RulesInvalid, match="evaluate of the condition Slow is async; rules wait for nothing"):
        register_condition(Slow)  # type: ignore[type-var]  # on purpose


def test_a_method_takes_a_state_and_an_envelope() -> None:
    class Short:
        name: ClassVar[str] = "short"

        def resolve(self, state: State) -> TransitionDecision:
            return TransitionDecision("ann")

    with pytest.raises(RulesInvalid, match=r"the target Short needs a method resolve\(self, state, envelope\)"):
        register_target(Short)  # type: ignore[type-var]  # on purpose


def test_arguments_that_could_not_be_read_back_are_refused() -> None:
    class Plain:
        name: ClassVar[str] = "plain"

        def __init__(self, limit: int = 3) -> None:
            self.limit = limit

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    @dataclass
    class Hidden:
        name: ClassVar[str] = "hidden"
        seen: int = 1
        unseen: InitVar[int] = 5

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    for kind in (Plain, Hidden):
        with pytest.raises(RulesInvalid, match="takes arguments; make it a dataclass, without InitVar"):
            register_condition(kind)


def test_what_shows_no_fields_is_told_by_its_name() -> None:
    @register_condition
    class Bare:
        name: ClassVar[str] = "bare"

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    graph = TransitionGraph("ann", [Transition(Bare(), AgentTarget("ben"))], TerminateTarget("over"))
    assert "0. bare" in graph.to_mermaid()
