"""Who is known to the store, and of what kind."""

from __future__ import annotations

import msgspec

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import BadName, UnknownParticipant, UsageError
from antiphon.core.events import EV_PARTICIPANT_REGISTERED, data_of
from antiphon.core.ids import check_name
from antiphon.core.words import shown
from antiphon.hub.own import OwnChannel

REGISTRY = "system:registry"
KINDS = ("agent", "human", "service")


class Listing(msgspec.Struct, frozen=True):
    """One known participant."""

    name: str
    kind: str
    asks: bool = False
    """Whether it decides on each invitation; otherwise it accepts them all."""


class Directory:
    """Every participant the store knows, folded from the registry channel."""

    def __init__(self, channel: OwnChannel) -> None:
        self._channel = channel
        self._known: dict[str, Listing] = {}

    async def load(self) -> None:
        """Read the registry."""
        async for envelope in self._channel.told():
            if envelope.event_type == EV_PARTICIPANT_REGISTERED:
                self._note(envelope.event_data)

    def knows(self, name: str) -> bool:
        """Whether there is a participant of this name."""
        return name.lower() in self._known

    def find(self, name: str) -> Listing:
        """The participant of this name; `UnknownParticipant` if there is none."""
        listing = self._known.get(name.lower()) if isinstance(name, str) else None
        if listing is None or listing.name != name:
            raise UnknownParticipant(name, _advice(name, listing))
        return listing

    async def register(self, listing: Listing) -> None:
        """Make a participant known, or attach to one that is. What does not fit is refused before it is recorded."""
        check_name(listing.name)
        if listing.kind not in KINDS:
            raise UsageError(f"no kind is called {shown(listing.kind)}; there are: {', '.join(KINDS)}")
        known = self._known.get(listing.name.lower())
        if known is not None and known.name != listing.name:
            raise BadName(f"{listing.name!r} differs from {known.name!r} only in case")
        if known is not None and known.kind != listing.kind:
            raise UsageError(f"{listing.name!r} is known as kind {known.kind!r}, not {listing.kind!r}")
        if known != listing:
            await self._channel.say(EV_PARTICIPANT_REGISTERED, data_of(listing))
            self._known[listing.name.lower()] = listing

    def _note(self, data: dict[str, object]) -> None:
        try:
            listing = as_type(data, Listing)
        except Malformed:
            return
        self._known[listing.name.lower()] = listing


def _advice(name: object, near: Listing | None) -> str:
    """What to do about a name that is not known; nothing special if it can simply be registered."""
    if near is not None:
        return f"did you mean {near.name!r}? the two differ only in case"
    try:
        check_name(name)
    except BadName as error:
        return str(error)
    return ""
