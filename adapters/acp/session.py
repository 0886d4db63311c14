"""A prompt that another agent works on: our side of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AgentCapabilities,
    AgentMessageChunk,
    AgentPlanUpdate,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    FileSystemCapabilities,
    HttpMcpServer,
    Implementation,
    McpServerStdio,
    PermissionOption,
    ReadTextFileResponse,
    RequestPermissionResponse,
    SseMcpServer,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    WriteTextFileResponse,
)

from adapters.acp.process import AgentProcess
from adapters.sandboxes.files.operations import Files
from core.config.acp import AcpAgent
from core.config.redaction import redactor
from core.errors import Invalid
from core.files.paths import ACP
from core.ports.agents import Permission, Report, Work

log = structlog.get_logger("sika.acp")

NO_RESPONSE = "(no response)"
MOST_TEXT = 150_000
"""Limit of the characters of a report: it fits a message of the bus even if all are escaped."""
MOST_SHOWN = 4000
"""Limit of the characters of a step that a person is shown."""
MOST_READ = 1 << 20
"""Limit of the bytes of a file that an agent reads through us."""
MOST_PERMISSIONS = 100
"""Limit of a session's requests for permission that a person is asked."""
GRANTS, REFUSALS = ("allow_once", "allow_always"), ("reject_once", "reject_always")
STOPPED = {
    "refusal": "The agent refused to do it.",
    "cancelled": "The agent was cancelled.",
    "max_tokens": "The agent stopped at its limit of tokens.",
    "max_turn_requests": "The agent stopped at its limit of steps.",
}
"""Texts for stop reasons other than the regular end."""


class Session:
    """The client of one agent process. `report` is set at the end; `pending` are requests for permission that wait."""

    def __init__(
        self, name: str, settings: AcpAgent, process: AgentProcess, files: Files, cwd: str, work: Work
    ) -> None:
        self._name, self._settings, self._process, self._files = name, settings, process, files
        self._cwd, self._asks, self._servers = cwd, work.asks, work.servers
        self._texts: list[str] = []
        self._characters = 0
        self._unshown: list[str] = []
        self._news = asyncio.Event()
        self._pending: dict[str, tuple[Permission, asyncio.Future[bool]]] = {}
        self._permissions = 0
        self._cancelled = False
        self._deadline: asyncio.Timeout | None = None
        self._left = settings.timeout_seconds
        self._connection: ClientSideConnection | None = None
        self._id = ""
        self.report: Report | None = None

    # ── the work ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def work(self, prompt: str) -> None:
        """Does the work, from the start of the session to the end of the process. Sets `report` in every case."""
        report: Report | None = None
        try:
            report = await self._worked(prompt)
        except (ConnectionError, OSError, RequestError, TimeoutError) as error:
            await self._process.settled()
            report = self._failed(self._reason(error))
        except Exception as error:
            log.exception("an agent's session failed", agent=self._name)
            report = self._failed(f"the session with it failed: {type(error).__name__}")
        finally:
            self._cancel_permissions()
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    await self._connection.close()
            await asyncio.shield(self._process.end())
            self.report = report or self._failed("it was stopped")
            self._news.set()

    async def _worked(self, prompt: str) -> Report:
        connection = self._connection = connect_to_agent(self, self._process)  # type: ignore[arg-type]  # a part of it
        try:
            async with asyncio.timeout(self._settings.start_timeout_seconds):
                await self._open(connection)
        except TimeoutError:
            seconds = self._settings.start_timeout_seconds
            return self._failed(f"it had not started a session after {seconds:g} seconds")
        try:
            async with asyncio.timeout(self._left) as self._deadline:
                response = await connection.prompt(session_id=self._id, prompt=[text_block(prompt)])
        except TimeoutError:
            await self._cancel()
            seconds = self._settings.timeout_seconds
            return self._failed(f"it was cancelled after {seconds:g} seconds of work (acp_agents.{self._name})")
        text, note = self._text(), STOPPED.get(response.stop_reason)
        if note is None:
            return Report(text=text or NO_RESPONSE)
        failed = response.stop_reason in ("refusal", "cancelled")
        return Report(text="\n\n".join(part for part in (text, note) if part), failed=failed)

    async def _open(self, connection: ClientSideConnection) -> None:
        capabilities = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=False
        )
        us = Implementation(name="sika", title="Sika", version="1")
        answer = await connection.initialize(PROTOCOL_VERSION, client_capabilities=capabilities, client_info=us)
        if answer.protocol_version != PROTOCOL_VERSION:
            spoken = f"{answer.protocol_version}, and Sika {PROTOCOL_VERSION}"
            raise ConnectionError(f"it speaks version {spoken} of the protocol")
        wish: dict[str, Any] = {"model": self._settings.model} if self._settings.model else {}
        servers = self._supported(answer.agent_capabilities)
        session = await connection.new_session(cwd=self._cwd, mcp_servers=servers, **wish)
        self._id = session.session_id
        for option in session.config_options or ():
            if wish and option.category == "model" and option.current_value != wish["model"]:
                await connection.set_config_option(option.id, self._id, wish["model"])

    def _supported(self, capabilities: AgentCapabilities | None) -> list[Any]:
        """Returns the MCP servers whose transport the agent speaks: all of them speak stdio."""
        spoken = capabilities.mcp_capabilities if capabilities else None
        kinds: dict[str, tuple[bool, Any]] = {
            "stdio": (True, McpServerStdio),
            "http": (bool(spoken and spoken.http), HttpMcpServer),
            "sse": (bool(spoken and spoken.sse), SseMcpServer),
        }
        usable = []
        for server in self._servers:
            speaks, form = kinds[server.get("type", "stdio")]
            if speaks:
                usable.append(form.model_validate(server))
            else:
                log.warning("an agent cannot use an MCP server", agent=self._name, server=server["name"])
        return usable

    async def advance(self, progress: Callable[[str], Awaitable[None]]) -> Permission | Report:
        """Returns the next request for permission, or the report; passes on what the agent says meanwhile."""
        while True:
            self._news.clear()
            if self._unshown:
                texts, self._unshown = self._unshown, []
                await progress("".join(texts))
            for permission, decision in self._pending.values():
                if not decision.done():
                    return permission
            if self.report is not None:
                return self.report
            await self._news.wait()

    def decide(self, permission: str, granted: bool) -> None:
        """Answers a request for permission, if it still waits."""
        if (waiting := self._pending.get(permission)) and not waiting[1].done():
            waiting[1].set_result(granted)

    async def end(self, reason: str) -> None:
        """Ends the process of the agent; its report says why."""
        self._process.problem = reason
        await self._process.end()

    async def stop(self) -> None:
        """Cancels the prompt: the agent gets some time to end by itself; then `work` is to be cancelled."""
        self._cancelled = True
        await self._cancel()

    async def _cancel(self) -> None:
        self._cancelled = True
        self._cancel_permissions()
        if self._connection is not None and self._id:
            with contextlib.suppress(ConnectionError, OSError):
                await self._connection.cancel(session_id=self._id)

    def _cancel_permissions(self) -> None:
        for _, decision in self._pending.values():
            if not decision.done():
                decision.cancel()

    def _failed(self, reason: str) -> Report:
        text = self._text()
        earlier = f"\n\nUntil then it said:\n{text}" if text else ""
        return Report(text=f"The agent {self._name} did not finish: {reason}.{earlier}", failed=True)

    def _reason(self, error: Exception) -> str:
        if self._process.problem:
            return self._process.problem
        if isinstance(error, RequestError):
            detail = f" ({redactor.text(str(error.data))[:500]})" if error.data else ""
            return f"it answered with the error {error.code}: {redactor.text(str(error))[:500]}{detail}"
        if str(error) == "Connection closed":
            code = self._process.code
            return "its process ended" + (f" with exit code {code}" if code else "")
        return redactor.text(str(error))[:500] or "it did not answer in time"

    def _text(self) -> str:
        return redactor.text("".join(self._texts)).strip()

    # ── calls of the agent ──────────────────────────────────────────────────────────────────────────────────────────

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        match update:
            case AgentMessageChunk(content=TextContentBlock(text=text)):
                self._say(text)
            case ToolCallStart(title=title):
                self._show(f"\n[{title}]\n")
            case ToolCallProgress(title=title, status="failed"):
                self._show(f"\n[{title or 'tool call'}: failed]\n")
            case AgentPlanUpdate(entries=entries):
                self._show("\n" + "".join(f"- {entry.content} ({entry.status})\n" for entry in entries[:50]))

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: Sequence[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        if self._cancelled:
            return _cancelled()
        if self._settings.auto_approve_permissions:
            return first_permitted(options, GRANTS)
        if not self._asks or self._permissions >= MOST_PERMISSIONS:
            return first_permitted(options, REFUSALS)
        granted = await self._person(tool_call)
        if self._cancelled or granted is None:
            return _cancelled()
        return first_permitted(options, GRANTS if granted else REFUSALS)

    async def _person(self, tool_call: ToolCallUpdate) -> bool | None:
        """Returns a person's decision, None if the work was cancelled meanwhile. Later than its deadline: rejected."""
        self._permissions += 1
        permission = Permission(
            id=str(self._permissions),
            step=shown_step(self._name, self._permissions, tool_call),
            text=f"The agent {self._name} asks for permission: {_cut(tool_call.title or 'a step', 300)}",
        )
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[permission.id] = permission, decision
        self._news.set()
        try:
            with self._clock_stopped():
                async with asyncio.timeout(self._settings.permission_timeout_seconds):
                    return await decision
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return None
        finally:
            del self._pending[permission.id]

    @contextlib.contextmanager
    def _clock_stopped(self) -> Any:
        """Stops the clock of the work while a person is waited for."""
        loop, deadline = asyncio.get_running_loop(), self._deadline
        if deadline is not None and (when := deadline.when()) is not None:
            self._left = when - loop.time()
            deadline.reschedule(None)
        try:
            yield
        finally:
            if deadline is not None and len(self._pending) <= 1 and not deadline.expired():
                with contextlib.suppress(RuntimeError):  # the prompt has ended meanwhile
                    deadline.reschedule(loop.time() + self._left)

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> ReadTextFileResponse:
        content = await self._refusing(lambda: self._files.read(self._virtual(path)))
        if len(content) > MOST_READ:
            raise RequestError.invalid_params({"path": f"larger than {MOST_READ} bytes"})
        text = content.decode(errors="replace")
        if line is not None or limit is not None:
            lines = text.splitlines(keepends=True)[max(0, (line or 1) - 1) :]
            text = "".join(lines[:limit] if limit is not None else lines)
        return ReadTextFileResponse(content=text)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> WriteTextFileResponse:
        await self._refusing(lambda: self._files.write(self._virtual(path), content))
        return WriteTextFileResponse()

    async def create_terminal(self, **_: Any) -> Any:
        raise RequestError.method_not_found("terminal/create")

    async def _refusing(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await work()
        except Invalid as error:
            raise RequestError.invalid_params({"path": str(error)}) from None

    def _virtual(self, path: str) -> str:
        """Returns the virtual path of an agent's path. Raises `Invalid` for one outside of its workspace."""
        if path != self._cwd and not path.startswith(f"{self._cwd}/"):
            raise Invalid(f"{path[:200]}: is outside of the workspace {self._cwd}")
        return ACP + path.removeprefix(self._cwd)

    def on_connect(self, _: Any) -> None:
        """Is called by the SDK."""

    def _say(self, text: str) -> None:
        room = MOST_TEXT - self._characters
        if room > 0:
            self._texts.append(text[:room])
            if len(text) > room:
                self._texts.append("\n[… the rest is left out]")
        self._characters += len(text)
        self._show(text)

    def _show(self, text: str) -> None:
        if len(self._unshown) < 1000:
            self._unshown.append(text[:MOST_SHOWN])
            self._news.set()


def first_permitted(options: Sequence[PermissionOption], kinds: Sequence[str]) -> RequestPermissionResponse:
    """Returns the answer with the first option of the first kind that there is; `cancelled` if there is none."""
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option.option_id))
    return _cancelled()


def shown_step(agent: str, number: int, call: ToolCallUpdate) -> dict[str, Any]:
    """Returns what a person is shown of a step: redacted and cut, since it is the agent's text."""
    step: dict[str, Any] = {"agent": agent, "request": number, "title": _cut(call.title or "", 300)}
    if call.kind:
        step["kind"] = call.kind
    if call.raw_input is not None:
        step["input"] = _cut(call.raw_input if isinstance(call.raw_input, str) else str(call.raw_input), MOST_SHOWN)
    if call.locations:
        step["files"] = [_cut(location.path, 300) for location in call.locations[:20]]
    return step


def _cut(text: str, limit: int) -> str:
    text = redactor.text(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _cancelled() -> RequestPermissionResponse:
    return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
