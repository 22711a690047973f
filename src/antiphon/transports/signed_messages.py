"""The signature of requests between a hub and another program, in both directions.

Rule 1: it is an HMAC with SHA-256 of the id, the time and the body, as they are sent: `<id>.<timestamp>.<body>`.
Rule 2: an id has no braces and a body begins with one, so signed bytes can be divided in one way only.
Rule 3: a signature is compared in constant time, and before anything else of a request is judged.
Rule 4: the timestamp is at most five minutes from the receiver's clock. A repetition within these has the id of the
        first message, and is recorded once.
Rule 5: a secret is in no `repr`, error or log.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.core.codec import Malformed, check_text, check_unique_keys
from antiphon.core.envelope import Instant, to_datetime
from antiphon.core.text import explain_decode_error
from antiphon.core.transport import InboundMessage, InboundRefused

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "Antiphon-Id", "Antiphon-Timestamp", "Antiphon-Signature"
SIGNED_ID_PATTERN = re.compile(r"[!-z|~]{1,200}")
"""Visible ASCII characters except braces."""
TIMESTAMP_PATTERN = re.compile(r"[0-9]{1,12}")
MAX_CLOCK_DIFFERENCE_SECONDS = 300.0
MAX_SOURCE_CHARS = 200
"""As long as the source of a message may be recorded."""


class InboundBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message from another program."""

    text: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE_CHARS)]
    """The address of its sender, to which replies go."""
    intent: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    id: str | None = None
    """The id of the header `Antiphon-Id` again; None leaves it out."""


def signed_headers(secret: str, *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that sign a request."""
    signature = _signature(secret, f"{message_id}.{timestamp}.", body)
    return {ID_HEADER: message_id, TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signature}


def _signature(secret: str, prefix: str, body: bytes) -> str:
    return "v1=" + hmac.new(_bytes_of(secret), _bytes_of(prefix) + body, hashlib.sha256).hexdigest()


def _bytes_of(text: str) -> bytes:
    """The text in UTF-8. Any header at all has some, also an invalid one."""
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class SignedInbound:
    """Reads the signed requests of another program that knows the secret."""

    secret: str = field(repr=False)

    def read_inbound(self, headers: Mapping[str, str], body: bytes, now: Instant) -> InboundMessage:
        """The message of a request; `InboundRefused` if its signature, its time or its body is wrong."""
        shown = {name.lower(): value for name, value in headers.items()}
        message_id, timestamp = shown.get(ID_HEADER.lower(), ""), shown.get(TIMESTAMP_HEADER.lower(), "")
        expected = _signature(self.secret, f"{message_id}.{timestamp}.", body)
        if not hmac.compare_digest(_bytes_of(expected), _bytes_of(shown.get(SIGNATURE_HEADER.lower(), ""))):
            said = f"sign the request with {ID_HEADER}, {TIMESTAMP_HEADER} and {SIGNATURE_HEADER}"
            raise InboundRefused(401, "bad_signature", f"no transport of this server knows this signature; {said}")
        _check_timestamp(timestamp, now)
        if not SIGNED_ID_PATTERN.fullmatch(message_id):
            said = f"{ID_HEADER} must be 1 to 200 visible ASCII characters, and no braces"
            raise InboundRefused(422, "bad_id", said)
        return _read_message(message_id, body)


def _check_timestamp(timestamp: str, now: Instant) -> None:
    if TIMESTAMP_PATTERN.fullmatch(timestamp):
        difference = abs(int(timestamp) - to_datetime(now).timestamp())
        if difference <= MAX_CLOCK_DIFFERENCE_SECONDS:
            return
    said = f"{TIMESTAMP_HEADER} must be Unix seconds at most {MAX_CLOCK_DIFFERENCE_SECONDS:g} from this server's clock"
    raise InboundRefused(401, "stale", f"{said}; sign the request again")


def _read_message(message_id: str, body: bytes) -> InboundMessage:
    try:
        given = msgspec.json.decode(body, type=InboundBody)
        check_unique_keys(body)
        for text in (given.text, given.source, given.intent or ""):
            check_text(text)
    except msgspec.ValidationError as error:
        raise InboundRefused(422, "bad_body", f"the body: {explain_decode_error(str(error))}") from error
    except Malformed as error:
        raise InboundRefused(422, "bad_body", f"the body: {error}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InboundRefused(400, "no_json", "the body is no JSON; send JSON in UTF-8") from error
    if given.id is not None and given.id != message_id:
        raise InboundRefused(
            422, "bad_id", f"the id in the body is not that of {ID_HEADER}; give it once, or twice alike"
        )
    return InboundMessage(given.text, given.source, message_id, given.intent)
