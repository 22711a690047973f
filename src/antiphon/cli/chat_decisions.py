"""What a person at a terminal decides about a conversation: calls that wait for approval, and calls in doubt."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.errors import UsageError
from antiphon.runtime.agent import DEFAULT_SPEAKER
from antiphon.runtime.approvals import approvals_below
from antiphon.runtime.channel import Channel
from antiphon.runtime.decisions import PersonDecision, decide_approval
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import ensure_person_registered
from antiphon.runtime.turn_control import approval_id_of


@dataclass(frozen=True)
class WaitingCallDecision:
    """Decides about the first call of a conversation that waits for approval, in its tasks too."""

    hub: Hub
    channel: Channel
    decision: str
    by: str
    """The person who decides, unless another is named."""

    async def __call__(self, name: str) -> str | None:
        """Decide, as the person of this name; the message that the turn in the channel answers.

        `UsageError` if no call waits.
        """
        core, who = self.hub.core, name.strip() or self.by
        waiting = [each for each in await approvals_below(core, self.channel.channel_id) if each.kind == "approval"]
        if not waiting:
            raise UsageError("No call waits for approval here.")
        cause = next((turn.cause for turn in self.channel.state.owed), None)
        await ensure_person_registered(core, who)
        kind = core.directory.find(who).kind
        choice = PersonDecision(self.decision, digest=waiting[0].digest)
        await decide_approval(core, waiting[0].approval_id, choice, by=who, kind=kind)
        return cause


async def settle_doubt(hub: Hub, channel: Channel, word: str, *, by: str = DEFAULT_SPEAKER) -> str | None:
    """Settle the first call in doubt, or the first suspended turn; the message that its turn answers.

    `channel` is held by `by`. `UsageError` if there is neither.
    """
    state = channel.state
    turn = next((turn for turn in state.owed if turn.suspended or turn.doubts), None)
    if turn is None:
        raise UsageError("No call is in doubt here.")
    if not word:
        raise UsageError("Say what became of it: `/settle again`, or `/settle` and the result of the call.")
    if turn.suspended:
        choice = PersonDecision("approve") if word == "again" else PersonDecision("respond", text=word)
        kind = state.participants.get(by, "service")
        await decide_approval(hub.core, approval_id_of(state, turn, None), choice, by=by, kind=kind)
    elif word == "again":
        await channel.settle(turn.turn_id, turn.doubts[0], again=True)
    else:
        await channel.settle(turn.turn_id, turn.doubts[0], result=word)
    return turn.cause
