"""Two lanes: what `make test` runs, and what takes too long for that, which `make test-long` runs after it.

A test is in the long lane by the mark `long`: of its file, of itself or of one of its parameters. `long(keep=8)` leaves
each eighth of the tests of a file that have such a mark, the first one on, in the short lane: a family is seen in both.
Without `--lane` both are run.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

LANES = ("short", "long")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lanes").addoption("--lane", choices=LANES, help="run only the tests of this lane")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long(keep=0): in the lane of `make test-long`, but for each keep-th of a file")


LONG = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked: Counter[tuple[Path, int]] = Counter()
    for item in items:
        mark = item.get_closest_marker("long")
        keep: int = mark.kwargs.get("keep", 0) if mark else 0
        item.stash[LONG] = bool(mark) and not (keep and marked[item.path, keep] % keep == 0)
        marked[item.path, keep] += 1
    if lane := config.getoption("--lane"):
        others = [item for item in items if lane_of(item) != lane]
        items[:] = [item for item in items if lane_of(item) == lane]
        config.hook.pytest_deselected(items=others)


def lane_of(item: pytest.Item) -> str:
    return "long" if item.stash[LONG] else "short"
