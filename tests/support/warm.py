"""Processes of the product that have imported everything before they begin: a server starts in a fraction of a second.

Importing takes most of a start, and the tests start hundreds. A `zygote` imports once and forks a child for each start:
a process like any other, with an id, signals, streams and an end of its own. The processes of one run of tests share
it. The starts that are tested themselves (`tests/channels/terminal/test_cli.py`, the benchmarks) go through the
interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from core import collector

ROOT = Path(__file__).parents[2]
END_SECONDS = 120.0
SHARED = "SIKA_TESTS_ZYGOTE"
"""The variable with the address of the zygote."""
PID_BYTES = 4
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""


# ── in the tests ────────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """A child of the zygote, with what the tests use of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, pid: int, stdout: io.FileIO | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Less than 0: the signal that ended it."""
        self.stdout = stdout
        self._connection = connection

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self._end(self._connection.recv(64))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
        assert self.returncode is not None
        return self.returncode

    async def waited(self) -> int:
        """Like `wait`, without holding up the event loop."""
        while self.poll() is None:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.01)
        return self.wait()

    def _end(self, status: bytes) -> None:
        """Without a status the zygote is gone, and its children with it."""
        self.returncode = int(status) if status else -signal.SIGKILL
        self._connection.close()
        if self.stdout is not None:
            self.stdout.close()

    async def line(self) -> bytes:
        """The next line of its output."""
        assert self.stdout is not None
        return await asyncio.to_thread(self.stdout.readline)


def start(
    module: str,
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.DEVNULL,
) -> Process:
    """`python -m module arguments…`. Of the streams, `stdout` may be `PIPE`; otherwise they are descriptors."""
    order = {"module": module, "argv": arguments, "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
    ours, theirs = os.pipe() if stdout == subprocess.PIPE else (None, stdout)
    connection = socket.socket(socket.AF_UNIX)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        connection.connect(_zygote())
        streams = [nothing if stream == subprocess.DEVNULL else stream for stream in (stdin, theirs, stderr)]
        socket.send_fds(connection, [b"-"], streams)
        connection.sendall(json.dumps(order).encode() + b"\n")
        pid = int.from_bytes(connection.recv(PID_BYTES, socket.MSG_WAITALL))  # the exit code may be there already
    finally:
        os.close(nothing)
        if ours is not None:
            os.close(theirs)
    return Process(connection, pid, None if ours is None else io.FileIO(ours))


def run(
    module: str,
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a module to its end, and capture its output."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        process = start(module, *arguments, cwd=cwd, env=env, **streams)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess([module, *arguments], code, *texts)


def share() -> None:
    """Starts the zygote of this process and of those that it starts."""
    os.environ[SHARED] = _zygote()


@cache
def _zygote() -> str:
    """The address of the zygote. This process's own ends with it: its standard input is at an end then."""
    if path := os.environ.get(SHARED):
        return path
    path = str(Path(tempfile.mkdtemp(prefix="sika-zygote-")) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)  # requests wait there until it has imported everything
        command = [sys.executable, "-m", "tests.support.warm", str(listener.fileno())]
        pipe = subprocess.PIPE  # what children have, too: their stdout would seek if this one were a file
        process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, pass_fds=[listener.fileno()])
    atexit.register(_end, process, Path(path))
    return path


def _end(zygote: subprocess.Popen[bytes], path: Path) -> None:
    with zygote:
        assert zygote.stdin is not None
        zygote.stdin.close()
        try:
            zygote.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            zygote.kill()  # it still imports, on a busy machine, and has no children yet
    shutil.rmtree(path.parent)


# ── the zygote ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Order(NamedTuple):
    module: str
    argv: list[str]
    cwd: str
    env: dict[str, str]


def serve(descriptor: int) -> Order | None:
    """Fork a child for each order. Returns in the child, with its order; in the zygote when the tests are over."""
    parent = os.getpid()
    children: dict[int, socket.socket] = {}
    ended, wakeup = socket.socketpair()
    with socket.socket(fileno=descriptor) as listener, selectors.DefaultSelector() as selector, ended, wakeup:
        for end in (ended, wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for stream in (sys.stdin.buffer, listener, ended):
            selector.register(stream, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin.buffer in ready:
                return None
            if ended in ready:
                ended.recv(4096)
                _reap(children)
            if listener in ready:
                connection, _ = listener.accept()
                streams, line = _received(connection)
                if not line.endswith(b"\n"):
                    for number in (*streams, connection.detach()):
                        os.close(number)
                    continue
                order = Order(**json.loads(line))
                pid = os.fork()
                if pid == 0:
                    _become(parent, streams, [connection, *children.values()])
                    return order
                for stream in streams:
                    os.close(stream)
                children[pid] = connection
                _send(connection, pid.to_bytes(PID_BYTES))


def _received(connection: socket.socket) -> tuple[list[int], bytes]:
    """The streams and the line of an order. The line is cut if the process that sent it has ended meanwhile."""
    try:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        return streams, connection.makefile("rb").readline()
    except ConnectionError:
        return [], b""


def _send(connection: socket.socket, data: bytes) -> None:
    """Sends to the process that has ordered the child. That one may have ended, and the zygote is there for others."""
    with suppress(ConnectionError):
        connection.sendall(data)


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as connection:
            _send(connection, str(os.waitstatus_to_exitcode(status)).encode())


def _become(parent: int, streams: list[int], others: list[socket.socket]) -> None:
    """Make the child a process of its own: nothing of the zygote is open, no signal is handled."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for connection in others:
        connection.close()


def obey(order: Order) -> None:
    """Run the module as `python -m` does, in this process."""
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    sys.path[0] = order.cwd
    paths = filter(None, order.env.get("PYTHONPATH", "").split(os.pathsep))
    if others := [path for path in paths if path not in sys.path]:
        sys.path[1:1] = others
        importlib.import_module("core.plugins").plugins.cache_clear()  # other packages may be there
    sys.argv = [order.module, *order.argv]
    if order.env.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def preload() -> None:
    """Import the product, and what its first run loads."""
    collector.relax()
    for name in ("actors", "adapters", "channels", "core"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__") and not module.name.startswith("adapters.documents."):
                importlib.import_module(module.name)
    toolset = importlib.import_module("tests.support.toolset")
    toolset.share()
    toolset.fill()
    _rehearse()
    collector.settle()
    assert threading.active_count() == 1, "a forked child has only the thread that forked it"


_ONE_MODEL = "models: [{name: m, model: m, base_url: http://127.0.0.1:9/v1, api_key: none}]"


def _rehearse() -> None:
    """Do once what each command does at its start, for what that leaves in caches."""
    from actors.wiring import compose, names
    from adapters.sandboxes.confine import toolkit
    from channels.cli import parser
    from core.config import load
    from core.config.in_force import keys_in_force
    from core.events import Event
    from core.plugins import ACTORS, plugins
    from tests.support import routes

    importlib.import_module("anyio._backends._asyncio")
    parser()
    plugins(ACTORS)
    config = load.parse(_ONE_MODEL)
    assert compose.problems(config) == []  # imports what builds models
    names.remarks(config, ROOT)
    keys_in_force(config, {})
    toolkit.edition()
    routes.share()
    routes.fill()
    for event in Event.__subclasses__():
        msgspec.json.Decoder(event)


def _exit_code(order: Order) -> int:
    """Obeys, and returns the exit code. The interpreter is not taken down: that takes a quarter of a second."""
    try:
        obey(order)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    preload()
    if order := serve(int(sys.argv[1])):
        code = _exit_code(order)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
