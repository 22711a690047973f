"""Settings of a provider's model: its address, its key, its options, and models by name (`openai:gpt-5-mini`).

Rule 1: the environment is read at each use; explicit settings win over it.
Rule 2: a key goes into a header and nowhere else: not into a `repr`, an error or a log.
Rule 3: an invalid address or key is reported before anything is sent.
Rule 4: requests to other machines are encrypted, unless `plain_http=True`. On this machine no key is needed.
Rule 5: options are checked when the model is made. An option has the provider's name and is sent as it is; others go
        into `body`, where None removes a field.
Rule 6: a name is resolved where the agent is declared, so that a wrong one fails there. Nothing is sent yet, and the
        module of a provider is loaded when it is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict
from urllib.parse import SplitResult, urlsplit

from antiphon._net import is_loopback
from antiphon.core.codec import Malformed, check_json, copy_json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.models.prices import Price

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
ADDRESS_ADVICE = "give an address such as https://example.com/v1"
QUOTE_CUT_MARK = "…"
"""The end of a truncated quotation."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, and the environment variables of its settings."""

    name: str
    home: str
    """Its public address."""
    key_variable: str
    url_variable: str


@dataclass(frozen=True, slots=True)
class ProviderAddress:
    """The address and key of one request."""

    provider: Provider
    url: str
    host: str
    key: str | None = field(repr=False)
    key_from: str
    """The source of the key, for errors."""
    is_local: bool

    @property
    def is_home(self) -> bool:
        """Whether this is the provider's public address, where its published prices apply."""
        return self.url == self.provider.home

    def __str__(self) -> str:
        return f"{self.provider.name} at {self.host}"


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    """The user's settings of address and key."""

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

    def address(self) -> ProviderAddress:
        """The address and key for a request now; `UsageError` if the address is invalid, or the key is missing."""
        provider, url, place = self.provider, self.base_url, "base_url"
        if url is None:
            url, place = os.environ.get(provider.url_variable, "").strip() or provider.home, provider.url_variable
        parts = self._url(url, place)
        key, key_from = self.api_key, "api_key"
        if key is None:
            key, key_from = os.environ.get(provider.key_variable, "").strip() or None, provider.key_variable
        is_local = is_loopback(parts.hostname or "")
        if key is None and not is_local:
            raise UsageError(f"{provider.name} needs a key; set {provider.key_variable}, or give api_key=…")
        if key is not None and not HEADER_VALUE.fullmatch(key):
            raise UsageError(f"the key in {key_from} has characters that no key has; set it again")
        if key is not None:
            KNOWN_SECRETS.know(key)
        return ProviderAddress(provider, parts.geturl().rstrip("/"), parts.netloc, key, key_from, is_local)

    def _url(self, given: object, place: str) -> SplitResult:
        """The parts of an address; `UsageError` if it cannot be used."""
        if not isinstance(given, str):
            raise UsageError(f"{place} is {describe(given)}; {ADDRESS_ADVICE}")
        if "@" in given:
            raise UsageError(
                f"{place} has a name or a password in it; give the address alone, and the key as api_key=…"
            )
        try:
            parts = urlsplit(given)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{place} is {describe(given)}: {error}; {ADDRESS_ADVICE}") from error
        if parts.scheme not in ("http", "https") or not host or not given.isprintable() or " " in given:
            raise UsageError(f"{place} is {describe(given)}; {ADDRESS_ADVICE}")
        if parts.query or parts.fragment:
            raise UsageError(f"{place} is {describe(given)}; give it without what follows ? or #")
        if parts.scheme == "http" and not self.plain_http and not is_loopback(host):
            advice = "give an https address, or plain_http=True if you trust everything between here and there"
            raise UsageError(f"{place} is {describe(given)}, where keys and prompts would travel unencrypted; {advice}")
        return parts


def parse_headers(headers: object) -> dict[str, str]:
    """User-defined headers; `UsageError`, without their values, if they are invalid."""
    if not isinstance(headers, Mapping):
        raise UsageError("headers is no dict; give the names and values of headers, such as {'x-team': 'blue'}")
    for name, value in headers.items():
        if not isinstance(name, str) or not HEADER_NAME.fullmatch(name):
            raise UsageError(f"a header is called {describe(name)}; give a name such as 'x-team'")
        if not isinstance(value, str) or not HEADER_VALUE.fullmatch(value):
            raise UsageError(f"the header {name!r} has a value that no header has; give a text of plain characters")
    return {name.lower(): value for name, value in headers.items()}


OutputSchemaMode = Literal["sent", "strict", "told"]
"""How a model gets the schema of its answer: in the request, there and enforced strictly, or in the prompt."""

OUTPUT_SCHEMA_MODES = ("sent", "strict", "told")
MODEL_SETTINGS = ("base_url", "api_key", "price")
"""Options of a model that are no options of its requests."""


class ProviderOptions(TypedDict, total=False):
    """Options of every provider's models."""

    base_url: str | None
    api_key: str | None
    price: Price | None
    max_tokens: int
    headers: Mapping[str, str]
    """Additional headers of each request."""
    body: Mapping[str, object]
    """Additional or replaced fields of the request; None removes one."""
    output_schema: OutputSchemaMode
    plain_http: bool
    """Whether another machine may be used without encryption."""


def parse_options(given: ProviderOptions, known: type[ProviderOptions]) -> dict[str, object]:
    """A copy of the options of requests; `UsageError` if one is unknown or invalid."""
    for name in given:
        if name not in known.__annotations__ and name not in ProviderOptions.__annotations__:
            raise UsageError(
                f"a model has no option {describe(name)}; what the provider knows goes into body={{{name!r}: …}}"
            )
    options = {name: value for name, value in given.items() if value is not None and name not in MODEL_SETTINGS}
    if "headers" in options:
        options["headers"] = parse_headers(options["headers"])
    body = options.get("body", {})
    if not isinstance(body, Mapping):
        raise UsageError(f"body is {describe(body)}; give a dict of fields")
    schema = options.get("output_schema", "sent")
    if schema not in OUTPUT_SCHEMA_MODES:
        raise UsageError(f"output_schema is {describe(schema)}; give one of {', '.join(OUTPUT_SCHEMA_MODES)}")
    try:
        check_json(dict(options, body=dict(body)))
    except Malformed as error:
        raise UsageError(f"the options of a model are sent as JSON: {error}") from error
    return copy_json(options)


def check_model_name(name: object) -> str:
    """The name of a model; `UsageError` if it is invalid."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"the name of a model is {describe(name)}; give it as the provider writes it")
    return name


def request_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are sent as they are."""
    ours = ("headers", "body", "output_schema", "plain_http")
    return {name: value for name, value in options.items() if name not in ours}


def with_body_fields(fields: dict[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """The fields of a request, with the user's changes."""
    more = options.get("body")
    merged = {**fields, **more} if isinstance(more, dict) else fields
    return {name: value for name, value in merged.items() if value is not None}


def user_headers_of(options: Mapping[str, object]) -> dict[str, str]:
    """The user's own headers."""
    headers = options.get("headers")
    return dict(headers) if isinstance(headers, dict) else {}


def describe_options(options: Mapping[str, object]) -> str:
    """The options as arguments; of headers and of the body only the names, because their values may be secrets."""
    shown = {name: sorted(value) if isinstance(value, dict) else value for name, value in options.items()}
    return "".join(f", {name}={describe(value)}" for name, value in shown.items())
