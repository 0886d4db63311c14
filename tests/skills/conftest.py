"""A thread's real sandbox with the skills of the repository, as an agent has it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.sandboxes.bubblewrap import Bubblewrap
from core.config.sandbox import Egress
from core.ports.sandbox import ExecResult, SandboxSetup, ShellCommand
from core.skills.folders import folders_in

SKILLS = Path(__file__).parents[2] / "skills"
PUBLIC = SKILLS / "public"
NAMES = sorted(path.parent.name for path in PUBLIC.glob("*/SKILL.md"))


class Desk:
    """A workspace, and commands in it. `$S` is the folder of the skills."""

    def __init__(self, folder: Path, execute: Callable[[str], Awaitable[ExecResult]]) -> None:
        self.folder, self._execute = folder, execute

    async def run(self, command: str, expected: int = 0) -> str:
        """Runs a command and returns its output, errors last."""
        result = await self._execute(f"S=/mnt/skills/public; {command}")
        text = result.stdout + result.stderr
        assert result.exit_code == expected, text
        assert "Traceback" not in text, text
        return text

    def copy(self, source: Path) -> None:
        target = self.folder / source.name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


async def _desk(tmp_path: Path, network: bool) -> Desk:
    direct = Egress(direct=True)  # to the site on this machine's loopback
    setup = SandboxSetup(home=tmp_path / "home", skills=folders_in(SKILLS), network=network, egress=direct)
    provider = Bubblewrap(setup)
    sandbox = await provider.acquire("ada", "t1")
    calls = iter(range(1000))

    async def execute(command: str) -> ExecResult:
        return await sandbox.exec(f"c{next(calls)}", ShellCommand(command, 120), lambda text: None)

    return Desk(tmp_path / "home/users/ada/threads/t1/user-data/workspace", execute)


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    return await _desk(tmp_path, network=False)


@pytest.fixture
async def connected(tmp_path: Path) -> Desk:
    return await _desk(tmp_path, network=True)
