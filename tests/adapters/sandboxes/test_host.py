"""What is special about the host: the rules for commands, and the translation of paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.sandboxes.host.rules import refuse
from adapters.sandboxes.host.sandbox import Host, HostSandbox
from core.errors import Invalid
from core.files.paths import Translation
from core.ports.sandbox import Edit, SandboxSetup, ShellCommand
from tests.adapters.sandboxes.conftest import run, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def host(tmp_path: Path) -> HostSandbox:
    return await Host(SandboxSetup(**settings(tmp_path), allow_host_bash=True)).acquire("ada", "t1")


async def test_commands_are_off_by_default(tmp_path: Path) -> None:
    sandbox = await Host(SandboxSetup(**settings(tmp_path), allow_host_bash=False)).acquire("ada", "t1")
    with pytest.raises(Invalid, match="allow_host_bash"):
        await run(sandbox, "true")


async def test_a_home_that_a_shell_would_read_is_refused(tmp_path: Path) -> None:
    host = Host(SandboxSetup(**settings(tmp_path) | {"home": tmp_path / "my home"}, allow_host_bash=True))
    assert "plainer path" in (await host.check() or "")


@pytest.mark.parametrize(
    "command",
    [
        *(
            "cat /etc/passwd",
            "cat ../x",
            "ls ..",
            "cat a/../b",
            "curl file:///etc/passwd",
            "cd /",
            "cd",
            "cd -",
            "cd ~",
        ),
        *("cd $HOME", "pushd /tmp", "ls /", "find / -name x", "rm -rf /", "echo $(cd /tmp && ls)", "echo 'unclosed"),
        *("cat '/etc/passwd'", "true && cd /etc", "echo x > /etc/x", "cat </etc/passwd", "cat /mnt/user-data-other/x"),
    ],
)
async def test_refused(command: str) -> None:
    assert refuse(command, ["/mnt/skills"]) is not None


@pytest.mark.parametrize(
    "command",
    [
        *(
            "ls",
            "cat /mnt/user-data/workspace/a",
            "cd /mnt/user-data/outputs && ls",
            "cat /mnt/skills/a",
            "ls 2>/dev/null",
        ),
        *("/usr/bin/env python3", "curl https://example.org/a/../b", "echo 1..5", "echo $((4 / 2))", "cd sub; ls"),
        *("python3 -c 'print(\"a/b\")'", "sed s/a/b/ x", "for i in {1..3}; do echo $i; done", "git log a..b"),
    ],
)
async def test_allowed(command: str) -> None:
    assert refuse(command, ["/mnt/skills"]) is None


async def test_host_paths_do_not_come_out(host: HostSandbox, tmp_path: Path) -> None:
    shown: list[str] = []
    command = "python3 -c 'import os; print(os.getcwd())'; cat /mnt/user-data/uploads/none; echo $HOME"
    result = await host.exec("c1", ShellCommand(command, 60), shown.append)
    for text in (result.stdout, result.stderr, "".join(shown)):
        assert "/mnt/user-data/" in text
        assert str(tmp_path) not in text


async def test_only_files_the_agent_wrote_are_translated_back(host: HostSandbox, workspace: Path) -> None:
    await host.write("mine.txt", "see /mnt/user-data/outputs/x")
    (workspace / "theirs.txt").write_text(f"see {workspace}/x")
    assert str(workspace.parent) in (workspace / "mine.txt").read_text()
    assert await host.read("mine.txt") == b"see /mnt/user-data/outputs/x"
    assert await host.read("theirs.txt") == f"see {workspace}/x".encode()
    await host.edit([Edit(path="mine.txt", old="outputs/x", new="outputs/y")])
    assert await host.read("/mnt/user-data/workspace/mine.txt") == b"see /mnt/user-data/outputs/y"


def test_translation_takes_whole_prefixes_longest_first() -> None:
    translate = Translation({"/mnt/a": "/1", "/mnt/a/b": "/2"})
    assert translate("/mnt/a /mnt/a/b/c '/mnt/a/x' x=/mnt/a.") == "/1 /2/c '/1/x' x=/1."
    assert translate("/mnt/ab /mnt/a.txt /mnt/a-b /x/mnt/a") == "/mnt/ab /mnt/a.txt /mnt/a-b /x/mnt/a"
