"""What an adapter may declare beside what it must, and what holds if it does not."""

from __future__ import annotations

from typing import ClassVar

import pytest

from antiphon import (
    AgentTarget,
    Assign,
    Close,
    ConversationRouter,
    Decision,
    Envelope,
    Expectation,
    FullTranscript,
    NamedTranscript,
    NamedWindowedSummary,
    Seats,
    State,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    Wait,
)
from antiphon.core.event_data import Deny
from antiphon.core.events import EV_PACKET, FailedTurn
from antiphon.core.guard import ALLOW, Deadline, Verdict
from antiphon.core.ruleset import REACTS_BY_DEFAULT, Fold, Ruleset
from antiphon.core.step import Admitted, hub_draft, record, tick
from antiphon.guards.run_limits import HopLimit
from antiphon.orchestration import catalogue
from antiphon.orchestration.adapters import Conversation, Discussion, traits_of
from antiphon.orchestration.catalogue import make_ruleset, register_adapter, ruleset_for
from antiphon.orchestration.handoff_rules import HandoffRules
from antiphon.orchestration.routed_handoffs import RoutedHandoffs
from antiphon.orchestration.workflow import Workflow
from antiphon.testing import check_adapter
from tests.support.envelopes import at, fact
from tests.support.pure_channel import open_channel

IDS = iter(range(10**9))


class Bare:
    """Declares nothing that it need not."""

    name: ClassVar[str] = "bare"
    seats: ClassVar[Seats] = Seats(1)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: dict[str, object]) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return Close(f"after {envelope.event_type}")


class Reactive(Bare):
    """Is asked about an event of its own, and about nothing that is said."""

    reacts: ClassVar[frozenset[str]] = frozenset({"my.release", "ag2.context.set"})
    ends_in: ClassVar[str] = "packet"
    routing_tools: ClassVar[frozenset[str]] = frozenset({"route"})

    def view(self, participants: int) -> FullTranscript:
        return FullTranscript()

    def recover(self, memory: object, state: State, failed: FailedTurn) -> Decision:
        return Close(f"{failed.speaker} failed with {failed.reason}")


class Packets(Bare):
    packets: ClassVar[bool] = True


def begun(kind: str = "discussion") -> Fold:
    return Fold(open_channel(kind, "alice", "bob")[1].state)


def recorded(ruleset: Ruleset, draft: Envelope) -> list[str]:
    admitted = record(begun(), draft, ruleset=ruleset, at=at(9), new_id=lambda: f"id-{next(IDS)}")
    return [each.event_data.get("reason", each.event_type) for each in admitted.batch]  # type: ignore[misc]


def test_what_is_not_declared_is_filled_in() -> None:
    traits = traits_of(Bare({}))
    assert (traits.ends_in, traits.reacts, traits.routing_tools) == ("text", REACTS_BY_DEFAULT, None)
    assert (traits.view(2), traits.view(3)) == (FullTranscript(), NamedTranscript())
    assert traits_of(Packets({})).ends_in == "packet"
    assert traits_of(Conversation({})).ends_in == traits_of(Discussion({})).ends_in == "text"


def test_a_workflow_declares_its_own() -> None:
    rules = [Transition(ToolCalled("route"), AgentTarget("bob"))]
    traits = traits_of(Workflow({"graph": TransitionGraph("alice", rules, TerminateTarget("over")).to_dict()}))
    assert (traits.ends_in, traits.routing_tools) == ("packet", frozenset({"route"}))
    assert traits.view(3) == NamedWindowedSummary(6)


def test_decide_is_called_for_what_the_adapter_reacts_to() -> None:
    plain, reactive = make_ruleset(Bare({})), make_ruleset(Reactive({}))
    text, release = fact("alice", "ag2.msg.text", {"text": "hi"}), fact("alice", "my.release", {})
    context = fact("alice", "ag2.context.set", {"set": {"a": 1}, "delete": []})
    assert recorded(plain, release) == ["my.release"]
    assert recorded(plain, context) == ["ag2.context.set"]
    assert recorded(reactive, text) == ["ag2.msg.text"]
    assert recorded(reactive, release) == ["my.release", "after my.release"]
    assert recorded(reactive, context) == ["ag2.context.set", "after ag2.context.set"]


def test_data_without_its_shape_moves_nothing() -> None:
    assert recorded(make_ruleset(Reactive({})), fact("alice", "ag2.context.set", {"set": 7})) == ["ag2.context.set"]


def test_an_adapter_recovers_from_a_failed_turn_in_its_own_way() -> None:
    state = State(participants={"ann": "human", "bob": "agent"}, ordered=True, status="active")
    told = FailedTurn("7/bob", "bob", "model_error")
    assert make_ruleset(Reactive({})).recover(Fold(state), told) == Close("bob failed with model_error")
    assert make_ruleset(Bare({})).recover(Fold(state), told) == Assign(("ann",), "turn_failed:model_error")
    assert Ruleset(Bare({})).recover(Fold(state), told) == Wait()


class Versioned(Bare):
    version: ClassVar[int] = 1


class Raised(Bare):
    version: ClassVar[int] = 2


Versioned.__qualname__ = Raised.__qualname__ = "Bare"


def test_the_version_of_a_fold_is_part_of_that_of_the_ruleset() -> None:
    versions = {Ruleset(kind({})).version for kind in (Bare, Versioned, Raised)}
    assert len(versions) == 3


class Handing(Bare):
    """Ends in packets, and looks at what its participants say."""

    name: ClassVar[str] = "handing"
    ends_in: ClassVar[str] = "packet"

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return Assign(("alice",)) if envelope.event_type == "ag2.channel.opened" else Wait()


class Judging(Handing):
    """Refuses every handoff, with what it was shown of it."""

    name: ClassVar[str] = "judging"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        routing = draft.event_data.get("routing")
        return Deny("judged", str(routing)) if isinstance(routing, dict) and routing.get("target") else ALLOW


class Limiting(Judging):
    """Limits its handoffs itself."""

    name: ClassVar[str] = "limiting"

    def __init__(self, knobs: dict[str, object]) -> None:
        self.handoffs = RoutedHandoffs(HandoffRules(), 5, None)


ROUTER = {"router": ConversationRouter(default_agent_id="alice").to_dict()}
GRAPH = {"graph": TransitionGraph("alice", [], TerminateTarget("over")).to_dict()}


@pytest.fixture
def own_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters that are forgotten after the test."""
    monkeypatch.setattr(catalogue, "_registered_adapters", {})
    for adapter in (Handing, Judging, Limiting):
        register_adapter(adapter)


@pytest.mark.parametrize(
    ("kind", "knobs", "limit"),
    [
        ("handing", {}, 5),
        ("judging", {}, 5),
        ("judging", {"guards": [{"name": "hop_limit", "most": 2}]}, 2),
        ("workflow", GRAPH, 5),
        ("limiting", {}, None),
        ("routed", ROUTER, None),
        ("conversation", {}, None),
    ],
)
@pytest.mark.usefixtures("own_adapters")
def test_handoffs_are_limited_where_the_adapter_does_not(
    kind: str, knobs: dict[str, object], limit: int | None
) -> None:
    limits = [guard.most for guard in ruleset_for(kind, knobs).guards if isinstance(guard, HopLimit)]
    assert limits == ([] if limit is None else [limit])


@pytest.mark.usefixtures("own_adapters")
def test_an_adapter_judges_what_the_limit_has_changed() -> None:
    ruleset = ruleset_for("judging", {})
    state = State(participants={"alice": "agent"}, ordered=True, status="active", speakers=("alice",))
    packet = fact("alice", EV_PACKET, {"body": "", "routing": {"target": "zoe"}})
    assert ruleset.judge(Fold(state, ruleset.begin("c").memories), packet) == Deny(
        "judged", "{'target': 'zoe', 'rejected': 'not_a_participant'}"
    )


class Ready:
    """A user-defined guard whose deadline has its draft, or makes it."""

    name = "ready"

    def __init__(self, lazily: bool) -> None:
        self.lazily, self.made = lazily, 0

    def make(self) -> Envelope:
        self.made += 1
        return hub_draft("my.due", {"n": self.made})

    def due(self, memory: object, state: State) -> Deadline | None:
        if state.sequence >= 20:
            return None
        return Deadline(at(20), self.make if self.lazily else self.make())


@pytest.mark.parametrize("lazily", [True, False])
def test_a_deadline_has_its_draft_or_makes_it_when_it_is_due(lazily: bool) -> None:
    guard = Ready(lazily)
    ruleset = make_ruleset(Bare({}), [guard])
    fold = Fold(State(channel_id="c", sequence=19, status="active"))
    assert ruleset.due(fold) is not None
    assert tick(fold, ruleset=ruleset, at=at(19), new_id=lambda: "id") is None
    assert guard.made == (0 if lazily else 2)
    ticked = tick(fold, ruleset=ruleset, at=at(21), new_id=lambda: "id")
    assert isinstance(ticked, Admitted)
    assert [each.event_type for each in ticked.batch] == ["my.due"]


class Fickle(Bare):
    """Recovers otherwise each time."""

    calls = 0

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return Wait()

    def recover(self, memory: object, state: State, failed: FailedTurn) -> Decision:
        Fickle.calls += 1
        return Close(str(Fickle.calls))


class Blind(Fickle):
    def view(self, participants: int) -> str:
        return "nothing"


class Listed(Fickle):
    routing_tools: ClassVar[list[str]] = ["route"]


@pytest.mark.parametrize(
    ("adapter", "complaint"),
    [
        (Fickle, "asked twice about a failed turn"),
        (Blind, r"view\(2\) is 'nothing'; give a view"),
        (Listed, r"routing_tools is \['route'\]; give a frozenset, or None"),
    ],
)
def test_check_adapter_looks_at_what_is_declared(adapter: type[Bare], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_adapter(adapter)


def test_check_adapter_plays_events_of_the_adapter() -> None:
    check_adapter(Reactive)
