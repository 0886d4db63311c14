"""The record of each call: it makes a command run once, whichever process dies meanwhile.

Theory of operation
===================

The question after a crash is always "did it run, and how did it end?". Only something that outlives the server can
answer, so a call has a directory (`<thread>/calls/<call id>/`) and its command has a *supervisor* (`supervisor.py`): a
small process in a session of its own that survives `kill -9` of the server. It is forked by a template process, which
ends with the server (`template.py`).

    lock          flock(LOCK_EX), taken by the server, inherited by the supervisor, never by the command
    command.json  the command, its start time and its timeout
    pid           the supervisor lives; written durably *before* the command starts
    stdout stderr head and tail of the output
    note          what the thread's machine had lost before (`machine.py`)
    exit          the outcome; written once, durably, after the last process of the tree is dead

The lock is the liveness. It belongs to the open file, so it is free exactly when no process holds it: no heartbeat to
time out, no pid that can be reused, nothing left over after a reboot. The holder of the lock reads the state, which
cannot change then:

    exit                      ended: that is the outcome, for ever
    lock held                 running (or about to): wait
    lock free, no pid         never started: start it now
    lock free, pid, no exit   the supervisor died and the command with it: `interrupted`, written to `exit`

Two servers with the same call id (a zombie and its successor) meet at the lock; the loser waits like any other caller.
The supervisor gets its orders by a pipe and not from a file (they hold the environment, which may be secret). If the
server dies before it has written all of them, the supervisor ends before writing `pid`: never started. A request that
is on its way to the template holds the lock, too.

By another pipe (*news*) the supervisor tells the server of output and of the end, so that the server need not poll. A
server that did not start the command has no such pipe, and polls.

Ends. By timeout: the supervisor has its own clock, so an orphaned command is stopped, too, and callers need not carry a
deadline over. By a person: `kill` sends SIGTERM to the supervisor, which records it, so a killed call never starts
later. Not by cancellation of `exec`: a server that shuts down cancels it, and the command must survive. The whole tree
ends: the supervisor is a child subreaper, so daemons that fork twice become its children, and it kills until it has
none; bubblewrap adds the pid namespace. If the supervisor itself is killed, bubblewrap dies with it
(--die-with-parent). On the host the direct child does (PDEATHSIG), and the others are recognised when the call is
settled: by their control group, and by the mark `SIKA_CALL` in their environment.

Rejected: waiting on the process from the server (its outcome dies with the server); a pid file alone (reuse); a `sh`
supervisor (no subreaper, no bounded output, rlimits that differ by shell); a daemon holding all commands (one more
thing to supervise).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import marshal
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from adapters.sandboxes.process import cgroups, processes
from adapters.sandboxes.process.job import Job
from adapters.sandboxes.process.machine import Machine
from adapters.sandboxes.process.rolling import rolled
from adapters.sandboxes.process.spare import Spares
from adapters.sandboxes.process.supervisor import CALL, publish
from adapters.sandboxes.process.tail import Tail
from adapters.sandboxes.process.template import template
from core.config.redaction import redactor
from core.errors import Invalid, NotFound, Unavailable
from core.ports.sandbox import ExecResult, Output

NEVER_STARTED = 60.0
"""Seconds after which a command that was not started is not waited for."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at a command in the background that somebody waits for."""
MAX_COMMAND = 100_000
"""Limit of bytes of a command: below MAX_ARG_STRLEN (128 KiB on Linux), with space for the words around it."""
KEEP = 7 * 24 * 3600
"""Seconds until a record is deleted. A run that is resumed later was settled otherwise."""
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.1
"""Seconds between two polls of a running command: short commands return at once, long ones cost little."""
STARTS = 3
"""Starts of a command that never began, as when the template dies with the request."""
START_SECONDS = 60.0
"""Time for the template to fork a supervisor; then another template is tried."""
ORDERS_BYTES = 1 << 18
"""Size of the pipe for the orders, so that writing them does not wait for the supervisor."""
PATIENCE = 5.0
"""Seconds for a supervisor to end its tree before it is killed itself."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


class Command(msgspec.Struct, frozen=True):
    """`command.json`: for people, and to notice a call id that is used for two commands."""

    command: str
    started_at: float
    timeout: float


class Exit(msgspec.Struct, frozen=True):
    ended: str
    exit_code: int | None = None


class Record:
    """A call's directory. The methods block; run them in a thread."""

    def __init__(self, path: Path, spares: Spares | None = None, machine: Machine | None = None) -> None:
        self.path, self._spares, self._machine = path, spares, machine
        self.news: int | None = None
        """The pipe from the supervisor, if this object started it: readable with each output, closed at the end."""
        self._starts, self._started = 0, 0.0

    def outcome(self) -> ExecResult | None:
        try:
            end = msgspec.json.decode((self.path / "exit").read_bytes(), type=Exit)
        except FileNotFoundError:
            return None
        return ExecResult(
            stdout=self._text("stdout"),
            stderr=self._text("stderr"),
            exit_code=end.exit_code,
            ended=end.ended,
            note=self._text("note"),
        )

    def advance(self, command: str, job: Job) -> ExecResult | None:
        """Starts a command that was never started, settles a dead one. Returns the outcome, None while it runs."""
        if (result := self.outcome()) is not None:
            self._check(command)
            return result
        with self.locked() as lock:
            if lock is None:
                self._hurry()
                return None
            self._check(command)
            if (result := self.outcome()) is not None:
                return result
            if (self.path / "pid").exists():
                return self._settle()
            if self._starts == STARTS:
                raise Unavailable(f"the command could not be started; see {self.path.name}/log in the thread's calls")
            self._starts, self._started = self._starts + 1, time.monotonic()
            self.close()
            self._start(command, job, lock)
            return None

    def _hurry(self) -> None:
        """Ends a template that has not forked the supervisor in time: its request, and the lock in it, go with it."""
        late = self.news is not None and time.monotonic() - self._started > START_SECONDS
        if late and not (self.path / "pid").exists():
            self._started = time.monotonic()
            template.end()

    def stop(self, number: signal.Signals) -> bool:
        """Ends the call for ever. Returns False if it was only signalled so far: call again."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.locked() as lock:
            if lock is None:
                with contextlib.suppress(OSError, ValueError):
                    # The lock is held, so the supervisor lives and the pid is its own.
                    os.kill(int((self.path / "pid").read_text()), number)
                return False
            if self.outcome() is None:
                self._settle()
            return True

    def launched(self, command: str, job: Job) -> bool:
        """Starts a command that was never started. Returns whether its supervisor is at work, or has been."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.advance(command, job) is not None or (self.path / "pid").exists()

    def output(self, after: int) -> Output:
        """Returns the output of a command in the background. Raises `NotFound` if it was never started."""
        if not (self.path / "pid").exists() and self.outcome() is None:
            raise NotFound(f"there is no command {self.path.name}")
        result = self._over()  # before its output is read, which is complete then
        return rolled(self.path / "stdout", after, result)

    def state(self) -> tuple[bool, bool]:
        """Returns whether the command was started, and whether it is over."""
        started = (self.path / "pid").exists()
        return started, self.outcome() is not None or (started and self._over() is not None)

    def _over(self) -> ExecResult | None:
        """Returns the outcome; settles a command whose supervisor has died."""
        if (result := self.outcome()) is not None:
            return result
        with self.locked() as lock:
            return None if lock is None else self.outcome() or self._settle()

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[int | None]:
        """Yields the lock's descriptor; without `wait`, None if another process holds it."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield fd if _lock(fd, wait) else None
        finally:
            os.close(fd)

    def _check(self, command: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if msgspec.json.decode((self.path / "command.json").read_bytes(), type=Command).command != command:
                raise Invalid("call_id: was used for another command before")

    def _settle(self) -> ExecResult:
        cgroups.end(self.mark)
        processes.end_marked(self.mark)
        publish(self.path / "exit", msgspec.json.encode(Exit("interrupted")))
        result = self.outcome()
        assert result is not None
        return result

    def _start(self, command: str, job: Job, lock: int) -> None:
        if not job.machine:
            return self._send(command, job, lock, [])
        assert self._machine is not None, "a job for a machine, and none for the thread"
        with self._machine.used() as use:
            if use.news and not job.rolling:  # the first result that the model reads says it
                publish(self.path / "note", use.news.encode())
                self._machine.forget_news()
            self._send(command, msgspec.structs.replace(job, holder=use.holder), lock, [use.fd])

    def _send(self, command: str, job: Job, lock: int, use: list[int]) -> None:
        """Has a supervisor start the command."""
        publish(self.path / "command.json", msgspec.json.encode(Command(command, time.time(), job.timeout)))
        groups = cgroups.groups(self.mark, job.max_bytes, job.max_processes)
        own = {"env": job.env | {"SIKA_CALL": self.mark}, "groups": groups, "command": command}
        orders = marshal.dumps((str(self.path), msgspec.structs.asdict(job) | own))
        orders_read, orders_write = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(PermissionError):  # the user has many pipes
                fcntl.fcntl(orders_write, fcntl.F_SETPIPE_SZ, ORDERS_BYTES)
        self.news, news_write = os.pipe()
        os.set_blocking(self.news, False)
        with open(self.path / "log", "ab") as log, open(orders_write, "wb") as pipe:
            try:
                fds = [lock, log.fileno(), orders_read, news_write, *use]
                if self._spares is None or not self._spares.send(job, fds):
                    template.request(CALL, fds)
            finally:
                os.close(orders_read)
                os.close(news_write)
            with contextlib.suppress(BrokenPipeError):
                pipe.write(orders)
                pipe.flush()
        if self._spares is not None:
            self._spares.prepare(job)

    async def changed(self, pause: float) -> None:
        """Waits for news of the command: its end at once, output for `pause` seconds. Without news, for the pause."""
        if self.news is None:
            await anyio.sleep(pause)
            return
        with anyio.move_on_after(START_SECONDS):
            await anyio.wait_readable(self.news)
        with anyio.move_on_after(pause):
            while not self._ended():
                await anyio.wait_readable(self.news)

    def _ended(self) -> bool:
        """Reads the available news. Returns True if the supervisor has closed the pipe, and closes it, too."""
        assert self.news is not None
        try:
            if os.read(self.news, 1 << 16):
                return False
        except BlockingIOError:
            return False
        self.close()
        return True

    def close(self) -> None:
        if self.news is not None:
            os.close(self.news)
            self.news = None

    @property
    def mark(self) -> str:
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:32]

    def _text(self, name: str) -> str:
        """Returns an output without the secrets in force, and stores it so."""
        place = self.path / name
        try:
            raw = place.read_bytes()
        except FileNotFoundError:
            return ""
        if (clean := redactor.data(raw)) is not raw:
            publish(place, clean)
        return clean.decode(errors="replace")


class Calls:
    """The records of a thread.

    Guarantees: a call id runs at most once, ever, and every caller gets the same outcome. Cancelling `exec` leaves the
    command running; `kill` ends it, and returns when all its processes have ended.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.spares: Spares | None = None
        """Sandboxes that wait for a call, if the provider makes any."""
        self.machine: Machine | None = None
        """The machine that the commands of the thread share, if the provider has one."""

    def record(self, call_id: str) -> Record:
        plain = _PLAIN.match(call_id)
        name = call_id if plain else hashlib.sha256(call_id.encode()).hexdigest()
        return Record(self._root / name, self.spares, self.machine)

    async def exec(self, call_id: str, command: str, job: Job, on_output: Callable[[str], None]) -> ExecResult:
        record = self._named(call_id, command)
        tail = Tail(record.path / "stdout", record.path / "stderr")

        def look() -> tuple[ExecResult | None, str]:
            record.path.mkdir(parents=True, exist_ok=True)
            return record.advance(command, job), tail.more()

        pause = FIRST_PAUSE
        try:
            while True:
                result, text = await to_thread.run_sync(look)
                if text:
                    on_output(text)
                if result is not None:
                    return result
                await record.changed(pause)
                pause = min(pause * 1.5, LAST_PAUSE)
        finally:
            record.close()

    async def start(self, call_id: str, command: str, job: Job) -> None:
        """Starts a command that runs on by itself; of a call id that was started before, nothing happens."""
        record, job = self._named(call_id, command), msgspec.structs.replace(job, rolling=True, waiting=[])
        try:
            while True:
                if await to_thread.run_sync(record.launched, command, job):
                    return
                await anyio.sleep(FIRST_PAUSE)
        finally:
            record.close()

    async def output(self, call_id: str, after: int) -> Output:
        """Returns the output of a command that was started, at most `SHOWN` bytes of it: the newest. Raises `NotFound`
        for an unknown call id.
        """
        return await to_thread.run_sync(self.record(call_id).output, after)

    async def until_ended(self, call_id: str) -> None:
        """Waits until a command in the background has ended, or was not started for `NEVER_STARTED` seconds."""
        record, since = self.record(call_id), time.monotonic()
        while True:
            started, over = await to_thread.run_sync(record.state)
            if over or (not started and time.monotonic() - since > NEVER_STARTED):
                return
            await anyio.sleep(LOOK_AGAIN)

    async def kill(self, call_id: str) -> None:
        """Ends a call. If it was not requested yet, its outcome will be `interrupted`."""
        record = self.record(call_id)
        patience = time.monotonic() + PATIENCE
        number = signal.SIGTERM
        while not await to_thread.run_sync(record.stop, number):
            await anyio.sleep(LAST_PAUSE)
            if time.monotonic() > patience:
                number = signal.SIGKILL

    def _named(self, call_id: str, command: str) -> Record:
        """Returns the record of a call. Raises `Invalid` for a command that cannot be run."""
        if "\0" in command or len(command.encode()) > MAX_COMMAND:
            raise Invalid(f"command: contains a NUL byte or is longer than {MAX_COMMAND} bytes")
        return self.record(call_id)

    def sweep(self) -> None:
        """Deletes the old records of calls that do not run."""
        if not self._root.is_dir():
            return
        oldest = time.time() - KEEP
        for path in self._root.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    with Record(path).locked() as lock:
                        if lock is not None:
                            shutil.rmtree(path)


def _lock(fd: int, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
