"""Discovery of the servers of this machine."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import httpx
from anyio import to_thread

from core.runtime import servers

HEALTH_SECONDS = 2.0


def announced(home: Path) -> str | None:
    """Returns the URL of a server of this data directory whose process lives; it may not answer."""
    return next((address.url for address in servers.announced(home)), None)


def answers(url: str) -> bool:
    """True if a Sika answers there within `HEALTH_SECONDS`. Blocks."""
    try:
        return httpx.get(f"{url}/health", timeout=HEALTH_SECONDS, trust_env=not is_local(url)).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


async def healthy(url: str) -> bool:
    """Like `answers`, without blocking."""
    return await to_thread.run_sync(answers, url)


def is_local(url: str) -> bool:
    """True for a server on this machine, which needs no proxy."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
