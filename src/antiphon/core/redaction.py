"""Hides secrets in text: known values in the forms they take on their way, and what looks like a credential.

Rule 1: a known secret is hidden as it is, as base64 at each of the three alignments, URL-quoted, and escaped for JSON.
Rule 2: a secret of which the text was cut short shows no beginning either.
Rule 3: hiding twice is hiding once, so that a text can pass here as often as it has to.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "***"
LEAST_SECRET = 8
"""The fewest characters of a secret. Shorter values occur in ordinary words."""
LEAST_ENCODED = 10
"""The fewest characters of an encoded part of one."""
CUT = re.compile(r"…|\.\.\.|\Z")
"""Where a text may have been cut short."""
CREDENTIALS = re.compile(
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
    """Hides some secrets, and whatever looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._by_head: dict[str, set[str]] = {}
        """The forms of the secrets by their first characters, so that a text is read once however many there are."""
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this from now on."""
        for form in forms(secret):
            self._by_head.setdefault(form[:LEAST_SECRET], set()).add(form)

    def remove(self, secret: str) -> None:
        """Hide this no longer."""
        for form in forms(secret):
            alike = self._by_head.get(form[:LEAST_SECRET], set())
            alike.discard(form)
            if not alike:
                self._by_head.pop(form[:LEAST_SECRET], None)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        return CREDENTIALS.sub(_hidden, self._without_known(text) if self._by_head else text)

    def _without_known(self, text: str) -> str:
        parts: list[str] = []
        done = place = 0
        while place + LEAST_SECRET <= len(text):
            alike = self._by_head.get(text[place : place + LEAST_SECRET])
            size = max((_length(form, text, place) for form in alike), default=0) if alike else 0
            if size:
                parts += (text[done:place], HIDDEN)
                done = place + size
            place += size or 1
        return "".join((*parts, text[done:]))


def _length(form: str, text: str, place: int) -> int:
    """How much of a form stands at a place: all of it, or its beginning where the text was cut short; otherwise 0."""
    if text.startswith(form, place):
        return len(form)
    size = LEAST_SECRET
    while size < len(form) and text[place + size : place + size + 1] == form[size]:
        size += 1
    return size if CUT.match(text, place + size) else 0


def forms(secret: str) -> Iterator[str]:
    """The forms in which a secret may stand in a text; none if it is too short to be one."""
    words = {secret, *secret.split()}
    for word in words:
        if len(word) < LEAST_SECRET:
            continue
        yield word
        for quoted in (quote(word, safe=""), quote(word), quote_plus(word)):
            yield quoted
            yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
        for escaped in (json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1], repr(word)[1:-1]):
            yield escaped
            yield escaped.replace("/", "\\/")
        yield from _encoded(word.encode("utf-8", "surrogatepass"))


def _encoded(secret: bytes) -> Iterator[str]:
    """A secret inside a longer text that was encoded as base64, without the characters that its neighbours share."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            form = encode(b"\0" * before + secret).decode()[first:last]
            if len(form) >= LEAST_ENCODED:
                yield form
                yield quote(form, safe="")


def _hidden(found: re.Match[str]) -> str:
    return f"{found['kept'] or found['name'] or ''}{HIDDEN}"
