"""State: what a log amounts to so far.

A state is a value. It is never stored as truth, only folded from a log (see `evolve`) and cached.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.codec import copied
from antiphon.core.events import NO_ROUTING, Json, Routing
from antiphon.core.instants import NEVER, Instant

Status = Literal["invited", "active", "closed", "expired", "quarantined"]
ENDED: frozenset[str] = frozenset({"closed", "expired"})


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
    """Who heard all that it answers, if not everybody did. The answer, and what is told of the turn, is for them."""

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must decide before it goes on."""
        return self.suspended or bool(self.doubts)


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
    status: Status = "invited"
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
    owed: tuple[Turn, ...] = ()
    """The turns of agents that have not ended, oldest first."""
    paused: str = ""
    """Why nobody has the turn although nothing has ended; "" otherwise."""
    unattended: int = 0
    """How many turns agents have taken in a row, without a person or code saying anything."""
    turn_count: int = 0
    assigned_turns: int = 0
    """How many turns had been taken when the turn was last given to somebody."""
    group: tuple[str, ...] = ()
    """To whom the turn was last given, if it was given to several at once."""
    failed_branches: dict[str, str] = msgspec.field(default_factory=dict)
    """Who of that group has failed, and for which reason."""
    failures: int = 0
    """How many turns of groups have failed since a turn last ended with an answer."""
    fired: tuple[int, ...] = ()
    """The rules that have given somebody the turn, by their places in the table."""
    hops: int = 0
    """How many handoffs have followed each other since a person or code last spoke."""
    stays: int = 0
    """How often in a row the turn was handed to whoever had it."""
    routing: Routing = NO_ROUTING
    """Where the last packet wanted to go."""
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    interjected: bool = False
    """Whether the last thing said was said out of turn, by somebody who may."""
    context_vars: Json = msgspec.field(default_factory=dict)
    tasks: dict[str, Instant] = msgspec.field(default_factory=dict)
    """The tasks that turns wait for, and until when at the longest."""
    open_tasks: dict[str, str] = msgspec.field(default_factory=dict)
    """The tasks whose end is not recorded here, each with the turn that gave it. It need not be owed any more."""
    active: dict[str, str] = msgspec.field(default_factory=dict)
    """Who answers for an agent that has a team, if not the agent itself: `support` to `support/billing`."""
    whispered: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """For each agent that was told something in private since the turn was last given: who heard all of it."""
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
    def clock_stopped(self) -> bool:
        """Whether expectations stand still: a turn waits for a person, or for its next attempt after a crash."""
        return any(turn.suspended or turn.doubts or turn.not_before for turn in self.owed)

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen here."""
        return self.status in ENDED


def detached(state: State) -> State:
    """The same state, sharing nothing that could be changed."""
    return msgspec.structs.replace(
        state,
        participants=dict(state.participants),
        knobs=copied(state.knobs),
        context_vars=copied(state.context_vars),
        tasks=dict(state.tasks),
        open_tasks=dict(state.open_tasks),
        active=dict(state.active),
        failed_branches=dict(state.failed_branches),
        whispered=dict(state.whispered),
        answering=dict(state.answering),
    )
