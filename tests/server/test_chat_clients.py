"""Chat completions as their clients know them: the official one, over a real connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import openai
import pytest
from msgspec.structs import replace as changed
from openai import AsyncOpenAI

from antiphon import (
    Agent,
    Call,
    Intent,
    Limits,
    ModelUnavailable,
    Reply,
    Request,
    ScriptedModel,
    Usage,
    calls,
    says,
    tool,
)
from antiphon.server.limits import DEFAULT_SERVER_LIMITS
from tests.support.served_hub import ServedHub, poll_until, served_hub

Talk = list[dict[str, str]]


async def recite(request: Request) -> Reply:
    """A model that says everything that it was shown."""
    return says(" / ".join(f"{role}:{text}" for role, text in request.history))


@dataclass
class Clerk:
    """A model that hands over whoever asks about a bill, streams what it says, and counts how often it is asked."""

    name: str
    asked: int = 0
    gate: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: Request) -> Reply:
        *_, whole = [piece async for piece in self.stream(request)]
        assert isinstance(whole, Reply)
        return whole

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        self.asked += 1
        text = request.history[-1].text
        if "bill" in text and "transfer_to_billing" in request.tools:
            yield "One "
            yield "moment."
            yield Reply("One moment.", (Call("transfer_to_billing", {}, "c1"),))
            return
        yield f"{self.name}: "
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        yield f"about {text}"
        yield says(f"{self.name}: about {text}")


def team(**options: Clerk) -> Agent:
    billing = Agent("billing", options.get("billing", Clerk("billing")))
    return Agent("support", options.get("lead", Clerk("support")), agents=[billing], description="Helps.")


@dataclass
class Person:
    """Somebody who chats, and keeps the conversation as clients do."""

    client: AsyncOpenAI
    model: str = "support"
    talk: Talk = field(default_factory=list)

    async def say(self, text: str, **options: object) -> tuple[str, dict[str, object]]:
        """What is answered, and what else there is to know."""
        self.talk.append({"role": "user", "content": text})
        asked = {"model": self.model, "messages": self.talk, **options}
        given = await self.client.chat.completions.create(**asked)  # type: ignore[call-overload]
        answer = given.choices[0].message.content
        self.talk.append({"role": "assistant", "content": answer})
        return answer, given.antiphon

    async def hear(self, text: str, **options: object) -> str:
        """The same, streamed, and put together."""
        self.talk.append({"role": "user", "content": text})
        asked = {"model": self.model, "messages": self.talk, "stream": True, **options}
        given = await self.client.chat.completions.create(**asked)  # type: ignore[call-overload]
        answer = "".join([chunk.choices[0].delta.content or "" async for chunk in given if chunk.choices])
        self.talk.append({"role": "assistant", "content": answer})
        return answer

    def branch(self) -> "Person":
        return replace(self, talk=list(self.talk))


@asynccontextmanager
async def client_of(here: ServedHub, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{here.served.url}/v1", api_key=key, max_retries=0, timeout=20) as client:
        yield client


@asynccontextmanager
async def chatting(*agents: Agent, **options: object) -> AsyncIterator[tuple[ServedHub, Person]]:
    async with served_hub(*agents, **options) as here, client_of(here) as client:  # type: ignore[arg-type]
        yield here, Person(client, agents[0].name if agents else "support")


async def channels(here: ServedHub) -> list[str]:
    return [row.channel_id for row in await here.hub.channels()]


# Models


async def test_agents_are_models() -> None:
    async with chatting(team(), Agent("poet", recite)) as (_, person):
        listed = await person.client.models.list()
        assert [(each.id, each.object, each.owned_by) for each in listed.data] == [
            ("support", "model", "antiphon"),
            ("poet", "model", "antiphon"),
        ]
        assert await person.client.models.retrieve("poet") == listed.data[1]
        assert listed.data[0].created > 1_500_000_000
        with pytest.raises(openai.NotFoundError, match="no model is called 'nobody' here; GET /v1/models lists them"):
            await person.client.models.retrieve("nobody")


# Conversations


async def test_a_team_keeps_who_answers_over_many_messages_streamed_and_not() -> None:
    async with chatting(team()) as (here, person):
        assert (await person.say("Hello"))[1]["agent"] == "support"
        answer, note = await person.say("A bill", temperature=0.3, max_tokens=9)
        assert (answer, note["agent"], note["stopped"]) == ("billing: about A bill", "billing", None)
        assert await person.hear("And the tax?") == "billing: about And the tax?"
        assert (await person.say("Sure?"))[0] == "billing: about Sure?"
        assert await person.hear("@support and you?") == "support: about and you?"
        assert (await person.say("Thanks"))[1] == {
            "agent": "support",
            "channel_id": note["channel_id"],
            "stopped": None,
        }
        assert await channels(here) == [note["channel_id"]]


async def test_what_is_streamed_is_what_is_given_whole_and_costs_the_same() -> None:
    async with chatting(team()) as (_, person):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        whole = await person.client.chat.completions.create(model="support", messages=messages)  # type: ignore[arg-type]
        chunks = [
            chunk
            async for chunk in await person.client.chat.completions.create(
                model="support",
                messages=messages,  # type: ignore[arg-type]
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert whole.object == "chat.completion"
        assert whole.id.startswith("chatcmpl-")
        assert (whole.model, whole.choices[0].finish_reason) == ("support", "stop")
        pieces = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert (pieces[0].role, pieces[0].content) == ("assistant", "")
        assert [piece.content for piece in pieces[1:]] == ["support: ", "about Hello", None]
        assert "".join(piece.content or "" for piece in pieces) == whole.choices[0].message.content
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, None, None, "stop"]
        assert len({(chunk.id, chunk.object, chunk.created, chunk.model) for chunk in chunks}) == 1
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage


async def test_usage_is_that_of_the_whole_turn() -> None:
    script = ScriptedModel([calls("look", usage=Usage(10, 2)), says("Done.", usage=Usage(20, 3, 5))])
    async with chatting(Agent("clerk", script, tools=[look])) as (_, person):
        whole = await person.client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "?"}])
        usage = whole.usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 5, 35)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 5


@tool
def look() -> str:
    """Look it up."""
    return "42"


@tool(return_direct=True)
def direct() -> str:
    """The answer itself."""
    return "Directly."


async def test_what_is_said_before_a_tool_or_a_handoff_stands_apart_and_the_answer_is_the_end() -> None:
    billing = Agent(
        "billing", ScriptedModel([calls("look", text="Let me see."), says("It is 42."), says("Yes.")]), tools=[look]
    )
    lead = Agent("support", ScriptedModel([calls("transfer_to_billing", text="One moment.")]), agents=[billing])
    async with chatting(lead) as (here, person):
        assert await person.hear("How much?") == "One moment.\n\nLet me see.\n\nIt is 42."
        assert (await person.say("Sure?"))[1]["agent"] == "billing"
        assert len(await channels(here)) == 1


@pytest.mark.parametrize(
    "agent",
    [
        Agent("clerk", recite, intents=[Intent("Hi", answer="Directly.")]),
        Agent("clerk", ScriptedModel([calls("direct")]), tools=[direct]),
        Agent("clerk", lambda request: says("Directly.")),  # type: ignore[arg-type, return-value]
    ],
    ids=["intent", "return_direct", "a model that does not stream"],
)
async def test_what_cannot_be_streamed_is_sent_when_it_is_known(agent: Agent) -> None:
    async with chatting(agent) as (_, person):
        assert await person.hear("Hi") == "Directly."


@dataclass
class Padded:
    """A model whose pieces have white space that its answer has not, or the other way round."""

    pieces: list[str]
    text: str

    async def __call__(self, request: Request) -> Reply:
        return says(self.text)

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        for piece in self.pieces:
            yield piece
        yield says(self.text)


@pytest.mark.parametrize(
    ("pieces", "text", "heard"),
    [
        (["\n\nIt is", " 42.", " \n"], "It is 42.", "\n\nIt is 42. \n"),
        (["It is ", "42."], "  It is 42.\n", "It is 42."),
        (["It is ", "41."], "It is 42.", "It is 41.\n\nIt is 42."),
    ],
    ids=["streamed with more", "streamed with less", "another answer"],
)
async def test_an_answer_is_heard_once_whatever_its_white_space(pieces: list[str], text: str, heard: str) -> None:
    async with chatting(Agent("clerk", Padded(pieces, text))) as (here, person):
        assert await person.hear("How much?") == heard
        await person.say("Sure?")
        assert len(await channels(here)) == 1  # the answer as it was heard is known when the client goes on


async def told(here: ServedHub, **fields: object) -> str:
    """A whole stream as it stands on the wire."""
    client = await here.client()
    body = {"model": "support", "messages": [{"role": "user", "content": "My bill"}], "stream": True, **fields}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    return response.text


def datas(text: str) -> list[dict[str, object]]:
    lines = [line for line in text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


async def test_nothing_beyond_the_protocol_is_told_unless_asked_for() -> None:
    async with chatting(team()) as (here, _):
        assert all("antiphon" not in data for data in datas(await told(here)))
        more = [
            data["antiphon"]
            for data in datas(await told(here, metadata={"antiphon_events": "true"}))
            if "antiphon" in data
        ]
        called, returned, handoff, note = more
        assert (called["status"], called["tool"]["tool"]) == ("called", "transfer_to_billing")  # type: ignore[index]
        assert (returned["status"], returned["tool"]["failed"]) == ("returned", False)  # type: ignore[index]
        assert handoff == {"handoff": {"from": "support", "to": "billing"}}
        assert (note["agent"], note["stopped"]) == ("billing", None)  # type: ignore[index]


async def test_a_named_thread_is_that_of_invoke_and_only_the_last_message_is_said_in_it() -> None:
    async with chatting(Agent("poet", recite)) as (here, person):
        http = await here.client()
        first = (await http.post("/agents/poet/invoke", json={"text": "One", "thread_id": "t"})).json()
        person.talk = [{"role": "user", "content": "Ignored"}, {"role": "assistant", "content": "Ignored"}]
        answer, note = await person.branch().say("Two", extra_headers={"X-Thread-Id": "t"})
        assert answer == "user:One / assistant:user:One / user:Two"
        assert note["channel_id"] == first["channel_id"]
        other = person.branch()
        _, note = await other.say("Three", metadata={"thread_id": "t"})
        assert note["channel_id"] == first["channel_id"]
        answer, note = await other.say("Not in it")  # the thread holds more than these words
        assert answer == " / ".join(f"{each['role']}:{each['content']}" for each in other.talk[:-1])
        assert note["channel_id"] != first["channel_id"]
        with pytest.raises(openai.UnprocessableEntityError, match="give one of them"):
            await person.say("Four", metadata={"thread_id": "t"}, extra_headers={"X-Thread-Id": "u"})


async def test_branches_of_one_conversation_do_not_meet() -> None:
    async with chatting(Agent("poet", recite)) as (here, person):
        await person.say("One")
        others = [person.branch() for _ in range(3)]
        answers = await asyncio.gather(*(other.say(f"Branch {n}") for n, other in enumerate(others)))
        assert [answer for answer, _ in answers] == [
            f"user:One / assistant:user:One / user:Branch {n}" for n in range(3)
        ]
        assert len({note["channel_id"] for _, note in answers}) == 3
        assert len(await channels(here)) == 3


async def test_many_conversations_at_once_never_mix() -> None:
    async with chatting(Agent("poet", recite)) as (here, person):
        people = [person.branch() for _ in range(20)]

        async def converse(number: int, one: Person) -> None:
            expected: list[str] = []
            for turn in range(3):
                text = "Hello" if turn == 0 else f"{number}.{turn}"  # all begin with the same words
                expected.append(f"user:{text}")
                answer = await one.hear(text) if number % 2 else (await one.say(text))[0]
                assert answer == " / ".join(expected)
                expected.append(f"assistant:{answer}")

        await asyncio.gather(*(converse(number, one) for number, one in enumerate(people)))
        assert len(await channels(here)) == 20


async def test_whom_a_key_serves_are_kept_apart_by_user() -> None:
    async with chatting(Agent("poet", recite)) as (_, person):
        ann, ben = person.branch(), person.branch()
        _, first = await ann.say("Hello", user="ann")
        _, second = await ben.say("Hello", user="ben")
        assert (await ann.say("Go on", user="ann"))[1]["channel_id"] == first["channel_id"]
        assert (await ben.say("Go on", user="ben"))[1]["channel_id"] == second["channel_id"]


async def test_other_words_in_the_channel_or_its_end_make_it_another_conversation() -> None:
    async with chatting(Agent("poet", recite)) as (here, person):
        _, note = await person.say("One")
        http = await here.client()
        await http.post(f"/channels/{note['channel_id']}/messages", json={"text": "Aside"})
        answer, other = await person.say("Two")
        assert (answer, other["channel_id"] != note["channel_id"]) == ("user:One / assistant:user:One / user:Two", True)
        await http.post(f"/channels/{other['channel_id']}/close", json={})
        _, third = await person.say("Three")
        assert third["channel_id"] not in (note["channel_id"], other["channel_id"])


async def test_what_a_server_forgets_a_new_channel_begins_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    async with chatting(Agent("poet", recite), url=url) as (here, person):
        person.talk.append({"role": "system", "content": "Be brief."})
        await person.say("One")
        first, talk = await channels(here), person.talk
    async with chatting(Agent("poet", recite), url=url) as (here, person):
        person.talk = talk
        answer = await person.hear("Two")
        assert answer == "user:Be brief. / user:One / assistant:user:Be brief. / user:One / user:Two"
        assert len(await channels(here)) == len(first) + 1
        await person.say("Three")
        assert len(await channels(here)) == len(first) + 1


# Requests that are repeated


async def test_a_request_that_is_repeated_with_its_key_runs_once() -> None:
    lead = Clerk("support")
    async with chatting(team(lead=lead)) as (here, person):
        key = {"Idempotency-Key": "k1"}
        both = await asyncio.gather(*(person.branch().say("Hello", extra_headers=key) for _ in range(3)))
        assert both[0] == both[1] == both[2]
        assert await person.branch().hear("Hello", extra_headers=key) == both[0][0]
        whole = [
            await person.client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "Hello"}], extra_headers=key
            )
            for _ in range(2)
        ]
        assert whole[0] == whole[1]
        assert (lead.asked, len(await channels(here))) == (1, 1)
        with pytest.raises(openai.ConflictError):
            await person.branch().say("Something else", extra_headers=key)
        await person.branch().say("Hello", extra_headers={"Idempotency-Key": "k2"})
        assert lead.asked == 2


async def test_a_key_outlives_the_server_and_keeps_who_answers_and_what_is_known(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    billing = Clerk("billing")
    async with chatting(team(billing=billing), url=url) as (here, person):
        _, before = await person.say("A bill", extra_headers={"Idempotency-Key": "a"})
        http = await here.client()
        await http.post(f"/channels/{before['channel_id']}/context", json={"set": {"order": 7}})
        answer, there = await person.branch().say("Sure?", extra_headers={"Idempotency-Key": "b"})
        assert (answer, there["channel_id"] != before["channel_id"]) == ("billing: about Sure?", True)
        shown = (await http.get(f"/channels/{there['channel_id']}")).json()
        assert shown["context_vars"] == {"order": 7}
        talk, asked = person.talk, billing.asked
    async with chatting(team(billing=billing), url=url) as (_, person):
        person.talk = talk
        assert await person.say("Sure?", extra_headers={"Idempotency-Key": "b"}) == (answer, there)
        assert billing.asked == asked


async def test_a_key_in_a_named_thread_is_a_message_id_there() -> None:
    lead = Clerk("support")
    async with chatting(team(lead=lead)) as (_, person):
        headers = {"X-Thread-Id": "t", "Idempotency-Key": "k"}
        first = await person.branch().say("Hello", extra_headers=headers)
        assert await person.branch().say("Hello", extra_headers=headers) == first
        other = await person.branch().say("Hello", extra_headers={**headers, "X-Thread-Id": "u"})
        assert other[1]["channel_id"] != first[1]["channel_id"]
        assert lead.asked == 2


# What goes wrong


async def test_errors_are_those_that_clients_know() -> None:
    async with chatting(team()) as (here, person):
        with pytest.raises(openai.NotFoundError) as unknown:
            await person.branch().say("Hi", model="nobody")
        assert (unknown.value.code, unknown.value.type) == ("model_not_found", "not_found_error")
        with pytest.raises(openai.BadRequestError, match=r"tools is .* an agent has tools of its own"):
            await person.branch().say("Hi", tools=[{"type": "function", "function": {"name": "f"}}])
        with pytest.raises(openai.UnprocessableEntityError, match="idempotency-key has 201 characters"):
            await person.branch().say("Hi", extra_headers={"Idempotency-Key": "k" * 201})
        right, wrong = await here.key("ann", "invoke"), await here.key("ben", "read")
        with pytest.raises(openai.AuthenticationError):
            await person.say("Hi")
        async with client_of(here, right) as ann, client_of(here, wrong) as ben:
            with pytest.raises(openai.PermissionDeniedError):
                await Person(ben).say("Hi")
            _, note = await Person(ann).say("Hi")
        state = (await here.hub.core.live(str(note["channel_id"]))).state
        assert list(state.participants) == ["ann", "support"]


async def test_keys_of_others_have_conversations_of_their_own() -> None:
    async with served_hub(Agent("poet", recite)) as here:
        ann, ben = await here.key("ann", "invoke"), await here.key("ben", "invoke")
        async with client_of(here, ann) as one, client_of(here, ben) as other:
            person, thief = Person(one, "poet"), Person(other, "poet")
            _, mine = await person.say("A secret")
            thief.talk = list(person.talk)
            _, copied = await thief.say("Go on")
            assert copied["channel_id"] != mine["channel_id"]
            assert (await person.say("Go on"))[1]["channel_id"] == mine["channel_id"]
            person.talk, thief.talk = [], []
            options = {"extra_headers": {"Idempotency-Key": "k"}}
            found = [await each.say("Hello", **options) for each in (person, thief)]
            thief.talk = list(person.talk)
            found += [await each.say("Go on") for each in (thief, person)]
            found += [await each.say("Hi", metadata={"thread_id": "t"}) for each in (person, thief)]
            ours, yours, your_next, our_next, our_thread, your_thread = (str(note["channel_id"]) for _, note in found)
            assert (ours, yours) == (our_next, your_next)
            assert len({ours, yours, our_thread, your_thread}) == 4


def failing(*script: object) -> Agent:
    return Agent("support", ScriptedModel(script), limits=Limits(model_attempts=1))  # type: ignore[arg-type]


async def test_a_turn_that_fails_is_an_error_whole_and_in_mid_stream() -> None:
    async with chatting(failing(ModelUnavailable("it is away"), ModelUnavailable("it is away"), says("Back."))) as (
        _,
        person,
    ):
        with pytest.raises(openai.InternalServerError) as whole:
            await person.branch().say("Hi")
        assert (whole.value.status_code, whole.value.code) == (502, "model_error")
        with pytest.raises(openai.APIError, match="the model could not be asked") as streamed:
            await person.branch().hear("Hi")
        assert "it is away" not in f"{whole.value} {streamed.value}"
        assert (streamed.value.code, streamed.value.type) == ("model_error", "server_error")
        assert (await person.say("Hi"))[0] == "Back."


async def test_an_answer_that_a_limit_cut_short_says_so() -> None:
    agent = Agent(
        "clerk",
        ScriptedModel([calls("look", text="Half."), calls("look", text="Half.")]),
        tools=[look],
        limits=Limits(model_calls=1),
    )
    async with chatting(agent) as (_, person):
        messages = [{"role": "user", "content": "Hi"}]
        whole = await person.client.chat.completions.create(model="clerk", messages=messages)  # type: ignore[arg-type]
        assert whole.choices[0].finish_reason == "length"
        assert whole.antiphon["stopped"] == "max_model_calls"  # type: ignore[attr-defined]
        stream = await person.client.chat.completions.create(model="clerk", messages=messages, stream=True)  # type: ignore[arg-type]
        chunks = [chunk.choices[0] async for chunk in stream]
        assert chunks[-1].finish_reason == "length"
        assert "".join(chunk.delta.content or "" for chunk in chunks).endswith(whole.choices[0].message.content or "?")


async def test_heartbeats_do_not_disturb() -> None:
    lead = Clerk("support", gate=asyncio.Event())
    async with chatting(team(lead=lead), limits=changed(DEFAULT_SERVER_LIMITS, heartbeat_seconds=0.05)) as (
        here,
        person,
    ):
        assert lead.gate is not None
        hearing = asyncio.create_task(person.hear("Hello"))
        await lead.reached.wait()
        http = await here.client()
        body = {"model": "support", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            beats = 0
            async for line in response.aiter_lines():
                beats += line == ":"
                if beats == 2:  # whoever was silent before has had one too
                    lead.gate.set()
        assert beats >= 2
        assert await hearing == "support: about Hello"


async def test_whoever_leaves_does_not_stop_the_turn() -> None:
    lead = Clerk("support", gate=asyncio.Event())
    async with chatting(team(lead=lead)) as (here, person):
        assert lead.gate is not None
        leaving = await person.client.chat.completions.create(
            model="support", messages=[{"role": "user", "content": "Bye"}], stream=True
        )
        async for chunk in leaving:
            if chunk.choices[0].delta.content:
                break
        await leaving.close()
        await poll_until(lambda: here.served.streams.open.count == 0, "whoever leaves has no stream any more")
        [left] = await channels(here)
        live = await here.hub.core.live(left)
        assert live.state.owed
        lead.gate.set()
        await poll_until(lambda: not live.state.owed, "the turn goes on without them")
        assert await _said(here, left, "support: about Bye")


async def _said(here: ServedHub, channel_id: str, text: str) -> bool:
    return any(each.event_data.get("text") == text for each in await here.hub.log(channel_id))


async def test_limits_are_kept() -> None:
    async with chatting(Agent("poet", recite), limits=changed(DEFAULT_SERVER_LIMITS, streams_each=0)) as (here, person):
        with pytest.raises(openai.APIStatusError) as large:
            await person.branch().say("x" * (1024 * 1024))
        assert (large.value.status_code, large.value.code) == (413, "too_large")
        huge = person.branch()
        huge.talk.append({"role": "user", "content": "x" * 300_000})
        with pytest.raises(openai.APIStatusError) as seed:
            await huge.say("Hi")
        assert seed.value.status_code == 413
        with pytest.raises(openai.APIStatusError) as said:
            await person.branch().say("x" * 300_000)
        assert said.value.status_code == 413
        await person.say("One")
        known = len(await channels(here))
        with pytest.raises(openai.RateLimitError, match="too many streams"):
            await person.branch().hear("Two")
        assert (await person.say("Two"))[0] == "user:One / assistant:user:One / user:Two"
        assert len(await channels(here)) == known


async def test_a_message_that_is_refused_leaves_the_conversation_where_it_was() -> None:
    async with chatting(Agent("poet", recite)) as (_, person):
        _, note = await person.say("One")
        with pytest.raises(openai.APIStatusError):
            await person.branch().say("x" * 300_000)
        assert (await person.say("Two"))[1]["channel_id"] == note["channel_id"]


async def test_a_long_conversation_begins_at_once() -> None:
    async with chatting(Agent("poet", Clerk("poet"))) as (here, person):
        person.talk = [{"role": "assistant" if n % 2 else "user", "content": f"word {n}"} for n in range(2000)]
        assert (await person.say("Last"))[0] == "poet: about Last"
        [only] = await channels(here)
        assert (
            len([each for each in await here.hub.log(only) if each.event_type == "antiphon.history.imported"]) == 2000
        )
