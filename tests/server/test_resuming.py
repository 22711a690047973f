"""Whoever is cut off resumes from the last id that they have seen: nothing is missed, and nothing comes twice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Asked, Reply, Request, ScriptedModel, calls, says, tool
from antiphon.core.errors import LogCorrupt
from antiphon.server.limits import ServerLimits
from tests.server.wire import Event, events_in, events_of
from tests.support.served_hub import echo, opened, poll_until, served_hub, told

INVOKE = "/agents/support/stream_invoke"
QUESTION = {"text": "Go.", "thread_id": "t", "message_id": "m"}
GARBAGE = ["", "x", "1", "1/2", "a/b/c/d", "-1", "1.5", "9" * 40, "t/1/2/3/4", "t/1/2/-3", "1e3", "٣", "t//1/1", "1 2"]


class Steps:
    """A tool that goes on when it is told to."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.made = 0

    def agent(self, count: int) -> Agent:
        @tool
        async def step(number: int) -> str:
            await self.permits.acquire()
            self.made += 1
            return f"step {number}"

        asked = [calls("step", {"number": number}) for number in range(count)]
        return Agent("support", ScriptedModel([*asked, says("One.\nTwo.\nThree.")]), tools=[step])


async def some(
    client: httpx2.AsyncClient, method: str, path: str, *, last: str | None, count: int, **options: object
) -> list[Event]:
    """The first events of a stream behind an id; then the connection is dropped."""
    headers = {} if last is None else {"last-event-id": last}
    found: list[Event] = []
    async with client.stream(method, path, headers=headers, **options) as response:  # type: ignore[arg-type]
        assert response.status_code == 200, await response.aread()
        async with aclosing(events_of(response)) as events:  # type: ignore[type-var]
            async for event in events:
                found.append(event)
                if len(found) == count:
                    break
    return found


# The turn of an agent


async def test_a_turn_is_followed_by_somebody_who_is_cut_off_after_every_event() -> None:
    steps = Steps()
    async with served_hub(steps.agent(3)) as here:
        client = await here.client()
        seen: list[Event] = []
        last = None
        while not seen or seen[-1].event != "done":
            seen += await some(client, "POST", INVOKE, last=last, count=1, json=QUESTION)
            last = seen[-1].id
            steps.permits.release()
        whole = events_in((await client.post(INVOKE, json=QUESTION)).text)
        assert seen == whole
        assert [each.event for each in whole] == [
            *["tool_usage", "tool_response"] * 3,
            "ai_message",
            *["message"] * 3,
            "done",
        ]
        assert steps.made == 3
        for place, event in enumerate(whole):  # and once it is over, from anywhere
            rest = await client.post(INVOKE, json=QUESTION, headers={"last-event-id": event.id})
            assert events_in(rest.text) == whole[place + 1 :]


@pytest.mark.usefixtures("impatient")
async def test_a_turn_is_followed_across_restarts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    seen: list[Event] = []
    hangs = True

    @tool(idempotency="natural")
    async def step(number: int) -> str:
        if hangs:
            await asyncio.Event().wait()
        return f"step {number}"

    async def model(request: Request) -> Reply:
        done = sum(isinstance(item, Asked) for item in request.exchange)
        return calls("step", {"number": done}) if done < 2 else says("One.\nTwo.")

    agent = Agent("support", model, tools=[step])
    while not seen or seen[-1].event != "done":
        async with served_hub(agent, url=url, limits=ServerLimits(stop_seconds=0.1)) as here:
            last = seen[-1].id if seen else None
            seen += await some(await here.client(), "POST", INVOKE, last=last, count=1 + len(seen), json=QUESTION)
        hangs = False
    async with served_hub(agent, url=url) as here:
        assert seen == events_in((await (await here.client()).post(INVOKE, json=QUESTION)).text)
    told = ["tool_usage", "tool_response"]
    assert [each.event for each in seen] == [*told, *told, "ai_message", "message", "message", "done"]


async def test_a_turn_in_doubt_is_followed_on_once_it_is_settled() -> None:
    @tool(idempotency="unsafe", timeout=0.02)
    async def pay() -> str:
        await asyncio.Event().wait()
        return ""

    agent = Agent("support", ScriptedModel([calls("pay"), says("Paid.")]), tools=[pay])
    async with served_hub(agent) as here:
        client = await here.client()
        first = events_in((await client.post(INVOKE, json=QUESTION)).text)
        assert first[-1].data["stopped"] == "in_doubt"
        [waiting] = (await client.get("/approvals")).json()["approvals"]
        choice = {"decision": "respond", "text": "receipt 7", "digest": waiting["digest"]}
        assert (await client.post(f"/approvals/{waiting['approval_id']}", json=choice)).status_code == 200
        headers = {"last-event-id": first[-1].id}
        rest = events_in((await client.post(INVOKE, json=QUESTION, headers=headers)).text)
        assert [each.event for each in rest] == ["tool_response", "ai_message", "message", "done"]
        assert rest[0].data["text"] == "receipt 7"


async def test_an_id_of_a_turn_that_is_none_is_refused() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()
        for last in GARBAGE:
            response = await client.post(INVOKE, json=QUESTION, headers={"last-event-id": last.encode()})
            assert (response.status_code, response.json()["error"]["reason"]) == (422, "bad_id"), last


async def test_the_id_of_somebody_elses_turn_is_not_there() -> None:
    async with served_hub(Agent("support", echo), Agent("other", echo)) as here:
        ann, bob = await here.known("ann"), await here.known("bob")
        events = events_in((await ann.post(INVOKE, json=QUESTION)).text)
        channel, message, *_ = events[0].id.split("/")
        set_by_ann = (await ann.post(f"/channels/{channel}/context", json={"set": {"a": 1}})).json()["sequence"]
        absent = (await ann.post(INVOKE, json=QUESTION, headers={"last-event-id": f"nowhere/{message}/0/0"})).text
        strange = [
            await bob.post(INVOKE, json=QUESTION, headers={"last-event-id": events[0].id}),
            await ann.post("/agents/other/stream_invoke", json=QUESTION, headers={"last-event-id": events[0].id}),
            *[
                await ann.post(INVOKE, json=QUESTION, headers={"last-event-id": f"{channel}/{number}/0/0"})
                for number in (0, 1, 2, int(message) + 1, set_by_ann, 10**14)
            ],
        ]
        assert {each.status_code for each in strange} == {404}
        assert {each.text for each in strange} == {absent.replace("nowhere", channel)}


# The log of a channel


async def test_a_growing_channel_is_followed_by_somebody_who_is_cut_off_after_every_event() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        talking = asyncio.create_task(talk(client, channel_id, 30))
        seen: list[Event] = []
        path = f"/channels/{channel_id}/subscribe?view=operator"
        while not seen or seen[-1].event != "end":
            last = seen[-1].id if seen else None
            seen += await some(client, "GET", path, last=last, count=1 + len(seen) % 3)
        await talking
        log = await told(here.hub, channel_id)
        assert [int(each.id) for each in seen[:-1]] == [envelope.sequence for envelope in log]
        assert [each.data["event_data"] for each in seen[:-1]] == [envelope.event_data for envelope in log]
        await poll_until(lambda: here.served.streams.open.count == 0, "whoever has left is not counted any more")
        assert here.hub.core.feed._watchers == {}


async def talk(client: httpx2.AsyncClient, channel_id: str, count: int) -> None:
    for number in range(count):
        said = await client.post(f"/channels/{channel_id}/messages", json={"text": f"message {number}"})
        assert said.status_code == 201
    await client.post(f"/channels/{channel_id}/close", json={})


async def test_a_channel_is_followed_across_restarts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with served_hub(url=url) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        await talk(client, channel_id, 2)
        whole = events_in((await client.get(f"/channels/{channel_id}/subscribe")).text)
    seen: list[Event] = []
    while not seen or seen[-1].event != "end":
        async with served_hub(url=url) as here:
            last = seen[-1].id if seen else None
            path = f"/channels/{channel_id}/subscribe"
            seen += await some(await here.client(), "GET", path, last=last, count=2)
    assert seen == whole


async def test_behind_the_end_of_a_channel_nothing_will_come() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        await talk(client, channel_id, 1)
        path = f"/channels/{channel_id}/subscribe"
        events = events_in((await client.get(path)).text)
        gone = await client.get(path, headers={"last-event-id": events[-2].id})
        assert (gone.status_code, gone.content) == (204, b"")
        assert (await client.get(path, headers={"last-event-id": "1"})).status_code == 200
        for last in [each for each in GARBAGE if each != "1"]:
            refused = await client.get(path, headers={"last-event-id": last.encode()})
            assert (refused.status_code, refused.json()["error"]["reason"]) == (422, "bad_id"), last


async def test_a_log_that_is_found_damaged_ends_the_streams_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with served_hub(Agent("support", echo)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        live = await here.hub.core.live(channel_id)
        async with client.stream("GET", f"/channels/{channel_id}/subscribe") as response:
            events = events_of(response)
            first = await anext(events)
            await poll_until(lambda: here.served.streams.open.count == 1, "it is followed")
            await live._quarantine(LogCorrupt(channel_id, live.state.sequence + 1, "a bit has flipped"))
            rest = [event async for event in events]
        assert first.event == "envelope"
        assert (rest[-1].event, rest[-1].data["status"]) == ("end", "quarantined")
        assert "the channel's log is damaged" in str(rest[-1].data["reason"])
    assert "a bit has flipped" in caplog.text


async def test_whoever_is_too_far_behind_is_told_where_to_resume() -> None:
    async with served_hub(limits=ServerLimits(lag=50)) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        path = f"/channels/{channel_id}/subscribe"
        live = await here.hub.core.live(channel_id)
        async with client.stream("GET", path) as response:
            events = events_of(response)
            await anext(events)
            await asyncio.gather(*(say(client, channel_id, "x" * 100_000) for _ in range(200)))
            rest = [event async for event in events]
        assert rest[-1].event == "slow_consumer"
        cursor = rest[-1].data["cursor"]
        assert isinstance(cursor, int)
        assert cursor == int(rest[-2].id)
        assert 50 < int(str(rest[-1].data["behind"])) <= live.state.sequence - cursor
        await client.post(f"/channels/{channel_id}/close", json={})
        more = events_in((await client.get(path, headers={"last-event-id": str(cursor)})).text)
        assert [int(each.id) for each in more[:-1]] == list(range(cursor + 1, live.state.sequence + 1))


async def say(client: httpx2.AsyncClient, channel_id: str, text: str) -> None:
    said = await client.post(f"/channels/{channel_id}/messages", json={"text": text})
    assert said.status_code == 201, said.text


async def test_an_answer_is_the_same_whoever_asks_and_however_it_is_asked() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()
        streamed = events_in((await client.post(INVOKE, json=QUESTION)).text)[-1].data
        waited = (await client.post("/agents/support/invoke", json=QUESTION)).json()
        keys = ("text", "agent", "stopped", "usage", "channel_id")
        assert [streamed[key] for key in keys] == [waited[key] for key in keys]
