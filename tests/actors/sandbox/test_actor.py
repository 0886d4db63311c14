"""The sandbox actor: requests in, words for the model out; with the tools that ask it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.sandbox import Sandbox
from adapters.sandboxes.host.sandbox import Host
from adapters.tools.bash import bash
from adapters.tools.edit_files import edit_files
from adapters.tools.glob import glob
from adapters.tools.grep import grep
from adapters.tools.ls import ls
from adapters.tools.read_file import read_file
from adapters.tools.str_replace import str_replace
from adapters.tools.write_file import write_file
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid
from core.ports.sandbox import SandboxSetup, result_path
from core.tools import Result, Tool
from tests.adapters.sandboxes.conftest import settings

pytestmark = pytest.mark.anyio
W = "/mnt/user-data/workspace"


class Asking:
    """A tool context that asks the actor directly."""

    thread, user, run = "t1", "ada", "r1"
    channel_user = ""

    def __init__(self, actor: Sandbox) -> None:
        self.actor, self.call_id, self.shown = actor, "c0", ""

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        assert actor == "sandbox"
        return await self.actor.answer(request, self.show)

    exit_code: int | None = None
    """Of the last command."""

    async def show(self, text: str) -> None:
        self.shown += text

    async def use(self, tool: Tool, **arguments: Any) -> str:
        self.call_id = f"c{int(self.call_id[1:]) + 1}"
        result: str | Result = await tool.function(self, **arguments)
        if isinstance(result, Result):
            self.exit_code, result = result.exit_code, result.text
        return result


@pytest.fixture
def actor(tmp_path: Path) -> Sandbox:
    return Sandbox(Host(SandboxSetup(**settings(tmp_path), allow_host_bash=True)), Limits(timeout_seconds=30))


@pytest.fixture
def ask(actor: Sandbox) -> Asking:
    return Asking(actor)


async def test_bash(ask: Asking) -> None:
    assert await ask.use(bash, command="echo a") == "a"
    assert await ask.use(bash, command="true") == "(no output)"
    assert await ask.use(bash, command="echo a; echo b >&2; exit 2") == "a\nStd Error:\nb\nExit Code: 2"
    assert ask.shown.splitlines() == ["a", "a", "b"]
    assert ask.exit_code == 2


async def test_a_command_learns_who_in_a_chat_it_works_for(ask: Asking) -> None:
    show = "echo ${DEERFLOW_CHANNEL_USER_ID-nobody}"
    assert await ask.use(bash, command=show) == "nobody"
    ask.channel_user = "U042"
    assert await ask.use(bash, command=show) == "U042"


async def test_bash_cuts_the_middle(ask: Asking) -> None:
    result = await ask.use(bash, command="seq 1 100000; echo an error happened; seq 1 9000")
    assert len(result) <= 30_000
    assert result.startswith("1\n2\n")
    assert result.endswith("\n9000")
    whole = (
        "".join(f"{n}\n" for n in range(1, 100_001)) + "an error happened\n" + "".join(f"{n}\n" for n in range(1, 9001))
    )
    path, size = result_path("bash", "c1"), len(whole) - 1
    head, _, rest = result.partition("\n... [")
    note, _, tail = rest.partition("] ...\n")
    said = rf"(\d+) characters in (\d+) lines left out; the whole output, {size} characters in 109001 lines, is in "
    left = re.match(said + path + r"\.", note)
    assert left
    assert len(head) + int(left[1]) + len(tail) == size
    assert head.count("\n") + int(left[2]) + tail.count("\n") + 1 == 109_001
    assert note.endswith("Lines in it that speak of errors:\n100001: an error happened")
    read = await ask.use(read_file, path=path, start_line=50_000, end_line=50_001)
    assert read == f"50000\n50001\n\n[lines 50000 to 50001 of 109001, {size} characters in all]"


async def test_output_that_cannot_be_kept_is_cut_and_says_so(ask: Asking) -> None:
    await ask.use(write_file, path=f"{W}/.tool-results", content="in the way")
    result = await ask.use(bash, command="seq 1 100000")
    assert len(result) <= 30_000
    assert "; the whole output could not be kept: " in result


@pytest.mark.parametrize(
    ("timeout", "limits", "stopped"),
    [(1, {}, 1), (None, {"timeout_seconds": 1}, 1), (99, {"timeout_seconds": 1, "max_timeout_seconds": 1}, 1)],
)
async def test_a_command_has_the_time_that_it_is_given(
    tmp_path: Path, timeout: float | None, limits: dict[str, Any], stopped: int
) -> None:
    actor = Sandbox(Host(SandboxSetup(**settings(tmp_path), allow_host_bash=True)), Limits(**limits))
    with pytest.raises(
        Invalid,
        match=rf"stopped after {stopped} seconds\. What it did until then stays done\. Give it a longer timeout",
    ):
        await Asking(actor).use(bash, command="echo begun; sleep 30", timeout=timeout)


async def test_edits_say_where_they_were_made(ask: Asking) -> None:
    await ask.use(write_file, path="a", content="x\nx\nx")
    await ask.use(write_file, path="b", content="1\n2\n3")
    with pytest.raises(Invalid, match="is in 3 places, at lines 1, 2, 3"):
        await ask.use(str_replace, path="a", old_str="x", new_str="y")
    replaced = await ask.use(str_replace, path="a", old_str="x", new_str="y", replace_all=True)
    assert replaced == "Replaced at 3 places, lines 1, 2, 3."
    edits: list[Any] = [
        {"path": "a", "old_str": "y\ny\ny", "new_str": "z"},
        {"path": "b", "old_str": "3", "new_str": "4"},
    ]
    assert await ask.use(edit_files, edits=edits) == "Made 2 edits:\na: replaced at line 1\nb: replaced at line 3"
    with pytest.raises(Invalid, match="b: the text to replace was not found"):
        await ask.use(edit_files, edits=[{"path": "a", "old_str": "z", "new_str": "!"}, edits[1]])
    assert await ask.use(read_file, path="a") == "z"


async def test_a_timeout_is_an_error(ask: Asking, tmp_path: Path) -> None:
    ask.actor = Sandbox(Host(SandboxSetup(**settings(tmp_path), allow_host_bash=True)), Limits(timeout_seconds=0.5))
    with pytest.raises(Invalid, match=r"^the command was stopped after 0\.5 seconds\. What .* background\.\na$"):
        await ask.use(bash, command="echo a; sleep 60")


async def test_a_killed_call_says_so(ask: Asking) -> None:
    await ask.call("sandbox", {"op": "kill", "user": "ada", "thread": "t1", "run": "r1", "call_id": "c1"})
    with pytest.raises(Invalid, match=r"^the command was interrupted"):
        await ask.use(bash, command="echo a")


async def test_the_same_call_id_in_two_runs_is_two_calls(ask: Asking) -> None:
    assert await ask.use(bash, command="echo a") == "a"
    ask.run, ask.call_id = "r2", "c0"
    assert await ask.use(bash, command="echo b") == "b"


async def test_files(ask: Asking) -> None:
    assert await ask.use(ls, path=W) == f"{W} is empty."
    assert await ask.use(write_file, path=f"{W}/a.txt", content="1\n2\n3\n") == "OK"
    assert await ask.use(write_file, path=f"{W}/a.txt", content="4", append=True) == "OK"
    assert await ask.use(str_replace, path=f"{W}/a.txt", old_str="2", new_str="two") == "Replaced at line 2."
    assert await ask.use(read_file, path=f"{W}/a.txt") == "1\ntwo\n3\n4"
    part = "[lines 2 to {} of 4, 9 characters in all]"
    assert await ask.use(read_file, path=f"{W}/a.txt", start_line=2, end_line=3) == f"two\n3\n\n{part.format(3)}"
    assert await ask.use(read_file, path=f"{W}/a.txt", start_line=2) == f"two\n3\n4\n\n{part.format(4)}"
    assert (
        await ask.use(read_file, path=f"{W}/a.txt", start_line=4, line_numbers=True)
        == "     4\t4\n\n[lines 4 to 4 of 4, 9 characters in all]"
    )
    with pytest.raises(Invalid, match="start_line: 5 is beyond the end; the file has 4 lines"):
        await ask.use(read_file, path=f"{W}/a.txt", start_line=5)
    assert await ask.use(write_file, path=f"{W}/e", content="") == "OK"
    assert await ask.use(read_file, path=f"{W}/e") == "(empty)"
    assert await ask.use(ls, path=W) == f"2 entries in {W}:\na.txt\ne"


async def test_reading_is_cut_with_a_hint(ask: Asking) -> None:
    await ask.use(write_file, path="a", content="x" * 999 + "\n" + "".join(f"{n:0999}\n" for n in range(99)))
    result = await ask.use(read_file, path="a")
    assert result.endswith("\n\n[lines 1 to 50 of 100, 100000 characters in all; read on with start_line=51]")
    assert (await ask.use(read_file, path="a", start_line=51)).startswith(f"{49:0999}\n")


async def test_searches(ask: Asking) -> None:
    for path in ("0.txt", "1.txt", "2.txt", "node_modules/3.txt"):
        await ask.use(write_file, path=path, content="needle\nnext\nneedle")
    unlooked = "(Not looked at: node_modules/. Set everything to enter those directories.)"
    unsearched = unlooked.replace("looked at", "searched")
    assert await ask.use(glob, pattern="*.txt", path=W, max_results=2) == (
        f"Found 3 paths under {W}:\n{W}/0.txt\n{W}/1.txt\n"
        f"(1 more: narrow the pattern or the path, or raise max_results)\n{unlooked}"
    )
    assert await ask.use(glob, pattern="*.py", path=W) == f"Found no paths under {W}.\n{unlooked}"
    assert await ask.use(grep, pattern="need", path=W, glob="1*", max_results=1) == (
        f"Found 2 matching lines in 1 file under {W}:\n{W}/1.txt:1: needle\n"
        f"(1 more: narrow the pattern or the path, or raise max_results)\n{unsearched}"
    )
    assert await ask.use(grep, pattern="need", path=W, glob="1*", context=1) == (
        f"Found 2 matching lines in 1 file under {W}:\n{W}/1.txt:1: needle\n{W}/1.txt-2- next\n{W}/1.txt:3: needle\n"
        f"{unsearched}"
    )
    assert await ask.use(grep, pattern="need", path=f"{W}/node_modules", shows="counts") == (
        f"Found 2 matching lines in 1 file under {W}/node_modules:\n{W}/node_modules/3.txt: 2"
    )
    assert await ask.use(grep, pattern="pin", path=f"{W}/0.txt") == f"Found no matches under {W}/0.txt, in 1 file."
    assert await ask.use(grep, pattern="pin", path=W, type="py") == (
        f"No file under {W} was searched: none fits type 'py'.\n{unsearched}"
    )
    assert await ask.use(ls, path=W) == (
        f"4 entries in {W}:\n0.txt\n1.txt\n2.txt\nnode_modules/\n(Not opened: node_modules/)"
    )


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({}, "op"),
        ({"op": "fly"}, "fly"),
        ({"op": "exec", "user": "ada", "thread": "t1", "run": "r", "call_id": "c"}, "command"),
        ({"op": "read", "user": "ada", "thread": "t1", "path": 3}, r"\$.path"),
        ({"op": "read", "user": "ada", "thread": "../t", "path": "a"}, "thread"),
        ({"op": "read", "user": "ada", "thread": "t1", "path": "a", "pth": "a"}, "pth"),
    ],
)
async def test_bad_requests_are_named(ask: Asking, request_: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        await ask.call("sandbox", request_)


async def test_refusals_are_bounded(ask: Asking) -> None:
    with pytest.raises(Invalid) as error:
        await ask.use(read_file, path="/".join(["x" * 200] * 19))
    assert len(str(error.value)) <= 2000


async def test_effects() -> None:
    assert {tool.effect for tool in (ls, read_file, glob, grep)} == {"pure"}
    assert {tool.effect for tool in (bash, write_file, str_replace)} == {"idempotent"}
    assert all(tool.description for tool in (bash, ls, read_file, write_file, str_replace, glob, grep))


async def test_versions_of_a_file(ask: Asking) -> None:
    async def version(path: str) -> Any:
        return await ask.call("sandbox", {"op": "version", "user": "ada", "thread": "t1", "path": path})

    assert await version("a/b.txt") is None
    await ask.use(write_file, path="a/b.txt", content="1")
    first = await version("a/b.txt")
    assert first == hashlib.sha256(b"1").hexdigest()
    assert await version(f"{W}//a/./b.txt") == first
    await ask.use(write_file, path="a/b.txt", content="2", append=True)
    assert await version("a/b.txt") == hashlib.sha256(b"12").hexdigest()
    await ask.use(write_file, path="a/b.txt", content="1")
    assert await version("a/b.txt") == first


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/etc/passwd", "outside of the directories"),
        ("../x", "not allowed"),
        (W, "is a directory"),
        ("f/x", "not a directory"),
        ("out", "outside of the directories"),
    ],
)
async def test_versions_are_told_of_files_of_the_thread_only(
    ask: Asking, tmp_path: Path, path: str, complaint: str
) -> None:
    await ask.use(write_file, path="f", content="1")
    (tmp_path / "home/users/ada/threads/t1/user-data/workspace/out").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match=complaint):
        await ask.call("sandbox", {"op": "version", "user": "ada", "thread": "t1", "path": path})
