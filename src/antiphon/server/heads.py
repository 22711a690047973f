"""Heads of requests that can be read in one way only.

Rule 1: a head by which two servers in a row could see two different requests is refused, and its connection closed: a
        body with two lengths, or with a length and chunks, or a header that is folded over several lines.
Rule 2: bytes that are no HTTP are answered like everything else that is refused: as JSON, with a reason.
"""

from __future__ import annotations

import re
from typing import TypeAlias
from weakref import ref

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon.core.codec import to_json
from antiphon.server.problems import JSON, Fault, Problem

HEAD_END = re.compile(rb"\n\r?\n")
LENGTH = b"content-length"
CHUNKS = b"transfer-encoding"

Read: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Ambiguous(h11.RemoteProtocolError):
    """A head can be read in two ways. Its words are ours; those of h11 repeat what was sent, which may be a secret."""


def be_strict(protocol: H11Protocol) -> None:
    """Have a connection refuse heads that can be read in two ways, and tell why in JSON."""
    connection, line = ref(protocol.conn), ref(protocol)  # weak: neither is to be kept alive by its own methods
    told = ""

    def next_event() -> Read:
        nonlocal told
        conn = connection()
        assert conn is not None, "it is called by whoever holds it"
        try:
            if conn.their_state is h11.IDLE:
                _check_lines(conn.trailing_data[0])
            event = h11.Connection.next_event(conn)
            if isinstance(event, h11.Request):
                _check_framing(event)
        except Ambiguous as error:
            told = f": {error}"
            raise
        return event

    def refuse(_message: str) -> None:
        caller = line()
        assert caller is not None, "it is called by itself"
        _send_problem(caller, f"this is no valid HTTP/1.1 request{told}")

    protocol.conn.next_event = next_event  # type: ignore[method-assign]  # a connection is made by uvicorn, which offers no hook
    protocol.send_400_response = refuse  # type: ignore[method-assign, assignment]  # the same


def _check_lines(data: bytes) -> None:
    """Refuse what h11 would repair: the same length twice, and lines that go on in the next."""
    end = HEAD_END.search(data)
    if end is None:
        return
    lengths = 0
    for line in data[: end.start()].split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t"):
            raise Ambiguous("a header goes on in the next line; send it in one line")
        name, _, value = line.partition(b":")
        if name.strip().lower() == LENGTH:
            lengths += 1 + value.count(b",")
    if lengths > 1:
        raise Ambiguous("it has Content-Length more than once; send it once")


def _check_framing(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if CHUNKS in names and LENGTH in names:
        raise Ambiguous("it has Content-Length and Transfer-Encoding; send one of them")
    if CHUNKS in names and request.http_version < b"1.1":
        version = request.http_version.decode("ascii")
        raise Ambiguous(f"it has Transfer-Encoding in HTTP/{version}, which knows none")


def _send_problem(protocol: H11Protocol, message: str) -> None:
    """Answer 400, and close. Once an answer has begun there is only closing left."""
    conn, transport = protocol.conn, protocol.transport
    if conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        body = to_json(Problem(Fault("bad_http", message)))
        headers = [
            *protocol.server_state.default_headers,
            (b"content-type", JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        answer = (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body))
        for event in (*answer, h11.EndOfMessage()):
            transport.write(conn.send(event) or b"")
    transport.close()
