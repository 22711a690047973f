"""Calls in doubt over HTTP: listed for those who take part, and decided once, by somebody who has seen them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
import pytest

from antiphon import Agent, Limits, Reply, Request, calls, says, tool
from antiphon.runtime.turn_control import APPROVAL_DECISIONS
from antiphon.server.api_keys import KEY_SCOPES
from tests.support.crashing_hubs import Mind, crashes
from tests.support.served_hub import ServedHub, served_hub
from tests.support.waiting import let_others_run, wait_until

INVOKE = "/agents/support/invoke"
QUESTION = {"text": "Pay.", "thread_id": "t", "message_id": "m"}
PERSON = [scope for scope in KEY_SCOPES if scope != "operate"]


@dataclass
class Till:
    """A tool that takes money, the first time without an answer."""

    made: list[int] = field(default_factory=list)

    def agent(self) -> Agent:
        @tool(idempotency="unsafe", timeout=0.02)
        async def pay(cents: int) -> str:
            """Pay."""
            self.made.append(cents)
            if len(self.made) == 1:
                await asyncio.Event().wait()
            return f"paid {cents}"

        async def model(request: Request) -> Reply:
            return says(f"So: {request.messages[-1].text}") if request.exchange else calls("pay", {"cents": 4200})

        return Agent("support", model, tools=[pay])


@dataclass
class Doubt:
    """A turn that waits for a person, and who may decide."""

    here: ServedHub
    till: Till
    ann: httpx2.AsyncClient
    waiting: dict[str, object]

    def path(self) -> str:
        return f"/approvals/{self.waiting['approval_id']}"

    def choice(self, decision: str, text: str = "") -> dict[str, object]:
        return {"decision": decision, "digest": self.waiting["digest"], "text": text}


@asynccontextmanager
async def in_doubt() -> AsyncIterator[Doubt]:
    till = Till()
    async with served_hub(till.agent()) as here:
        ann = await here.known("ann", *PERSON)
        refused = await ann.post(INVOKE, json=QUESTION)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "in_doubt")
        [waiting] = (await ann.get("/approvals")).json()["approvals"]
        yield Doubt(here, till, ann, waiting)


async def test_a_call_in_doubt_is_listed_with_everything_that_a_decision_needs() -> None:
    async with in_doubt() as doubt:
        waiting = doubt.waiting
        assert (waiting["agent"], waiting["tool"], waiting["args"]) == ("support", "pay", {"cents": 4200})
        assert waiting["options"] == list(APPROVAL_DECISIONS)
        assert "nothing came within 0.02 seconds" in str(waiting["why"])
        assert len(str(waiting["digest"])) >= 32
        own = (await doubt.ann.get("/channels")).json()["channels"]
        assert [row["channel_id"] for row in own] == [waiting["channel_id"]]


@pytest.mark.parametrize(
    ("decision", "text", "answer", "made"),
    [
        ("approve", "", "So: paid 4200", 2),
        ("respond", "receipt 7", "So: receipt 7", 1),
        ("reject", "", "not to be relied on.", 1),
        ("reject", "the till is broken", "not to be relied on: the till is broken", 1),
    ],
)
async def test_what_was_decided_is_done(decision: str, text: str, answer: str, made: int) -> None:
    async with in_doubt() as doubt:
        decided = await doubt.ann.post(doubt.path(), json=doubt.choice(decision, text))
        expected = {"approval_id": doubt.waiting["approval_id"], "decision": decision, "by": "ann"}
        assert (decided.status_code, decided.json()) == (200, expected)
        reply = (await doubt.ann.post(INVOKE, json=QUESTION)).json()
        assert reply["text"].endswith(answer)
        assert len(doubt.till.made) == made
        assert (await doubt.ann.get("/approvals")).json()["approvals"] == []


async def test_the_first_decision_counts() -> None:
    async with in_doubt() as doubt:
        choices = [doubt.choice("respond", f"receipt {number}") for number in range(5)]
        answers = await asyncio.gather(*(doubt.ann.post(doubt.path(), json=each) for each in choices))
        assert sorted(each.status_code for each in answers) == [200, 409, 409, 409, 409]
        winner = next(place for place, each in enumerate(answers) if each.status_code == 200)
        reply = (await doubt.ann.post(INVOKE, json=QUESTION)).json()
        assert reply["text"] == f"So: receipt {winner}"
        late = await doubt.ann.post(doubt.path(), json=doubt.choice("approve"))
        assert (late.status_code, late.json()["error"]["reason"]) == (409, "decided")
        assert len(doubt.till.made) == 1


async def test_nobody_decides_what_they_have_not_seen() -> None:
    async with in_doubt() as doubt:
        stale = await doubt.ann.post(doubt.path(), json={**doubt.choice("approve"), "digest": "0" * 64})
        assert (stale.status_code, stale.json()["error"]["reason"]) == (409, "stale_decision")
        edited = await doubt.ann.post(doubt.path(), json=doubt.choice("edit", '{"cents": 1}'))
        assert (edited.status_code, edited.json()["error"]["reason"]) == (422, "bad_decision")
        unknown = await doubt.ann.post(doubt.path(), json=doubt.choice("shrug"))
        assert (unknown.status_code, unknown.json()["error"]["reason"]) == (422, "bad_body")
        assert len((await doubt.ann.get("/approvals")).json()["approvals"]) == 1
        assert len(doubt.till.made) == 1


async def test_what_waits_for_others_is_not_there() -> None:
    async with in_doubt() as doubt:
        eve = await doubt.here.known("eve", *PERSON)
        assert (await eve.get("/approvals")).json() == {"approvals": [], "next": None}
        strange = await eve.post(doubt.path(), json=doubt.choice("approve"))
        absent = await eve.post("/approvals/nowhere.6.support.1.1", json=doubt.choice("approve"))
        assert (strange.status_code, absent.status_code) == (404, 404)
        same = absent.text.replace("nowhere.6.support.1.1", str(doubt.waiting["approval_id"]))
        assert strange.text == same
        assert (await eve.get("/approvals", params={"view": "operator"})).status_code == 403
        assert len(doubt.till.made) == 1


@pytest.mark.parametrize("wrong", ["x", "x.y", "....", "a.b.c.d", "{channel}.6.support.x", "{channel}.-1.support.1"])
async def test_an_id_that_is_none_leads_nowhere(wrong: str) -> None:
    async with in_doubt() as doubt:
        path = "/approvals/" + wrong.format(channel=doubt.waiting["channel_id"])
        refused = await doubt.ann.post(path, json=doubt.choice("approve"))
        assert (refused.status_code, refused.json()["error"]["reason"]) == (404, "unknown_approval")


async def test_an_operator_sees_and_decides_everything() -> None:
    async with in_doubt() as doubt:
        chief = await doubt.here.known("chief")
        assert (await chief.get("/approvals")).json()["approvals"] == []
        found = (await chief.get("/approvals", params={"view": "operator"})).json()["approvals"]
        assert found == [doubt.waiting]
        decided = await chief.post(doubt.path(), json=doubt.choice("respond", "receipt 7"))
        assert (decided.status_code, decided.json()["by"]) == (200, "chief")
        assert (await doubt.ann.post(INVOKE, json=QUESTION)).json()["text"] == "So: receipt 7"


async def test_what_waits_is_listed_page_by_page() -> None:
    async with in_doubt() as doubt:
        pages, after = [], ""
        while True:
            page = (await doubt.ann.get("/approvals", params={"limit": 1, "after": after})).json()
            pages += page["approvals"]
            if page["next"] is None:
                break
            after = page["next"]
        assert pages == [doubt.waiting]


async def test_neither_a_service_nor_an_agent_decides() -> None:
    async with in_doubt() as doubt:
        robot = await doubt.here.client(await doubt.here.key("robot", kind="service"))
        refused = await robot.post(doubt.path(), json=doubt.choice("approve"))
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "not_a_person")
        assert len((await doubt.ann.get("/approvals")).json()["approvals"]) == 1


async def test_a_second_decision_is_told_the_first() -> None:
    async with in_doubt() as doubt:
        await doubt.ann.post(doubt.path(), json={**doubt.choice("reject"), "reason": "the till is broken"})
        late = await doubt.ann.post(doubt.path(), json=doubt.choice("approve"))
        error = late.json()["error"]
        assert (late.status_code, error["reason"]) == (409, "decided")
        assert "'ann' decided before: reject: the till is broken" in error["message"]


@pytest.mark.parametrize(
    ("decision", "text", "status", "answer"),
    [
        ("approve", "", 200, "I live."),
        ("respond", "By hand.", 200, "By hand."),
        ("reject", "never mind", 409, "rejected"),
    ],
)
async def test_a_suspended_turn_waits_beside_calls_in_doubt(decision: str, text: str, status: int, answer: str) -> None:
    """Two hubs end without a word, on the store that the server uses then."""
    async with crashes() as place:
        limits = Limits(model_seconds=None, crashes=1)
        hub = await place.next_hub()
        asking = asyncio.ensure_future(
            Agent("support", mind := Mind(), limits=limits).invoke("Pay.", thread_id="t", message_id="m", hub=hub)
        )
        await wait_until(lambda: mind.thinks)
        hub = await place.next_hub()
        async with served_hub(Agent("support", Mind(says("I live.")), limits=limits), hub=hub) as here:
            user = await here.client()
            await until_listed(user)
            [waiting] = (await user.get("/approvals")).json()["approvals"]
            assert (waiting["kind"], waiting["agent"], waiting["tool"]) == ("turn", "support", "")
            choice = {"decision": decision, "digest": waiting["digest"], "text": text}
            decided = await user.post(f"/approvals/{waiting['approval_id']}", json=choice)
            assert decided.status_code == 200, decided.text
            reply = await user.post(INVOKE, json=QUESTION)
            assert reply.status_code == status
            assert answer in reply.text
        asking.cancel()


async def until_listed(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while not (await client.get("/approvals")).json()["approvals"]:
            await let_others_run(1)
