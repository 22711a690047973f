"""What a transport carries: replies that leave the hub, and messages that arrive.

Rule 1: a reply keeps its id at every attempt, so that the other side can recognise one that it has already.
Rule 2: a message has the id that its sender gave it: the same id is the same message, recorded once.
Rule 3: an inbound request that is refused says why only to a sender whose signature is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import AntiphonError


class OutboundReply(msgspec.Struct, frozen=True):
    """A reply on its way to the other side of a transport."""

    reply_id: str
    """The id of its envelope, the same at every attempt."""
    channel_id: str
    transport: str
    recipient: str
    """The address at the other side, such as a telephone number; "" if it is not known."""
    text: str
    sender_id: str
    answers: str | None
    """The id of the message that it answers."""
    attempt: int = 1


class InboundMessage(msgspec.Struct, frozen=True):
    """A message that arrived by a transport."""

    text: str
    source: str
    """The address of its sender, to which replies go."""
    message_id: str
    """Its id at the sender, unique within the transport."""
    intent: str | None = None


class InboundRefused(AntiphonError):
    """An inbound request is refused, and nothing is recorded. `.status` is its HTTP status, `.reason` a stable word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class InboundReader(Protocol):
    """Authenticates and reads the requests by which messages arrive over HTTP."""

    def read_inbound(self, headers: Mapping[str, str], body: bytes, now: Instant) -> InboundMessage:
        """The message of a request; `InboundRefused` if its signature, its time or its body is wrong."""
        ...


class InboundTransports(Protocol):
    """The transports of a hub, as far as the server uses them."""

    def inbound(self, name: str) -> InboundReader | None:
        """What reads the requests of the transport of this name; None if there is none."""
        ...

    async def accept(self, name: str, message: InboundMessage) -> Envelope:
        """Record the message in its channel. The envelope of a repeated message is that of the first."""
        ...
