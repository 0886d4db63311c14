"""How a server's end is told: the exit code, whichever of its ends is seen first."""

from __future__ import annotations

import sys

import anyio
import pytest

from adapters.mcp import stdio
from core.errors import Invalid
from core.ports.mcp_frames import Setup

pytestmark = pytest.mark.anyio

ENDS = {
    "it closes its output long before it exits": (
        "import os, time; os.close(1); time.sleep(0.6); os._exit(3)",
        60.0,
        "the server ended with exit code 3",
    ),
    "it closes its output and lives": (
        "import os, sys; os.close(1); sys.stdin.read()",
        0.3,
        "the server closed its output",
    ),
    "it is killed": ("import os; os.kill(os.getpid(), 9)", 60.0, "the server ended by signal 9"),
    "it says why": ("import sys; sys.exit('no database')", 60.0, "the server ended with exit code 1: no database"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_reason_of_an_end(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, seconds, reason = ENDS[end]
    monkeypatch.setattr(stdio, "EXIT_SECONDS", seconds)
    stdio._last.clear()
    setup = Setup(server="s", transport="stdio", argv=(sys.executable, "-c", script))
    with pytest.raises(ExceptionGroup) as raised:
        async with stdio.server(setup) as (received, to_send), received, to_send:
            await anyio.sleep(60)
    assert {(type(error), str(error)) for error in raised.value.exceptions} == {(Invalid, reason)}
