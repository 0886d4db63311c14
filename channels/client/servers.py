"""The servers of this machine, as a client finds them."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import httpx
from anyio import to_thread

from core.runtime import servers

HEALTH_SECONDS = 2.0


def announced(home: Path) -> str | None:
    """The address of a server of this data directory whose process lives; it may not answer."""
    return next((address.url for address in servers.announced(home)), None)


def answers(url: str) -> bool:
    """Whether a Sika answers there, within two seconds. Blocks."""
    try:
        return httpx.get(f"{url}/health", timeout=HEALTH_SECONDS, trust_env=not is_local(url)).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


async def healthy(url: str) -> bool:
    """The same, without blocking."""
    return await to_thread.run_sync(answers, url)


def is_local(url: str) -> bool:
    """Whether a server is on this machine: no proxy is between."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
