"""Webhooks: what is sent where, and what each answer means."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from antiphon import UsageError
from antiphon.core.errors import TransportRefused, TransportUnavailable
from antiphon.core.transport import InboundMessage, OutboundReply
from antiphon.transports.signed_messages import signed_headers
from antiphon.transports.webhook import WebhookTransport
from tests.support.certificates import make_certificate
from tests.transports.hook_server import Hook, answered, hook_server

SECRET = "k7Qx-an-unguessable-secret"
REPLY = OutboundReply("r-1", "c-1", "sms", "+49301234", "Your order was sent. ✓", "support", "m-1", 2)


def transport_to(hook: Hook, path: str = "/in?token=abc", **options: object) -> WebhookTransport:
    url = f"http://127.0.0.1:{hook.port}{path}"
    return WebhookTransport(url, secret=SECRET, allow_private=True, **options)  # type: ignore[arg-type]


def lookups(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A name server that gives these answers one after the other, and then the last one again."""
    asked: list[str] = []

    def look_up(host: str, port: int, *args: object, **options: object) -> list[object]:
        addresses = answers[min(len(asked), len(answers) - 1)].split()
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


# What is sent


async def test_a_reply_is_a_signed_post() -> None:
    async with hook_server() as hook:
        await transport_to(hook).send(REPLY)
    [(first, headers, body)] = hook.requests
    assert first == "POST /in?token=abc HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{hook.port}"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {
        "id": "r-1",
        "channel_id": "c-1",
        "transport": "sms",
        "recipient": "+49301234",
        "text": "Your order was sent. ✓",
        "sender": "support",
        "answers": "m-1",
    }
    timestamp = headers["antiphon-timestamp"]
    assert headers["antiphon-id"] == "r-1"
    signed = f"r-1.{timestamp}.".encode() + body
    assert headers["antiphon-signature"] == f"v1={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}"
    assert SECRET not in str(hook.requests)


async def test_every_attempt_has_the_same_id() -> None:
    async with hook_server(answered(503)) as hook:
        transport = transport_to(hook)
        for _ in range(2):
            with pytest.raises(TransportUnavailable):
                await transport.send(REPLY)
    assert [headers["antiphon-id"] for _, headers, _ in hook.requests] == ["r-1", "r-1"]


async def test_what_one_hub_sends_another_can_authenticate() -> None:
    body = b'{"text": "Hello", "source": "+49", "intent": "billing"}'
    headers = signed_headers(SECRET, message_id="m-7", timestamp=1_700_000_000, body=body)
    now = "2023-11-14T22:13:20.000000Z"
    message = WebhookTransport("https://example.org/x", secret=SECRET).read_inbound(headers, body, now)
    assert message == InboundMessage("Hello", "+49", "m-7", "billing")


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_delivered(status: int) -> None:
    async with hook_server(answered(status, "x" * 100)) as hook:
        await transport_to(hook).send(REPLY)
    assert len(hook.requests) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
async def test_what_may_pass(status: int) -> None:
    async with hook_server(answered(status, "slow\n down", retry_after="7")) as hook:
        with pytest.raises(TransportUnavailable, match=f"answered {status}: 'slow down'") as caught:
            await transport_to(hook).send(REPLY)
    assert caught.value.retry_after == 7.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451])
async def test_what_is_refused_for_good(status: int) -> None:
    async with hook_server(answered(status)) as hook:
        with pytest.raises(TransportRefused, match=f"answered {status}$"):
            await transport_to(hook).send(REPLY)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with hook_server() as elsewhere:
        location = f"http://127.0.0.1:{elsewhere.port}/"
        async with hook_server(answered(status, location=location)) as hook:
            with pytest.raises(TransportRefused, match=rf"redirect \({status}\), which is not followed"):
                await transport_to(hook).send(REPLY)
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("header", "expected"),
    [("0", 0.0), ("1.5", 1.5), ("99999999", 86_400.0), ("-3", None), ("nan", None), ("inf", None), ("soon", None)],
)
async def test_when_to_try_again(header: str, expected: float | None) -> None:
    async with hook_server(answered(429, retry_after=header)) as hook:
        with pytest.raises(TransportUnavailable) as caught:
            await transport_to(hook).send(REPLY)
    assert caught.value.retry_after == expected


async def test_when_to_try_again_as_a_date() -> None:
    for shift, least, most in ((-60, 0, 0), (3600, 1, 3600)):
        async with hook_server(answered(503, retry_after=formatdate(time.time() + shift, usegmt=True))) as hook:
            with pytest.raises(TransportUnavailable) as caught:
                await transport_to(hook).send(REPLY)
        assert caught.value.retry_after is not None
        assert least <= caught.value.retry_after <= most


async def test_no_server_and_broken_answers_may_pass() -> None:
    for answer in (b"", b"no http at all\r\n\r\n", b"HTTP/1.1 2"):
        async with hook_server(answer) as hook:
            with pytest.raises(TransportUnavailable, match="did not answer"):
                await transport_to(hook).send(REPLY)
    with pytest.raises(TransportUnavailable, match="cannot be reached"):  # the server is gone by now
        await transport_to(hook).send(REPLY)


async def test_an_answer_that_never_comes_has_an_end() -> None:
    async with hook_server(None) as hook:
        async with asyncio.timeout(10):
            with pytest.raises(TransportUnavailable, match=r"did not answer within 0\.2 seconds"):
                await transport_to(hook, timeout=0.2).send(REPLY)


@pytest.mark.parametrize(("status", "error"), [(200, None), (400, TransportRefused), (500, TransportUnavailable)])
async def test_the_rest_of_an_answer_is_not_waited_for(status: int, error: type[Exception] | None) -> None:
    """The status counts, although the body is too large, or never comes to its end."""
    endless = f"HTTP/1.1 {status} X\r\ncontent-length: 999999\r\n\r\n".encode()
    for body, options in ((b"x" * 2000, {"max_response_bytes": 1000, "timeout": 60}), (b"x", {"timeout": 0.3})):
        async with hook_server(endless + body) as hook, asyncio.timeout(10):
            if error is None:
                await transport_to(hook, **options).send(REPLY)
                continue
            with pytest.raises(error, match=f"answered {status}: 'x"):
                await transport_to(hook, **options).send(REPLY)


async def test_a_cancelled_attempt_is_cancelled() -> None:
    async with hook_server(None) as hook:
        attempt = asyncio.ensure_future(transport_to(hook).send(REPLY))
        async with asyncio.timeout(10):
            await hook.arrived.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


# Where it goes


async def test_the_checked_address_is_connected_to_whatever_the_name_leads_to_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hook_server() as hook:
        asked = lookups(monkeypatch, "127.0.0.1", "10.0.0.7")  # connecting to the second one would fail the test
        url = f"http://hooks.example.org:{hook.port}/in"
        await WebhookTransport(url, secret=SECRET, allow_private=True).send(REPLY)
        assert asked.count("hooks.example.org") == 1
        assert set(asked) <= {"hooks.example.org", "127.0.0.1"}
    [(_, headers, _)] = hook.requests
    assert headers["host"] == f"hooks.example.org:{hook.port}"


@pytest.mark.parametrize("found", ["127.0.0.1", "8.8.8.8 10.0.0.7", "169.254.169.254", "100.64.0.1", "0.0.0.0"])
@pytest.mark.parametrize("host", ["hooks.example.org", "2130706433", "0x7f.1"])
async def test_a_name_that_leads_inside_is_refused(host: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lookups(monkeypatch, found)
    with pytest.raises(TransportRefused, match=f"nothing is sent to '{host}'"):
        await WebhookTransport(f"https://{host}/in", secret=SECRET).send(REPLY)
    assert asked == [host]


@pytest.mark.parametrize("found", ["169.254.169.254", "0.0.0.0", "224.0.0.1"])
async def test_private_addresses_do_not_include_all(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups(monkeypatch, found)
    with pytest.raises(TransportRefused):
        await WebhookTransport("http://hooks.example.org/in", secret=SECRET, allow_private=True).send(REPLY)


async def test_the_next_address_is_tried_if_one_does_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hook_server() as hook:
        lookups(monkeypatch, "127.0.0.2 127.0.0.1")
        url = f"http://hooks.example.org:{hook.port}/in"
        await WebhookTransport(url, secret=SECRET, allow_private=True).send(REPLY)
    assert len(hook.requests) == 1


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hook_server() as proxy, hook_server() as hook:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await transport_to(hook).send(REPLY)
    assert (len(hook.requests), proxy.requests) == (1, [])


async def test_the_certificate_is_checked_for_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = make_certificate(tmp_path, "DNS:hooks.example.org")
    lookups(monkeypatch, "127.0.0.1")
    names: list[str | None] = []
    tls.sni_callback = lambda _, name, __: names.append(name)
    async with hook_server(tls=tls) as hook:
        for name, trusted in (("hooks.example.org", False), ("hooks.example.org", True), ("other.example.org", True)):
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            url = f"https://{name}:{hook.port}/in"
            transport = WebhookTransport(url, secret=SECRET, allow_private=True)
            if (name, trusted) == ("hooks.example.org", True):
                await transport.send(REPLY)
                continue
            with pytest.raises(TransportUnavailable, match=r"cannot be reached: .*certificate"):
                await transport.send(REPLY)
    assert len(hook.requests) == 1
    assert names == ["hooks.example.org", "hooks.example.org", "other.example.org"]


# What is declared


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org/in", "is not encrypted; give an https URL"),
        ("https://127.0.0.1/in", "is not public; allow_private=True"),
        ("https://[::ffff:10.0.0.7]/in", "is not public"),
        ("https://169.254.169.254/in", "is a metadata address"),
        ("https://metadata.google.internal/in", "is a metadata name"),
        ("https://user:pass@example.org/in", "has a name or a password in it"),
        ("ftp://example.org/in", "has the scheme 'ftp'"),
        ("https:///in", "give an address such as"),
        ("https://exam ple.org/in", "give an address such as"),
        ("https://example.org:99999/in", "give an address such as"),
        ("https://example.org:0/in", "give an address such as"),
        (f"https://{'a' * 70}.org/in", "cannot be read"),
        ("example.org", "give an address such as"),
        (b"https://example.org", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        WebhookTransport(url, secret=SECRET)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("option", [{"timeout": 0}, {"timeout": "1"}, {"timeout": float("inf")}, {"timeout": True}])
def test_a_timeout_that_is_none_is_refused(option: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="the timeout of a transport is"):
        WebhookTransport("https://example.org/in", secret=SECRET, **option)


@pytest.mark.parametrize("most", [-1, 1.5, True, None])
def test_a_size_that_is_none_is_refused(most: int) -> None:
    with pytest.raises(UsageError, match="max_response_bytes is"):
        WebhookTransport("https://example.org/in", secret=SECRET, max_response_bytes=most)


@pytest.mark.parametrize("secret", ["short", "", None, b"k7Qx-an-unguessable-secret"])
def test_a_weak_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(UsageError, match=r"the secret of a transport (has \d+ characters|is a )") as caught:
        WebhookTransport("https://example.org/in", secret=secret)
    assert "unguessable" not in str(caught.value)
    assert "short" not in str(caught.value)


async def test_secrets_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with hook_server(answered(400, f"wrong secret: {SECRET}")) as hook:
        transport = transport_to(hook, "/hidden?user_auth=sesame-open-12")
        with pytest.raises(TransportRefused, match=r"wrong secret: \*\*\*") as caught:
            await transport.send(REPLY)
    assert repr(transport) == f"WebhookTransport('http://127.0.0.1:{hook.port}')"
    shown = f"{caught.value!r} {transport!r} {caplog.text}"
    assert SECRET not in shown
    assert "sesame-open-12" not in shown
    assert "hidden" not in f"{caught.value!r}"
