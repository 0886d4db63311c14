"""Tests in forked processes: each runs once, what fails is said, and a process that dies fails one test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.warm import ROOT

pytestmark = pytest.mark.long(keep=2)

FILES = {
    "test_good.py": """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def session(record):
    yield
    record("session over")

@pytest.fixture(scope="session")
def record():
    def write(line):
        with open("record", "a") as file:
            file.write(f"{line} {os.getpid()}\\n")
    return write

@pytest.mark.parametrize("number", range(3))
def test_good(number, tmp_path, record, capsys):
    print("shown")
    assert capsys.readouterr().out == "shown\\n"
    record(f"{number} {tmp_path}")
""",
    "test_bad.py": """
import warnings

def test_bad():
    print("printed before it failed")
    assert 1 == 2

def test_warned():
    warnings.warn("old and bad")
""",
    "test_fatal.py": """
import os, time, pytest

def test_before(): pass
@pytest.mark.timeout(0.2)
def test_endless(): time.sleep(60)
def test_fatal(): os.kill(os.getpid(), 9)
def test_after(): pass
""",
}
LOADED = {
    "test_loaded.py": """
from pathlib import Path
import pytest

def first(name):
    if not (mark := Path(name)).exists():
        mark.touch()
        return True

def test_once():
    print("what it said first")
    assert not first("once")

@pytest.fixture
def fragile():
    assert not first("fragile"), "no fixture"
    yield

def test_with_a_fixture(fragile): pass
def test_always(): assert 1 == 2
def test_good(): pass
""",
    "test_fatal.py": """
import os
from pathlib import Path

def test_fatal():
    if not Path("fatal").exists():
        Path("fatal").touch()
        os.kill(os.getpid(), 9)
""",
}


def _pytest(folder: Path, *options: str, files: Mapping[str, str] = FILES, code: int = 1) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.forks", "--processes", "2", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def test_reports(tmp_path: Path) -> None:
    shown = _pytest(tmp_path)
    assert re.search(r"3 failed, 6 passed, 1 warning in", shown)
    assert "assert 1 == 2" in shown
    assert "printed before it failed" in shown
    assert "old and bad" in shown
    assert "FAILED test_fatal.py::test_endless - Failed: Timeout" in shown
    assert "FAILED test_fatal.py::test_fatal - the process of this test ended with -9\n" in shown
    *numbers, over = (tmp_path / "record").read_text().splitlines()
    assert [line.split()[0] for line in numbers] == ["0", "1", "2"]
    assert len({line.split()[1] for line in numbers}) == 3
    assert over == f"session over {numbers[0].split()[2]}"


def test_the_first_failure_ends_the_run(tmp_path: Path) -> None:
    assert re.search(r"stopping after 1 failures", _pytest(tmp_path, "-x"))


def test_what_failed_beside_others_is_run_once_more(tmp_path: Path) -> None:
    shown = _pytest(tmp_path, "--again", "4", files=LOADED)
    assert re.search(r"1 failed, 4 passed in", shown)
    assert "FAILED test_loaded.py::test_always" in shown
    assert "what it said first, beside others" in shown
    alone = [line.removeprefix("ALONE ") for line in shown.splitlines() if line.startswith("ALONE")]
    assert sorted(alone) == [
        "test_fatal.py::test_fatal",
        "test_loaded.py::test_once",
        "test_loaded.py::test_with_a_fixture",
    ]


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    shown = _pytest(tmp_path, "--again", "3", files=LOADED)
    assert re.search(r"3 failed, 1 passed, 1 error in", shown)
    assert "ALONE" not in shown


def test_a_run_whose_failures_pass_alone_is_green(tmp_path: Path) -> None:
    files = {"test_loaded.py": LOADED["test_loaded.py"].replace("def test_always(): assert 1 == 2\n", "")}
    assert re.search(r"3 passed in", _pytest(tmp_path, "--again", "3", files=files, code=0))


HANGING = {
    "test_hanging.py": """
import asyncio, pytest

async def turn():
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass

@pytest.mark.timeout(0.5)
def test_hanging():
    while True:
        try:
            asyncio.run(turn())
        except BaseException:
            pass
def test_after(): pass
"""
}


def test_a_test_that_goes_on_after_its_limit_is_killed_and_shows_where_it_hung(tmp_path: Path) -> None:
    shown = _pytest(tmp_path, "--hang", "2", files=HANGING)
    assert re.search(r"1 failed, 1 passed in", shown)
    assert "FAILED test_hanging.py::test_hanging - the process of this test ended with -9" in shown
    assert "in test_hanging" in shown, "the stacks of its threads"
    assert "in turn" in shown, "the stacks of its tasks"


LEFT = {
    "test_left.py": """
import threading

def test_left():
    threading.Thread(target=threading.Event().wait).start()
    assert 1 == 2
def test_after(): pass
"""
}


@pytest.mark.long(keep=1)  # in the short lane
def test_a_run_ends_though_a_failed_test_has_left_a_thread(tmp_path: Path) -> None:
    assert re.search(r"1 failed, 1 passed in", _pytest(tmp_path, files=LEFT))
