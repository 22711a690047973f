"""Routed channels over HTTP: opened, spoken in with a transport and an intent, held by people and released."""

from __future__ import annotations

import httpx2
import pytest

from antiphon import EV_PACKET, Agent, ConversationRouter, OutboundReply, RoutingConditions, RoutingRule, ScriptedModel
from antiphon.core.envelope import Json
from tests.support.conversation_desk import Slow, hand_over
from tests.support.served_hub import ServedHub, echo, opened, poll_until, served_hub

ROUTER = ConversationRouter(
    [RoutingRule("billing", RoutingConditions(intents={"billing"}))], default_agent_id="triage"
).to_dict()


def refusal(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, str(response.json()["error"]["reason"])


async def routed(client: httpx2.AsyncClient, *others: str, **knobs: object) -> str:
    names = [name for name in ("triage", "billing") if name not in others]
    return await opened(client, *names, *others, type="routed", knobs={"router": ROUTER, **knobs})


async def conversation(client: httpx2.AsyncClient, channel_id: str) -> Json:
    shown: Json = (await client.get(f"/channels/{channel_id}")).json()["conversation"]
    return shown


async def quiet(here: ServedHub, channel_id: str) -> None:
    live = await here.hub.core.live(channel_id)
    await poll_until(lambda: not live.state.owed, "every agent has answered")


async def answers(here: ServedHub, channel_id: str) -> list[tuple[str, object]]:
    await quiet(here, channel_id)
    log = await here.hub.log(channel_id)
    return [(each.sender_id, each.event_data["body"]) for each in log if each.event_type == EV_PACKET]


async def say(client: httpx2.AsyncClient, channel_id: str, **body: object) -> httpx2.Response:
    return await client.post(f"/channels/{channel_id}/messages", json={"text": "Hello", **body})


async def release(client: httpx2.AsyncClient, channel_id: str, **body: object) -> httpx2.Response:
    return await client.post(f"/channels/{channel_id}/release", json=body)


def agents(*script: object) -> list[Agent]:
    return [Agent("triage", ScriptedModel(script) if script else echo), Agent("billing", echo)]  # type: ignore[arg-type]


async def test_a_client_cannot_have_replies_sent_to_an_address_of_its_choice() -> None:
    async with served_hub(*agents()) as here:
        sent: list[OutboundReply] = []

        async def send(reply: OutboundReply) -> None:
            sent.append(reply)

        here.hub.transport("sms", send=send)
        ann = await here.known("ann", "write", "read", "invoke")
        channel_id = await routed(ann)
        assert refusal(await say(ann, channel_id, transport="sms", source="+1900")) == (403, "wrong_scope")
        raw = {
            "text": None,
            "event_type": "ag2.msg.text",
            "data": {"text": "Hi", "transport": "sms", "source": "+1900"},
        }
        assert refusal(await say(ann, channel_id, **raw)) == (403, "wrong_scope")
        packet = {**raw, "event_type": EV_PACKET, "data": {"body": "Hi", "transport": "sms", "source": "+1900"}}
        assert refusal(await say(ann, channel_id, **packet)) == (403, "wrong_scope")
        forged = {**raw, "data": {"text": "Hi", "recipient": "+1900"}}
        assert refusal(await say(ann, channel_id, **forged)) == (422, "reserved_field")
        assert (await say(ann, channel_id, transport="web", source="tab 7")).status_code == 201
        bridge = await here.known("bridge", "write", "read", "invoke", "operate")
        own = await routed(bridge)
        assert (await say(bridge, own, transport="sms", source="+49")).status_code == 201
        await poll_until(lambda: bool(sent), "the reply has left")
        assert [reply.recipient for reply in sent] == ["+49"]


async def test_an_event_of_a_clients_own_may_have_a_field_transport() -> None:
    async with served_hub(*agents()) as here:
        sent: list[OutboundReply] = []

        async def send(reply: OutboundReply) -> None:
            sent.append(reply)

        here.hub.transport("sms", send=send)
        ann = await here.known("ann", "write", "read")
        channel_id = await routed(ann)
        data = {"transport": "sms", "source": "+1900", "text": "Hi"}
        posted = await say(ann, channel_id, text=None, event_type="my.event", data=data)
        assert (posted.status_code, posted.json()["event_data"]) == (201, data)
        await quiet(here, channel_id)
        assert sent == []


async def test_what_is_said_of_a_message_routes_it_and_is_recorded() -> None:
    async with served_hub(*agents()) as here:
        ann = await here.known("ann", "write", "read", "invoke")
        channel_id = await routed(ann)
        said = await say(ann, channel_id, transport="sms", source="+49", intent="billing", set={"vip": True})
        assert (said.status_code, said.json()["event_data"]) == (
            201,
            {"text": "Hello", "transport": "sms", "source": "+49", "intent": "billing", "set": {"vip": True}},
        )
        assert await answers(here, channel_id) == [("billing", "You said: ann: Hello")]
        assert (await say(ann, channel_id, addressed_to="billing")).status_code == 201
        assert (await say(ann, channel_id)).status_code == 201
        assert [name for name, _ in await answers(here, channel_id)] == ["billing", "billing", "triage"]
        shown = (await ann.get(f"/channels/{channel_id}")).json()
        assert (shown["type"], shown["context_vars"]) == ("routed", {"vip": True})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"transport": ""}, "transport must be"),
        ({"source": "x" * 201}, "source must be"),
        ({"intent": 7}, "intent"),
        ({"addressed_to": "no name"}, "addressed_to"),
        ({"addressed_to": "bill"}, "addressed_to is 'bill', who is not in this channel"),
        ({"set": []}, "set"),
        ({"text": None, "event_type": "myapp.note", "data": {}, "intent": "billing"}, "intent belongs to a text"),
    ],
)
async def test_what_is_wrong_with_a_message_is_said_and_nothing_is_recorded(body: Json, told: str) -> None:
    async with served_hub(*agents()) as here:
        ann = await here.client()
        channel_id = await routed(ann)
        before = await here.hub.log(channel_id)
        refused = await say(ann, channel_id, **body)
        assert refused.status_code == 422, refused.text
        assert told in refused.json()["error"]["message"]
        assert await here.hub.log(channel_id) == before


async def test_a_message_of_another_channel_is_addressed_to_nobody() -> None:
    async with served_hub(*agents()) as here:
        ann = await here.client()
        channel_id = await opened(ann, "billing")
        refused = await say(ann, channel_id, addressed_to="billing")
        assert refusal(refused) == (422, "bad_request")
        assert "belongs to routed channels" in refused.text
        assert "conversation" not in (await ann.get(f"/channels/{channel_id}")).json()


async def test_a_channel_shows_where_its_conversation_is() -> None:
    async with served_hub(*agents(hand_over("billing", next_phase="handling", reason="a bill"))) as here:
        ann = await here.client()
        made = await ann.post(
            "/channels", json={"target": ["triage", "billing"], "type": "routed", "knobs": {"router": ROUTER}}
        )
        first = made.json()["conversation"]
        assert (first["phase"], first["active_agent_id"], first["person"]) == ("intake", None, "")
        channel_id = made.json()["channel_id"]
        await say(ann, channel_id)
        await quiet(here, channel_id)
        shown = await conversation(ann, channel_id)
        history = shown.pop("phase_history")
        assert isinstance(history, list)
        [moved] = history
        assert (moved["from_agent"], moved["to_agent"], moved["reason"]) == ("triage", "billing", "a bill")
        assert shown.pop("phase_started_at") == moved["at"]
        assert shown == {
            "phase": "handling",
            "active_agent_id": "billing",
            "previous_agent_id": "triage",
            "handoff_count": 1,
            "context": {},
            "revision": 1,
            "person": "",
        }


async def test_an_erased_channel_shows_no_conversation() -> None:
    async with served_hub(*agents(hand_over("billing", next_phase="handling", reason="a secret"))) as here:
        ann = await here.known("ann", "write", "read", "invoke")
        boss = await here.known("boss", "operate", "read", "write")
        channel_id = await routed(ann)
        await say(ann, channel_id)
        await quiet(here, channel_id)
        assert (await conversation(ann, channel_id))["phase"] == "handling"
        await ann.post(f"/channels/{channel_id}/close", json={})
        assert (await boss.delete(f"/channels/{channel_id}")).status_code == 200
        shown = await boss.get(f"/channels/{channel_id}")
        assert (shown.status_code, shown.json()["erased"]) == (200, True)
        assert "conversation" not in shown.json()
        assert "secret" not in shown.text
        refused = await release(boss, channel_id)
        assert refusal(refused) == (422, "bad_request")
        assert "this conversation was erased" in refused.text


async def test_a_router_that_is_wrong_is_refused_by_its_place() -> None:
    async with served_hub(*agents()) as here:
        body = {"target": ["triage"], "type": "routed", "knobs": {"router": {"rules": [{"agent_id": 7}]}}}
        refused = await (await here.client()).post("/channels", json=body)
        assert refusal(refused) == (422, "bad_request")
        assert "the router: rule 0" in refused.text


# Holds


async def held(here: ServedHub, client: httpx2.AsyncClient, *others: str, to: str = "human") -> str:
    """A channel that a person has, after one message."""
    channel_id = await routed(client, *others)
    assert (await say(client, channel_id)).status_code == 201
    await quiet(here, channel_id)
    assert (await conversation(client, channel_id))["person"] == to
    return channel_id


async def test_a_hold_is_released_by_the_person_that_has_it() -> None:
    async with served_hub(*agents(hand_over("dana"))) as here:
        ann, dana = await here.known("ann", "write", "read", "invoke"), await here.known("dana", "write")
        channel_id = await held(here, ann, "dana", to="dana")
        assert refusal(await release(ann, channel_id)) == (403, "not_a_person")
        assert refusal(await release(dana, channel_id, to="nobody")) == (409, "target_not_found")
        assert (await release(dana, channel_id, to="no name")).status_code == 422
        given = await release(dana, channel_id, to="billing")
        assert given.status_code == 200
        assert (given.json()["conversation"]["person"], given.json()["conversation"]["active_agent_id"]) == (
            "",
            "billing",
        )
        assert refusal(await release(dana, channel_id)) == (409, "not_held")
        await say(ann, channel_id)
        assert (await answers(here, channel_id))[-1] == ("billing", "You said: ann: Hello")


async def test_a_hold_is_released_by_its_creator_if_there_is_no_other_person() -> None:
    async with served_hub(*agents(hand_over("human"))) as here:
        ann = await here.known("ann", "write", "read", "invoke")
        channel_id = await held(here, ann)
        assert (await release(ann, channel_id, to=None)).json()["conversation"]["person"] == ""


async def test_an_operator_releases_any_hold_and_nobody_else_sees_it() -> None:
    async with served_hub(*agents(hand_over("dana"))) as here:
        ann = await here.known("ann", "write", "read", "invoke")
        await here.known("dana", "write")
        boss, other = await here.known("boss", "write", "operate"), await here.known("zoe", "write")
        channel_id = await held(here, ann, "dana", to="dana")
        assert refusal(await release(other, channel_id)) == (404, "unknown_channel")
        assert refusal(await release(await here.known("eve", "operate"), channel_id)) == (403, "wrong_scope")
        assert (await release(boss, channel_id)).json()["conversation"]["person"] == ""
        released = (await here.hub.log(channel_id))[-1].event_data
        assert released == {"by": "boss", "to": None, "person": "dana", "phase": "intake"}


async def test_nothing_is_recorded_in_a_closed_channel_by_the_release_of_an_operator() -> None:
    async with served_hub(*agents(hand_over("dana"))) as here:
        ann = await here.known("ann", "write", "read", "invoke")
        boss = await here.known("boss", "write", "operate")
        await here.known("dana", "write")
        channel_id = await held(here, ann, "dana", to="dana")
        await ann.post(f"/channels/{channel_id}/close", json={})
        before = await here.hub.log(channel_id)
        assert refusal(await release(boss, channel_id)) == (409, "channel_closed")
        assert await here.hub.log(channel_id) == before


async def test_only_routed_channels_are_released() -> None:
    async with served_hub(*agents()) as here:
        ann = await here.client()
        refused = await release(ann, await opened(ann, "billing"))
        assert refusal(refused) == (422, "bad_request")
        assert "type='routed'" in refused.text


# Scopes


async def test_a_key_that_only_writes_cannot_make_an_agent_answer_now_or_later() -> None:
    slow = Slow(hand_over("human"))
    async with served_hub(*agents(slow)) as here:
        writer, both = await here.known("ann", "write", "read"), await here.known("ann", "write", "invoke")
        channel_id = await routed(writer)
        assert refusal(await say(writer, channel_id)) == (403, "wrong_scope")
        assert (await say(both, channel_id)).status_code == 201
        await slow.begun()
        before = await here.hub.log(channel_id)
        for body in ({}, {"addressed_to": "billing"}):
            later = await say(writer, channel_id, **body)
            assert refusal(later) == (403, "wrong_scope")
            assert "'invoke'" in later.text
        assert await here.hub.log(channel_id) == before
        slow.go_on()
        await quiet(here, channel_id)
        assert (await say(writer, channel_id)).status_code == 201  # a person has the conversation: no agent answers
        assert refusal(await say(writer, channel_id, addressed_to="billing")) == (403, "wrong_scope")


async def test_a_routed_channel_in_which_an_agent_would_answer_at_once_is_not_opened() -> None:
    async with served_hub(*agents()) as here:
        writer = await here.known("ann", "write", "read")
        body = {"target": ["triage", "billing"], "type": "routed", "knobs": {"router": ROUTER}, "say": "Hello"}
        assert refusal(await writer.post("/channels", json=body)) == (403, "wrong_scope")
        assert (await writer.get("/channels")).json()["channels"] == []
