"""How long each file of tests takes: what runs first, what `make test-fast` leaves out, what has become slower.

`durations.json` beside the tests holds seconds per file, of one whole run. `--durations-write` replaces those of the
files that run. Machines differ, so a file is held against its share of the whole, and what is over it is printed, never
failed; a part of the files is written at the pace of those that are known. What a file has in the long lane
(`tests.support.lanes`) is written apart, as `FILE (long)`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.support.lanes import lane_of

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "durations.json"
FAST_SECONDS = 2.0
"""A file that takes longer, with what it has in the long lane, is left out by `--fast`."""
OVER = 1.5
"""A file is over its budget when its share of the whole is more than so many times what it was, and `OVER_SECONDS`."""
OVER_SECONDS = 10.0
LONG = " (long)"


@cache
def budgets() -> dict[str, float]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations by file")
    group.addoption("--fast", action="store_true", help=f"leave out files that take longer than {FAST_SECONDS:g} s")
    group.addoption("--durations-write", action="store_true", help=f"write {RECORD.name}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files are not even imported: that would take longer than the fast tests."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(TESTS):
        return None
    file = str(collection_path.relative_to(TESTS))
    seconds = budgets().get(file, 0.0) + budgets().get(file + LONG, 0.0)
    return seconds > FAST_SECONDS or None


GROUPS = pytest.StashKey[dict[str, str]]()
"""The group of each test that runs, by its name: its file, or what that has in the long lane."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that none of them is left alone at the end; before them those that are not known."""
    groups = {item.nodeid: _file(item.nodeid) + (LONG if lane_of(item) == "long" else "") for item in items}
    config.stash[GROUPS] = groups
    seconds: dict[str, float] = defaultdict(float)
    for group in set(groups.values()):
        seconds[group.removesuffix(LONG)] += budgets().get(group, math.inf)
    items.sort(key=lambda item: -seconds[_file(item.nodeid)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    groups = config.stash.get(GROUPS, {})
    durations: dict[str, float] = defaultdict(float)
    for report in reports:
        if isinstance(report, pytest.TestReport):
            durations[groups[report.nodeid]] += report.duration
    if config.getoption("--durations-write"):
        speed = pace(durations, budgets())
        seconds = budgets() | {file: round(spent / speed, 1) for file, spent in durations.items()}
        there = {file: seconds[file] for file in sorted(seconds) if (TESTS / file.removesuffix(LONG)).exists()}
        RECORD.write_text(json.dumps(there, indent=1) + "\n")
    terminalreporter.section("files over their budget")
    for line in over(durations, budgets()):
        terminalreporter.write_line(line)


def pace(durations: dict[str, float], seconds: dict[str, float]) -> float:
    """Returns how many times longer the known files take than they did; 1 if none is known."""
    known = [file for file in durations if seconds.get(file)]
    return sum(durations[file] for file in known) / sum(seconds[file] for file in known) if known else 1.0


def over(durations: dict[str, float], seconds: dict[str, float]) -> list[str]:
    """The files that take a greater share of the run than they did."""
    lines, speed = [], pace(durations, seconds)
    for file, spent in sorted(durations.items(), key=lambda item: -item[1]):
        budget = seconds.get(file, 0.0) * speed
        if spent > max(budget * OVER, budget + OVER_SECONDS):
            lines.append(f"{spent:7.1f} s, budget {budget:.1f} s: {file}")
    return lines


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")
