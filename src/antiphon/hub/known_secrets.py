"""The secrets that this process knows, hidden in the errors that are recorded, logged or traced.

Rule 1: there is one redactor for the process. A secret is made known where it is read: the key of a model, the headers
        and the environment of an MCP server, the keys and the token of a server, and the environment itself.
Rule 2: the text of errors passes here, not what participants say or tools return.
Rule 3: a log record of ours is redacted before any handler sees it, its traceback included.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

from antiphon.core.redaction import MIN_SECRET_CHARS, Redactor
from antiphon.core.text import describe_error

MAX_KNOWN_SECRETS = 1000
"""How many secrets are remembered; the ones not seen for longest are forgotten first."""
SECRET_NAME_PATTERN = re.compile(
    r"(?:key|token|secret|password|passwd|credentials?|auth|authorization|_pass|_pwd)\Z", re.I
)
"""How the name of a setting ends that holds a secret."""
ORDINARY_VALUE = re.compile(r"[~.]?/|[A-Za-z]:\\|[a-z][a-z0-9+.-]*://|[A-Za-z]+(?:[-_ ./][A-Za-z]+)*\Z|[0-9.:]+\Z")
"""A value that is a path, an address, plain words or a number: no secret, unless its name says so."""
PLAIN_HEADERS = ("accept", "cache-control", "connection", "content-", "host", "user-agent")
"""How the headers begin that hold no secret."""


class KnownSecrets:
    """What is secret, as far as this process knows."""

    def __init__(self) -> None:
        self._secrets: OrderedDict[str, None] = OrderedDict()
        self._redactor = Redactor()
        self._changing = threading.Lock()  # tools run in threads of their own

    def know(self, *secrets: str) -> None:
        """Hide these from now on. Values of fewer than 8 characters are not hidden: they occur in ordinary words."""
        with self._changing:
            for secret in secrets:
                if len(secret) >= MIN_SECRET_CHARS and secret not in self._secrets:
                    self._redactor.add(secret)
                    self._secrets[secret] = None
                elif secret in self._secrets:
                    self._secrets.move_to_end(secret)
            while len(self._secrets) > MAX_KNOWN_SECRETS:
                self._redactor.remove(self._secrets.popitem(last=False)[0])

    def know_settings(self, settings: Mapping[str, str]) -> None:
        """Hide the values of settings, such as headers, except plain words, numbers, paths and addresses."""
        for name, value in settings.items():
            if name.lower().startswith(PLAIN_HEADERS):
                continue
            if SECRET_NAME_PATTERN.search(name) or not ORDINARY_VALUE.match(value):
                self.know(value)
            self.know_url(value)

    def know_url(self, url: str) -> None:
        """Hide the password in a URL, and the values of its query whose names say that they are secret."""
        self.know(*_secrets_in_url(url))

    def know_environment(self) -> None:
        """Hide the values of the environment variables whose names say that they are secret."""
        for name, value in os.environ.items():
            if SECRET_NAME_PATTERN.search(name) and not value.startswith(("/", "~")):
                self.know(value)
            self.know_url(value)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        with self._changing:
            return self._redactor(text)


KNOWN_SECRETS = KnownSecrets()
"""The secrets of this process."""


def redact_text(text: str) -> str:
    """The text of an error without secrets."""
    return KNOWN_SECRETS(text)


def redact_error(error: BaseException) -> str:
    """The type and text of an error, cut short, without secrets."""
    return redact_text(describe_error(error))


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact_text(record.getMessage()), None
    if record.exc_info and record.exc_info[0] is not None:
        trace = logging.Formatter().formatException(record.exc_info)
        record.exc_text = redact_text(trace)
        if record.exc_text != trace:
            record.exc_info = None  # otherwise a handler that formats it itself would show the secret
    if record.stack_info:
        record.stack_info = redact_text(record.stack_info)
    return True


def redact_loggers(names: Iterable[str]) -> None:
    """Redact what the loggers of these names are given. Doing it again changes nothing."""
    for name in names:  # each by itself: a filter of a parent does not see the records of its children
        logging.getLogger(name).addFilter(_redact_record)


LOGGING_PARTS = ("engine", "hub", "mcp", "models", "server", "store", "transport")
REDACTED_LOGGERS = tuple(f"antiphon.{part}" for part in LOGGING_PARTS)
redact_loggers(REDACTED_LOGGERS)


def _secrets_in_url(url: str) -> Iterator[str]:
    if "://" not in url:
        return
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return
    if password:
        yield password
    for name, value in parse_qsl(parts.query):
        if SECRET_NAME_PATTERN.search(name):
            yield value
