"""A thread's sandbox on a machine that answers by HTTP: commands by its agent, files on the server and copied."""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import secrets
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import structlog
from anyio import to_thread

from adapters.sandboxes.docker.background import Background, Egress
from adapters.sandboxes.docker.calls import Call
from adapters.sandboxes.files.operations import Files, Paths
from adapters.sandboxes.process import listening, quota
from adapters.sandboxes.process.supervisor import HEAD, TAIL
from adapters.sandboxes.remote.link import PART, Link, Look
from adapters.sandboxes.remote.mirror import Copy
from adapters.sandboxes.remote.usage import Usage
from core.errors import Unavailable
from core.files.paths import Tree
from core.ports.sandbox import Edit, ExecResult, Listing, MachineLost, Output, Query, ShellCommand

log = structlog.get_logger("sika.sandbox")
T = TypeVar("T")

AWAY_SECONDS = 60.0
"""Time for a machine that does not answer to come back. Commands run on meanwhile."""
AWAY_PAUSE = 0.5
GRACE = 30.0
"""Seconds after a command's timeout until its machine is ended, because its agent could not end the command."""
SYNC_SECONDS = 600.0
"""Timeout of a copy, and of waiting for another worker's copy of the same thread."""
CATCH_UP = 16
"""Parts of output that are fetched at once for a command in the background."""
NOWHERE = (999_999_999, 999_999_999)
"""Beyond all output: of a look at the state alone."""
RECORD_BYTES = 2 * (HEAD + TAIL) + (1 << 20)
FILES = ("stdout", "stderr", "stdout.tail", "stderr.tail", "stdout.bytes", "stderr.bytes", "reason", "ooms", "exit")
"""Files of a call's record on the machine; the last is the outcome."""


class AioSandbox(Files):
    """Guarantees: those of the port. A command runs on when the server ends, and stops at its timeout. Non-guarantees:
    a process that clears its environment runs on after its command, as long as the machine, unless that is a container
    of ours. The quota is enforced while a server waits for the command, or knows of it in the background.
    """

    def __init__(
        self,
        root: Path,
        tree: Tree,
        records: Path,
        link: Link,
        max_file_mb: int,
        limits: quota.Quota,
        environment: Mapping[str, str],
        abandon: Callable[[], Awaitable[None]],
        background: Background,
    ) -> None:
        super().__init__(root, tree, max_file_mb, limits)
        self._records, self._link, self._abandon = records, link, abandon
        self._max_file_mb, self._environment, self._limits = max_file_mb, environment, limits
        self._background = background
        self._active = records / "active"
        mounts = list(tree.mounts.values())
        self._copy = Copy(root / "user-data", records, mounts, limits["thread_files"], limits["thread_bytes"])

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        call = self._call(call_id)
        try:
            await to_thread.run_sync(call.admit, command.text)
            follow = _Follow(self, call, command)
            while True:
                state = await to_thread.run_sync(call.advance, command.text)
                if text := await to_thread.run_sync(call.more):
                    on_output(text)
                if isinstance(state, ExecResult):
                    return state
                await follow.step(state)
        finally:
            call.close()

    async def start(self, call_id: str, command: ShellCommand) -> None:
        call = self._call(call_id)
        await to_thread.run_sync(call.admit, command.text)
        follow = _Follow(self, call, command)
        while await to_thread.run_sync(call.advance, command.text) == "unsent":
            await follow.step("unsent")
        await self._hold(call_id)

    async def output(self, call_id: str, after: int = 0) -> Output:
        call = self._call(call_id)
        if await to_thread.run_sync(call.is_sent):
            if await to_thread.run_sync(call.advance) == "running":
                await self._hold(call_id)  # the server that started it may be gone
            try:
                await self._catch_up(call)
            except MachineLost:
                await to_thread.run_sync(call.settle)
            except Unavailable as error:
                log.info("a command in the background was not looked after", call=call_id, reason=str(error))
        return await to_thread.run_sync(call.output, after)

    async def ports(self, call_id: str) -> Sequence[int]:
        try:
            return listening.ports_in(await self._link.sockets(self._call(call_id).name))
        except Unavailable as error:
            log.info("the ports of a command are not known", call=call_id, reason=str(error))
            return ()

    async def kill(self, call_id: str) -> None:
        call, begun = self._call(call_id), time.monotonic()
        while await to_thread.run_sync(call.is_sent):
            if isinstance(await to_thread.run_sync(call.advance), ExecResult):
                return
            try:
                if time.monotonic() - begun > GRACE:
                    await self._abandon()
                    break
                await self.take(call, await self._link.finish(call.name))
            except MachineLost:
                break
            except Unavailable:
                if time.monotonic() - begun > AWAY_SECONDS:
                    raise
                await anyio.sleep(AWAY_PAUSE)
        await to_thread.run_sync(call.settle)

    async def _hold(self, call_id: str) -> None:
        call = self._call(call_id)
        await self._background.hold(call, Egress(None, self.root, 0), partial(self._watch, call))

    async def _watch(self, call: Call) -> None:
        """Ends a command in the background that exceeds a limit of files. Returns when it has ended, or its machine."""
        usage = self.usage()
        while await to_thread.run_sync(call.advance) == "running":
            await anyio.sleep(usage.pause())
            try:
                if (await self._link.peek(call.name, NOWHERE, rounds=0)).state != "running":
                    return
                if reason := await usage.excess(self._link):
                    await self._link.finish(call.name, "stopped", reason)
            except MachineLost:
                return
            except Unavailable as error:
                log.info("a command in the background was not looked after", call=call.name, reason=str(error))

    def usage(self) -> Usage:
        return Usage(self.root, self._records, self._limits)

    async def take(self, call: Call, look: Look) -> None:
        """Records what a look at a command has shown. Files come before the outcome, which is then for ever."""
        box = self._records / call.name
        if look.state == "running":
            await to_thread.run_sync(_append, box, look)
        if look.state != "ended":
            return
        parts = await self._record_of(look)
        if "exit" not in parts:
            return  # half written, when it was looked at
        notes = await self._pull()
        await to_thread.run_sync(_complete, box, parts, notes)
        await to_thread.run_sync((self._active / call.name).unlink, True)
        with contextlib.suppress(Unavailable):
            await self._link.ask("forget", call.name)

    async def _record_of(self, look: Look) -> Mapping[str, bytes]:
        if look.inline is not None:
            return await to_thread.run_sync(_parts, io.BytesIO(look.inline))
        self._copy.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._copy.work / f"record-{secrets.token_hex(4)}"
        try:
            await self._link.emitted([look.file], path, RECORD_BYTES)
            return await to_thread.run_sync(_parts_of, path)
        finally:
            path.unlink(missing_ok=True)

    async def _catch_up(self, call: Call) -> None:
        for _ in range(CATCH_UP):
            if isinstance(await to_thread.run_sync(call.advance), ExecResult):
                return
            look = await self._link.peek(call.name, at(self._records / call.name), rounds=0)
            await self.take(call, look)
            if look.state == "none" or (look.state == "running" and max(len(look.stdout), len(look.stderr)) < PART):
                return

    def _call(self, call_id: str) -> Call:
        return Call(self.calls.record(call_id), self._records)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, path: str) -> bytes:
        await self._refresh()
        return await super().read(path)

    async def version(self, path: str) -> str | None:
        await self._refresh()
        return await super().version(path)

    async def write(self, path: str, content: str, *, append: bool = False, call_id: str | None = None) -> None:
        await self._refresh()
        await super().write(path, content, append=append, call_id=call_id)
        await self.push(only_active=True)

    async def edit(self, edits: Sequence[Edit], *, call_id: str | None = None) -> Sequence[Sequence[int]]:
        await self._refresh()
        lines = await super().edit(edits, call_id=call_id)
        await self.push(only_active=True)
        return lines

    async def list(self, path: str) -> Listing:
        await self._refresh()
        return await super().list(path)

    async def glob(self, path: str, pattern: str, *, dirs: bool, limit: int, everything: bool = False) -> Listing:
        await self._refresh()
        return await super().glob(path, pattern, dirs=dirs, limit=limit, everything=everything)

    async def grep(self, path: str, query: Query) -> Listing:
        await self._refresh()
        return await super().grep(path, query)

    async def push(self, *, only_active: bool = False) -> None:
        """Copies what changed here to the machine; `only_active`: if commands run there, else the next one does it."""
        if only_active and not self._is_active():
            return
        async with self._synced():
            archive = await to_thread.run_sync(self._locked, self._copy.outgoing)
            if archive is None:
                return
            try:
                await self._link.upload_file(archive.name, archive)
                lines = await self._link.ask("put", archive.name, f"list-{secrets.token_hex(4)}")
                if lines[0].startswith("failed"):
                    raise Unavailable(f"the sandbox's machine could not take the thread's files: {lines[0][7:]}")
                await to_thread.run_sync(self._copy.sent, await self._view(lines))
            finally:
                archive.unlink(missing_ok=True)

    async def _refresh(self) -> None:
        """Copies what running commands have changed."""
        if self._is_active():
            for note in await self._pull():
                log.warning("files of a sandbox", note=note, root=self.root.name)

    async def _pull(self) -> Paths:
        async with self._synced():
            listing = await self._view(await self._link.ask("list", f"list-{secrets.token_hex(4)}"))
            names, notes = await to_thread.run_sync(self._copy.wanted, listing)
            archive = None
            try:
                if names:
                    key = secrets.token_hex(4)
                    await self._link.upload(f"names-{key}", names)
                    lines = await self._link.ask("take", f"names-{key}", f"take-{key}")
                    archive = self._copy.work / f"take-{key}"
                    await self._link.emitted(lines, archive, self._most())
                return notes + await to_thread.run_sync(self._locked, lambda: self._copy.received(archive))
            finally:
                if archive is not None:
                    archive.unlink(missing_ok=True)

    def _most(self) -> int:
        return 2 * self._copy._max_bytes

    async def _view(self, lines: Paths) -> bytes:
        path = self._copy.work / f"list-{secrets.token_hex(4)}"
        self._copy.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await self._link.emitted(lines, path, 256 << 20)
            return await to_thread.run_sync(path.read_bytes)
        finally:
            path.unlink(missing_ok=True)

    def _locked(self, work: Callable[[], T]) -> T:
        with self._exclusive():
            return work()

    def _is_active(self) -> bool:
        return self._active.is_dir() and bool(os.listdir(self._active))

    @asynccontextmanager
    async def _synced(self) -> AsyncIterator[None]:
        """Lets one worker copy at a time. Raises `Unavailable` after `SYNC_SECONDS`."""
        fd = os.open(self.root / "mirror.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with anyio.fail_after(SYNC_SECONDS):
                pause = 0.005
                while not _is_locked(fd):
                    await anyio.sleep(pause)
                    pause = min(pause * 1.5, 0.1)
                yield
        except TimeoutError as error:
            raise Unavailable(f"the sandbox's files could not be copied within {SYNC_SECONDS:.0f} s") from error
        finally:
            os.close(fd)


class _Follow:
    """A command on its way, and the watch over what becomes of it."""

    def __init__(self, sandbox: AioSandbox, call: Call, command: ShellCommand) -> None:
        self._sandbox, self._call, self._command = sandbox, call, command
        self._environment = {**sandbox._environment, **command.environment}
        self._begun, self._away = time.monotonic(), 0.0
        self._usage = sandbox.usage()

    async def step(self, state: str) -> None:
        """Sends the command, or looks at it. Raises `MachineLost`, unless the outcome is known, and `Unavailable` when
        the machine did not answer for too long.
        """
        try:
            if time.monotonic() - self._begun > self._command.timeout + GRACE + AWAY_SECONDS:
                await self._sandbox._abandon()
                raise MachineLost("the sandbox was ended, because a command in it could not be stopped")
            look = await self._look(state)
            await self._sandbox.take(self._call, look)
            if look.state == "running" and (reason := await self._usage.excess(self._sandbox._link)):
                await self._sandbox._link.finish(self._call.name, "stopped", reason)
            self._away = 0.0
        except MachineLost:
            if not isinstance(await to_thread.run_sync(self._call.advance), ExecResult):
                raise
        except Unavailable:
            self._away = self._away or time.monotonic()
            if time.monotonic() - self._away > AWAY_SECONDS:
                raise
            await anyio.sleep(AWAY_PAUSE)

    async def _look(self, state: str) -> Look:
        link, box = self._sandbox._link, self._sandbox._records / self._call.name
        if state != "unsent":
            look = await link.peek(self._call.name, at(box))
            if look.state != "none":
                return look
        await self._sandbox.push()
        # From here on the machine may have it: another machine must not run it again.
        await to_thread.run_sync(_prepare, box, self._sandbox._active / self._call.name)
        limit = self._sandbox._max_file_mb
        seconds = math.ceil(self._command.timeout)
        return await link.go(self._call.name, seconds, limit, self._command.text, self._environment, at(box))


def _prepare(box: Path, active: Path) -> None:
    box.mkdir(mode=0o700, parents=True, exist_ok=True)
    active.parent.mkdir(mode=0o700, exist_ok=True)
    active.touch()


def at(box: Path) -> tuple[int, int]:
    """Returns how many bytes of both streams were fetched."""
    return _size(box / "stdout"), _size(box / "stderr")


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _append(box: Path, look: Look) -> None:
    box.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, offset, data in zip(("stdout", "stderr"), look.at, (look.stdout, look.stderr), strict=True):
        _put(box / name, data, offset)


def _put(path: Path, data: bytes, offset: int = 0) -> None:
    """Writes into a file that others may have open."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def _complete(box: Path, parts: Mapping[str, bytes], notes: list[str]) -> None:
    box.mkdir(mode=0o700, parents=True, exist_ok=True)
    if notes:
        text = ("\nnote: " + "\nnote: ".join(notes[:10]) + "\n").encode()
        # Into the stream's end, wherever that is.
        key = "stderr.tail" if len(parts.get("stderr", b"")) >= HEAD else "stderr"
        size = int(parts["stderr.bytes"]) if parts.get("stderr.bytes", b"").strip().isdigit() else 0
        parts = {**parts, key: parts.get(key, b"") + text, "stderr.bytes": str(size + len(text)).encode()}
    for name in FILES:
        if name in parts:
            _put(box / name, parts[name])


def _parts_of(path: Path) -> Mapping[str, bytes]:
    with path.open("rb") as file:
        return _parts(file)


def _parts(file: object) -> Mapping[str, bytes]:
    """Returns the files of a call's record. What the machine sends is hostile: names and sizes are bounded."""
    parts, total = {}, 0
    try:
        with tarfile.open(fileobj=file, mode="r|gz") as archive:  # type: ignore[call-overload]
            for member in archive:
                name = member.name.removeprefix("./")
                total += member.size
                if total > RECORD_BYTES:
                    raise Unavailable("the sandbox's machine sends a record that is too large")
                if name in FILES and member.isreg() and (source := archive.extractfile(member)) is not None:
                    parts[name] = source.read(HEAD)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise Unavailable(f"the sandbox's machine sent a broken record: {error}") from error
    return parts


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
