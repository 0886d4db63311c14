"""What every sandbox promises (`core.ports.sandbox`): only the port and plain POSIX commands are used.

A new provider is an entry of `contract.KINDS`.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes.process import supervisor, tail
from core.errors import Invalid, NotFound
from core.ports.sandbox import (
    Edit,
    ExecResult,
    ListsPorts,
    Query,
    RunsInBackground,
    Sandbox,
    SandboxProvider,
    ShellCommand,
)
from tests.adapters.sandboxes.conftest import SECRET, running, wait_for
from tests.adapters.sandboxes.contract import KINDS, Kind
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
W = "/mnt/user-data/workspace"


SHARES = [kind if kind.name == "bubblewrap" else pytest.param(kind, marks=pytest.mark.long(keep=11)) for kind in KINDS]
"""The contract of one kind is in the short lane as a whole."""


@pytest.fixture(params=SHARES, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def place(kind: Kind, request: pytest.FixtureRequest) -> Path:
    return kind.prepare(request)


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def provider(kind: Kind, place: Path) -> SandboxProvider:
    return kind.provider(place)


@pytest.fixture
async def sandbox(provider: SandboxProvider) -> Sandbox:
    return await provider.acquire("ada", "t1")


async def run(sandbox: Sandbox, command: str, call_id: str = "c1", timeout: float = 60) -> ExecResult:
    return await sandbox.exec(call_id, ShellCommand(command, timeout), lambda text: None)


async def cat(sandbox: Sandbox, path: str) -> str:
    """Returns a file's text, empty if there is none."""
    return (await sandbox.read(path)).decode() if await sandbox.version(path) else ""


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_check_says_yes_here(provider: SandboxProvider) -> None:
    assert await provider.check() is None


async def test_output_exit_code_and_place(sandbox: Sandbox) -> None:
    result = await run(sandbox, "echo out; echo err >&2; pwd; exit 3")
    assert result.stdout == f"out\n{W}\n"
    assert (result.stderr, result.exit_code, result.ended) == ("err\n", 3, "exited")


async def test_a_signal_is_an_exit_code_as_in_shells(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "kill -9 $$")).exit_code == 137


async def test_any_text_of_a_command_reaches_the_shell(sandbox: Sandbox) -> None:
    command = "cat <<'END'\n'quoted' \"twice\" $HOME `id` \\n ü €\n\tend \nEND\necho \"last; line\""
    assert (await run(sandbox, command)).stdout == "'quoted' \"twice\" $HOME `id` \\n ü €\n\tend \nlast; line\n"


async def test_a_long_command(sandbox: Sandbox) -> None:
    result = await run(sandbox, "cat <<END | wc -c\n" + "0123456789 line\n" * 6000 + "END")
    assert result.stdout.strip() == str(16 * 6000)


async def test_impossible_commands_are_refused(sandbox: Sandbox) -> None:
    for command in ("echo \0", "x" * 200_000):
        with pytest.raises(Invalid):
            await run(sandbox, command)


async def test_ports_of_a_command_are_its_own(sandbox: Sandbox) -> None:
    """Also of a child, and beside hundreds of connections; not those of others, and none of one that has ended."""
    assert isinstance(sandbox, RunsInBackground)
    assert isinstance(sandbox, ListsPorts)
    one, two = free_port(), free_port()
    serve = "echo begun; sh -c 'exec busybox nc -ll -p {} -e cat'; sleep 60"
    names = {"one": serve.format(one), "two": serve.format(two), "none": "echo begun; exec sleep 60"}
    for name, command in names.items():
        await sandbox.start(name, ShellCommand(command, 60))

    async def listening() -> bool:
        return [list(await sandbox.ports(name)) for name in names] == [[one], [two], []]

    with ExitStack() as crowd:
        server = crowd.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(200):
            crowd.enter_context(socket.create_connection(server.getsockname()))
            crowd.enter_context(server.accept()[0])
        await eventually(listening)
        await sandbox.kill("one")
        assert [list(await sandbox.ports(name)) for name in ("one", "two", "never")] == [[], [two], []]
    await sandbox.kill("two")
    await sandbox.kill("none")


async def test_the_environment_is_the_configured_one_only(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    result = await run(sandbox, "env")
    assert "CONFIGURED=yes" in result.stdout.splitlines()
    assert SECRET not in result.stdout


async def test_variables_of_a_command_are_for_that_command(sandbox: Sandbox) -> None:
    extra = {"ONE": "two words\nand 'lines'", "CONFIGURED": "no"}
    command = 'echo "$ONE $CONFIGURED"'
    result = await sandbox.exec("c1", ShellCommand(command, 60, extra), lambda _: None)
    assert result.stdout == "two words\nand 'lines' no\n"
    assert (await run(sandbox, command, "c2")).stdout == " yes\n"


async def test_binary_output(sandbox: Sandbox) -> None:
    shown: list[str] = []
    result = await sandbox.exec("c1", ShellCommand("printf 'a\\377\\000\\033[1mb'", 60), shown.append)
    assert result.stdout == "".join(shown) == "a\ufffd\0\x1b[1mb"


async def test_output_is_shown_while_it_grows(sandbox: Sandbox) -> None:
    shown: list[str] = []
    began = anyio.Event()

    def on_output(text: str) -> None:
        shown.append(text)
        began.set()

    async def go_on() -> None:
        await began.wait()
        await sandbox.write("go", "")

    command = "echo first ü; while [ ! -e go ]; do sleep 0.01; done; echo second"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        result = await sandbox.exec("c1", ShellCommand(command, 60), on_output)
    assert shown[0] == "first ü\n"
    assert "".join(shown) == result.stdout == "first ü\nsecond\n"


async def test_a_lot_of_output_keeps_head_and_tail(sandbox: Sandbox) -> None:
    lines: list[str] = []
    command = "echo start; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end"
    result = await sandbox.exec("c1", ShellCommand(command, 60), lines.append)
    assert 0 < len("".join(lines)) <= tail.LIMIT
    assert result.stdout.startswith("start\nxxx")
    assert result.stdout.endswith("xxx\nend\n")
    assert " bytes skipped " in result.stdout
    assert len(result.stdout) < supervisor.HEAD + supervisor.TAIL + 100


async def test_a_bit_more_output_than_the_head_is_whole(sandbox: Sandbox) -> None:
    result = await run(sandbox, f"head -c {supervisor.HEAD + 1000} /dev/zero | tr '\\0' x")
    assert result.stdout == "x" * (supervisor.HEAD + 1000)


async def test_commands_at_once(sandbox: Sandbox) -> None:
    async def meet(own: str, other: str) -> None:
        command = f"touch {own}; while [ ! -e {other} ]; do sleep 0.01; done; echo {own}"
        assert (await run(sandbox, command, own)).stdout == f"{own}\n"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meet, "a", "b")
        tasks.start_soon(meet, "b", "a")


async def test_a_file_does_not_outgrow_its_limit(sandbox: Sandbox) -> None:
    """The limit of the settings is 8 MB."""
    assert (await run(sandbox, "head -c 50000000 /dev/zero > big")).exit_code != 0
    assert len(await sandbox.read("big")) <= 8 << 20


# ── once, whatever happens ──────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_call_runs_once(sandbox: Sandbox) -> None:
    for _ in range(2):
        assert (await run(sandbox, "echo x >> count; cat count")).stdout == "x\n"
    assert await cat(sandbox, "count") == "x\n"


async def test_concurrent_calls_with_one_id_run_once(sandbox: Sandbox) -> None:
    results = []

    async def call() -> None:
        results.append(await run(sandbox, "echo x >> count; cat count"))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
    assert {result.stdout for result in results} == {"x\n"}
    assert await cat(sandbox, "count") == "x\n"


async def test_a_call_id_belongs_to_one_command(sandbox: Sandbox) -> None:
    await run(sandbox, "true")
    with pytest.raises(Invalid, match="call_id"):
        await run(sandbox, "false")


async def test_any_call_id(sandbox: Sandbox) -> None:
    ids = ("../../escape", "a/b", "", "x" * 200, "ünï", "..", "-rf", "$(id)", "a\nb")
    outputs = {call_id: (await run(sandbox, f"echo {n}; ls", call_id)).stdout for n, call_id in enumerate(ids)}
    assert outputs == {call_id: f"{n}\n" for n, call_id in enumerate(ids)}


async def test_another_server_goes_on_with_a_call(kind: Kind, place: Path, sandbox: Sandbox) -> None:
    command = "echo x >> count; touch began; while [ ! -e go ]; do sleep 0.01; done; echo end"

    async def began() -> bool:
        return await sandbox.version("began") is not None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, sandbox, command)
        await eventually(began)
        tasks.cancel_scope.cancel()
    successor = await kind.provider(place).acquire("ada", "t1")
    await successor.write("go", "")
    result = await run(successor, command)
    assert (result.stdout, result.exit_code, result.ended) == ("end\n", 0, "exited")
    assert await cat(sandbox, "count") == "x\n"
    assert await run(await kind.provider(place).acquire("ada", "t1"), command) == result


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_timeout_ends_the_whole_tree(sandbox: Sandbox) -> None:
    # Forked twice, with a session of its own: nobody's child any more.
    command = "(setsid sleep 987654 &) ; (setsid setsid sleep 987654 &); echo on; sleep 987654"
    result = await run(sandbox, command, timeout=1)
    assert (result.ended, result.exit_code, result.stdout) == ("timeout", None, "on\n")
    assert running("987654") == []
    assert await run(sandbox, command) == result


async def test_background_processes_end_with_their_command(sandbox: Sandbox) -> None:
    result = await run(sandbox, "(setsid sleep 987655 &); echo started")
    assert (result.stdout, result.exit_code) == ("started\n", 0)
    assert running("987655") == []


async def test_cancelling_leaves_the_command_and_kill_ends_it(sandbox: Sandbox) -> None:
    command = "setsid sleep 987656; sleep 987656"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, sandbox, command)
        await to_thread.run_sync(wait_for, lambda: running("987656") != [])
        tasks.cancel_scope.cancel()
    assert running("987656") != []
    await sandbox.kill("c1")
    assert running("987656") == []
    assert (await run(sandbox, command)).ended == "interrupted"


async def test_a_kill_leaves_other_commands_alone(sandbox: Sandbox) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, sandbox, "sleep 987646", "c1")
        tasks.start_soon(run, sandbox, "sleep 987647", "c10")
        await to_thread.run_sync(wait_for, lambda: running("987646") != [] and running("987647") != [])
        await sandbox.kill("c1")
        assert running("987646") == []
        assert running("987647") != []
        await sandbox.kill("c10")


async def test_a_call_killed_before_it_came_never_runs(sandbox: Sandbox) -> None:
    await sandbox.kill("c1")
    assert (await run(sandbox, "touch ran")).ended == "interrupted"
    assert await sandbox.version("ran") is None


# ── in the background ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def background(sandbox: Sandbox) -> RunsInBackground:
    if not isinstance(sandbox, RunsInBackground):
        pytest.skip("this provider has no commands in the background")
    return sandbox


async def test_a_background_command_is_read_in_parts(sandbox: Sandbox, background: RunsInBackground) -> None:
    command = "echo x >> count; echo first ü; while [ ! -e go ]; do sleep 0.01; done; echo second; exit 4"
    for _ in range(2):
        await background.start("c1", ShellCommand(command, 60))
    text, place, result = "", 0, None

    async def more() -> bool:
        nonlocal text, place, result
        part, place, result = await background.output("c1", place)
        text += part
        return bool(part) or result is not None

    await eventually(more)
    assert (text, result) == ("first ü\n", None)
    await sandbox.write("go", "")

    async def ended() -> bool:
        await more()
        return result is not None

    await eventually(ended)
    assert text == "first ü\nsecond\n"
    assert result == await run(sandbox, command)
    assert await cat(sandbox, "count") == "x\n"


async def test_a_background_command_ends_by_kill_and_by_its_timeout(
    kind: Kind, place: Path, sandbox: Sandbox, background: RunsInBackground
) -> None:
    await background.start("c1", ShellCommand("sleep 987648", 60))
    await background.start("c2", ShellCommand("sleep 987649", 1))
    await to_thread.run_sync(wait_for, lambda: running("987648") != [])
    successor = await kind.provider(place).acquire("ada", "t1")
    assert isinstance(successor, RunsInBackground)
    await successor.kill("c1")
    assert running("987648") == []
    results: list[str] = []

    async def ended() -> bool:
        outputs = [await successor.output(call) for call in ("c1", "c2")]
        results[:] = [output.result.ended for output in outputs if output.result is not None]
        return len(results) == 2

    await eventually(ended)
    assert results == ["interrupted", "timeout"]
    assert running("987649") == []


SERVE = """
if command -v python3 >/dev/null; then exec python3 -c '
import socket
with socket.create_server(("127.0.0.1", {port})) as server:
    print("listening", flush=True)
    server.accept()[0].sendall(b"hello")'
elif command -v nc >/dev/null; then echo listening; printf hello | nc -l -p {port}
else echo nothing
fi
"""
ASK = """
if command -v python3 >/dev/null; then exec python3 -c '
import socket
print(socket.create_connection(("127.0.0.1", {port})).recv(9).decode(), end="")'
else until nc 127.0.0.1 {port}; do sleep 0.1; done
fi
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def test_a_server_in_the_background_is_reached_by_the_next_command(
    kind: Kind, place: Path, sandbox: Sandbox, background: RunsInBackground
) -> None:
    port = free_port()
    assert (await run(sandbox, "true", "before")).exit_code == 0
    await background.start("c1", ShellCommand(SERVE.format(port=port), 60))
    text = ""

    async def said() -> bool:
        nonlocal text
        text = (await background.output("c1")).text
        return bool(text)

    await eventually(said)
    if text == "nothing\n":
        pytest.skip("the image has no program that listens")
    successor = await kind.provider(place).acquire("ada", "t1")  # of another server
    assert (await run(successor, ASK.format(port=port), "c2")).stdout == "hello"


async def test_files_in_tmp_are_there_for_the_next_command(kind: Kind, place: Path, sandbox: Sandbox) -> None:
    if not kind.confined:
        pytest.skip("/tmp is that of this machine")
    own = f"/tmp/sika-{uuid4().hex}"  # a stand-in of an image shows the /tmp of this machine
    await run(sandbox, f"mkdir {own} && echo one > {own}/file", "c1")
    assert (await run(sandbox, f"cat {own}/file && echo two > {own}/file", "c2")).stdout == "one\n"
    successor = await kind.provider(place).acquire("ada", "t1")
    assert (await run(successor, f"cat {own}/file; rm -r {own}", "c3")).stdout == "two\n"


async def test_an_unknown_background_command(background: RunsInBackground) -> None:
    with pytest.raises(NotFound):
        await background.output("never")


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_files_are_shared_with_commands(sandbox: Sandbox) -> None:
    await sandbox.write("/mnt/user-data/outputs/new/in.txt", "hello")
    await sandbox.write("kept.txt", "a")
    result = await run(
        sandbox,
        "echo b >> kept.txt; cd /mnt/user-data/outputs/new && cat in.txt && echo more >> in.txt && touch beside",
    )
    assert (result.stdout, result.stderr) == ("hello", "")
    assert await sandbox.read("/mnt/user-data/outputs/new/in.txt") == b"hellomore\n"
    assert await sandbox.read("kept.txt") == b"ab\n"


async def test_what_a_command_writes_is_read_as_it_is(sandbox: Sandbox) -> None:
    await run(sandbox, "printf '\\377\\0raw' > a")
    assert await sandbox.read("a") == b"\xff\0raw"


async def test_write_read_append_replace(sandbox: Sandbox) -> None:
    await sandbox.write("a/b/c.txt", "one one")
    await sandbox.write(f"{W}/a/b/c.txt", "\ntwo", append=True)
    assert await sandbox.read("a/b/c.txt") == b"one one\ntwo"
    with pytest.raises(Invalid, match=r"is in 2 places, at lines 1, 1\."):
        await replace(sandbox, "a/b/c.txt", "one", "1")
    assert await replace(sandbox, "a/b/c.txt", "two", "2") == [[2]]
    assert await replace(sandbox, "a/b/c.txt", "o", "0\n", every=True) == [[1, 2]]
    assert await sandbox.read("a/b/c.txt") == b"0\nne 0\nne\n2"


async def replace(
    sandbox: Sandbox, path: str, old: str, new: str, every: bool = False, call_id: str | None = None
) -> object:
    return await sandbox.edit([Edit(path=path, old=old, new=new, every=every)], call_id=call_id)


async def test_edits_are_made_all_or_none(sandbox: Sandbox) -> None:
    await sandbox.write("a", "text")
    await sandbox.write("empty", "")
    for path in ("a", "nothing", "empty"):
        with pytest.raises(Invalid, match="not found"):
            await sandbox.edit([Edit(path="a", old="text", new="x"), Edit(path=path, old="other", new="x")])
    assert await sandbox.read("a") == b"text"
    edits = [Edit(path="a", old="text", new="x\ny"), Edit(path="a", old="y", new="z"), Edit(path="b", old="1", new="2")]
    await sandbox.write("b", "1")
    for _ in range(2):
        await sandbox.edit(edits, call_id="c1")
    assert (await sandbox.read("a"), await sandbox.read("b")) == (b"x\nz", b"2")


def new(path: str, text: str) -> Edit:
    return Edit(path=path, old="", new=text)


async def test_edits_make_new_files(sandbox: Sandbox) -> None:
    await sandbox.write("a", "text")
    await sandbox.write("empty", "")
    edits = [new("d/e/f", "1\n"), Edit(path="a", old="text", new="x"), Edit(path="d/e/f", old="1", new="2")]
    edits += [new("empty", "full"), new("nothing", "")]
    for _ in range(2):
        assert len(await sandbox.edit(edits, call_id="c1")) == 5
    assert await sandbox.read("d/e/f") == b"2\n"
    assert (await sandbox.read("a"), await sandbox.read("empty"), await sandbox.read("nothing")) == (b"x", b"full", b"")
    with pytest.raises(Invalid, match="d/e/f: old_str is empty, which makes a new file, but this one is there"):
        await sandbox.edit([new("d/e/g", "1"), new("d/e/f", "1")])
    assert await sandbox.version("d/e/g") is None


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ([new("d/e/f", "1"), Edit(path="a", old="other", new="x")], "a: the text to replace was not found"),
        ([new("d/e/f", "1"), Edit(path="b", old="other", new="x")], "b: not found"),
        ([new("d/e/f", "1"), new("a/b", "1")], "a/b: not a directory"),
        ([new("d/e/f", "1"), new("d/e", "1")], "d/e: is a directory"),
        ([new("d/e/f", "1"), Edit(path="a", old="text", new="x"), new("d/e/f/g", "1")], "d/e/f/g: not a directory"),
        ([new("d/e/f", "1"), Edit(path="a", old="text", new="x"), new("d/g", "x" * (9 << 20))], "larger than"),
        ([new("d/e/f", "1"), new("/mnt/skills/public/x", "1")], "/mnt/skills/public/x: "),
    ],
)
async def test_a_refused_edit_leaves_no_new_file(sandbox: Sandbox, edits: list[Edit], reason: str) -> None:
    await sandbox.write("a", "text")
    with pytest.raises(Invalid, match=reason):
        await sandbox.edit(edits)
    assert await sandbox.read("a") == b"text"
    assert (await sandbox.list(W)).found == [f"{W}/a"]


async def test_edits_of_a_file_are_those_of_all_its_names(sandbox: Sandbox) -> None:
    await sandbox.write("d/a", "one two three")
    await run(sandbox, "ln -s a d/b; ln -s d e")
    names = ("d/a", f"{W}/d/./a", "d/b", "e/b")
    words = ("one", "two", "three", "four")
    edits = [Edit(path=name, old=old, new=f"{old}!") for name, old in zip(names[:3], words, strict=False)]
    await sandbox.edit(
        [*edits, Edit(path="e/b", old="!", new=".", every=True), new("x/y", "1"), Edit(path="x//y", old="1", new="2")]
    )
    assert (await sandbox.read("d/a"), await sandbox.read("x/y")) == (b"one. two. three.", b"2")


async def test_changes_happen_once_per_call(sandbox: Sandbox) -> None:
    await sandbox.write("a", "x")
    for _ in range(2):
        await sandbox.write("a", "x", append=True, call_id="c1")
        await replace(sandbox, "a", "xx", "xy", call_id="c2")
    assert await sandbox.read("a") == b"xy"


async def test_concurrent_appends_are_all_there(sandbox: Sandbox) -> None:
    async def append(number: int) -> None:
        await sandbox.write("log.txt", f"{number}\n", append=True, call_id=f"c{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(append, number)
    assert sorted((await sandbox.read("log.txt")).split(), key=int) == [str(n).encode() for n in range(30)]


async def test_versions_tell_contents_apart(sandbox: Sandbox) -> None:
    assert await sandbox.version("a") is None
    await sandbox.write("a", "x")
    first = await sandbox.version("a")
    await run(sandbox, "echo y > a")
    assert first not in (None, await sandbox.version("a"))


async def test_a_write_has_a_size_limit(sandbox: Sandbox) -> None:
    with pytest.raises(Invalid, match="MB"):
        await sandbox.write("a", "x" * (9 << 20))


async def test_impossible_paths(sandbox: Sandbox) -> None:
    for path in ("../../../x", f"{W}/../../x", "a\0b", "", "x" * 5000, "x" * 300, "/etc/passwd", "/", "/mnt"):
        with pytest.raises(Invalid):
            await sandbox.read(path)
        with pytest.raises(Invalid):
            await sandbox.write(path, "x")


async def test_read_only_mounts(sandbox: Sandbox) -> None:
    for path in ("/mnt/skills/demo/SKILL.md", "/mnt/readonly/fixed.txt", "/mnt/skills/new/file"):
        with pytest.raises(Invalid):
            await sandbox.write(path, "x")
        with pytest.raises(Invalid):
            await replace(sandbox, path, "a", "b")


async def test_mounts_are_there(sandbox: Sandbox) -> None:
    assert await sandbox.read("/mnt/skills/demo/SKILL.md") == b"a skill"
    assert (await run(sandbox, "cat /mnt/skills/demo/SKILL.md /mnt/readonly/fixed.txt")).stdout == "a skillfixed"


@pytest.fixture
def links(kind: Kind) -> None:
    if not kind.confined:
        pytest.skip("this provider refuses commands that make such links; see test_files.py")


@pytest.mark.usefixtures("links")
async def test_links_that_lead_outside(sandbox: Sandbox) -> None:
    await run(sandbox, f"ln -s /etc/passwd file; ln -s {'../' * 30}etc dir; ln -s loop loop")
    for path in ("file", "dir/passwd", "loop"):
        with pytest.raises(Invalid):
            await sandbox.read(path)
        with pytest.raises(Invalid):
            await sandbox.write(path, "overwritten")
    assert (await sandbox.list(W)).found == []
    with pytest.raises(Invalid):
        await sandbox.list("dir")
    with pytest.raises(Invalid):
        await sandbox.grep("dir", Query(pattern="root"))
    listing = await sandbox.grep(W, Query(pattern="root"))
    assert (listing.found, listing.passed) == ([], {"links (not followed)": 3})


@pytest.mark.usefixtures("links")
async def test_links_within_mean_what_the_agent_means(sandbox: Sandbox) -> None:
    await sandbox.write("/mnt/user-data/outputs/real", "text")
    await run(sandbox, "ln -s ../outputs/real relative; ln -s ../outputs outputs")
    for path in ("relative", "outputs/real"):
        assert await sandbox.read(path) == b"text"
    await sandbox.write("relative", "new")
    assert await sandbox.read("/mnt/user-data/outputs/real") == b"new"


async def test_only_plain_files_are_read(sandbox: Sandbox) -> None:
    await run(sandbox, "mkfifo pipe")
    for path in ("pipe", W):
        with pytest.raises(Invalid):
            await sandbox.read(path)
    with pytest.raises(Invalid, match="directory"):
        await sandbox.write(W, "x")


async def test_list_goes_two_levels_and_names_what_it_does_not_open(sandbox: Sandbox) -> None:
    for path in ("a/b/c/d", "node_modules/x", "a/__pycache__/y", "build/out.js", "z.log", "top", ".env"):
        await sandbox.write(path, "")
    listing = await sandbox.list(W)
    names = [".env", "a/", "a/__pycache__/", "a/b/", "build/", "build/out.js", "node_modules/", "top", "z.log"]
    assert [path.removeprefix(f"{W}/") for path in listing.found] == names
    assert (listing.total, listing.passed) == (len(names), {})
    assert sorted(listing.directories) == [f"{W}/a/__pycache__/", f"{W}/node_modules/"]
    for missing in (f"{W}/nothing", f"{W}/nothing/below", "/mnt/user-data/nothing"):
        with pytest.raises(Invalid, match=f"{missing}: not found"):
            await sandbox.list(missing)


async def test_names_that_are_no_text(sandbox: Sandbox) -> None:
    await run(sandbox, "printf needle > \"$(printf '\\377\\376.txt')\"")
    assert (await sandbox.list(W)).found == [f"{W}/\ufffd\ufffd.txt"]
    assert (await sandbox.grep(W, Query(pattern="needle"))).found == [f"{W}/\ufffd\ufffd.txt:1: needle"]


async def test_glob(sandbox: Sandbox) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/d.txt", "build/e.log", "node_modules/f.py"):
        await sandbox.write(path, "")

    async def glob(pattern: str, limit: int = 10, dirs: bool = False, everything: bool = False) -> list[str]:
        listing = await sandbox.glob(W, pattern, dirs=dirs, limit=limit, everything=everything)
        assert listing.total >= len(listing.found) == min(listing.total, limit)
        assert listing.directories == ([] if everything else [f"{W}/node_modules"])
        return [path.removeprefix(f"{W}/") for path in listing.found]

    assert await glob("*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert await glob("*.py", everything=True) == ["a.py", "node_modules/f.py", "src/b.py", "src/deep/c.py"]
    assert await glob("src/*.py") == ["src/b.py"]
    assert await glob("src/**/*.py") == ["src/b.py", "src/deep/c.py"]
    assert await glob("*.{log,txt}") == ["build/e.log", "src/d.txt"]
    assert await glob("{src,build}/*.{py,log}") == ["build/e.log", "src/b.py"]
    assert await glob("[ab].p?") == ["a.py", "src/b.py"]
    assert await glob("**", dirs=True, limit=2) == ["a.py", "build/"]
    for bad in ("../*", "/etc/*"):
        with pytest.raises(Invalid):
            await glob(bad)


async def test_grep(sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", "one\nTwo two\n" + "x" * 300 + "two\n" + "y" * 2001 + "two\n")
    await sandbox.write("b.py", "two = 2\n")
    await sandbox.write("logs/c.log", "two\r\nthree\r\n")
    await run(sandbox, "printf 'two\\0' > binary; yes two | head -n 300000 > large; ln -s b.py link")

    async def grep(pattern: str, **options: Any) -> tuple[list[str], int]:
        settings: dict[str, Any] = {"pattern": pattern, "glob": "!large", "limit": 10} | options
        listing = await sandbox.grep(W, Query(**settings))
        assert listing.passed == {"binary files": 1, "links (not followed)": 1}
        return [line.removeprefix(f"{W}/") for line in listing.found], listing.total

    long = [f"a.txt:3: {'x' * 300}two", f"a.txt:4: … {'y' * 397}two"]
    assert await grep("tw.") == (["a.txt:2: Two two", *long, "b.py:1: two = 2", "logs/c.log:1: two"], 5)
    assert await grep("Two", case_sensitive=True) == (["a.txt:2: Two two"], 1)
    assert await grep("tw.", literal=True) == ([], 0)
    assert await grep("two", limit=1) == (["a.txt:2: Two two"], 5)
    assert await grep("two", shows="files") == (["a.txt", "b.py", "logs/c.log"], 5)
    assert await grep("two", shows="counts") == (["a.txt: 3", "b.py: 1", "logs/c.log: 1"], 5)
    assert await grep("two$", before=1, after=1, limit=1) == (
        ["a.txt-1- one", "a.txt:2: Two two", long[0].replace(":3: ", "-3- ", 1)],
        4,
    )
    assert await grep(r"one\nTwo") == (["a.txt:1: one", "a.txt:2: Two two"], 2)
    with pytest.raises(Invalid, match="pattern"):
        await grep("(unclosed")
    with pytest.raises(Invalid, match="not found"):
        await sandbox.grep("nowhere", Query(pattern="x"))


async def test_grep_filters_and_named_files(sandbox: Sandbox) -> None:
    await sandbox.write("b.py", "two\n")
    await sandbox.write("c.ts", "two\n")
    await run(
        sandbox,
        "printf 'two\\0' > binary; yes two | head -n 300000 > z.log; mkdir node_modules; cat b.py > node_modules/b.py",
    )

    async def files(path: str = W, **options: Any) -> list[str]:
        listing = await sandbox.grep(path, Query(pattern="two", shows="files", **options))
        return [line.removeprefix(f"{W}/") for line in listing.found]

    assert await files() == ["b.py", "c.ts", "z.log"]
    assert await files(everything=True) == ["b.py", "c.ts", "node_modules/b.py", "z.log"]
    assert await files(type="py") == ["b.py"]
    assert await files(glob="*.{ts,py}") == ["b.py", "c.ts"]
    assert await files(f"{W}/binary") == ["binary"]
    assert await files(f"{W}/node_modules") == ["node_modules/b.py"]
    listing = await sandbox.grep(f"{W}/z.log", Query(pattern="two", limit=2))
    assert (listing.found, listing.stopped) == ([f"{W}/z.log:1: two", f"{W}/z.log:2: two"], "matches")
    assert listing.total > 100_000
