"""The way out of programs that run for long, of several servers on one data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio._core import _sockets

from adapters.sandboxes.egress.programs import Programs
from adapters.sandboxes.egress.proxy import SOCKET
from adapters.sandboxes.egress.wayout import socket_folder
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import settings
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


async def serving(programs: Programs) -> None:
    async def there() -> bool:
        return (socket_folder(programs.folder()) / SOCKET).exists()

    await eventually(there)


async def test_a_server_that_starts_leaves_the_folder_of_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment: also when its socket is bound, and does not listen yet."""
    one, other = Programs(SandboxSetup(**settings(tmp_path))), Programs(SandboxSetup(**settings(tmp_path)))
    chmod, swept = _sockets.chmod, 0  # type: ignore[attr-defined]

    def chmod_while_another_starts(*arguments: Any) -> None:
        nonlocal swept
        other._sweep()
        swept += 1
        chmod(*arguments)

    monkeypatch.setattr(_sockets, "chmod", chmod_while_another_starts)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await serving(one)
        other._sweep()
        assert one.folder().exists()
        tasks.cancel_scope.cancel()
    assert swept


async def test_folders_of_servers_that_were_killed_are_deleted(tmp_path: Path) -> None:
    killed, other = Programs(SandboxSetup(**settings(tmp_path))), Programs(SandboxSetup(**settings(tmp_path)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(killed.run)
        await serving(killed)
        left = socket_folder(killed.folder()) / SOCKET
        left.rename(tmp_path / SOCKET)
        tasks.cancel_scope.cancel()
    socket_folder(killed.folder()).mkdir(parents=True, exist_ok=True)
    (tmp_path / SOCKET).rename(left)
    other._sweep()
    assert not left.exists()
