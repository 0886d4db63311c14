"""Sessions of an editor: each is a thread; a prompt is a run; questions are requests for permission."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import structlog
from acp import PROTOCOL_VERSION, RequestError
from acp.agent.connection import AgentSideConnection
from acp.helpers import update_agent_message_text, update_agent_thought_text
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
)
from anyio import to_thread

from channels.acp import mapping
from channels.acp.mapping import Attachment, Question, StopReason, Turn
from channels.acp.stdio import Stdio
from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError, Invalid, NotFound, Refused, RunFailed, Unauthenticated
from channels.client.events import StreamEvent
from channels.client.here import Consents, Here
from core.errors import SikaError
from core.files.paths import PROJECT
from core.ids import safe_id, uuid7

log = structlog.get_logger("sika.acp")

CWD = "acp_cwd"
"""Field of a thread's metadata: the directory of the editor."""
MODEL = "model"
"""The id of the option that chooses the model."""
MOST_SESSIONS = 1000
"""Limit of sessions that a connection may open."""
LISTED = 100


@dataclass(slots=True)
class Session:
    """An open session. `introduced`: the agent was told of the editor."""

    cwd: str
    introduced: bool = False
    folder: str | None = None
    """The directory, if the agent works on it."""
    model: str | None = None
    unused: list[str] = field(default_factory=list)
    """Names of the editor's MCP servers, which are not used."""
    scope: anyio.CancelScope | None = None
    """The prompt that is being worked on."""
    waiting: Question | None = None
    """A question that the next prompt answers."""


async def serve(client: AsyncSikaClient, consents: Consents | None = None) -> None:
    """Serves an editor on standard input and output until the input ends. `consents`: the folders that the person
    agreed to, if the server is on their machine.
    """
    agent = SikaAgent(client, consents)
    connection = AgentSideConnection(agent, await Stdio.open(), listening=False, use_unstable_protocol=True)  # type: ignore[arg-type]  # a part of it
    try:
        await connection.listen()
    finally:
        with anyio.CancelScope(shield=True):
            agent.stop()
            await connection.close()


class SikaAgent:
    """Implements the agent's side of the protocol over a client."""

    def __init__(self, client: AsyncSikaClient, consents: Consents | None = None) -> None:
        self._client, self._consents = client, consents
        self._sessions: dict[str, Session] = {}
        self._editor: Any = None

    def on_connect(self, connection: Any) -> None:
        self._editor = connection

    def stop(self) -> None:
        """Cancels the prompts that are being worked on."""
        for session in self._sessions.values():
            if session.scope is not None:
                session.scope.cancel()

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, audio=True, embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            agent_info=Implementation(name="sika", title="Sika", version=version("sika")),
            auth_methods=[],
        )

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        identity = uuid7()
        with _refusing():
            await self._client.create_thread(identity, {CWD: _absolute(cwd)})
            session = self._opened(identity, cwd, mcp_servers)
            return NewSessionResponse(session_id=identity, config_options=await self._options(session))

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any) -> LoadSessionResponse:
        with _refusing():
            values = await self._values(session_id)
            session = self._opened(session_id, cwd, mcp_servers)
            session.folder = await self._attached(session_id, session)
            for update in mapping.history(values, session.folder):
                await self._editor.session_update(session_id, update)
            session.waiting = next((q for q in mapping.questions(values) if not q.options), None)
            return LoadSessionResponse(config_options=await self._options(session))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any
    ) -> ResumeSessionResponse:
        with _refusing():
            await self._values(session_id)
            session = self._opened(session_id, cwd, mcp_servers)
            return ResumeSessionResponse(config_options=await self._options(session))

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        extract = {"title": "values.title", "cwd": f"metadata.{CWD}"}
        with _refusing():
            threads = await self._client.search_threads(LISTED, extract)
        infos = [
            SessionInfo(
                session_id=str(thread["thread_id"]),
                cwd=str(thread["extracted"]["cwd"] or "/"),
                title=thread["extracted"]["title"] or None,
                updated_at=thread["updated_at"],
            )
            for thread in threads
        ]
        return ListSessionsResponse(sessions=[info for info in infos if cwd is None or info.cwd == cwd])

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.scope is not None:
            session.scope.cancel()
        return CloseSessionResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        session = self._known(session_id)
        with _refusing():
            names = [str(model["name"]) for model in (await self._client.list_models())["models"]]
            if config_id != MODEL or value not in names:
                raise Invalid(f"{config_id}: {value!r} is not one of {', '.join(names)}")
            session.model = str(value)
            return SetSessionConfigOptionResponse(config_options=await self._options(session))

    def _opened(self, identity: str, cwd: str, servers: Any) -> Session:
        if len(self._sessions) >= MOST_SESSIONS:
            raise Refused(f"there are {MOST_SESSIONS} open sessions; close one first")
        unused = [str(server.name) for server in servers or ()]
        if unused:
            log.warning("MCP servers of the editor are not used", session=identity, names=unused)
        session = self._sessions[identity] = Session(_absolute(cwd), unused=unused)
        return session

    def _known(self, identity: str) -> Session:
        if identity not in self._sessions:
            raise RequestError.invalid_params({"sessionId": f"{identity[:80]}: is not open; load it first"})
        return self._sessions[identity]

    async def _values(self, identity: str) -> dict[str, Any]:
        """Returns the state of a thread, as the events of the client have it."""
        thread = await self._client.describe_thread(safe_id(identity, "sessionId"))
        questions = [question for group in (thread.get("interrupts") or {}).values() for question in group]
        return {**(thread.get("values") or {}), "interrupts": questions}

    async def _options(self, session: Session) -> list[Any]:
        """Returns the options of a session: its model, if there is a choice."""
        models = (await self._client.list_models())["models"]
        names = [str(model["name"]) for model in models]
        if len(names) < 2:
            return []
        choices = [
            SessionConfigSelectOption(value=str(model["name"]), name=str(model.get("display_name") or model["name"]))
            for model in models
        ]
        current = session.model or names[0]
        return [
            SessionConfigOptionSelect(
                id=MODEL, name="Model", category="model", type="select", current_value=current, options=choices
            )
        ]

    # ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, session_id: str, **_: Any) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.scope is not None:
            session.scope.cancel()

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> PromptResponse:
        session = self._known(session_id)
        if session.scope is not None:
            raise RequestError.invalid_request({"sessionId": "a prompt of this session is being worked on"})
        content = mapping.prompt_of(prompt)
        with _refusing():
            if not session.introduced:
                session.folder = await self._attached(session_id, session) or await self._work_at(session_id, session)
            turn = Turn(session.folder)
        reason: StopReason = "cancelled"
        with _refusing(), anyio.CancelScope() as session.scope:
            try:
                reason = await self._turn(session_id, session, content.text, content.attachments, turn)
            except RunFailed as error:
                reason = mapping.failure(error)
            finally:
                session.scope = None
        if reason == "cancelled":
            for update in turn.unfinished():
                await self._editor.session_update(session_id, update)
        return PromptResponse(stop_reason=reason)

    async def _turn(
        self, identity: str, session: Session, text: str, attachments: Sequence[Attachment], turn: Turn
    ) -> StopReason:
        """Works on a prompt until the agent has answered, or waits for a text of the person."""
        if session.unused:
            names, session.unused = ", ".join(session.unused), []
            remark = f"These MCP servers of the editor are not used: {names}. Configure them in Sika instead."
            await self._editor.session_update(identity, update_agent_thought_text(remark))
        options: Any = {"model_name": session.model} if session.model else {}
        if session.waiting is not None:
            answer, session.waiting = {session.waiting.id: text}, None
            events = self._client.resume(identity, answer, **options)
        else:
            message = await self._message(identity, session, text, attachments)
            events = self._client.stream(message, thread_id=identity, **options)
        while True:
            await self._follow(identity, turn, events)
            if questions := mapping.questions(turn.values):
                if open_question := next((question for question in questions if not question.options), None):
                    session.waiting = open_question
                    await self._editor.session_update(identity, update_agent_message_text(open_question.text))
                    return "end_turn"
                answers = {question.id: await self._decision(identity, question) for question in questions}
                events = self._client.resume(identity, answers, **options)
            elif (question := mapping.choices(turn.values)) and (choice := await self._choice(identity, question)):
                events = self._client.stream(choice, thread_id=identity, **options)
            else:
                return mapping.stop_reason(turn.values)

    async def _follow(self, identity: str, turn: Turn, events: AsyncGenerator[StreamEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                for update in turn.take(event):
                    await self._editor.session_update(identity, update)

    async def _message(
        self, identity: str, session: Session, text: str, attachments: Sequence[Attachment]
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"content": text}
        if attachments:
            uploaded = await self._uploaded(identity, attachments)
            message = {"content": text, "additional_kwargs": {"files": uploaded}}
        if not session.introduced:
            session.introduced = True
            message["content"] = f"{text}\n\n{mapping.note(session.cwd, PROJECT if session.folder else None)}"
        return message

    async def _uploaded(self, identity: str, attachments: Sequence[Attachment]) -> list[dict[str, Any]]:
        """Uploads the files of a prompt, and returns them as a message names them."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, attachment in enumerate(attachments):
                place = Path(folder) / str(number)
                place.mkdir()
                paths.append(place / Path(attachment.name).name)
                await to_thread.run_sync(paths[-1].write_bytes, attachment.content)
            response = await self._client.upload_files(identity, paths)
        return [
            {
                "filename": file["filename"],
                "size": int(file["size"]),
                "path": file["virtual_path"],
                "status": "uploaded",
            }
            for file in response.get("files") or ()
        ]

    # ── the editor's directory ──────────────────────────────────────────────────────────────────────────────────────

    async def _attached(self, identity: str, session: Session) -> str | None:
        """Returns the session's directory if its thread works on it already."""
        folder = await self._client.get_folder(identity)
        return session.cwd if folder is not None and folder["path"] == os.path.realpath(session.cwd) else None

    async def _work_at(self, identity: str, session: Session) -> str | None:
        """Lets the thread work on the editor's directory if the person agrees. Returns it if so."""
        if self._consents is None or not await to_thread.run_sync(os.path.isdir, session.cwd):
            return None
        path = os.path.realpath(session.cwd)
        consent = self._consents.all().get(path)
        chosen = consent.access if consent else await self._ask_editor(identity, mapping.may_work_at(session.cwd))
        if chosen not in ("read-write", "read-only"):
            return None
        show = consent.show if consent else ()
        try:
            await self._client.attach_folder(identity, path, chosen, show=show)
        except (Refused, Invalid) as error:
            remark = f"I do not work in your directory: {error}"
            await self._editor.session_update(identity, update_agent_thought_text(remark))
            return None
        if consent is None:
            self._consents.agree(Here(path, "read-write" if chosen == "read-write" else "read-only"))
        return session.cwd

    async def _decision(self, identity: str, question: Question) -> dict[str, Any]:
        """Asks the person for a decision. Without one the call is rejected."""
        chosen = await self._ask_editor(identity, question)
        return {"decisions": [{"type": "approve" if chosen == "approve" else "reject"}]}

    async def _choice(self, identity: str, question: Question) -> str | None:
        """Asks the person for an option. None: they want to answer otherwise."""
        chosen = await self._ask_editor(identity, question)
        return None if chosen == mapping.OTHERWISE else chosen

    async def _ask_editor(self, identity: str, question: Question) -> str | None:
        response = await self._editor.request_permission(
            session_id=identity, tool_call=question.call, options=list(question.options)
        )
        outcome = response.outcome
        return outcome.option_id if isinstance(outcome, AllowedOutcome) else None


class _refusing:
    """Raises the client's errors as those of the protocol."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        match error:
            case NotFound():
                raise RequestError.resource_not_found() from error
            case Unauthenticated():
                raise RequestError.auth_required({"details": str(error)}) from error
            case Invalid() | Refused():
                raise RequestError.invalid_params({"details": str(error)}) from error
            case ClientError() | SikaError():
                raise RequestError.internal_error({"details": str(error)}) from error


def _absolute(cwd: str) -> str:
    if not cwd.startswith("/") and not (len(cwd) > 2 and cwd[1] == ":"):
        raise RequestError.invalid_params({"cwd": "must be an absolute path"})
    return cwd[:4096]
