"""Who is let in, and for what: every verb of the table is refused to whoever has no key that is good for it."""

from __future__ import annotations

import httpx2
import pytest

from antiphon import Agent, Hub, UsageError
from antiphon.core.envelope import add_seconds
from antiphon.server import schemas
from antiphon.server.api_keys import KEY_SCOPES, keys_of
from antiphon.server.app import HttpRoute
from antiphon.server.limits import ServerLimits
from antiphon.server.routes import ROUTES
from antiphon.server.serving import serving
from antiphon.testing import ManualClock
from tests.server.wire import answer, events_of, raw, request, send
from tests.support.served_hub import ServedHub, echo, opened, poll_until, served_hub

GUARDED = [verb for verb in ROUTES if verb.scope is not None]
OPEN = ["receive_message", "show_document", "show_health"]
HOUR = 3600.0
BODIES: dict[object, dict[str, object]] = {schemas.MessageBody: {"text": "x"}}
"""What a verb takes that cannot be left empty."""


def path_of(verb: HttpRoute, **places: str) -> str:
    """A path of this verb; what is not given leads nowhere."""
    known = {"name": "support", "channel_id": "nowhere", "key_id": "0" * 12, "approval_id": "nothing", **places}
    return verb.path.format(**known)


async def ask(client: httpx2.AsyncClient, verb: HttpRoute, **places: str) -> httpx2.Response:
    body = None if verb.takes is None else BODIES.get(verb.takes, {})
    return await client.request(verb.method, path_of(verb, **places), json=body)


def reason_of(response: httpx2.Response) -> str:
    error = response.json()["error"]
    return str(error.get("reason") or error["code"])


def test_only_these_need_no_key() -> None:
    assert sorted(verb.name for verb in ROUTES if verb.scope is None) == OPEN


def test_every_scope_is_one_that_a_key_can_have() -> None:
    assert {verb.scope for verb in GUARDED} == set(KEY_SCOPES)


# Keys


async def test_every_verb_is_refused_without_a_key_that_is_good() -> None:
    clock = ManualClock()
    async with served_hub(Agent("support", echo), clock=clock) as here:
        soon = add_seconds(clock.now(), HOUR)
        good = await here.key("ann")
        expired, revoked = await here.key("ben", expires_at=soon), await here.key("carl")
        await (await keys_of(here.hub)).revoke(revoked.split("_")[1], by="ann")
        clock.advance(2 * HOUR)
        wrong = good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB")
        shown = {
            "no_key": [None, ""],
            "bad_key": [wrong, "x", good.upper(), "ak_000000000000_" + "A" * 43, "é" * 20, good + " x"],
            "key_expired": [expired],
            "key_revoked": [revoked],
        }
        for reason, secrets in shown.items():
            for secret in secrets:
                client = await here.client()
                client.headers.update({} if secret is None else {"authorization": f"Bearer {secret}".strip().encode()})
                for verb in GUARDED:
                    refused = await ask(client, verb)
                    assert (refused.status_code, reason_of(refused)) == (401, reason), (verb.name, secret)
                    assert refused.headers["www-authenticate"] == "Bearer"
        assert (await (await here.client(good)).get("/agents")).status_code == 200


async def test_a_key_is_shown_in_one_of_two_headers_and_nowhere_else() -> None:
    async with served_hub() as here:
        key = await here.key("ann")
        client = await here.client()
        shown = [{"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"x-api-key": key}]
        for headers in shown:
            assert (await client.get("/agents", headers=headers)).status_code == 200
        hidden = [{"cookie": f"key={key}"}, {"authorization": f"Basic {key}"}, {"authorization": key}]
        for headers in hidden:
            assert (await client.get("/agents", headers=headers)).status_code == 401
        for name in ("key", "api_key", "access_token", "token"):
            assert (await client.get("/agents", params={name: key})).status_code == 401


@pytest.mark.parametrize("scope", KEY_SCOPES)
async def test_every_verb_is_refused_with_a_key_of_another_scope(scope: str) -> None:
    async with served_hub(Agent("support", echo)) as here:
        everything_else = await here.known("ann", *(each for each in KEY_SCOPES if each != scope))
        that_alone = await here.known("ben", scope)
        for verb in GUARDED:
            with_all_others = await ask(everything_else, verb)
            alone = await ask(that_alone, verb)
            if verb.scope == scope:
                assert (with_all_others.status_code, reason_of(with_all_others)) == (403, "wrong_scope"), verb.name
                assert alone.status_code not in (401, 403), verb.name
            else:
                assert (alone.status_code, reason_of(alone)) == (403, "wrong_scope"), verb.name


@pytest.mark.parametrize("path", ["/channels?view=operator", "/approvals?view=operator", "{channel}/log?view=operator"])
async def test_the_operators_view_is_for_operators(path: str) -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        ann, chief = await here.known("ann", "read", "write", "approve"), await here.known("chief")
        path = path.format(channel=f"/channels/{await opened(ann, 'bob')}")
        assert ((await ann.get(path)).status_code, (await chief.get(path)).status_code) == (403, 200)


# Other people's channels


async def test_a_channel_of_others_is_like_one_that_is_not_there() -> None:
    async with served_hub(Agent("support", echo)) as here:
        await here.hub.register("bob")
        ann = await here.known("ann")
        eve = await here.known("eve", *(scope for scope in KEY_SCOPES if scope != "operate"))
        channel_id = await opened(ann, "bob")
        system = "system:keys"
        before = await here.hub.log(channel_id)
        checked = 0
        for verb in GUARDED:
            if "{channel_id}" in verb.path and verb.scope != "operate":  # for which a scope is missing, whoever's it is
                absent = (await ask(eve, verb)).text
                for place in (channel_id, system):
                    strange = await ask(eve, verb, channel_id=place)
                    assert (strange.status_code, strange.text) == (404, absent.replace("nowhere", place)), verb.name
                checked += 1
        assert checked >= 6
        assert await here.hub.log(channel_id) == before
        assert (await eve.get("/channels")).json()["channels"] == []
        mine = (await ann.get("/channels")).json()["channels"]
        assert [row["channel_id"] for row in mine] == [channel_id]


async def test_nobody_speaks_for_an_agent_or_for_somebody_else() -> None:
    async with served_hub(Agent("support", echo)) as here:
        ann = await here.known("ann")
        wish = {"participant": "support", "scopes": ["invoke"]}
        assert (await ann.post("/keys", json=wish)).status_code == 422
        impostor = await here.known("support")  # made before there was such an agent
        refused = await impostor.get("/agents")
        assert (refused.status_code, reason_of(refused)) == (403, "not_a_person")
        channel_id = await opened(ann, "support")
        forged = await ann.post(f"/channels/{channel_id}/messages", json={"text": "x", "sender_id": "support"})
        assert (forged.status_code, reason_of(forged)) == (403, "forged_sender")
        refusals = [each.event_data for each in await here.hub.log("system:audit")]
        assert "forged_sender" in [each.get("reason") for each in refusals]


async def test_nobody_speaks_for_an_agent_who_is_absent(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/team.db"
    async with Hub.open(url) as hub:
        await hub.register(Agent("support", echo))
    async with served_hub(url=url) as here:
        impostor = await here.known("support")
        refused = await impostor.get("/channels")
        assert (refused.status_code, reason_of(refused)) == (403, "not_a_person")


async def test_a_thread_is_its_speakers_own() -> None:
    async with served_hub(Agent("support", echo)) as here:
        ann, bob = await here.known("ann"), await here.known("bob")
        question = {"text": "Mine.", "thread_id": "same"}
        found = [(await each.post("/agents/support/invoke", json=question)).json()["channel_id"] for each in (ann, bob)]
        assert found[0] != found[1]
        assert (await bob.get(f"/channels/{found[0]}/log", params={"view": "own"})).status_code == 404


# A server without keys


async def test_without_keys_everything_is_open_to_this_machine_alone() -> None:
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()
        port = here.port
        own = ["localhost", f"localhost:{port}", f"127.0.0.1:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST:1"]
        for host in own:
            assert (await client.get("/agents", headers={"host": host})).status_code == 200, host
        strange = ["evil.example", "localhost.evil.example", f"10.0.0.1:{port}", "0.0.0.0", "127.0.0.1.evil.example"]
        strange += ["", "localhost:x", "localhost@evil.example", "2130706433", "127.1.evil"]
        for host in strange:
            for verb in GUARDED:
                refused = await client.request(verb.method, path_of(verb), headers={"host": host}, json={})
                assert (refused.status_code, reason_of(refused)) == (401, "no_key"), (host, verb.name)
        origins = {f"http://127.0.0.1:{port}": 200, "http://evil.example": 401, "null": 401, "http://localhost:1": 401}
        for origin, status in origins.items():
            assert (await client.get("/agents", headers={"origin": origin})).status_code == status, origin


async def test_a_request_that_names_no_host_is_refused() -> None:
    async with served_hub() as here, raw(here.port) as sock:
        await send(sock, b"GET /agents HTTP/1.0\r\n\r\n")
        assert (await answer(sock))[0] == 401


async def test_a_key_made_over_http_guards_the_server_from_that_moment() -> None:
    limits = ServerLimits(recheck_seconds=0.1)
    async with served_hub(limits=limits) as here:
        await here.hub.register("bob")
        client = await here.client()
        channel_id = await opened(client, "bob")
        async with client.stream("GET", f"/channels/{channel_id}/subscribe") as response:
            made = await client.post("/keys", json={"participant": "ann", "scopes": ["operate", "invoke"]})
            assert made.status_code == 201
            assert [event.event async for event in events_of(response)].count("end") == 0  # begun without a key
        for verb in GUARDED:
            assert (await ask(client, verb)).status_code == 401
        ann = await here.client(made.json()["secret"])
        assert (await ann.get("/agents")).status_code == 200
        key_id = made.json()["key"]["key_id"]
        assert (await ann.delete(f"/keys/{key_id}")).json()["revoked"] is True
        assert (await client.get("/agents")).status_code == 401  # there has been one
        assert (await ann.get("/agents")).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
async def test_other_machines_are_not_listened_to_without_keys(host: str) -> None:
    async with Hub.open("memory:") as hub:
        with pytest.raises(UsageError, match="can be reached from other machines, and there are no keys; make one"):
            async with serving(hub, host=host, port=0):
                pass
        await (await keys_of(hub)).make("ann", kind="human", scopes=["read"], at=hub.core.clock.now())
        if host == "0.0.0.0":
            async with serving(hub, host=host, port=0) as served, httpx2.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{served.port}/agents")).status_code == 401


async def test_an_address_that_is_taken_is_said() -> None:
    async with served_hub() as here:
        with pytest.raises(UsageError, match=r"nothing can listen on '127\.0\.0\.1', port"):
            async with serving(here.hub, port=here.port):
                pass


# A key that ends while its stream lives


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_stream_ends_soon_after_its_key(how: str) -> None:
    clock = ManualClock()
    async with served_hub(clock=clock, limits=ServerLimits(recheck_seconds=0.1)) as here:
        await here.hub.register("bob")
        secret = await here.key("ann", expires_at=add_seconds(clock.now(), HOUR))
        ann = await here.client(secret)
        channel_id = await opened(ann, "bob")
        async with ann.stream("GET", f"/channels/{channel_id}/subscribe") as response:
            events = events_of(response)
            await anext(events)
            await until_followed(here)
            if how == "revoked":
                await (await keys_of(here.hub)).revoke(secret.split("_")[1], by="chief")
            else:
                clock.advance(2 * HOUR)
            rest = [event async for event in events]
        assert "end" not in [event.event for event in rest]
        assert here.served.streams.open.count == 0


async def until_followed(here: ServedHub) -> None:
    await poll_until(lambda: here.served.streams.open.count == 1, "there is a stream")


async def test_the_same_answer_takes_no_body_to_be_refused() -> None:
    """Whoever may not ask is not listened to: the body that they announce is never read."""
    async with served_hub(Agent("support", echo)) as here:
        await here.key("ann")
        async with raw(here.port) as sock:
            announced = ("content-type: application/json", "content-length: 1000000")
            await send(sock, request("POST", "/agents/support/invoke", *announced))
            assert (await answer(sock))[0] == 401
