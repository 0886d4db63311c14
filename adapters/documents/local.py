"""Documents on this machine's disk, each converted by a confined, short-lived process (`convert.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import anyio
import msgspec
import structlog
from anyio import to_thread

from adapters.documents import convert
from adapters.sandboxes.confine import seccomp
from adapters.sandboxes.confine.confinement import binary, in_memory, kernel_files, namespaces, sealed
from core.errors import Invalid, NotFound
from core.files import encodings
from core.files.folder import Draft, Folder, Text, digest, is_text, open_plain
from core.files.paths import MAX_PART
from core.ports.documents import KINDS, UNCONFINED, WHOLE, Converted, Outcome, Rejected, Selection

log = structlog.get_logger("sika.documents")

CPU_SECONDS = 10
"""Limit of processor time; what was read by its end is the text, with a note about the rest."""
WALL_SECONDS = 120
"""Timeout of a document on a machine that is busy. A converter waits for nothing but its processor."""
MEMORY_BYTES = 512 << 20
"""Address space."""
TEXT_BYTES = 16 << 20
TEMPORARY_BYTES = 64 << 20
"""Limit of /tmp of a converter, which is memory."""
OPEN_FILES = 128
AT_ONCE = max(1, (os.cpu_count() or 2) // 2)
"""Limit of concurrent conversions: half of the processors stay free for other work."""
LINE_BYTES = 64 * 1024
_TRY_SECONDS = 15.0
_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGALRM, 128 + signal.SIGXCPU, 128 + signal.SIGALRM)
"""Return codes of a timeout; bubblewrap reports its child's signal as shells do."""
_UNSUPPORTED = "is not a document that can be converted"
_DAMAGED = "cannot be read; it is damaged, or not complete"


class LocalDocuments:
    """Guarantees: a document costs at most the limits. When `convert` returns or is cancelled, the process and its
    children have ended. The process is confined as the agent's commands are: it has no network and sees none of the
    host's files but the libraries. Where bubblewrap does not work, no document is converted, unless `unconfined`
    returns True. Non-guarantees: the kernel is shared.
    """

    def __init__(
        self,
        home: Path,
        *,
        unconfined: Callable[[], bool] = lambda: False,
        wall_seconds: int = WALL_SECONDS,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._home, self._unconfined = home, unconfined
        self._limits = {
            "AS": memory_bytes,
            "CPU": min(CPU_SECONDS, wall_seconds),
            "FSIZE": TEXT_BYTES,
            "NOFILE": OPEN_FILES,
            "WALL": wall_seconds,
        }
        self._slots = anyio.Semaphore(AT_ONCE)
        self._confined: bool | None = None

    async def convert(
        self, user: str, thread: str, name: str, own: Text | None, progress: Callable[[str], Awaitable[None]]
    ) -> Outcome:
        folder = Folder(self._home, user, thread)
        kind = KINDS.get(Path(name).suffix.lower())
        source = await to_thread.run_sync(_open, folder, name)
        try:
            sha256 = await to_thread.run_sync(digest, source)
            if kind is None:
                return Rejected(sha256, _UNSUPPORTED)
            async with self._slots:
                draft = await to_thread.run_sync(folder.draft)
                try:
                    return await self._converted(folder, draft, kind, name, own, (source, sha256), progress)
                finally:
                    draft.close()
        finally:
            os.close(source)

    async def text(
        self,
        name: str,
        content: bytes,
        progress: Callable[[str], Awaitable[None]],
        only: Selection = WHOLE,
    ) -> tuple[str, int | None]:
        with tempfile.TemporaryFile() as source:
            await to_thread.run_sync(_fill, source, content)
            return await self._text(name, source.fileno(), progress, only)

    async def read(
        self, user: str, thread: str, path: str, progress: Callable[[str], Awaitable[None]]
    ) -> tuple[str, int | None]:
        source = await to_thread.run_sync(_open_anywhere, Folder(self._home, user, thread), path)
        try:
            return await self._text(path.rpartition("/")[2], source, progress)
        finally:
            os.close(source)

    async def _text(
        self, name: str, source: int, progress: Callable[[str], Awaitable[None]], only: Selection = WHOLE
    ) -> tuple[str, int | None]:
        kind = KINDS.get(Path(name).suffix.lower())
        if kind is None:
            raise Invalid(f"{name} {_UNSUPPORTED}")
        with tempfile.TemporaryFile() as out:
            async with self._slots:
                report = await self._run(kind, source, out.fileno(), name, progress, only)
            if report.converted is None:
                raise Invalid(f"{name} {report.rejected or _DAMAGED}")
            return await to_thread.run_sync(_text, out), report.converted.pages

    async def discard(self, user: str, thread: str, text: Text) -> None:
        await to_thread.run_sync(Folder(self._home, user, thread).remove_text, text)

    async def _converted(
        self,
        folder: Folder,
        draft: Draft,
        kind: str,
        name: str,
        own: Text | None,
        source: tuple[int, str],
        progress: Callable[[str], Awaitable[None]],
    ) -> Outcome:
        report = await self._run(kind, source[0], draft.fd, name, progress)
        if report.converted is None:
            return Rejected(source[1], report.rejected or _DAMAGED)
        text = await to_thread.run_sync(_publish, folder, draft, name, own)
        return Converted(source[1], text, report.converted.pages)

    async def _run(
        self,
        kind: str,
        source: int,
        out: int,
        name: str,
        progress: Callable[[str], Awaitable[None]],
        only: Selection = WHOLE,
    ) -> _Report:
        """Returns the last report of the process: `converted` or `rejected`."""
        if self._confined is None:
            self._confined = await to_thread.run_sync(_confinement_works)
        if not self._confined and not self._unconfined():
            return _Report(rejected=UNCONFINED)
        command, fds = await to_thread.run_sync(_confinement) if self._confined else ([], [])
        try:
            process = await asyncio.create_subprocess_exec(
                *(*command, *_python(), kind, json.dumps(self._limits), json.dumps(msgspec.to_builtins(only))),
                stdin=source,
                stdout=out,
                stderr=subprocess.PIPE,
                env=_environment(),
                cwd="/",
                start_new_session=True,
                limit=LINE_BYTES,
                pass_fds=fds,
            )
        finally:
            for fd in fds:
                os.close(fd)
        try:
            async with asyncio.timeout(self._limits["WALL"]):
                return await self._follow(process, name, progress)
        except TimeoutError:
            return _Report(rejected=f"takes longer than {self._limits['WALL']} s to be converted")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()

    async def _follow(
        self, process: asyncio.subprocess.Process, name: str, progress: Callable[[str], Awaitable[None]]
    ) -> _Report:
        assert process.stderr is not None
        last = _Report()
        with suppress(ValueError):  # a line longer than any report
            async for line in process.stderr:
                last = _report(line)
                if last.page is not None:
                    await progress(f"{name}: page {last.page} of {last.of}\n")
        if last.converted or last.rejected:
            return last
        await process.wait()
        log.info("document not converted", kind=Path(name).suffix, error=last.failed, code=process.returncode)
        if process.returncode in _OUT_OF_TIME:
            return _Report(rejected=f"takes longer than {self._limits['CPU']} s to be converted")
        return _Report(rejected=_DAMAGED)


def _fill(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    file.seek(0)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(TEXT_BYTES).decode("utf-8", "replace")


def _open_anywhere(folder: Folder, path: str) -> int:
    try:
        with folder.tree().open(path) as opened:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise Invalid(f"{path}: is not a file")
            return os.dup(opened)
    except OSError as error:
        raise NotFound(f"{path}: {os.strerror(error.errno or 0).lower()}") from None


def _open(folder: Folder, name: str) -> int:
    with folder.open("uploads") as directory:
        return open_plain(directory, name)


def _publish(folder: Folder, draft: Draft, name: str, own: Text | None) -> Text:
    """Puts the text beside the file: in the place of its last conversion, else under the first free name.

    A file with the same content is taken for this conversion: a crash came before the event.
    """
    draft.seal()
    sha256 = digest(draft.fd)
    with folder.open("uploads") as directory:
        if own is not None:
            with folder.exclusive(), suppress(Invalid):
                if is_text(directory, own):
                    draft.publish(directory, own.name)
                    return Text(own.name, sha256)
        number = 0
        while True:
            text = Text(_markdown(Path(name).stem, number), sha256)
            if draft.publish_new(directory, text.name) or is_text(directory, text):
                return text
            number += 1


def _markdown(stem: str, number: int) -> str:
    """Returns a name for the text, no longer than names of files may be."""
    ending = f"_{number}.md" if number else ".md"
    return os.fsencode(stem)[: MAX_PART - len(ending)].decode(errors="ignore") + ending


class _Conversion(msgspec.Struct):
    pages: int | None


class _Report(msgspec.Struct):
    """A report of the process: see `convert.py`."""

    page: int | None = None
    of: int | None = None
    converted: _Conversion | None = None
    rejected: str | None = None
    failed: str | None = None


def _report(line: bytes) -> _Report:
    try:
        return msgspec.json.decode(line, type=_Report)
    except msgspec.DecodeError:
        return _Report(failed=line.decode(errors="replace").strip())


# ── the process ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _python() -> list[str]:
    return [sys.executable, "-I", convert.__file__]


def _environment() -> dict[str, str]:
    """Returns the environment, without the server's. One thread, as each reserves a share of the address space."""
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": "/tmp", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _confinement() -> tuple[list[str], list[int]]:
    """Returns the bubblewrap command around the process, and the descriptors it reads."""
    command = [binary() or "bwrap", *namespaces(network=False)]
    for name, value in _environment().items():
        command += ["--setenv", name, value]
    command += kernel_files(temporary_bytes=TEMPORARY_BYTES)
    command += ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for top in ("bin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{top}"):
            command += ["--symlink", os.readlink(f"/{top}"), f"/{top}"]
        else:
            command += ["--ro-bind-try", f"/{top}", f"/{top}"]
    for path in _libraries():
        command += ["--ro-bind", path, path]
    command += ["--chdir", "/tmp", *sealed()]
    fds = [in_memory(seccomp.program())] if seccomp.available() else []
    for fd in fds:
        command += ["--seccomp", str(fd)]
    return command, fds


def _libraries() -> list[str]:
    """Returns the directories of Python, its packages and the readers outside of /usr."""
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    paths |= {os.path.dirname(os.path.realpath(sys.executable)), os.path.dirname(os.path.abspath(convert.__file__))}
    paths.add(os.path.abspath(encodings.__file__))
    outside = sorted(path for path in paths if path != "/" and not Path(path).is_relative_to("/usr"))
    return [
        path for path in outside if not any(path != other and Path(path).is_relative_to(other) for other in outside)
    ]


def _confinement_works() -> bool:
    if sys.platform != "linux" or binary() is None:
        log.warning("documents are not confined: there is no bubblewrap")
        return False
    sandbox, fds = _confinement()
    try:
        command = [*sandbox, sys.executable, "-I", "-c", ""]
        process = subprocess.run(
            command, env=_environment(), capture_output=True, timeout=_TRY_SECONDS, check=False, pass_fds=fds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("documents are not confined: bubblewrap does not work", reason=str(error)[:300])
        return False
    finally:
        for fd in fds:
            os.close(fd)
    if process.returncode:
        reason = process.stderr.decode(errors="replace")[:300]
        log.warning("documents are not confined: bubblewrap does not work", reason=reason)
    return process.returncode == 0
