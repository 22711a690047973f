"""Which addresses a reply may go to, however they are written."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest

from antiphon.core.errors import TransportRefused, TransportUnavailable
from antiphon.transports.addresses import address_objection, check_addresses, host_objection, resolve_host
from tests.support.waiting import let_others_run, soon

PUBLIC = ["93.184.215.14", "8.8.8.8", "100.63.255.255", "100.128.0.0", "2606:4700::1111", "2a00:1450:4001::200e"]
CARRIED_PUBLIC = ["::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
PRIVATE = ["10.0.0.7", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.8.8.8", "100.64.0.1"]
PRIVATE += ["100.127.255.254", "198.18.0.1", "192.0.2.1", "203.0.113.9", "::1", "fc00::1", "fd12:3456::1"]
PRIVATE += ["2001:db8::1", "3fff::1", "4000::1"]
CARRIED_PRIVATE = ["::ffff:10.0.0.7", "::ffff:127.0.0.1", "::10.0.0.7", "2002:a00:7::1", "64:ff9b::a00:7"]
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.1.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "192.0.0.8"]
NEVER += ["192.88.99.1", "::", "fe80::1", "fec0::1", "ff02::1", "100::1", "2001:0:4136:e378::1", "64:ff9b:1::a00:7"]
METADATA = ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"]
CARRIED_NEVER = ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:0.0.0.0", "::a9fe:a9fe"]


@pytest.mark.parametrize("address", PUBLIC + CARRIED_PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert [address_objection(ip_address(address), allow_private=each) for each in (True, False)] == ["", ""]


@pytest.mark.parametrize("address", PRIVATE + CARRIED_PRIVATE)
def test_private_addresses_need_permission(address: str) -> None:
    assert "allow_private=True" in address_objection(ip_address(address), allow_private=False)
    assert address_objection(ip_address(address), allow_private=True) == ""


@pytest.mark.parametrize("address", NEVER + METADATA + CARRIED_NEVER)
@pytest.mark.parametrize("allow_private", [True, False])
def test_some_addresses_are_never_allowed(address: str, allow_private: bool) -> None:
    said = address_objection(ip_address(address), allow_private=allow_private)
    assert said in ("is a metadata address", "is link-local, multicast or reserved")


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "instance-data", "metadata"])
@pytest.mark.parametrize("allow_private", [True, False])
def test_metadata_names_are_never_allowed(host: str, allow_private: bool) -> None:
    assert host_objection(host, allow_private=allow_private) == "is a metadata name"


def test_a_name_is_not_judged_before_it_is_resolved() -> None:
    assert host_objection("hooks.example.org", allow_private=False) == ""
    assert host_objection("10.0.0.7", allow_private=False) != ""


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    found = [ip_address("8.8.8.8"), ip_address("10.0.0.7")]
    with pytest.raises(TransportRefused, match=r"'hooks\.example\.org': its address 10\.0\.0\.7 is not public"):
        check_addresses("hooks.example.org", found, allow_private=False)
    check_addresses("hooks.example.org", found, allow_private=True)
    check_addresses("hooks.example.org", found[:1], allow_private=False)


async def test_a_host_is_resolved_to_each_of_its_addresses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET6, 1, 6, "", ("::1", 80, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: [*places, *places])
    assert list(map(str, await resolve_host("hooks.example.org", 80))) == ["::1", "127.0.0.1"]


async def test_a_slow_name_server_takes_no_place_in_the_shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    answers = threading.Event()

    def look_up(*args: object, **options: object) -> list[object]:
        answers.wait()
        return [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolving = asyncio.create_task(resolve_host("hooks.example.org", 80))
    try:
        await let_others_run()
        assert await soon(asyncio.to_thread(lambda: "free")) == "free"
        assert not resolving.done()
    finally:
        answers.set()
    assert list(map(str, await soon(resolving))) == ["127.0.0.1"]


async def test_a_host_that_cannot_be_resolved_may_be_there_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(TransportUnavailable, match=r"'hooks\.example\.org' cannot be resolved"):
        await resolve_host("hooks.example.org", 80)
