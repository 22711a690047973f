"""Calls that wait for approval over HTTP: told to those who ask, listed for those who may decide, and decided once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
import pytest

from antiphon import Agent, Reply, Request, calls, says, tool
from antiphon.server.api_keys import KEY_SCOPES
from tests.server.wire import events_in
from tests.support.served_hub import ServedHub, served_hub

INVOKE = "/agents/support/invoke"
STREAM = "/agents/support/stream_invoke"
QUESTION = {"text": "Refund order 7.", "thread_id": "t", "message_id": "m"}
PERSON = [scope for scope in KEY_SCOPES if scope != "operate"]
ASKED = {"order": "7", "cents": 900}


@dataclass
class Desk:
    """An agent whose refunds wait for the role finance, with one that waits already."""

    paid: list[object] = field(default_factory=list)
    here: ServedHub = field(init=False)
    ann: httpx2.AsyncClient = field(init=False)
    """Who asked."""
    dana: httpx2.AsyncClient = field(init=False)
    """Who has the role, and is in no channel."""
    waiting: dict[str, object] = field(init=False)

    def agent(self) -> Agent:
        @tool(approval=True, approvers=["finance"])
        async def refund(order: str, cents: int) -> str:
            """Pay money back."""
            self.paid.append((order, cents))
            return f"paid {cents}"

        async def model(request: Request) -> Reply:
            return says(f"So: {request.messages[-1].text}") if request.exchange else calls("refund", ASKED)

        return Agent("support", model, tools=[refund])

    async def decide(self, client: httpx2.AsyncClient, decision: str, **more: object) -> httpx2.Response:
        choice = {"decision": decision, "digest": self.waiting["digest"], **more}
        return await client.post(f"/approvals/{self.waiting['approval_id']}", json=choice)


@asynccontextmanager
async def waiting_desk() -> AsyncIterator[Desk]:
    desk = Desk()
    async with served_hub(desk.agent()) as here:
        await here.hub.register("dana", kind="human", roles=["finance"])
        desk.here, desk.ann = here, await here.known("ann", *PERSON)
        desk.dana = await here.known("dana", *PERSON)
        reply = await desk.ann.post(INVOKE, json=QUESTION)
        assert reply.status_code == 200, reply.text
        assert reply.json()["stopped"] == "approval"
        [desk.waiting] = reply.json()["approvals"]
        yield desk


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with waiting_desk() as opened:
        yield opened


async def test_what_waits_is_listed_for_those_in_the_channel_and_those_who_may_decide(desk: Desk) -> None:
    assert (desk.waiting["tool"], desk.waiting["args"], desk.waiting["kind"]) == ("refund", ASKED, "approval")
    assert desk.waiting["options"] == ["approve", "edit", "reject", "respond"]
    for client in (desk.ann, desk.dana):
        assert (await client.get("/approvals")).json() == {"approvals": [desk.waiting], "next": None}
    eve = await desk.here.known("eve", *PERSON)
    assert (await eve.get("/approvals")).json()["approvals"] == []
    assert (await desk.decide(eve, "approve")).status_code == 404


async def test_an_edit_goes_through_and_the_same_message_gives_the_answer(desk: Desk) -> None:
    decided = await desk.decide(desk.dana, "edit", args={"order": "7", "cents": 5})
    expected = {"approval_id": desk.waiting["approval_id"], "decision": "edit", "by": "dana"}
    assert (decided.status_code, decided.json()) == (200, expected)
    reply = (await desk.ann.post(INVOKE, json=QUESTION)).json()
    assert (reply["text"], reply["stopped"], reply["approvals"]) == ("So: paid 5", None, [])
    assert desk.paid == [("7", 5)]
    late = await desk.decide(desk.dana, "reject")
    assert (late.status_code, late.json()["error"]["reason"]) == (409, "decided")


async def test_who_asked_and_whose_key_has_not_the_scope_does_not_decide(desk: Desk) -> None:
    own = await desk.decide(desk.ann, "approve")
    assert (own.status_code, own.json()["error"]["reason"]) == (403, "not_an_approver")
    narrow = await desk.here.known("dana", "read", "write", "invoke")
    scoped = await desk.decide(narrow, "approve")
    assert (scoped.status_code, scoped.json()["error"]["reason"]) == (403, "wrong_scope")
    assert (await narrow.get("/approvals")).status_code == 403
    assert desk.paid == []


@pytest.mark.parametrize(
    ("more", "status", "reason", "told"),
    [
        ({"decision": "edit", "args": {"order": "7", "cents": "5"}}, 422, "bad_request", "arguments of refund"),
        ({"decision": "edit"}, 422, "bad_request", "'edit' needs args"),
        ({"decision": "approve", "args": ASKED}, 422, "bad_request", "args belongs to 'edit'"),
        ({"decision": "approve", "digest": "0" * 64}, 409, "stale_decision", "digest"),
        ({"decision": "approve", "digest": ""}, 422, "bad_body", ""),
        ({"decision": "edit", "args": [1]}, 422, "bad_body", ""),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused(
    desk: Desk, more: dict[str, object], status: int, reason: str, told: str
) -> None:
    decision = str(more.pop("decision"))
    refused = await desk.decide(desk.dana, decision, **more)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (status, reason)
    assert told in refused.json()["error"]["message"]
    assert (await desk.dana.get("/approvals")).json()["approvals"] == [desk.waiting]


async def test_over_http_a_digest_is_required(desk: Desk) -> None:
    path = f"/approvals/{desk.waiting['approval_id']}"
    refused = await desk.dana.post(path, json={"decision": "approve"})
    assert (refused.status_code, refused.json()["error"]["reason"]) == (422, "bad_body")
    assert desk.paid == []


async def test_a_stream_tells_what_waits_and_a_later_one_the_answer(desk: Desk) -> None:
    events = events_in((await desk.ann.post(STREAM, json=QUESTION)).text)
    assert [event.event for event in events] == ["tool_usage", "approval", "done"]
    assert events[1].data == {"agent": "support", "approval": desk.waiting}
    done = events[2].data
    assert (done["stopped"], done["approvals"]) == ("approval", [desk.waiting])
    await desk.decide(desk.dana, "respond", text="I have paid it in cash.")
    again = events_in((await desk.ann.post(STREAM, json=QUESTION)).text)
    assert [event.event for event in again] == ["tool_usage", "tool_response", "ai_message", "message", "done"]
    assert again[1].data["text"] == "I have paid it in cash."
    assert desk.paid == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_client_reads_what_waits(desk: Desk, stream: bool) -> None:
    asked = {"model": "support", "messages": [{"role": "user", "content": "Refund."}], "stream": stream}
    answer = await desk.ann.post("/v1/chat/completions", json=asked, headers={"idempotency-key": "k"})
    told = "Waiting for a person's approval: refund. Ask again when it is decided."
    if stream:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [json.loads(line)["choices"][0] for line in lines]
        assert "".join(each["delta"].get("content", "") for each in choices) == told
        assert choices[-1]["finish_reason"] == "stop"
    else:
        [choice] = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (told, "stop")
        assert answer.json()["antiphon"]["stopped"] == "approval"
    found = (await desk.dana.get("/approvals")).json()["approvals"]
    [desk.waiting] = [each for each in found if each != desk.waiting]
    assert (await desk.decide(desk.dana, "approve")).status_code == 200
    again = await desk.ann.post("/v1/chat/completions", json=asked, headers={"idempotency-key": "k"})
    assert "paid" in again.text
    assert desk.paid == [("7", 900)]
