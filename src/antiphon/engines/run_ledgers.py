"""The calls of a turn in the ledgers that they are counted in: asked before a call leaves, settled by its outcome.

Rule 1: first the guards of the channel are asked, with nothing recorded; then the ledgers; then the call is recorded,
        for which the guards are asked again. A call that is denied at last is settled with what it cost: nothing.
Rule 2: a ledger that cannot be asked now is asked again, unless the entry says otherwise: without its word no call
        leaves.
Rule 3: an outcome whose settlement is lost, because the process ends between the two, stays booked in full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.core.call_permits import OUTCOME_TYPES, call_position
from antiphon.core.envelope import Envelope, IdSource, Json, add_seconds
from antiphon.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from antiphon.core.event_data import Deny, data_of
from antiphon.core.execution_events import DEPARTURE_TYPES, EV_CALL_RETRIED
from antiphon.core.guard import Change, LedgerEntry, Objection
from antiphon.core.saga_events import EV_SAGA_EXECUTED
from antiphon.core.step import dated_draft
from antiphon.hub.clock import Clock
from antiphon.hub.ledgers import RUN_LEDGER, Ledgers
from antiphon.hub.live import LiveChannel

logger = logging.getLogger("antiphon.engine")

LEDGER_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class RunLedgers:
    """The ledgers as the calls of one channel are counted in them."""

    ledgers: Ledgers
    live: LiveChannel
    run: str
    """The channel in which the run began."""
    clock: Clock
    new_id: IdSource
    step_outcomes: dict[tuple[str, int], msgspec.Struct] = field(default_factory=dict)
    """By turn and index, what is offered to the channel of the run once the outcome of a call is recorded."""

    async def ask(self, entries: Sequence[Envelope]) -> dict[int, Objection]:
        """Ask the ledgers about those of these entries that are to leave. Returns their objections, by position."""
        objections: dict[int, Objection] = {}
        settled: set[tuple[str, int]] = set()
        for draft in entries:
            if draft.event_type in OUTCOME_TYPES:
                settled.add(call_position(draft))
        for draft in entries:
            if draft.event_type not in DEPARTURE_TYPES or call_position(draft) in settled:
                continue
            objection = await self.ask_about(draft)
            if objection is not None:
                objections[call_position(draft)[1]] = objection
        return objections

    async def ask_about(self, draft: Envelope) -> Objection | None:
        """What a ledger objects to this; None if none does, or if a guard of the channel denies it already.

        A call that leaves in another form because of the first objection is asked about in that form.
        """
        objection = await self._ask_once(draft)
        if not isinstance(objection, Change):
            return objection
        return await self._ask_once(objection.draft, "changed ") or objection

    async def _ask_once(self, draft: Envelope, prefix: str = "") -> Objection | None:
        live, guards = self.live, self.live.ruleset.calls
        at = max(self.clock.now(), live.state.updated_at)
        stamped = dated_draft(draft, live.state, at=at)
        asked = guards.asks(live.fold, stamped)
        if not asked or await self._are_passed_over(asked):
            return None  # so that the guards of the channel are asked once, in the append
        allowed = guards.permit(live.fold, stamped)
        if not isinstance(allowed, Envelope):
            return None
        purpose = "retried" if draft.event_type == EV_CALL_RETRIED else "asked"
        for place, entry in enumerate(guards.asks(live.fold, allowed)):
            if self._is_own(entry):
                continue
            denial = await self.offer(entry, self._key(draft, f"{prefix}{purpose} {place}"))
            if denial is not None:
                return denial if entry.otherwise is None else entry.otherwise(denial)
        return None

    async def deny_late(self, draft: Envelope) -> Deny | None:
        """Why a retry that was permitted before its delay may not leave after it: what ledgers say that decide anew.

        One that would go to another model instead leaves as it is: that would have to be recorded before its delay.
        """
        live, guards = self.live, self.live.ruleset.calls
        at = max(self.clock.now(), live.state.updated_at)
        stamped = dated_draft(draft, live.state, at=at)
        for entry in guards.asks(live.fold, stamped):
            denial = await self.offer(entry, "") if entry.repeatable else None
            instead = denial if denial is None or entry.otherwise is None else entry.otherwise(denial)
            if isinstance(instead, Deny):
                return instead
        return None

    def _is_own(self, entry: LedgerEntry) -> bool:
        """Whether it is for the log of this channel, whose own guards count it."""
        return entry.ledger == RUN_LEDGER and self.run == self.live.state.channel_id

    async def _are_passed_over(self, entries: Iterable[LedgerEntry]) -> bool:
        """Whether the ledgers allow all of these, and record nothing of them."""
        try:
            for entry in entries:
                if not self._is_own(entry) and not await self.ledgers.passes_over(entry, run=self.run):
                    return False
        except (OutcomeUnknown, StoreUnavailable):
            return False  # what follows then is for `offer` to say
        return True

    async def settle(self, recorded: Sequence[Envelope]) -> None:
        """Offer the outcomes among these envelopes to the ledgers."""
        guards = self.live.ruleset.calls
        for outcome in recorded:
            if outcome.event_type not in OUTCOME_TYPES:
                continue
            for place, entry in enumerate(guards.settles(self.live.fold, outcome)):
                if not self._is_own(entry):
                    await self._settle(entry, self._key(outcome, f"settled {place}"))

    def _key(self, about: Envelope, purpose: str) -> str:
        turn, index = call_position(about)
        # The number of the attempt tells retries apart; everything else happens once to a call.
        attempt = about.event_data.get("attempt", "")
        return f"{self.live.state.channel_id} {turn} {index} {purpose} {attempt}"

    async def settle_steps(self, recorded: Sequence[Envelope]) -> None:
        """Tell the channel of the run the outcomes among these envelopes of calls that can be undone."""
        for outcome in recorded:
            position = call_position(outcome)
            if outcome.event_type in OUTCOME_TYPES and position in self.step_outcomes:
                data: Json = {**data_of(self.step_outcomes.pop(position)), "sequence": outcome.sequence}
                await self._settle(LedgerEntry(RUN_LEDGER, EV_SAGA_EXECUTED, data), self._key(outcome, "executed"))

    async def offer(self, entry: LedgerEntry, key: str) -> Deny | None:
        """Offer an entry to its ledger, as often as it takes; why the call it is about may not leave, if it may not."""
        while True:
            try:
                return await self.ledgers.offer(entry, run=self.run, key=key)
            except (OutcomeUnknown, StoreUnavailable) as error:
                if entry.unreachable:
                    return Deny(entry.unreachable, f"the ledger {entry.ledger!r} cannot be asked now")
                logger.warning(
                    "a call of %s waits for the ledger %r: %s", self.live.state.channel_id, entry.ledger, error
                )
                await self.clock.wait(asyncio.Event(), add_seconds(self.clock.now(), LEDGER_RETRY_SECONDS))

    async def _settle(self, entry: LedgerEntry, key: str) -> None:
        try:
            await self.ledgers.offer(entry, run=self.run, key=key)
        except StoreError as error:
            where = f"{entry.ledger!r} for a call of {self.live.state.channel_id}"
            logger.warning("the ledger %s is not settled, and what was reserved stays booked: %s", where, error)
