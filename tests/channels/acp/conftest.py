"""A server in a process of its own, and editors that start `sika acp` against it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acp import PROTOCOL_VERSION, connect_to_agent
from acp.schema import AllowedOutcome, DeniedOutcome, Implementation, RequestPermissionResponse

from tests.channels.client.stage import Stage, serving, written
from tests.support import warm
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn

NOTE = ToolCall("write_file", {"description": "a note", "path": "/mnt/user-data/workspace/n.md", "content": "# N\n"})
TODOS = ToolCall("write_todos", {"todos": [{"content": "look", "status": "completed"}]})
MADE = ToolCall("write_file", {"path": "made.txt", "content": "made\n"})
WHICH = {"question": "Which?", "clarification_type": "approach_choice", "options": ["red", "blue"]}


def _script(turns: list[Turn]) -> Script:
    return Script(tuple(turns), count="total")


SCRIPTS = {
    "hello": _script([Turn(reasoning="They greet.", text="Hello there."), Turn(text="Again.")]),
    "noting": _script([Turn(text="I note it.", tool_calls=(NOTE,)), Turn(text="Noted.")]),
    "planning": _script([Turn(tool_calls=(TODOS,)), Turn(text="Planned.")]),
    "mailing": _script(
        [Turn(tool_calls=(ToolCall("bash", {"description": "mail", "command": "echo sent"}),)), Turn(text="Ok.")]
    ),
    "choosing": _script([Turn(tool_calls=(ToolCall("ask_clarification", WHICH),)), Turn(text="So be it.")]),
    "asking": _script([Turn(tool_calls=(ToolCall("ask", {"question": "When?"}),)), Turn(text="Thank you.")]),
    "editing": _script([Turn(tool_calls=(MADE,)), Turn(text="Made.")] * 4),
    "failing": _script([Turn(error=Failure(status=400, message="no luck today"))]),
    "gated": _script([Turn(text="One two three four.", gate="gated", gate_after=2)]),
}


class Models(NamedTuple):
    server: ModelServer
    stage: Stage

    async def reached(self, gate: str) -> None:
        await asyncio.to_thread(self.stage.call, self.server.reached, gate)

    def prompts(self, model: str) -> list[Any]:
        return [record.body["messages"] for record in self.server.requests if record.model == model]


class Editor:
    """An ACP client that keeps what it is told. `choose` picks an option of a permission; None cancels."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.choose: Callable[[list[Any]], str | None] = lambda options: options[0].option_id
        self.agent: Any = None

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        self.asked.append((tool_call, options))
        chosen = self.choose(options)
        outcome: Any = DeniedOutcome(outcome="cancelled")
        if chosen is not None:
            outcome = AllowedOutcome(outcome="selected", option_id=chosen)
        return RequestPermissionResponse(outcome=outcome)

    def on_connect(self, _: Any) -> None: ...

    async def session(self, model: str, cwd: str = "/home/ada/project", **more: Any) -> str:
        session = await self.agent.new_session(cwd=cwd, **more)
        await self.agent.set_config_option("model", session.session_id, model)
        return str(session.session_id)

    def texts(self, kind: str = "agent_message_chunk") -> str:
        return "".join(u.content.text for u in self.updates if u.session_update == kind)

    def forget(self) -> None:
        self.updates, self.asked = [], []

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]


Start = Callable[..., AbstractAsyncContextManager[Editor]]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def models(stage: Stage) -> Models:
    return Models(stage.enter(ModelServer(SCRIPTS)), stage)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, models: Models) -> Path:
    rules = [{"tool": "bash", "text": "Run it?"}]
    return written(tmp_path_factory.mktemp("acp"), models.server, approvals=rules)


@pytest.fixture(scope="module")
def url(stage: Stage, tmp_path_factory: pytest.TempPathFactory, config: Path) -> str:
    return stage.enter(serving(tmp_path_factory.mktemp("acp") / "home", config))


def compiled() -> dict[str, str]:
    """The environment of a process whose modules are compiled once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@pytest.fixture
def editor(url: str) -> Start:
    @asynccontextmanager
    async def start(*words: str) -> AsyncIterator[Editor]:
        (to, stdin), (output, stdout) = socket.socketpair(), socket.socketpair()
        with stdin, stdout:
            command = "channels.cli", "acp", *(words or ("--url", url))
            process = warm.start(*command, stdin=stdin.fileno(), stdout=stdout.fileno())
        (_, writer), (reader, end) = [await asyncio.open_connection(sock=one) for one in (to, output)]
        editor = Editor()
        connection = connect_to_agent(editor, writer, reader)  # type: ignore[arg-type]  # a part of it
        try:
            answer = await connection.initialize(PROTOCOL_VERSION, client_info=Implementation(name="t", version="1"))
            assert answer.protocol_version == PROTOCOL_VERSION
            editor.agent = connection
            yield editor
        finally:
            await connection.close()
            writer.close()
            end.close()
            await asyncio.wait_for(process.waited(), 120)

    return start
