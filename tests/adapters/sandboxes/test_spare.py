"""Sandboxes that are made before their command is known: used once, never in place of another one, and never left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.process import holder, spare
from adapters.sandboxes.process.job import Job
from adapters.sandboxes.process.template import template
from core.ports.sandbox import SandboxSetup, ShellCommand
from tests.adapters.sandboxes.conftest import run, settings, wait_for

pytestmark = pytest.mark.anyio


def supervisors() -> list[int]:
    """Returns the supervisors of this process's template."""
    words = read(template.pid, f"task/{template.pid}/children").decode().split()
    return [int(word) for word in words if read(word, "comm").strip() not in (b"", holder.NAME)]


def read(pid: int | str, name: str) -> bytes:
    """Returns a file of a process, or nothing if the process has ended, also between opening and reading."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def waiting() -> list[int]:
    """Returns the shells that wait for a command, or none while a supervisor is about to start one."""
    shells = []
    for pid in supervisors():
        try:
            shell = descendant(pid, 3)  # below both processes of bubblewrap
        except (OSError, IndexError):
            return []
        if b"read" not in read(shell, "cmdline"):
            return []
        shells.append(shell)
    return shells


def descendant(pid: int, depth: int) -> int:
    for _ in range(depth):
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


@pytest.fixture(autouse=True)
def own_template() -> None:
    """The supervisors of other tests, which may still wait, belong to another one."""
    template.end()


@pytest.fixture
async def sandbox(tmp_path: Path) -> BubblewrapSandbox:
    """A sandbox after its first call; another one waits."""
    made = await Bubblewrap(SandboxSetup(**settings(tmp_path))).acquire("ada", "t1")
    assert (await run(made, "echo first > /tmp/left; echo first", "c0")).stdout == "first\n"
    wait_for(lambda: len(waiting()) == 1)
    return made


async def test_a_call_needs_no_new_sandbox_and_finds_nothing_of_the_one_before(sandbox: BubblewrapSandbox) -> None:
    os.kill(template.pid, signal.SIGSTOP)  # nobody can start one
    command = 'ls /tmp; printf \'%s|\' "$0" "$#" "$SHLVL"; pwd; cat; ls /proc/self/fd | wc -l'
    try:
        second = await run(sandbox, command, "c1")
    finally:
        os.kill(template.pid, signal.SIGCONT)
    without = await sandbox.exec("c2", ShellCommand(command, 60, {"OWN": "1"}), lambda _: None)
    assert second == without
    assert second.exit_code == 0


async def test_a_command_arrives_as_it_is(sandbox: BubblewrapSandbox) -> None:
    for number, command in enumerate((" echo  ' a\\n$HOME`x`' \n# \u00e4\n\n", "true #" + "x" * 99_000, "exit 3", "(")):
        wait_for(lambda: len(waiting()) == 1)
        plain = await sandbox.exec(f"p{number}", ShellCommand(command, 60, {"A": "b"}), lambda _: None)
        wait_for(lambda: len(waiting()) == 1)
        assert await run(sandbox, command, f"w{number}") == plain


async def test_a_folder_that_was_replaced_is_seen(sandbox: BubblewrapSandbox, workspace: Path) -> None:
    workspace.rename(workspace.with_name("old"))
    workspace.mkdir(mode=0o777)
    (workspace / "new").touch()
    assert (await run(sandbox, "ls", "c1")).stdout == "new\n"


async def test_one_that_has_ended_is_replaced(sandbox: BubblewrapSandbox) -> None:
    [supervisor], [shell] = supervisors(), waiting()
    place = Path(f"/proc/{descendant(supervisor, 1)}/stat")
    os.kill(shell, signal.SIGKILL)
    wait_for(lambda: ") Z " in place.read_text())
    assert (await run(sandbox, "echo on", "c1")).stdout == "on\n"
    wait_for(lambda: len(waiting()) == 1)
    os.kill(supervisors()[0], signal.SIGKILL)
    wait_for(lambda: supervisors() == [])
    assert (await run(sandbox, "echo on", "c2")).stdout == "on\n"


async def test_there_are_not_many_and_none_without_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "MOST", 2)
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.run)
        for number in range(4):
            await run(await provider.acquire("ada", f"t{number}"), "true", "c0")
        wait_for(lambda: len(waiting()) == 2)
        tasks.cancel_scope.cancel()
    wait_for(lambda: supervisors() == [])


async def test_a_provider_that_changes_commands_changes_all_of_them(tmp_path: Path) -> None:
    class Louder(Bubblewrap):
        def job(self, command: ShellCommand, *more: Any, **named: Any) -> Job:
            return super().job(msgspec.structs.replace(command, text=f"{command.text} loudly"), *more, **named)

    sandbox = await Louder(SandboxSetup(**settings(tmp_path))).acquire("ada", "t1")
    for number in range(2):
        assert (await run(sandbox, "echo", f"c{number}")).stdout == "loudly\n"
