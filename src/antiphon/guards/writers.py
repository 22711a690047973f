"""Who may write which context variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.events import ContextSet, Packet, event_of
from antiphon.core.guard import ALLOW, Deny, Verdict
from antiphon.core.state import State


class Writers(msgspec.Struct, frozen=True):
    """A context key that names its writers is written by nobody else. Other keys are free."""

    name: ClassVar[str] = "writers"
    allowed: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        match event_of(draft):
            case ContextSet() as updates:
                return self._judge(updates, draft.sender_id)
            case Packet(context_updates=updates):
                return self._judge(updates, draft.sender_id)
            case _:
                return ALLOW

    def _judge(self, updates: ContextSet, writer: str) -> Verdict:
        for key in (*updates.set, *updates.delete):
            if key in self.allowed and writer not in self.allowed[key]:
                return Deny("not_a_writer", f"{writer!r} may not write the context variable {key!r}")
        return ALLOW
