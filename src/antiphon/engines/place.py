"""Where turns run, and how that is begun.

What runs turns is loaded when a hub is opened that runs some: whoever only looks at a store does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.tasks import Delegates
from antiphon.core.ids import IdSource
from antiphon.engines.definitions import Definitions
from antiphon.engines.protocol import Engine
from antiphon.engines.resuming import ResumeLimit
from antiphon.hub.audit import Audit
from antiphon.hub.channels import Channels
from antiphon.hub.clock import Clock
from antiphon.hub.feed import Feed
from antiphon.store.protocol import Store

if TYPE_CHECKING:
    from antiphon.engines.turn import Turns


class Place(msgspec.Struct, frozen=True):
    """What turns need around them."""

    channels: Channels
    clock: Clock
    new_id: IdSource
    feed: Feed
    audit: Audit
    agents: Mapping[str, Declaration]
    delegates: Delegates
    tenant: str
    limit: ResumeLimit
    definitions: Definitions


def local_engine(store: Store, clock: Clock) -> Engine:
    """The engine inside this process."""
    from antiphon.engines.local import LocalEngine

    return LocalEngine(store, clock)


def turns_at(place: Place) -> Turns:
    """What runs the turns of a place."""
    from antiphon.engines.turn import Turns

    return Turns(place)
