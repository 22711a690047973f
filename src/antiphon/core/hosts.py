"""Which hosts are this machine.

Rule 1: a name is judged as it is written. Nothing is looked up, for whoever answers could say anything.
"""

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
