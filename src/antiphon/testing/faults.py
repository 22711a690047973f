"""A store that misbehaves on purpose, for testing what stands on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from antiphon.core.envelope import Envelope
from antiphon.core.errors import OutcomeUnknown, StoreUnavailable
from antiphon.core.instants import Instant
from antiphon.hub.ids import TimeOrderedIds
from antiphon.store.protocol import Appended, Store


@dataclass(kw_only=True)
class Faults:
    """What goes wrong with appends, and when. The counts say what has happened so far."""

    lose_reply_every: int = 0
    """Every so many appends are recorded, and the answer is lost."""
    fail_every: int = 0
    """Every so many appends are not recorded."""
    forget_ids: bool = False
    """An id that comes again is not recognised: the promise that makes repeating safe is broken."""
    appends: int = field(default=0, init=False)
    lost_replies: int = field(default=0, init=False)

    def before(self) -> int:
        """Count the append, and fail it if its time has come. The number says which one it is."""
        self.appends += 1
        if self.fail_every and self.appends % self.fail_every == 0:
            raise StoreUnavailable("a fault was injected before the append")
        return self.appends

    def after(self, number: int) -> None:
        """Lose the answer to the append of this number if its time has come."""
        if self.lose_reply_every and number % self.lose_reply_every == 0:
            self.lost_replies += 1
            raise OutcomeUnknown("a fault was injected after the append")


def with_faults(store: Store, faults: Faults) -> Store:
    """The store with faults in its appends; everything else is as it was."""
    return cast(Store, _Faulty(store, faults))


class _Faulty:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store, self._faults = store, faults
        self._new_id = TimeOrderedIds()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        number = self._faults.before()
        if self._faults.forget_ids:
            batch = [replace(envelope, envelope_id=self._new_id()) for envelope in batch]
        appended = await self._store.append(channel, batch, expected=expected, due=due)
        self._faults.after(number)
        return appended
