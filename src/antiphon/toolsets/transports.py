"""How an MCP server is reached: a child process, or a URL.

Rule 1: a transport is a value, validated where it is declared.
Rule 2: errors and logs name it by its label, which holds no credential: no arguments of a command beyond the first, no
        headers, and of a URL only the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from urllib.parse import urlsplit

import msgspec

from antiphon._net import is_loopback
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.hub.known_secrets import KNOWN_SECRETS


class StdioTransport(msgspec.Struct, frozen=True):
    """A child process, over its standard input and output."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    """What its environment has besides the few variables that every process needs."""
    cwd: str | None

    @property
    def label(self) -> str:
        """Its name in messages."""
        words = [self.command, *(word for word in self.args[:1] if not word.startswith("-"))]
        return f"the MCP server {describe(' '.join(words))}"


class HttpTransport(msgspec.Struct, frozen=True):
    """A server at a URL, over streamable HTTP."""

    url: str
    headers: Mapping[str, str]

    @property
    def label(self) -> str:
        """Its name in messages."""
        parts = urlsplit(self.url)
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        return f"the MCP server at {describe(address.geturl())}"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


McpTransport = StdioTransport | HttpTransport


def stdio_transport(command: str, args: tuple[str, ...], *, env: object, cwd: object) -> StdioTransport:
    """The transport of this command; `UsageError` if it is invalid."""
    strange = next((word for word in (command, *args) if not isinstance(word, str) or "\x00" in word), None)
    if strange is not None or not command:
        advice = 'give the command and its arguments as texts: MCPServer.stdio("python", "server.py")'
        raise UsageError(f"an MCP server cannot be started with {describe(strange or command)}; {advice}")
    if cwd is not None and not isinstance(cwd, str | PathLike):
        raise UsageError(f"cwd of an MCP server is {describe(cwd)}; give the path of a directory")
    return StdioTransport(command, args, _text_settings("env", env), None if cwd is None else str(fspath(cwd)))


def http_transport(url: str, headers: object) -> HttpTransport:
    """The transport of this URL; `UsageError` if it is invalid."""
    advice = "give one such as 'http://127.0.0.1:8000/mcp'"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{describe(url)} is not the URL of an MCP server ({error}); {advice}") from error
    if not usable:
        raise UsageError(f"{describe(url)} is not the URL of an MCP server; {advice}")
    KNOWN_SECRETS.know_url(url)
    return HttpTransport(url, _text_settings("headers", headers))


def _text_settings(option: str, given: object) -> dict[str, str]:
    """The option as a dict of texts. Its values are not shown: they may be secret."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{option} of an MCP server is a {type(given).__name__}; give a dict of texts")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"{option} of an MCP server has {describe(name)} as a {type(value).__name__}; give texts")
    KNOWN_SECRETS.know_settings(given)
    return dict(given)
