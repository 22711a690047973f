"""What is withheld: secrets in texts, details of failures, and the content of erased channels.

Rule 1: a known secret is hidden as it is, as base64 at each of the three alignments, URL-quoted, and escaped for JSON;
        so is the beginning of one where a text was cut short. Hiding twice is hiding once.
Rule 2: the text of an exception may hold anything: a path, a prompt, a key. Participants are shown a stable reason and
        a sentence of ours; the log keeps the details, and the operator's view shows them.
Rule 3: a tombstone keeps the sequence and time of its envelope, and its type if that is one of ours. Ids, names, data
        and user-defined types are gone: a participant chose them, or they are derived from such values.
Rule 4: a log of tombstones still folds: to a channel of the same type that has ended, without participants.
Rule 5: only the hub writes tombstones, so that data of a participant is never mistaken for one.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from msgspec.structs import replace as replace_fields

from antiphon.core.envelope import ERASED, HUB, OPERATORS, Envelope, Json, derived_id, is_tombstone
from antiphon.core.event_data import data_of, event_of
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_ENVELOPE_ERASED,
    RESERVED_PREFIXES,
    ChannelClosed,
    ChannelCreated,
    ChannelExpired,
    ChannelOpened,
    Event,
)
from antiphon.core.state import State

REDACTED_MARK = "***"
MIN_SECRET_CHARS = 8
"""The fewest characters of a secret. Shorter values occur in ordinary words."""
MIN_ENCODED_CHARS = 10
"""The fewest characters of an encoded part of one."""
CUT_PATTERN = re.compile(r"…|\.\.\.|\Z")
"""Where a text may have been cut short."""
CREDENTIAL_PATTERN = re.compile(
    r"(?P<kept>\b(?i:Bearer|Basic)\s+)(?=[A-Za-z0-9._~+/=-]*[A-Z0-9~+/=_])[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<name>\b(?i:api[_-]?key|access[_-]?token|client[_-]?secret|password|secret|token)=)(?!\*)[^\s&\"'<>]{8,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\bak_[0-9a-f]{12}_[A-Za-z0-9_-]{8,}"
    r"|\bat_[A-Za-z0-9_-]{43}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bgh[opsur]_[A-Za-z0-9]{36,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{22,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
)
"""What looks like a credential, known or not."""


class Redactor:
    """Hides known secrets, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._by_head: dict[str, set[str]] = {}
        """The forms of the secrets by their first characters, so that a text is read once however many there are."""
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this from now on."""
        for form in secret_forms(secret):
            self._by_head.setdefault(form[:MIN_SECRET_CHARS], set()).add(form)

    def remove(self, secret: str) -> None:
        """Hide this no longer."""
        for form in secret_forms(secret):
            alike = self._by_head.get(form[:MIN_SECRET_CHARS], set())
            alike.discard(form)
            if not alike:
                self._by_head.pop(form[:MIN_SECRET_CHARS], None)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        return CREDENTIAL_PATTERN.sub(_redact_match, self._redact_known(text) if self._by_head else text)

    def _redact_known(self, text: str) -> str:
        parts: list[str] = []
        done = place = 0
        while place + MIN_SECRET_CHARS <= len(text):
            alike = self._by_head.get(text[place : place + MIN_SECRET_CHARS])
            size = max((_match_length(form, text, place) for form in alike), default=0) if alike else 0
            if size:
                parts += (text[done:place], REDACTED_MARK)
                done = place + size
            place += size or 1
        return "".join((*parts, text[done:]))


def _match_length(form: str, text: str, place: int) -> int:
    """How much of a form stands at a place: all of it, or its beginning where the text was cut short; otherwise 0."""
    if text.startswith(form, place):
        return len(form)
    size = MIN_SECRET_CHARS
    while size < len(form) and text[place + size : place + size + 1] == form[size]:
        size += 1
    return size if CUT_PATTERN.match(text, place + size) else 0


def secret_forms(secret: str) -> Iterator[str]:
    """The forms in which a secret may stand in a text; none if it is too short to be one."""
    words = {secret, *secret.split()}
    for word in words:
        if len(word) < MIN_SECRET_CHARS:
            continue
        yield word
        for quoted in (quote(word, safe=""), quote(word), quote_plus(word)):
            yield quoted
            yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
        for escaped in (json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1], repr(word)[1:-1]):
            yield escaped
            yield escaped.replace("/", "\\/")
        yield from _base64_forms(word.encode("utf-8", "surrogatepass"))


def _base64_forms(secret: bytes) -> Iterator[str]:
    """A secret inside a longer text that was encoded as base64, without the characters that its neighbours share."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            form = encode(b"\0" * before + secret).decode()[first:last]
            if len(form) >= MIN_ENCODED_CHARS:
                yield form
                yield quote(form, safe="")


def _redact_match(found: re.Match[str]) -> str:
    return f"{found['kept'] or found['name'] or ''}{REDACTED_MARK}"


PUBLIC_REASONS = frozenset(
    {
        "cancelled",
        "channel_closed",
        "deadline",
        "idempotency_conflict",
        "in_doubt",
        "model_timeout",
        "not_run",
        "poisoned",  # in logs of earlier versions
        "rejected",
        "too_large",
        "tools_required",
    }
)
"""The reasons whose details are sentences of ours, or of a participant, and hold no text of an exception."""
FAILURE_SENTENCES = {
    "denied:blocked": "the answer was blocked",
    "call_lost": "a tool call was in flight when its process ended, and cannot be made now",
    "model_error": "the model could not be asked, or its answer could not be used",
    "prompt_error": "the agent's system prompt could not be made",
    "quarantined": "the channel's log is damaged, and cannot be used",
    "rules_failed": "the rules of the channel failed",
    "step_error": "a step of the agent failed",
    "summary_error": "the conversation could not be summarised",
    "turn_error": "the agent failed",
}
REFUSED_PREFIX = "refused:"
LOG_ADVICE = "an operator finds the details in the log"
TOOL_FAILED_SENTENCE = f"the tool failed; {LOG_ADVICE}"
INVITE_FAILED_SENTENCE = "the decision on the invitation failed"


def failure_sentence(reason: str) -> str:
    """The sentence that participants are shown for a failure with this reason."""
    kind = "refused" if reason.startswith(REFUSED_PREFIX) else reason
    known = FAILURE_SENTENCES.get(kind) or ("the answer was refused" if kind == "refused" else "the turn failed")
    return f"{known}; {LOG_ADVICE}"


def public_detail(reason: str, detail: str) -> str:
    """The detail of a failure as a participant is shown it."""
    return detail if reason in PUBLIC_REASONS or not detail else failure_sentence(reason)


def tombstone_of(envelope: Envelope) -> Envelope:
    """The envelope without its content. A tombstone stays as it is."""
    if is_tombstone(envelope):
        return envelope
    internal = envelope.audience is not None and OPERATORS in envelope.audience
    return Envelope(
        derived_id(envelope.channel_id, ERASED, str(envelope.sequence)),
        envelope.channel_id,
        HUB,
        [OPERATORS] if internal else None,
        envelope.event_type if envelope.event_type.startswith(RESERVED_PREFIXES) else EV_ENVELOPE_ERASED,
        _tombstone_data(envelope),
        created_at=envelope.created_at,
        sequence=envelope.sequence,
    )


def _tombstone_data(envelope: Envelope) -> Json:
    event = event_of(envelope)
    if isinstance(event, ChannelCreated):
        return {ERASED: True, **data_of(ChannelCreated(event.type, "", []))}
    return {ERASED: True, "reason": ERASED} if envelope.event_type == EV_CHANNEL_CLOSED else {ERASED: True}


def state_after_tombstone(state: State, event: Event) -> State:
    """The state after a tombstone: how far the channel had come, and nothing of what was in it."""
    match event:
        case ChannelCreated(type=kind):
            return replace_fields(state, type=kind, created_at=state.updated_at)
        case ChannelOpened() if not state.ended:
            return replace_fields(state, status="active")
        case ChannelExpired():
            return replace_fields(state, status="expired", close_reason=ERASED)
        case ChannelClosed():
            return replace_fields(state, status="expired" if state.ended else "closed", close_reason=ERASED)
        case _:
            return state
