"""Who is active is kept with the thread: after a restart, after a crash, and when the team has changed meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Agent, Answered, Hub, calls
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import active_in, agent, asked, log_of, warnings_of
from tests.support.waiting import soon

GONE = "active_agent_gone"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'team.db'}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Hub]:
    async with Hub.open(url, clock=ManualClock()) as hub:
        yield hub


def a_team(*, tax: object = (), billing: object = (), support: object = ()) -> Agent:
    """Three levels, each with its script."""
    lowest = agent("tax", *tax)  # type: ignore[misc]  # scripts
    middle = agent("billing", *billing, agents=[lowest])  # type: ignore[misc]
    return agent("support", *support, agents=[middle])  # type: ignore[misc]


async def test_whoever_is_active_is_so_after_a_restart_at_every_level(url: str) -> None:
    down = {"billing": [calls("transfer_to_tax")], "support": [calls("transfer_to_billing")]}
    async with opened(url) as hub:
        first = a_team(tax=["tax one"], **down)
        assert (await soon(first.invoke("a", thread_id="t", hub=hub))).agent == "tax"
    async with opened(url) as hub:
        second = a_team(tax=["tax two", calls("request_help", {"reason": "no idea"})], billing=["billing three"])
        assert await active_in(second, hub) == "support/billing/tax"
        reply = await soon(second.invoke("b", thread_id="t", hub=hub))
        assert (reply.text, reply.agent) == ("tax two", "tax")
        assert (await soon(second.invoke("c", thread_id="t", hub=hub))).text == "billing three"
    async with opened(url) as hub:
        third = a_team(
            billing=[calls("request_help", {"reason": "me neither"})], support=["support four", "support five"]
        )
        assert await active_in(third, hub) == "support/billing"
        assert (await soon(third.invoke("d", thread_id="t", hub=hub))).text == "support four"
    async with opened(url) as hub:
        fourth = a_team(support=["support five"])
        assert await active_in(fourth, hub) == "support"
        reply = await soon(fourth.invoke("e", thread_id="t", hub=hub))
        assert (reply.text, reply.agent) == ("support five", "support")
        assert asked(fourth)[0].messages == [
            ("user", "a"),
            ("assistant", "tax one"),
            ("user", "b"),
            ("assistant", "tax two"),
            ("user", "c"),
            ("assistant", "billing three"),
            ("user", "d"),
            ("assistant", "support four"),
            ("user", "e"),
        ]


async def test_threads_keep_who_is_active_apart_over_a_restart(url: str) -> None:
    async with opened(url) as hub:
        first = a_team(billing=["billing"], tax=["tax"], support=["support"])
        for key in ("billing", "tax", "lead"):
            await soon(first.invoke(f"@{key} hello", thread_id=key, hub=hub))
    async with opened(url) as hub:
        second = a_team(billing=["billing again"], tax=["tax again"], support=["support again"])
        for key, name in (("tax", "tax"), ("lead", "support"), ("billing", "billing")):
            reply = await soon(second.invoke("hello", thread_id=key, hub=hub))
            assert (reply.text, reply.agent) == (f"{name} again", name)


# A team that has changed


async def changed(url: str, second: Agent, texts: tuple[str, ...] = ("b", "c")) -> tuple[list[str], list[object]]:
    """Who answered after the team has changed while `support/billing/tax` was active, and what was recorded of it."""
    async with opened(url) as hub:
        await soon(a_team(tax=["tax"]).invoke("@tax hello", thread_id="t", hub=hub))
    async with opened(url) as hub:
        replies = [await soon(second.invoke(text, thread_id="t", hub=hub)) for text in texts]
        return [reply.agent for reply in replies], list(await warnings_of(second, hub))


async def test_a_sub_agent_that_is_gone_leaves_the_lead_to_answer_and_that_is_recorded_once(url: str) -> None:
    second = agent("support", "one", "two", agents=[agent("billing")])
    assert await changed(url, second) == (["support", "support"], [(GONE, "support/billing/tax")])
    async with opened(url) as hub:
        assert await active_in(second, hub) == "support"
        [warning] = await log_of(second, hub, "antiphon.agent.warned")
        assert warning.event_data["message"] == "it answered last, and is no longer in the team; support answers itself"


async def test_a_sub_agent_that_has_moved_is_gone_from_where_it_was(url: str) -> None:
    second = agent("support", "one", "two", agents=[agent("billing"), agent("tax")])
    assert await changed(url, second) == (["support", "support"], [(GONE, "support/billing/tax")])


async def test_a_team_that_is_gone_altogether_is_recorded_once_and_forgotten(url: str) -> None:
    second = agent("support", "one", "two")
    assert await changed(url, second) == (["support", "support"], [(GONE, "support/billing/tax")])
    async with opened(url) as hub:
        third = a_team(support=["three"])
        assert (await soon(third.invoke("d", thread_id="t", hub=hub))).agent == "support"


async def test_a_sub_agent_that_is_gone_cannot_be_addressed(url: str) -> None:
    second = agent("support", "one", "two", agents=[agent("billing")])
    agents, _ = await changed(url, second, ("@tax hello", "hello"))
    assert agents == ["support", "support"]


async def test_a_mention_goes_before_what_is_gone(url: str) -> None:
    second = agent("support", agents=[agent("billing", "one", "two")])
    agents, warnings = await changed(url, second, ("@billing hello", "hello"))
    assert agents == ["billing", "billing"]
    assert warnings == [(GONE, "support/billing/tax")]


async def test_a_sub_agent_that_is_still_there_is_taken_as_it_is_declared_now(url: str) -> None:
    tax = agent("tax", "one", "two", system_prompt="You are new here.")
    other = agent("legal")
    second = agent("support", agents=[other, agent("billing", agents=[tax])])
    assert await changed(url, second) == (["tax", "tax"], [])
    assert "You are new here." in asked(tax)[0].system


# A crash

CHILD = """
import asyncio, os, sys
from antiphon import Agent, Hub, ScriptedModel, calls

def die(request):
    os._exit(9)

async def main():
    async with Hub.open(sys.argv[1]) as hub:
        tax = Agent("tax", model=ScriptedModel([die]))
        billing = Agent("billing", model=ScriptedModel([calls("transfer_to_tax")]), agents=[tax])
        support = Agent("support", model=ScriptedModel([calls("transfer_to_billing")]), agents=[billing])
        await support.invoke("how much tax?", thread_id="t", hub=hub, message_id="m")

asyncio.run(main())
"""


async def test_a_turn_that_a_crash_interrupts_three_levels_down_goes_on_there(url: str) -> None:
    """Nobody above is asked again, and no handover is made twice."""
    child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CHILD, url], check=False, timeout=60)
    assert child.returncode == 9
    async with Hub.open(url) as hub:
        tax = agent("tax", "7 euros")
        support = agent("support", agents=[agent("billing", agents=[tax])])
        reply = await asyncio.wait_for(support.invoke("how much tax?", thread_id="t", hub=hub, message_id="m"), 30)
        assert (reply.text, reply.agent) == ("7 euros", "tax")
        assert [item.text for item in asked(tax)[0].exchange if isinstance(item, Answered)] == [
            "Conversation transferred to billing.",
            "Conversation transferred to tax.",
        ]
        assert asked(support) == []
        assert [each.event_data.get("agent") for each in await log_of(support, hub, EV_TEXT)] == [
            None,
            "support/billing/tax",
        ]
        assert await active_in(support, hub) == "support/billing/tax"
