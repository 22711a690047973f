"""One agent's turn, with every contact with the world yielded to the caller.

Rule 1: nothing here waits or calls. Whoever drives the turn makes the calls and sends back what they came to; a plain
        driver, one that streams, one that reads a journal and a test are all drivers of this one loop.
Rule 2: a call is known by its position. Positions follow from the replies alone, so a turn that is run again asks for
        the same things in the same places.
Rule 3: every call gets a result. Of several handoffs in one message the first that is valid wins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import msgspec

from antiphon.agents.calling import Returned
from antiphon.agents.messages import NO_USAGE, Answered, Asked, Call, Exchange, Reply, Request, Usage
from antiphon.agents.results import Handoff

EMPTY_REPLY = "empty_reply"
MOST_MODEL_CALLS = "max_model_calls"


class AskModel(msgspec.Struct, frozen=True):
    """Ask the model."""

    index: int
    request: Request


class CallTool(msgspec.Struct, frozen=True):
    """Call a tool."""

    index: int
    call: Call


Wanted = AskModel | tuple[CallTool, ...]
"""What a turn needs next: the model, or tools that may all be called at once."""
Given = Reply | tuple[Returned, ...]
"""What that came to, in the same order."""


class Said(msgspec.Struct, frozen=True):
    """What a turn came to."""

    text: str
    stopped: str | None = None
    """The named limit that ended it; None if it ended by itself."""
    handoff: Handoff | None = None
    finish: str | None = None
    """Why there is nothing left to do."""
    usage: Usage = NO_USAGE
    tools: tuple[str, ...] = ()
    """The tools that were called and did not fail, in the order the model named them."""


class Manner(msgspec.Struct, frozen=True):
    """How this turn is to be taken."""

    direct: frozenset[str] = frozenset()
    """The tools whose result is the answer."""
    most: int = 25
    """How often the model may be asked."""
    refusal: Callable[[Handoff], str | None] = lambda handoff: None
    """Why a handoff is not possible here; None if it is."""


Turning = Generator[Wanted, Given, Said]


def take_turn(request: Request, manner: Manner) -> Turning:
    """Ask the model, call what it asks for, and ask again, until it has said what it has to say."""
    index, usage, partial = 0, NO_USAGE, ""
    called: tuple[str, ...] = ()
    for _ in range(manner.most):
        reply = yield AskModel(index, request)
        assert isinstance(reply, Reply), "a model is answered by a reply"
        usage, partial = usage + reply.usage, reply.text or partial
        if not reply.calls:
            return Said(reply.text, None if reply.text else EMPTY_REPLY, usage=usage, tools=called)
        wanted = tuple(CallTool(index + 1 + place, call) for place, call in enumerate(reply.calls))
        results = yield wanted
        assert isinstance(results, tuple), "tools are answered by as many results"
        index += 1 + len(wanted)
        called += tuple(call.name for call, result in zip(reply.calls, results, strict=True) if not result.failed)
        results = _with_one_handoff(results, manner.refusal)
        said = _ending(reply, results, manner)
        if said is not None:
            return msgspec.structs.replace(said, usage=usage, tools=called)
        request = msgspec.structs.replace(request, exchange=request.exchange + _exchanged(reply, results))
    return Said(partial, MOST_MODEL_CALLS, usage=usage, tools=called)


def _with_one_handoff(results: tuple[Returned, ...], refusal: Callable[[Handoff], str | None]) -> tuple[Returned, ...]:
    """The results with at most one handoff left: the first that is possible."""
    kept: list[Returned] = []
    taken: str | None = None
    for result in results:
        if result.handoff is None:
            kept.append(result)
        elif taken is not None:
            kept.append(Returned(f"Ignored: the turn goes to {taken}.", failed=True))
        elif (why := refusal(result.handoff)) is not None:
            kept.append(Returned(why, failed=True))
        else:
            taken = result.handoff.target
            kept.append(result)
    return tuple(kept)


def _ending(reply: Reply, results: tuple[Returned, ...], manner: Manner) -> Said | None:
    """How the turn ends with these results; None if the model is to be asked again."""
    finish = next((result.finish for result in results if result.finish is not None), None)
    handoff = next((result.handoff for result in results if result.handoff is not None), None)
    if finish is not None:
        return Said(reply.text or finish.reason, finish=finish.reason)
    if handoff is not None:
        return Said(reply.text or handoff.summary, handoff=handoff)
    pairs = zip(reply.calls, results, strict=True)
    direct = next((result for call, result in pairs if call.name in manner.direct and not result.failed), None)
    return None if direct is None else Said(direct.text)


def _exchanged(reply: Reply, results: tuple[Returned, ...]) -> Exchange:
    answers = (Answered(call, result.text, result.failed) for call, result in zip(reply.calls, results, strict=True))
    return (Asked(reply.text, reply.calls), *answers)


Perform = Callable[[Wanted], Awaitable[Given]]
"""Makes calls, and gives what they came to."""


async def drive(turn: Turning, perform: Perform) -> Said:
    """Take a turn to its end."""
    try:
        wanted = next(turn)
        while True:
            wanted = turn.send(await perform(wanted))
    except StopIteration as end:
        said: Said = end.value
        return said
