"""What clients are told of failures: a reason and a sentence of ours. The details are in the log, without secrets."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import httpx2
import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    Decision,
    Envelope,
    Expectation,
    Hub,
    MCPServer,
    ModelRefused,
    Reply,
    Request,
    Seats,
    State,
    TurnFailed,
    Wait,
    calls,
    register_adapter,
    says,
)
from antiphon.core.errors import LogCorrupt
from antiphon.hub.known_secrets import REDACTED_LOGGERS
from antiphon.server.app import HttpRoute, RequestContext
from tests.server.wire import events_in
from tests.support.served_hub import ServedHub, echo, opened, served_hub

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "antiphon"
PLACE = "/srv/antiphon/prompts/secret.txt"
SECRET = "c4n4ry/of+the=server & more"
FORMS = [SECRET, quote(SECRET), b64encode(f"u:{SECRET}".encode()).decode(), b64encode(SECRET.encode()).decode()]


async def failing_model(request: Request) -> Reply:
    raise RuntimeError(f"no such file: {PLACE}")


def failing_prompt(messages: object) -> str:
    raise OSError(f"no such file: {PLACE}")


def broken(order: str) -> str:
    """Always fails."""
    raise RuntimeError(f"no such file: {PLACE}")


async def calling_model(request: Request) -> Reply:
    return calls("broken", {"order": "7"}) if not request.exchange else says("Sorry.")


FAILING = {
    "model": (Agent("support", failing_model), "model_error", 502),
    "prompt": (Agent("support", echo, system_prompt=failing_prompt), "prompt_error", 500),
}


async def asked(client: httpx2.AsyncClient) -> list[httpx2.Response]:
    """A question in every way in which one can be asked."""
    chat = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
    noted = {**chat, "stream": True, "metadata": {"antiphon_events": "true"}}
    return [
        await client.post("/agents/support/invoke", json={"text": "Hi", "thread_id": "t"}),
        await client.post("/agents/support/stream_invoke", json={"text": "Hi", "thread_id": "t"}),
        await client.post("/v1/chat/completions", json=chat),
        await client.post("/v1/chat/completions", json=noted),
    ]


async def own_log(client: httpx2.AsyncClient) -> str:
    """Everything that somebody may read of the channels there are, at once and as a stream."""
    texts = []
    for row in (await client.get("/channels")).json()["channels"]:
        channel_id = row["channel_id"]
        texts.append((await client.get(f"/channels/{channel_id}/log")).text)
        await client.post(f"/channels/{channel_id}/close", json={"reason": "done"})
        texts.append((await client.get(f"/channels/{channel_id}/subscribe")).text)
    return "\n".join(texts)


@pytest.mark.parametrize("what", FAILING)
async def test_a_turn_that_fails_tells_a_reason_and_a_sentence_of_ours(what: str) -> None:
    agent, reason, status = FAILING[what]
    async with served_hub(agent) as here:
        ann, chief = await here.known("ann", "invoke", "read", "write"), await here.known("chief")
        whole, streamed, chat, chunks = await asked(ann)
        assert (whole.status_code, whole.json()["error"]["reason"]) == (status, reason)
        assert (chat.status_code, chat.json()["error"]["code"]) == (status, reason)
        done = events_in(streamed.text)[-1]
        assert (done.event, done.data["stopped"]) == ("done", reason)
        sentence = str(done.data["detail"])
        assert "an operator finds the details in the log" in sentence
        assert sentence in whole.json()["error"]["message"]
        seen = "\n".join([whole.text, streamed.text, chat.text, chunks.text, await own_log(ann)])
        assert reason in seen
        for hidden in (PLACE, "RuntimeError", "OSError", "Traceback"):
            assert hidden not in seen
        channel_id = whole.json()["error"]["channel_id"]
        operators = await chief.get(f"/channels/{channel_id}/log", params={"view": "operator"})
        assert PLACE in operators.text


async def test_a_tool_that_fails_tells_its_model_and_no_client() -> None:
    heard: list[str] = []

    async def model(request: Request) -> Reply:
        heard.extend(str(item) for item in request.exchange)
        return await calling_model(request)

    async with served_hub(Agent("support", model, tools=[broken])) as here:
        ann = await here.known("ann", "invoke", "read", "write")
        seen = "\n".join([each.text for each in await asked(ann)] + [await own_log(ann)])
    assert "the tool failed; an operator finds the details in the log" in seen
    assert PLACE not in seen
    assert PLACE in "\n".join(heard)


async def test_code_that_asks_itself_is_told_the_details() -> None:
    async with Hub.open("memory:") as hub:
        with pytest.raises(TurnFailed, match=PLACE) as failed:
            await Agent("support", failing_model).invoke("Hi", hub=hub)
        envelopes = hub.subscribe(failed.value.channel_id, participant="user")
        async for envelope in envelopes:
            if envelope.event_type == "antiphon.turn.failed":
                assert envelope.event_data["reason"] == "model_error"
                assert PLACE not in str(envelope.event_data["detail"])
                break
        assert PLACE in str([envelope.event_data for envelope in await hub.log(failed.value.channel_id)])


@register_adapter
class Fragile:
    """An adapter that fails on whatever is said."""

    name: ClassVar[str] = "tests-fragile"
    seats: ClassVar[Seats] = Seats(least=2)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset({"wrong"})
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: dict[str, object]) -> None:
        if "wrong" in knobs:
            raise RuntimeError(f"no such file: {PLACE}")

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_TEXT:
            raise RuntimeError(f"no such file: {PLACE}")
        return Wait()


async def reject(invite: object) -> bool:
    raise RuntimeError(f"no such file: {PLACE}")


async def test_what_code_of_a_users_raises_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        await here.hub.register("eve", accept=reject)
        ann = await here.known("ann")
        channel_id = await opened(ann, "bob", type="tests-fragile")
        refused = await ann.post(f"/channels/{channel_id}/messages", json={"text": "x"})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "rules_failed")
        rejected = await ann.post("/channels", json={"target": ["eve"]})
        assert rejected.json()["error"]["reason"] == "invite_rejected:eve"
        wrong = await ann.post("/channels", json={"target": ["bob"], "type": "tests-fragile", "knobs": {"wrong": 1}})
        assert (wrong.status_code, wrong.json()["error"]["reason"]) == (422, "bad_request")
        seen = "\n".join([refused.text, rejected.text, wrong.text, await own_log(ann)])
    assert PLACE not in seen
    assert PLACE in caplog.text


async def damaged(ctx: RequestContext) -> object:
    raise LogCorrupt("c", 3, f"{PLACE} has flipped")


async def test_a_damaged_log_says_no_more_than_that(caplog: pytest.LogCaptureFixture) -> None:
    async with served_hub(verbs=[HttpRoute("GET", "/damaged", damaged, "read", dict)]) as here:
        refused = await (await here.client()).get("/damaged")
    assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "quarantined")
    assert PLACE not in refused.text
    assert PLACE in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is no JSON; send JSON in UTF-8"),
        (b'{"text": x}', 400, "the body is no JSON from byte 9 on; send JSON in UTF-8"),
        (b'{"text": 7}', 422, "the body: text is int, not str"),
        (b'{"text": "x", "thread_id": ""}', 422, "the body: thread_id must be str of length >= 1"),
    ],
)
async def test_a_body_that_is_wrong_is_told_in_our_words(body: bytes, status: int, message: str) -> None:
    async with served_hub(Agent("support", echo)) as here:
        headers = {"content-type": "application/json"}
        refused = await (await here.client()).post("/agents/support/invoke", content=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["message"]) == (status, message)


# Secrets that the process knows


async def leaks(here: ServedHub, form: str) -> str:
    """What the log and the answers hold when errors repeat a secret in this form."""
    client = await here.client()
    texts = [each.text for each in await asked(client)]
    for row in (await client.get("/channels", params={"view": "operator", "system": "true"})).json()["channels"]:
        log = await client.get(f"/channels/{row['channel_id']}/log", params={"view": "operator"})
        texts.append(log.text)
    return "\n".join(texts)


@pytest.mark.parametrize("place", ["model", "tool", "prompt"])
@pytest.mark.parametrize("form", FORMS, ids=["raw", "quoted", "base64", "base64 shifted"])
async def test_a_known_secret_is_recorded_in_no_form(place: str, form: str, caplog: pytest.LogCaptureFixture) -> None:
    MCPServer.http("http://127.0.0.1:9/mcp", headers={"authorization": f"Bearer {SECRET}"})  # so that it is known

    async def model(request: Request) -> Reply:
        if place == "tool":
            return calls("pay", {}) if not request.exchange else says(str(request.exchange))
        raise ModelRefused(f"it said {form} is wrong")

    def pay() -> str:
        raise ValueError(f"it said {form} is wrong")

    def prompt(messages: object) -> str:
        if place == "prompt":
            raise ValueError(f"it said {form} is wrong")
        return ""

    with caplog.at_level(logging.DEBUG):
        async with served_hub(Agent("support", model, tools=[pay], system_prompt=prompt)) as here:
            logging.getLogger("antiphon.server").error("it said %s", form, exc_info=ValueError(form))
            seen = await leaks(here, form)
    assert "***" in caplog.text
    assert "***" in seen
    core = form[6:-6]
    assert core not in seen
    assert core not in "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert core not in caplog.text


def test_every_logger_of_ours_is_redacted() -> None:
    used = {
        line.split('getLogger("')[1].split('"')[0]
        for file in SOURCE.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if 'getLogger("' in line
    }
    assert used == set(REDACTED_LOGGERS)
