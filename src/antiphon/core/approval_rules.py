"""Approvals: what waits for a person, who may decide about it, and until when.

Rule 1: who may decide is recorded with the request. A tool names people and roles, or a guard does, or the channel.
Rule 2: a request that falls due is refused, or repeated to its people. It is never approved by time.
Rule 3: an id names one request, and every hub gives it the same.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.codec import digest_of
from antiphon.core.envelope import NEVER, Instant, Json, add_seconds, derived_id
from antiphon.core.errors import RulesInvalid
from antiphon.core.execution_events import EV_APPROVAL_DECIDED
from antiphon.core.text import describe

APPROVAL_KNOBS = ("approvers", "self_approval", "approval_seconds")
"""The knobs of every channel that say who decides, and by when."""
TIER_APPROVAL_SECONDS = {"interactive": 900.0, "batch": 86_400.0, "regulated": 14_400.0}
"""How long a call waits for a person in each tier, unless the knob says otherwise."""
UNLIMITED = "unlimited"
REGULATED = "regulated"
ASKED_CALL = "ask"
"""The last part of the id of a call that a person is asked about."""

WhenDue = Literal["end_turn", "abort", "remind"]
WHEN_DUE: dict[str, WhenDue] = {"batch": "abort", REGULATED: "remind"}
"""What happens in a tier when no person has decided in time. In the others the turn ends."""


class Approval(msgspec.Struct, frozen=True):
    """Something that waits for a person's decision."""

    approval_id: str
    channel_id: str
    kind: str
    """`approval`: a call that has not left. `call`: a call in doubt, which left without a recorded outcome. `turn`: a
    suspended turn, which has reached its limit of crashes. `compensation`: a stuck one, of a run that has ended."""
    agent: str
    """Who made the call, or whose turn it is: `support/billing` for a member of a team."""
    tool: str
    """The tool that was called; "" for a turn; `model` for the call of a model that a guard holds."""
    args: Json
    """The arguments of the call, as they are; {} for a turn."""
    why: str
    digest: str
    """What the decision is about. A decision that names another digest is refused."""
    cause: str | None
    """The envelope that the turn answers."""
    options: list[str]
    """The decisions that are possible."""
    turn_id: str
    decide_by: Instant | None = None
    """When it falls due, or the channel expires; None if neither happens."""
    approvers: list[str] = []
    """The people and roles that may decide; empty if any person may who did not cause the turn."""
    since: Instant = NEVER
    """Since when it waits."""
    parameters: Json = {}
    """The JSON schema of the arguments, for an edit; {} if it is not known."""


class ApprovalRules(msgspec.Struct, frozen=True):
    """What the knobs of a channel say about approvals."""

    approvers: tuple[str, ...] = ()
    self_approval: bool = False
    """Whether the person whose message caused a turn may decide about its calls."""
    seconds: float | None = None
    """How long a call waits; None for ever."""
    when_due: WhenDue = "end_turn"

    def due_after(self, at: Instant) -> Instant:
        """When a request that is made now falls due; `NEVER` if it does not."""
        return NEVER if self.seconds is None else add_seconds(at, self.seconds)


def approval_rules(knobs: Json) -> ApprovalRules:
    """What the knobs say about approvals; `RulesInvalid` if one of them means nothing."""
    tier = knobs.get("tier")
    return ApprovalRules(
        _approvers_of(knobs.get("approvers")),
        _self_approval_of(knobs.get("self_approval")),
        _seconds_of(knobs.get("approval_seconds"), tier),
        WHEN_DUE.get(str(tier), "end_turn"),
    )


def inherit_approvals(above: Json, own: Json) -> Json:
    """The knobs about approvals of the channel of a task: those of the channel above, else of the agent's threads."""
    named = {name: above.get(name, own.get(name)) for name in APPROVAL_KNOBS}
    return {name: value for name, value in named.items() if value is not None}


def _approvers_of(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise RulesInvalid(f"approvers is {describe(given)}; give a list of names of people and roles")
    return tuple(given)


def _self_approval_of(given: object) -> bool:
    if given is not None and not isinstance(given, bool):
        raise RulesInvalid(f"self_approval is {describe(given)}; give True or False")
    return bool(given)


def _seconds_of(given: object, tier: object) -> float | None:
    if given is None:
        return TIER_APPROVAL_SECONDS.get(str(tier))
    if given == UNLIMITED:
        if tier == REGULATED:
            raise RulesInvalid(f"approval_seconds is {UNLIMITED!r}; the tier {REGULATED!r} needs a number of seconds")
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MAX_APPROVAL_SECONDS:
        wanted = f"give seconds above 0 and up to {MAX_APPROVAL_SECONDS:,}, or {UNLIMITED!r}"
        raise RulesInvalid(f"approval_seconds is {describe(given)}; {wanted}")
    return float(given)


MAX_APPROVAL_SECONDS = 1_000_000_000
"""About 30 years. Beyond that instants end."""


def asked_call_id(channel_id: str, turn_id: str, index: int) -> str:
    """The id of the approval of a call that has not left."""
    sequence, _, speaker = turn_id.partition("/")
    return f"{channel_id}.{sequence}.{speaker}.{index}.{ASKED_CALL}"


def decision_id_of(channel_id: str, approval_id: str) -> str:
    """The id of the envelope that records what became of an approval."""
    return derived_id(channel_id, approval_id, EV_APPROVAL_DECIDED)


def call_digest(name: str, args: Json) -> str:
    """The digest of the call of a tool."""
    return digest_of([name, args])
