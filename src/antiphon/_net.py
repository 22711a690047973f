"""Which hosts are this machine, judged by the name alone: an answer of a name server could be forged."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    host = host.lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
