"""How much of anything one server takes."""

from __future__ import annotations

import msgspec

HOST, PORT = "127.0.0.1", 8484
"""Where it listens, if nobody says otherwise."""


class Limits(msgspec.Struct, frozen=True):
    """What a server allows. Everything beyond is refused by name."""

    body_bytes: int = 1024 * 1024
    """The size of a request's body."""
    body_seconds: float = 30.0
    """How long a body may take to arrive."""
    body_stalled_seconds: float = 5.0
    """How long nothing of a body may arrive."""
    request_seconds: float = 5.0
    """How long a connection may be open without a request, or take to send the head of one."""
    connections: int = 4096
    """How many connections there may be at once; fewer, if the process may not open so many files."""
    connections_each: int = 1024
    """The share of one key, or of one address without a key."""
    streams: int = 2000
    """How many streams of events there may be at once."""
    streams_each: int = 500
    """The share of one key, or of one address without a key."""
    waiting: int = 2000
    """How many requests may wait for an agent's answer at once."""
    waiting_each: int = 500
    """The share of one key, or of one address without a key."""
    stalled_seconds: float = 30.0
    """How long somebody may take nothing of what they are sent before they are cut off."""
    heartbeat_seconds: float = 15.0
    """How often a stream that is silent shows that it lives."""
    recheck_seconds: float = 30.0
    """How often it is looked up whether a key is still good for the stream that it began."""
    lag: int = 10_000
    """How many envelopes a subscriber may be behind of what came since it began."""
    page: int = 1000
    """How many rows or envelopes are given at once."""
    page_bytes: int = 1024 * 1024
    """The size of what is given at once. A page with one row or envelope may be larger."""
    stop_seconds: float = 10.0
    """How long requests under way may take when the server stops."""


USUAL = Limits()
