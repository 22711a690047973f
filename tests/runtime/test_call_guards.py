"""Guards that are asked about calls: what they deny, change or hold back, and what the log and the turn make of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

from antiphon import (
    ALLOW,
    Agent,
    Ask,
    Change,
    Deny,
    Envelope,
    Hub,
    ModelUnavailable,
    Permission,
    RulesInvalid,
    ScriptedModel,
    State,
    calls,
    register_guard,
    says,
    tool,
)
from antiphon.core.envelope import OPERATORS
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_RELEASED,
)
from antiphon.core.state import RelatedFact
from antiphon.testing import ManualClock
from tests.support.waiting import soon, wait_until


class CallCount(msgspec.Struct, frozen=True):
    """How many calls of each name have been recorded."""

    counts: dict[str, int] = {}


@register_guard
class TestGuard(msgspec.Struct, frozen=True):
    """Says about each call what its fields say."""

    __test__: ClassVar[bool] = False
    name: ClassVar[str] = "tests_call_guard"
    memory: ClassVar[type] = CallCount
    hears: ClassVar[frozenset[str]] = frozenset({EV_CALL_STARTED, EV_CALL_FAILED})
    most: dict[str, int] = {}
    """How often each may leave."""
    final: bool = False
    answer: str = ""
    rewrites: dict[str, dict[str, object]] = {}
    asks: tuple[str, ...] = ()
    no_retries: bool = False

    def evolve(self, memory: CallCount, envelope: Envelope) -> CallCount:
        name = envelope.event_data.get("name")
        if envelope.event_type != EV_CALL_STARTED or not isinstance(name, str):
            return memory
        return CallCount({**memory.counts, name: memory.counts.get(name, 0) + 1})

    def permit(self, memory: CallCount, state: State, draft: Envelope) -> Permission:
        assert draft.created_at >= state.updated_at
        if draft.event_type == EV_CALL_RETRIED:
            return Deny("retry_budget", "no retries here") if self.no_retries else ALLOW
        name = str(draft.event_data["name"])
        if name in self.rewrites:
            return Change(replace(draft, event_data={**draft.event_data, "args": self.rewrites[name]}))
        if name in self.asks:
            return Ask("it is risky")
        if name in self.most and memory.counts.get(name, 0) >= self.most[name]:
            return Deny("loop", f"no more {name}", self.final, self.answer)
        return ALLOW

    def notice(self, memory: CallCount, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if envelope.event_data.get("denied") != "loop":
            return ()
        return [RelatedFact("tests.noticed", {"index": envelope.event_data["index"]}, (OPERATORS,))]


class Desk:
    """A hub with an agent whose tools note what they are called with."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.called: list[tuple[str, int]] = []

    def agent(self, model: ScriptedModel, guard: TestGuard) -> Agent:
        @tool
        async def search(page: int) -> str:
            self.called.append(("search", page))
            return f"page {page}"

        @tool
        async def pay(cents: int) -> str:
            self.called.append(("pay", cents))
            return f"paid {cents}"

        return Agent("bob", model=model, tools=[search, pay], guards=[guard])

    async def log_of(self, channel_id: str, *types: str) -> list[Mapping[str, object]]:
        return [each.event_data for each in await self.hub.log(channel_id) if each.event_type in types]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield Desk(hub)


async def test_calls_before_in_the_same_message_count(desk: Desk) -> None:
    model = ScriptedModel([[calls("search", {"page": page}) for page in (1, 2, 3)], says("Two pages.")])
    reply = await soon(desk.agent(model, TestGuard(most={"search": 2})).invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("Two pages.", None)
    assert sorted(desk.called) == [("search", 1), ("search", 2)]
    [denied] = [each for each in await desk.log_of(reply.channel_id, EV_CALL_FAILED)]
    assert (denied["index"], denied["denied"], denied["error"]) == (3, "loop", "no more search")
    assert denied["guard"] == TestGuard.name
    assert "no more search" in [text for _, text in model.requests[1].messages]


async def test_a_denial_and_what_a_guard_notices_of_it_are_one_batch(desk: Desk) -> None:
    model = ScriptedModel([calls("search", {"page": 1}), says("None.")])
    reply = await soon(desk.agent(model, TestGuard(most={"search": 0})).invoke("Go", hub=desk.hub))
    log = await desk.hub.log(reply.channel_id)
    at = next(place for place, each in enumerate(log) if each.event_type == EV_CALL_FAILED)
    started, failed, noticed = log[at - 1 : at + 2]
    assert (started.event_type, noticed.event_type, noticed.event_data) == (
        EV_CALL_STARTED,
        "tests.noticed",
        {"index": 1},
    )
    assert noticed.causation_id == failed.envelope_id
    assert started.created_at == failed.created_at == noticed.created_at
    assert desk.called == []


async def test_a_denied_model_call_ends_the_turn_with_what_was_said(desk: Desk) -> None:
    script = ScriptedModel([calls("search", {"page": 1}, text="I look it up."), says("never asked")])
    reply = await soon(desk.agent(script, TestGuard(most={"model": 1})).invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("I look it up.", "denied:loop")
    assert len(script.requests) == 1
    assert desk.called == [("search", 1)]


async def test_a_guard_may_have_a_safe_text_said(desk: Desk) -> None:
    guard = TestGuard(most={"model": 0}, answer="Please try again tomorrow.")
    reply = await soon(desk.agent(ScriptedModel([]), guard).invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("Please try again tomorrow.", "denied:loop")


async def test_a_final_denial_of_a_tool_ends_the_turn_and_spares_the_others(desk: Desk) -> None:
    wanted = [calls("pay", {"cents": 5}), calls("search", {"page": 1})]
    model = ScriptedModel([wanted, says("never asked")])
    reply = await soon(desk.agent(model, TestGuard(most={"search": 0}, final=True)).invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("", "denied:loop")
    assert desk.called == [("pay", 5)]
    assert len(model.requests) == 1
    [finished] = [each for each in await desk.log_of(reply.channel_id, EV_CALL_FINISHED) if each["index"] == 1]
    assert finished["result"] == {"returned": {"text": "paid 5"}}


async def test_a_call_leaves_as_a_guard_has_changed_it(desk: Desk) -> None:
    model = ScriptedModel([calls("pay", {"cents": 900}), says("Done.")])
    reply = await soon(desk.agent(model, TestGuard(rewrites={"pay": {"cents": 100}})).invoke("Go", hub=desk.hub))
    assert desk.called == [("pay", 100)]
    [started] = [each for each in await desk.log_of(reply.channel_id, EV_CALL_STARTED) if each["name"] == "pay"]
    assert started["args"] == {"cents": 100}


async def test_a_call_that_a_guard_asks_a_person_about_waits_while_the_others_run(desk: Desk) -> None:
    model = ScriptedModel([[calls("search", {"page": 1}), calls("pay", {"cents": 900})], says("never asked")])
    agent = desk.agent(model, TestGuard(asks=("pay",)))
    ann = await desk.hub.register("ann")
    await desk.hub.register(agent)
    channel = await ann.open(target="bob", knobs={"guards": agent.guards})
    await channel.send("Go")
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    assert desk.called == [("search", 1)]
    [request] = await desk.log_of(channel.channel_id, EV_APPROVAL_REQUESTED)
    assert (request["name"], request["args"], request["why"]) == ("pay", {"cents": 900}, "it is risky")
    assert len(await desk.log_of(channel.channel_id, EV_TURN_RELEASED)) == 1
    assert [turn.asked for turn in channel.state.owed] == [(2,)]


async def test_a_retry_is_denied_before_it_is_waited_for(desk: Desk) -> None:
    model = ScriptedModel([calls("search", {"page": 1}, text="A page."), ModelUnavailable("busy"), says("never asked")])
    reply = await soon(desk.agent(model, TestGuard(no_retries=True)).invoke("Go", hub=desk.hub))
    assert (reply.text, reply.stopped) == ("A page.", "denied:retry_budget")
    assert await desk.log_of(reply.channel_id, EV_CALL_RETRIED) == []
    [failed] = await desk.log_of(reply.channel_id, EV_CALL_FAILED)
    assert failed["denied"] == "retry_budget"


async def test_what_guards_count_is_recorded_where_there_are_any(desk: Desk) -> None:
    model = ScriptedModel([says("hello there")])
    reply = await soon(desk.agent(model, TestGuard()).invoke("Go", hub=desk.hub))
    [finished] = await desk.log_of(reply.channel_id, EV_CALL_FINISHED)
    assert finished["tokens"] == reply.usage.input_tokens + reply.usage.output_tokens > 0
    plain = await soon(Agent("cyd", model=ScriptedModel([says("hi")])).invoke("Go", hub=desk.hub))
    [finished] = await desk.log_of(plain.channel_id, EV_CALL_FINISHED)
    assert finished.keys() == {"turn", "index", "result"}


def test_a_guard_of_an_agent_is_checked_with_it() -> None:
    with pytest.raises(RulesInvalid, match="no guard is called 'nothing'"):
        Agent("bob", model=ScriptedModel([]), guards=["nothing"])
    with pytest.raises(RulesInvalid, match="no tier is called 'fast'"):
        Agent("bob", model=ScriptedModel([]), tier="fast")  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="the guard 'tests_call_guard' has no field 'mots'"):
        Agent("bob", model=ScriptedModel([]), guards=[{"name": "tests_call_guard", "mots": 3}])


def test_a_class_that_is_no_guard_is_refused() -> None:
    class Mute:
        name = "mute"

    class Late:
        name = "late"

        async def permit(self, memory: object, state: State, draft: Envelope) -> Permission:
            return ALLOW

    class Short:
        name = "short"

        def permit(self, draft: Envelope) -> Permission:
            return ALLOW

    class Hop:
        name = "hop_limit"

        def permit(self, memory: object, state: State, draft: Envelope) -> Permission:
            return ALLOW

    for kind, why in (
        (Mute, "Mute has no opinion"),
        (Late, "permit of the guard Late is async"),
        (Short, r"Short needs permit\(self, memory, state, draft\)"),
        (Hop, "'hop_limit' is built in"),
    ):
        with pytest.raises(RulesInvalid, match=why):
            register_guard(kind)
