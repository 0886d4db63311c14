"""The unmodified JavaScript SDK's `threads.stream()`, two releases of it, and `@langchain/react` in jsdom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.clients import Once, check, chosen
from tests.conformance.javascript import Scripts
from tests.conformance.site import Site

REACT = Scripts(Path(__file__).parent, 100)
TRANSPORTS = ("sse", "websocket")
CLIENTS = [
    *(pytest.param(f"sdk-1.11/{transport}", marks=pytest.mark.long) for transport in TRANSPORTS),
    *(f"sdk-newest/{transport}" for transport in TRANSPORTS),
]


@pytest.fixture(scope="session")
def clients(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda client: REACT.run(server, "threads", client, chosen(request, "case", client=client)))


@pytest.fixture(scope="session")
def pages(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda transport: REACT.run(server, "page", transport, chosen(request, "page", transport=transport)))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", REACT.names("threads"))
def test_threads_stream(clients: Once, client: str, case: str) -> None:
    check(clients[client], case)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("page", REACT.names("page"))
def test_use_stream(pages: Once, transport: str, page: str) -> None:
    check(pages[transport], page)
