"""Gates: the order of their checks, what counts as a failure, the threshold, and one verdict for each digest."""

import asyncio
from collections.abc import Callable
from typing import TypedDict

import pytest
from pydantic import BaseModel

from antiphon import RulesInvalid, UsageError
from antiphon.core.envelope import add_seconds
from antiphon.core.event_data import data_of, event_of
from antiphon.core.protection_events import EV_GATE_CHECKED, ValidationResult
from antiphon.core.step import hub_draft
from antiphon.guards.gate_checks import CheckResult, find_check, register_check
from antiphon.guards.gates import Gate, check_now, missing_required, recorded_verdict
from antiphon.guards.policies import PolicyDecision, PolicyRequest, register_policy
from antiphon.orchestration.gate_contracts import obliged_fields, uncovered_artifacts
from antiphon.runtime.gate_runs import run_gate
from antiphon.testing import ManualClock

SUMMARY = {"type": "object", "required": ["summary"], "properties": {"summary": {"type": "string"}}}
ASKED: list[str] = []
"""The checks that were asked, in order."""


def noted(name: str, answer: object) -> Callable[[object, dict[str, object]], object]:
    def check(subject: object, context: dict[str, object]) -> object:
        ASKED.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return check


for name, answer in {
    "gates.good": True,
    "gates.bad": False,
    "gates.detailed": CheckResult(False, "no_source", "summary"),
    "gates.broken": ValueError("the secret"),
    "gates.odd": "yes",
    "gates.none": None,
    "gates.sure": CheckResult(True, confidence=0.9),
    "gates.unsure": CheckResult(True, confidence=0.3),
    "gates.nan": CheckResult(True, confidence=float("nan")),
    "gates.passed_is_text": CheckResult("yes"),
}.items():
    register_check(name)(noted(name, answer))


class OnlyBob:
    """Allows what bob does."""

    version = 3

    def decide(self, request: PolicyRequest) -> PolicyDecision:
        ASKED.append(f"policy of {request.action}")
        return PolicyDecision("allow" if request.agent == "bob" else "deny", "only_bob")


class Broken:
    """Has no decision."""

    def decide(self, request: PolicyRequest) -> PolicyDecision:
        raise KeyError("the secret")


register_policy("gates.only_bob", OnlyBob())
register_policy("gates.broken", Broken())


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    ASKED.clear()


def statuses(result: ValidationResult) -> list[str]:
    return [" ".join(filter(None, (check.name, check.status, check.code, check.path))) for check in result.checks]


FULL = Gate(
    name="validate",
    schema=SUMMARY,
    required=["summary"],
    artifacts=["plan"],
    policy="gates.only_bob",
    headroom=100,
    invariants=["gates.good"],
    grounding="gates.sure",
    threshold=0.8,
)
SUBJECT = {"summary": "It rains."}
CONTEXT = {"agent": "bob", "artifacts": {"plan": "d1"}, "headroom": 100}


# The order


def test_all_checks_pass_in_their_order() -> None:
    result = check_now(FULL, SUBJECT, side="post", context=CONTEXT)
    assert statuses(result) == [
        "schema pass",
        "required pass",
        "artifacts pass",
        "policy:gates.only_bob pass",
        "headroom pass",
        "invariant:gates.good pass",
        "grounding:gates.sure pass",
        "confidence pass",
    ]
    assert (result.verdict, result.failure_type, result.confidence, result.tau) == ("pass", "", 0.9, 0.8)
    assert ASKED == ["policy of validate", "gates.good", "gates.sure"]


@pytest.mark.parametrize(
    ("subject", "context", "failed", "failure"),
    [
        ({"summary": 7}, CONTEXT, "schema fail schema summary", "schema"),
        ("It rains.", CONTEXT, "schema fail schema", "schema"),
        (SUBJECT, {**CONTEXT, "artifacts": ["other"]}, "artifacts fail missing plan", "schema"),
        (SUBJECT, {**CONTEXT, "agent": "eve"}, "policy:gates.only_bob fail only_bob", "unsafe"),
        (SUBJECT, {**CONTEXT, "headroom": 99}, "headroom fail headroom", "cost"),
        (SUBJECT, {**CONTEXT, "headroom": True}, "headroom fail headroom", "cost"),
        (SUBJECT, {"agent": "bob", "artifacts": ["plan"]}, "headroom fail headroom", "cost"),
    ],
)
def test_the_first_failure_ends_it(subject: object, context: dict[str, object], failed: str, failure: str) -> None:
    result = check_now(FULL, subject, side="pre", context=context)
    told = statuses(result)
    place = told.index(failed)
    assert all(each.endswith(" pass") for each in told[:place])
    assert all(each.endswith(" skipped") for each in told[place + 1 :])
    assert len(told) == 8
    assert (result.verdict, result.failure_type, result.side) == ("fail", failure, "pre")
    assert result.failed_check == result.checks[place]
    assert "gates.good" not in ASKED


def test_invariants_are_asked_in_their_order_up_to_the_first_that_fails() -> None:
    gate = Gate(invariants=["gates.good", "gates.detailed", "gates.sure"], grounding="gates.good")
    assert statuses(check_now(gate, {}, side="post")) == [
        "invariant:gates.good pass",
        "invariant:gates.detailed fail no_source summary",
        "invariant:gates.sure skipped",
        "grounding:gates.good skipped",
    ]
    assert ASKED == ["gates.good", "gates.detailed"]


def test_a_gate_without_checks_passes() -> None:
    result = check_now(Gate(), None, side="pre")
    assert (result.verdict, result.checks) == ("pass", [])


# Errors are failures


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("gates.broken", "error raised:ValueError"),
        ("gates.odd", "error no_verdict"),
        ("gates.none", "error no_verdict"),
        ("gates.passed_is_text", "error no_verdict"),
    ],
)
def test_an_error_of_a_check_is_a_failure(check: str, told: str) -> None:
    result = check_now(Gate(invariants=[check]), "text", side="post", tier="interactive")
    assert statuses(result) == [f"invariant:{check} {told}"]
    assert (result.verdict, result.failure_type) == ("fail", "schema")


def test_an_error_of_a_policy_is_a_failure_without_its_text() -> None:
    result = check_now(Gate(policy="gates.broken"), {}, side="pre")
    assert statuses(result) == ["policy:gates.broken error policy_error"]
    assert result.failure_type == "unsafe"
    assert "secret" not in str(data_of(result))


@pytest.mark.parametrize(
    ("tier", "allowed", "verdict"),
    [
        ("interactive", "warn", "pass"),
        ("interactive", "fail", "fail"),
        ("batch", "warn", "fail"),
        ("regulated", "warn", "fail"),
        (None, "warn", "fail"),
    ],
)
def test_grounding_may_warn_in_the_interactive_tier(tier: str | None, allowed: str, verdict: str) -> None:
    gate = Gate(grounding="gates.broken", grounding_error=allowed)
    result = check_now(gate, {}, side="post", tier=tier)
    assert result.verdict == verdict
    assert result.checks[0].status == ("warn" if verdict == "pass" else "error")


def test_grounding_that_says_no_never_only_warns() -> None:
    gate = Gate(grounding="gates.bad", grounding_error="warn")
    assert check_now(gate, {}, side="post", tier="interactive").verdict == "fail"


def test_grounding_that_only_warned_gives_no_confidence() -> None:
    gate = Gate(grounding="gates.broken", grounding_error="warn", threshold=0.5)
    told = statuses(check_now(gate, {}, side="post", tier="interactive"))
    assert told == ["grounding:gates.broken warn raised:ValueError", "confidence fail no_confidence"]


# The threshold


@pytest.mark.parametrize(
    ("confidence", "told"),
    [
        (0.8, "pass"),
        (1, "pass"),
        (0.7999999, "fail low_confidence"),
        (0, "fail low_confidence"),
        (float("nan"), "fail no_confidence"),
        (float("inf"), "fail no_confidence"),
        (1.01, "fail no_confidence"),
        (-0.1, "fail no_confidence"),
        (True, "fail no_confidence"),
        ("0.9", "fail no_confidence"),
        (None, "fail no_confidence"),
    ],
)
def test_confidence(confidence: object, told: str) -> None:
    assert statuses(check_now(Gate(threshold=0.8), {"confidence": confidence}, side="post")) == [f"confidence {told}"]


def test_confidence_that_is_missing_fails_also_at_zero() -> None:
    assert check_now(Gate(threshold=0), {}, side="post").verdict == "fail"
    assert check_now(Gate(threshold=0), {"confidence": 0}, side="post").verdict == "pass"


@pytest.mark.parametrize(
    ("check", "verdict"), [("gates.sure", "pass"), ("gates.unsure", "fail"), ("gates.nan", "fail")]
)
def test_the_confidence_of_grounding_counts_before_that_of_the_subject(check: str, verdict: str) -> None:
    subject = {"confidence": 0.1 if verdict == "pass" else 1.0}
    assert check_now(Gate(grounding=check, threshold=0.8), subject, side="post").verdict == verdict


def test_a_verdict_about_no_number_can_be_recorded() -> None:
    result = check_now(Gate(threshold=0.8), {"confidence": float("nan")}, side="post")
    assert result.confidence is None
    assert event_of(hub_draft(EV_GATE_CHECKED, data_of(result))) == result


# One verdict


async def test_a_recorded_verdict_is_not_made_again() -> None:
    gate = Gate(name="validate", invariants=["gates.bad"])
    first = await run_gate(gate, {"n": 1})
    again = await run_gate(gate, {"n": 1}, recorded=[first])
    assert again is first
    assert ASKED == ["gates.bad"]
    assert (await run_gate(gate, {"n": 1.0}, recorded=[first])).verdict == "fail"


async def test_a_verdict_holds_for_its_gate_its_side_and_its_context() -> None:
    gate, plan = (Gate(name=name, invariants=["gates.bad"]) for name in ("validate", "plan"))
    first = await run_gate(gate, {"n": 1}, context={"documents": ["d1"]})
    for other in (
        run_gate(plan, {"n": 1}, context={"documents": ["d1"]}, recorded=[first]),
        run_gate(gate, {"n": 1}, context={"documents": ["d1"]}, side="pre", recorded=[first]),
        run_gate(gate, {"n": 1}, context={"documents": ["d2"]}, recorded=[first]),
        run_gate(gate, {"n": 2}, context={"documents": ["d1"]}, recorded=[first]),
    ):
        assert await other is not first
    assert len(ASKED) == 5


def test_a_budget_that_changes_makes_no_new_verdict_until_it_is_enough() -> None:
    gate = Gate(headroom=100)
    digests = [gate.digest({}, {"headroom": left}) for left in (10, 50, 100, 5000)]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert Gate().digest({}, {"headroom": 1}) == Gate().digest({})


def test_the_first_of_two_recorded_verdicts_counts() -> None:
    gate = Gate(name="g")
    digest = gate.digest("x")
    failed, passed = (ValidationResult("g", "post", verdict, subject_digest=digest) for verdict in ("fail", "pass"))
    assert recorded_verdict(gate, digest, [failed, passed], side="post") is failed


async def test_what_a_person_has_edited_passes_the_gate_again() -> None:
    refused = await run_gate(FULL, {"summary": 7}, context=CONTEXT)
    edited = await run_gate(FULL, {"summary": "seven"}, context=CONTEXT, recorded=[refused])
    still_wrong = await run_gate(FULL, {"summary": None}, context=CONTEXT, recorded=[refused, edited])
    assert [each.verdict for each in (refused, edited, still_wrong)] == ["fail", "pass", "fail"]
    assert len({each.subject_digest for each in (refused, edited, still_wrong)}) == 3


def test_a_verdict_names_what_it_was_made_with() -> None:
    versions = check_now(FULL, SUBJECT, side="post", context=CONTEXT).validator_versions
    assert versions["policy"] == "gates.only_bob@3"
    assert versions["gates.good"] == versions["gates.sure"] == "1"
    assert len(versions["schema"]) == 12


def test_checks_get_copies() -> None:
    @register_check("gates.greedy")
    def greedy(subject: dict[str, object], context: dict[str, object]) -> bool:
        subject.clear()
        context.clear()
        return True

    subject, context = {"a": 1}, {"b": 2}
    check_now(Gate(invariants=["gates.greedy"]), subject, side="post", context=context)
    assert (subject, context) == ({"a": 1}, {"b": 2})


# Checks that wait


@register_check("gates.slow")
async def slow(subject: dict[str, float], context: dict[str, object]) -> bool:
    clock = CLOCKS[-1]
    await clock.wait(asyncio.Event(), add_seconds(clock.now(), subject["seconds"]))
    return True


CLOCKS: list[ManualClock] = []


@pytest.mark.parametrize(("takes", "told"), [(4.0, "pass"), (6.0, "error timeout"), (1e9, "error timeout")])
async def test_a_check_that_takes_too_long_fails(takes: float, told: str) -> None:
    clock = ManualClock()
    CLOCKS.append(clock)
    running = asyncio.create_task(run_gate(Gate(invariants=["gates.slow"], seconds=5), {"seconds": takes}, clock=clock))
    while not running.done():
        await clock.advance(1.0)
    result = running.result()
    assert statuses(result) == [f"invariant:gates.slow {told}"]
    assert 4000 <= result.checks[0].ms <= 6000


async def test_an_async_check_that_raises_fails() -> None:
    @register_check("gates.async_broken")
    async def broken(subject: object, context: dict[str, object]) -> bool:
        raise RuntimeError("the secret")

    result = await run_gate(Gate(invariants=["gates.async_broken", "gates.good"]), {})
    assert statuses(result) == [
        "invariant:gates.async_broken error raised:RuntimeError",
        "invariant:gates.good skipped",
    ]


def test_an_async_check_makes_a_gate_wait() -> None:
    assert Gate(invariants=["gates.slow"]).waits
    assert not FULL.waits


# Schemas, contracts, data


class Answer(BaseModel):
    summary: str
    pages: list[int]


class Plan(TypedDict):
    items: list[str]


def test_a_schema_may_be_a_type() -> None:
    model, plan = Gate(schema=Answer), Gate(schema=Plan)
    assert check_now(model, {"summary": "s", "pages": [1]}, side="post").passed
    assert statuses(check_now(model, {"summary": "s", "pages": ["x"]}, side="post")) == ["schema fail schema pages[0]"]
    assert check_now(plan, {"items": []}, side="post").passed
    assert not check_now(plan, {}, side="post").passed


def test_a_gate_is_data() -> None:
    for gate in (FULL, Gate(), Gate(schema=Answer, failure="plan", grounding_error="warn", seconds=3)):
        assert Gate.loads(gate.to_dict()) == gate
    assert Gate(invariants=[find_check("gates.good").function]).to_dict() == {"invariants": ["gates.good"]}


def test_what_a_stage_obliges_covers_what_the_next_one_wants() -> None:
    plan, work = Gate(schema=Plan), Gate(schema=SUMMARY, required=["artifacts", "items"])
    assert obliged_fields(work) == {"summary", "artifacts", "items"}
    assert uncovered_artifacts(plan, work) == ("artifacts", "summary")
    assert uncovered_artifacts(work, plan) == ()
    both = Gate(schema={"allOf": [SUMMARY, {"$ref": "#/$defs/more"}], "$defs": {"more": {"required": ["cost"]}}})
    assert obliged_fields(both) == {"summary", "cost"}
    assert obliged_fields(Gate(schema={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})) == set()


def test_a_field_that_is_none_is_missing() -> None:
    gate = Gate(required=["summary", "pages"])
    assert missing_required(gate, {"summary": None, "pages": 0}) == ("summary",)
    assert missing_required(gate, "text") == ("summary", "pages")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Gate(name=""), "the name of a gate is ''"),
        (lambda: Gate(schema={"type": "thing"}), "schema of the gate 'gate' is no JSON schema"),
        (lambda: Gate(schema=7), "schema of the gate 'gate' is 7"),
        (lambda: Gate(schema={"$ref": "https://example.com/s"}), "nothing is fetched"),
        (lambda: Gate(required="summary"), "required of the gate 'gate' is 'summary'; give a list of names"),
        (
            lambda: Gate(policy="gates.only_bop"),
            "no policy is called 'gates.only_bop'; register it",
        ),
        (
            lambda: Gate(invariants=["gates.godo"]),
            "no check is called 'gates.godo'; register it",
        ),
        (lambda: Gate(invariants=[print]), "is no registered check; register it with register_check"),
        (lambda: Gate(threshold=1.5), "threshold of the gate 'gate' is 1.5; give a number from 0 to 1"),
        (lambda: Gate(threshold=float("nan")), "threshold of the gate 'gate' is nan; give a number from 0 to 1"),
        (lambda: Gate(threshold=True), "threshold of the gate 'gate' is True; give a number from 0 to 1"),
        (lambda: Gate(headroom=-1), "headroom of the gate 'gate' is -1; give millionths of a dollar"),
        (lambda: Gate(seconds=0), "seconds of the gate 'gate' is 0; give a number above 0"),
        (lambda: Gate(failure="fire"), "failure of the gate 'gate' is 'fire'; give one of: schema, plan"),
        (lambda: Gate(grounding_error="pass"), "grounding_error of the gate 'gate' is 'pass'; give 'fail' or 'warn'"),
        (lambda: Gate.loads({"threshold": "high"}), "no gate can be made of"),
        (lambda: Gate.loads("{"), "no gate can be made of"),
        (lambda: register_check("")(print), "the name of a check is ''"),
        (lambda: register_check("gates.one")(lambda subject: True), "must take two arguments: (subject, context)"),
        (lambda: register_check("gates.good")(lambda subject, context: True), "is registered already"),
    ],
)
def test_a_mistake_is_explained(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        make()
    assert complaint in str(refused.value)


def test_a_subject_is_plain_data() -> None:
    with pytest.raises(UsageError, match="the subject or context of the gate 'gate' is no plain JSON"):
        check_now(Gate(), object(), side="post")
