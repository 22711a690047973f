"""Laws: the one adapter and the guards of a channel, ready to be asked, and the fold they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import msgspec

from antiphon.core.codec import Malformed, as_type, to_json
from antiphon.core.decision import WAIT, Decision
from antiphon.core.envelope import Envelope
from antiphon.core.events import Json
from antiphon.core.evolve import evolve
from antiphon.core.guard import Allow, Change, Deadline, Deny, Guard, Judges, Later, Remembers, Reviews, Watches
from antiphon.core.rules import Adapter, Recovers
from antiphon.core.state import State

VERSION = "4"
"""Grows when a change of this package folds old logs to other values, so that old snapshots are not used."""


class Fold(msgspec.Struct, frozen=True):
    """A channel's state with what its adapter and guards remember."""

    state: State
    memories: tuple[object, ...] = ()


class SavedFold(msgspec.Struct, frozen=True):
    """A fold as a snapshot holds it: the memories are plain data until their owners have read them."""

    state: State
    memories: list[object]


class Laws:
    """What holds in one channel. Stateless: every question is answered from a `Fold`."""

    def __init__(self, adapter: Adapter, guards: Sequence[Guard] = ()) -> None:
        self.adapter, self.guards = adapter, tuple(guards)
        parts: list[Adapter | Guard] = [adapter, *guards]
        self._folders = [cast(Remembers[object], part) for part in parts if isinstance(part, Remembers)]
        slots = {id(part): place for place, part in enumerate(self._folders)}
        self._adapter_slot = slots.get(id(adapter))
        self._judges = [(slots.get(id(g)), cast(Judges[object], g)) for g in guards if isinstance(g, Judges)]
        self._reviewers = [(slots.get(id(g)), cast(Reviews[object], g)) for g in guards if isinstance(g, Reviews)]
        self._watchers = [(slots.get(id(g)), cast(Watches[object], g)) for g in guards if isinstance(g, Watches)]
        names = ",".join(f"{type(part).__qualname__}/{part.name}" for part in parts)
        self.version = hashlib.sha256(f"{VERSION}:{names}".encode()).hexdigest()[:16]

    def begin(self, channel_id: str) -> Fold:
        """The fold of an empty log."""
        return Fold(State(channel_id=channel_id), tuple(part.memory() for part in self._folders))

    def fold(self, fold: Fold, envelope: Envelope) -> Fold:
        """The fold with one more envelope."""
        pairs = zip(self._folders, fold.memories, strict=True)
        memories = [part.evolve(memory, envelope) for part, memory in pairs]
        return Fold(evolve(fold.state, envelope), tuple(memories))

    def fold_all(self, fold: Fold, envelopes: Iterable[Envelope]) -> Fold:
        """The fold with all of these."""
        for envelope in envelopes:
            fold = self.fold(fold, envelope)
        return fold

    def judge(self, fold: Fold, draft: Envelope) -> Envelope | Deny | Later:
        """The draft as it may be recorded, or why not, or that it must wait."""
        for slot, guard in self._judges:
            match guard.judge(_memory(fold, slot), fold.state, draft):
                case Allow():
                    continue
                case (Deny() | Later()) as refusal:
                    return refusal
                case Change(draft=draft):
                    continue
        return draft

    def decide(self, fold: Fold, envelope: Envelope) -> Decision:
        """What follows, after every guard has had its say."""
        return self._reviewed(fold, self.adapter.decide(_memory(fold, self._adapter_slot), fold.state, envelope))

    def recover(self, fold: Fold, envelope: Envelope) -> Decision:
        """What follows when a whole group has failed; `Wait()` if the rules say nothing of it."""
        if not isinstance(self.adapter, Recovers):
            return WAIT
        return self._reviewed(fold, self.adapter.recover(_memory(fold, self._adapter_slot), fold.state, envelope))

    def _reviewed(self, fold: Fold, decision: Decision) -> Decision:
        for slot, guard in self._reviewers:
            decision = guard.review(_memory(fold, slot), fold.state, decision)
        return decision

    def due(self, fold: Fold) -> Deadline | None:
        """The earliest deadline of all; None if there is nothing to wait for."""
        if fold.state.ended:
            return None
        earliest: Deadline | None = None
        for slot, guard in self._watchers:
            deadline = guard.due(_memory(fold, slot), fold.state)
            if deadline is not None and (earliest is None or deadline.at < earliest.at):
                earliest = deadline
        return earliest

    def save(self, fold: Fold) -> bytes:
        """The fold as a snapshot."""
        return to_json(fold)

    def restore(self, saved: SavedFold) -> Fold | None:
        """The fold of a snapshot; None if it does not fit these laws, so that the log is folded instead."""
        try:
            pairs = zip(self._folders, saved.memories, strict=True)
            return Fold(saved.state, tuple(as_type(memory, part.memory) for part, memory in pairs))
        except (Malformed, ValueError):
            return None


def _memory(fold: Fold, slot: int | None) -> object:
    return None if slot is None else fold.memories[slot]


LawBook = Callable[[str, Json], Laws]
"""The laws of a channel from its type and knobs; `RulesInvalid` if there are none."""
