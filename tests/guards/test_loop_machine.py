"""The detector as a state machine: every state that can be reached, and what each event does in it.

The golden file is written anew by `python -m tests.guards.test_loop_machine`.
"""

from __future__ import annotations

import json
from pathlib import Path

from antiphon.core.canonical import call_key
from antiphon.core.envelope import Envelope
from antiphon.core.execution_events import (
    EV_APPROVAL_DECIDED,
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_STARTED,
)
from antiphon.core.guard import Allow, Ask
from antiphon.core.state import State
from antiphon.guards.loop_windows import LoopMemory
from antiphon.guards.loops import LoopDetector
from tests.support.envelopes import at

GOLDEN = Path(__file__).parent / "golden" / "loop_machine.json"
GUARDS = {
    "terminate": LoopDetector(window=3, threshold=3),
    "ask": LoopDetector(window=3, threshold=3, repeated_call="ask"),
}
EVENTS = ("same call", "model asked", "person speaks", "person decides")
KEY = call_key("search", {})
MOST_TRIPS = 2


def hub(event_type: str, **data: object) -> Envelope:
    return Envelope("", "here", "hub", None, event_type, data, created_at=at(1), sequence=7)


def call(index: int, **data: object) -> dict[str, object]:
    return {"turn": "9/bob", "index": index, "name": "search", "args": {}, "same": KEY, **data}


def after(guard: LoopDetector, memory: LoopMemory, event: str, index: int) -> tuple[str, LoopMemory]:
    """What becomes of an event, and the memory behind it."""
    if event == "model asked":
        return "-", guard.evolve(memory, hub(EV_CALL_STARTED, turn="9/bob", index=index, name="model"))
    if event == "person speaks":
        return "-", guard.evolve(memory, Envelope("", "here", "ann", None, "ag2.msg.text", {"text": "Go on, please."}))
    if event == "person decides":
        return "-", guard.evolve(memory, hub(EV_APPROVAL_DECIDED, approval_id="a", decision="approve", by="ann"))
    started = hub(EV_CALL_STARTED, **call(index))
    permission = guard.permit(memory, State(), started)
    if isinstance(permission, Allow):
        return "made", guard.evolve(memory, started)
    if isinstance(permission, Ask):
        outcome, caused = "asked", hub(EV_APPROVAL_REQUESTED, guard="loop", **call(index))
    else:
        memory = guard.evolve(memory, started)
        data = call(index, guard="loop", denied="loop", final=permission.final)
        outcome, caused = "final" if permission.final else "denied", hub(EV_CALL_FAILED, **data)
    memory = guard.evolve(memory, caused)
    facts = guard.notice(memory, State(), caused)
    for fact in facts:
        outcome += f", {fact.data['action']}"
        memory = guard.evolve(memory, hub(fact.event_type, **fact.data))
    return outcome, memory


def name_of(memory: LoopMemory) -> str:
    window = memory.window_of("bob")
    read = "unread" if window.unread else "read"
    return f"{len(window.calls[-3:])} calls, {min(window.trips, MOST_TRIPS)} trips, {read}"


def machine(guard: LoopDetector) -> dict[str, dict[str, str]]:
    """Each state that can be reached, and where each event leads from there."""
    begin = LoopMemory({"ann": "human", "bob": "agent"})
    found: dict[str, dict[str, str]] = {}
    left, index = [begin], 0
    while left:
        memory = left.pop(0)
        name = name_of(memory)
        if name in found:
            continue
        found[name] = {}
        for event in EVENTS:
            index += 1
            outcome, following = after(guard, memory, event, index)
            found[name][event] = f"{outcome} → {name_of(following)}"
            left.append(following)
    return found


def machines() -> dict[str, dict[str, dict[str, str]]]:
    return {name: machine(guard) for name, guard in GUARDS.items()}


def test_the_machine_is_the_golden_one() -> None:
    assert machines() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_what_the_golden_machine_says() -> None:
    told = machines()["terminate"]
    assert told["2 calls, 0 trips, read"]["same call"] == "denied, correct → 3 calls, 1 trips, unread"
    assert told["3 calls, 1 trips, unread"]["same call"] == "denied → 3 calls, 1 trips, unread"
    assert told["3 calls, 1 trips, unread"]["model asked"] == "- → 3 calls, 1 trips, read"
    assert told["3 calls, 1 trips, read"]["same call"] == "final, terminate → 3 calls, 2 trips, unread"
    assert told["3 calls, 1 trips, read"]["person speaks"] == "- → 0 calls, 0 trips, read"
    assert told["3 calls, 1 trips, read"]["person decides"] == "- → 0 calls, 1 trips, read"
    assert told["2 calls, 1 trips, read"]["same call"] == "final, terminate → 3 calls, 2 trips, unread"
    asked = machines()["ask"]
    assert asked["3 calls, 1 trips, read"]["same call"] == "asked, escalate → 3 calls, 2 trips, unread"
    assert asked["3 calls, 2 trips, unread"]["same call"] == "denied → 3 calls, 2 trips, unread"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(machines(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
