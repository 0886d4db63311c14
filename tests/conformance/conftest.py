"""One server for all these tests, and the results of clients that are processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.site import Site, site


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("conformance")) as started:
        yield started
