"""A coroutine that waits for ever ends within its limit, with the fixtures of its module, and shows where it waited."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.warm import ROOT

FILE = """
import anyio, pytest

pytestmark = pytest.mark.anyio

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="module")
async def of_the_module(anyio_backend):
    yield
    print("the module's fixture ended")

@pytest.fixture
async def of_the_test(of_the_module):
    yield
    print("the test's fixture ended")

@pytest.mark.timeout(4)
async def test_endless(of_the_test):
    await anyio.Event().wait()

async def test_after(of_the_test): pass
"""


def test_a_coroutine_that_waits_for_ever_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "test_waiting.py").write_text(FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-s", "-p", "tests.support.limits", "-p", "anyio.pytest_plugin"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [*command, "-p", "pytest_timeout"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.search("1 failed, 1 passed in", result.stdout), result.stdout + result.stderr
    assert "await anyio.Event().wait()" in result.stdout
    assert "TimeoutError" in result.stdout
    assert result.stdout.count("the test's fixture ended") == 2
    assert result.stdout.count("the module's fixture ended") == 1
