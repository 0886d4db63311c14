"""Where sandboxed commands may connect to: names that are allowed, at addresses that are public."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from core.egress import is_public
from core.errors import Invalid
from core.ids import ordinal

WEB = (80, 443)
"""The ports of an entry that names none."""
RESOLVE_SECONDS = 10.0
_THREADS = ThreadPoolExecutor(8, "egress-names")
"""For names of sandboxes: slow ones must not hold up those of the server, which asyncio resolves in its own threads."""


class Place(NamedTuple):
    """An entry of a list: a host (`*`: every one; `*.example.com`: those below), and a port (0: every one)."""

    host: str
    ports: Sequence[int]

    @classmethod
    def of(cls, text: str) -> Place:
        """Reads `example.com`, `*.example.com:8443`, `example.com:*`, `[::1]:80` or `*`. Raises `Invalid`."""
        host, colon, port = text.rpartition(":")
        if not colon or (text.count(":") > 1 and not host.startswith("[")) or text.endswith("]"):
            host, port = text, ""
        name = plain(host)
        if not name or "*" in name.removeprefix("*.").replace("*", "", name == "*") or "/" in name:
            raise Invalid(f"{text!r}: HOST, *.HOST, HOST:PORT, HOST:* or * is expected")
        if port == "*":
            return cls(name, ())
        number = ordinal(port, 65535)
        if port and not number:
            raise Invalid(f"{text!r}: a port is a number from 1 to 65535, or *")
        return cls(name, (number,) if number else WEB)

    def has(self, host: str, port: int) -> bool:
        if self.ports and port not in self.ports:
            return False
        return self.host in ("*", host) or (self.host.startswith("*.") and host.endswith(self.host[1:]))


class Refused(Exception):
    """The connection is not allowed. The text says why."""


class Rules:
    """The allowed places, and those of them that may have private addresses."""

    def __init__(self, allow: Iterable[str], private: Iterable[str] = ()) -> None:
        """Raises `Invalid` for what is no place."""
        self._allow = [Place.of(entry) for entry in (*allow, *private)]
        self._private = [Place.of(entry) for entry in private]

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Returns the addresses to connect to, which must not be resolved again. Raises `Refused`, and `OSError` for a
        name that does not resolve.
        """
        host = plain(host)
        if not any(place.has(host, port) for place in self._allow):
            raise Refused(f"{host}:{port} is not in the sandbox's list of allowed hosts")
        private = any(place.has(host, port) for place in self._private)
        resolved = await _resolved(host, port)
        allowed = [address for address in resolved if private or is_public(address)]
        if not allowed:
            raise Refused(f"{host} has no public address")
        return allowed


def plain(host: str) -> str:
    """Returns a host in the form in which hosts are compared."""
    name = host.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
    try:
        return name.encode("ascii").decode() if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return ""


async def _resolved(host: str, port: int) -> Sequence[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    async with asyncio.timeout(RESOLVE_SECONDS):
        lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        results = await asyncio.get_running_loop().run_in_executor(_THREADS, lookup)
    return list(dict.fromkeys(str(result[4][0]) for result in results))
