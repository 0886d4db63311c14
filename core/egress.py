"""Egress rules: on a user's behalf the server connects to public addresses only, unless the configuration lifts this.

A name is checked when it is stored, and the addresses it resolves to when the connection is made: between the two they
may have changed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog

from core.errors import Invalid

log = structlog.get_logger("sika.egress")

_LOCAL = ("localhost", ".localhost", ".local", ".internal")
RESOLVE_SECONDS = 300.0
"""Pause between two looks at the addresses by which this server is reached from outside."""


class Absent(Invalid):
    """There is nothing at the URL."""


def check_url(url: str, where: str, *, private: bool, lifted_by: str = "webhooks.allow_private") -> None:
    """Raises `Invalid` unless the URL may be posted to: https, a public host, no credentials. `private` allows plain
    http and private addresses, too.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Invalid(f"{where}: not a URL") from None
    if parts.scheme not in ("https", "http") or not host or not url.isascii() or any(c.isspace() for c in url):
        raise Invalid(f"{where}: expected an https URL")
    if parts.username is not None or parts.password is not None:
        raise Invalid(f"{where}: no credentials in the URL")
    if port == 0:
        raise Invalid(f"{where}: port 0 cannot be connected to")
    if private:
        return
    if parts.scheme != "https":
        raise Invalid(f"{where}: expected an https URL ({lifted_by} lifts this)")
    if not may_be_public(host):
        raise Invalid(f"{where}: {host} is not a public address ({lifted_by} lifts this)")


def is_public(address: str) -> bool:
    """True for an IP address of the public internet, but for those of this machine: its services trust them.

    Uses own tables: Python's change from release to release. An address that wraps an IPv4 address is as public as
    the wrapped address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _SPECIAL_4) and not is_own(parsed)
    if (inner := _wrapped(parsed)) is not None:
        return is_public(str(inner))
    return parsed in _GLOBAL_6 and not any(parsed in network for network in _SPECIAL_6) and not is_own(parsed)


class Outside:
    """The addresses by which this server is reached from outside (`http.public_url`): those of a router in front of it
    are of none of its interfaces. One per process.
    """

    def __init__(self) -> None:
        self._addresses: frozenset[str] = frozenset()

    def __contains__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return str(address) in self._addresses

    async def look(self, url: str | None) -> None:
        """Learns the addresses of the host of a URL. Keeps those that it knows if the name cannot be resolved."""
        host = urlsplit(url).hostname if url else None
        if host is None:
            self._addresses = frozenset()
            return
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.warning("the address of this server is not known", host=host, reason=str(error))
            return
        self._addresses = frozenset(str(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found)

    async def keep_looking(self, url: Callable[[], str | None]) -> None:
        """Learns them again and again, for as long as the process: names get other addresses."""
        while True:
            await self.look(url())
            await asyncio.sleep(RESOLVE_SECONDS)


outside = Outside()


def is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True for an address of this machine's interfaces, as they are now, and for one by which it is reached from
    `outside`. Sends nothing.

    A connection of a machine to itself has the same address at both ends; connecting a UDP socket makes the kernel
    choose.
    """
    if address in outside:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return str(ipaddress.ip_address(probe.getsockname()[0])) == str(address)
    except OSError:  # there is no route to it
        return False


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 addresses as IPv6-only networks write them (RFC 6052)."""
_SPECIAL_4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared, of carriers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; clouds keep their metadata there
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocols; some clouds keep their metadata there
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
"""IANA's registry of special-purpose addresses, and multicast."""
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""The range that IANA has assigned for global unicast; the rest is special or unassigned."""
_SPECIAL_6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocols: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def may_be_public(host: str) -> bool:
    """False for a host name or address that is surely not public. A name's addresses are checked on connecting."""
    name = host.rstrip(".").lower()
    try:
        return is_public(name)
    except ValueError:
        pass
    last = name.rpartition(".")[2]
    if last.isdigit() or last.startswith("0x"):
        return False  # another way to write an IPv4 address (2130706433, 0x7f.1)
    return "." in name and not name.endswith(_LOCAL)
