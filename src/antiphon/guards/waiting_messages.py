"""Messages of people and outside code that wait for an answer, for guards that begin anew with each of them.

Rule 1: a message that comes while an agent works on an earlier one waits. What follows from it begins when the earlier
        one is answered, so guards begin anew then, too.
Rule 2: an answer names the message that caused it. What is answered waits no longer, and neither does what came before.
"""

from __future__ import annotations

from antiphon.core.envelope import Envelope

MAX_WAITING = 256
"""How many messages are remembered that have no answer yet."""
Waiting = tuple[str, ...]
"""The ids of the messages, in their order."""


def with_message(waiting: Waiting, envelope: Envelope) -> Waiting:
    """The messages that wait once this one has come."""
    return (*waiting[1 - MAX_WAITING :], envelope.envelope_id)


def without_answered(waiting: Waiting, envelope: Envelope) -> Waiting:
    """The messages that still wait once an agent has said this; the same if it answers none of them."""
    cause = envelope.causation_id
    if cause not in waiting:
        return waiting
    return waiting[waiting.index(cause) + 1 :]
