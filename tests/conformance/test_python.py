"""The unmodified Python SDK, two releases of it: every case in a process with that release."""

from __future__ import annotations

import pytest

from tests.conformance.clients import Once, check, chosen, python
from tests.conformance.python.every import CASES
from tests.conformance.releases import NEWEST, YEAR_OLD
from tests.conformance.site import Site


@pytest.fixture(scope="session")
def done(request: pytest.FixtureRequest, server: Site) -> Once:
    return Once(lambda release: python(server, release, chosen(request, "case", release=release)))


@pytest.mark.parametrize("release", [NEWEST, pytest.param(YEAR_OLD, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_python(done: Once, release: str, case: str) -> None:
    check(done[release], case)
