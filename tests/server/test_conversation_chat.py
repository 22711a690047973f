"""A routed conversation as a model of chat completions, asked by the official client over a real connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from antiphon import (
    EV_PACKET,
    Agent,
    ConversationRouter,
    HookExecution,
    HookTrigger,
    Limits,
    ModelUnavailable,
    RoutingConditions,
    RoutingRule,
    ScriptedModel,
    calls,
    says,
)
from antiphon.core.envelope import Json
from antiphon.runtime.routed_channels import OfferedConversation, offer_conversation
from tests.support.conversation_desk import Slow, hand_over
from tests.support.served_hub import ServedHub, poll_until, served_hub
from tests.support.waiting import soon

TO_TRIAGE = ConversationRouter(default_agent_id="triage")
WATCHED = ConversationRouter(default_agent_id="triage", supervisor_id="watcher")
PHASES: Json = {"phase_map": {"billing": "handling"}}


def handing(target: str, text: str) -> object:
    """A model's answer that hands over, after a word."""
    return calls("handoff_conversation", {"target": target, "reason": "a bill", "summary": "S"}, text=text)


def scripted(**scripts: list[object]) -> list[Agent]:
    return [Agent(name, ScriptedModel(script), limits=Limits(model_attempts=1)) for name, script in scripts.items()]  # type: ignore[arg-type]


@dataclass
class Talk:
    """A client that keeps the conversation as clients do."""

    here: ServedHub
    client: AsyncOpenAI
    model: str = "conversation"
    messages: list[dict[str, str]] = field(default_factory=list)

    async def say(self, text: str, **options: object) -> tuple[str, Json]:
        """The answer, and what is noted with it."""
        self.messages.append({"role": "user", "content": text})
        asked = {"model": self.model, "messages": self.messages, **options}
        given = await soon(self.client.chat.completions.create(**asked))  # type: ignore[call-overload]
        choice, note = given.choices[0], dict(given.antiphon)
        assert choice.finish_reason == "stop"
        self.messages.append({"role": "assistant", "content": choice.message.content})
        return choice.message.content, note

    async def hear(self, text: str, **options: object) -> str:
        """The same, streamed, and put together."""
        self.messages.append({"role": "user", "content": text})
        asked = {"model": self.model, "messages": self.messages, "stream": True, **options}
        given = await soon(self.client.chat.completions.create(**asked))  # type: ignore[call-overload]
        chunks = [chunk.choices[0] async for chunk in given if chunk.choices]
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        answer = "".join(chunk.delta.content or "" for chunk in chunks)
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    def branch(self) -> Talk:
        return Talk(self.here, self.client, self.model, list(self.messages))


@asynccontextmanager
async def talking(
    router: ConversationRouter, *agents: Agent, url: str = "memory:", **offered: object
) -> AsyncIterator[Talk]:
    async with served_hub(*agents, url=url) as here:
        conversation = OfferedConversation(router.to_dict(), **offered)  # type: ignore[arg-type]
        offer_conversation(here.hub, conversation)
        async with AsyncOpenAI(base_url=f"{here.served.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
            yield Talk(here, client, conversation.name)


async def channels(here: ServedHub) -> list[str]:
    return [row.channel_id for row in await here.hub.channels()]


# Models


async def test_a_conversation_is_a_model_beside_the_agents() -> None:
    async with talking(TO_TRIAGE, *scripted(triage=[], billing=[]), name="refund-desk") as talk:
        listed = await talk.client.models.list()
        assert [(each.id, each.owned_by) for each in listed.data] == [
            ("triage", "antiphon"),
            ("billing", "antiphon"),
            ("refund-desk", "antiphon"),
        ]
        assert await talk.client.models.retrieve("refund-desk") == listed.data[2]
        with pytest.raises(openai.NotFoundError, match="no model is called 'conversation' here"):
            await talk.client.models.retrieve("conversation")


async def test_a_hub_with_a_router_offers_its_conversation() -> None:
    async with served_hub(*scripted(triage=["Good day."])) as here:
        http = await here.client()
        body = {"model": "conversation", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 404
        here.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC)(TO_TRIAGE.as_hook())
        answered = await http.post("/v1/chat/completions", json=body)
        assert answered.json()["choices"][0]["message"]["content"] == "Good day."


# Answers


async def test_the_agent_that_has_the_conversation_answers_streamed_and_not() -> None:
    agents = scripted(
        triage=[handing("billing", "One moment.")],
        billing=["It was charged once.", "Yes, only once.", "You are welcome."],
    )
    async with talking(TO_TRIAGE, *agents, handoff=PHASES) as talk:
        answer, note = await talk.say("Was I charged twice?")
        assert answer == "One moment.\n\nIt was charged once."
        channel_id = note.pop("channel_id")
        moved = {"from": "triage", "to": "billing", "phase": "handling", "reason": "a bill"}
        assert note == {
            "agent": "billing",
            "stopped": None,
            "conversation": {"handoffs": [moved], "person": "", "unrouted": False},
        }
        assert await talk.hear("Are you sure?") == "Yes, only once."
        answer, note = await talk.say("Thanks")
        assert (answer, note["agent"], note["channel_id"]) == ("You are welcome.", "billing", channel_id)
        assert note["conversation"] == {"handoffs": [], "person": "", "unrouted": False}
        assert await channels(talk.here) == [channel_id]


async def test_what_is_streamed_is_what_is_given_whole() -> None:
    agents = scripted(triage=[handing("billing", "One moment.")] * 2, billing=["It was charged once."] * 2)
    async with talking(TO_TRIAGE, *agents) as talk:
        other = talk.branch()
        assert await talk.hear("Twice?") == (await other.say("Twice?"))[0]


async def test_a_stream_tells_of_handoffs_if_it_is_asked_to() -> None:
    agents = scripted(triage=[handing("billing", "One moment.")] * 2, billing=[handing("human", "I get someone.")] * 2)
    async with talking(TO_TRIAGE, *agents, handoff=PHASES) as talk:
        client = await talk.here.client()
        body = {"model": talk.model, "messages": [{"role": "user", "content": "Twice?"}], "stream": True}
        plain = (await client.post("/v1/chat/completions", json=body)).text
        assert "antiphon" not in plain
        text = (await client.post("/v1/chat/completions", json={**body, "metadata": {"antiphon_events": "true"}})).text
        lines = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        told = [line["antiphon"] for line in lines if "antiphon" in line]
        assert [each for each in told if "handoff" in each] == [
            {"handoff": {"from": "triage", "to": "billing"}},
            {"handoff": {"from": "billing", "to": "human"}},
        ]
        note = told[-1]["conversation"]
        assert [(each["from"], each["to"], each["phase"]) for each in note["handoffs"]] == [
            ("triage", "billing", "handling"),
            ("billing", "human", "handling"),
        ]
        assert (note["person"], told[-1]["agent"]) == ("human", "billing")
        assert "".join(line["choices"][0]["delta"].get("content", "") for line in lines) == (
            "One moment.\n\nI get someone."
        )


async def test_a_stream_tells_of_a_handoff_to_a_person_once() -> None:
    async with talking(TO_TRIAGE, *scripted(triage=[hand_over("dana")]), people=("dana",)) as talk:
        client = await talk.here.client()
        told: list[list[Json]] = []
        for text in ("Dana, please.", "Hello?"):
            body = {"model": talk.model, "messages": [{"role": "user", "content": text}], "stream": True}
            named = {**body, "metadata": {"antiphon_events": "true", "thread_id": "t1"}}
            lines = (await client.post("/v1/chat/completions", json=named)).text.split("\n")
            notes = [json.loads(line[6:]).get("antiphon", {}) for line in lines if line.startswith("data: {")]
            told.append([note["handoff"] for note in notes if "handoff" in note])
            assert notes[-2]["conversation"]["person"] == "dana"  # the last chunk has the finish_reason alone
        assert told == [[{"from": "triage", "to": "dana"}], []]


async def test_a_person_has_the_conversation_and_no_request_hangs() -> None:
    agents = scripted(triage=[handing("dana", "I get Dana."), "Good day again."])
    async with talking(TO_TRIAGE, *agents, people=("dana",)) as talk:
        answer, note = await talk.say("A person, please.")
        assert (answer, note["conversation"]["person"]) == ("I get Dana.", "dana")  # type: ignore[index]
        channel_id = str(note["channel_id"])
        answer, note = await talk.say("Hello?")
        assert (answer, note["agent"], note["conversation"]["person"]) == ("", "", "dana")  # type: ignore[index]
        assert await talk.hear("Hello??") == ""
        dana = await talk.here.known("dana", "write")
        talk.client.api_key = await talk.here.key("user")
        said = await dana.post(f"/channels/{channel_id}/messages", json={"text": "Dana here."})
        assert said.status_code == 201
        assert (await talk.say("At last."))[1]["channel_id"] == channel_id
        assert (await dana.post(f"/channels/{channel_id}/release", json={})).status_code == 200
        assert (await talk.say("Thanks"))[0] == "Good day again."
        assert await channels(talk.here) == [channel_id]


async def test_a_message_that_no_agent_answers_says_so() -> None:
    router = ConversationRouter([RoutingRule("triage", RoutingConditions(intents={"billing"}))])
    async with talking(router, *scripted(triage=["Never."])) as talk:
        answer, note = await talk.say("Hello?")
        assert (answer, note["agent"], note["conversation"]["unrouted"]) == ("", "", True)  # type: ignore[index]
        assert await talk.hear("Anyone?") == ""


async def test_the_observer_neither_answers_nor_ends_the_conversation() -> None:
    agents = scripted(triage=["Good day.", "Well."], watcher=["Noted.", "Noted."])
    async with talking(WATCHED, *agents) as talk:
        answer, note = await talk.say("Hello")
        assert (answer, note["agent"]) == ("Good day.", "triage")
        live = await talk.here.hub.core.live(str(note["channel_id"]))
        await poll_until(lambda: not live.state.owed, "the observer has spoken")
        assert await talk.hear("How are you?") == "Well."
        assert await channels(talk.here) == [note["channel_id"]]


# Conversations


async def test_a_named_thread_is_one_conversation() -> None:
    agents = scripted(triage=[handing("billing", "")], billing=["One.", "Two."])
    async with talking(TO_TRIAGE, *agents) as talk:
        first = await talk.branch().say("A", metadata={"thread_id": "t"})
        second = await talk.branch().say("B", extra_headers={"X-Thread-Id": "t"})
        assert (first[0], second[0], second[1]["agent"]) == ("One.", "Two.", "billing")
        assert first[1]["channel_id"] == second[1]["channel_id"]


async def test_messages_at_once_on_a_thread_are_answered_one_by_one() -> None:
    slow = Slow("First.")
    async with talking(TO_TRIAGE, *scripted(triage=[slow, "Second."])) as talk:
        options = {"metadata": {"thread_id": "t"}}
        first = asyncio.create_task(talk.branch().say("One", **options))
        await slow.begun()
        second = asyncio.create_task(talk.branch().hear("Two", **options))
        [channel_id] = await channels(talk.here)
        live = await talk.here.hub.core.live(channel_id)
        await poll_until(lambda: live.state.turn_count == 2, "the second message waits")
        slow.go_on()
        assert ((await first)[0], await second) == ("First.", "Second.")


async def test_a_branch_begins_a_channel_of_its_own() -> None:
    agents = scripted(triage=[handing("billing", ""), "Branched."], billing=["One.", "Two."])
    async with talking(TO_TRIAGE, *agents) as talk:
        await talk.say("A")
        branch = talk.branch()
        assert (await talk.say("B"))[0] == "Two."
        assert (await branch.say("C"))[0] == "Branched."
        assert len(await channels(talk.here)) == 2


async def test_what_the_client_says_elsewhere_begins_a_channel_of_its_own() -> None:
    async with talking(TO_TRIAGE, *scripted(triage=["One.", "Elsewhere.", "Two."])) as talk:
        _, note = await talk.say("A")
        http = await talk.here.client()
        said = await http.post(f"/channels/{note['channel_id']}/messages", json={"text": "Between"})
        assert said.status_code == 201
        live = await talk.here.hub.core.live(str(note["channel_id"]))
        await poll_until(lambda: not live.state.owed, "that was answered")
        assert (await talk.say("B"))[0] == "Two."
        assert len(await channels(talk.here)) == 2


async def test_a_repeated_key_says_nothing_twice_and_goes_on_where_the_conversation_is(tmp_path: Path) -> None:
    url, agents = f"sqlite:///{tmp_path}/team.db", {"triage": [handing("billing", "")], "billing": ["One.", "Two."]}
    key = {"extra_headers": {"Idempotency-Key": "k2"}}
    async with talking(TO_TRIAGE, *scripted(**agents), url=url, handoff=PHASES) as talk:  # type: ignore[arg-type]
        first = await talk.say("A", extra_headers={"Idempotency-Key": "k1"})
        keyed = talk.branch()
        again = talk.branch()
        assert (first[0], (await keyed.say("B", **key))[0]) == ("One.", "Two.")
        once_more = await again.say("B", **key)
        assert (once_more[0], once_more[1]["agent"]) == ("Two.", "billing")
        assert once_more[1]["channel_id"] != first[1]["channel_id"]
        rows = await channels(talk.here)
        packets = [each for row in rows for each in await talk.here.hub.log(row) if each.event_type == EV_PACKET]
        assert sorted(str(each.event_data["body"]) for each in packets) == ["", "One.", "Two."]
        messages = talk.messages
    async with talking(TO_TRIAGE, *scripted(triage=[], billing=[]), url=url, handoff=PHASES) as talk:
        talk.messages = messages
        assert await talk.say("B", **key) == once_more


async def test_two_participants_have_conversations_of_their_own() -> None:
    async with talking(TO_TRIAGE, *scripted(triage=["To ann.", "To ben."])) as talk:
        found = []
        for name in ("ann", "ben"):
            talk.client.api_key = await talk.here.key(name)
            found.append((await talk.branch().say("Hi", metadata={"thread_id": "t"}))[1]["channel_id"])
        assert found[0] != found[1]
        talk.client.api_key = await talk.here.key("cleo", "write", "read")
        with pytest.raises(openai.PermissionDeniedError):
            await talk.branch().say("Hi")


# Errors


async def test_a_turn_that_fails_is_an_error_whole_and_in_mid_stream() -> None:
    agents = scripted(
        triage=[handing("billing", "One moment.")] * 2 + [says("Back.")], billing=[ModelUnavailable("away")] * 2
    )
    async with talking(TO_TRIAGE, *agents) as talk:
        with pytest.raises(openai.InternalServerError) as whole:
            await talk.branch().say("Hi")
        assert (whole.value.status_code, whole.value.code) == (502, "model_error")
        with pytest.raises(openai.APIError) as streamed:
            await talk.branch().hear("Hi")
        assert streamed.value.code == "model_error"
        assert "away" not in f"{whole.value} {streamed.value}"
        assert (await talk.say("Hi"))[0] == "Back."


async def test_a_thread_that_has_ended_is_a_conflict() -> None:
    async with talking(TO_TRIAGE, *scripted(triage=["One."])) as talk:
        options = {"metadata": {"thread_id": "t"}}
        _, note = await talk.branch().say("A", **options)
        http = await talk.here.client()
        await http.post(f"/channels/{note['channel_id']}/close", json={})
        with pytest.raises(openai.ConflictError):
            await talk.branch().say("B", **options)


async def test_what_has_no_answer_is_not_asked_twice_by_a_hold() -> None:
    """What was said in a hold is not answered after it, also if the request is repeated."""
    async with talking(TO_TRIAGE, *scripted(triage=[hand_over("human"), "Back."])) as talk:
        options: Json = {"metadata": {"thread_id": "t"}}
        _, note = await talk.branch().say("A person.", **options)
        keyed = {**options, "extra_headers": {"Idempotency-Key": "m"}}
        first = await talk.branch().say("Hello?", **keyed)
        assert (first[0], first[1]["conversation"]["person"]) == ("", "human")  # type: ignore[index]
        http = await talk.here.client()
        assert (await http.post(f"/channels/{note['channel_id']}/release", json={})).status_code == 200
        assert await talk.branch().say("Hello?", **keyed) == first
        assert (await talk.branch().say("Now?", **options))[0] == "Back."
