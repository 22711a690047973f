"""Teams that would go on for ever: each turn ends at a named limit, with what was said so far, and the next works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import (
    Agent,
    AIMessageEvent,
    Answered,
    FinalStateEvent,
    Hub,
    Limits,
    Progress,
    Reply,
    Request,
    Steps,
    ToolResponseEvent,
    ToolUsageEvent,
    UsageError,
    calls,
    says,
)
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import GO_ON, active_in, add, agent, asked, events_of, log_of
from tests.support.waiting import soon

REFUSED = "There have been {} handoffs in this turn, the limit; answer yourself."


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


class Restless:
    """A model that always does the same while people say `go`, and answers when they say anything else."""

    def __init__(self, name: str, does: Callable[[], Reply | list[Reply]]) -> None:
        self.name, self._does = name, does
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Reply | list[Reply]:
        self.requests.append(request)
        heard = [text for role, text in request.history if role == "user"][-1]
        return self._does() if heard.endswith("go") else says(f"{self.name} here")


def restless(name: str, does: Callable[[], Reply | list[Reply]], **options: object) -> Agent:
    return Agent(name, model=Restless(name, does), **options)  # type: ignore[arg-type]  # any option


def count(*team: Agent) -> int:
    """How often their models were asked."""
    return sum(len(each.model.requests) for each in team)  # type: ignore[attr-defined]


def told(who: Agent) -> list[str]:
    """What the last request of its model says of calls, in order."""
    exchange = who.model.requests[-1].exchange  # type: ignore[attr-defined]
    return [item.text for item in exchange if isinstance(item, Answered)]


def help_me() -> Reply:
    return calls("request_help", {"reason": "not mine"}, text="I cannot.")


async def test_mutual_transfers_end_with_a_name_and_the_text_so_far(hub: Hub) -> None:
    """The sixth handoff is refused in words; who asks for another one all the same ends the turn."""
    billing = restless("billing", help_me)
    support = restless("support", lambda: calls("transfer_to_billing", text="To billing."), agents=[billing])
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("I cannot.", "billing", "max_handoffs")
    assert count(support, billing) == 7
    there, back = "Conversation transferred to billing.", "not mine"
    assert told(billing) == [there, back, there, back, there, REFUSED.format(5)]
    assert await active_in(support, hub) == "support/billing"
    after = await soon(support.invoke("and now?", thread_id="t", hub=hub))
    assert (after.text, after.agent, after.stopped) == ("billing here", "billing", None)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 8])
async def test_the_number_of_handoffs_and_so_of_model_calls_is_bounded_by_the_lead(hub: Hub, most: int) -> None:
    billing = restless("billing", help_me, limits=Limits(handoffs=100))
    options = {"agents": [billing], "limits": Limits(handoffs=most)}
    support = restless("support", lambda: calls("transfer_to_billing", text="To billing."), **options)
    events = await events_of(support, "go", hub)
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert final.stopped == "max_handoffs"
    assert count(support, billing) == most + 2
    stands = "billing" if most % 2 else "support"
    assert final.agent == stands
    assert (await soon(support.invoke("and now?", thread_id="t", hub=hub))).text == f"{stands} here"


async def test_whoever_is_refused_once_may_still_answer(hub: Hub) -> None:
    billing = agent(
        "billing", *[calls("request_help", {"reason": "no"})] * 2, calls("request_help", {"reason": "no"}), "Well."
    )
    support = agent("support", *[calls("transfer_to_billing")] * 3, agents=[billing])
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("Well.", "billing", None)
    assert asked(billing)[-1].messages[-1] == ("tool", REFUSED.format(5))


async def test_a_refused_handoff_does_not_keep_the_tools_beside_it_from_running(hub: Hub) -> None:
    message = [calls("transfer_to_billing"), calls("add", {"a": 1, "b": 2})]
    support = agent("support", message, "3", tools=[add], agents=[agent("billing")], limits=Limits(handoffs=0))
    reply = await soon(support.invoke("go", hub=hub))
    assert (reply.text, reply.stopped) == ("3", None)
    assert [item.text for item in asked(support)[1].exchange if isinstance(item, Answered)] == [REFUSED.format(0), "3"]


async def test_a_storm_of_handoffs_in_one_message_is_one_handoff(hub: Hub) -> None:
    team = [agent(f"expert{number}", f"expert {number}") for number in range(30)]
    storm = [calls(f"transfer_to_{each.name}") for each in team for _ in range(3)]
    support = agent("support", storm, agents=team)
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("expert 0", "expert0", None)
    assert [len(asked(each)) for each in team] == [1, *[0] * 29]
    answers = [item for item in asked(team[0])[0].exchange if isinstance(item, Answered)]
    assert [item.failed for item in answers] == [False, *[True] * 89]


async def test_a_storm_round_a_ring_of_agents_ends_too(hub: Hub) -> None:
    """Down through four levels and up again, as far as it may."""
    fourth = restless("fourth", help_me)
    third = restless("third", lambda: calls("transfer_to_fourth"), agents=[fourth])
    second = restless("second", lambda: calls("transfer_to_third"), agents=[third])
    first = restless("first", lambda: calls("transfer_to_second"), agents=[second])
    reply = await soon(first.invoke("go", thread_id="t", hub=hub))
    assert (reply.stopped, reply.text, reply.agent) == ("max_handoffs", "I cannot.", "fourth")
    assert count(first, second, third, fourth) == 7
    assert await active_in(first, hub) == "first/second/third/fourth"


async def test_a_storm_within_one_agent_ends_by_the_number_of_model_calls(hub: Hub) -> None:
    """A transfer to somebody who is not there is no handoff, only a call that fails, over and over."""
    support = restless("support", lambda: calls("transfer_to_nobody", text="To nobody."), agents=[agent("billing")])
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("To nobody.", "support", "max_model_calls")
    assert count(support) == 25
    assert set(told(support)) == {next(iter(told(support)))}
    assert told(support)[0].startswith("There is no tool 'transfer_to_nobody'; there are: transfer_to_billing, ")
    assert (await soon(support.invoke("and now?", thread_id="t", hub=hub))).text == "support here"


async def test_the_number_of_model_calls_is_counted_over_the_whole_team(hub: Hub) -> None:
    billing = restless("billing", lambda: calls("add", {"a": 1, "b": 1}, text="Adding."), tools=[add])
    options = {"agents": [billing], "limits": Limits(model_calls=6)}
    support = restless("support", lambda: calls("transfer_to_billing"), **options)
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("Adding.", "billing", "max_model_calls")
    assert (count(support), count(billing)) == (1, 5)
    assert (await soon(support.invoke("and now?", thread_id="t", hub=hub))).agent == "billing"


async def test_the_text_that_is_kept_is_the_last_that_anybody_of_the_team_said(hub: Hub) -> None:
    billing = restless("billing", lambda: calls("request_help", {"reason": "not mine"}))
    support = restless("support", lambda: calls("transfer_to_billing", text="One moment."), agents=[billing])
    reply = await soon(support.invoke("go", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("One moment.", "billing", "max_handoffs")


async def test_a_turn_that_is_stopped_says_so_in_the_log_and_on_the_stream(hub: Hub) -> None:
    billing = restless("billing", help_me)
    support = restless("support", lambda: calls("transfer_to_billing", text="To billing."), agents=[billing])
    events = await events_of(support, "go", hub)
    assert events[-2] == AIMessageEvent("billing", "I cannot.")
    usages = [event for event in events if isinstance(event, ToolUsageEvent)]
    responses = [event for event in events if isinstance(event, ToolResponseEvent)]
    assert [event.call_id for event in responses] == [event.call_id for event in usages]
    assert len(usages) == 7
    last = (await log_of(support, hub))[-1]
    assert last.event_data == {"text": "I cannot.", "agent": "support/billing", "stopped": "max_handoffs"}


async def test_the_limit_counts_anew_in_every_turn(hub: Hub) -> None:
    back = calls("request_help", {"reason": "no"})
    billing = agent("billing", back, back, "one", back, back, "two", limits=Limits(handoffs=0))
    there = calls("transfer_to_billing")
    support = agent("support", *[there] * 3, *[there] * 2, agents=[billing])
    replies = [await soon(support.invoke(text, thread_id="t", hub=hub)) for text in ("a", "b")]
    assert [(reply.text, reply.stopped) for reply in replies] == [("one", None), ("two", None)]


async def test_mentions_and_resuming_are_no_handoffs(hub: Hub) -> None:
    billing = agent("billing", "one", "two")
    support = agent("support", agents=[billing], limits=Limits(handoffs=0))
    replies = [await soon(support.invoke(text, thread_id="t", hub=hub)) for text in ("@billing a", "b")]
    assert [(reply.text, reply.stopped) for reply in replies] == [("one", None), ("two", None)]


async def test_steps_that_lead_round_in_a_circle_end_too(hub: Hub) -> None:
    def patch(steps: Steps) -> Steps:
        return steps.branch(GO_ON, _is_asked_to_go, "current_active_agent")

    def _is_asked_to_go(progress: Progress) -> bool:
        return progress.heard == "go"

    support = agent("support", "fine", patcher=patch)
    reply = await soon(support.invoke("go", thread_id="t", hub=hub))
    assert (reply.text, reply.stopped, asked(support)) == ("", "max_steps", [])
    assert (await soon(support.invoke("and now?", thread_id="t", hub=hub))).text == "fine"


@pytest.mark.parametrize("most", [-1, 1.5, True, "5", None])
def test_a_limit_is_a_number(most: object) -> None:
    with pytest.raises(UsageError, match="handoffs is "):
        Limits(handoffs=most)  # type: ignore[arg-type]  # on purpose


async def test_a_storm_leaves_other_threads_alone(hub: Hub) -> None:
    billing = restless("billing", help_me)
    support = restless("support", lambda: calls("transfer_to_billing"), agents=[billing])
    await soon(support.invoke("go", thread_id="x", hub=hub))
    reply = await soon(support.invoke("hello", thread_id="y", hub=hub))
    assert (reply.text, reply.agent) == ("support here", "support")
