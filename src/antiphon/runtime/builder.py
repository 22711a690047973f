"""Envelopes built by hand, for bridges, gateways and tests: exactly what a channel of this type expects."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from antiphon.agents.results import Finish, Handoff
from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.core.events import EV_PACKET, EV_TEXT, Json, Routing, data_of
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel


class PacketOptions(TypedDict, total=False):
    """What a packet may carry beside its body."""

    handoff: Handoff | str | None
    """Who is given the turn."""
    finish: Finish | None
    """That there is nothing left to do."""
    tool: str | None
    """The tool by which the rules are to route."""
    context_set: Json | None
    context_delete: list[str] | None
    audience: list[str] | None
    causation_id: str | None


class EnvelopeBuilder:
    """Builds drafts for one channel; `hub.post` records them."""

    def __init__(self, live: LiveChannel) -> None:
        self._live = live

    @property
    def name(self) -> str:
        """The type of the channel."""
        return self._live.laws.adapter.name

    def build_text_envelope(
        self,
        channel_id: str = "",
        sender_id: str = "",
        text: str = "",
        *,
        audience: list[str] | None = None,
        causation_id: str | None = None,
    ) -> Envelope:
        """A text of this sender."""
        return replace(
            self._draft(channel_id, sender_id),
            event_type=EV_TEXT,
            event_data={"text": text},
            audience=audience,
            causation_id=causation_id,
        )

    def build_packet_envelope(
        self, channel_id: str = "", sender_id: str = "", body: str = "", **options: Unpack[PacketOptions]
    ) -> Envelope:
        """A whole turn of this sender: what it says, where it goes next, and what it wrote to the context."""
        unknown = options.keys() - PacketOptions.__optional_keys__
        if unknown:
            known = ", ".join(sorted(PacketOptions.__optional_keys__))
            raise UsageError(f"no option is called {shown(min(unknown))}; there are: {known}")
        updates: Json = {"set": options.get("context_set") or {}, "delete": options.get("context_delete") or []}
        data: Json = {"body": body, "routing": data_of(_routing(options)), "context_updates": updates}
        return replace(
            self._draft(channel_id, sender_id),
            event_type=EV_PACKET,
            event_data=data,
            audience=options.get("audience"),
            causation_id=options.get("causation_id"),
        )

    def _draft(self, channel_id: str, sender_id: str) -> Envelope:
        own = self._live.state.channel_id
        if channel_id not in ("", own):
            raise UsageError(f"this builds envelopes for {own!r}, not for {shown(channel_id)}")
        return Envelope(channel_id=own, sender_id=sender_id)


def _routing(options: PacketOptions) -> Routing:
    handoff: object = options.get("handoff")
    finish: object = options.get("finish")
    if isinstance(handoff, str):
        handoff = Handoff(handoff)
    if handoff is not None and not isinstance(handoff, Handoff):
        raise UsageError(f"handoff is {shown(handoff)}; give Handoff(target, reason)")
    if finish is not None and not isinstance(finish, Finish):
        raise UsageError(f"finish is {shown(finish)}; give Finish(reason)")
    return Routing(
        tool=options.get("tool"),
        target=None if handoff is None else handoff.target,
        reason="" if handoff is None else handoff.reason,
        summary="" if handoff is None else handoff.summary,
        finish=None if finish is None else finish.reason,
    )
