"""The unmodified JavaScript SDK's `threads.stream()`, two releases of it, and `@langchain/react` in jsdom."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conformance.clients import Once, Result, check, chosen, finished
from tests.conformance.releases import CACHE
from tests.conformance.site import Site

HERE = Path(__file__).parent
LAB = HERE.parent / "js" / "lab.mjs"
PACKAGE = ("package.json", "package-lock.json", ".npmrc")
TRANSPORTS = ("sse", "websocket")
CLIENTS = [f"{release}/{transport}" for release in ("sdk-1.11", "sdk-newest") for transport in TRANSPORTS]


def names(area: str) -> list[str]:
    return re.findall(r'^test\("([^"]+)"', (HERE / f"{area}.mjs").read_text(), re.MULTILINE)


def run(site: Site, area: str, client: str, cases: Iterable[str]) -> dict[str, Result]:
    folder = installed()
    for script in (LAB, *HERE.glob("*.mjs")):
        shutil.copy(script, folder)
    command = ["node", f"{area}.mjs", "--sdk", client, "--url", site.urls[0], "--models", site.models, *cases]
    return finished(command, {}, cwd=str(folder))


def installed() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PACKAGE)).hexdigest()[:16]
    folder = CACHE / f"react-{digest}"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in PACKAGE:
            shutil.copy(HERE / name, folder)
        made = subprocess.run(["npm", "ci"], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        if made.returncode:
            pytest.skip(f"the JavaScript packages cannot be installed here: {made.stderr.strip()[-300:]}")
        (folder / "installed").touch()
    return folder


@pytest.fixture(scope="session")
def clients(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda client: run(server, "threads", client, chosen(request, "case", client=client)))


@pytest.fixture(scope="session")
def pages(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda transport: run(server, "page", transport, chosen(request, "page", transport=transport)))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", names("threads"))
def test_threads_stream(clients: Once, client: str, case: str) -> None:
    check(clients[client], case)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("page", names("page"))
def test_use_stream(pages: Once, transport: str, page: str) -> None:
    check(pages[transport], page)
