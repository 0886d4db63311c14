"""Five hundred clients that watch one run, most of the time doing nothing: each of them sees all of it."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.python.lab import AGENT, lab, untimed
from tests.conformance.site import ROOT, Site, site

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CLIENTS = 500
FILES = CLIENTS + 500
SECONDS = 200
"""Of the whole crowd; far more than it takes."""


@pytest.fixture
def files() -> Iterator[None]:
    """Enough of them may be open, here and in the processes made here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def its(files: None, tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as started:
        yield started


async def test_all_see_all(its: Site, capsys: pytest.CaptureFixture[str]) -> None:
    async with lab(its.urls, its.models) as given, asyncio.timeout(SECONDS):
        thread, _ = await given.said()  # what is loaded once is loaded
        asked = given.asked("fifty", stream_mode=["values", "messages-tuple"])
        run = (await given.client.runs.create(thread, AGENT, **asked))["run_id"]
        await given.reached()
        before = _resident(its.pids[0])
        crowd = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.conformance.crowd"),
            *(f"{its.urls[0]}/api/threads/{thread}/runs/{run}/stream", str(CLIENTS)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=1 << 26,
        )
        assert crowd.stdout is not None
        try:
            assert await crowd.stdout.readline() == b"ready\n"
            each = (_resident(its.pids[0]) - before) / CLIENTS
            await given.release()
            seen = json.loads(await crowd.stdout.readline())
            assert await crowd.wait() == 0
        finally:
            if crowd.returncode is None:
                crowd.kill()
                await crowd.wait()
        values: Any = await given.client.runs.join(thread, run)
    with capsys.disabled():
        print(f"\n{CLIENTS} idle clients of one run: {each / 1024:.0f} KiB of the server's memory each")
    assert sum(number for number, _ in seen) == CLIENTS
    answer = values["messages"][-1]["content"]
    for number, told in seen:
        assert [event for event, _ in told] == ["status", "metadata", "values", "text", "values", "end"], number
        assert dict(told)["status"] == "200"
        assert dict(told)["text"] == answer
        assert untimed(dict(told)["values"]["messages"]) == untimed(values["messages"])


def _resident(pid: int) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
