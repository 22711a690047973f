"""A server behind a real nginx, set up exactly as the page says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent
from tests.server.test_entry import GUARDED, ask, path_of, reason_of
from tests.server.wire import events_of
from tests.support.served_hub import PATIENCE, POLL, ServedHub, echo, opened, served_hub

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "deploy.md"
NAME = "agents.example.org"
AROUND = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{block}
}}
"""


def program(name: str) -> str:
    """A program that the test needs. Without it the test is skipped, except where nothing may be."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        lacks = f"{name} is not installed, and a proxy cannot be tried without it: apt-get install {name}"
        if os.environ.get("CI") == "true":
            pytest.fail(lacks)
        pytest.skip(lacks)
    return found


def block() -> str:
    """The block of the page, as it stands there."""
    found = re.findall(r"^```\n(server \{.*?^\})\n```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(found) == 1
    return str(found[0])


def put(text: str, was: str, now: str) -> str:
    """The text with one value replaced, that stands there once."""
    assert text.count(was) == 1, was
    return text.replace(was, now)


def configuration(folder: Path, port: int, server: int) -> str:
    """The block with this machine's ports and certificate, and nothing else of it changed."""
    text = put(block(), "listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    text = put(text, "http://127.0.0.1:8484", f"http://127.0.0.1:{server}")
    text = re.sub(r"(ssl_certificate\s+)\S+;", rf"\1{folder}/cert.pem;", text)
    return AROUND.format(block=re.sub(r"(ssl_certificate_key\s+)\S+;", rf"\1{folder}/key.pem;", text))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nginx")
    command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@asynccontextmanager
async def proxied(here: ServedHub, folder: Path) -> AsyncIterator[str]:
    """The address of an nginx in front of a server. It is gone at the end."""
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(configuration(folder, port, here.port))
    child = await asyncio.create_subprocess_exec(
        program("nginx"), "-p", f"{folder}/", "-c", str(file), stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await listens(child, port)
        yield f"https://127.0.0.1:{port}"
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def listens(child: asyncio.subprocess.Process, port: int) -> None:
    """Return when somebody listens there."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            assert child.returncode is None, (await child.communicate())[1]
            await asyncio.sleep(POLL)
        else:
            writer.close()
            return


def client(url: str, folder: Path, **headers: str) -> httpx2.AsyncClient:
    """A client of the proxy."""
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    trusted.check_hostname = False  # the certificate is for the name that requests carry
    return httpx2.AsyncClient(base_url=url, verify=trusted, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize("open", [False, True], ids=["token", "open"])
async def test_no_verb_of_a_server_without_keys_is_reached_through_a_proxy(certificate: Path, open: bool) -> None:
    async with served_hub(Agent("support", echo), open=open) as here, proxied(here, certificate) as url:
        async with client(url, certificate) as http:
            for shown in ({}, here.served.headers):
                for name in (NAME, "evil.example"):
                    for verb in GUARDED:
                        headers = {"host": name, **shown}
                        refused = await http.request(verb.method, path_of(verb), headers=headers, json={})
                        assert (refused.status_code, reason_of(refused)) == (401, "no_key"), (name, verb.name)
            if not open:  # a client may call itself whatever it likes
                for verb in GUARDED:
                    refused = await http.request(verb.method, path_of(verb), headers={"host": "127.0.0.1"}, json={})
                    assert refused.status_code == 401, verb.name
            assert (await http.get("/health", headers={"host": NAME})).status_code == 200
        assert await here.hub.channels() == []


async def test_a_key_opens_a_server_behind_a_proxy(certificate: Path) -> None:
    async with served_hub(Agent("support", echo)) as here, proxied(here, certificate) as url:
        secret = await here.key("ann")
        await here.hub.register("bob")
        async with client(url, certificate, host=NAME, authorization=f"Bearer {secret}") as http:
            for verb in GUARDED:
                assert (await ask(http, verb)).status_code not in (401, 403, 502), verb.name
            channel_id = await opened(http, "bob")
            async with http.stream("GET", f"/channels/{channel_id}/subscribe") as stream:
                assert (await anext(events_of(stream))).event == "envelope"  # as it comes, not when it is over
