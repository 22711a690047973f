"""Gates as guards of a channel: on what people say, on what agents say, and on the arguments of tools."""

from collections.abc import Callable

import pytest

from antiphon import EV_PACKET, Envelope, Hub, RulesInvalid
from antiphon.core.codec import to_json
from antiphon.core.envelope import OPERATORS
from antiphon.core.event_data import Deny
from antiphon.core.guard import Change
from antiphon.core.step import Admitted, step
from antiphon.guards.gate_checks import register_check
from antiphon.guards.gate_guard import GateGuard
from antiphon.guards.gates import Gate
from antiphon.guards.named_guards import guard_from_data, guard_to_data
from antiphon.testing import check_guard
from tests.guards.called_tools import ToolDesk
from tests.support.envelopes import at, said
from tests.support.pure_channel import PureChannel

SECRET = "4111 1111 1111 1111"
ANSWER = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}


@register_check("gated.no_card")
def no_card(subject: object, context: dict[str, object]) -> bool:
    return "4111" not in str(subject)


@register_check("gated.never")
def never(subject: object, context: dict[str, object]) -> bool:
    raise ValueError(SECRET)


@register_check("gated.waits")
async def waits(subject: object, context: dict[str, object]) -> bool:
    return True


def gate(applies_to: str = "output", safe_text: str = "", **fields: object) -> dict[str, object]:
    fields = fields or {"invariants": ["gated.no_card"]}
    return {"name": "gate", "gate": fields, "applies_to": applies_to, "safe_text": safe_text}


def scene(*guards: object) -> PureChannel:
    return PureChannel("conversation", "ann:human", "bob:agent", "crm:service", guards=list(guards))


def recorded(channel: PureChannel, who: str, text: str) -> list[Envelope]:
    """What is recorded when this is said; nothing if it is refused."""
    done = step(channel.fold, said(who, text), ruleset=channel.ruleset, at=at(9), new_id=channel.new_id)
    return list(done.batch) if isinstance(done, Admitted) else []


# What is said


@pytest.mark.parametrize(
    ("applies_to", "blocked"), [("output", {"bob"}), ("input", {"ann", "crm"})], ids=["output", "input"]
)
def test_it_concerns_one_side_only(applies_to: str, blocked: set[str]) -> None:
    refused = {who for who in ("ann", "bob", "crm") if not recorded(scene(gate(applies_to)), who, SECRET)}
    assert refused == blocked
    assert all(recorded(scene(gate(applies_to)), who, "hello") for who in ("ann", "bob", "crm"))


def test_a_refusal_names_the_check_and_not_the_text() -> None:
    channel = scene(gate())
    denial = step(channel.fold, said("bob", SECRET), ruleset=channel.ruleset, at=at(9), new_id=channel.new_id)
    assert denial == Deny("blocked", "it does not pass the gate 'gate': invariant:gated.no_card")


def test_the_safe_text_is_recorded_instead() -> None:
    spoken, verdict = recorded(scene(gate(safe_text="I cannot say that.")), "bob", f"card {SECRET}")[:2]
    assert spoken.event_data == {
        "text": "I cannot say that.",
        "gated": {"gate": "gate", "check": "invariant:gated.no_card", "code": "", "failure": "schema"},
    }
    assert (verdict.event_type, verdict.audience) == ("antiphon.flow.gate", [OPERATORS])
    assert verdict.event_data == {
        "gate": "gate",
        "side": "post",
        "verdict": "fail",
        "checks": [{"name": "invariant:gated.no_card", "status": "fail"}],
        "failure_type": "schema",
        "validator_versions": {"gated.no_card": "1"},
    }
    assert SECRET.encode() not in to_json([spoken, verdict])


def test_what_passes_is_recorded_as_it_is() -> None:
    spoken = recorded(scene(gate(safe_text="I cannot say that.")), "bob", "hello")
    assert [each.event_type for each in spoken] == ["ag2.msg.text"]
    assert spoken[0].event_data == {"text": "hello"}


def test_an_error_of_a_check_blocks() -> None:
    channel = scene(gate(invariants=["gated.never"]))
    denial = step(channel.fold, said("bob", "hello"), ruleset=channel.ruleset, at=at(9), new_id=channel.new_id)
    assert denial == Deny("blocked", "it does not pass the gate 'gate': invariant:gated.never (raised:ValueError)")


@pytest.mark.parametrize(
    ("text", "passes"),
    [('{"total": 5}', True), ('{"total": "5"}', False), ("{}", False), ("five", False), ('{"total": 5', False)],
)
def test_a_schema_reads_the_text_as_json(text: str, passes: bool) -> None:
    assert bool(recorded(scene(gate(schema=ANSWER)), "bob", text)) == passes


def test_of_a_packet_the_body_is_checked_and_nothing_else_of_it_is_kept() -> None:
    guard = GateGuard(gate=Gate(invariants=["gated.no_card"]), safe_text="No.")
    data = {
        "body": SECRET,
        "routing": {"target": "ann"},
        "context_updates": {"set": {"card": SECRET}, "delete": []},
        "agent": "bob",
    }
    draft = Envelope(sender_id="bob", event_type=EV_PACKET, event_data=data)
    changed = guard.judge(None, scene().state, draft)
    assert isinstance(changed, Change)
    kept = changed.draft.event_data
    assert (kept["body"], kept["routing"], kept["agent"]) == ("No.", {}, "bob")
    assert kept["context_updates"] == {"set": {}, "delete": []}
    assert SECRET.encode() not in to_json(kept)


def test_context_that_comes_with_a_text_is_left_out() -> None:
    guard = GateGuard(gate=Gate(invariants=["gated.no_card"]), safe_text="No.")
    draft = said("bob", SECRET)
    draft.event_data["set"] = {"approved": True}
    changed = guard.judge(None, scene().state, draft)
    assert isinstance(changed, Change)
    assert "set" not in changed.draft.event_data


def test_two_gates_are_asked_one_after_the_other() -> None:
    first = gate(safe_text="I cannot say that.", name="cards", invariants=["gated.no_card"])
    second = gate(name="short", schema={"type": "string", "maxLength": 20})
    channel = scene(first, second)
    assert recorded(channel, "bob", SECRET)[0].event_data["text"] == "I cannot say that."
    assert not recorded(channel, "bob", "x" * 21)


def test_two_gates_of_one_name_on_one_side_are_refused() -> None:
    with pytest.raises(RulesInvalid, match="guards names 'gate' twice"):
        scene(gate(), gate())
    scene(gate(), gate("input"))


async def test_no_participant_can_say_that_a_gate_has_replaced_something() -> None:
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register("ben", kind="human")
        channel = await ann.open(target="ben")
        forged = Envelope(
            sender_id="ann",
            channel_id=channel.channel_id,
            event_type="ag2.msg.text",
            event_data={"text": "hi", "gated": {"gate": "gate"}},
        )
        with pytest.raises(Exception, match=r"reserved_field.*'gated' is the hub's own"):
            await hub.post(forged)


async def test_a_message_that_was_replaced_may_be_sent_again() -> None:
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register("ben", kind="human")
        channel = await ann.open(target="ben", knobs={"guards": [gate("input", safe_text="[removed]")]})
        first = await channel.send(SECRET, message_id="m1")
        again = await channel.send(SECRET, message_id="m1")
        assert first == again
        assert first.event_data["text"] == "[removed]"


# Tools


@pytest.mark.parametrize(
    ("tool", "args", "told"),
    [
        ("refund", {"total": 5}, ["call.started"]),
        ("refund", {"total": "5"}, ["call.started", "flow.gate", "call.failed"]),
        ("refund", {}, ["call.started", "flow.gate", "call.failed"]),
        ("refund", None, ["call.started"]),
        ("look", {}, ["call.started"]),
    ],
)
def test_the_arguments_of_a_tool(tool: str, args: dict[str, object] | None, told: list[str]) -> None:
    assert ToolDesk(gate("tool:refund", schema=ANSWER)).call(tool, args) == told


def test_a_call_that_does_not_pass_is_denied_with_the_place() -> None:
    desk = ToolDesk(gate("tool:refund", schema=ANSWER))
    desk.call("refund", {"total": SECRET})
    verdict, failed = desk.channel.log[-2:]
    assert failed.event_data["denied"] == "blocked"
    assert failed.event_data["error"] == "it does not pass the gate 'gate': schema (schema, total)"
    assert (verdict.event_data["side"], verdict.event_data["verdict"]) == ("pre", "fail")
    assert len(str(verdict.event_data["subject_digest"])) == 64
    assert SECRET.encode() not in to_json([verdict, failed])


# The guard as data


def test_the_guard_is_data() -> None:
    guard = GateGuard(gate=Gate(schema=ANSWER, invariants=["gated.no_card"]), applies_to="input", safe_text="No.")
    assert guard_from_data(guard_to_data(guard)) == guard


def test_the_guard_is_a_guard() -> None:
    check_guard(GateGuard(gate=Gate(invariants=["gated.no_card"]), safe_text="No."))
    check_guard(GateGuard(gate=Gate(invariants=["gated.never"]), applies_to="input"))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: GateGuard(gate={}), "gate of the guard 'gate' is {}; give a Gate"),
        (lambda: GateGuard(gate=Gate(), applies_to="both"), "applies_to of the guard 'gate' is 'both'; give 'input'"),
        (lambda: GateGuard(gate=Gate(), applies_to="tool:"), "applies_to of the guard 'gate' is 'tool:'; give 'input'"),
        (lambda: GateGuard(gate=Gate(), applies_to="tool:x", safe_text="No."), "leave it out for a tool"),
        (lambda: GateGuard(gate=Gate(invariants=["gated.waits"])), "use run_gate in a BEFORE_BROADCAST hook"),
        (lambda: guard_from_data({"name": "gate"}), "the guard 'gate': "),
        (lambda: guard_from_data(gate(invariants=["gated.unknown"])), "no check is called 'gated.unknown'"),
    ],
)
def test_a_mistake_is_explained(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        make()
    assert complaint in str(refused.value)
