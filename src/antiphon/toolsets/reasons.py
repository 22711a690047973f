"""Why a server could not be opened or asked, in a sentence with the value and the fix.

This module needs the package `mcp`, and is loaded when the first connection is opened.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

from antiphon.core.words import LONGEST_STORY, shown, storable, told
from antiphon.toolsets.failures import MAYBE
from antiphon.toolsets.opening import Heard, Refusals
from antiphon.toolsets.ways import Http, Stdio, Way

STAND_INS = ("Server returned an error response", "Not Found", "Session terminated")
"""What `mcp` says where the server said nothing but a status."""
CREDENTIALS = "give what it asks for, such as headers={'Authorization': 'Bearer …'}"


def is_lost(error: Exception) -> bool:
    """Whether this says that the connection is gone, and not that the request was refused."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED


def is_forgotten(error: Exception, refusals: Refusals) -> bool:
    """Whether the server, since started anew, does not know the connection. The request was not carried out."""
    return isinstance(error, MCPError) and error.code == INVALID_REQUEST and refusals.last == 404


def silent(way: Way, seconds: float) -> str:
    """Why a server is given up that says nothing when it is opened."""
    if isinstance(way, Stdio):
        advice = "check that it speaks MCP on its standard output, or give it more time with connect_timeout="
    else:
        advice = "check that the URL is that of an MCP server, or give it more time with connect_timeout="
    return f"{way.label} did not answer within {seconds:g} s; {advice}"


def not_opened(way: Way, error: Exception, *, heard: Heard, refusals: Refusals) -> str:
    """Why the server could not be opened."""
    cause = _first(error)
    if isinstance(way, Stdio):
        return _not_started(way, cause, heard)
    return _not_reached(way, cause, refusals)


def gone(way: Way, error: Exception | None) -> str:
    """Why a call that was under way has no answer."""
    if isinstance(way, Stdio):
        return f"{way.label} ended before it answered; {MAYBE}"
    cause = f" ({told(_first(error))})" if error is not None else ""
    return f"the connection to {way.label} was lost before it answered{cause}; {MAYBE}"


def refused(way: Way, error: Exception, refusals: Refusals) -> str:
    """Why the server, which is there, did not do what it was asked for."""
    if isinstance(way, Http) and refusals.last is not None and str(error) in STAND_INS:
        return _by_status(way, refusals.last, error)
    return storable(str(error)[:LONGEST_STORY]) if isinstance(error, MCPError) else told(error)


def _not_started(way: Stdio, cause: BaseException, heard: Heard) -> str:
    if isinstance(cause, OSError) and way.cwd is not None and not Path(way.cwd).is_dir():
        return f"{way.label} cannot be started in {shown(way.cwd)}: there is no such directory; give another cwd="
    match cause:
        case FileNotFoundError():
            advice = "install it, or give its path"
            return f"{way.label} cannot be started: there is no command {shown(way.command)}; {advice}"
        case OSError():
            return f"{way.label} cannot be started: {told(cause)}; check the command {shown(way.command)}"
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            words = f"its last words were {heard.words[:LONGEST_STORY]!r}" if heard.words else "it left no words"
            return f"{way.label} ended before it answered; {words}: run it by hand to see why"
        case _:
            return f"{way.label} does not speak MCP as it should: {told(cause)}"


def _not_reached(way: Http, cause: BaseException, refusals: Refusals) -> str:
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"{way.label} cannot be reached: nothing answers there; start it, or check host and port"
    if isinstance(cause, httpx2.TransportError):
        return f"{way.label} broke off ({told(cause)}); check that the URL is that of an MCP server"
    if refusals.last is not None:
        return _by_status(way, refusals.last, cause)
    return f"{way.label} does not speak MCP as it should: {told(cause)}"


def _by_status(way: Http, status: int, error: BaseException) -> str:
    match status:
        case 401 | 403:
            return f"{way.label} answered with HTTP status {status}; {CREDENTIALS}"
        case 404 | 405:
            advice = "give its URL with the path, such as 'http://127.0.0.1:8000/mcp'"
            return f"{way.label} answered with HTTP status {status}: it is not there; {advice}"
        case _:
            return f"{way.label} answered with HTTP status {status} ({told(error)}); look at its log"


def _first(error: BaseException | None) -> BaseException:
    """The first error of those that a group holds."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error
