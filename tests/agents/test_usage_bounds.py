"""What a request may use at most: its bytes, a model's own count, and prices that are not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Answered, Asked, Call, Message, Reply, Request, Usage, says
from antiphon.agents.messages import ToolSpec
from antiphon.agents.usage_bounds import (
    DEFAULT_OUTPUT_TOKENS,
    UsageBound,
    count_request_bytes,
    settled_usage,
    usage_bound,
)

LOOK = ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}})
REQUEST = Request("Be brief.", [Message("user", "What is it?")])


async def function(request: Request) -> Reply:
    return says("this")


class Hosted:
    """A provider's model that says nothing of its prices."""

    provider = "acme"
    max_output_tokens = 200

    def count_tokens(self, request: Request) -> int:
        return 7


@given(
    st.text(), st.lists(st.text(), max_size=5), st.text(), st.dictionaries(st.text(max_size=5), st.text(), max_size=3)
)
def test_a_request_has_no_more_tokens_than_bytes(
    system: str, said: list[str], answer: str, args: dict[str, str]
) -> None:
    """Each text and each argument is part of what is sent, and so of the count."""
    history = [Message("user", text) for text in said]
    exchange = (Asked(answer, (Call("look", dict(args)),)), Answered(Call("look"), answer))
    size = count_request_bytes(Request(system, history, exchange, (LOOK,)))
    texts = [system, *said, answer, answer, *args, *args.values(), LOOK.description]
    assert size >= sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) + 4 * (len(said) + 2)


def test_a_history_that_grows_is_counted_anew() -> None:
    history = [Message("user", "Hello")]
    before = count_request_bytes(Request("", history))
    assert count_request_bytes(Request("", history)) == before
    history.append(Message("assistant", "x" * 1000))
    assert count_request_bytes(Request("", history)) >= before + 1000
    other = [Message("user", "y" * 5000)]
    assert count_request_bytes(Request("", other, past="the same digest")) > 5000
    assert count_request_bytes(Request("", history, past="the same digest")) < 5000


async def test_functions_reserve_tokens_and_no_money() -> None:
    assert await usage_bound(function, REQUEST) == UsageBound(count_request_bytes(REQUEST) + DEFAULT_OUTPUT_TOKENS)


async def test_a_models_own_count_comes_first() -> None:
    bound = await usage_bound(Hosted(), REQUEST)
    assert bound == UsageBound(207, 7 * 150 + 200 * 600, unpriced=True)


async def test_a_model_may_say_all_of_it() -> None:
    class Known:
        async def most_usage(self, request: Request) -> Usage:
            return Usage(100, 20, cost=3)

    assert await usage_bound(Known(), REQUEST) == UsageBound(120, 3)

    class Wrong:
        def most_usage(self, request: Request) -> Usage:
            return 5  # type: ignore[return-value]

    with pytest.raises(TypeError, match="most_usage returned 5; return a Usage"):
        await usage_bound(Wrong(), REQUEST)

    class Miscounting(Hosted):
        def count_tokens(self, request: Request) -> int:
            return -1

    with pytest.raises(TypeError, match="count_tokens returned -1; return a number of tokens"):
        await usage_bound(Miscounting(), REQUEST)


@pytest.mark.parametrize(
    ("usage", "reserved", "booked"),
    [
        (Usage(10, 5, cost=7), UsageBound(100, 50), (7, 15)),
        (Usage(10, 5, cost=0), UsageBound(100, 50), (0, 15)),
        (Usage(10, 5), UsageBound(100, 0), (0, 15)),  # of a function
        (Usage(), UsageBound(100, 0), (0, 0)),
        (Usage(10, 5), UsageBound(100, 50), (50, 15)),  # the price was known, and is not now
        (Usage(10, 5), UsageBound(100, 50, unpriced=True), (10 * 150 + 5 * 600, 15)),
        (Usage(), UsageBound(100, 50), (50, 100)),  # a server that counts nothing
        (Usage(), UsageBound(100, 50, unpriced=True), (50, 100)),
    ],
)
def test_what_a_provider_does_not_tell_is_booked_as_reserved(
    usage: Usage, reserved: UsageBound, booked: tuple[int, int]
) -> None:
    assert settled_usage(usage, reserved) == booked
