"""A round of decisions: each on what the ones before it have led to; and what must wait comes right behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from antiphon import AgentsTarget, AgentTarget, Envelope, FromSpeaker, TerminateTarget, Transition, TransitionGraph
from antiphon.core.call_permits import JournalBatch, TurnClaim
from antiphon.core.envelope import Instant
from antiphon.core.event_data import Deny
from antiphon.core.guard import LATER, Later
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, pending_turns, step, tick
from antiphon.core.turns import TurnEnding, TurnFailure, claim_turn, end_turn, fail_turn
from antiphon.hub.admission import AdmissionBatch, AdmissionPlan, AdmissionRequest, plan_nothing, run_plan
from tests.support.envelopes import at, fact, packed, said, written
from tests.support.pure_channel import PureChannel

PEOPLE = ("ann", "ada:agent", "bob:agent", "dana:human", "rita:human")


def begun(target: AgentTarget | AgentsTarget, *names: str) -> PureChannel:
    """A workflow in which ann has spoken, and these agents have begun the turn they were given."""
    rules = [Transition(FromSpeaker("ann"), target), Transition(FromSpeaker("ada"), AgentTarget("bob"))]
    graph = TransitionGraph("ann", rules, TerminateTarget("over"))
    scene = PureChannel("workflow", *PEOPLE, graph=graph.to_dict())
    scene.says("ann")
    for turn in pending_turns(scene.state):
        if turn.speaker in names:
            scene.claims(turn)
    return scene


def saying(scene: PureChannel, speaker: str, text: str = "hello") -> AdmissionRequest:
    return AdmissionRequest(
        lambda fold, ruleset, at: step(fold, said(speaker, text), ruleset=ruleset, at=at, new_id=scene.new_id)
    )


def ending(scene: PureChannel, speaker: str) -> AdmissionRequest:
    """That somebody's turn ends with a packet."""
    claim = claim_of(scene, speaker)

    def plan(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        return end_turn(
            fold, JournalBatch(claim), TurnEnding((packed(speaker),)), ruleset=ruleset, at=at, new_id=scene.new_id
        )

    return AdmissionRequest(plan)


def failing(scene: PureChannel, speaker: str) -> AdmissionRequest:
    claim = claim_of(scene, speaker)

    def plan(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        return fail_turn(
            fold, JournalBatch(claim), TurnFailure("model_error"), ruleset=ruleset, at=at, new_id=scene.new_id
        )

    return AdmissionRequest(plan)


def claim_of(scene: PureChannel, speaker: str) -> TurnClaim:
    turn = next(turn for turn in scene.state.owed if turn.speaker == speaker)
    return TurnClaim(turn.turn_id, turn.epoch)


def round_of(scene: PureChannel, *requests: AdmissionRequest, seconds: float = 50) -> AdmissionBatch:
    decided = AdmissionBatch(scene.fold, scene.ruleset, at(seconds))
    decided.decide(requests)
    return decided


def told(batch: list[Envelope]) -> list[str]:
    """A batch in words: who said what, or what the hub recorded."""
    return [
        f"{each.sender_id}: {each.event_data.get('text', each.event_data.get('body'))}"
        if each.event_type in ("ag2.msg.text", "ag2.packet")
        else each.event_type.split(".", 1)[1]
        for each in batch
    ]


GIVEN = "turn.assigned"
ADA = AgentTarget("ada")
BOTH = AgentsTarget(["ada", "bob"])


# Order, and what was decided before


def test_each_is_decided_on_what_the_ones_before_have_led_to() -> None:
    scene = begun(AgentTarget("dana"))
    requests = [saying(scene, "dana", "1"), saying(scene, "dana", "2")]
    decided = round_of(scene, *requests)
    assert told(decided.batch) == ["dana: 1", "channel.closed"]
    decided.settle()
    first, second = (request.answer for request in requests)
    assert isinstance(first, Envelope)
    assert isinstance(second, Deny)
    assert second.reason == "channel_closed"


def test_nothing_is_told_before_it_is_settled() -> None:
    scene = begun(AgentTarget("dana"))
    request = saying(scene, "dana")
    decided = round_of(scene, request)
    assert (request.settled, request.answer) == (False, None)
    decided.settle()
    assert request.settled


def test_the_scene_itself_is_left_as_it_was() -> None:
    scene = begun(AgentTarget("dana"))
    before = scene.fold
    decided = round_of(scene, saying(scene, "dana"))
    assert scene.fold is before
    assert decided.fold.state.sequence == before.state.sequence + len(decided.batch)


@pytest.mark.parametrize(
    "wanted", [plan_nothing, lambda fold, ruleset, at: Admitted((), fold)], ids=["nothing", "empty"]
)
def test_a_plan_that_wants_nothing_is_told_so(wanted: AdmissionPlan) -> None:
    scene = begun(ADA)
    request = AdmissionRequest(wanted)
    decided = round_of(scene, request)
    decided.settle()
    assert (decided.batch, request.settled, request.answer) == ([], True, None)


# Waiting


def test_what_must_wait_is_held_and_not_told_anything() -> None:
    scene = begun(ADA, "ada")
    word = saying(scene, "dana")
    decided = round_of(scene, word)
    decided.settle()
    assert (decided.deferred, decided.batch, word.settled) == ([word], [], False)


@pytest.mark.parametrize("before", [True, False], ids=["held before", "held after"])
def test_when_the_turn_ends_it_comes_right_behind(before: bool) -> None:
    """Also before others that came later, but were decided on already or are yet to be."""
    scene = begun(ADA, "ada")
    words = [saying(scene, "dana", "1"), saying(scene, "rita", "2")]
    last = AdmissionRequest(
        lambda fold, ruleset, at: step(fold, fact("rita", "my.note"), ruleset=ruleset, at=at, new_id=scene.new_id)
    )
    end = ending(scene, "ada")
    decided = round_of(scene, *([*words, end, last] if before else [end, *words, last]))
    assert told(decided.batch) == ["ada: done", GIVEN, "dana: 1", GIVEN, "rita: 2", GIVEN, "note"]
    assert decided.deferred == []
    decided.settle()
    assert [isinstance(each.answer, Envelope) for each in (*words, end, last)] == [True] * 4


def test_what_does_not_end_the_turn_is_decided_without_what_waits() -> None:
    scene = begun(ADA, "ada")
    word = saying(scene, "dana")
    write = AdmissionRequest(
        lambda fold, ruleset, at: step(fold, written("rita", {"k": 1}), ruleset=ruleset, at=at, new_id=scene.new_id)
    )
    decided = round_of(scene, word, write)
    assert told(decided.batch) == ["context.set"]
    assert decided.deferred == [word]


def test_those_who_wait_keep_their_order_when_they_are_asked_again_in_vain() -> None:
    """Of two turns under way one ends. Everybody is asked again, and waits for the other."""
    scene = begun(BOTH, "ada", "bob")
    words = [saying(scene, name, str(number)) for number, name in enumerate(("dana", "rita", "dana", "rita"))]
    decided = round_of(scene, *words, ending(scene, "ada"))
    assert told(decided.batch) == ["ada: done"]
    assert decided.deferred == words
    whole = round_of(scene, *words, ending(scene, "ada"), ending(scene, "bob"))
    assert told(whole.batch)[:3] == ["ada: done", "bob: done", "channel.closed"]


def test_a_turn_that_fails_lets_them_in_too() -> None:
    scene = begun(ADA, "ada")
    word = saying(scene, "rita", "oh dear")
    decided = round_of(scene, word, failing(scene, "ada"))
    assert told(decided.batch) == ["turn.failed", GIVEN, "rita: oh dear"]
    assert decided.deferred == []


def test_a_turn_that_is_claimed_again_does_not_let_them_in() -> None:
    scene = begun(ADA, "ada")
    turn = scene.state.owed[0]
    word = saying(scene, "rita")

    def claim(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        return claim_turn(fold, turn, "another", ruleset=ruleset, at=at, new_id=scene.new_id)

    decided = round_of(scene, word, AdmissionRequest(claim))
    assert told(decided.batch) == ["turn.claimed"]
    assert decided.deferred == [word]


def test_when_the_channel_ends_they_are_refused_in_the_same_round() -> None:
    scene = begun(AgentTarget("bob"), "bob")
    word = saying(scene, "rita")
    decided = round_of(scene, word, ending(scene, "bob"))
    decided.settle()
    assert told(decided.batch) == ["bob: done", "channel.closed"]
    assert isinstance(word.answer, Deny)
    assert word.answer.reason == "channel_closed"


def test_a_plan_that_always_waits_does_not_turn_in_circles() -> None:
    scene = begun(BOTH, "ada", "bob")
    asked = []

    def plan(fold: Fold, ruleset: Ruleset, at: Instant) -> Later:
        asked.append(fold.state.sequence)
        return LATER

    stubborn = [AdmissionRequest(plan) for _ in range(3)]
    decided = round_of(scene, *stubborn, ending(scene, "ada"), ending(scene, "bob"))
    assert decided.deferred == stubborn
    assert len(asked) == 9, "once at first, and once for each turn that ended"


# What has fallen due


def ticking(scene: PureChannel) -> AdmissionPlan:
    return lambda fold, ruleset, at: tick(fold, ruleset=ruleset, at=at, new_id=scene.new_id)


def test_what_has_fallen_due_comes_first() -> None:
    scene = begun(ADA, "ada")
    word = saying(scene, "dana")
    decided = AdmissionBatch(scene.fold, scene.ruleset, at(1000))
    decided.tick(ticking(scene))
    decided.decide([word, ending(scene, "ada")])
    decided.settle()
    assert told(decided.batch)[-2:] == ["expectation.missed", "channel.closed"]
    assert isinstance(word.answer, Deny)
    assert word.answer.reason == "channel_closed"


def test_if_nothing_has_fallen_due_nothing_is_recorded() -> None:
    scene = begun(ADA, "ada")
    decided = AdmissionBatch(scene.fold, scene.ruleset, at(50))
    decided.tick(ticking(scene))
    assert (decided.batch, decided.fold) == ([], scene.fold)


def test_if_the_rules_fail_on_what_is_due_they_do_on_everything() -> None:
    def broken(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted:
        raise LookupError("no such rule")

    scene = begun(AgentTarget("dana"))
    requests = [saying(scene, "dana"), AdmissionRequest(plan_nothing)]
    decided = AdmissionBatch(scene.fold, scene.ruleset, at(50))
    decided.tick(broken)
    decided.decide(requests)
    decided.settle()
    assert (decided.batch, decided.deferred) == ([], [])
    for request in requests:
        assert request.answer == Deny("rules_failed", "LookupError: no such rule")


# Plans that go wrong


@pytest.mark.parametrize("verdict", [None, False, "no"])
def test_what_is_no_verdict_of_a_guard_is_a_refusal(verdict: object) -> None:
    class Undecided:
        name = "undecided"

        def judge(self, memory: object, state: State, draft: Envelope) -> object:
            return verdict

    scene = begun(AgentTarget("dana"))
    scene.ruleset = Ruleset(scene.ruleset.adapter, [Undecided()])
    request = saying(scene, "dana")
    round_of(scene, request).settle()
    why = f"TypeError: judge of undecided returned {verdict!r}; return ALLOW, Deny, Change or LATER"
    assert request.answer == Deny("rules_failed", why)


def test_whatever_a_plan_raises_is_a_refusal_and_stops_no_other() -> None:
    def broken(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted:
        raise LookupError("no such rule")

    scene = begun(AgentTarget("dana"))
    wrong, right = AdmissionRequest(broken), saying(scene, "dana")
    decided = round_of(scene, wrong, right)
    decided.settle()
    assert wrong.answer == Deny("rules_failed", "LookupError: no such rule")
    assert isinstance(right.answer, Envelope)


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_what_is_no_error_of_the_rules_goes_through(error: type[BaseException]) -> None:
    def stopped(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted:
        raise error

    scene = begun(ADA)
    with pytest.raises(error):
        round_of(scene, AdmissionRequest(stopped))


def following(data: dict[str, object], event_type: str) -> Callable[[PureChannel], AdmissionPlan]:
    """A plan of two envelopes, the second with this data."""

    def made(scene: PureChannel) -> AdmissionPlan:
        def plan(fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted:
            return Admitted((fact("dana", "my.cause"), fact("hub", event_type, data)), fold)

        return plan

    return made


def test_a_consequence_that_cannot_be_recorded_is_a_refusal() -> None:
    scene = begun(ADA)
    outcome = run_plan(following({"text": "\ud800"}, "my.effect")(scene), scene.fold, scene.ruleset, at=at(9))
    assert isinstance(outcome, Deny)
    assert outcome.reason == "rules_failed"
    assert outcome.detail.startswith("what follows cannot be recorded")


def test_what_a_turn_wrote_in_its_journal_was_checked_where_it_was_made() -> None:
    scene = begun(ADA)
    plan = following({"text": "\ud800"}, "antiphon.call.finished")(scene)
    assert isinstance(run_plan(plan, scene.fold, scene.ruleset, at=at(9)), Admitted)


@pytest.mark.parametrize("outcome", [LATER, Deny("no"), None], ids=str)
def test_every_other_outcome_is_passed_on(outcome: Later | Deny | None) -> None:
    scene = begun(ADA)
    assert run_plan(lambda fold, ruleset, at: outcome, scene.fold, scene.ruleset, at=at(9)) is outcome
