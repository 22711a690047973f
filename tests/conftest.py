"""What every test runs under: asyncio, no way off this machine, and a chosen depth of search."""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.leftovers import pytest_configure as pytest_configure
from tests.support.leftovers import pytest_sessionfinish as pytest_sessionfinish
from tests.support.leftovers import pytest_testnodedown as pytest_testnodedown

# A slow machine is not a failure. The ordinary run is the same every time; `make proof` looks further.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", PATIENT, max_examples=50, stateful_step_count=30, derandomize=True)
settings.register_profile("proof", PATIENT, max_examples=1000, stateful_step_count=80, print_blob=True)
settings.load_profile("proof" if os.environ.get("ANTIPHON_PROOF") == "1" else "default")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of tests, in this process and others, are announced in a directory that goes away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> Iterator[None]:
    """Fails the test that looks up or contacts another machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", guarded_lookup(socket.getaddrinfo))
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, guarded_contact(getattr(socket.socket, name)))
        yield


def guarded_lookup(lookup: Callable[..., object]) -> Callable[..., object]:
    def guarded(host: str | bytes | None, *args: object, **options: object) -> object:
        refuse_beyond_loopback(host)
        return lookup(host, *args, **options)

    return guarded


def guarded_contact(contact: Callable[..., object]) -> Callable[..., object]:
    def guarded(*args: object) -> object:
        match args[-1]:  # the address comes last; a text instead of a tuple is a path on this machine
            case (str() | bytes() as host, *_):
                refuse_beyond_loopback(host)
        return contact(*args)

    return guarded


def refuse_beyond_loopback(host: str | bytes | None) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return
    try:
        safe = ipaddress.ip_address(name).is_loopback or ipaddress.ip_address(name).is_unspecified
    except ValueError:
        safe = False
    if not safe:
        # Not an OSError: code that copes with an unreachable network must not cope with this.
        pytest.fail(f"a test tried to reach {name!r}; tests stay on this machine")
