"""The keys of a hub, for whoever lets people in."""

from __future__ import annotations

from antiphon.hub.keys import KeyRing
from antiphon.runtime.hub import Hub


def keys_of(hub: Hub) -> KeyRing:
    """The ring of a hub that is open."""
    return hub._desk.keys
