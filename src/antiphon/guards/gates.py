"""Gates: checks in a fixed order on what goes into a stage, or has come out of it, and the verdict they give.

Rule 1: the order is schema, policy, invariants, grounding. The first failure ends it: the checks after it are skipped.
Rule 2: a check that raises, or takes too long, fails. Only grounding in the interactive tier may be let off with a
        warning, and only if the gate says so.
Rule 3: a confidence that is missing, or is no number, is below every threshold.
Rule 4: the digest of a subject, with what it was checked against, has one verdict. Where it is recorded already, it is
        read, and no check is asked again.
Rule 5: a verdict holds names, words and digests, and nothing of the subject.

Nothing here waits: `gate_steps` says which check is next and is sent its answer. `runtime.gate_runs` waits for those
that are async.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache, partial
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from antiphon.core.codec import (
    Malformed,
    as_type,
    check_json,
    decode_plain_json,
    digest_of,
    encode_sorted,
    parse_json,
    plain_data,
)
from antiphon.core.conditions import is_number
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.protection_events import GateCheck, ValidationResult
from antiphon.core.schema_validation import SchemaCheck, SchemaMisfit, build_schema_check
from antiphon.core.text import describe, describe_error
from antiphon.guards.gate_checks import (
    CheckAnswer,
    CheckCall,
    CheckFault,
    GateFunction,
    RegisteredCheck,
    fault_of,
    find_check,
    name_of_check,
    read_answer,
)
from antiphon.guards.gate_checks import CheckResult as CheckResult  # those who define gates import it from here
from antiphon.guards.gate_checks import register_check as register_check
from antiphon.guards.named_guards import Tier
from antiphon.guards.policies import PolicyRequest, ask_policy, find_policy

GateSide = Literal["pre", "post"]
GateFailure = Literal["schema", "plan", "no_progress", "unsafe"]
FAILURES_OF_GATES: tuple[GateFailure, ...] = get_args(GateFailure)
MAX_GATE_NAME_CHARS = 64
VERSION_CHARS = 12
GROUNDING, CONFIDENCE, POLICY = "grounding", "confidence", "policy"
LOW_CONFIDENCE = "low_confidence"
MAX_CODE_CHARS, MAX_PATH_CHARS = 64, 200
MAX_BUILT_SCHEMAS = 256
SCHEMA_ADVICE = "give a JSON schema as a dict, a pydantic model, a msgspec.Struct, a dataclass or a TypedDict"


class Gate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Checks that a subject must pass. All of them are data, so that a gate can be stored and named in a flow.

    `schema` may be given as a pydantic model or a type, of which the JSON schema is kept. `invariants` and `grounding`
    may be given as registered functions, of which the name is kept.
    """

    name: str = "gate"
    schema: object = None
    """A JSON schema; None if there is none."""
    required: tuple[str, ...] = ()
    """Fields that the subject must have, with a value other than None."""
    artifacts: tuple[str, ...] = ()
    """Artefacts of earlier stages that the context must name."""
    policy: str = ""
    """The name of a policy (`register_policy`) that must allow the subject."""
    headroom: int = 0
    """How many millionths of a dollar must be left."""
    invariants: tuple[object, ...] = ()
    """The names of checks (`register_check`), in their order."""
    grounding: object = None
    """The name of the check that compares the subject with its sources; None if there is none."""
    grounding_error: Literal["fail", "warn"] = "fail"
    """What an error of grounding is in the interactive tier. In the others it is always a failure."""
    threshold: float | None = None
    """The least confidence, from 0 to 1: that of the grounding check, else the subject's own field `confidence`."""
    failure: GateFailure = "schema"
    """What the failure decision table calls a subject that does not pass; one that the policy refuses is `unsafe`."""
    seconds: float = 10.0
    """How long each check may take."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_GATE_NAME_CHARS:
            raise RulesInvalid(
                f"the name of a gate is {describe(self.name)}; give a text of 1 to {MAX_GATE_NAME_CHARS}"
            )
        for what, names in (
            ("required", self.required),
            ("artifacts", self.artifacts),
            ("invariants", self.invariants),
        ):
            if not isinstance(names, list | tuple):
                raise RulesInvalid(f"{what} of the gate {self.name!r} is {describe(names)}; give a list of names")
        plain = {
            "schema": None if self.schema is None else _schema_of(self.schema, self.name),
            "required": tuple(self.required),
            "artifacts": tuple(self.artifacts),
            "invariants": tuple(name_of_check(each) for each in self.invariants),
            "grounding": None if self.grounding is None else name_of_check(self.grounding),
        }
        for field, value in plain.items():
            msgspec.structs.force_setattr(self, field, value)
        if self.policy:
            find_policy(self.policy)
        self._check_numbers()

    def _check_numbers(self) -> None:
        what = f"of the gate {self.name!r}"
        if self.threshold is not None and not (is_number(self.threshold) and 0 <= self.threshold <= 1):
            raise RulesInvalid(f"threshold {what} is {describe(self.threshold)}; give a number from 0 to 1")
        if type(self.headroom) is not int or self.headroom < 0:
            raise RulesInvalid(f"headroom {what} is {describe(self.headroom)}; give millionths of a dollar, 0 or more")
        if self.failure not in FAILURES_OF_GATES:
            known = ", ".join(FAILURES_OF_GATES)
            raise RulesInvalid(f"failure {what} is {describe(self.failure)}; give one of: {known}")
        if self.grounding_error not in ("fail", "warn"):
            raise RulesInvalid(f"grounding_error {what} is {describe(self.grounding_error)}; give 'fail' or 'warn'")
        if not is_number(self.seconds) or not 0 < self.seconds < math.inf:
            raise RulesInvalid(f"seconds {what} is {describe(self.seconds)}; give a number above 0")

    def to_dict(self) -> Json:
        """The gate as plain data."""
        return plain_data(self)

    @staticmethod
    def loads(data: Json | str | bytes) -> Gate:
        """The gate that was written with `to_dict`, from plain data or from JSON."""
        try:
            return as_type(parse_json(data) if isinstance(data, str | bytes) else data, Gate)
        except Malformed as error:
            raise RulesInvalid(f"no gate can be made of {describe(data)}: {error}") from error

    @property
    def versions(self) -> dict[str, str]:
        """What the gate is made of, as it is recorded with its verdicts."""
        found = {check.name: check.version for check in self._named_checks()}
        if self.schema is not None:
            found["schema"] = digest_of(self.schema)[:VERSION_CHARS]
        if self.policy:
            found[POLICY] = f"{self.policy}@{getattr(find_policy(self.policy), 'version', 1)}"
        return found

    @property
    def waits(self) -> bool:
        """Whether one of its checks is async."""
        return any(check.is_async for check in self._named_checks())

    def _named_checks(self) -> list[RegisteredCheck]:
        names = self.invariants if self.grounding is None else (*self.invariants, self.grounding)
        return [find_check(name) for name in names]

    def digest(self, subject: object, context: Json | None = None) -> str:
        """What a verdict is known by: the subject, and what it is checked against.

        Of what is left of the budget only counts whether it is enough: it changes all the time.
        """
        seen = {key: value for key, value in (context or {}).items() if key != "headroom"}
        if self.headroom:
            seen["headroom"] = _has_headroom(self, context or {})
        try:
            return digest_of({"subject": subject, "context": seen} if seen else {"subject": subject})
        except TypeError as error:
            raise UsageError(f"the subject or context of the gate {self.name!r} is no plain JSON: {error}") from error


class TimedAnswer(NamedTuple):
    """The answer of a check, and how many milliseconds it took."""

    answer: CheckAnswer
    ms: int = 0


class _Step(NamedTuple):
    """A check with what its failure is called."""

    name: str
    function: GateFunction
    failure: str


CheckSteps = Generator[CheckCall, TimedAnswer, ValidationResult]


def recorded_verdict(
    gate: Gate, digest: str, recorded: Iterable[ValidationResult], *, side: GateSide
) -> ValidationResult | None:
    """The verdict that is recorded already for this digest; the first one counts."""
    wanted = gate.name, side, digest
    return next((each for each in recorded if (each.gate, each.side, each.subject_digest) == wanted), None)


def gate_steps(
    gate: Gate, subject: object, *, side: GateSide, context: Json | None = None, tier: Tier | None = None
) -> CheckSteps:
    """The checks of a gate, one after the other. Send each one's answer; the verdict is what the generator returns."""
    context = context or {}
    digest = gate.digest(subject, context)
    checks: list[GateCheck] = []
    failure, confidence = "", _own_confidence(subject)
    for step in _steps_of(gate):
        if failure:
            checks.append(GateCheck(step.name, "skipped"))
            continue
        answer, ms = yield CheckCall(step.name, step.function, subject, context, gate.seconds)
        grounding = step.name.startswith(GROUNDING)
        if grounding and isinstance(answer, CheckResult) and answer.confidence is not None:
            confidence = answer.confidence
        lenient = grounding and gate.grounding_error == "warn" and tier == "interactive"
        check = _check_of(step.name, answer, ms, lenient=lenient)
        checks.append(check)
        failure = step.failure if check.status in ("fail", "error") else ""
    sure = None if gate.threshold is None else _as_confidence(confidence)
    if gate.threshold is not None:
        checks.append(_confidence_check(sure, gate.threshold, skipped=bool(failure)))
        failure = gate.failure if checks[-1].status == "fail" else failure
    verdict: Literal["pass", "fail"] = "fail" if failure else "pass"
    return ValidationResult(gate.name, side, verdict, checks, failure, sure, gate.threshold, digest, gate.versions)


def check_now(
    gate: Gate, subject: object, *, side: GateSide, context: Json | None = None, tier: Tier | None = None
) -> ValidationResult:
    """The verdict of a gate without async checks."""
    steps = gate_steps(gate, subject, side=side, context=context, tier=tier)
    try:
        call = next(steps)
        while True:
            call = steps.send(TimedAnswer(_answer_now(call)))
    except StopIteration as end:
        result: ValidationResult = end.value
        return result


def _answer_now(call: CheckCall) -> CheckAnswer:
    try:
        return read_answer(call.begin())
    except Exception as error:  # a check is code of a user
        return fault_of(error)


def _check_of(name: str, answer: CheckAnswer, ms: int, *, lenient: bool) -> GateCheck:
    if isinstance(answer, CheckFault):
        return GateCheck(name, "warn" if lenient else "error", answer.code[:MAX_CODE_CHARS], ms=ms)
    if answer.passed:
        return GateCheck(name, "pass", ms=ms)
    code, path = str(answer.code)[:MAX_CODE_CHARS], str(answer.path)[:MAX_PATH_CHARS]
    return GateCheck(name, "fail", code, path, ms)


def _confidence_check(sure: float | None, threshold: float, *, skipped: bool) -> GateCheck:
    if skipped:
        return GateCheck(CONFIDENCE, "skipped")
    if sure is None:
        return GateCheck(CONFIDENCE, "fail", "no_confidence")
    return GateCheck(CONFIDENCE, "pass") if sure >= threshold else GateCheck(CONFIDENCE, "fail", LOW_CONFIDENCE)


def _own_confidence(subject: object) -> object:
    return subject.get(CONFIDENCE) if isinstance(subject, dict) else None


def _as_confidence(value: object) -> float | None:
    """A number from 0 to 1; None for anything else, NaN included."""
    return float(value) if is_number(value) and 0 <= value <= 1 else None


# The checks


def _steps_of(gate: Gate) -> Iterator[_Step]:
    """The checks in their order: schema, policy, invariants, grounding."""
    if gate.schema is not None:
        yield _Step("schema", partial(_fits_schema, gate), gate.failure)
    if gate.required:
        yield _Step("required", partial(_has_required, gate), gate.failure)
    if gate.artifacts:
        yield _Step("artifacts", partial(_has_artifacts, gate), gate.failure)
    if gate.policy:
        yield _Step(f"{POLICY}:{gate.policy}", partial(_is_allowed, gate), "unsafe")
    if gate.headroom:
        yield _Step("headroom", partial(_fits_budget, gate), "cost")
    for name in gate.invariants:
        yield _Step(f"invariant:{name}", find_check(name).function, gate.failure)
    if gate.grounding is not None:
        yield _Step(f"{GROUNDING}:{gate.grounding}", find_check(gate.grounding).function, gate.failure)


def _fits_schema(gate: Gate, subject: object, context: Json) -> CheckResult:
    fault = next(iter(_schema_check_of(gate)(subject)), None)
    return CheckResult(True) if fault is None else CheckResult(False, "schema", fault.place)


def _has_required(gate: Gate, subject: object, context: Json) -> CheckResult:
    missing = missing_required(gate, subject)
    return CheckResult(not missing, *(("missing", missing[0]) if missing else ()))


def missing_required(gate: Gate, subject: object) -> tuple[str, ...]:
    """The required fields that the subject does not have, or that are None."""
    fields = subject if isinstance(subject, dict) else {}
    return tuple(name for name in gate.required if fields.get(name) is None)


def _has_artifacts(gate: Gate, subject: object, context: Json) -> CheckResult:
    there = context.get("artifacts")
    names = there if isinstance(there, dict | list) else ()
    missing = next((name for name in gate.artifacts if name not in names), None)
    return CheckResult(True) if missing is None else CheckResult(False, "missing", missing)


def _is_allowed(gate: Gate, subject: object, context: Json) -> CheckAnswer:
    args = subject if isinstance(subject, dict) else {"value": subject}
    agent, channel_id, roles = context.get("agent"), context.get("channel_id"), context.get("roles")
    request = PolicyRequest(
        agent if isinstance(agent, str) else "",
        gate.name,
        args,
        tuple(map(str, roles)) if isinstance(roles, list) else (),
        channel_id if isinstance(channel_id, str) else "",
    )
    decision = ask_policy(gate.policy, request)
    if decision.error:
        return CheckFault("policy_error")
    code = "approval_required" if decision.effect == "ask" else decision.rule or "denied"
    return CheckResult(True) if decision.effect == "allow" else CheckResult(False, code)


def _fits_budget(gate: Gate, subject: object, context: Json) -> CheckResult:
    return CheckResult(_has_headroom(gate, context), "headroom")


def _has_headroom(gate: Gate, context: Json) -> bool:
    left = context.get("headroom")
    return type(left) is int and left >= gate.headroom


# Schemas


def _schema_of(given: object, owner: str) -> Json:
    """A JSON schema, given as one or as a type."""
    make = getattr(given, "model_json_schema", None)
    try:
        made = given if isinstance(given, dict) else make() if callable(make) else msgspec.json.schema(given)
        check_json(made)
        build_schema_check(made, f"the schema of the gate {owner!r}")
    except UsageError:
        raise
    except SchemaMisfit as error:
        raise RulesInvalid(f"schema of the gate {owner!r} is no JSON schema: {error.faults[0].what}") from error
    except Exception as error:  # a type is code of a user, and so is a schema
        raise RulesInvalid(
            f"schema of the gate {owner!r} is {describe(given)}: {describe_error(error)}; {SCHEMA_ADVICE}"
        ) from error
    return cast(Json, made)


def _schema_check_of(gate: Gate) -> SchemaCheck:
    return _built_schema_check(encode_sorted(gate.schema))


@lru_cache(maxsize=MAX_BUILT_SCHEMAS)
def _built_schema_check(schema: bytes) -> SchemaCheck:
    return build_schema_check(cast(Json, decode_plain_json(schema)), "the schema of a gate")
