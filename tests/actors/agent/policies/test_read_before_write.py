"""Files are changed by those who know them: the policy between the recorder and real tools, on a real sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from actors.agent.loop.chain import Chain
from actors.agent.loop.effects import Effects, tool_context
from actors.agent.loop.recorder import Recorder
from actors.agent.policies.safety.read_before_write import ReadBeforeWrite
from actors.sandbox import Sandbox
from adapters.tools.bash import bash
from adapters.tools.edit_files import edit_files
from adapters.tools.ls import ls
from adapters.tools.read_file import read_file
from adapters.tools.str_replace import str_replace
from adapters.tools.write_file import write_file
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid, Unavailable
from core.events import Decision, Message, ModelCompleted, ToolCompleted, ToolRequested
from core.tools import Tool, ToolContext
from tests.actors.agent.turns import Kept, tool_call, turn
from tests.adapters.sandboxes.conftest import provider_of
from tests.support.workers import site

pytestmark = pytest.mark.anyio

W = "/mnt/user-data/workspace"
F = f"{W}/f.txt"
CHANGES: Mapping[str, tuple[Tool, dict[str, Any]]] = {
    "write": (write_file, {"content": "new"}),
    "append": (write_file, {"content": "new", "append": True}),
    "replace": (str_replace, {"old_str": "old", "new_str": "new"}),
    "edit": (edit_files, {"edits": [{"old_str": "old", "new_str": "new"}]}),
}
DONE = ("OK", "Replaced at line 1.")
EVERY_CHANGE = pytest.mark.parametrize("change", CHANGES)


class Agent:
    """Makes tool calls one after the other, through the recorder, the policy and the effects."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call, self.questions = call, list[str]()
        self.turn = turn(call=self._asked)
        self.chain = Chain([Recorder(), ReadBeforeWrite(), Effects()])
        self.calls = 0

    async def _asked(self, actor: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        self.questions.append(request["op"])
        return await self._call(actor, request, progress)

    @property
    def journal(self) -> Kept:
        return cast(Kept, self.turn.journal)

    async def use(self, tool: Tool, **args: Any) -> str:
        await self.say(tool, args)
        return await self.make(tool, args)

    async def say(self, tool: Tool, args: dict[str, Any]) -> None:
        self.calls += 1
        call = {"name": tool.name, "args": args, "id": f"c{self.calls}"}
        message: Message = {"type": "ai", "id": f"a{self.calls}", "content": "", "tool_calls": [call]}
        await self.journal.model_completed(ModelCompleted(message=message))

    async def make(self, tool: Tool, args: dict[str, Any]) -> str:
        call_id = f"c{self.calls}"

        async def handler(request: ToolCallRequest) -> ToolMessage | Command[Any]:
            text = await tool.function(cast(ToolContext, tool_context.get()), **args)
            return ToolMessage(text, tool_call_id=call_id, name=tool.name)

        request = ToolCallRequest(
            tool_call={"name": tool.name, "args": args, "id": call_id, "type": "tool_call"},
            tool=None,
            state={"messages": []},
            runtime=Runtime(context=self.turn),  # type: ignore[arg-type]
        )
        result = await self.chain.awrap_tool_call(request, handler)
        assert isinstance(result, ToolMessage)
        return str(result.content)

    async def change(self, name: str, path: str = F) -> str:
        tool, args = CHANGES[name]
        if tool is edit_files:
            return await self.use(tool, edits=[{"path": path, **edit} for edit in args["edits"]])
        return await self.use(tool, path=path, **args)

    @property
    def outcome(self) -> ToolCompleted:
        event = self.journal.events[-1]
        assert isinstance(event, ToolCompleted)
        return event


def sandbox(kind: str, home: Path) -> Callable[..., Awaitable[Any]]:
    actor = Sandbox(provider_of(kind, home), Limits(timeout_seconds=30))

    async def call(name: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        assert name == "sandbox"
        return await actor.answer(request, progress)

    return call


@pytest.fixture(params=["bubblewrap", "host"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Agent:
    return Agent(sandbox(request.param, tmp_path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that somebody else has put there."""
    path = tmp_path / "home/users/u/threads/t/user-data/workspace/f.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("old")
    return path


def unread(path: str = F) -> str:
    return f"{path} exists and was not read in this conversation; read it with read_file first"


def changed(path: str = F) -> str:
    return f"{path} has changed since it was last read or written here; read it again with read_file"


@EVERY_CHANGE
async def test_a_file_that_was_not_read_is_not_changed(agent: Agent, file: Path, change: str) -> None:
    assert await agent.change(change) == f"Error: {unread()}, then change it."
    assert file.read_text() == "old"
    assert agent.outcome.message["status"] == "error"
    assert agent.outcome.decisions == [Decision(policy="read_before_write", action="blocked", text=unread())]


@EVERY_CHANGE
@pytest.mark.parametrize("lines", [{}, {"start_line": 1, "end_line": 1}], ids=str)
async def test_a_file_that_was_read_is_changed(agent: Agent, file: Path, change: str, lines: dict[str, int]) -> None:
    await agent.use(read_file, path=F, **lines)
    assert await agent.change(change) in DONE
    assert "new" in file.read_text()
    assert agent.outcome.decisions == []


@EVERY_CHANGE
async def test_lines_beyond_the_end_are_not_read(agent: Agent, file: Path, change: str) -> None:
    assert "start_line: 7 is beyond the end" in await agent.use(read_file, path=F, start_line=7, end_line=9)
    assert await agent.change(change) == f"Error: {unread()}, then change it."
    assert file.read_text() == "old"


@EVERY_CHANGE
async def test_the_refused_may_read_and_try_again(agent: Agent, file: Path, change: str) -> None:
    await agent.change(change)
    await agent.use(read_file, path=F)
    assert await agent.change(change) in DONE


async def test_a_new_file_is_written_and_its_writer_knows_it(agent: Agent) -> None:
    assert await agent.use(write_file, path="a/b", content="old") == "OK"
    assert await agent.change("append", "a/b") in DONE
    assert await agent.change("replace", "a/b") in DONE
    assert await agent.change("write", "a/b") in DONE
    assert await agent.use(read_file, path="a/b") == "new"


@EVERY_CHANGE
async def test_what_somebody_else_changed_is_read_again(agent: Agent, file: Path, change: str) -> None:
    await agent.use(read_file, path=F)
    file.write_text("old and new")
    assert await agent.change(change) == f"Error: {changed()}, then change it."
    assert await agent.use(read_file, path=F) == "old and new"
    assert await agent.change(change) in DONE


async def test_what_its_own_command_changed_is_read_again(agent: Agent) -> None:
    await agent.use(write_file, path=F, content="old")
    await agent.use(bash, command=f"echo more >> {F}")
    assert await agent.change("write") == f"Error: {changed()}, then change it."


async def test_what_is_as_it_was_read_needs_no_reading(agent: Agent, file: Path) -> None:
    await agent.use(read_file, path=F)
    file.write_text("other")
    file.write_text("old")
    assert await agent.change("replace") in DONE


async def test_what_is_gone_is_written_anew(agent: Agent, file: Path) -> None:
    await agent.use(read_file, path=F)
    file.unlink()
    assert await agent.change("write") in DONE


@pytest.mark.parametrize("spelling", ["f.txt", "./f.txt", f"{W}//f.txt", f"{W}/./f.txt"])
async def test_a_path_may_be_spelled_otherwise(agent: Agent, file: Path, spelling: str) -> None:
    assert await agent.change("write", spelling) == f"Error: {unread()}, then change it."
    await agent.use(read_file, path=spelling)
    assert await agent.change("write") in DONE
    assert await agent.change("append", spelling) in DONE


async def test_each_file_is_read_for_itself(agent: Agent, file: Path) -> None:
    await agent.use(write_file, path="g.txt", content="old")
    await agent.use(read_file, path="g.txt")
    assert await agent.change("write") == f"Error: {unread()}, then change it."


async def test_what_failed_taught_nothing(agent: Agent, file: Path) -> None:
    await agent.use(read_file, path=F)
    failed = await agent.use(str_replace, path=F, old_str="absent", new_str="x")
    assert failed.startswith("Error: ")
    assert "artifact" not in agent.outcome.message
    assert await agent.change("replace") in DONE


async def test_a_forgotten_reading_does_not_count(agent: Agent, file: Path) -> None:
    await agent.use(read_file, path=F)
    agent.turn.state.messages.clear()
    assert await agent.change("write") == f"Error: {unread()}, then change it."


async def test_a_change_during_the_reading_is_seen(agent: Agent, file: Path) -> None:
    ask = agent._call

    async def meanwhile(name: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        answer = await ask(name, request, progress)
        if request["op"] == "read":
            file.write_text("changed")
        return answer

    agent._call = meanwhile
    assert await agent.use(read_file, path=F) == "old"
    assert await agent.change("write") == f"Error: {changed()}, then change it."


@EVERY_CHANGE
async def test_a_write_that_was_begun_before_a_crash_is_finished(agent: Agent, file: Path, change: str) -> None:
    tool, args = CHANGES[change]
    arguments = (
        {"edits": [{"path": F, **each} for each in args["edits"]]} if tool is edit_files else {"path": F, **args}
    )
    await agent.use(read_file, path=F)
    await agent.say(tool, arguments)
    agent.journal._take(ToolRequested(call_id="c2", name=tool.name, effect="idempotent"))
    file.write_text("old, written by the first attempt")
    assert await agent.make(tool, arguments) in DONE


async def test_no_question_too_many(agent: Agent, file: Path) -> None:
    await agent.use(ls, path=W)
    await agent.change("write")
    await agent.use(read_file, path=F)
    await agent.change("append")
    await agent.use(str_replace, path=F, old_str="absent", new_str="x")
    assert agent.questions == [
        *["list"],
        *["version"],
        *["version", "read"],
        *["version", "write", "version"],
        *["version", "replace"],
    ]


@pytest.mark.parametrize(
    ("path", "complaint"), [("/etc/passwd", "outside"), ("../x", "not allowed"), (W, "is a directory"), ("", "empty")]
)
@EVERY_CHANGE
async def test_what_is_no_file_of_the_thread_the_tool_answers(
    agent: Agent, path: str, complaint: str, change: str
) -> None:
    assert complaint in await agent.change(change, path)
    assert agent.outcome.decisions == []


@pytest.mark.parametrize("error", [Unavailable("no sandbox"), Invalid("op: version is unknown")], ids=["away", "old"])
@pytest.mark.parametrize("name", ["read_file", "write_file", "str_replace"])
async def test_a_sandbox_that_cannot_tell_stands_in_nobodys_way(error: Exception, name: str) -> None:
    async def call(*_: Any) -> Any:
        raise error

    on, raw = turn(call=call), ToolMessage("OK", tool_call_id="c1", name=name)
    result, calls = await tool_call(ReadBeforeWrite(), on, name, {"path": F}, result=raw)
    assert calls == [{"path": F}]
    assert result is raw
    assert on.decided("c1") == []


@pytest.mark.parametrize(("name", "args"), [("bash", {"path": F}), ("write_file", {}), ("read_file", {"path": 3})])
async def test_what_is_none_of_its_business(name: str, args: dict[str, Any]) -> None:
    _, calls = await tool_call(ReadBeforeWrite(), turn(), name, args)  # which fails if anything is asked
    assert calls == [args]


async def version(*_: Any) -> str:
    return "v1"


async def test_an_artifact_keeps_what_it_has() -> None:
    raw = ToolMessage("text", tool_call_id="c1", name="read_file", artifact={"pages": 2})
    result, _ = await tool_call(ReadBeforeWrite(), turn(call=version), "read_file", {"path": "f.txt"}, result=raw)
    assert isinstance(result, ToolMessage)
    assert result.artifact == {"pages": 2, "file": {"path": F, "sha256": "v1"}}


async def test_a_command_is_stamped_in_its_message() -> None:
    message = ToolMessage("text", tool_call_id="c1", name="read_file")
    command: Command[None] = Command(update={"todos": [], "messages": [message]})
    result, _ = await tool_call(ReadBeforeWrite(), turn(call=version), "read_file", {"path": F}, result=command)
    assert isinstance(result, Command)
    assert isinstance(result.update, dict)
    assert result.update["todos"] == []
    assert result.update["messages"][0].artifact == {"file": {"path": F, "sha256": "v1"}}


async def test_over_the_bus(tmp_path: Path) -> None:
    async with site(tmp_path, {}) as (client, _):
        agent = Agent(client.system.call)
        assert await agent.use(write_file, path=F, content="old") == "OK"
        assert await agent.change("replace") in DONE
        await agent.use(bash, command=f"echo x > {F}")
        assert await agent.change("write") == f"Error: {changed()}, then change it."
        assert await agent.use(write_file, path="../x", content="") == "Error: ../x: '..' is not allowed"
