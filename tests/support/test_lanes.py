"""The two lanes hold all tests, each of them in one, and both are run."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.support.warm import ROOT

FILES = {
    "test_some.py": """
import pytest
some = [1, 2, pytest.param(3, marks=pytest.mark.long)]

@pytest.mark.parametrize("one", some)
def test_parameters(one): pass

@pytest.mark.parametrize("one", range(7))
@pytest.mark.long(keep=3)
def test_share(one): pass
""",
    "test_all_long.py": """
import pytest
pytestmark = pytest.mark.long

def test_one(): pass
""",
    "test_share_of_a_file.py": """
import pytest
pytestmark = [pytest.mark.long(keep=2)]

def test_one(): pass
class TestMore:
    def test_two(self): pass
    def test_three(self): pass
""",
    "test_short.py": "def test_one(): pass",
}
SHORT = {
    "test_share_of_a_file.py::test_one",
    "test_share_of_a_file.py::TestMore::test_three",
    "test_short.py::test_one",
    *(f"test_some.py::test_parameters[{number}]" for number in (1, 2)),
    *(f"test_some.py::test_share[{number}]" for number in (0, 3, 6)),
}
LONG = {
    "test_all_long.py::test_one",
    "test_share_of_a_file.py::TestMore::test_two",
    "test_some.py::test_parameters[3]",
    *(f"test_some.py::test_share[{number}]" for number in (1, 2, 4, 5)),
}


def test_each_test_is_in_one_lane(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert _collected(tmp_path, "--lane", "long") == LONG
    assert _collected(tmp_path, "--lane", "short") == SHORT


def _collected(folder: Path, *options: str) -> set[str]:
    plugins = ("-p", "tests.support.lanes", "-p", "tests.support.budget", "--strict-markers")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *plugins, *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return {line for line in result.stdout.splitlines() if "::" in line}


def test_the_targets_run_both_lanes_and_a_test_of_either_by_name() -> None:
    assert _lanes("tests") == ["short"]
    assert _lanes("test-long") == ["long"]
    assert _lanes("tests", "PYTEST=-k name") == []
    run = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in run if "make test" in line] == ["make test", "exec make test-long"]


def _lanes(*arguments: str) -> list[str]:
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    words = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [lane for option, lane in pairwise(words) if option == "--lane"]
