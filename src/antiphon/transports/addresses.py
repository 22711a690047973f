"""Which addresses a reply may be sent to, so that a URL cannot make the hub talk to its own network.

Rule 1: a name is resolved once. All of its addresses are checked, and connections go to these and to no others.
Rule 2: an address that carries another one, such as a v4-mapped or a NAT64 address, is judged by that one.
Rule 3: `allow_private` permits this machine and private networks; never link-local, multicast, unspecified or reserved
        addresses, and never the metadata addresses of clouds, which give out credentials.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from antiphon.core.errors import TransportRefused, TransportUnavailable
from antiphon.core.text import describe
from antiphon.hub.blocking_calls import run_blocking

IPAddress = IPv4Address | IPv6Address

METADATA_NAMES = frozenset(
    {"instance-data", "instance-data.ec2.internal", "metadata", "metadata.goog", "metadata.google.internal"}
)
METADATA_ADDRESSES = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "169.254.169.254", "192.0.0.192", "fd00:ec2::254"))
)
NEVER_ALLOWED = [
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/128", "64:ff9b:1::/48", "100::/64", "2001::/32", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
]
"""Link-local, multicast, unspecified and reserved addresses, and tunnels whose other end is not visible."""
GLOBAL_UNICAST = ip_network("2000::/3")
NOT_GLOBAL = ip_network("3fff::/20")
"""For documentation; not every Python knows."""
V4_COMPATIBLE, NAT64 = ip_network("::/96"), ip_network("64:ff9b::/96")


def address_objection(address: IPAddress, *, allow_private: bool) -> str:
    """Why nothing is sent to this address; "" if it may be."""
    carried = _carried_address(address)
    if carried is not None:
        return address_objection(carried, allow_private=allow_private)
    if address in METADATA_ADDRESSES:
        return "is a metadata address"
    if any(address in network for network in NEVER_ALLOWED):
        return "is link-local, multicast or reserved"
    if allow_private or _is_public(address):
        return ""
    return "is not public; allow_private=True permits it"


def _carried_address(address: IPAddress) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 address, if it has one."""
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64 or (address in V4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv6Address) and (address not in GLOBAL_UNICAST or address in NOT_GLOBAL):
        return False
    return address.is_global


def host_objection(host: str, *, allow_private: bool) -> str:
    """Why nothing is sent to this host, as far as its name says; "" if it may be."""
    if host.lower().rstrip(".") in METADATA_NAMES:
        return "is a metadata name"
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    return address_objection(address, allow_private=allow_private)


async def resolve_host(host: str, port: int) -> list[IPAddress]:
    """The addresses of a host, in the order of preference, resolved outside of the event loop."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await run_blocking(look_up, "name lookup")
    except (OSError, UnicodeError) as error:
        raise TransportUnavailable(f"the host {describe(host)} cannot be resolved: {error}") from error
    return list(dict.fromkeys(ip_address(str(place[0])) for *_, place in found))


def check_addresses(host: str, addresses: Iterable[IPAddress], *, allow_private: bool) -> None:
    """Refuse the host, with `TransportRefused`, if one of its addresses may not be used."""
    for address in addresses:
        objection = address_objection(address, allow_private=allow_private)
        if objection:
            raise TransportRefused(f"nothing is sent to {describe(host)}: its address {address} {objection}")
