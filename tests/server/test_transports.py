"""Messages that other programs send to the server: the signature alone lets them in, and each is recorded once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from antiphon import Agent, Channel, ConversationRouter, Denied, Hub, InboundMessage, UsageError, WebhookTransport
from antiphon.core.envelope import to_datetime
from antiphon.core.errors import OutcomeUnknown, StoreError, StoreGone, StoreUnavailable
from antiphon.server.limits import ServerLimits
from antiphon.testing import ManualClock
from antiphon.transports.signed_messages import signed_headers
from tests.server.wire import answer, raw, send
from tests.support.served_hub import ServedHub, echo, poll_until, served_hub
from tests.support.troubled_store import TroubledStore

SECRET, OTHER = "k7Qx-an-unguessable-secret", "another-unguessable-secret"
MESSAGE: dict[str, object] = {"text": "Where is it?", "source": "+49301234", "intent": "billing"}
SMALL = ServerLimits(body_bytes=1000, body_seconds=0.5, body_stalled_seconds=0.2)


@asynccontextmanager
async def site(
    *, limits: ServerLimits | None = None, guarded: bool = False, hub: Hub | None = None
) -> AsyncIterator[ServedHub]:
    """A server with the transports `sms`, which takes requests, and `mail`, which only sends."""
    async with served_hub(
        Agent("support", echo), clock=ManualClock(), limits=limits or ServerLimits(), open=False, hub=hub
    ) as here:
        if guarded:
            await here.key("ann")
        desk = await here.hub.register("desk")
        knobs = {"router": ConversationRouter(default_agent_id="support").to_dict()}

        async def channel_of(message: InboundMessage) -> Channel:
            return await desk.open(type="routed", target="support", knobs=knobs, key=message.source)

        sms = WebhookTransport("https://sms.example.org/in", secret=SECRET)
        here.hub.transport("sms", inbound=sms, channel=channel_of)
        here.hub.transport("mail", send=sms.send)
        yield here


async def post(
    here: ServedHub,
    message: object = MESSAGE,
    *,
    name: str = "sms",
    message_id: str = "m-1",
    secret: str = SECRET,
    late: int = 0,
    **headers: str,
) -> httpx2.Response:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    seconds = int(to_datetime(here.hub.core.clock.now()).timestamp()) - late
    signed = signed_headers(secret, message_id=message_id, timestamp=seconds, body=body)
    kind = {"content-type": "application/json"}
    client = await here.client()
    return await client.post(f"/transports/{name}", content=body, headers={**kind, **signed, **headers})


def reason_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["reason"]


async def said(here: ServedHub, by: str = "desk") -> list[dict[str, object]]:
    """What a participant has said in any channel."""
    rows = await here.hub.channels()
    logs = [await here.hub.log(row.channel_id) for row in rows]
    return [each.event_data for log in logs for each in log if each.sender_id == by]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_signed_message_needs_no_key(guarded: bool) -> None:
    async with site(guarded=guarded) as here:
        taken = await post(here)
        assert taken.status_code == 202
        [row] = await here.hub.channels()
        [recorded] = [each for each in await here.hub.log(row.channel_id) if each.sender_id == "desk"]
        assert taken.json() == {
            "message_id": "m-1",
            "channel_id": row.channel_id,
            "envelope_id": recorded.envelope_id,
        }
        assert recorded.event_data == {**MESSAGE, "transport": "sms"}
        live = await here.hub.core.live(row.channel_id)
        await poll_until(lambda: live.state.turn_count >= 2, "the agent answers")


async def test_a_message_is_for_everybody_who_reaches_the_server() -> None:
    """A proxy passes the public name on, and no page of a browser can sign."""
    async with site() as here:
        taken = await post(here, host="agents.example.org", origin="https://sms.example.org")
        assert taken.status_code == 202


async def test_a_repetition_is_answered_like_the_first() -> None:
    async with site() as here:
        first = await post(here)
        replayed, signed_anew = await post(here), await post(here, late=200)
        assert first.json() == replayed.json() == signed_anew.json()
        assert {each.status_code for each in (first, replayed, signed_anew)} == {202}
        other = await post(here, message_id="m-2")
        assert other.json()["channel_id"] == first.json()["channel_id"]
        assert other.json()["envelope_id"] != first.json()["envelope_id"]
        assert len(await said(here)) == 2


async def test_two_at_once_are_one() -> None:
    async with site() as here:
        found = await asyncio.gather(*(post(here) for _ in range(5)))
        assert len({each.text for each in found}) == 1
        assert len(await said(here)) == 1


async def test_an_id_that_comes_with_another_text_is_refused() -> None:
    async with site() as here:
        assert (await post(here)).status_code == 202
        assert reason_of(await post(here, {**MESSAGE, "text": "Another one."})) == (409, "conflict")
        assert len(await said(here)) == 1


async def test_unknown_transports_are_refused_like_wrong_signatures() -> None:
    async with site() as here:
        refused = [
            await post(here, secret=OTHER),
            await post(here, name="nowhere"),
            await post(here, name="mail"),
            await post(here, name="sms%20"),
            await post(here, name="SMS"),
            await post(here, message_id="m-1", **{"Antiphon-Id": "m-2"}),
            await post(here, secret=OTHER, late=1000),
            await post(here, b"no json", name="nowhere"),
        ]
        assert {reason_of(each) for each in refused} == {(401, "bad_signature")}
        assert len({each.text for each in refused}) == 1
        assert {each.headers["www-authenticate"] for each in refused} == {"Antiphon-Signature"}
        assert SECRET not in refused[0].text
        assert await here.hub.channels() == []


async def test_a_key_is_no_signature() -> None:
    async with site(guarded=True) as here:
        client = await here.known("ann")
        assert reason_of(await client.post("/transports/sms", json=MESSAGE)) == (401, "bad_signature")


@pytest.mark.parametrize("late", [301, -301])
async def test_an_old_message_is_refused_also_if_it_was_taken_before(late: int) -> None:
    async with site() as here:
        assert (await post(here)).status_code == 202
        assert reason_of(await post(here, late=late)) == (401, "stale")


async def test_a_message_is_replayed_within_five_minutes_only() -> None:
    async with site() as here:
        clock = here.hub.core.clock
        assert isinstance(clock, ManualClock)
        assert (await post(here)).status_code == 202
        clock.advance(299)
        assert (await post(here, late=299)).status_code == 202
        clock.advance(2)
        assert reason_of(await post(here, late=301)) == (401, "stale")
        assert len(await said(here)) == 1


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"no json", 400, "no_json"),
        (b'{"text": "x"}', 422, "bad_body"),
        (b'{"text": "x", "source": "y", "to": "z"}', 422, "bad_body"),
        (b'{"text": "x", "source": "y", "id": "m-2"}', 422, "bad_id"),
    ],
)
async def test_a_malformed_message_is_explained(body: bytes, status: int, reason: str) -> None:
    async with site() as here:
        assert reason_of(await post(here, body)) == (status, reason)
        assert await here.hub.channels() == []


async def test_a_body_has_a_size_a_type_and_a_time() -> None:
    async with site(limits=SMALL) as here:
        assert reason_of(await post(here, {**MESSAGE, "text": "x" * 1000})) == (413, "too_large")
        assert reason_of(await post(here, **{"content-type": "text/plain"})) == (415, "not_json")
        assert reason_of(await post(here, **{"content-encoding": "gzip"})) == (415, "encoded")
        async with raw(here.port) as sock:
            head = b"POST /transports/sms HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            await send(sock, head + b"content-length: 100\r\n\r\n{")
            assert (await answer(sock))[0] == 408


async def test_what_the_channel_refuses_is_said() -> None:
    async with site() as here:
        bell = await here.hub.register("bell")
        knobs = {"router": ConversationRouter(default_agent_id="support").to_dict()}
        channel = await bell.open(type="routed", target="support", knobs=knobs)

        async def same(_: InboundMessage) -> Channel:
            return channel

        here.hub.transport("bell", inbound=WebhookTransport("https://bell.example.org", secret=OTHER), channel=same)
        taken = await post(here, name="bell", secret=OTHER)
        await channel.close()
        again = await post(here, name="bell", secret=OTHER)
        assert (again.status_code, again.json()) == (202, taken.json())
        refused = await post(here, name="bell", secret=OTHER, message_id="m-2")
        assert reason_of(refused) == (409, "channel_closed")


SECRETIVE = "no database at token=abcdefgh12345678"


class Door:
    """The function `channel=` of the transport `door`: it fails as it is told, then finds the channel."""

    def __init__(self, channel: Channel, *outcomes: object) -> None:
        self._channel, self._outcomes = channel, list(outcomes)

    async def __call__(self, message: InboundMessage) -> Channel:
        outcome = self._outcomes.pop(0) if self._outcomes else self._channel
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[return-value]


async def door(here: ServedHub, *outcomes: object) -> Channel:
    """The channel that this transport leads to, once it has had these outcomes."""
    bell = await here.hub.register("bell")
    knobs = {"router": ConversationRouter(default_agent_id="support").to_dict()}
    channel = await bell.open(type="routed", target="support", knobs=knobs)
    transport = WebhookTransport("https://door.example.org/in", secret=SECRET)
    here.hub.transport("door", inbound=transport, channel=Door(channel, *outcomes))
    return channel


@pytest.mark.parametrize(
    "outcome",
    [
        LookupError(SECRETIVE),
        UsageError(SECRETIVE),
        SystemExit(SECRETIVE),
        asyncio.CancelledError(SECRETIVE),
        None,
        SECRETIVE,
    ],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_a_channel_that_cannot_be_found_is_to_be_tried_again(
    caplog: pytest.LogCaptureFixture, outcome: object
) -> None:
    async with site() as here:
        await door(here, outcome)
        failed = await post(here, name="door")
        assert reason_of(failed) == (500, "failed")
        assert failed.json()["error"]["message"] == "something went wrong; the server's log says what"
        assert (await post(here, name="door")).status_code == 202
        assert len(await said(here, by="bell")) == 1
    assert "channel= of the transport 'door' r" in caplog.text
    assert "abcdefgh12345678" not in caplog.text


async def test_a_refusal_of_the_function_that_finds_the_channel_is_final() -> None:
    async with site() as here:
        await door(here, Denied("blocked", detail="no such customer; token=abcdefgh12345678"))
        refused = await post(here, name="door")
        assert reason_of(refused) == (409, "blocked")
        assert "no such customer" in refused.text
        assert "abcdefgh12345678" not in refused.text
        assert await said(here, by="bell") == []


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("channel", StoreUnavailable),
        ("channel", OutcomeUnknown),
        ("channel", StoreGone),
        ("message", StoreUnavailable),
        ("message", StoreGone),
    ],
)
async def test_a_store_that_fails_is_to_be_tried_again(where: str, error: type[StoreError]) -> None:
    store = TroubledStore()
    hub = await Hub.over(store, clock=ManualClock())
    async with site(hub=hub) as here:
        await door(here, *[error("the disk /secret/path is full")] * (where == "channel"))
        if where == "message":
            store.fail("append", error("the disk /secret/path is full"))
        failed = await post(here, name="door")
        reason = "store_gone" if error is StoreGone else "store_unavailable"
        assert reason_of(failed) == (503, reason)
        assert failed.headers["retry-after"] == "1"
        assert "/secret/path" not in failed.text
        assert (await post(here, name="door")).status_code == 202
        assert len(await said(here, by="bell")) == 1
    await hub.close()
