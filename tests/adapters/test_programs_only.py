"""Servers of the product for programs answer no page of a browser: each of them has the guard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

import adapters
from adapters.provisioner.app import Routes

pytestmark = pytest.mark.anyio
PRODUCT = Path(adapters.__file__).parents[1]
PAGES = {"channels/http/app.py"}
"""Servers that browsers may use, with rules of their own (`channels/http/server/guard.py`)."""
SIGNED = {"channels/webhook/platform.py"}
"""Servers that take signed requests only, and each of them once: a page has no secret to sign with."""


def test_every_server_for_programs_has_the_guard() -> None:
    applications = {
        str(path.relative_to(PRODUCT)): path.read_text()
        for room in ("actors", "adapters", "channels", "core")
        for path in (PRODUCT / room).rglob("*.py")
        if "web.Application(" in path.read_text()
    }
    assert applications.keys() >= PAGES | SIGNED
    for name, text in applications.items():
        assert name in PAGES | SIGNED or re.search(r"programs_only\(", text), f"{name}: a page of a browser reaches it"


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [
        ("", {}, 200),
        ("", {"Host": "evil.example"}, 403),
        ("", {"Origin": "https://evil.example"}, 403),
        ("key", {"Host": "provisioner.sandboxes.svc"}, 200),
        ("key", {"Origin": "https://evil.example"}, 403),
        ("key", {"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_no_page_reaches_the_provisioner(key: str, headers: dict[str, str], status: int) -> None:
    """With a key it may have any name, as a service in a cluster has."""
    routes = Routes(None, key)  # type: ignore[arg-type]  # no request gets as far as the cluster
    async with TestClient(TestServer(routes.app())) as client, client.get("/health", headers=headers) as response:
        assert response.status == status
