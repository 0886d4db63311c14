"""Other agents on this machine: a process for each call, and a record of how it ended."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from anyio import CancelScope, to_thread

from adapters.sandboxes.files.operations import Files
from adapters.sandboxes.process import quota
from adapters.sandboxes.process.supervisor import publish
from adapters.sandboxes.process.usage import Growth
from core.actor import Progress
from core.bus.peers import Peers, name_of
from core.config.acp import AcpAgent
from core.errors import Invalid, Unavailable
from core.files.paths import ACP, Mount, Tree, make_thread, thread_root
from core.ports.agents import Permission, Report, Work

if TYPE_CHECKING:
    from adapters.acp.session import Session

log = structlog.get_logger("sika.acp")

MOST_SESSIONS = 32
"""Limit of agents that work at once for this process."""
STOP_SECONDS = 8.0
"""Time to end after a cancellation."""
WATCH_SECONDS = 1.0
"""Interval at which it is looked whether the disk has changed."""
MAX_FILE_MB = 64
UNKNOWN = (
    "The outcome of this call is unknown: the server stopped while the agent worked. It was not repeated. Look at its "
    "files under /mnt/acp-workspace before you call it again."
)
OTHERS = "the agent works on this call in another process of the server, which does not answer"


class Entry(msgspec.Struct, frozen=True):
    """`acp/<call>.json`: the prompt's report, None while there is none."""

    agent: str
    report: Report | None = None


@dataclass(slots=True)
class _Live:
    session: Session
    task: asyncio.Task[None]


_open: set[asyncio.Task[None]] = set()
"""The sessions of this process, for its end."""


async def close() -> None:
    """Ends all sessions of this process."""
    tasks = set(_open)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class LocalAgents:
    """Implements `OtherAgents`. `provider` confines those that are not trusted; `peers` reaches the sessions of other
    processes; None: there are none. `limits` are those of the files of threads and users, in which theirs count.
    """

    def __init__(
        self, home: Path, provider: object, peers: Peers | None = None, limits: quota.Quota = quota.UNLIMITED
    ) -> None:
        self._home, self._provider, self._peers, self._limits = home, provider, peers, limits
        self._live: dict[tuple[str, str, str], _Live] = {}
        self._starting = asyncio.Lock()

    async def advance(
        self,
        work: Work,
        settings: AcpAgent,
        decisions: Mapping[str, bool],
        progress: Callable[[str], Awaitable[None]],
    ) -> Permission | Report:
        async with self._starting:
            live = self._live.get(_key(work))
            if live is None:
                begun = await self._begin(work, settings)
                if isinstance(begun, Report):
                    return begun
                live = begun
        if live is None:
            return await self._elsewhere(work, decisions, progress)
        return await self._next(live, decisions, progress)

    async def _elsewhere(
        self, work: Work, decisions: Mapping[str, bool], progress: Callable[[str], Awaitable[None]]
    ) -> Permission | Report:
        """Has the process that holds the session go on with it. Raises `Unavailable` if it does not answer."""
        if self._peers is None:
            raise Unavailable(OTHERS)
        try:
            response = await self._peers.ask(_name(*_key(work)), {"decisions": decisions}, progress)
        except Unavailable as error:
            raise Unavailable(OTHERS) from error
        kind: type[Permission | Report] = Permission if "id" in response else Report
        return msgspec.convert(response, kind)

    async def _next(
        self, live: _Live, decisions: Mapping[str, bool], progress: Callable[[str], Awaitable[None]]
    ) -> Permission | Report:
        for permission, granted in decisions.items():
            live.session.decide(permission, granted)
        answer = await live.session.advance(progress)
        if isinstance(answer, Report):
            await asyncio.wait([live.task])  # then it is recorded
        return answer

    async def stop(self, user: str, thread: str, key: str) -> None:
        live = self._live.get((user, thread, key))
        if live is not None:
            return await self._stop(live)
        if self._peers is None:
            return
        with suppress(Unavailable):
            await self._peers.ask(_name(user, thread, key), {"stop": True})

    async def _stop(self, live: _Live) -> None:
        await live.session.stop()
        await asyncio.wait([live.task], timeout=STOP_SECONDS)
        live.task.cancel()
        await asyncio.wait([live.task])

    async def _begin(self, work: Work, settings: AcpAgent) -> _Live | Report | None:
        """Starts the work; or returns its report, if it was begun before and cannot be repeated. None: another process
        is at work on it.
        """
        from adapters.acp.process import AgentProcess
        from adapters.acp.session import Session

        if len(self._live) >= MOST_SESSIONS:
            raise Unavailable(f"{MOST_SESSIONS} other agents are at work; try again later")
        root = thread_root(self._home, work.user, work.thread)
        try:
            record = await to_thread.run_sync(Record.open, root, work.key)
        except Unavailable:
            return None
        try:
            entry = record.entry()
            if entry is not None and entry.report is not None:
                record.close()
                return entry.report
            if entry is not None and settings.effect == "once":
                report = Report(text=UNKNOWN, failed=True)
                await to_thread.run_sync(record.write, Entry(work.agent, report))
                record.close()
                return report
            directory = Mount(root / "acp-workspace", ACP, writable=True)
            await to_thread.run_sync(record.write, Entry(work.agent))
            try:
                process = await AgentProcess.start(work.agent, settings, directory, self._provider)
            except (Invalid, OSError) as error:
                report = Report(text=f"The agent {work.agent} cannot be started: {error}", failed=True)
                await to_thread.run_sync(record.write, Entry(work.agent, report))
                record.close()
                return report
        except BaseException:
            record.close()
            raise
        files = Files(root, Tree([Mount(directory.host.resolve(), ACP, writable=True)]), MAX_FILE_MB, self._limits)
        cwd = str(directory.host) if settings.trusted else ACP
        session = Session(work.agent, settings, process, files, cwd, work)
        task = asyncio.create_task(self._work(work, session, record), name=f"acp {work.agent}")
        _open.add(task)
        task.add_done_callback(_open.discard)
        live = self._live[_key(work)] = _Live(session, task)
        serving = asyncio.create_task(self._serve(_key(work), live), name=f"acp {work.agent} for others")
        _open.add(serving)
        serving.add_done_callback(_open.discard)
        return live

    async def _serve(self, key: tuple[str, str, str], live: _Live) -> None:
        """Answers the other processes about a session of this one."""
        if self._peers is not None:
            await self._peers.serve(_name(*key), partial(self._answer, live), lambda: asyncio.wait([live.task]))

    async def _answer(self, live: _Live, request: Mapping[str, Any], progress: Progress) -> Any:
        if request.get("stop"):
            return await self._stop(live)
        return await self._next(live, request["decisions"], progress)

    async def _work(self, work: Work, session: Session, record: Record) -> None:
        watch = asyncio.create_task(self._watch(work, session), name=f"files of acp {work.agent}")
        try:
            await session.work(work.prompt)
        finally:
            watch.cancel()
            await asyncio.wait([watch])
            stopped = asyncio.current_task()
            cut_off = stopped is not None and stopped.cancelling()
            if not cut_off and session.report is not None:
                await to_thread.run_sync(record.write, Entry(work.agent, session.report))
            record.close()
            self._live.pop(_key(work), None)

    async def _watch(self, work: Work, session: Session) -> None:
        """Ends the agent when the files of the thread exceed a limit: it writes without asking, too."""
        if not any(self._limits.values()):
            return
        root = str(thread_root(self._home, work.user, work.thread))
        try:
            growth = await to_thread.run_sync(Growth, root, self._limits)
            try:
                while True:
                    if (reason := await to_thread.run_sync(growth.excess)) is not None:
                        return await session.end(reason)
                    await asyncio.sleep(WATCH_SECONDS)
            finally:
                with CancelScope(shield=True):
                    await to_thread.run_sync(growth.finish)
        except OSError as error:  # the thread is being erased
            log.info("files of an agent are not counted", agent=work.agent, error=str(error))


def _name(user: str, thread: str, key: str) -> str:
    return name_of("acp", user, thread, key)


def _key(work: Work) -> tuple[str, str, str]:
    return work.user, work.thread, work.key


class Record:
    """The record of a call, locked while its agent works. The methods block."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path, self._lock = path, lock

    @classmethod
    def open(cls, root: Path, key: str) -> Record:
        """Locks the record. Raises `Unavailable` if another process has it."""
        make_thread(root)
        (root / "acp-workspace").mkdir(exist_ok=True)
        folder = root / "acp"
        folder.mkdir(exist_ok=True)
        path = folder / hashlib.sha256(key.encode()).hexdigest()[:32]
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Unavailable(OTHERS) from None
        return cls(path.with_suffix(".json"), lock)

    def entry(self) -> Entry | None:
        with suppress(FileNotFoundError):
            return msgspec.json.decode(self._path.read_bytes(), type=Entry)
        return None

    def write(self, entry: Entry) -> None:
        publish(self._path, msgspec.json.encode(entry))

    def close(self) -> None:
        os.close(self._lock)
