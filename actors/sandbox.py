"""Serves the sandbox tools: executes requests in the thread's sandbox, and formats results for the model."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Never

import anyio
import msgspec
from anyio import to_thread

from core.actor import Actor, Progress
from core.config.load import ConfigSource
from core.errors import Invalid, ungrouped
from core.ports.images import image_of, place_of
from core.ports.sandbox import ExecResult, SandboxProvider, result_path
from core.ports.sandbox import Sandbox as Port
from core.skills.commands import environment, script_of
from core.skills.library import Library

GLOB_CAP, GREP_CAP = 1000, 500
"""Upper limits of the results of one search (contract §6)."""
MOST_OUTPUT = 100_000
"""Limit of a command's output, in characters: it fits a message of the bus even if all are escaped."""
MAX_ERROR = 2000
"""Limit of an error's text, in characters (contract §6, write_file)."""

FIRST_ONLY = (
    "OK, but the text was in {} places and only the first was replaced. If another was meant, undo it and give more "
    "of the text around it; for all of them set replace_all."
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The configurable limits, with the names and defaults of the contract. 0 characters means no limit."""

    bash_timeout: float = 600
    bash_output_max_chars: int = 20_000
    read_file_output_max_chars: int = 50_000
    ls_output_max_chars: int = 20_000
    glob_max_results: int = 200
    grep_max_results: int = 100


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    user: str
    thread: str


class Call(Request, frozen=True, kw_only=True):
    """A request with a record in the sandbox. Call ids are unique only within a run."""

    run: str
    call_id: str

    @property
    def key(self) -> str:
        return f"{self.run}-{self.call_id}"


class Exec(Call, frozen=True, kw_only=True, tag="exec"):
    command: str
    detailed: bool = False
    """The answer has the exit code beside the text: `text`, `exit_code`."""


class Kill(Call, frozen=True, kw_only=True, tag="kill"):
    """Kills the command of a cancelled run. Cancelling the request itself leaves the command running."""


class Write(Call, frozen=True, kw_only=True, tag="write"):
    path: str
    content: str
    append: bool = False


class Replace(Call, frozen=True, kw_only=True, tag="replace"):
    path: str
    old: str
    new: str
    every: bool = False


class List(Request, frozen=True, kw_only=True, tag="list"):
    path: str


class Read(Request, frozen=True, kw_only=True, tag="read"):
    path: str
    start_line: int | None = None
    end_line: int | None = None


class Glob(Request, frozen=True, kw_only=True, tag="glob"):
    path: str
    pattern: str
    include_dirs: bool = False
    max_results: int = 200


class Grep(Request, frozen=True, kw_only=True, tag="grep"):
    path: str
    pattern: str
    glob: str | None = None
    literal: bool = False
    case_sensitive: bool = False
    max_results: int = 100


class View(Request, frozen=True, kw_only=True, tag="image"):
    path: str


class Find(Request, frozen=True, kw_only=True, tag="files"):
    """Checks that the paths are regular files, not links."""

    paths: list[str]


class Version(Request, frozen=True, kw_only=True, tag="version"):
    """Requests the SHA-256 of a file, None if there is none."""

    path: str


AnyRequest = Exec | Kill | Write | Replace | List | Read | Glob | Grep | View | Find | Version
Answer = str | Mapping[str, Any] | None


class Sandbox(Actor[Never]):
    name = "sandbox"

    def __init__(
        self,
        provider: SandboxProvider,
        limits: Limits,
        config: ConfigSource | None = None,
        skills: Library | None = None,
    ) -> None:
        self._provider, self._limits, self._config, self._skills = provider, limits, config, skills

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Answer:
        parsed: AnyRequest = self.parse(request, AnyRequest)
        try:
            return await self._do(parsed, await self._provider.acquire(parsed.user, parsed.thread), progress)
        except Invalid as error:
            raise Invalid(cut_middle(str(error), MAX_ERROR)) from error

    async def _do(self, request: AnyRequest, sandbox: Port, progress: Progress) -> Answer:
        match request:
            case Exec():
                return await self._exec(request, sandbox, progress)
            case Kill():
                await sandbox.kill(request.key)
            case Write(path=path, content=content, append=append):
                await sandbox.write(path, content, append=append, call_id=request.key)
            case Replace(path=path, old=old, new=new, every=every):
                places = await sandbox.replace(path, old, new, every=every, call_id=request.key)
                return "OK" if every or places < 2 else FIRST_ONLY.format(places)
            case List(path=path):
                return cut_tail("\n".join(await sandbox.list(path)) or "(empty)", self._limits.ls_output_max_chars)
            case Read(path=path):
                return self._read(request, await sandbox.read(path))
            case Glob(path=path, pattern=pattern):
                limit = clamp(request.max_results, self._limits.glob_max_results, GLOB_CAP)
                paths, more = await sandbox.glob(path, pattern, dirs=request.include_dirs, limit=limit)
                return numbered(paths, more, f"paths under {path}")
            case Grep(path=path, pattern=pattern):
                limit = clamp(request.max_results, self._limits.grep_max_results, GREP_CAP)
                lines, more = await sandbox.grep(
                    path,
                    pattern,
                    glob=request.glob,
                    literal=request.literal,
                    case_sensitive=request.case_sensitive,
                    limit=limit,
                )
                return matches(lines, more, path)
            case View(path=path):
                place = place_of(path)
                image = await to_thread.run_sync(image_of, place, await sandbox.read(place))
                return msgspec.structs.asdict(image)
            case Find(paths=paths):
                for path in paths:
                    hits, _ = await sandbox.glob(path, "*", dirs=False, limit=1)
                    if hits != [path]:
                        raise Invalid(f"{path}: is not a file")
            case Version(path=path):
                return await sandbox.version(path)
        return "OK"

    async def _exec(self, request: Exec, sandbox: Port, progress: Progress) -> Answer:
        timeout = self._limits.bash_timeout
        secrets = await self._secrets(request)
        more: dict[str, Any] = {"environment": secrets} if secrets else {}
        result = await streamed(
            progress, lambda show: sandbox.exec(request.key, request.command, timeout=timeout, on_output=show, **more)
        )
        text, limit = outcome(result, timeout), min(self._limits.bash_output_max_chars or MOST_OUTPUT, MOST_OUTPUT)
        if len(text) > limit:
            text = cut_middle(text, limit, await self._saved(request, sandbox, text))
        if result.ended != "exited":
            return {"error": text}
        return {"text": text, "exit_code": result.exit_code} if request.detailed else text

    async def _secrets(self, request: Exec) -> Mapping[str, str]:
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
            return f"; the whole output could not be kept: {cut_middle(str(error), MAX_ERROR // 4)}"
        return f"; the whole output is in {path}"

    def _read(self, request: Read, content: bytes) -> str:
        text = content.decode("utf-8", "replace")
        if text and request.start_line is not None and request.end_line is not None:
            text = "\n".join(text.splitlines()[max(request.start_line, 1) - 1 : max(request.end_line, 0)])
        hint = "use start_line and end_line to read a part"
        return cut_tail(text, self._limits.read_file_output_max_chars, hint) or "(empty)"


async def streamed(progress: Progress, work: Callable[[Callable[[str], None]], Awaitable[ExecResult]]) -> ExecResult:
    """Does the work and passes on its output; the slower the receiver, the larger the chunks."""
    send, receive = anyio.create_memory_object_stream[str](math.inf)

    async def pass_on() -> None:
        with receive:
            async for text in receive:
                chunks = [text]
                while receive.statistics().current_buffer_used:
                    chunks.append(receive.receive_nowait())
                await progress("".join(chunks))

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            with send:
                result = await work(send.send_nowait)
    return result


def outcome(result: ExecResult, timeout: float) -> str:
    lines = []
    if result.ended == "timeout":
        lines.append(f"the command was stopped after {timeout:g} seconds.")
    elif result.ended == "interrupted":
        lines.append("the command was interrupted. What it did until then stays done: look before you run it again.")
    if result.stdout:
        lines.append(result.stdout.rstrip("\n"))
    if result.stderr:
        lines.append(f"Std Error:\n{result.stderr.rstrip()}")
    if result.exit_code:
        lines.append(f"Exit Code: {result.exit_code}")
    return "\n".join(lines) or "(no output)"


def clamp(requested: int, configured: int, cap: int) -> int:
    return max(1, min(requested, configured, cap))


def numbered(paths: list[str], more: bool, noun: str) -> str:
    if not paths:
        return f"Found no {noun}."
    lines = [f"Found {len(paths)} {noun}:", *(f"{number}. {path}" for number, path in enumerate(paths, 1))]
    return "\n".join([*lines, *truncated(more)])


def matches(lines: list[str], more: bool, path: str) -> str:
    if not lines:
        return f"Found no matches under {path}."
    return "\n".join([f"Found {len(lines)} matches under {path}:", *lines, *truncated(more)])


def truncated(more: bool) -> list[str]:
    return ["(There are more. Narrow the pattern or the path to see them.)"] if more else []


def cut_middle(text: str, limit: int, note: str = "") -> str:
    """Returns equal head and tail, with the length of the gap. At most `limit` characters; 0 means no limit."""
    if limit <= 0 or len(text) <= limit:
        return text
    room = limit - len(_skipped(len(text), note))
    if room <= 0:
        return text[:limit]
    head, tail = room - room // 2, room // 2
    return text[:head] + _skipped(len(text) - head - tail, note) + text[len(text) - tail :]


def _skipped(count: int, note: str) -> str:
    return f"\n... [{count} characters skipped{note}] ...\n"


def cut_tail(text: str, limit: int, hint: str = "") -> str:
    """Returns the head, with the length of the text. At most `limit` characters; 0 means no limit."""
    if limit <= 0 or len(text) <= limit:
        return text
    note = f"\n... [only the first characters of {len(text)} are shown{'; ' + hint if hint else ''}]"
    return text[: max(0, limit - len(note))] + note[:limit]
