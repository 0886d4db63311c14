"""Serves the sandbox tools: executes requests in the thread's sandbox, and formats results for the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from anyio import to_thread

from actors.excerpt import cut
from actors.sandbox import network, reading, reaping
from actors.sandbox.background import Background
from actors.sandbox.folders import Folders
from actors.sandbox.machines import Machines
from actors.sandbox.requests import (
    CHANNEL_USER,
    Answer,
    AnyRequest,
    Call,
    Choose,
    EditFiles,
    End,
    Exec,
    Find,
    Get,
    Glob,
    Grep,
    Kill,
    List,
    Names,
    Output,
    Put,
    Read,
    Replace,
    Start,
    Version,
    View,
    Write,
)
from actors.sandbox.streaming import streamed
from actors.sandbox.words import (
    MOST_OUTPUT,
    clamp,
    edits_made,
    entries,
    lines_found,
    outcome,
    paths_found,
)
from core.actor import Actor, Context, Progress
from core.cache import ByteCache
from core.config.load import ConfigSource
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid, Unavailable
from core.events import Aggregate, Event, ThreadErased
from core.files.paths import PROJECT, WORKSPACE
from core.files.workspace import Workspace
from core.identity.seal import Seal
from core.log.store import EventLog
from core.ports.documents import Selection, Texts
from core.ports.images import image_of, place_of
from core.ports.sandbox import Edit, ExecResult, Machine, MachineLost, Query, SandboxProvider, ShellCommand, result_path
from core.ports.sandbox import Sandbox as Port
from core.sandbox.state import leases
from core.sandbox.variables import opened
from core.skills.commands import AWAY, environment, script_of
from core.skills.library import Library
from core.thread.threads import Threads

MOST_NAMES = 1000
"""Limit of the paths that are listed for tools."""
MAX_RESULTS = 1000
"""Limit of the results of one search that are shown."""
MAX_ERROR = 2000
"""Limit of an error's text, in characters (DeerFlow's `write_file`)."""
TEXTS_BYTES = 32 << 20
"""Limit of the texts of documents that are kept for reading on."""
REPLACEMENTS = 3
"""Limit of machines that are tried for one request."""

NO_ANSWER = "the sandbox could not be started again yet: {}"
INTERRUPTED = ExecResult(stdout="", stderr="", exit_code=None, ended="interrupted")


class Sandbox(Actor[ThreadErased]):
    """The requests of a thread go to its sandbox; `machines` has them where a provider starts machines."""

    name = "sandbox"

    def __init__(
        self,
        provider: SandboxProvider,
        limits: Limits,
        config: ConfigSource | None = None,
        skills: Library | None = None,
        log: EventLog | None = None,
        threads: Threads | None = None,
        machines: Machines | None = None,
        home: Path | None = None,
        workspace: Workspace | None = None,
        documents: Texts | None = None,
    ) -> None:
        self._documents = documents
        self._texts: ByteCache[str, tuple[str, int | None]] = ByteCache(TEXTS_BYTES)
        self._provider, self._limits, self._config, self._skills = provider, limits, config, skills
        self._machines, self._threads = machines, threads
        self._leases = machines.leases if machines else leases(log) if log else None
        self._seal = Seal(home) if home else None
        self._folders: Folders | None = None
        if threads and config and home:
            self._folders = Folders(threads, provider, config, home, workspace)
        self._background = Background(self._leases, limits) if self._leases else None

    # ── events and timers ───────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, event: ThreadErased, ctx: Context) -> None:
        if self._leases is not None:
            await reaping.forget(self._leases, self._machines, event.by, ctx.record.aggregate.id)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        if self._machines is not None:
            await reaping.Reaper(self._machines).wake(aggregate, ctx)

    def ignored(self) -> Collection[type[Event]]:
        return () if self._leases is not None else (ThreadErased,)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Answer:
        parsed: AnyRequest = self.parse(request, AnyRequest)
        try:
            if isinstance(parsed, Choose):
                return await self._choose(parsed)
            if self._folders is not None and (sandbox := await self._folders.sandbox(parsed)) is not None:
                return await self._do(parsed, sandbox, None, progress)
            if self._machines is not None:
                return await self._on_machine(self._machines, parsed, progress)
            return await self._do(parsed, await self._provider.acquire(parsed.user, parsed.thread), None, progress)
        except Invalid as error:
            raise Invalid(cut(str(error), MAX_ERROR)) from error

    async def _choose(self, request: Choose) -> str:
        if self._folders is None:
            raise Invalid("folder: this server has no folders of people")
        return await self._folders.choose(request)

    async def _on_machine(self, machines: Machines, request: AnyRequest, progress: Progress) -> Answer:
        """Does a request on the thread's machine, and on another one if that is lost and it may be repeated."""
        if isinstance(request, Kill) and not await machines.there(request.user, request.thread):
            return "OK"  # what ran there has ended with the machine
        if isinstance(request, Output | End) and (words := await self._commands.gone(request)):
            return words
        for _ in range(REPLACEMENTS):
            async with machines.borrowed(request.user, request.thread) as held:
                try:
                    answer = await self._do(request, held.sandbox, held.machine, progress)
                    return _with_news(answer, held.take_news(_key_of(request))) if _is_for_model(request) else answer
                except MachineLost:
                    await machines.lost(request.user, request.thread, held.machine)
            if isinstance(request, Kill | Output | End):
                return "OK" if isinstance(request, Kill) else await self._commands.gone(request)
            if _has_begun(request):
                return await self._interrupted(machines, request)
        raise Unavailable("the machine of the sandbox is lost each time that it was started")

    async def _interrupted(self, machines: Machines, request: AnyRequest) -> Answer:
        """Returns the result of a request that was under way when its machine was lost, which is not done again."""
        try:
            async with machines.borrowed(request.user, request.thread) as held:
                news = held.take_news(_key_of(request))
        except Unavailable as error:
            news = NO_ANSWER.format(error)
        text = outcome(INTERRUPTED, 0)
        if isinstance(request, Exec):
            return {"error": f"{text}\n{news}".strip()}
        raise Invalid(f"{text}\n{news}".strip())

    @property
    def _commands(self) -> Background:
        if self._background is None:
            raise Invalid("background: this server runs no commands in the background")
        return self._background

    async def _do(self, request: AnyRequest, sandbox: Port, machine: Machine | None, progress: Progress) -> Answer:
        match request:
            case Exec():
                return await self._exec(request, sandbox, progress)
            case Start():
                command = await self._prepared(request, self._limits.background_seconds)
                return await self._commands.start(request, sandbox, machine, command)
            case Output() | End():
                return await self._of_background(request, sandbox)
            case Kill():
                await sandbox.kill(request.key)
            case Write(path=path, content=content, append=append):
                await sandbox.write(path, content, append=append, call_id=request.key)
            case Replace(path=path, old=old, new=new, every=every):
                edits = [Edit(path=path, old=old, new=new, every=every)]
                return edits_made(edits, await sandbox.edit(edits, call_id=request.key))
            case EditFiles(edits=edits):
                return edits_made(edits, await sandbox.edit(edits, call_id=request.key))
            case List(path=path):
                return entries(await sandbox.list(path), path, self._limits.ls_output_max_chars)
            case Read(path=path):
                return await self._read(request, await sandbox.read(path), progress)
            case Glob(path=path, pattern=pattern):
                limit = clamp(request.max_results, MAX_RESULTS)
                dirs, everything = request.include_dirs, request.everything
                return paths_found(
                    await sandbox.glob(path, pattern, dirs=dirs, limit=limit, everything=everything), path
                )
            case Grep(path=path):
                return await self._grep(request, sandbox)
            case View(path=path):
                place = place_of(path, await self._start_of(request))
                image = await to_thread.run_sync(image_of, place, await sandbox.read(place))
                return msgspec.structs.asdict(image)
            case Find(paths=paths):
                for path in paths:
                    if list((await sandbox.glob(path, "*", dirs=False, limit=1)).found) != [path]:
                        raise Invalid(f"{path}: is not a file")
            case Version(path=path):
                return await sandbox.version(path)
            case Get():
                return await to_thread.run_sync(_part, request, await sandbox.read(request.path))
            case Put(path=path, append=append):
                text = _bytes(request.data).decode("utf-8", "surrogateescape")  # the port writes it as it was
                await sandbox.write(path, text, append=append, call_id=request.key)
            case Names(path=path):
                listing = await sandbox.glob(path, "**/*", dirs=False, limit=MOST_NAMES, everything=True)
                return list(listing.found)
        return "OK"

    async def _start_of(self, request: AnyRequest) -> str:
        """Returns where relative paths begin."""
        attached = self._folders is not None and await self._folders.chosen(request) is not None
        return PROJECT if attached else WORKSPACE

    async def _of_background(self, request: Output | End, sandbox: Port) -> str:
        if isinstance(request, Output):
            answer = await self._commands.output(request, sandbox)
        else:
            answer = await self._commands.end(request, sandbox)
        await self._accessed(request, request.id, request.id, sandbox)
        return answer

    async def _accessed(self, request: Call, call_id: str, key: str, sandbox: Port) -> None:
        """Records where a command connected to: it has ended, or somebody looks at it."""
        if self._threads is not None:
            await network.record(self._threads, request.thread, request.run, call_id, key, sandbox)

    async def _grep(self, request: Grep, sandbox: Port) -> str:
        fields = {name: getattr(request, name) for name in Query.__struct_fields__ if name != "limit"}
        query = Query(**fields, limit=clamp(request.max_results, MAX_RESULTS))
        return lines_found(await sandbox.grep(request.path, query), query, request.path)

    async def _exec(self, request: Exec, sandbox: Port, progress: Progress) -> Answer:
        timeout = self._limits.timeout_seconds
        if request.timeout is not None:
            timeout = max(1.0, min(request.timeout, max(timeout, self._limits.max_timeout_seconds)))
        command = await self._prepared(request, timeout)
        result = await streamed(progress, lambda show: sandbox.exec(request.key, command, show))
        await self._accessed(request, request.call_id, request.key, sandbox)
        text, limit = outcome(result, timeout), min(self._limits.bash_output_max_chars or MOST_OUTPUT, MOST_OUTPUT)
        if len(text) > limit:
            text = cut(text, limit, await self._saved(request, sandbox, text))
        if result.ended != "exited":
            return {"error": text}
        return {"text": text, "exit_code": result.exit_code} if request.detailed else text

    async def _prepared(self, request: Exec | Start, timeout: float) -> ShellCommand:
        """Returns a command as it runs, with variables of its own. With secrets among them, it runs away from what the
        agent wrote.
        """
        secrets = await self._secrets(request)
        person = {} if secrets else await self._variables(request)  # one such as PYTHONPATH could name the agent's code
        person |= {CHANNEL_USER: request.channel_user} if request.channel_user else {}
        text = AWAY.format(request.command) if secrets else request.command
        return ShellCommand(text, timeout, {**person, **secrets}, private=bool(secrets))

    async def _variables(self, request: Exec | Start) -> dict[str, str]:
        """Returns the variables that the person set for the commands of the thread."""
        state = await self._threads.load(request.thread) if self._threads is not None else None
        if state is None or not state.variables or state.user != request.user or self._seal is None:
            return {}
        return await to_thread.run_sync(opened, self._seal, request.thread, state.variables)

    async def _secrets(self, request: Exec | Start) -> Mapping[str, str]:
        """Returns the variables that the command gets because it runs a script of a skill that declares them."""
        if self._config is None or self._skills is None or script_of(request.command) is None:
            return {}
        skills = (await self._skills.of(request.user)).skills.values()
        return environment(request.command, skills, self._config.current().skills)

    async def _saved(self, request: Exec, sandbox: Port, text: str) -> str:
        """Writes a whole output to a file for the model. Returns a note about it."""
        path = result_path("bash", request.call_id)
        try:
            await sandbox.write(path, text)
        except Invalid as error:
            return f"; the whole output could not be kept: {cut(str(error), MAX_ERROR // 4)}"
        lines = text.count("\n") + (not text.endswith("\n"))
        return f"; the whole output, {len(text)} characters in {lines} lines, is in {path}"

    async def _read(self, request: Read, content: bytes, progress: Progress) -> str:
        lines, limit = (request.start_line, request.end_line), self._limits.read_file_output_max_chars
        only = Selection(request.pages, request.sheet)
        if self._documents is not None and reading.is_converted(request.path, only, request.convert):
            text, pages = await self._text_of(request.path, content, only, progress)
            notes = reading.notes_of_document(request.path, only, pages)
            return await to_thread.run_sync(
                lambda: reading.excerpt(text, lines, limit, notes, numbered=request.line_numbers)
            )
        return await to_thread.run_sync(
            lambda: reading.answer(request.path, content, lines, limit, numbered=request.line_numbers)
        )

    async def _text_of(self, path: str, content: bytes, only: Selection, progress: Progress) -> tuple[str, int | None]:
        """Returns the text of a document, or of a part, and the number of its pages. It is kept for reading on."""
        assert self._documents is not None
        name = PurePosixPath(path).name
        digest = await to_thread.run_sync(lambda: sha256(content).hexdigest())
        key = f"{digest} {PurePosixPath(path).suffix.lower()} {only.pages} {only.sheet}"
        if (cached := self._texts.get(key)) is not None:
            return cached
        rendered = await self._documents.text(name, content, progress, only)
        self._texts.put(key, rendered, len(rendered[0]))
        return rendered


def _part(request: Get, content: bytes) -> Answer:
    if len(content) > request.most:
        raise Invalid(f"{request.path}: larger than {request.most >> 20} MB")
    data = content[request.offset : request.offset + request.size].hex()
    return {"data": data, "size": len(content), "sha256": sha256(content).hexdigest()}


def _bytes(data: str) -> bytes:
    try:
        return bytes.fromhex(data)
    except ValueError:
        raise Invalid("data: is not hexadecimal") from None


def _key_of(request: AnyRequest) -> str:
    return request.key if isinstance(request, Call) else ""


def _has_begun(request: AnyRequest) -> bool:
    """Tells whether a request may have taken effect when its machine was lost, and would do so twice."""
    return isinstance(request, Exec | Start | Replace | EditFiles) or (
        isinstance(request, Write | Put) and request.append
    )


def _is_for_model(request: AnyRequest) -> bool:
    """Tells whether the model reads the answer: the server itself writes files and asks for versions."""
    return isinstance(request, Exec | Start | Replace | EditFiles | List | Read | Glob | Grep)


def _with_news(answer: Answer, news: str) -> Answer:
    if news and isinstance(answer, str):
        return f"Note: {news}\n{answer}"
    if news and isinstance(answer, Mapping):
        return {**answer, **{key: f"Note: {news}\n{answer[key]}" for key in ("error", "text") if key in answer}}
    return answer
