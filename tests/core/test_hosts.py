"""Which hosts are this machine."""

import pytest

from antiphon._net import is_loopback


@pytest.mark.parametrize("host", ["localhost", "app.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example", "mylocalhost", "0.0.0.0", "10.0.0.1", "::2"])
def test_any_other(host: str) -> None:
    assert not is_loopback(host)
