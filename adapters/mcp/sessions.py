"""MCP sessions, each in a process of its own (`adapters.mcp.host`); see `core.ports.mcp`."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import mimetypes
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio
import msgspec
import structlog
from anyio import to_thread

from adapters.mcp import nursery
from core import pipes
from core.config.mcp import Mcp, McpServer
from core.config.redaction import redactor
from core.errors import Invalid, SikaError, Unavailable
from core.files.folder import Folder
from core.files.paths import WORKSPACE, owner_within, thread_root
from core.mcp.challenge import lacking
from core.mcp.grants import EVERYBODY
from core.ports.mcp import Broken, Caller, OnChange, OnProgress, Place
from core.ports.mcp_frames import NOT_ACCEPTED, NOT_REACHED, Ask, Command, Reply, Setup, framed, length_of
from core.ports.sandbox import Enclosed

log = structlog.get_logger("sika.mcp")

END_SECONDS = 6.0
"""Time for a session to end by itself: longer than the server has for it."""
CHANGE_PAUSES = (0.5, 2.0, 10.0, 60.0)
"""Seconds in which changes of a server's lists are one change. They grow, as some servers answer each list with one."""
QUIET_SECONDS = 120.0
"""Seconds without a change after which they begin again."""
PAUSES = (0.0, 1.0, 5.0, 15.0, 60.0)
"""Seconds between starts of a server that fails to start."""
NOT_TAKEN = (NOT_ACCEPTED, NOT_REACHED)
"""Beginnings of the reasons for which a server over HTTP has not taken a request."""
LOGGED_BYTES = 128 << 10
"""Bytes of a session's stderr that are logged; more is read and dropped."""
FOLDER = f"{WORKSPACE}/.mcp"
UNAUTHORIZED = "401 Unauthorized"
"""Text of the HTTP client's error."""


class Access(Protocol):
    """The access of users to servers; see `core.mcp.authorisation`."""

    async def bearer(
        self, server: str, user: str, *, rejected: Mapping[str, str] | None = None
    ) -> Mapping[str, str]: ...

    async def lacks(self, server: str, user: str, scope: str) -> SikaError: ...


Changed = Callable[[Place], None]


Confine = Callable[[Sequence[str], Mapping[str, str], Place], Awaitable[Enclosed]]
"""Returns a command for the sandbox. Raises `Invalid` where there is none."""


class _Open(NamedTuple):
    """A command that waits for its reply."""

    reply: asyncio.Future[Reply]
    progress: OnProgress
    caller: Caller | None


class _Session:
    """One session and its process. `run` owns it."""

    def __init__(self, child: nursery.Child, place: Place, server: McpServer, changed: Changed) -> None:
        self._child, self.place, self.server = child, place, server
        self.used_at = anyio.current_time()
        self.changes, self.changed_at = 0, 0.0
        """Changes of its lists in a row, and the time of the last one."""
        self.reason = ""
        self.ended = asyncio.Event()
        self._changed = changed
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open: dict[int, _Open] = {}
        self._questions: dict[int, anyio.CancelScope] = {}
        """Requests of the server that are being answered."""
        self._numbers = itertools.count(1)
        self._gone = asyncio.Event()
        self._closed = False
        self.bearer: Mapping[str, str] = {}
        self._stopping = asyncio.Event()
        self._starting = True
        """True until whoever started it can use it."""

    @property
    def running(self) -> bool:
        return not (self._closed or self.ended.is_set() or self._stopping.is_set())

    @property
    def idle(self) -> bool:
        return not (self._open or self._starting)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, setup: Setup) -> None:
        """Runs the process until it ends, is stopped or is cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                tasks = self._tasks
                tasks.start_soon(self._drain, self._child)
                tasks.start_soon(self._close_when_stopped, self._child)
                await self._write(framed(setup))
                await self._read(self._child)
                tasks.cancel_scope.cancel()
        except Exception as error:
            self.reason = self.reason or f"{type(error).__name__}: {error}"
            log.warning("MCP session failed", server=self.place.server, exc_info=True)
        finally:
            self._end()
            with anyio.CancelScope(shield=True):
                await self._kill()

    async def ready(self, seconds: float) -> None:
        """Waits until the server has answered. Raises `Broken`."""
        try:
            await asyncio.wait([self._ready], timeout=seconds)
        finally:
            self._starting = False
        if not self._ready.done():
            self.reason = f"it did not start within {seconds:g} s"
            self.stop()
        if self.reason or self._ready.cancelled():
            raise Broken(f"{self.place.server}: {self.reason or 'it was stopped'}")

    async def send(self, command: Command, progress: OnProgress, caller: Caller | None) -> Reply:
        number = next(self._numbers)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[number] = _Open(reply, progress, caller)
        try:
            if self.ended.is_set():
                return Reply(kind="gone", text=self.reason)
            await self._write(framed(msgspec.structs.replace(command, id=number)))
            return await self._with_reason(await reply)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._write(framed(Command(id=number, op="cancel")))
            raise
        finally:
            self._open.pop(number, None)
            self.used_at = anyio.current_time()

    async def _with_reason(self, reply: Reply) -> Reply:
        """Returns a reply, with the reason where the session is over."""
        if reply.kind != "closed":
            return reply
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.ended.wait()
        self.stop()
        return Reply(kind=self._kind, text=self.reason or reply.text)

    async def _write(self, frame: bytes) -> None:
        with suppress(ConnectionError):
            await pipes.send(self._child.stdin, frame)

    async def _read(self, child: nursery.Child) -> None:
        try:
            while True:
                body = await child.stdout.readexactly(length_of(await child.stdout.readexactly(4)))
                await self._take(msgspec.msgpack.decode(body, type=Reply))
        except asyncio.IncompleteReadError:
            self._gone.set()

    async def _take(self, reply: Reply) -> None:
        if not reply.id:
            match reply.kind:
                case "ready" if not self._ready.done():
                    self._ready.set_result(None)
                case "changed":
                    self._changed(self.place)
                case "asks" if reply.ask is not None and not self.ended.is_set():
                    self._tasks.start_soon(self._answer, reply.ask)
                case "withdrawn" if reply.ask is not None and reply.ask.number in self._questions:
                    self._questions[reply.ask.number].cancel()
                case "ended":
                    self.reason = self.reason or redactor.text(reply.text)
                    self._end()
                    self.stop()
            return
        known = self._open.get(reply.id)
        if known is None:
            return
        if reply.kind == "progress":
            await known.progress(f"{redactor.text(reply.text)}\n")
        elif not known.reply.done():
            known.reply.set_result(reply)

    async def _answer(self, ask: Ask) -> None:
        """Has a request of the server answered by an open call, and by another one if that ends meanwhile."""
        answer: Mapping[str, Any] | None = None
        with anyio.CancelScope() as scope:
            self._questions[ask.number] = scope
            try:
                ended = list[Caller]()
                while answer is None and (caller := self._caller(ended)) is not None:
                    answer = await caller.answer(ask)
                    ended.append(caller)
            finally:
                self._questions.pop(ask.number, None)
            if answer is None:
                log.info("MCP server asked outside of a call", server=self.place.server, kind=ask.kind)
                answer = {"error": "no call of one conversation is open, so nobody can be asked"}
            await self._write(framed(Command(id=ask.number, op="answer", arguments=answer)))

    def _caller(self, ended: Sequence[Caller]) -> Caller | None:
        """Returns the newest caller if all open calls have one place; `ended` are none any more."""
        open_ = (known.caller for known in self._open.values() if not known.reply.done())
        callers = [caller for caller in open_ if caller is not None and caller not in ended]
        return callers[-1] if len({caller.place for caller in callers}) == 1 else None

    def _end(self) -> None:
        """States the end to all who wait."""
        self.ended.set()
        self.reason = self.reason or "its process ended"
        if not self._ready.done():
            self._ready.cancel()
        for known in self._open.values():
            if not known.reply.done():
                known.reply.set_result(Reply(kind=self._kind, text=self.reason))

    @property
    def _kind(self) -> str:
        """Returns how open commands ended with the session: `gone` where the request was refused or never left."""
        refused = self.server.transport != "stdio" and self.reason.startswith(NOT_TAKEN)
        return "gone" if refused else "lost"

    async def _drain(self, child: nursery.Child) -> None:
        """Logs what the server and the SDK write to stderr, without secrets. The SDK writes of each odd message."""
        left = LOGGED_BYTES
        while chunk := await child.stderr.read(1 << 14):
            shown, left = chunk[:left], max(0, left - len(chunk))
            for line in shown.decode("utf-8", "replace").splitlines():
                if line.strip():
                    log.info("MCP server", server=self.place.server, line=redactor.text(line[:500]))
            if shown and not left:
                log.warning("the rest of what an MCP session says is left out", server=self.place.server)

    async def _close_when_stopped(self, child: nursery.Child) -> None:
        await self._stopping.wait()
        child.stdin.close()
        await asyncio.sleep(END_SECONDS)
        child.kill()

    async def _kill(self) -> None:
        """Ends the process: it kills what it started when its input is closed."""
        self._child.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while not self._gone.is_set():
                    await self._read(self._child)
        if not self._gone.is_set():
            self._child.kill()
        self._child.close()
        await asyncio.sleep(0)  # in which the transports close their files
        await asyncio.sleep(0)


class Sessions:
    """Implements `core.ports.mcp.McpSessions`; `opened` runs it."""

    def __init__(
        self, home: Path, settings: Callable[[], Mcp], confine: Confine, tasks: anyio.abc.TaskGroup, access: Access
    ) -> None:
        self._home, self._settings, self._confine, self._tasks = home, settings, confine, tasks
        self._access = access
        self._sessions: dict[Place, _Session] = {}
        self._starting: dict[Place, asyncio.Lock] = {}
        self._coming = 0
        """Sessions that are about to have a process."""
        self._failures: dict[str, tuple[int, float]] = {}
        """Failed starts in a row, and the time of the last one, by server."""
        self._listener: OnChange | None = None
        self._notified: set[Place] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start_soon(lambda: work)

    async def send(
        self,
        place: Place,
        server: McpServer,
        command: Command,
        progress: OnProgress,
        caller: Caller | None = None,
    ) -> Reply:
        for _ in range(2):
            session = await self._session(place, server)
            reply = await session.send(command, progress, caller)
            if reply.kind not in ("gone", "lost"):
                return reply
            if (scope := lacking(reply.text)) is not None:
                session.stop()
                raise await self._access.lacks(place.server, place.user or EVERYBODY, scope)
            if server.transport != "stdio" or reply.kind == "gone":
                session.stop()  # a session elsewhere may be half dead, and a new one costs little
            if reply.kind == "lost" and UNAUTHORIZED not in reply.text:  # a refused request had no effect
                return reply
        raise Broken(f"{place.server}: {reply.text}")

    def watch(self, listener: OnChange) -> None:
        self._listener = listener

    def _changed(self, place: Place) -> None:
        if place not in self._notified and self._listener is not None:
            self._notified.add(place)
            self._tasks.start_soon(self._notify, place, self._listener)

    async def _notify(self, place: Place, listener: OnChange) -> None:
        if (session := self._sessions.get(place)) is not None:
            now = anyio.current_time()
            session.changes = session.changes + 1 if now - session.changed_at < QUIET_SECONDS else 1
            pause = CHANGE_PAUSES[min(session.changes, len(CHANGE_PAUSES)) - 1]
            session.changed_at = now + pause
            await asyncio.sleep(pause)
        self._notified.discard(place)
        try:
            await listener(place)
        except SikaError as error:
            log.warning("MCP server not listed again", server=place.server, reason=str(error))

    async def save(self, user: str, thread: str, content: bytes, mime_type: str) -> str:
        name = file_name(content, mime_type)
        return await to_thread.run_sync(partial(_save, Folder(self._home, user, thread), name, content))

    async def stop(self, server: str | None = None) -> None:
        for place, session in list(self._sessions.items()):
            if server in (None, place.server):
                session.stop()

    async def _session(self, place: Place, server: McpServer) -> _Session:
        """Returns the running session of a place; starts one."""
        lock = self._starting.setdefault(place, asyncio.Lock())
        async with lock:
            known = self._sessions.get(place)
            bearer = await self._headers(place, server)
            if known is not None and known.running:
                if known.server == server and known.bearer == bearer:
                    known.used_at = anyio.current_time()
                    return known
                known.stop()
            try:
                return await self._start(place, server, bearer)
            except Broken as error:
                if UNAUTHORIZED not in str(error):
                    raise
                bearer = await self._headers(place, server, rejected=bearer)
                return await self._start(place, server, bearer, again=True)

    async def _headers(
        self, place: Place, server: McpServer, rejected: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """Returns the headers of a person's or the server's account. Raises what `Access` raises."""
        personal = server.oauth is None or server.oauth.grant_type == "authorization_code"
        if server.transport == "stdio" or (personal and not place.user):
            return {}
        return await self._access.bearer(place.server, place.user or EVERYBODY, rejected=rejected)

    async def _start(
        self, place: Place, server: McpServer, bearer: Mapping[str, str], *, again: bool = False
    ) -> _Session:
        if problem := server.problem:
            raise Broken(f"{place.server}: {problem}")
        count, at = self._failures.get(place.server, (0, 0.0))
        left = at + PAUSES[min(count, len(PAUSES) - 1)] - anyio.current_time()
        if count and left > 0 and not again:
            raise Broken(f"{place.server}: it failed to start {count} times; the next attempt is in {left:.0f} s")
        self._make_room()
        self._coming += 1
        try:
            try:
                setup = await self._setup(place, server, bearer)
            except SikaError as error:
                raise Broken(f"{place.server}: {error}") from error
            session = self._sessions[place] = _Session(await nursery.child(), place, server, self._changed)
        finally:
            self._coming -= 1
        session.bearer = bearer
        self._tasks.start_soon(self._run, session, setup)
        try:
            await session.ready(server.session_init_timeout + END_SECONDS)
        except Broken as error:
            if UNAUTHORIZED not in str(error):  # that is a matter of the account
                self._failures[place.server] = count + 1, anyio.current_time()
            hint = "" if server.trusted or server.transport != "stdio" else " (it runs in the sandbox: see `trusted`)"
            raise Broken(f"{error}{hint}") from None
        self._failures.pop(place.server, None)
        log.info("MCP session started", server=place.server, thread=place.thread)
        return session

    async def _run(self, session: _Session, setup: Setup) -> None:
        try:
            await session.run(setup)
        except Exception:  # the other sessions are tasks of the same group
            log.exception("MCP session failed at its end", server=session.place.server)
        log.info("MCP session ended", server=session.place.server, reason=session.reason)
        if self._sessions.get(session.place) is session:
            del self._sessions[session.place]
            if not self._starting[session.place].locked():
                del self._starting[session.place]

    def _make_room(self) -> None:
        most = self._settings().max_sessions
        running = [session for session in self._sessions.values() if session.running]
        if len(running) + self._coming < most:
            return
        idle = sorted((session for session in running if session.idle), key=lambda session: session.used_at)
        if not idle:
            raise Unavailable(f"{most} MCP sessions are in use (mcp.max_sessions); try again later")
        idle[0].stop()

    async def _setup(self, place: Place, server: McpServer, bearer: Mapping[str, str]) -> Setup:
        settings = self._settings()
        setup = Setup(
            transport=server.transport,
            server=place.server,
            start_seconds=server.session_init_timeout,
            memory_bytes=settings.memory_mb << 20,
            interceptors=settings.interceptors,
            asks=[*(["elicit"] if server.elicitation else []), *(["sample"] if server.sampling else [])],
        )
        if server.transport != "stdio":
            headers = {name: value.reveal() for name, value in server.headers.items()}
            return msgspec.structs.replace(setup, url=server.url or "", headers={**headers, **bearer})
        argv = [server.command or "", *server.args]
        env = {name: value.reveal() for name, value in server.env.items()}
        if not server.trusted:
            confined = await self._confine(argv, env, place)
            roots = [f"file://{WORKSPACE}"] if place.thread and server.roots is not False else []
            return msgspec.structs.replace(setup, argv=confined.argv, files=confined.files, roots=roots)
        roots, cwd = [], None
        if place.thread:
            folder = Folder(self._home, place.user, place.thread)
            await to_thread.run_sync(folder.make)
            cwd = str(thread_root(self._home, place.user, place.thread) / "user-data" / "workspace")
            roots = [Path(cwd).as_uri()] if server.roots else []
        return msgspec.structs.replace(setup, argv=argv, env=env, cwd=cwd, roots=roots)

    async def stop_idle(self) -> None:
        """Stops sessions that are not used, for ever."""
        while True:
            seconds = self._settings().idle_seconds
            await asyncio.sleep(min(seconds, 5))
            for session in list(self._sessions.values()):
                if session.idle and anyio.current_time() - session.used_at > seconds:
                    session.stop()


class Nobody:
    """The access of those who have none."""

    async def bearer(self, server: str, user: str, *, rejected: Mapping[str, str] | None = None) -> Mapping[str, str]:
        return {}

    async def lacks(self, server: str, user: str, scope: str) -> SikaError:
        return Invalid(f"{server}: the access lacks {scope}")


@asynccontextmanager
async def opened(
    home: Path, settings: Callable[[], Mcp], confine: Confine, access: Access | None = None
) -> AsyncIterator[Sessions]:
    """Sessions that end with the block."""
    async with anyio.create_task_group() as tasks:
        sessions = Sessions(home, settings, confine, tasks, access or Nobody())
        tasks.start_soon(sessions.stop_idle)
        try:
            yield sessions
        finally:
            tasks.cancel_scope.cancel()


def _save(folder: Folder, name: str, content: bytes) -> str:
    folder.make()
    path = f"{FOLDER}/{name}"
    tree = folder.tree()
    with tree.walk(path, create=True) as place:
        if place.fd is None:
            raise Invalid(f"{path}: cannot be written")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(place.name, flags, 0o600, dir_fd=place.fd), "wb") as file:
            if (owner := owner_within(place.fd)) is not None:
                os.fchown(file.fileno(), *owner)
            file.write(content)
    return path


def file_name(content: bytes, mime_type: str) -> str:
    """Returns a name for the file of a result: the same for the same content."""
    suffix = mimetypes.guess_extension(mime_type.partition(";")[0]) or ".bin"
    return f"{hashlib.blake2b(content, digest_size=8).hexdigest()}{suffix}"
