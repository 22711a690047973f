"""Ledgers: logs in which several channels count together, such as the spend of a run or of a hub.

Rule 1: the guards of a ledger answer an offer inside the append that records what they say, so that calls which leave
        at once, from several channels or hubs, cannot exceed together what they may not exceed alone.
Rule 2: an offer is known by the call it is about. A repeated one is answered as the first was, and counted once;
        unless its guard knows calls by itself, and decides anew.
Rule 3: what a guard records nothing of costs neither a write nor a read, unless hubs share the store.
Rule 4: a ledger of the hub is a system channel. That of a run is the log of the channel in which the run began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from antiphon.core.envelope import Envelope, IdSource, Instant, derived_id
from antiphon.core.errors import Denied
from antiphon.core.event_data import Deny
from antiphon.core.guard import LedgerEntry
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, dated_draft, fact_drafts, hub_draft, record_all, stamp_draft
from antiphon.hub.live import Channels, LiveChannel
from antiphon.hub.system_channels import SystemChannel
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

RUN_LEDGER = "run"


class Ledgers:
    """The ledgers of a hub."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._own: dict[str, SystemChannel] = {}

    async def offer(self, entry: LedgerEntry, *, run: str, key: str) -> Deny | None:
        """Offer an entry to its ledger; why the call it is about may not leave, if it may not.

        `run` is the channel in which the run began. `key` names the call and what is offered about it.
        """
        live = await self.find(entry.ledger, run)
        if await self._is_passed_over(live, entry):
            return None
        draft = hub_draft(entry.event_type, entry.data)
        if not entry.repeatable:
            draft = replace(draft, envelope_id=derived_id(live.state.channel_id, key, entry.event_type))
        plan = _RecordOffer(draft, self._channels.deps.new_id)
        try:
            await live.submit(plan, draft=None if entry.repeatable else draft)
        except Denied as denied:
            if denied.reason == "conflict":
                return None  # the first offer under this id is recorded, with another time or price perhaps
            return plan.denials[-1] if plan.denials else Deny(denied.reason, denied.detail)
        return None

    async def passes_over(self, entry: LedgerEntry, *, run: str) -> bool:
        """Whether an offer of this would be allowed, with nothing recorded of it."""
        return await self._is_passed_over(await self.find(entry.ledger, run), entry)

    async def _is_passed_over(self, live: LiveChannel, entry: LedgerEntry) -> bool:
        """Whether the guards of the ledger allow this offer and record nothing of it."""
        deps = self._channels.deps
        if deps.store.caps.many_hubs and await deps.store.head(live.state.channel_id) != live.state.sequence:
            live.log.in_doubt = True  # another hub has recorded something: it is read before the next decision
            return False
        guards = live.ruleset.calls
        if guards.passes_over(live.fold, entry):
            return True
        at = max(deps.continuity.clock.now(), live.state.updated_at)
        draft = hub_draft(entry.event_type, entry.data)
        answered = guards.answer(live.fold, dated_draft(draft, live.state, at=at))
        return not isinstance(answered, Deny) and not answered

    async def find(self, name: str, run: str) -> LiveChannel:
        """The log of a ledger."""
        if name == RUN_LEDGER:
            return await self._channels.get(run)
        if name not in self._own:
            self._own[name] = SystemChannel(f"{SYSTEM_CHANNEL_PREFIX}{name}", self._channels, knobs={"ledger": name})
        return await self._own[name].current()


@dataclass(frozen=True)
class _RecordOffer:
    """Plans what a ledger records of an offer: what its guards say, perhaps nothing."""

    offer: Envelope
    new_id: IdSource
    denials: list[Deny] = field(default_factory=list)
    """What its guards have said against it, the last time last."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        at = max(at, fold.state.updated_at)
        answered = ruleset.calls.answer(fold, stamp_draft(self.offer, fold.state, at=at, new_id=self.new_id))
        if isinstance(answered, Deny):
            self.denials.append(answered)
            return answered
        if not answered:
            return None
        first, *others = fact_drafts(answered, None)
        drafts = (replace(first, envelope_id=self.offer.envelope_id), *others)
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=self.new_id)
