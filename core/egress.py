"""Where the server may connect to on somebody's behalf: public addresses, unless the configuration says otherwise.

A name is checked when it is written down, and the addresses it resolves to when the connection is made: between the
two it may have changed.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from core.errors import Invalid

_LOCAL = ("localhost", ".localhost", ".local", ".internal")


def check_url(url: str, where: str, *, private: bool) -> None:
    """Raises `Invalid` if this is not a URL to post to: https, a public host, no credentials. `private`: plain http and
    private addresses will do too.
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
        raise Invalid(f"{where}: expected an https URL (webhooks.allow_private lifts this)")
    if not may_be_public(host):
        raise Invalid(f"{where}: {host} is not a public address (webhooks.allow_private lifts this)")


def is_public(address: str) -> bool:
    """Whether an IP address is reachable from everywhere, and so is nobody's inside."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if (inner := found.ipv4_mapped or found.sixtofour) is not None:
            return is_public(str(inner))
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses as IPv6-only networks write them (RFC 6052)."""


def may_be_public(host: str) -> bool:
    """Whether a host name or address may be reachable from everywhere; what a name resolves to is seen later."""
    name = host.rstrip(".").lower()
    try:
        return is_public(name)
    except ValueError:
        pass
    last = name.rpartition(".")[2]
    if last.isdigit() or last.startswith("0x"):
        return False  # another way to write an IPv4 address (2130706433, 0x7f.1)
    return "." in name and not name.endswith(_LOCAL)
