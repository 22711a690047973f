"""`antiphon log --audit` and `antiphon explain` on a channel in which guards and people have decided."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Budget,
    Channel,
    FromSpeaker,
    Handoff,
    Hub,
    LoopDetector,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.cli.conftest import Run
from tests.support.waiting import let_others_run, soon


@tool
async def search(q: str) -> str:
    """Search."""
    return "nothing"


@tool(approval=True)
async def refund(order: str) -> str:
    """Pay an order back."""
    return "paid back"


@tool
async def pass_on() -> Handoff:
    """Hand the turn on."""
    return Handoff("cleo", "not mine")


async def decided(path: Path) -> str:
    """A channel in which a handoff was refused, a loop was noticed, and a person has allowed a call."""
    async with Hub.open(f"sqlite:///{path}", clock=ManualClock()) as hub:
        ann, dana = await hub.register("ann", kind="human"), await hub.register("dana", kind="human")
        same = calls("search", {"q": "x"})
        script = [calls("pass_on"), same, same, same, calls("refund", {"order": "7"}), says("Done.")]
        await hub.register(Agent("bob", model=ScriptedModel(script), tools=[search, refund, pass_on]))
        await hub.register("cleo")
        graph = TransitionGraph("ann", [Transition(FromSpeaker("ann"), AgentTarget("bob"))], TerminateTarget("over"))
        guards = [LoopDetector(), Budget(model_calls=20), {"name": "hop_limit", "most": 0}]
        knobs = {"graph": graph.to_dict(), "guards": guards}
        channel = await ann.open(type="workflow", target=["bob", "cleo"], knobs=knobs)
        await channel.send("Refund order 7")
        await dana.decide(await waiting(hub, channel), "approve", reason="it is small")
        await soon(channel.closed())
        return channel.channel_id


async def waiting(hub: Hub, channel: Channel) -> str:
    async with asyncio.timeout(30):
        while not (found := await hub.approvals(channel.channel_id)):
            await let_others_run(1)
    return found[0].approval_id


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    path = tmp_path / "team.db"
    return asyncio.run(decided(path)), str(path)


TOLD = [
    ("antiphon.turn.assigned", "gives the turn to bob by rule 0: from ann"),
    ("antiphon.flow.limit", "refuses a handoff to cleo: 0 in a row is the limit (bob)"),
    ("antiphon.call.failed", "is denied by the guard loop (loop): search was not called again"),
    ("antiphon.flow.loop_detected", "notices a loop of bob: search 3 times among the last 5 (the limit is 3)"),
    ("antiphon.approval.requested", 'asks a person about refund(order="7"): refund needs approval'),
    ("antiphon.approval.decided", "dana decides"),
    ("antiphon.call.approved", "may leave, says dana"),
    ("ag2.channel.closed", "closes the channel: over"),
]


def test_the_audit_tells_each_decision_with_its_reason(run: Run, store: tuple[str, str]) -> None:
    lines = run("log", *store, "--audit").stdout.splitlines()
    places = [
        next(place for place, line in enumerate(lines) if f" {event_type} " in line and said in line)
        for event_type, said in TOLD
    ]
    assert places == sorted(places)
    assert "approve (it is small)" in lines[places[5]]
    start = lines[0].index("EVENT")
    assert {line[start - 2 : start] for line in lines[1:]} == {"  "}, "columns are stable"


def test_an_explanation_tells_them_as_causes(run: Run, store: tuple[str, str]) -> None:
    found = json.loads(run("explain", *store, "--json").stdout)
    kinds = [step["event_type"] for step in found["steps"]]
    assert kinds[:2] == ["ag2.msg.text", "antiphon.turn.assigned"]
    assert kinds[-2:] == ["ag2.packet", "ag2.channel.closed"]
    assert {"antiphon.flow.limit", "antiphon.call.failed", "antiphon.approval.decided"} <= set(kinds)
    assert found["because"] == ["The channel ended because no rule matched, so the default decided (end: over)."]


def test_what_a_guard_denied_is_explained_by_its_meaning(run: Run, store: tuple[str, str]) -> None:
    found = json.loads(run("explain", *store, "--json").stdout)
    denied = next(step for step in found["steps"] if step["event_type"] == "antiphon.call.failed")
    shown = run("explain", *store, "--at", str(denied["sequence"])).stdout
    assert f"Why #{denied['sequence']}\n  The guard loop denied the call: loop (the agent repeats itself).\n" in shown
