"""The events of running a turn: claims, calls of models, tools and steps, crashes, and what people decide about them.

Rule 1: a call is known by its turn and its position among the calls of it.
Rule 2: a crash is recorded once, with the pause that follows it. A restart during the pause records nothing new.
Rule 3: a turn at its limit of crashes is suspended, never failed: a person decides whether it is resumed.
Rule 4: `event_of` in `event_data` reads these types too.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from antiphon.core.envelope import NEVER, Instant, Json

EV_CALL_STARTED = "antiphon.call.started"
EV_CALL_FINISHED = "antiphon.call.finished"
EV_CALL_FAILED = "antiphon.call.failed"
EV_CALL_RETRIED = "antiphon.call.retried"
EV_CALL_DOUBTED = "antiphon.call.doubted"
EV_CALL_CLEARED = "antiphon.call.cleared"
EV_CALL_CONFLICTED = "antiphon.call.conflicted"
EV_CALL_RETURNED_LATE = "antiphon.call.late"
EV_CALL_APPROVED = "antiphon.call.approved"


FailureClass = Literal["", "transport", "timeout", "schema", "invariant", "error", "cancelled"]
"""Why a call failed, as breakers count it; "" if it never left."""
FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)
CUT_OFF_CLASSES: frozenset[FailureClass] = frozenset({"timeout", "cancelled"})
"""The failures of calls that were cut off, and may have taken effect all the same."""


class CallStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call is about to leave. Of a model request only the digest is kept, of a tool its arguments too."""

    turn: str
    index: int
    """Its position among the calls of its turn."""
    name: str
    digest: str
    args: Json | None = None
    """None if it is a model that is asked."""
    key: str = ""
    """The idempotency key the tool was given."""
    agent: str = ""
    """Who of the speaker's team makes it, as in a text; "" for the speaker itself."""
    most: int = 0
    """What it may cost, in millionths of a dollar. It is reserved until there is an outcome."""
    tokens: int = 0
    """How many tokens it may use. They are reserved in the same way."""
    until: Instant = NEVER
    """When its time is over. A reservation without an outcome is booked in full then."""
    via: str = ""
    """The model that a guard has chosen instead of the agent's own; "" for the agent's own."""
    model: str = ""
    """The name of the model that is asked; "" for a tool, and for a model without a name."""
    approved: str = ""
    """Who has allowed it, if a person had to."""
    same: str = ""
    """Of a tool, the key that calls have in common which ask for the same, if guards are asked."""
    poll_max: int = 0
    """How many equal calls may follow each other, of a tool that is meant to be polled; 0 for any other tool."""
    poll_seconds: float = 0.0
    """The seconds that must lie between two of them."""
    unpriced: bool = False
    """Whether the price of the model is unknown: `most` is what it costs at the highest price."""
    open_ended: bool = False
    """Whether its tool takes as long as it needs, as one that gives tasks."""


class CallFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call has returned."""

    turn: str
    index: int
    result: Json
    by: str = ""
    """Who settled it, if it was in doubt."""
    cost: int = 0
    """What it has cost, in millionths of a dollar, if a guard asks for that."""
    tokens: int = 0
    """How many tokens it has used, if a guard asks for that."""
    failure: FailureClass = ""
    """`schema` for a model's answer that does not have the shape that is wanted, if a guard asks for that."""
    first: str = ""
    """The call whose result this is, if this one did not run: its channel, turn and position."""
    progress: str = ""
    """The digest of what its result has reached, of a tool that says so, if guards are asked."""


class CallFailed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call has failed; of a tool call, this is what the model reads."""

    turn: str
    index: int
    error: str
    by: str = ""
    usage: Json = msgspec.field(default_factory=dict)
    """What models consumed within it, if any did."""
    denied: str = ""
    """The reason for which a guard has denied it; "" if it left."""
    final: bool = False
    """Whether the denial ends the turn."""
    answer: str = ""
    """What the agent says instead, if the denial ends the turn."""
    guard: str = ""
    """The name of the guard that has denied it, be it in a ledger; "" if that is not known."""
    failure: FailureClass = ""
    cost: int = 0
    """What it has cost all the same, as of a call that has finished."""
    tokens: int = 0


class CallRetried(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model call failed or broke off, and is retried after a delay. Written before the delay."""

    turn: str
    index: int
    attempt: int
    """The number of the attempt that failed, counted from 1."""
    error: str
    delay: float
    """In seconds."""
    status: int | None = None
    """The HTTP status, if there was an answer at all."""
    model: str = ""
    """The name of the model, as in `CallStarted`."""
    failure: FailureClass = ""
    via: str = ""
    """The model that is asked from now on, if a guard has chosen another one."""


class CallDoubted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a call took effect is not known. Its turn waits for a person."""

    turn: str
    index: int
    name: str
    speaker: str = ""
    why: str = ""


class CallCleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person has decided that the call in doubt is to be made again."""

    turn: str
    index: int
    by: str = ""


class CallApproved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person has decided that the call may leave."""

    turn: str
    index: int
    by: str
    args: Json | None = None
    """Other arguments than the model gave; None for those of the model."""


class CallConflicted(msgspec.Struct, frozen=True):
    """A turn that was run again asked for something else than its journal holds at this position."""

    turn: str
    index: int
    name: str
    recorded: str
    asked: str


class CallReturnedLate(msgspec.Struct, frozen=True):
    """A tool has returned after its call was cut off at a deadline. Nothing follows from that."""

    turn: str
    index: int
    name: str
    text: str
    """What its model would have read."""
    failed: bool = False


EV_TURN_CLAIMED = "antiphon.turn.claimed"
EV_TURN_RELEASED = "antiphon.turn.released"
EV_TURN_DELAYED = "antiphon.turn.delayed"
EV_TURN_SUSPENDED = "antiphon.turn.suspended"
EV_TURN_RESUMED = "antiphon.turn.resumed"
EV_APPROVAL_REQUESTED = "antiphon.approval.requested"
EV_APPROVAL_DECIDED = "antiphon.approval.decided"
EV_APPROVAL_EXPIRED = "antiphon.approval.expired"
EV_APPROVAL_REMINDED = "antiphon.approval.reminded"

FIRST_CRASH_PAUSE_SECONDS = 1.0
"""The shortest pause after the first crash, in seconds. Each further crash doubles it."""
MAX_CRASH_PAUSE_SECONDS = 300.0
CRASH_PAUSE_JITTER = 0.25
"""The share of a pause that is drawn at random and added to it."""
MAX_CRASH_PAUSE_DOUBLINGS = 8
"""Beyond this exponent the pause is `MAX_CRASH_PAUSE_SECONDS` anyway."""


class TurnDelayed(msgspec.Struct, frozen=True):
    """A process died during this turn. It is attempted again, but not before `until`."""

    turn: str
    epoch: int
    """The claim that ended with the process."""
    crashes: int
    """Crashes in a row without a call returning in between, this one included."""
    until: Instant


class TurnSuspended(msgspec.Struct, frozen=True):
    """This turn has reached its limit of crashes. It waits for a person's decision."""

    turn: str
    speaker: str
    crashes: int
    why: str = ""


class TurnResumed(msgspec.Struct, frozen=True):
    """A person has decided that the suspended turn is attempted again. Its crashes count from 0."""

    turn: str
    by: str


class ApprovalRequested(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call does not leave before a person has decided about it. Its turn waits."""

    turn: str
    index: int
    name: str
    """The tool, or `model`."""
    args: Json
    digest: str
    """What the decision is about."""
    speaker: str = ""
    agent: str = ""
    """Who of the speaker's team makes the call, as in `CallStarted`."""
    why: str = ""
    approvers: list[str] = msgspec.field(default_factory=list)
    """The people and roles that may decide; empty if any person may who did not cause the turn."""
    decide_by: Instant = NEVER
    """When it expires, or is due for a reminder; `NEVER` if it waits for ever."""
    guard: str = ""
    """The name of the guard that has a person decide; "" if the tool does."""
    same: str = ""
    """As in `CallStarted`."""
    most: int = 0
    """What the call may cost, as in `CallStarted`."""
    tokens: int = 0
    kind: Literal["tool", "model"] = "tool"
    """What is called. The call of a model may also be a summary or a step; of these `name` tells."""
    parameters: Json = msgspec.field(default_factory=dict)
    """The JSON schema of the arguments, by which those are checked that a person gives instead; {} if not known."""


class ApprovalDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first, and only, decision about something that waited for a person."""

    approval_id: str
    decision: str
    by: str
    reason: str = ""
    digest: str = ""
    """What the decision is about."""
    edit_digest: str = ""
    """The digest of the call with the arguments that the person gave instead."""


class ApprovalExpired(msgspec.Struct, frozen=True, omit_defaults=True):
    """No person has decided in time. The call does not leave, and its turn ends."""

    turn: str
    index: int
    approval_id: str
    action: str = "abort"


class ApprovalReminded(msgspec.Struct, frozen=True, omit_defaults=True):
    """No person has decided in time. The call goes on waiting, and its people are asked again."""

    turn: str
    index: int
    approval_id: str
    seconds: float
    """Until the next reminder."""


def crash_pause(crashes: int, jitter: float) -> float:
    """The seconds to wait after so many crashes in a row; `jitter` is a random number from 0 to 1."""
    doubled = FIRST_CRASH_PAUSE_SECONDS * 2.0 ** min(max(crashes, 1) - 1, MAX_CRASH_PAUSE_DOUBLINGS)
    return round(
        min(doubled, MAX_CRASH_PAUSE_SECONDS / (1 + CRASH_PAUSE_JITTER)) * (1 + CRASH_PAUSE_JITTER * jitter), 6
    )


class TurnClaimed(msgspec.Struct, frozen=True):
    """An owner runs this turn from now on. Entries under earlier claims are refused."""

    turn: str
    epoch: int
    owner: str = ""


class TurnReleased(msgspec.Struct, frozen=True):
    """The owner has given this turn back, to be resumed later."""

    turn: str
    epoch: int


ExecutionEvent = (
    TurnClaimed
    | TurnReleased
    | TurnDelayed
    | TurnSuspended
    | TurnResumed
    | ApprovalRequested
    | ApprovalDecided
    | ApprovalExpired
    | ApprovalReminded
    | CallStarted
    | CallFinished
    | CallFailed
    | CallRetried
    | CallDoubted
    | CallCleared
    | CallApproved
    | CallConflicted
    | CallReturnedLate
)

EXECUTION_STRUCTS: dict[str, type[ExecutionEvent]] = {
    EV_TURN_CLAIMED: TurnClaimed,
    EV_TURN_RELEASED: TurnReleased,
    EV_TURN_DELAYED: TurnDelayed,
    EV_TURN_SUSPENDED: TurnSuspended,
    EV_TURN_RESUMED: TurnResumed,
    EV_APPROVAL_REQUESTED: ApprovalRequested,
    EV_APPROVAL_DECIDED: ApprovalDecided,
    EV_APPROVAL_EXPIRED: ApprovalExpired,
    EV_APPROVAL_REMINDED: ApprovalReminded,
    EV_CALL_STARTED: CallStarted,
    EV_CALL_FINISHED: CallFinished,
    EV_CALL_FAILED: CallFailed,
    EV_CALL_RETRIED: CallRetried,
    EV_CALL_DOUBTED: CallDoubted,
    EV_CALL_CLEARED: CallCleared,
    EV_CALL_APPROVED: CallApproved,
    EV_CALL_CONFLICTED: CallConflicted,
    EV_CALL_RETURNED_LATE: CallReturnedLate,
}
"""The shape of the data of each type."""

DEPARTURE_TYPES = frozenset({EV_CALL_STARTED, EV_CALL_RETRIED})
"""What guards permit or deny. `EV_TASK_STARTED` and `EV_RUN_CHARGED` are asked about in the same way."""
