"""Nothing secret gets out: not into the store, not into logs, not into answers."""

from __future__ import annotations

import base64
import json
import logging
import secrets
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from antiphon import Agent
from antiphon.core.errors import StoreUnavailable
from antiphon.server.api_keys import KEY_SCOPES
from antiphon.server.app import HttpRoute, RequestContext
from tests.server.processes import process
from tests.server.wire import answer, raw, request, send
from tests.support.served_hub import echo, served_hub

PROVIDERS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_SECRET_ACCESS_KEY", "POSTGRES_PASSWORD"]
UNUSUAL = PROVIDERS[2:]
"""Those that hold characters which are written otherwise in URLs and in JSON."""
FORMS = 7
PATHS = ["/agents", "/channels", "/channels/nowhere/log", "/approvals", "/keys", "/v1/models", "/nowhere", "/health"]


class Canaries:
    """Secrets, and everything in which one of them must not be found."""

    def __init__(self) -> None:
        self.hidden: list[str] = []
        self._seen: list[tuple[str, bytes]] = []

    def new(self, prefix: str = "canary") -> str:
        self.hidden.append(f"{prefix}{secrets.token_urlsafe(24)}")
        return self.hidden[-1]

    def saw(self, where: str, what: bytes) -> None:
        self._seen.append((where, what))

    def out(self) -> list[str]:
        """Where a secret was found, in whatever form."""
        return [where for where, what in self._seen for each in self.hidden if any(f in what for f in traces(each))]


def traces(secret: str) -> list[bytes]:
    """What a secret leaves where it is written as it is, as base64 at each alignment, URL-quoted or as JSON."""
    raw = secret.encode()
    parts = [raw[skipped : skipped + (len(raw) - skipped) // 3 * 3] for skipped in range(3)]
    encoded = [form for part in parts for form in (base64.b64encode(part), base64.urlsafe_b64encode(part))]
    return [raw, *encoded, quote(secret).encode(), json.dumps(secret)[1:-1].encode()]


async def test_no_secret_gets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = Canaries()
    for name in PROVIDERS:
        monkeypatch.setenv(name, canaries.new('sk-/"+é' if name in UNUSUAL else "sk-"))
    log = tmp_path / "log"
    monkeypatch.setenv("ANTIPHON_TEST_LOG", str(log))
    async with process(url=f"sqlite:///{tmp_path / 'team.db'}") as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=20) as client:
            await use(client, canaries)
        async with raw(server.port) as sock:  # what is no request at all
            await send(sock, f"GET /health HTTP/1.1\r\nauthorization Bearer {canaries.new()}\r\n\r\n".encode())
            canaries.saw("what is no request", (await answer(sock))[1])
        assert await server.stop() == 0
    for file in [log, *tmp_path.glob("team.db*")]:
        canaries.saw(file.name, file.read_bytes())
    assert len(canaries.hidden) >= 50
    assert log.stat().st_size > 0
    assert canaries.out() == []
    for shown in (canaries.hidden[0], base64.b64encode(f"xy{canaries.hidden[0]}".encode()).decode()):
        canaries.saw("control", shown.encode())
    assert canaries.out() == ["control", "control"]


async def use(client: httpx2.AsyncClient, canaries: Canaries) -> None:
    """Do everything with secrets that a client can do, and look at every answer but the one that gives a key."""
    made = await client.post("/keys", json={"participant": "ann", "scopes": list(KEY_SCOPES)})
    good = made.json()["secret"]
    canaries.hidden.append(good)
    header = {"authorization": f"Bearer {good}"}
    for _ in range(5):
        other = await client.post("/keys", json={"participant": "bob2", "scopes": ["read"]}, headers=header)
        canaries.hidden.append(other.json()["secret"])
    wrong = [
        lambda: {"authorization": f"Bearer {canaries.new()}"},
        lambda: {"authorization": f"Basic {canaries.new()}"},
        lambda: {"x-api-key": canaries.new("ak_000000000000_")},
        lambda: {**header, "cookie": f"token={canaries.new()}"},
        lambda: {**header, "x-secret": canaries.new()},
    ]
    for path in PATHS:
        for headers in wrong:
            canaries.saw(path, (await client.get(path, headers=headers())).content)
        canaries.saw(path, (await client.get(path, headers=header)).content)
        token = {"token": canaries.new()}
        canaries.saw(f"{path}?token=…", (await client.get(path, headers=header, params=token)).content)
    for agent in ("support", "remote"):
        for verb in ("invoke", "stream_invoke"):
            question = {"text": "Hello.", "thread_id": "t"}
            said = await client.post(f"/agents/{agent}/{verb}", json=question, headers=header)
            canaries.saw(f"{agent} {verb}", said.content)
    await leak(client, canaries, header)
    canaries.saw("openapi", (await client.get("/openapi.json")).content)
    canaries.saw("a key as an id", (await client.delete(f"/keys/{good}", headers=header)).content)
    canaries.saw("all channels", (await client.get("/channels?view=operator&system=true", headers=header)).content)
    for channel in ("system:keys", "system:audit", "system:registry"):
        canaries.saw(channel, (await client.get(f"/channels/{channel}/log?view=operator", headers=header)).content)


async def leak(client: httpx2.AsyncClient, canaries: Canaries, header: dict[str, str]) -> None:
    """Have a model and a tool fail with every secret of the environment, in every form, and look at what is left."""
    for how in ("model", "tool"):
        for name in PROVIDERS:
            for form in range(FORMS):
                question = {"text": f"{how} {name} {form}", "thread_id": f"{how} {name} {form}"}
                said = await client.post("/agents/leaky/stream_invoke", json=question, headers=header)
                assert said.text.count("event: done") == 1
                canaries.saw(f"leaky {how} {form}", said.content)
    rows = await client.get("/channels?view=operator&limit=200", headers=header)
    logs = []
    for row in rows.json()["channels"]:
        log = await client.get(f"/channels/{row['channel_id']}/log?view=operator", headers=header)
        logs.append(log.content)
        canaries.saw("the operator's log", log.content)
    assert sum(b"cannot connect with" in log for log in logs) == 2 * len(PROVIDERS) * FORMS  # what is left, is told


async def fails(ctx: RequestContext) -> object:
    raise RuntimeError("the password is swordfish")


async def cannot_store(ctx: RequestContext) -> object:
    raise StoreUnavailable("postgres://chief:swordfish@db: no route")


@pytest.mark.parametrize(
    ("handle", "status", "reason"), [(fails, 500, "failed"), (cannot_store, 503, "store_unavailable")]
)
async def test_what_went_wrong_inside_is_logged_and_not_told(
    handle: object, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    verbs = [HttpRoute("GET", "/broken", handle, "read", dict)]  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "antiphon.server"):
        async with served_hub(verbs=verbs) as here:
            refused = await (await here.client()).get("/broken")
    assert (refused.status_code, refused.json()["error"]["reason"]) == (status, reason)
    assert "swordfish" not in refused.text
    assert "Traceback" not in refused.text
    assert "swordfish" in caplog.text


async def test_the_head_of_an_answer_says_nothing_of_what_it_runs_on() -> None:
    async with served_hub(Agent("support", echo)) as here, raw(here.port) as sock:
        await send(sock, request("GET", "/health"))
        head = (await answer(sock))[1].partition(b"\r\n\r\n")[0].lower()
        assert b"server:" not in head
        assert b"uvicorn" not in head


async def test_a_key_where_a_name_belongs_is_not_repeated() -> None:
    key = f"ak_0123456789ab_{secrets.token_urlsafe(24)}"
    chat = {"model": key, "messages": [{"role": "user", "content": "Hello."}]}
    async with served_hub(Agent("support", echo)) as here:
        client = await here.client()
        said = [
            await client.get(f"/channels/{key}"),
            await client.get(f"/v1/models/{key}"),
            await client.post(f"/approvals/{key}", json={"decision": "approve", "digest": key}),
            await client.post(f"/agents/{key}/invoke", json={"text": "Hello."}),
            await client.post("/agents/support/invoke", json={"text": "Hello.", key: 1}),
            await client.post("/channels", json={"target": ["support"], "type": key}),
            await client.post("/channels", json={"target": [key]}),
            await client.post("/channels", json={"target": ["support"], "knobs": {key: 1}}),
            await client.post("/v1/chat/completions", json=chat),
            await client.post("/v1/chat/completions", json={**chat, "model": "support", "tool_choice": key}),
        ]
    assert [each.status_code for each in said] == [404, 404, 404, 404, 422, 422, 422, 422, 404, 400]
    assert [each.text for each in said if key in each.text] == []
    assert sum("***" in each.text for each in said) >= 8
