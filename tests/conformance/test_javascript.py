"""The unmodified JavaScript SDK, two releases of it, and its `useStream` in jsdom with React; the client of AG-UI."""

from __future__ import annotations

import pytest

from tests.conformance.clients import Once, check, chosen
from tests.conformance.javascript import RELEASES, SDK
from tests.conformance.site import Site

BOTH = [*(pytest.param(old, marks=pytest.mark.long) for old in RELEASES[:-1]), RELEASES[-1]]


@pytest.fixture(scope="session")
def clients(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda release: SDK.run(server, "client", release, chosen(request, "client", release=release)))


@pytest.fixture(scope="session")
def pages(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda release: SDK.run(server, "react", release, chosen(request, "page", release=release)))


@pytest.mark.parametrize("release", BOTH)
@pytest.mark.parametrize("client", SDK.names("client"))
def test_client(clients: Once, release: str, client: str) -> None:
    check(clients[release], client)


@pytest.mark.parametrize("release", BOTH)
@pytest.mark.parametrize("page", SDK.names("react"))
def test_use_stream(pages: Once, release: str, page: str) -> None:
    check(pages[release], page)


@pytest.mark.parametrize("agent", SDK.names("agui"))
def test_ag_ui(server: Site, agent: str) -> None:
    check(SDK.run(server, "agui", RELEASES[-1], [agent]), agent)
