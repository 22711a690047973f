"""The states of an approval, and what each decision makes of it, as a golden table.

To write the golden file anew: python -m tests.guards.test_approval_states
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from antiphon import Approval, Denied, UnknownApproval
from antiphon.runtime.turn_control import cancel_owed_turns
from tests.support.approval_desk import ApprovalDesk, approval_desk
from tests.support.waiting import wait_until

GOLDEN = Path(__file__).parent / "golden" / "approval_states.json"
SECONDS = 60.0

Step = Callable[[ApprovalDesk, Approval], Awaitable[object]]


def decision(word: str, **options: Any) -> Step:
    async def decide(desk: ApprovalDesk, approval: Approval) -> object:
        decided = await desk.dana.decide(approval.approval_id, word, **options)
        await wait_until(lambda: live_state(desk, approval).status != "active" or not live_state(desk, approval).owed)
        return decided

    return decide


def live_state(desk: ApprovalDesk, approval: Approval) -> Any:
    live = desk.hub.core.channels.loaded(approval.channel_id)
    assert live is not None
    return live.state


async def expire(desk: ApprovalDesk, approval: Approval) -> None:
    await desk.clock.advance(SECONDS + 1)
    await wait_until(lambda: not live_state(desk, approval).owed)


async def cancel(desk: ApprovalDesk, approval: Approval) -> None:
    core = desk.hub.core
    await cancel_owed_turns(await core.live(approval.channel_id), "user", "enough", may_run=True, new_id=core.new_id)


async def end_channel(desk: ApprovalDesk, approval: Approval) -> None:
    await desk.hub.core.end_channel(await desk.hub.core.live(approval.channel_id), "enough", "user")


async def restart(desk: ApprovalDesk, approval: Approval) -> None:
    await desk.hub.close()
    await desk.next_hub()
    await desk.hub.register(desk.agent)
    await desk.hub.core.live(approval.channel_id)


DECISIONS: dict[str, Step] = {
    "approve": decision("approve"),
    "edit": decision("edit", args={"order": "7", "cents": 5}),
    "reject": decision("reject", reason="no"),
    "respond": decision("respond", text="done by hand"),
    "other digest": decision("approve", digest="0" * 64),
}
STATES: dict[str, tuple[Step, ...]] = {
    "waiting": (),
    "waiting, after a restart": (restart,),
    "approved": (DECISIONS["approve"],),
    "edited": (DECISIONS["edit"],),
    "rejected": (DECISIONS["reject"],),
    "responded": (DECISIONS["respond"],),
    "expired": (expire,),
    "cancelled": (cancel,),
    "its channel has ended": (end_channel,),
}


async def outcome(state: str, wanted: str) -> str:
    """What a decision makes of an approval in this state."""
    async with approval_desk() as desk:
        approval = await desk.asked(approval_seconds=SECONDS)
        for step in STATES[state]:
            await step(desk, approval)
        before = len(desk.paid)
        try:
            await DECISIONS[wanted](desk, approval)
        except Denied as denied:
            said = f"denied: {denied.reason}"
        except UnknownApproval:
            said = "unknown"
        else:
            said = "decided"
        paid = desk.paid[before:]
        return f"{said}; pays {paid[0][1]}" if paid else said


async def table() -> dict[str, dict[str, str]]:
    return {state: {wanted: await outcome(state, wanted) for wanted in DECISIONS} for state in STATES}


async def test_the_states_of_an_approval_are_the_golden_ones() -> None:
    assert await table() == json.loads(GOLDEN.read_text())


async def test_no_way_leads_from_a_decided_approval_to_a_payment() -> None:
    for state, row in (await table()).items():
        paying = [wanted for wanted, made in row.items() if "pays" in made]
        assert paying == (["approve", "edit"] if state.startswith("waiting") else []), state


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(asyncio.run(table()), indent=2) + "\n")
