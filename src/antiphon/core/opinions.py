"""Which opinions the parts of a ruleset have, and which of them hear of an envelope.

Rule 1: that is a matter of their classes, so each class is looked at once: checks of protocols are slow.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.event_data import Deny
from antiphon.core.guard import (
    ALLOW,
    Allow,
    Answers,
    Ask,
    BoundsDecisions,
    Change,
    ExplainsTasks,
    LedgerEntry,
    PassesOver,
    Permits,
    Shares,
)
from antiphon.core.state import Fold, RelatedFact
from antiphon.core.text import describe

Slot = TypeVar("Slot")
Part = TypeVar("Part")
Hearing = tuple[tuple[Slot, Part], ...]
"""The parts that hear of an envelope, each with the place of its memory."""


LIMITING_GUARDS = frozenset(
    {
        "hop_limit",
        "depth_limit",
        "turn_limit",
        "spawn_limit",
        "deadlines",
        "budget",
        "cost_velocity",
        "gate",
        "retry_budget",
        "loop",
        "deadlock",
    }
)
"""The guards that limit how far a run goes. What undoes the run is not asked about by them."""


class Opinions(NamedTuple):
    """Which opinions the instances of a class have, and how `Ruleset.version` names it."""

    remembers: bool
    judges: bool
    permits: bool
    notices: bool
    shares: bool
    answers: bool
    reviews: bool
    watches: bool
    joins_snapshots: bool
    """Whether a snapshot without its memory is used all the same: it is the last part, and heard of nothing then."""
    recorded_as: str


# Protocol checks take most of the time in which a conversation is opened, so that each class is looked at once.
_opinions_by_class: WeakKeyDictionary[type, Opinions] = WeakKeyDictionary()


def opinions_of(part: object) -> Opinions:
    kind = type(part)
    known = _opinions_by_class.get(kind)
    if known is None:
        # A class that is renamed says in `recorded_as` what it was called: snapshots of before are still used.

        def has(opinion: str) -> bool:
            return callable(getattr(kind, opinion, None))  # a field of that name is no opinion

        name, version = getattr(kind, "recorded_as", kind.__qualname__), getattr(kind, "version", None)
        known = _opinions_by_class[kind] = Opinions(
            remembers=hasattr(kind, "memory") and has("evolve"),
            judges=has("judge"),
            permits=has("permit"),
            notices=has("notice"),
            shares=has("ask") and has("settle"),
            answers=has("answer"),
            reviews=has("review"),
            watches=has("due"),
            joins_snapshots=getattr(kind, "joins_snapshots", False) is True,
            recorded_as=f"{name}@{version}" if isinstance(version, int) else name,
        )
    return known


def by_event_type(
    parts: Sequence[tuple[Slot, Part]], *said_in: str
) -> tuple[dict[str, Hearing[Slot, Part]], Hearing[Slot, Part]]:
    """Which parts of a ruleset hear of an envelope: by its type, and of types that none of them names.

    A part names them in the first of these attributes that it has as a set: one without any hears of all.
    """
    heard = [(each, _types_in(each[1], said_in)) for each in parts]
    others = tuple(each for each, types in heard if types is None)
    named = frozenset().union(*(types for _, types in heard if types is not None))
    listed = {name: tuple(each for each, types in heard if types is None or name in types) for name in sorted(named)}
    return listed, others


def _types_in(part: object, said_in: Sequence[str]) -> Set[str] | None:
    said: list[object] = [getattr(part, name, None) for name in said_in]
    return next((types for types in said if isinstance(types, Set)), None)


class HeldCall(NamedTuple):
    """A call that a person is asked about, as it would leave."""

    wanted: Ask
    """Why, in the words of all guards that ask; the approvers are those of the first that names any."""
    draft: Envelope


NO_ENTRIES: Sequence[LedgerEntry] = ()


class CallGuards:
    """The guards of a ruleset that are asked about calls: before they leave, and on behalf of ledgers."""

    def __init__(self, parts: Sequence[tuple[int | None, object, Opinions]]) -> None:
        permitters = [(slot, cast(Permits[object], part)) for slot, part, own in parts if own.permits]
        sharing = [(slot, cast(Shares[object], part)) for slot, part, own in parts if own.shares]
        self._permitters = [each for each in permitters if not _is_asked_about_tasks(each[1])]
        self._sharing = [each for each in sharing if not _is_asked_about_tasks(each[1])]
        self._task_permitters = [each for each in permitters if _is_asked_about_tasks(each[1])]
        self._task_sharing = [each for each in sharing if _is_asked_about_tasks(each[1])]
        self._bounding = [
            (slot, part) for slot, part, _ in parts if callable(getattr(type(part), "decide_before", None))
        ]
        self._answering = [(slot, cast(Answers[object], part)) for slot, part, own in parts if own.answers]
        passing = [(slot, part) for slot, part in self._answering if isinstance(part, PassesOver)]
        self._passing = cast("list[tuple[int | None, PassesOver[object]]]", passing)
        self._all_pass = len(passing) == len(self._answering)
        self.about_tasks = bool(self._task_permitters)
        """Whether any guard is asked about tasks."""
        self.asked = bool(self._permitters or self._sharing)
        """Whether any guard is asked about calls."""
        self.sharing = bool(self._sharing)
        """Whether any guard counts calls in ledgers."""

    def permit(self, fold: Fold, draft: Envelope) -> Envelope | Deny | HeldCall:
        """The call as it may leave, or why not, or that a person decides. All guards are asked before a person is."""
        asking: list[Ask] = []
        memories, state = fold.memories, fold.state
        for slot, guard in self._permitters:
            said = guard.permit(None if slot is None else memories[slot], state, draft)
            if said is ALLOW:  # which most of them say: patterns take longer
                continue
            match said:
                case Allow():
                    continue
                case Deny() as denial:
                    return _denial_of(guard, denial)
                case Ask() as wanted:
                    asking.append(replace(wanted, guard=str(getattr(guard, "name", ""))))
                case Change(draft=draft):
                    continue
                case other:
                    raise TypeError(
                        f"permit of {type(guard).__name__} gave {describe(other)}; return ALLOW, Deny, Change or Ask"
                    )
        if not asking or draft.event_data.get("approved"):
            return draft
        approvers = next((wanted.approvers for wanted in asking if wanted.approvers), ())
        why = "; ".join(wanted.why for wanted in asking)
        return HeldCall(replace(asking[0], why=why, approvers=approvers), draft)

    def permit_compensation(self, fold: Fold, draft: Envelope) -> Envelope | Deny | Ask:
        """A compensation as it may leave, or why not. The limits of the run do not hold for it."""
        for slot, guard in self._permitters:
            if getattr(guard, "name", "") in LIMITING_GUARDS:
                continue
            match guard.permit(fold.memory_at(slot), fold.state, draft):
                case Deny() as denial:
                    return denial
                case Ask() as wanted if not draft.event_data.get("approved"):
                    return wanted
                case Change(draft=draft):
                    continue
                case _:
                    continue
        return draft

    def decide_before(self, fold: Fold, turn_id: str) -> Instant:
        """Until when a person can decide about a call of this turn; `NEVER` if guards do not limit that."""
        bounds = ((slot, cast(BoundsDecisions[object], part)) for slot, part in self._bounding)
        found = [part.decide_before(fold.memory_at(slot), fold.state, turn_id) for slot, part in bounds]
        return min((at for at in found if at), default=NEVER)

    def asks(self, fold: Fold, draft: Envelope) -> Sequence[LedgerEntry]:
        """What ledgers are asked before this call leaves."""
        memories, state, found = fold.memories, fold.state, NO_ENTRIES
        for slot, part in self._sharing:
            asked = part.ask(None if slot is None else memories[slot], state, draft)
            if asked:
                found = _with_others(found, asked)
        return found

    def task_facts(self, fold: Fold, draft: Envelope, denial: Deny) -> tuple[RelatedFact, ...]:
        """What is recorded of a task that was denied: by a guard, or by the ledger that a guard counts in."""
        return tuple(
            fact
            for slot, part in self._task_permitters
            if isinstance(part, ExplainsTasks) and part.name == (denial.guard or denial.reason)
            for fact in part.task_facts(fold.memory_at(slot), fold.state, draft)
        )

    def permit_task(self, fold: Fold, draft: Envelope) -> Deny | None:
        """Why a task may not be given, if it may not. `draft` is its `ag2.task.started`."""
        for slot, guard in self._task_permitters:
            match guard.permit(fold.memory_at(slot), fold.state, draft):
                case Allow():
                    continue
                case Deny() as denial:
                    return _denial_of(guard, denial)
                case other:
                    kind = type(guard).__name__
                    raise TypeError(f"permit of {kind} gave {describe(other)} about a task; return ALLOW or Deny")
        return None

    def task_asks(self, fold: Fold, draft: Envelope) -> list[LedgerEntry]:
        """What ledgers are asked before a task is given."""
        return [
            entry for slot, part in self._task_sharing for entry in part.ask(fold.memory_at(slot), fold.state, draft)
        ]

    def settles(self, fold: Fold, outcome: Envelope) -> Sequence[LedgerEntry]:
        """What is offered to ledgers once this outcome is recorded."""
        memories, state, found = fold.memories, fold.state, NO_ENTRIES
        for slot, part in self._sharing:
            settled = part.settle(None if slot is None else memories[slot], state, outcome)
            if settled:
                found = _with_others(found, settled)
        return found

    def passes_over(self, fold: Fold, entry: LedgerEntry) -> bool:
        """Whether a ledger with this ruleset certainly allows an offer, and records nothing of it."""
        memories = fold.memories
        return self._all_pass and all(
            part.passes_over(None if slot is None else memories[slot], entry) for slot, part in self._passing
        )

    def answer(self, fold: Fold, offer: Envelope) -> Deny | tuple[RelatedFact, ...]:
        """What a ledger with this ruleset records of an offer, or why it denies it."""
        facts: list[RelatedFact] = []
        for slot, part in self._answering:
            answered = part.answer(fold.memory_at(slot), fold.state, offer)
            if isinstance(answered, Deny):
                return answered if answered.guard else replace(answered, guard=str(getattr(part, "name", "")))
            facts += [fact for fact in answered if fact not in facts]  # several guards may count the same call
        return tuple(facts)


def _denial_of(guard: object, denial: Deny) -> Deny:
    """The denial of a guard with its name. One without a reason would be taken for none."""
    if isinstance(denial.reason, str) and denial.reason:
        return replace(denial, guard=str(getattr(guard, "name", "")))
    kind = type(guard).__name__
    raise TypeError(f"permit of {kind} gave {describe(denial)}; give the denial a reason, such as Deny('policy')")


def _is_asked_about_tasks(part: object) -> bool:
    """Whether its `permit` and `ask` are about tasks that are to be given, and not about calls."""
    return getattr(part, "about_tasks", False) is True


def _with_others(found: Sequence[LedgerEntry], entries: Sequence[LedgerEntry]) -> Sequence[LedgerEntry]:
    """The entries in their order. What several guards offer to one ledger in the same words is offered once."""
    if not found and len(entries) == 1:
        return entries
    others = list(found)
    for entry in entries:
        said = entry.ledger, entry.event_type, entry.data
        if all((each.ledger, each.event_type, each.data) != said for each in others):
            others.append(entry)
    return others


def watches_after_end(part: object) -> bool:
    """Whether its deadlines hold in a channel that has ended, too: replies still leave."""
    return getattr(part, "watches_after_end", False) is True


def watches_only_after_end(part: object) -> bool:
    """Whether it has deadlines in a channel that has ended alone."""
    return getattr(part, "watches_only_after_end", False) is True
