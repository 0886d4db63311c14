"""Attempts that need a command of their own, or the file tools: the server looks at what came of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import anyio

from adapters.sandboxes.docker.provider import OWN_PROCESSES
from adapters.sandboxes.files.operations import Files
from adapters.sandboxes.process import supervisor
from channels.terminal.text import clean
from core.errors import Invalid
from core.ports.sandbox import ExecResult, MachineLost, Query, ShellCommand
from core.skills.commands import SAFE
from tests.adapters.sandboxes.conftest import Local, running
from tests.adapters.sandboxes.escape.inside import CONTAINED, REFUSED

PYTHON = "import mmap, os, time, threading\n"


class World(NamedTuple):
    """What the server has, and a sandbox of a thread of its own for each attempt."""

    facts: dict[str, object]
    box: Local
    root: Path
    """The thread's folder."""
    successor: Callable[[], Awaitable[Local]]
    """Returns the thread's sandbox after its machine was lost."""
    neighbour: Callable[[], Awaitable[Local]]
    """Returns the sandbox of another thread of the same user."""

    async def run(self, command: str, timeout: float = 30, call_id: str = "c1") -> ExecResult:
        return await self.box.exec(call_id, ShellCommand(command, timeout), lambda text: None)

    async def python(self, source: str, timeout: float = 30) -> ExecResult:
        await self.box.write("attempt.py", PYTHON + source)
        return await self.run("python3 attempt.py", timeout)


class Outside(NamedTuple):
    name: str
    category: str
    run: Callable[[World], Awaitable[str]]
    bubblewrap: str
    host: str | None


OUTSIDE: list[Outside] = []


def outside(category: str, name: str, bubblewrap: str, host: str | None) -> Callable[..., object]:
    def add(run: Callable[[World], Awaitable[str]]) -> None:
        OUTSIDE.append(Outside(name, category, run, bubblewrap, host))

    return add


def bomb(category: str, name: str, source: str, *reasons: str, host: str | None = CONTAINED) -> None:
    """A program that takes more than it may: it must be ended, and the reason be told, or it must get an error."""

    async def run(world: World) -> str:
        result = await world.python(source)
        return CONTAINED if any(reason in result.stdout + result.stderr for reason in reasons) else f"reached: {result}"

    outside(category, name, CONTAINED, host)(run)


SERVE = """
import socket
tcp, abstract = socket.create_server(("127.0.0.1", 8765)), socket.socket(socket.AF_UNIX)
abstract.bind("\\0sika-neighbour")
abstract.listen()
open("/tmp/sika-neighbour", "w").write("reached")
print("ready", flush=True)
while True:
    tcp.accept()[0].sendall(b"reached")
"""
REACH = {
    "port": "print(socket.create_connection(('127.0.0.1', 8765), 3).recv(7).decode())",
    "abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0sika-neighbour'); print('reached')",
    "/tmp": "print(open('/tmp/sika-neighbour').read())",
}


async def _serve(box: Local) -> None:
    """Starts what is to be reached, in the background."""
    await box.write("serve.py", SERVE)
    await box.start("serve", ShellCommand("python3 serve.py", 60))
    for _ in range(600):
        if "ready" in (await box.output("serve")).text:
            return
        await anyio.sleep(0.05)
    raise TimeoutError("the server did not start")


def _reached(result: ExecResult) -> str:
    return f"reached: {result}" if "reached" in result.stdout else REFUSED


for _name, _source in REACH.items():

    async def _of_another_thread(world: World, source: str = _source) -> str:
        other = await world.neighbour()
        await _serve(other)
        try:
            return _reached(await world.python(f"import socket\n{source}"))
        finally:
            await other.kill("serve")

    outside("other commands", f"{_name} of another thread", REFUSED, None)(_of_another_thread)

for _name, _source in REACH.items():

    async def _of_the_agent(world: World, source: str = _source) -> str:
        await _serve(world.box)
        await world.box.write("ask.py", f"import socket\n{source}")
        ask = "cd / && python3 /mnt/user-data/workspace/ask.py"
        try:
            return _reached(await world.box.exec("c1", ShellCommand(ask, 30, SAFE, private=True), lambda text: None))
        finally:
            await world.box.kill("serve")

    outside("other commands", f"{_name} of the agent, for a command with secrets", REFUSED, None)(_of_the_agent)


@outside("other commands", "settings that the agent wrote, for a command with secrets", REFUSED, None)
async def _settings(world: World) -> str:
    await world.run("echo reached > ~/.curlrc; mkdir -p ~/.config; echo reached > ~/.config/x; echo reached > .env")
    read = 'cat ~/.curlrc "$HOME/.config/x" "$XDG_CONFIG_HOME/x" .env'
    return _reached(
        await world.box.exec("c2", ShellCommand(f"cd / && {read}", 30, SAFE, private=True), lambda text: None)
    )


_MEMORY = "(sandbox.memory_mb)"
_MOST = 32 + OWN_PROCESSES
"""The limit of the settings, and what a container has in addition."""
bomb("bombs", "memory of one process", "held = bytearray(4 << 30)", "MemoryError", _MEMORY)
bomb(
    "bombs",
    "memory that is shared",
    "m = mmap.mmap(-1, 400 << 20)\n[m.write(bytes(1 << 20)) for _ in range(400)]\ntime.sleep(60)",
    _MEMORY,
)
bomb(
    "bombs",
    "files in memory",
    "fds = [os.memfd_create('m') for _ in range(60)]\n[os.write(f, bytes(7 << 20)) for f in fds]\ntime.sleep(60)",
    _MEMORY,
)
bomb(
    "bombs",
    "memory of many processes",
    "[os.fork() for _ in range(3)]\nheld = b'x' * (50 << 20)\ntime.sleep(60)",
    _MEMORY,
)
bomb(
    "bombs",
    "processes",
    "made = 0\ntry:\n    for _ in range(200):\n        os.fork() or time.sleep(60) or os._exit(0)\n        made += 1\n"
    f"except BlockingIOError:\n    print('stopped' if made <= {_MOST} else made)\nelse:\n    time.sleep(60)",
    "stopped",
)
bomb(
    "bombs",
    "threads",
    "made = 0\ntry:\n    for _ in range(200):\n        threading.Thread(target=time.sleep, args=(60,)).start()\n"
    f"        made += 1\nexcept RuntimeError:\n    print('stopped' if made <= {_MOST} else made, flush=True)\n"
    "    os._exit(0)",
    "stopped",
    host=None,
)
bomb("bombs", "size of a file", "f = open('big', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))", "File too large")
bomb(
    "bombs",
    "disk by many files",
    "[open(f'{n}', 'wb').write(os.urandom(4 << 20)) for n in range(30)]\ntime.sleep(60)",
    "(sandbox.max_thread_mb)",
)
bomb(
    "bombs",
    "disk by files in /tmp",
    "[open(f'/tmp/{n}', 'wb').write(os.urandom(4 << 20)) for n in range(30)]\ntime.sleep(60)",
    "(sandbox.max_thread_mb)",
    "No space left",
    _MEMORY,
    host=None,
)
bomb(
    "bombs",
    "number of files",
    "[open(f'{n}', 'w').close() for n in range(3000)]\ntime.sleep(60)",
    "(sandbox.max_thread_files)",
)
bomb("bombs", "open files", "held = [open('/dev/null') for _ in range(9000)]", "Too many open files")
bomb(
    "bombs",
    "memory of /dev/shm",
    "for n in range(30): open(f'/dev/shm/{n}', 'wb').write(bytes(7 << 20))",
    "No space left",
    host=None,
)


# ── processes that outlive the call ─────────────────────────────────────────────────────────────────────────────────


def lingers(name: str, command: str, ended: str = "exited") -> None:
    """A command leaves processes, recognised by how long they sleep, that must end with it."""

    async def run(world: World) -> str:
        mark = str(10_000_000 + len(OUTSIDE) * 1000 + os.getpid() % 1000 + hash(name) % 1_000_000)
        result = await world.run(command.format(mark=mark), timeout=2 if ended == "timeout" else 30)
        return CONTAINED if not running(mark) and result.ended == ended else f"reached: {running(mark)} {result}"

    outside("processes that stay", name, CONTAINED, CONTAINED)(run)


lingers("in the background", "sleep {mark} & echo on")
lingers("in a session of their own", "(setsid sleep {mark} &); echo on")
lingers("forked twice", "(setsid setsid sleep {mark} >/dev/null 2>&1 &); echo on")
lingers("without a terminal", "nohup sleep {mark} >/dev/null 2>&1 & echo on")
lingers("that ignore signals", "(trap '' TERM INT HUP; sleep {mark}) & echo on")
lingers("that hold the output open", "sleep {mark} 2>&1 & exec >&-; exit 0")
lingers("after the timeout", "(setsid sleep {mark} &); sleep {mark}", "timeout")
lingers("that are stopped", "sleep {mark} & kill -STOP $!; echo on")
lingers("without an environment", "(env -i setsid sleep {mark} &); echo on")


@outside("processes that stay", "killing everything that can be seen", CONTAINED, None)
async def _kill_all(world: World) -> str:
    try:
        await world.run("kill -9 -1; kill -9 1")
    except MachineLost:
        world = world._replace(box=await world.successor())
    again = await world.run("echo on", call_id="c2")
    return CONTAINED if again.stdout == "on\n" else f"reached: {again}"


# ── output ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@outside("output", "a gigabyte", CONTAINED, CONTAINED)
async def _gigabyte(world: World) -> str:
    result = await world.run("head -c 1000000000 /dev/zero | tr '\\0' x", timeout=60)
    stored = sum(path.stat().st_size for path in (world.root / "calls" / "c1").iterdir())
    bound = supervisor.HEAD + supervisor.TAIL + 10_000
    fits = len(result.stdout) < bound and stored < bound and "bytes skipped" in result.stdout
    return CONTAINED if fits and result.exit_code == 0 else f"reached: {stored}"


@outside("output", "NUL and invalid UTF-8", CONTAINED, CONTAINED)
async def _binary(world: World) -> str:
    result = await world.run("printf 'a\\0b\\377\\376c'")
    return CONTAINED if result.stdout == "a\0b\ufffd\ufffdc" else f"reached: {result}"


@outside("output", "escape codes for the terminal", CONTAINED, CONTAINED)
async def _escapes(world: World) -> str:
    result = await world.run("printf '\\033]0;title\\007\\033[2J\\033]52;c;eA==\\007fine\\n'")
    shown = clean(result.stdout)
    return CONTAINED if "\x1b" not in shown and "\x07" not in shown and "fine" in shown else f"reached: {shown!r}"


@outside("output", "the outcome of the call", CONTAINED, CONTAINED)
async def _forged(world: World) -> str:
    result = await world.run("""echo '{"ended":"exited","exit_code":0}'; echo forged > exit; exit 3""")
    return CONTAINED if result.exit_code == 3 else f"reached: {result}"


# ── the file tools ──────────────────────────────────────────────────────────────────────────────────────────────────


def tool(name: str, prepare: str, use: Callable[[Files, str], Awaitable[object]], path: str = "link") -> None:
    """A command prepares a trap, a tool of the server walks into it; success is the secret, or a file outside."""

    async def run(world: World) -> str:
        facts = world.facts
        words = {name: str(facts[name]) for name in ("config", "home", "base")}
        source = prepare.format(**words)
        await world.python(f"{source}\n") if source else None
        try:
            result = await use(world.box, path.format(**words))
        except Invalid:
            return REFUSED
        if str(facts["secret"]) in repr(result) or "SECRET" in repr(result) or (Path(words["base"]) / "made").exists():
            return f"reached: {result!r}"
        return CONTAINED

    expected = REFUSED if "search" not in name and "list" not in name else CONTAINED
    outside("file tools", name, expected, expected)(run)


async def _read(files: Files, path: str) -> object:
    return await files.read(path)


async def _write(files: Files, path: str) -> object:
    await files.write(path, "made")
    return None


async def _grep(files: Files, path: str) -> object:
    return (await files.grep(path, Query(pattern="the-server", literal=True))).found


tool("reading a link", "os.symlink('{config}', 'link')", _read)
tool("reading below a link", "os.symlink('{home}', 'link')", _read, "link/config.yaml")
tool("reading by ..", "", _read, "../../../../../../config.yaml")
tool("reading an absolute path", "", _read, "{config}")
tool("reading by /proc", "", _read, "/proc/self/environ")
tool("reading a chain of links", "os.symlink('b', 'link')\nos.symlink('{config}', 'b')", _read)
tool("reading a loop of links", "os.symlink('link', 'link')", _read)
tool("reading a pipe", "os.mkfifo('link')", _read)
tool("reading a name with a NUL", "", _read, "a\0b")
tool("writing through a link", "os.symlink('{base}/made', 'link')", _write)
tool("writing below a link", "os.symlink('{base}', 'link')", _write, "link/made")
tool("writing by ..", "", _write, "../../../../../../../made")
tool("writing to a read-only mount", "", _write, "/mnt/readonly/made")
tool("search through a link", "os.symlink('{home}', 'link')", _grep, "/mnt/user-data/workspace")


@outside("file tools", "list of names that are no UTF-8, or have escape codes", CONTAINED, CONTAINED)
async def _names(world: World) -> str:
    await world.python("[open(name, 'w').close() for name in (b'\\xff\\xfe', b'a\\x1b[2Jb', b'new\\nline')]")
    names = (await world.box.list("/mnt/user-data/workspace")).found
    "\n".join(names).encode("utf-8", "replace")
    return CONTAINED if len(names) >= 4 else f"reached: {names}"


@outside("file tools", "setuid file that stays on the host", CONTAINED, CONTAINED)
async def _setuid(world: World) -> str:
    await world.run("cp /usr/bin/id id; chmod 6755 id")
    closed = not os.stat(world.root).st_mode & stat.S_IXOTH or not os.stat(world.root.parent).st_mode & stat.S_IXOTH
    home = os.stat(str(world.facts["home"])).st_mode & stat.S_IXOTH
    return CONTAINED if closed or not home else "reached: others can start it"


def race(name: str, use: Callable[[Files], Awaitable[object]]) -> None:
    """A command exchanges a directory and a link to the home as fast as it can, while a tool uses a path below it."""

    async def run(world: World) -> str:
        await world.box.write("d/config.yaml", "harmless")
        swap = f"""
os.symlink({world.facts["home"]!r}, "link")
end = time.monotonic() + 20
while time.monotonic() < end and not os.path.exists("enough"):
    os.rename("d", "e"); os.rename("link", "d")
    os.rename("d", "link"); os.rename("e", "d")
"""
        seen: list[object] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.python, swap)
            for _ in range(150):
                try:
                    seen.append(await use(world.box))
                except Invalid:
                    continue
            await world.box.write("enough", "")
        untouched = str(world.facts["secret"]) in Path(str(world.facts["config"])).read_text()
        safe = untouched and str(world.facts["secret"]) not in repr(seen)
        return CONTAINED if safe else "reached: the race was won"

    outside("file tools", name, CONTAINED, CONTAINED)(run)


race("reading while a directory becomes a link", lambda files: files.read("d/config.yaml"))
race("writing while a directory becomes a link", lambda files: files.write("d/config.yaml", "mine"))
