"""A real browser on a real server: one of each for the tests of a file, and a context of its own for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright, expect

from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, tab
from tests.support.browsers import CHROMIUM
from tests.support.model_server import ModelServer
from tests.support.ports import free_port
from tests.support.workers import configure

expect.set_options(timeout=60_000)
"""A deadline for a busy machine: nothing waits longer than it must."""

FEATURES = (
    # Each window would have the lists of its address bar as two pages more, and a process in reserve.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    # Those of Playwright, whose flag the one of ours replaces.
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    *("TcpPortRandomizationWin", "ThirdPartyStoragePartitioning"),
)
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-features=" + ",".join(FEATURES),
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def chromium(anyio_backend: str) -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: the page cannot be tried")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *sandbox])
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server with scripted models. It keeps its port when it is started again."""
    path: Path = tmp_path_factory.mktemp("site")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {
            "runs": {"lease_seconds": 2},
            "http": {"heartbeat_seconds": 1},
            "uploads": {"max_file_size": 1_000_000},
        }
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config, "--port", str(free_port())) as server:
            yield Site(server, models)


@pytest.fixture
async def page(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    """A tab of a browser that knows nothing yet. It must not have complained when the test is over."""
    async with tab(chromium, site) as opened:
        yield opened
