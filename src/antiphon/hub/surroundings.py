"""What the channels of one hub share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from antiphon.core.errors import LogCorrupt
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.hub.continuity import Continuity
from antiphon.hub.feed import Feed
from antiphon.store.protocol import Store


class Surroundings(msgspec.Struct, frozen=True):
    """What every channel of one hub shares."""

    store: Store
    continuity: Continuity
    new_id: IdSource
    feed: Feed
    armed: Callable[[Instant], None]
    """Told when a channel must be looked at earlier than it had been known."""
    damaged: Callable[[LogCorrupt], Awaitable[None]]
    """Told that a log cannot be trusted any more."""
    owing: Callable[[str], None]
    """Told that the turns a channel is owed have changed."""
