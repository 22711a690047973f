"""What a model returned, as one reply: the one form in which everything after it knows an answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.agents.arguments import checked_call
from antiphon.agents.blocks import read_blocks
from antiphon.agents.messages import NO_USAGE, Reply

ADVICE = "return says(…), calls(…), a list of calls(…) or a list of content blocks"


def one_reply(answer: object) -> Reply:
    """The answer as one reply, content blocks read; `TypeError` if it is none."""
    if isinstance(answer, Reply):
        return _read(answer)
    parts = list(answer) if isinstance(answer, list | tuple) else []
    if any(isinstance(part, dict) for part in parts):
        return Reply(*read_blocks(parts))
    if not parts or not all(isinstance(part, Reply) for part in parts):
        raise TypeError(f"a model returned {type(answer).__name__}; {ADVICE}")
    return _joined([_read(part) for part in parts])


def _read(reply: Reply) -> Reply:
    """The reply with a text that is one. What it calls for itself comes before what its blocks call for."""
    given: object = reply.text
    calls = tuple(map(checked_call, reply.calls))
    if given is None:
        return msgspec.structs.replace(reply, text="", calls=calls)
    if not isinstance(given, list | tuple):
        return msgspec.structs.replace(reply, calls=calls) if calls != reply.calls else reply
    text, called = read_blocks(given)
    return msgspec.structs.replace(reply, text=text, calls=(*calls, *called))


def _joined(replies: Sequence[Reply]) -> Reply:
    text = "\n".join(reply.text for reply in replies if reply.text)
    usage = sum((reply.usage for reply in replies), NO_USAGE)
    calls = tuple(call for reply in replies for call in reply.calls)
    return Reply(text, calls, usage, any(reply.cut for reply in replies))
