"""The two ways to reach an MCP server: a process of ours, or a URL.

Rule 1: these are values, and nothing is opened here. They are checked where they are written.
Rule 2: a way is named in errors and logs by its label, which holds no credential: neither the arguments of a command
        beyond the first, nor headers, nor what a URL holds besides its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from urllib.parse import urlsplit

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.hosts import is_loopback
from antiphon.core.words import shown
from antiphon.hub.redacting import KNOWN


class Stdio(msgspec.Struct, frozen=True):
    """A process of ours, spoken to on its standard input and output."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    """What its environment has besides the few variables that every process needs."""
    cwd: str | None

    @property
    def label(self) -> str:
        """What it is called in a message."""
        words = [self.command, *(word for word in self.args[:1] if not word.startswith("-"))]
        return f"the MCP server {shown(' '.join(words))}"


class Http(msgspec.Struct, frozen=True):
    """A server somewhere, spoken to over streamable HTTP."""

    url: str
    headers: Mapping[str, str]

    @property
    def label(self) -> str:
        """What it is called in a message."""
        parts = urlsplit(self.url)
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        return f"the MCP server at {shown(address.geturl())}"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


Way = Stdio | Http


def stdio_way(command: str, args: tuple[str, ...], *, env: object, cwd: object) -> Stdio:
    """The process that is started by this command; `UsageError` if it cannot be one."""
    strange = next((word for word in (command, *args) if not isinstance(word, str) or "\x00" in word), None)
    if strange is not None or not command:
        advice = 'give the command and its arguments as texts: MCPServer.stdio("python", "server.py")'
        raise UsageError(f"an MCP server cannot be started with {shown(strange or command)}; {advice}")
    if cwd is not None and not isinstance(cwd, str | PathLike):
        raise UsageError(f"cwd of an MCP server is {shown(cwd)}; give the path of a directory")
    return Stdio(command, args, _texts("env", env), None if cwd is None else str(fspath(cwd)))


def http_way(url: str, headers: object) -> Http:
    """The server at this URL; `UsageError` if it cannot be one."""
    advice = "give one such as 'http://127.0.0.1:8000/mcp'"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{shown(url)} is not the URL of an MCP server ({error}); {advice}") from error
    if not usable:
        raise UsageError(f"{shown(url)} is not the URL of an MCP server; {advice}")
    KNOWN.know_url(url)
    return Http(url, _texts("headers", headers))


def _texts(option: str, given: object) -> dict[str, str]:
    """The option as a dict of texts. Its values are not shown: they may be secret."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{option} of an MCP server is a {type(given).__name__}; give a dict of texts")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"{option} of an MCP server has {shown(name)} as a {type(value).__name__}; give texts")
    KNOWN.know_settings(given)
    return dict(given)
