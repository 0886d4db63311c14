"""A stage for tools: the context of a call in memory, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.errors import Invalid
from core.files.paths import file_path
from core.tools import MOST_BYTES, Completion, Prompt, Question, Response, Tool


class MemoryFiles:
    """Implements `core.tools.Files`. `contents` has the files by their absolute paths."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = {file_path(path): content for path, content in contents.items()}

    async def read(self, path: str) -> bytes:
        if file_path(path) not in self.contents:
            raise Invalid(f"{file_path(path)}: there is no such file")
        return self.contents[file_path(path)]

    async def write(self, path: str, content: bytes | str) -> str:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)
        if len(data) > MOST_BYTES:
            raise Invalid(f"{file_path(path)}: larger than {MOST_BYTES >> 20} MB")
        self.contents[file_path(path)] = data
        return file_path(path)

    async def list(self, path: str = "") -> Sequence[str]:
        return sorted(each for each in self.contents if each.startswith(f"{file_path(path)}/"))


class ToolStage:
    """Implements `core.tools.ToolContext`: what a tool asks gets the answers of the test.

    `files`: contents by path. `answer(actor, request)` answers requests to actors, `respond(question)` stands for a
    person, `text` is what the model answers. `stages` are those that the tool showed.
    """

    thread, user, run, call_id = "t1", "ada", "r1", "c1"
    subagent: str | None = None
    channel_user = ""
    resumed = False
    seconds_left: float | None = None

    def __init__(
        self,
        files: Mapping[str, bytes] = {},
        *,
        answer: Callable[[str, Mapping[str, Any]], Any] | None = None,
        respond: Callable[[Question], Response] = lambda _: Response(None),
        text: str = "",
    ) -> None:
        self.files = MemoryFiles(files)
        self.stages: list[str] = []
        self._answer, self._respond, self._text = answer, respond, text

    async def use(self, tool: Tool, **arguments: Any) -> Any:
        """Returns the result of the tool. Raises what it raises."""
        return await tool.function(self, **arguments)

    async def stage(self, text: str) -> None:
        self.stages.append(" ".join(text.split()))

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        if self._answer is None:
            raise Invalid(f"the tool asks the actor {actor}: give the stage an `answer`")
        return self._answer(actor, request)

    async def approved(self, step: Mapping[str, Any], text: str) -> bool:
        return (await self.ask(Question(text, step))).accepted is True

    async def ask(self, question: Question) -> Response:
        return self._respond(question)

    async def complete(self, prompt: Prompt) -> Completion:
        return Completion(self._text, "test")
