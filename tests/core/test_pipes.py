"""A pipe whose other end is gone is the same error on every event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core import pipes

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_a_process_that_is_gone(anyio_backend: object) -> None:
    process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    await process.wait()
    with pytest.raises(ConnectionError):
        await _repeated(process.stdin)


async def _repeated(writer: asyncio.StreamWriter) -> None:
    """asyncio notices at the first write, and says so at a later one."""
    for _ in range(1000):
        await pipes.send(writer, b"hello\n")
        await asyncio.sleep(0)


async def test_a_process_that_reads() -> None:
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    await pipes.send(process.stdin, b"hello\n")
    assert await process.stdout.readline() == b"hello\n"
    process.stdin.close()
    assert await process.wait() == 0
