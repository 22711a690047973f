"""A gate in any channel: on what people and code say, on what agents say, or on the arguments of a tool.

Rule 1: what does not pass is not recorded. It is refused, or replaced by the safe text; a tool is not called.
Rule 2: a guard waits for nothing, so its gate has no async checks. Those are for a hook: see `runtime.gate_runs`.
Rule 3: the checks say the same of the same subject each time: they are asked before something is recorded, and for a
        tool once more for the record.
Rule 4: what was replaced, or not called, is recorded as `antiphon.flow.gate`. What passes leaves no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from antiphon.core.codec import Malformed, parse_json
from antiphon.core.envelope import OPERATORS, Envelope, Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of, original_digest
from antiphon.core.events import EV_PACKET, EV_TEXT, GATE_FIELD, ORIGINAL_FIELD, SPEECH_TYPES
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.core.guard import ALLOW, Change, Deny, Permission, Verdict
from antiphon.core.protection_events import EV_GATE_CHECKED, GateCheck, ValidationResult
from antiphon.core.state import RelatedFact, State
from antiphon.core.text import describe
from antiphon.guards.gates import Gate, GateSide, check_now

INPUT, OUTPUT, TOOL_PREFIX = "input", "output", "tool:"
BLOCKED_REASON = "blocked"


class GateGuard(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Checks what is said, or the arguments of a tool, with a gate.

    The subject is the text, of a packet its body; parsed as JSON, if the gate has a schema or required fields. Of a
    tool it is the object of its arguments.
    """

    name: ClassVar[str] = "gate"
    hears: ClassVar[frozenset[str]] = SPEECH_TYPES | {EV_CALL_STARTED}
    gate: Gate
    applies_to: str = OUTPUT
    """`input` for what people and code say, `output` for what agents say, `tool:<name>` for the arguments of a tool."""
    safe_text: str = ""
    """What is said instead of a text that does not pass; "" if it is refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.gate, Gate):
            raise RulesInvalid(f"gate of the guard 'gate' is {describe(self.gate)}; give a Gate")
        tool = isinstance(self.applies_to, str) and self.applies_to.startswith(TOOL_PREFIX)
        if self.applies_to not in (INPUT, OUTPUT) and not (tool and self.applies_to != TOOL_PREFIX):
            wanted = f"give {INPUT!r}, {OUTPUT!r} or '{TOOL_PREFIX}<name>'"
            raise RulesInvalid(f"applies_to of the guard 'gate' is {describe(self.applies_to)}; {wanted}")
        if tool and self.safe_text:
            raise RulesInvalid("safe_text of the guard 'gate' is for texts; leave it out for a tool")
        if self.gate.waits:
            raise RulesInvalid(
                f"the gate {self.gate.name!r} has an async check, and a guard waits for nothing; "
                "use run_gate in a BEFORE_BROADCAST hook, or give a check that is not async"
            )

    @property
    def scope(self) -> str:
        """What tells two of them in one channel apart."""
        return f"{self.applies_to}:{self.gate.name}"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if not self._concerns_speech(state, draft):
            return ALLOW
        result = self._result_of(_spoken(draft), state, draft.sender_id)
        if result.passed:
            return ALLOW
        if not self.safe_text:
            return Deny("blocked", _denial_text(result))
        return Change(_with_safe_text(draft, self.safe_text, result))

    def permit(self, memory: object, state: State, draft: Envelope) -> Permission:
        result = self._result_of_call(state, draft)
        return ALLOW if result is None or result.passed else Deny("blocked", _denial_text(result))

    def notice(self, memory: object, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if envelope.event_type == EV_CALL_STARTED:
            result = self._result_of_call(state, envelope)
            return () if result is None or result.passed else (_fact(data_of(result)),)
        replaced = envelope.event_data.get(GATE_FIELD)
        if not isinstance(replaced, dict) or replaced.get("gate") != self.gate.name:
            return ()
        return (_fact(self._recorded(replaced)),) if self._concerns_speech(state, envelope) else ()

    def _recorded(self, replaced: Json) -> Json:
        """The verdict about a text that was replaced, as the field of the text tells it."""
        status: Literal["error", "fail"] = "error" if replaced.get("status") == "error" else "fail"
        check = GateCheck(str(replaced.get("check", "")), status, str(replaced.get("code", "")))
        side, failure, gate = self._side, str(replaced.get("failure", "")), self.gate
        return data_of(ValidationResult(gate.name, side, "fail", [check], failure, validator_versions=gate.versions))

    @property
    def _side(self) -> GateSide:
        return "post" if self.applies_to == OUTPUT else "pre"

    def _concerns_speech(self, state: State, draft: Envelope) -> bool:
        if draft.event_type not in (EV_TEXT, EV_PACKET) or self.applies_to not in (INPUT, OUTPUT):
            return False
        kind = state.participants.get(draft.sender_id)
        return kind is not None and (kind == "agent") == (self.applies_to == OUTPUT)

    def _result_of_call(self, state: State, draft: Envelope) -> ValidationResult | None:
        """The verdict about a call of the tool; None for anything else."""
        args, turn = draft.event_data.get("args"), draft.event_data.get("turn")
        named = f"{TOOL_PREFIX}{draft.event_data.get('name')}"
        if draft.event_type != EV_CALL_STARTED or named != self.applies_to or not isinstance(args, dict):
            return None
        speaker = str(turn).partition("/")[2]
        return check_now(
            self.gate, args, side=self._side, context=_context_of(state, str(draft.event_data.get("agent") or speaker))
        )

    def _result_of(self, text: str, state: State, sender: str) -> ValidationResult:
        subject: object = text
        if self.gate.schema is not None or self.gate.required:
            try:
                subject = parse_json(text)
            except Malformed:
                subject = text  # which then does not fit, unless the schema is that of a text
        return check_now(self.gate, subject, side=self._side, context=_context_of(state, sender))


def _context_of(state: State, agent: str) -> Json:
    """What checks are given beside the subject."""
    return {"agent": agent, "channel_id": state.channel_id}


def _spoken(draft: Envelope) -> str:
    text = draft.event_data.get("text" if draft.event_type == EV_TEXT else "body")
    return text if isinstance(text, str) else ""


def _denial_text(result: ValidationResult) -> str:
    """Which check did not pass, and where."""
    check = result.failed_check
    assert check is not None, "a verdict that is no pass names its check"
    why = ", ".join(each for each in (check.code, check.path) if each)
    return f"it does not pass the gate {result.gate!r}: {check.name}" + (f" ({why})" if why else "")


def _with_safe_text(draft: Envelope, text: str, result: ValidationResult) -> Envelope:
    """The draft with the safe text. Context that the unsafe text came with is left out, and so is a handoff."""
    check = result.failed_check
    assert check is not None, "a verdict that is no pass names its check"
    # All who hear the text see this: no digest of what was said, which may be guessed if it is short.
    told: Json = {"gate": result.gate, "check": check.name, "code": check.code, "failure": result.failure_type}
    if check.status == "error":
        told["status"] = check.status
    marked: Json = {GATE_FIELD: told}
    if draft.envelope_id:  # sent again, it is recognised by what was sent
        marked[ORIGINAL_FIELD] = original_digest(draft.event_data)
    if draft.event_type == EV_TEXT:
        kept = {key: value for key, value in draft.event_data.items() if key != "set"}
        return replace(draft, event_data={**kept, "text": text, **marked})
    cleared: Json = {"body": text, "routing": {}, "context_updates": {"set": {}, "delete": []}}
    return replace(draft, event_data={**draft.event_data, **cleared, **marked})


def _fact(data: Json) -> RelatedFact:
    return RelatedFact(EV_GATE_CHECKED, data, (OPERATORS,))
