"""The rules of a channel: what an adapter declares, and the ruleset that asks it and the guards.

Rule 1: an adapter is the protocol of one type of channel: its seats, whether turns are ordered, and what follows from
        what was said. It is made anew from the channel's knobs each time a channel is loaded, so it keeps nothing; if
        it must remember, it folds a memory like a guard does (`Remembers`).
Rule 2: what an adapter may declare beside that is listed in `AdapterTraits`; `orchestration.adapters` fills in the
        rest. It may also have a memory with `evolve`, a `check` before opening, a `version` of its fold, and the name
        `recorded_as`.
Rule 3: a ruleset keeps nothing either: every question is answered from a `Fold`, the state with what the adapter and
        the guards remember.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import Envelope, Json
from antiphon.core.event_data import Deny
from antiphon.core.events import EV_CHANNEL_OPENED, SPEECH_TYPES, FailedTurn
from antiphon.core.evolve import evolve
from antiphon.core.guard import (
    ALLOW,
    Allow,
    Change,
    Deadline,
    Guard,
    Judges,
    Later,
    Notices,
    Remembers,
    Reviews,
    Watches,
)
from antiphon.core.opinions import CallGuards, by_event_type, opinions_of, watches_after_end, watches_only_after_end
from antiphon.core.state import WAIT, Decision, RelatedFact, State
from antiphon.core.state import Fold as Fold
from antiphon.core.state import SavedFold as SavedFold
from antiphon.core.text import describe
from antiphon.core.views import View, view_by_size


class Seats(msgspec.Struct, frozen=True):
    """How many participants a channel takes, the creator included."""

    least: int = 2
    most: int | None = None


class Expectation(msgspec.Struct, frozen=True):
    """Something that must happen within a time, and what the hub does if it does not."""

    name: str
    seconds: float
    handler: str = "warn"
    """audit: operators see it; warn: all participants see it; auto_close: the channel ends; fail: the turn that an
    agent owes ends as failed, and the channel goes on."""


class Finding(msgspec.Struct, frozen=True):
    """Something that a check of rules found. An error keeps a channel from being opened, a warning is recorded."""

    level: Literal["error", "warning"]
    code: str
    """A stable word to branch on."""
    message: str


class ChannelRoster(msgspec.Struct, frozen=True):
    """Who sits in a channel that is about to be opened, and on which terms."""

    kinds: Mapping[str, str]
    """Name to kind (agent, human, service), the creator first."""
    interjectors: frozenset[str] = frozenset()
    """The participants that may interject beside people."""
    writers: Mapping[str, Sequence[str]] | None = None
    """Who may write which context variable; None if that is not known."""
    tier: str | None = None
    context_vars: Mapping[str, object] = msgspec.field(default_factory=dict)
    """What the channel begins with."""
    spectators: frozenset[str] = frozenset()
    """The participants that need never get the turn."""


class Adapter(Protocol):
    """What the class of a channel type must have. What it may have beside that is in `AdapterTraits`.

    The two are apart, so that for a type checker a class without the latter is an adapter too.
    """

    name: ClassVar[str]
    seats: ClassVar[Seats]
    ordered: ClassVar[bool]
    """Whether only those who were given the turn may speak."""
    knobs: ClassVar[frozenset[str]]
    """The knobs it takes beside those every channel takes."""
    expectations: ClassVar[tuple[Expectation, ...]]
    """What is expected unless the channel says otherwise."""

    def __init__(self, knobs: Json) -> None:
        """Read the knobs; what they say wrongly is a `RulesInvalid` that names the value."""
        ...

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        """What follows from the channel's opening, or from what was just said. The state includes it already.

        `memory` is None for an adapter that has none.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """An adapter that finds mistakes in its rules before a channel is opened."""

    def check(self, roster: ChannelRoster) -> list[Finding]: ...


class HandoffObjection(NamedTuple):
    """Why a handoff is not possible: a stable reason, and a sentence for the model that asked for it."""

    reason: str
    advice: str


class ConversationHandoffs(Protocol):
    """The handoffs of a conversation, as its adapter allows them."""

    def targets(self, state: State, speaker: str) -> Sequence[str]:
        """The names that the speaker may hand over to."""
        ...

    def agents(self, state: State) -> list[str]:
        """The agents that a conversation can be given to."""
        ...

    def objection(
        self, memory: object, state: State, *, speaker: str, target: str, phase: str
    ) -> HandoffObjection | None:
        """Why the speaker cannot hand over to this target, into this phase; None if it can."""
        ...


TurnEnd = Literal["text", "packet"]
REACTS_BY_DEFAULT = SPEECH_TYPES | {EV_CHANNEL_OPENED}


def _nothing_promised(memory: object) -> int:
    return 0


def _nothing_follows(memory: object, state: State, failed: FailedTurn) -> Decision:
    return WAIT


class AdapterTraits(msgspec.Struct, frozen=True):
    """What an adapter may declare beside what it must; each of these is an attribute or method of its class."""

    ends_in: TurnEnd = "text"
    """The event that the turn of an agent ends in."""
    reacts: frozenset[str] = REACTS_BY_DEFAULT
    """The event types that `decide` is called for."""
    routing_tools: frozenset[str] | None = None
    """The tools that a packet names in `routing.tool`; None for all of them."""
    view: Callable[[int], View] = view_by_size
    """What an agent without a view of its own is shown, by the number of participants."""
    threaded: bool = False
    """Whether each message has a turn of its own: an agent's answer stands where the message it answers stands,
    and a turn is shown nothing that came after its message."""
    handoffs: ConversationHandoffs | None = None
    """Which handoffs the tool `handoff_conversation` may make; None if agents are not offered it."""
    promised: Callable[[object], int] = _nothing_promised
    """How many messages wait for a turn that is not assigned yet, by the adapter's memory."""
    recover: Callable[[object, State, FailedTurn], Decision] = _nothing_follows
    """What follows from a failed turn. It gets the adapter's memory and the state after the failure.

    The default here is for rulesets made by hand; adapters get `recover_from_failure`.
    """


# Raise it when `evolve`, or that of a built-in guard, folds old logs to other values: otherwise a snapshot of before is
# used as if nothing had changed. The golden folds of the tests notice; `restore` notices a change of shape.
FOLD_VERSION = "4"
"""The version of what logs fold to. Snapshots of another version are not used."""


NO_TRAITS = AdapterTraits()


class Ruleset:
    """What holds in one channel."""

    def __init__(self, adapter: Adapter, guards: Sequence[Guard] = (), traits: AdapterTraits = NO_TRAITS) -> None:
        self.adapter, self.guards, self.traits = adapter, tuple(guards), traits
        parts: list[Adapter | Guard] = [adapter, *guards]
        opinions = [opinions_of(part) for part in parts]
        self.remembering = [
            cast(Remembers[object], part) for part, own in zip(parts, opinions, strict=True) if own.remembers
        ]
        """The parts that have a memory, in the order of `Fold.memories`."""
        slots = {id(part): place for place, part in enumerate(self.remembering)}
        self._hearing, self._hearing_all = by_event_type(list(enumerate(self.remembering)), "hears")
        self._adapter_slot = slots.get(id(adapter))
        # The adapter last: what it judges is a draft that every guard admits.
        asked = [(slots.get(id(part)), part, own) for part, own in zip(parts, opinions, strict=True)]
        asked = [*asked[1:], asked[0]]
        self._judges = [(slot, cast(Judges[object], part)) for slot, part, own in asked if own.judges]
        self._reviewers = [(slot, cast(Reviews[object], part)) for slot, part, own in asked if own.reviews]
        self.calls = CallGuards(asked)
        self._noticing, self._noticing_all = by_event_type(
            [(slot, cast(Notices[object], part)) for slot, part, own in asked if own.notices], "notes", "hears"
        )
        self.noticing = bool(self._noticing or self._noticing_all)
        """Whether any guard has something recorded because of an envelope."""
        self._watchers = [(slot, cast(Watches[object], part)) for slot, part, own in asked if own.watches]
        self._watchers_after_end = [(slot, part) for slot, part in self._watchers if watches_after_end(part)]
        self._watchers = [(slot, part) for slot, part in self._watchers if not watches_only_after_end(part)]
        versioned = [(part, own) for part, own in zip(parts, opinions, strict=True) if not own.joins_snapshots]
        names = ",".join(f"{own.recorded_as}/{part.name}" for part, own in versioned)
        self.version = hashlib.sha256(f"{FOLD_VERSION}:{names}".encode()).hexdigest()[:16]

    def begin(self, channel_id: str) -> Fold:
        """The fold of an empty log."""
        return Fold(State(channel_id=channel_id), tuple(part.memory() for part in self.remembering))

    def fold(self, fold: Fold, envelope: Envelope) -> Fold:
        """The fold with one more envelope."""
        state, memories = evolve(fold.state, envelope), fold.memories
        hearing = self._hearing.get(envelope.event_type, self._hearing_all)
        if hearing:
            changed = list(memories)
            for slot, part in hearing:
                changed[slot] = part.evolve(changed[slot], envelope)
            memories = tuple(changed)
        return Fold(state, memories)

    def fold_all(self, fold: Fold, envelopes: Iterable[Envelope]) -> Fold:
        """The fold with all of these."""
        for envelope in envelopes:
            fold = self.fold(fold, envelope)
        return fold

    def judge(self, fold: Fold, draft: Envelope) -> Envelope | Deny | Later:
        """The draft as it may be recorded, or why not, or that it must wait."""
        for slot, guard in self._judges:
            judged = guard.judge(None if slot is None else fold.memories[slot], fold.state, draft)
            if judged is ALLOW:  # which most of them say: patterns take longer
                continue
            match judged:
                case Allow():
                    continue
                case (Deny() | Later()) as refusal:
                    return refusal
                case Change(draft=draft):  # rebinds `draft`: the guards that follow judge the changed one
                    continue
                case other:
                    raise TypeError(
                        f"judge of {guard.name} returned {describe(other)}; return ALLOW, Deny, Change or LATER"
                    )
        return draft

    def notices(self, fold: Fold, envelope: Envelope) -> tuple[RelatedFact, ...]:
        """What the guards have recorded because of an envelope that was just folded."""
        hearing = self._noticing.get(envelope.event_type, self._noticing_all)
        if not hearing:
            return ()
        facts: list[RelatedFact] = []
        for slot, guard in hearing:
            facts += guard.notice(None if slot is None else fold.memories[slot], fold.state, envelope)
        return tuple(facts)

    def decide(self, fold: Fold, envelope: Envelope) -> Decision:
        """What follows, after every guard has had its say."""
        return self._review(fold, self.adapter.decide(fold.memory_at(self._adapter_slot), fold.state, envelope))

    def recover(self, fold: Fold, failed: FailedTurn) -> Decision:
        """What follows from a failed turn, after every guard has had its say."""
        return self._review(fold, self.traits.recover(fold.memory_at(self._adapter_slot), fold.state, failed))

    def _review(self, fold: Fold, decision: Decision) -> Decision:
        for slot, guard in self._reviewers:
            decision = guard.review(fold.memory_at(slot), fold.state, decision)
        return decision

    def due(self, fold: Fold, *, only_recorded: bool = False) -> Deadline | None:
        """The earliest deadline of all, or of those at which something is recorded; None if there is none."""
        earliest: Deadline | None = None
        memories, state = fold.memories, fold.state
        for slot, guard in self._watchers_after_end if state.ended else self._watchers:
            deadline = guard.due(None if slot is None else memories[slot], state)
            if deadline is None or (only_recorded and deadline.draft is None):
                continue
            if earliest is None or deadline.at < earliest.at:
                earliest = deadline
        return earliest

    def promised_turns(self, fold: Fold) -> int:
        """How many messages wait for a turn that is not assigned yet."""
        return self.traits.promised(fold.memory_at(self._adapter_slot))

    def memory_of(self, fold: Fold, guard: Guard) -> object:
        """What a guard of this ruleset remembers; None if it has no memory."""
        places = {id(part): slot for slot, part in enumerate(self.remembering)}
        return fold.memory_at(places.get(id(guard)))

    def adapter_memory(self, fold: Fold) -> object:
        """What the adapter remembers; None if it has no memory."""
        return fold.memory_at(self._adapter_slot)


def restore_fold(ruleset: Ruleset, saved: SavedFold) -> Fold | None:
    """The fold of a snapshot; None if it does not fit this ruleset, so that the log is folded instead."""
    parts, known = ruleset.remembering, len(saved.memories)
    if not all(opinions_of(part).joins_snapshots for part in parts[known:]):
        return None
    try:
        restored: list[object] = [
            as_type(memory, part.memory) for part, memory in zip(parts[:known], saved.memories, strict=True)
        ]
        return Fold(saved.state, (*restored, *(part.memory() for part in parts[known:])))
    except (Malformed, ValueError):
        return None


RulesetFactory = Callable[[str, Json], Ruleset]
"""The ruleset of a channel from its type and knobs; `RulesInvalid` if there are none."""
