"""Each event of ours has a sentence, also for each value of the field that decides what happened."""

from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from antiphon.core.conversation_events import CONVERSATION_STRUCTS
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_TASK_PROGRESS, EVENT_STRUCTS
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_STARTED,
    EXECUTION_STRUCTS,
)
from antiphon.core.protection_events import (
    EV_BREAKER_CHANGED,
    EV_BUDGET_CHANGED,
    EV_COST_EXCEEDED,
    EV_GATE_CHECKED,
    EV_LIMIT_REACHED,
    EV_LOOP_DETECTED,
    EV_POLICY_DENIED,
    EV_POLICY_FAILED,
    PROTECTION_STRUCTS,
)
from antiphon.runtime.envelope_text import describe_envelope
from antiphon.runtime.event_wording import VARIANT_FIELDS, VARIANTS, amount_text, generic_sentence

SHAPES = {**PROTECTION_STRUCTS, **EXECUTION_STRUCTS, **CONVERSATION_STRUCTS, **EVENT_STRUCTS}


def by_hub(event_type: str, **data: object) -> Envelope:
    return Envelope(sender_id="hub", event_type=event_type, event_data=data)


def minimal_data(shape: type[msgspec.Struct], **chosen: object) -> dict[str, object]:
    """The required fields, with a value of their type."""
    hints = get_type_hints(shape)
    required = {field.name: hints[field.name] for field in msgspec.structs.fields(shape) if field.required}
    return {**{name: sample_of(hint) for name, hint in required.items()}, **chosen}


def sample_of(hint: object) -> object:
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    kind = get_origin(hint) or hint
    samples: dict[object, object] = {int: 7, float: 7.0, str: "some", list: [], dict: {}}
    return samples.get(kind)


@pytest.mark.parametrize("event_type", sorted(SHAPES))
def test_each_event_has_a_sentence(event_type: str) -> None:
    envelope = by_hub(event_type, **minimal_data(SHAPES[event_type]))
    said = describe_envelope(envelope)
    assert said
    assert said != generic_sentence(event_type, envelope.event_data)
    assert not said.startswith(event_type)
    assert "?" not in said.replace("{?", "") or event_type.startswith("ag2.task.")
    assert "None" not in said.replace("NONE", "")


@pytest.mark.parametrize(
    ("event_type", "value"),
    [
        (event_type, value)
        for event_type, shape in sorted(SHAPES.items())
        if shape in VARIANT_FIELDS
        for value in get_args(get_type_hints(shape)[VARIANT_FIELDS[shape]]) or VARIANTS[shape]
    ],
)
def test_each_variant_of_an_event_has_a_sentence(event_type: str, value: str) -> None:
    shape = SHAPES[event_type]
    envelope = by_hub(event_type, **minimal_data(shape, **{VARIANT_FIELDS[shape]: value}))
    said = describe_envelope(envelope)
    assert said
    assert said != generic_sentence(event_type, envelope.event_data)


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (
            by_hub(
                EV_LOOP_DETECTED,
                detector="tool",
                key="k",
                action="correct",
                agent="bob",
                tool="search",
                count=3,
                window=5,
                threshold=3,
            ),
            "notices a loop of bob: search 3 times among the last 5 (the limit is 3), and says so to the agent",
        ),
        (
            by_hub(EV_LOOP_DETECTED, detector="cycle", key="k", action="terminate", period=2),
            "stops a loop: the same 2 calls again and again",
        ),
        (
            by_hub(
                EV_BREAKER_CHANGED,
                scope="tool:search",
                source="closed",
                target="open",
                epoch=1,
                reason="schema",
                counts={"schema": 2},
                retry_at="2026-01-01T00:00:30.000000Z",
            ),
            "opens the breaker tool:search: schema (schema: 2) until 2026-01-01T00:00:30.000000Z",
        ),
        (
            by_hub(
                EV_BUDGET_CHANGED,
                op="deny",
                scope="run",
                unit="micro",
                need=250_000,
                spent=2_000_000,
                reserved=300_000,
                cap=2_500_000,
            ),
            "denies $0.25: the budget of run is $2.50, $2.00 spent and $0.30 reserved",
        ),
        (
            by_hub(EV_BUDGET_CHANGED, op="deny", scope="run", unit="model_calls", need=1, spent=40, cap=40),
            "denies 1 model call: the budget of run is 40 model calls, 40 model calls spent and 0 model calls reserved",
        ),
        (
            by_hub(
                EV_COST_EXCEEDED,
                scope="run",
                window_s=3600,
                unit="micro",
                spent=9,
                reserved=0,
                ceiling=8,
                action="deny",
            ),
            "notices that run spends too fast: $0.000009 and $0.00 reserved in 3600 seconds, more than $0.000008; deny",
        ),
        (
            by_hub(EV_LIMIT_REACHED, kind="hop", limit=1, count=1, chain=["ann", "bob"], rejected_target="carol"),
            "refuses a handoff to carol: 1 in a row is the limit (ann → bob)",
        ),
        (
            by_hub(
                EV_GATE_CHECKED,
                gate="brief",
                side="post",
                verdict="fail",
                tau=0.8,
                checks=[{"name": "schema", "status": "pass"}, {"name": "cites", "status": "fail", "code": "none"}],
            ),
            "gate brief (post) fails: schema pass, cites fail (none)",
        ),
        (
            by_hub(EV_GATE_CHECKED, gate="brief", side="post", verdict="pass", confidence=0.9, tau=0.8),
            "gate brief (post) passes: no checks; confidence 0.9, 0.8 is wanted",
        ),
        (
            by_hub(EV_POLICY_DENIED, agent="bob", tool="pay", rule="small"),
            "denies bob the call of pay by policy (small)",
        ),
        (
            by_hub(EV_POLICY_FAILED, agent="bob", tool="pay", error="down"),
            "could not ask the policy, and denies bob the call of pay: down",
        ),
        (
            by_hub(EV_CALL_FAILED, turn="7/bob", index=2, error="no more", denied="loop", guard="loop", final=True),
            "2: is denied by the guard loop (loop), which ends the turn: no more",
        ),
        (
            by_hub(EV_CALL_STARTED, turn="7/bob", index=2, name="pay", digest="d", args={"cents": 5}, approved="dana"),
            "2: calls pay(cents=5) [allowed by dana]",
        ),
        (
            by_hub(
                EV_APPROVAL_REQUESTED,
                turn="7/bob",
                index=2,
                name="pay",
                args={"cents": 5},
                digest="d",
                why="it is risky",
                approvers=["finance"],
            ),
            "2: asks a person about pay(cents=5): it is risky; finance may decide",
        ),
        (
            by_hub("antiphon.saga.registered", step=3, comp_name="unrefund"),
            'saga registered: step=3, comp_name="unrefund"',
        ),
        (by_hub(EV_TASK_PROGRESS, task="t1", agent="bob", tool="pay"), "hears of the task of bob in t1: calls pay"),
    ],
)
def test_the_sentences_of_protections(envelope: Envelope, words: str) -> None:
    assert describe_envelope(envelope) == words


def test_amounts_have_units() -> None:
    assert [amount_text(1_500_000, "micro"), amount_text(1200, "tokens")] == ["$1.50", "1,200 tokens"]
