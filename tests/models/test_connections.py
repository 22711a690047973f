"""The connections of a model: how many there are, and when they go."""

import asyncio
import subprocess
import sys

import pytest

from antiphon import Message, Request
from antiphon.models import provider_http
from antiphon.models.provider_http import CONNECT_SECONDS, ClientPool
from tests.models.model_servers import Held, plain, serving, streamed
from tests.models.protocols import HELLO, PROTOCOLS, AnthropicWording, OpenAIWording, ask

Wording = OpenAIWording | AnthropicWording
HI = Request("", [Message("user", "Hi.")])
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@each_protocol
@each_way
async def test_a_connection_is_used_again_and_closed_at_last(protocol: Wording, stream: bool) -> None:
    answer = streamed(protocol.events(HELLO)) if stream else plain(protocol.whole(HELLO))
    async with serving(answer) as server:
        model = protocol.model(server.url)
        for _ in range(3):
            assert (await ask(model, HI, stream=stream))[1] == HELLO.reply
        assert (server.connections, len(server.open)) == (1, 1)
        await model.close()
        await server.until(lambda: not server.open)
        await model.close()
        await ask(model, HI, stream=stream)
        assert (server.connections, len(server.open)) == (2, 1)
        await model.close()
        await server.until(lambda: not server.open)


@each_protocol
@each_way
async def test_closing_waits_for_the_last_answer(protocol: Wording, stream: bool) -> None:
    answer = streamed(protocol.events(HELLO)) if stream else plain(protocol.whole(HELLO))
    first, second = Held(answer), Held(answer)
    async with serving(first, second, answer) as server:
        model = protocol.model(server.url)
        asking = [asyncio.ensure_future(ask(model, HI, stream=stream)) for _ in range(2)]
        await server.until(lambda: len(server.requests) == 2)
        await model.close()
        assert len(server.open) == 2
        await ask(model, HI, stream=stream)  # over a connection of its own
        assert len(server.open) == 3
        first.released.set()
        second.released.set()
        assert [reply for _, reply in await asyncio.gather(*asking)] == [HELLO.reply] * 2
        await server.until(lambda: len(server.open) == 1)
        await model.close()
        await server.until(lambda: not server.open)


@each_protocol
async def test_who_stops_listening_leaves(protocol: Wording) -> None:
    events = protocol.events(HELLO)
    heard = next(at for at, each in enumerate(events) if HELLO.pieces[0].encode() in each)
    async with serving(streamed(events[: heard + 1], linger=True)) as server:
        model = protocol.model(server.url)
        stream = model.stream(HI)
        assert await asyncio.wait_for(anext(stream), 10) == HELLO.pieces[0]
        await stream.aclose()
        await server.until(lambda: not server.open)
        await model.close()


@each_protocol
async def test_a_stream_that_has_said_all_is_not_waited_for(protocol: Wording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_http, "STREAM_END_SECONDS", 0.01)
    async with serving(streamed(protocol.events(HELLO), linger=True)) as server:
        model = protocol.model(server.url)
        assert (await ask(model, HI, stream=True))[1] == HELLO.reply
        await server.until(lambda: not server.open)
        await model.close()


async def test_nothing_is_sent_twice_and_nothing_followed() -> None:
    pool = ClientPool()
    for is_local in (True, False):
        async with pool.client(is_local=is_local) as client:
            assert client._transport._pool._retries == 0
            assert client.follow_redirects is False
            assert (client.timeout.connect, client.timeout.read) == (CONNECT_SECONDS, None)
            assert client.trust_env is not is_local
    await pool.close()


@each_protocol
async def test_no_proxy_reads_what_stays_here(protocol: Wording, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(plain(protocol.whole(HELLO))) as server:
        model = protocol.model(server.url)
        assert await model(HI) == HELLO.reply
        await model.close()


@each_protocol
def test_each_event_loop_has_its_own(protocol: Wording) -> None:
    model = protocol.model("http://127.0.0.1:1")

    async def once() -> int:
        async with serving(plain(protocol.whole(HELLO))) as server:
            async with model._pool.client(is_local=True) as client:
                response = await client.post(server.url, content=b"{}")
            await model.close()
            await server.until(lambda: not server.open)
            return int(response.status_code)

    assert [asyncio.run(once()) for _ in range(2)] == [200, 200]


def test_models_load_no_client_before_they_are_asked() -> None:
    code = """if True:
        import sys
        from antiphon import AnthropicModel, OpenAIModel
        OpenAIModel("m", api_key="k").check(), AnthropicModel("m", api_key="k").check()
        print("httpx2" in sys.modules, "ssl" in sys.modules, "openai" in sys.modules, "anthropic" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"
    assert done.stdout.split()[2:] == ["False", "False"]
