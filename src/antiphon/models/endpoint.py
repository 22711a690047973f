"""Where a provider is asked, and with which key.

Rule 1: the environment is read at each use, and what was given explicitly wins over it.
Rule 2: a key goes into a header and nowhere else: not into a `repr`, an error or a line of a log.
Rule 3: what is wrong with an address or a key is told before anything is sent.
Rule 4: beyond this machine everything is encrypted, unless somebody says `plain_http=True`. On this machine no key is
        needed, for the model servers there ask for none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from antiphon.core.errors import UsageError
from antiphon.core.hosts import is_loopback
from antiphon.core.words import shown
from antiphon.hub.redacting import KNOWN

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
ADDRESS = "give an address such as https://example.com/v1"
CUT_SHORT = "…"
"""How others' words end of which not all is repeated."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Who answers, and what the environment may say of it."""

    name: str
    home: str
    """Its own address."""
    key_variable: str
    url_variable: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where one request goes, and what it may be opened with."""

    provider: Provider
    url: str
    host: str
    key: str | None = field(repr=False)
    key_from: str
    """What to look at if the key is not taken."""
    is_local: bool

    @property
    def is_home(self) -> bool:
        """Whether this is the provider's own address, where its own prices hold."""
        return self.url == self.provider.home

    def __str__(self) -> str:
        return f"{self.provider.name} at {self.host}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a user said about where to ask, and with which key."""

    provider: Provider
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    plain_http: bool = False

    def __post_init__(self) -> None:
        given: object = self.base_url
        if given is not None:
            self._url(given, "base_url")
        key: object = self.api_key
        if key is not None and (not isinstance(key, str) or not HEADER_VALUE.fullmatch(key)):
            raise UsageError("the api_key is no text of plain characters without blanks around it; give it as it is")

    def address(self) -> Address:
        """Where to ask now; `UsageError` if the address is none, or the key is missing."""
        provider, url = self.provider, self.base_url
        if url is None:
            said = os.environ.get(provider.url_variable, "").strip()
            parts = self._url(said or provider.home, provider.url_variable)
        else:
            parts = self._url(url, "base_url")
        key, key_from = self.api_key, "api_key"
        if key is None:
            key, key_from = os.environ.get(provider.key_variable, "").strip() or None, provider.key_variable
        is_local = is_loopback(parts.hostname or "")
        if key is None and not is_local:
            raise UsageError(f"{provider.name} needs a key; set {provider.key_variable}, or give api_key=…")
        if key is not None and not HEADER_VALUE.fullmatch(key):
            raise UsageError(f"the key in {key_from} has characters that no key has; set it again")
        if key is not None:
            KNOWN.know(key)
        return Address(provider, parts.geturl().rstrip("/"), parts.netloc, key, key_from, is_local)

    def _url(self, given: object, place: str) -> SplitResult:
        """The parts of an address; `UsageError` if it is none that can be used."""
        if not isinstance(given, str):
            raise UsageError(f"{place} is {shown(given)}; {ADDRESS}")
        if "@" in given:
            raise UsageError(
                f"{place} has a name or a password in it; give the address alone, and the key as api_key=…"
            )
        try:
            parts = urlsplit(given)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{place} is {shown(given)}: {error}; {ADDRESS}") from error
        if parts.scheme not in ("http", "https") or not host or not given.isprintable() or " " in given:
            raise UsageError(f"{place} is {shown(given)}; {ADDRESS}")
        if parts.query or parts.fragment:
            raise UsageError(f"{place} is {shown(given)}; give it without what follows ? or #")
        if parts.scheme == "http" and not self.plain_http and not is_loopback(host):
            advice = "give an https address, or plain_http=True if you trust everything between here and there"
            raise UsageError(f"{place} is {shown(given)}, where keys and prompts would travel unencrypted; {advice}")
        return parts


def checked_headers(headers: object) -> dict[str, str]:
    """Headers of a user's; `UsageError`, without their values, if they are none."""
    if not isinstance(headers, Mapping):
        raise UsageError("headers is no dict; give the names and values of headers, such as {'x-team': 'blue'}")
    for name, value in headers.items():
        if not isinstance(name, str) or not HEADER_NAME.fullmatch(name):
            raise UsageError(f"a header is called {shown(name)}; give a name such as 'x-team'")
        if not isinstance(value, str) or not HEADER_VALUE.fullmatch(value):
            raise UsageError(f"the header {name!r} has a value that no header has; give a text of plain characters")
    return {name.lower(): value for name, value in headers.items()}
