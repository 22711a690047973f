"""State: what a log amounts to so far, how a turn begins and goes on, and what may be decided next.

Rule 1: a state is a value. It is never stored as truth, only folded from a log (see `evolve`) and cached.
Rule 2: `evolve` alone puts a changed turn into the state.
Rule 3: a decision has one of three shapes: `Assign`, `Wait` or `Close`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.codec import copy_json
from antiphon.core.envelope import NEVER, Envelope, Instant, Json
from antiphon.core.errors import UsageError
from antiphon.core.events import NO_ROUTING, ContextSet, Routing, TurnAssigned
from antiphon.core.text import describe

ChannelStatus = Literal["invited", "active", "closed", "expired", "quarantined"]
ENDED_STATUSES: frozenset[str] = frozenset({"closed", "expired"})


TASK_KNOB = "task"
"""The knob by which a channel knows from where a task was given."""


class Turn(msgspec.Struct, frozen=True):
    """Work that an agent owes a channel: an answer to what has been said so far."""

    turn_id: str
    """Where its assignment stands, and whose it is: `17/bob`."""
    speaker: str
    cause: str | None
    """The envelope to be answered."""
    sequence: int
    """Where the assignment stands: the agent is shown what was said before it."""
    epoch: int = 0
    """How often it was claimed. Only the latest claim may write."""
    owner: str = ""
    """Who claimed it last."""
    attempts: int = 0
    """How often it was claimed since a call of it last returned."""
    doubts: tuple[int, ...] = ()
    """The positions of calls that a person must settle before it goes on."""
    crashes: int = 0
    """How many processes in a row have died during it without a call of it returning in between."""
    not_before: Instant = NEVER
    """The end of the pause after a crash. Set until the turn is claimed again."""
    suspended: bool = False
    """Whether it has reached its limit of crashes, and waits for a person's decision."""
    audience: tuple[str, ...] | None = None
    """Who heard all that it answers, if not all did. They alone see the answer, and whether the turn failed."""
    shown: int | msgspec.UnsetType = msgspec.UNSET
    """Up to where its speaker is shown what was said; unset for all that was said before the assignment."""
    # Unset and not 0: turns without it are stored as they were before there was this field. So are the next three.
    asked: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The positions of calls that do not leave before a person has decided about them."""
    approved: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The positions of calls that a person has allowed, and that have no outcome yet."""
    decide_by: tuple[Instant, ...] | msgspec.UnsetType = msgspec.UNSET
    """When each of `asked` falls due; unset if none ever does."""

    @property
    def shown_until(self) -> int:
        """Up to where in the log its speaker is shown what was said."""
        return self.sequence if self.shown is msgspec.UNSET else self.shown

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must decide before it goes on."""
        return self.suspended or bool(self.doubts) or (bool(self.asked) and self.awaits_approval)

    @property
    def awaits_approval(self) -> bool:
        """Whether nothing is left to do but what a person has to approve. An attempt that runs is not over yet."""
        return bool(self.asked) and not self.approved and not self.owner

    @property
    def asked_until(self) -> dict[int, Instant]:
        """The calls that a person is asked about, and when each falls due; `NEVER` if it does not."""
        asked = self.asked or ()
        return dict(zip(asked, self.decide_by or (NEVER,) * len(asked), strict=True))


class State(msgspec.Struct, frozen=True):
    """One channel, as its log leaves it."""

    channel_id: str = ""
    type: str = ""
    creator_id: str = ""
    participants: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to kind (agent, human, service), in order."""
    knobs: Json = msgspec.field(default_factory=dict)
    ordered: bool = False
    """Whether only those who hold the turn may speak."""
    status: ChannelStatus = "invited"
    close_reason: str = ""
    sequence: int = 0
    created_at: Instant = NEVER
    updated_at: Instant = NEVER
    active_at: Instant = NEVER
    """When a participant last did anything, or the channel was opened."""
    expires_at: Instant = NEVER
    awaiting: tuple[str, ...] = ()
    """Who has been invited and has not answered yet."""
    prepared: str | None = None
    """What the creator says as soon as the channel opens; None if nothing, and once anything was said."""
    speakers: tuple[str, ...] = ()
    """Who holds the turn. Several at once must all speak before the rules are read again."""
    assigned_at: Instant = NEVER
    resumed_at: Instant = NEVER
    """The end of the last outage that default expectations do not count."""
    clock_set_at: Instant = NEVER
    """When the clock was last set while an expectation counted; what came before does not count."""
    # The hub compares `owed` with `is`: it must stay the same object while nothing about it changes. With a fresh tuple
    # each append would wake the dispatcher and retry every deferred draft.
    owed: tuple[Turn, ...] = ()
    """The turns of agents that have not ended, oldest first."""
    paused: str = ""
    """Why no participant has the turn although the channel has not ended; "" otherwise."""
    unattended: int = 0
    """How many turns agents have taken in a row, without a person or code saying anything."""
    turn_count: int = 0
    assigned_turns: int = 0
    """How many turns had been taken when the turn was last assigned."""
    group: tuple[str, ...] = ()
    """To whom the turn was last given, if it was given to several at once."""
    failed_branches: dict[str, str] = msgspec.field(default_factory=dict)
    """Who of that group has failed, and for which reason."""
    failures: int = 0
    """How many turns of groups have failed since a turn last ended with an answer."""
    fired: tuple[int, ...] = ()
    """The rules that have assigned a turn, by their places in the table."""
    hops: int = 0
    """How many handoffs have followed each other since a person or code last spoke."""
    stays: int = 0
    """How often in a row a speaker handed the turn to itself."""
    routing: Routing = NO_ROUTING
    """Where the last packet wanted to go."""
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    interjected: bool = False
    """Whether the last thing said was an interjection."""
    context_vars: Json = msgspec.field(default_factory=dict)
    tasks: dict[str, Instant] = msgspec.field(default_factory=dict)
    """The tasks that turns wait for, and until when at the longest; `NEVER` while a task waits for a person."""
    open_tasks: dict[str, str] = msgspec.field(default_factory=dict)
    """The tasks whose end is not recorded here, each with the turn that gave it. It need not be owed any more."""
    active: dict[str, str] = msgspec.field(default_factory=dict)
    """Who answers for an agent that has a team, if not the agent itself: `support` to `support/billing`."""
    whispered: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """For each agent that heard something in private since the turn was last given: who heard all of it."""
    answering: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The same for what the turn that was last given is to answer."""
    spoken: bool = False
    """Whether anything was said since the turn was last given."""
    heard: int = 0
    """Up to where everything was heard elsewhere, in the channel that this one is a fork of."""
    newest_id: str = ""
    """The last of the time-ordered ids in the log: the next one sorts behind it."""
    erased: bool = False
    """Whether the content of the log was erased: tombstones are left."""

    @property
    def participant_order(self) -> list[str]:
        """The names of the participants, the creator first."""
        return list(self.participants)

    @property
    def expected_next_speaker(self) -> str | None:
        """Whose turn it is; None when the channel is free, or has ended."""
        return self.speakers[0] if self.speakers else None

    @property
    def run_id(self) -> str:
        """The channel in which the run began: this one, unless it is that of a task."""
        origin = self.knobs.get(TASK_KNOB)
        root = origin.get("root") if isinstance(origin, dict) else None
        return root if isinstance(root, str) else self.channel_id

    @property
    def task_depth(self) -> int:
        """How many tasks this channel stands inside of: 0 where the run began."""
        origin = self.knobs.get(TASK_KNOB)
        depth = origin.get("depth") if isinstance(origin, dict) else None
        return depth if isinstance(depth, int) else 0

    @property
    def clock_stopped(self) -> bool:
        """Whether expectations stand still: a turn, or a task of one, waits for a person or for the end of a pause."""
        if self.tasks and NEVER in self.tasks.values():
            return True
        return any(turn.waits_for_person or turn.not_before for turn in self.owed)

    @property
    def waits_for_approval(self) -> bool:
        """Whether a turn, or a task of one, waits for a person to decide about a call that has not left."""
        return NEVER in self.tasks.values() or any(turn.awaits_approval for turn in self.owed)

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen here."""
        return self.status in ENDED_STATUSES


def detach_state(state: State) -> State:
    """The same state, sharing nothing that could be changed."""
    return msgspec.structs.replace(
        state,
        participants=dict(state.participants),
        knobs=copy_json(state.knobs),
        context_vars=copy_json(state.context_vars),
        tasks=dict(state.tasks),
        open_tasks=dict(state.open_tasks),
        active=dict(state.active),
        failed_branches=dict(state.failed_branches),
        whispered=dict(state.whispered),
        answering=dict(state.answering),
    )


def assigned_turn(name: str, envelope: Envelope, event: TurnAssigned, *, heard_by: tuple[str, ...] | None) -> Turn:
    """The turn that an assignment gives to a speaker. `heard_by`: who heard what it answers, unless the event says."""
    at, audience = envelope.sequence, event.audience if event.shown else heard_by
    shown = event.shown or msgspec.UNSET
    return Turn(f"{at}/{name}", name, envelope.causation_id, at, audience=audience, shown=shown)


def claimed_turn(turn: Turn, epoch: int, owner: str) -> Turn:
    """The turn under a new claim. One by the same owner is no attempt after a crash: the owner lives."""
    attempts = turn.attempts + (turn.owner != owner)
    return replace(turn, epoch=epoch, owner=owner, attempts=attempts, not_before=NEVER)


def settled_turn(turn: Turn, index: int) -> Turn:
    """The turn when a call of it has an outcome. The process survived the call: its crashes are forgotten."""
    left = tuple(doubt for doubt in turn.doubts if doubt != index)
    return replace(without_call(turn, index), attempts=0, crashes=0, doubts=left)


def without_call(turn: Turn, index: int) -> Turn:
    """The turn without this call among those that wait for a person, or have stopped waiting."""
    if not turn.asked and not turn.approved:
        return turn
    asked = {each: until for each, until in turn.asked_until.items() if each != index}
    approved = tuple(each for each in turn.approved or () if each != index)
    return replace(with_asked(turn, asked), approved=approved or msgspec.UNSET)


def with_asked(turn: Turn, asked: dict[int, Instant]) -> Turn:
    """The turn when a person is asked about these calls, each until then."""
    until = tuple(asked.values()) if any(asked.values()) else msgspec.UNSET
    return replace(turn, asked=tuple(asked) or msgspec.UNSET, decide_by=until)


def merge_context(state: State, updates: ContextSet) -> State:
    """The state with these context variables changed: first deleted, then set."""
    if not updates.set and not updates.delete:
        return state
    gone = frozenset(updates.delete)
    kept: Json = {key: value for key, value in state.context_vars.items() if key not in gone}
    return replace(state, context_vars={**kept, **copy_json(updates.set)})


def without_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The names without the first of this spelling."""
    if name not in names:
        return names
    place = names.index(name)  # mostly 0: a thousand guests who accept in order are not searched a thousand times
    return names[:place] + names[place + 1 :]


class RuleError(msgspec.Struct, frozen=True):
    """A rule that raised, and so did not match. `rule` is its place in the table; None is the default target."""

    rule: int | None
    error: str


class RelatedFact(msgspec.Struct, frozen=True):
    """Something that is recorded with a decision, before it, in the hub's name."""

    event_type: str
    data: Json
    audience: tuple[str, ...] | None = None
    """Who may see it; None for all participants."""


class AnsweredMessage(msgspec.Struct, frozen=True):
    """The message that a turn answers, if it is not the envelope that was decided on."""

    envelope_id: str
    sequence: int
    audience: tuple[str, ...] | None = None
    """Who sees the answer; None for all participants."""


class Assign(msgspec.Struct, frozen=True):
    """These participants have the turn."""

    speakers: tuple[str, ...]
    reason: str = ""
    rule: int | None = None
    """The place in the table of the rule that says so; None if none does."""
    errors: tuple[RuleError, ...] = ()
    facts: tuple[RelatedFact, ...] = ()
    answers: AnsweredMessage | None = None
    """What the turn answers; None for the envelope that was decided on."""

    def __post_init__(self) -> None:
        if not isinstance(self.speakers, tuple | list):  # a bare text would be as many speakers as it has letters
            raise UsageError(f"speakers is {describe(self.speakers)}; give a tuple of names, such as ('bob',)")
        _check_reason(self.reason)


class Wait(msgspec.Struct, frozen=True):
    """Nothing changes: a participant still has the turn, or none needs it. With a reason, the channel is paused."""

    reason: str = ""
    errors: tuple[RuleError, ...] = ()
    facts: tuple[RelatedFact, ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.reason)


class Close(msgspec.Struct, frozen=True):
    """The channel ends, and why."""

    reason: str
    rule: int | None = None
    errors: tuple[RuleError, ...] = ()
    facts: tuple[RelatedFact, ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.reason)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"reason is {describe(reason)}; give a text")


Decision = Assign | Wait | Close
WAIT = Wait()


class Fold(msgspec.Struct, frozen=True):
    """A channel's state with what its adapter and guards remember."""

    state: State
    memories: tuple[object, ...] = ()

    def memory_at(self, slot: int | None) -> object:
        """What the part with this place remembers; None for a part without a memory."""
        return None if slot is None else self.memories[slot]


class SavedFold(msgspec.Struct, frozen=True):
    """A fold as a snapshot holds it: the memories are plain data until their owners have read them."""

    state: State
    memories: list[object]
