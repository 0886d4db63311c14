"""Two servers are as good as one: every case of the Python client, each of its requests to the other server than the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.clients import Once, check, chosen, python
from tests.conformance.python.every import CASES
from tests.conformance.releases import NEWEST
from tests.conformance.site import Site, site


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("replicas"), servers=2) as started:
        yield started


@pytest.fixture(scope="module")
def done(request: pytest.FixtureRequest, two: Site) -> Once:
    return Once(lambda release: python(two, release, chosen(request, "alternating")))


@pytest.mark.parametrize("alternating", CASES)
def test_alternating(done: Once, alternating: str) -> None:
    check(done[NEWEST], alternating)
