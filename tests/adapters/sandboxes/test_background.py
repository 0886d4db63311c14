"""Commands that run on: started once, readable while they run, ended with their whole tree."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes.process import supervisor
from core.errors import NotFound
from core.ports.sandbox import Output, RunsInBackground, ShellCommand
from tests.adapters.sandboxes.conftest import Local, provider_of, run, running, wait_for

pytestmark = pytest.mark.anyio


async def ended(sandbox: Local, name: str = "b1", after: int = 0) -> Output:
    """Returns the rest of the output of a command that has ended."""
    with anyio.fail_after(60):
        while True:
            output = await sandbox.output(name, after)
            if output.result is not None:
                return output
            await anyio.sleep(0.02)


async def shown(sandbox: Local, text: str, after: int = 0) -> Output:
    """Returns the output once it has a text."""
    with anyio.fail_after(60):
        while True:
            output = await sandbox.output("b1", after)
            if text in output.text:
                return output
            await anyio.sleep(0.02)


async def test_its_output_can_be_read_part_by_part(sandbox: Local, workspace: Path) -> None:
    assert isinstance(sandbox, RunsInBackground)
    await sandbox.start(
        "b1", ShellCommand("echo one; echo err >&2; while [ ! -e go ]; do sleep 0.02; done; echo two", 60)
    )
    first = await shown(sandbox, "err\n")
    assert (first.text, first.result) == ("one\nerr\n", None)
    (workspace / "go").touch()
    last = await ended(sandbox, after=first.place)
    assert last.text == "two\n"
    assert last.result is not None
    assert (last.result.ended, last.result.exit_code) == ("exited", 0)
    assert (await sandbox.output("b1", last.place)).text == ""


async def test_it_is_started_once_and_found_by_another_server(sandbox: Local, tmp_path: Path, workspace: Path) -> None:
    command = "echo x >> count; while [ ! -e go ]; do sleep 0.02; done; exit 3"
    await sandbox.start("b1", ShellCommand(command, 60))
    other = await provider_of(type(sandbox).__name__.removesuffix("Sandbox").lower(), tmp_path).acquire("ada", "t1")
    await other.start("b1", ShellCommand(command, 60))
    (workspace / "go").touch()
    result = (await ended(other)).result
    assert result is not None
    assert result.exit_code == 3
    await other.start("b1", ShellCommand(command, 60))
    assert (workspace / "count").read_text() == "x\n"


async def test_it_outlives_other_commands_and_ends_with_its_tree_when_killed(sandbox: Local) -> None:
    await sandbox.start("b1", ShellCommand("(setsid sleep 987671 &); sleep 987671", 60))
    await to_thread.run_sync(wait_for, lambda: len(running("987671")) >= 2)
    await run(sandbox, "true")
    assert len(running("987671")) >= 2
    await sandbox.kill("b1")
    await to_thread.run_sync(wait_for, lambda: running("987671") == [])
    result = (await sandbox.output("b1")).result
    assert result is not None
    assert result.ended == "interrupted"


async def test_its_time_limit_ends_it(sandbox: Local) -> None:
    await sandbox.start("b1", ShellCommand("echo a; sleep 987672", 1))
    last = await ended(sandbox)
    assert last.text == "a\n"
    assert last.result is not None
    assert last.result.ended == "timeout"
    assert running("987672") == []


async def test_an_unknown_id_is_not_found(sandbox: Local) -> None:
    with pytest.raises(NotFound):
        await sandbox.output("nothing")


async def test_much_output_is_kept_in_part_and_what_is_skipped_is_counted(sandbox: Local, workspace: Path) -> None:
    size = 3 * supervisor.SEGMENT
    await sandbox.start("b1", ShellCommand(f"head -c {size} /dev/zero | tr '\\0' x; echo; echo end", 60))
    last = await ended(sandbox)
    head, _, rest = last.text.partition("\n")
    assert head == f"[... {size + 5 - len(rest.encode())} bytes skipped ...]"
    assert rest.endswith("x\nend\n")
    assert len(rest) == 256 << 10
    calls = workspace.parents[1] / "calls" / "b1"
    assert sum(path.stat().st_size for path in calls.glob("stdout.*")) <= 2 * supervisor.SEGMENT
    assert (await sandbox.output("b1", size)).text == "\nend\n"


async def test_characters_are_not_cut_and_bytes_that_are_no_text_pass(sandbox: Local, workspace: Path) -> None:
    command = "printf 'a\\303'; while [ ! -e go ]; do sleep 0.02; done; printf '\\274b\\377\\000c'"
    await sandbox.start("b1", ShellCommand(command, 60))
    first = await shown(sandbox, "a")
    assert first.text == "a"
    (workspace / "go").touch()
    assert (await ended(sandbox, after=first.place)).text == "üb\ufffd\0c"


async def test_it_ends_when_its_record_is_deleted_with_the_thread(sandbox: Local, workspace: Path) -> None:
    await sandbox.start("b1", ShellCommand("sleep 987673", 60))
    await to_thread.run_sync(wait_for, lambda: running("987673") != [])
    root = workspace.parents[1]
    os.rename(root, root.with_name(".t1-gone"))
    shutil.rmtree(root.with_name(".t1-gone"))
    await to_thread.run_sync(wait_for, lambda: running("987673") == [])
