"""A channel of a person and an agent, in which the agent's turn calls tools under the guards of a knob."""

from antiphon.core.call_permits import TurnClaim
from antiphon.core.envelope import Envelope
from antiphon.core.execution_events import EV_CALL_STARTED, CallStarted
from antiphon.core.step import journal_draft, pending_turns
from tests.support.pure_channel import PureChannel


class ToolDesk:
    """Calls tools in one turn of bob, each at the next position, and shows what was recorded."""

    def __init__(self, *guards: object) -> None:
        self.channel = PureChannel("conversation", "ann:human", "bob:agent", guards=list(guards))
        self.channel.says("ann")
        [turn] = pending_turns(self.channel.state)
        self.channel.claims(turn)
        self.claim = TurnClaim(turn.turn_id, 1)
        self.calls = 0

    def call(self, tool: str, args: dict[str, object] | None, *, agent: str = "", approved: str = "") -> list[str]:
        """The types that were recorded for this call."""
        call = CallStarted(self.claim.turn_id, self.calls, tool, "d", args, agent=agent, approved=approved)
        self.calls += 1
        return self.channel.writes(self.claim, journal_draft(EV_CALL_STARTED, call))

    @property
    def last(self) -> Envelope:
        return self.channel.log[-1]

    def leaves(self, tool: str, args: dict[str, object] | None, *, agent: str = "") -> str:
        """`leaves`, `asks`, or the rule that has denied the call."""
        recorded = self.call(tool, args, agent=agent)
        match recorded:
            case ["call.started"]:
                return "leaves"
            case ["approval.requested"]:
                return "asks"
            case ["call.started", "call.failed", "authz.denied" | "authz.error"]:
                return str(self.last.event_data.get("rule"))
            case _:
                raise AssertionError(recorded)
