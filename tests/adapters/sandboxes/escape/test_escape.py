"""Every attempt to get out of a sandbox has the verdict that the page says, as root and as an ordinary user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.sandboxes.confine import seccomp
from tests.adapters.sandboxes.escape import table
from tests.support.engine import TestEngine

pytestmark = pytest.mark.skipif(not seccomp.available(), reason="no filter for this machine")


@pytest.mark.timeout(180)
@pytest.mark.long(keep=len(table.COLUMNS))
@pytest.mark.parametrize("column", table.COLUMNS, ids=lambda column: f"{column.provider}-{column.uid or 'own'}")
def test_verdicts(column: table.Column, request: pytest.FixtureRequest) -> None:
    if table.python_for(column.uid) is None:
        pytest.skip(f"cannot be run as uid {column.uid} here")
    options: tuple[str, ...] = ()
    if column.provider == "docker":
        engine: TestEngine = request.getfixturevalue("docker_engine")
        engine.admit_everybody()
        options = engine.host, request.getfixturevalue("python_image")
    base = Path(f"/tmp/sika-escape-{os.getpid()}-{column.provider}-{column.uid}")
    outcomes = table.happened(column, base, *options)
    expected = {name: verdict for name, verdict in table.expected(column.provider).items() if verdict != table.NOT_RUN}
    verdicts = {name: table.verdict_of(outcome, expected.get(name, "")) for name, outcome in outcomes.items()}
    different = {name: outcomes.get(name) for name in expected if verdicts.get(name) != expected[name]}
    assert different == {}
    assert verdicts.keys() == expected.keys()


def test_the_page_says_what_is_tested() -> None:
    assert table.PAGE.read_text() == table.page(), "renew it: python -m tests.adapters.sandboxes.escape --write"


def test_there_are_many() -> None:
    assert len(table.expected("bubblewrap")) >= 80
