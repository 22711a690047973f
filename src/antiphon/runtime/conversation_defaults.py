"""The router and the handoff rules that a hub fills in where a routed channel is opened without them.

What is filled in is recorded with the channel. Its knobs rule from then on, also if the hub is given others later.
"""

from __future__ import annotations

from antiphon.core.codec import copy_json, same_json
from antiphon.core.envelope import Json

ROUTED = "routed"
ROUTER_KNOB, HANDOFF_KNOB = "router", "handoff"
CONVERSATION_NAME = "conversation"
"""What a hub's routed conversation is called for clients, unless it is named."""


class ConversationDefaults:
    """The router and the handlers that a hub knows, for routed channels that bring none."""

    def __init__(self) -> None:
        self.router: Json | None = None
        self.name = CONVERSATION_NAME
        self.people: tuple[str, ...] = ()
        """Who takes part in a conversation beside its creator and the agents."""
        self._handlers: list[tuple[Json, Json]] = []

    def add_handler(self, router: Json, rules: Json) -> None:
        """Use these rules for handoffs in the channels of this router. The last one given counts."""
        self._handlers = [each for each in self._handlers if not same_json(each[0], router)]
        self._handlers.append((router, rules))

    def complete(self, channel_type: str, knobs: Json) -> Json:
        """The knobs with the router and the rules in force, where the caller has given none."""
        if channel_type != ROUTED:
            return knobs
        router = knobs.get(ROUTER_KNOB)
        if router is None and self.router is not None:
            router = self.router
            knobs = {**knobs, ROUTER_KNOB: copy_json(router)}
        if HANDOFF_KNOB not in knobs:
            rules = next((rules for known, rules in self._handlers if same_json(known, router)), None)
            knobs = knobs if rules is None else {**knobs, HANDOFF_KNOB: copy_json(rules)}
        return knobs


def without_defaults(channel_type: str, recorded: Json, wanted: Json) -> Json:
    """The recorded knobs without those that the hub has filled in, to compare them with what a caller wants."""
    if channel_type != ROUTED:
        return recorded
    filled = {ROUTER_KNOB, HANDOFF_KNOB} - wanted.keys()
    return {name: value for name, value in recorded.items() if name not in filled}
