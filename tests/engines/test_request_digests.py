"""Requests as they are written for their digests."""

from __future__ import annotations

import pytest

from antiphon.agents.call_results import Call
from antiphon.agents.messages import Answered, Asked, Request, ToolSpec
from antiphon.agents.usage_bounds import count_request_bytes
from antiphon.core.views import Message
from antiphon.engines.prepared_calls import encode_request, sent_bytes

LOOK_UP = ToolSpec("look_up", "Look a page up.", {"type": "object", "properties": {"page": {"type": "integer"}}})
CALL = Call("look_up", {"page": 2.5, "b": None, "a": "ü"}, "1")
ASKED = Asked("I look it up — at once.", (CALL,))
REQUESTS = [
    Request("", []),
    Request("Be short.", [Message("user", "Read.")], (), (LOOK_UP,), "ab12", {"type": "string"}),
    Request("Be short.", [], (ASKED, Answered(CALL, "page 2")), (LOOK_UP,), 'a "past" of its own, ü'),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_bytes_of_what_was_written_are_those_that_are_counted(request_: Request) -> None:
    sent = sent_bytes(request_, encode_request(request_))
    assert count_request_bytes(request_, sent) == count_request_bytes(request_)
