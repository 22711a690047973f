"""What goes wrong between here and a provider: who is told what, and what is left behind."""

import asyncio
import email.utils
import json
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from antiphon import Message, ModelRefused, ModelUnavailable, ReplyMalformed, Request
from antiphon.models import provider_http
from antiphon.models.provider_errors import MAX_QUOTED_CHARS
from tests.models.model_servers import Answer, Held, Server, cut_body, endless, hang_up, plain, serving, streamed
from tests.models.protocols import HELLO, KEY, NAME, PROTOCOLS, TWO_CALLS, AnthropicWording, OpenAIWording, ask, event

Wording = OpenAIWording | AnthropicWording
HI = Request("Be brief.", [Message("user", "Hi.")])

pytestmark = [
    pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name),
    pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"]),
]


async def failure(protocol: Wording, server: Server, *, stream: bool, **options: object) -> Exception:
    """The error that one request comes to. It was sent once, and no connection is left."""
    model = protocol.model(server.url, **options)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what the tests are about
        await ask(model, HI, stream=stream)
    await model.close()
    await server.until(lambda: not server.open)
    assert len(server.requests) == 1
    assert KEY not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
async def test_what_may_pass(protocol: Wording, stream: bool, status: int) -> None:
    body = protocol.error("rate_limit_error", f"Slow down, {KEY}!")
    async with serving(plain(body, status, headers={"retry-after": "7"})) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelUnavailable)
        assert (error.status, error.retry_after) == (status, 7.0)
        assert str(error) == f"{protocol.name} at 127.0.0.1:{server.port} answered {status}: Slow down, ***!"


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time is not that of providers."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


DATES = {
    "in a minute": lambda now: email.utils.formatdate(now + 60, usegmt=True),
    "a minute ago": lambda now: email.utils.formatdate(now - 60, usegmt=True),
    "in a minute, the old way": lambda now: time.asctime(time.gmtime(now + 60)),
}
"""What a provider may say, by the time it says it."""


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25, 0.25),
        ({"retry-after": "in a minute"}, 1, 60),
        ({"retry-after": "a minute ago"}, 0, 0),
        ({"retry-after": "in a minute, the old way"}, 1, 60),
        ({"retry-after": "999999999"}, 86_400, 86_400),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3, 3),
    ],
)
async def test_when_to_ask_again(
    protocol: Wording, stream: bool, headers: dict[str, str], least: float, most: float, far_east: None
) -> None:
    told = {name: DATES[value](time.time()) if value in DATES else value for name, value in headers.items()}
    async with serving(plain(protocol.error("x", "Slow."), 429, headers=told)) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelUnavailable)
        assert error.retry_after is not None
        assert least <= error.retry_after <= most


@pytest.mark.parametrize("value", ["soon", "-3", "nan", "inf", "", "Wed, 99 Foo 2026 00:00:00 GMT"])
async def test_nonsense_about_waiting_is_no_word(protocol: Wording, stream: bool, value: str) -> None:
    async with serving(plain(b"", 429, headers={"retry-after": value, "retry-after-ms": value})) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelUnavailable)
        assert (error.status, error.retry_after) == (429, None)


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (
            401,
            f"Incorrect API key provided: {KEY}.",
            "does not let us in (401): Incorrect API key provided: ***.; check",
        ),
        (404, "No such model.", f"does not know the model {NAME!r} (404): No such model.; check its name"),
        (400, "Too long.", "refused the request (400): Too long."),
        (413, "x" * 5000, f"refused the request (413): {'x' * 300}…"),
    ],
)
async def test_what_has_to_be_changed(protocol: Wording, stream: bool, status: int, said: str, words: str) -> None:
    async with serving(plain(protocol.error("x", said), status)) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelRefused)
        assert error.status == status
        assert words in str(error)


async def test_a_wrong_key_says_where_it_came_from(
    protocol: Wording, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{protocol.name.upper()}_API_KEY", KEY)
    async with serving(plain(protocol.error("authentication_error", "No."), 401)) as server:
        error = await failure(protocol, server, stream=stream, api_key=None)
        assert str(error).endswith(f"check {protocol.name.upper()}_API_KEY")
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>Bad   \n gateway</html>", "answered 502: <html>Bad gateway</html>"),
        (b'{"error": "plain words"}', "answered 502: plain words"),
        (b'{"detail": "of another server"}', "answered 502: of another server"),
        (b'{"odd": 1}', "answered 502: {'odd': 1}"),
        (b"\xff\xfe\x00", "answered 502: "),
        (b"", "answered 502"),
    ],
)
async def test_errors_in_other_words(protocol: Wording, stream: bool, body: bytes, words: str) -> None:
    async with serving(plain(body, 502)) as server:
        assert words in str(await failure(protocol, server, stream=stream))


async def test_redirects_are_not_followed(protocol: Wording, stream: bool) -> None:
    async with serving(plain(b"", 307, headers={"location": "http://127.0.0.1:9/x"})) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelRefused)
        assert "sends us elsewhere (307), where we do not go: to http://127.0.0.1:9/x" in str(error)


def cut_off(protocol: Wording, *, stream: bool) -> list[Answer]:
    if not stream:
        whole = protocol.whole(HELLO)
        return [cut_body(whole, 40), cut_body(whole, 0), endless(json.dumps(whole).encode()[:40]), hang_up]
    events = protocol.events(HELLO)
    most = max(at for at, each in enumerate(events) if b"w\xc3\xb6rld" in each)
    parts = b"".join(events)
    return [
        streamed(events[:most], cut=True),
        streamed(events[:most]),
        streamed([parts[: parts.index(b"w\xc3\xb6rld") + 2]], cut=True),
        streamed([]),
        hang_up,
    ]


@pytest.mark.parametrize("which", range(5))
async def test_an_answer_that_is_cut_off(protocol: Wording, stream: bool, which: int) -> None:
    answers = cut_off(protocol, stream=stream)
    async with serving(answers[which % len(answers)]) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelUnavailable)
        assert str(error).startswith(f"{protocol.name} at 127.0.0.1:{server.port} ")
        assert "broke off" in str(error) or "did not answer" in str(error)


async def test_nobody_is_there(protocol: Wording, stream: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    model = protocol.model(f"http://127.0.0.1:{port}")
    with pytest.raises(ModelUnavailable, match=f"{protocol.name} at 127.0.0.1:{port} cannot be reached: "):
        await ask(model, HI, stream=stream)
    await model.close()


async def test_no_encryption_where_some_is_wanted(protocol: Wording, stream: bool) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no certificate here\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as babbling:
        model = protocol.model(f"https://127.0.0.1:{babbling.sockets[0].getsockname()[1]}")
        with pytest.raises(ModelUnavailable, match="cannot be reached: "):
            await ask(model, HI, stream=stream)
        await model.close()


MALFORMED = [b"not JSON", b"[]", b'"text"', b"{}", b'{"choices": [], "content": null}', b'{"choices": 7, "content": 7}']


@pytest.mark.parametrize("body", MALFORMED)
async def test_an_answer_without_the_right_shape(protocol: Wording, stream: bool, body: bytes) -> None:
    async with serving(plain(body)) as server:  # also where a stream was asked for: some servers answer so
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ReplyMalformed)
        assert str(error).startswith(f"the answer of {protocol.name} at 127.0.0.1:{server.port} cannot be used: ")


@pytest.mark.parametrize("data", [b"data: not JSON\n\n", b"data: []\n\n", b'data: {"type": "ping"\n\n'])
async def test_an_event_without_the_right_shape(protocol: Wording, stream: bool, data: bytes) -> None:
    if not stream:
        return
    async with serving(streamed([*protocol.events(HELLO)[:2], data])) as server:
        assert isinstance(await failure(protocol, server, stream=stream), ReplyMalformed)


async def test_an_answer_that_is_too_large(protocol: Wording, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_http, "MAX_ANSWER_BYTES", 20_000)
    long = protocol.events(HELLO)[0] + b": comment\n\n" * 5000
    async with serving(streamed([long]) if stream else plain({"padding": "x" * 30_000})) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ReplyMalformed)
        assert "it has more than 20000 bytes" in str(error)


async def test_an_event_that_is_too_large(protocol: Wording, stream: bool) -> None:
    if not stream:
        return
    async with serving(streamed([b"data: " + b"x" * 700_000] * 2)) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ReplyMalformed)
        assert "an event has more than 1048576 bytes" in str(error)


@pytest.mark.parametrize(
    ("kind", "expected", "status"),
    [
        ("overloaded_error", ModelUnavailable, 529),
        ("server_error", ModelUnavailable, 500),
        ("rate_limit_error", ModelUnavailable, 429),
        ("invalid_request_error", ModelRefused, 400),
        ("something_new", ModelUnavailable, None),
    ],
)
async def test_an_error_in_place_of_an_answer(
    protocol: Wording, stream: bool, kind: str, expected: type[Exception], status: int | None
) -> None:
    told = [*protocol.events(HELLO)[:3], protocol.error_event(kind, f"So sorry, {KEY}.")]
    async with serving(streamed(told) if stream else plain(protocol.error(kind, f"So sorry, {KEY}."))) as server:
        error = await failure(protocol, server, stream=stream)
        assert type(error) is expected
        assert error.status == status
        assert "So sorry, ***." in str(error)


async def test_an_error_with_a_status_for_a_code(protocol: Wording, stream: bool) -> None:
    told = {"type": "error", "error": {"message": "Busy.", "code": 503}}
    async with serving(streamed([event(told)]) if stream else plain(told)) as server:
        error = await failure(protocol, server, stream=stream)
        assert isinstance(error, ModelUnavailable)
        assert error.status == 503


async def test_who_gives_up_waiting_leaves(protocol: Wording, stream: bool) -> None:
    held = Held()
    async with serving(held) as server:
        model = protocol.model(server.url)
        asking = asyncio.ensure_future(ask(model, HI, stream=stream))
        await server.until(lambda: len(server.requests) == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(held.left.wait(), 10)
        await server.until(lambda: not server.open)
        await model.close()


async def test_a_slow_answer_is_waited_for(protocol: Wording, stream: bool) -> None:
    answer = streamed(protocol.events(HELLO)) if stream else plain(protocol.whole(HELLO))
    held = Held(answer)
    async with serving(held) as server:
        model = protocol.model(server.url)
        asking = asyncio.ensure_future(ask(model, HI, stream=stream))
        await server.until(lambda: len(server.requests) == 1)
        assert not asking.done()
        held.released.set()
        assert (await asking)[1] == HELLO.reply
        await model.close()


async def test_a_call_that_is_cut_off_or_no_call(protocol: Wording, stream: bool) -> None:
    whole = json.dumps(protocol.whole(TWO_CALLS)).encode()
    text = b"".join(protocol.events(TWO_CALLS)) if stream else whole
    broken = text.replace(b'"name": "clock"', b'"name": null')
    assert broken != text
    async with serving(streamed([broken]) if stream else plain(broken)) as server:
        assert isinstance(await failure(protocol, server, stream=stream), ReplyMalformed)


@pytest.mark.parametrize("kept", [8, 11, len(KEY) - 1])
async def test_no_key_is_cut_short_and_shown(protocol: Wording, stream: bool, kept: int) -> None:
    before = "x" * (MAX_QUOTED_CHARS - kept)
    async with serving(plain(protocol.error("x", f"{before}{KEY} is no key."), 400)) as server:
        error = await failure(protocol, server, stream=stream)
        assert str(error).endswith(f"refused the request (400): {before}***…")


async def test_no_key_in_any_log(protocol: Wording, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [plain(protocol.error("x", KEY), status) for status in (401, 429, 500)]
    secret = "another-secret-value"
    async with serving(*answers, plain(b"{"), hang_up) as server:
        model = protocol.model(server.url, headers={"x-more": secret})
        errors = []
        for _ in range(5):
            with pytest.raises((ModelUnavailable, ModelRefused, ReplyMalformed)) as caught:
                await ask(model, HI, stream=stream)
            errors.append(repr(caught.value))
        await model.close()
        assert server.requests[0].headers["x-more"] == secret
    assert caplog.records
    assert KEY not in repr(vars(model))
    told = [caplog.text, repr(model), *errors]
    assert [text for text in told if KEY in text or secret in text] == []
