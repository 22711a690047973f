"""What one attempt at a turn writes to the log, under its claim.

Rule 1: the claim is the first thing written, and nothing is written after somebody else's.
Rule 2: what a call came to is kept here until the next thing is written, and then written together with it.
Rule 3: when the store fails, what is known is not thrown away: it is offered again until the store takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from antiphon.core.envelope import HUB, OPERATORS, Envelope, Priority
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable
from antiphon.core.events import (
    EV_AGENT_WARNED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    data_of,
)
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant, after
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import Turn
from antiphon.core.step import Admitted, audience_of
from antiphon.core.turns import FENCED, Claim, Ending, Failure, Work, claimed, ended, failed, released, written
from antiphon.hub.clock import Clock
from antiphon.hub.live import LiveChannel
from antiphon.hub.redacting import redacted
from antiphon.hub.request import Plan

log = logging.getLogger("antiphon.engine")

RETRY = 1.0
TRIES = 3
OUTCOMES = frozenset({EV_CALL_FINISHED, EV_CALL_FAILED})
ERRORS = {EV_CALL_FAILED: "error", EV_CALL_RETRIED: "error", EV_CALL_DOUBTED: "why", EV_AGENT_WARNED: "message"}
"""Where entries hold the text of an error, which is redacted before it is recorded."""

Write = Callable[[Fold, Work, Laws, Instant], Admitted | Deny]


class Fenced(Exception):
    """The turn is somebody else's now, or has ended. What this attempt knows counts for nothing."""


def _ignore() -> None:
    """Do nothing."""


class Notes:
    """The pen of one attempt."""

    def __init__(self, live: LiveChannel, turn: Turn, owner: str, *, clock: Clock, new_id: IdSource) -> None:
        self.live, self.turn = live, turn
        self._owner, self._clock, self._new_id = owner, clock, new_id
        self._claim = Claim(turn.turn_id, turn.epoch + 1)
        self.claimed = False
        """Whether anything of this attempt is in the log."""
        self.agent = ""
        """The agent of the speaker's team that is active; "" if there is no team."""
        self.progressed: Callable[[], None] = _ignore
        """Called when a call of this attempt has returned, and that is recorded."""
        self._kept: list[Envelope] = []
        self._planned: tuple[Envelope, ...] = ()
        """What was last offered to the store behind the claim, with the ids it was given: it may be recorded."""

    def keep(self, event_type: str, event: msgspec.Struct) -> None:
        """Write this together with whatever is written next."""
        self._kept.append(self._entry(event_type, event))

    async def claim(self) -> None:
        """Write the claim at once."""
        await self._write(self._entered())

    async def flush(self) -> None:
        """Write what was kept, if anything was."""
        if self._kept:
            await self._write(self._entered())

    async def write(self, event_type: str, *events: msgspec.Struct) -> None:
        """Write these, and what was kept. They are on disk when this returns."""
        self._kept.extend(self._entry(event_type, event) for event in events)
        await self._write(self._entered())

    async def end(self, ending: Ending) -> None:
        """End the turn with what its speaker says; `Denied` if it may not be said."""
        await self._write(lambda fold, work, laws, at: ended(fold, work, ending, laws=laws, at=at, new_id=self._new_id))

    async def fail(self, failure: Failure) -> None:
        """End the turn without an answer."""
        agent = failure.agent or self.agent
        failure = msgspec.structs.replace(failure, agent=agent, detail=redacted(failure.detail))
        await self._write(
            lambda fold, work, laws, at: failed(fold, work, failure, laws=laws, at=at, new_id=self._new_id)
        )

    async def release(self) -> None:
        """Put the turn back in order, if anything of this attempt was written at all. Nobody waits for the store."""
        if not self.claimed:
            return
        entries = tuple(self._kept)
        await self._put_back(entries)
        if entries and self._is_ours(self.live.fold):  # they had been recorded, although nobody said so
            await self._put_back(())

    async def _put_back(self, entries: tuple[Envelope, ...]) -> None:
        work = Work(self._claim, entries)
        for left in reversed(range(TRIES)):
            try:
                await self._submit(
                    lambda fold, laws, at: self._noted(released(fold, work, laws=laws, at=at, new_id=self._new_id)),
                    self._as_planned(entries[0]) if entries else None,
                )
                return
            except (OutcomeUnknown, StoreUnavailable):
                if not left:
                    raise

    def _entered(self) -> Write:
        return lambda fold, work, laws, at: written(fold, work, laws=laws, at=at, new_id=self._new_id)

    def _entry(self, event_type: str, event: msgspec.Struct) -> Envelope:
        data = data_of(event)
        error = data.get(ERRORS.get(event_type, ""))
        if isinstance(error, str):
            data[ERRORS[event_type]] = redacted(error)
        audience = audience_of(self.turn) if event_type == EV_CALL_DOUBTED else [OPERATORS]  # a person hears of a doubt
        return Envelope("", "", HUB, audience, event_type, data, self.turn.cause)

    async def _write(self, write: Write) -> None:
        """Have it recorded. If that is cut off, what calls came to is kept; that they start need not be."""
        work, self._kept = Work(self._claim, tuple(self._kept)), []
        try:
            await self._offer(write, work)
        except Denied as denied:
            self._kept = [*work.entries, *self._kept]
            if denied.reason == FENCED:
                raise Fenced(denied.detail) from denied
            raise
        except asyncio.CancelledError:
            self._kept = [entry for entry in (*work.entries, *self._kept) if entry.event_type in OUTCOMES]
            raise
        self.claimed = True
        if any(entry.event_type in OUTCOMES for entry in work.entries):
            self.progressed()

    async def _offer(self, write: Write, work: Work) -> None:
        """Offer it until the store takes it. What may be recorded is looked for by its id, so it is recorded once."""
        self._planned = ()
        while True:
            again = self._planned[0] if self._planned else None
            try:
                await self._submit(lambda fold, laws, at: self._plan(write, work, fold, laws=laws, at=at), again)
                return
            except (OutcomeUnknown, StoreUnavailable) as error:
                log.warning("turn %s of %s waits for the store: %s", self.turn.turn_id, self._channel_id, error)
                await self._clock.wait(asyncio.Event(), after(self._clock.now(), RETRY))

    async def _submit(self, plan: Plan, again: Envelope | None) -> None:
        await self.live.submit(plan, Priority.NORMAL, again)

    def _plan(self, write: Write, work: Work, fold: Fold, *, laws: Laws, at: Instant) -> Admitted | Deny:
        """The claim, if it is not written yet, and what follows it, as one batch."""
        if self.claimed or self._is_ours(fold):
            return self._noted(write(fold, work, laws, at))
        claim = claimed(fold, self.turn, self._owner, laws=laws, at=at, new_id=self._new_id)
        if isinstance(claim, Deny):
            return claim
        rest = self._noted(write(claim.fold, work, laws, at))
        return rest if isinstance(rest, Deny) else Admitted((*claim.batch, *rest.batch), rest.fold)

    def _noted(self, outcome: Admitted | Deny) -> Admitted | Deny:
        """Remember what is offered now. What was offered before is known not to be recorded once this is planned."""
        if isinstance(outcome, Admitted):
            self._planned = outcome.batch
        return outcome

    def _as_planned(self, entry: Envelope) -> Envelope | None:
        """An entry as it was last offered; None if it never was. Stamping it has left its data as it is."""
        return next((each for each in self._planned if each.event_data is entry.event_data), None)

    def _is_ours(self, fold: Fold) -> bool:
        """Whether the claim was recorded although nobody said so."""
        return any(
            turn.turn_id == self.turn.turn_id and turn.epoch == self._claim.epoch and turn.owner == self._owner
            for turn in fold.state.owed
        )

    @property
    def _channel_id(self) -> str:
        return self.live.state.channel_id
