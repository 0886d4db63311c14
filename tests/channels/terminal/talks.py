"""Talks with a real server, whose model is scripted, over lines that break."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from channels.client import AsyncSikaClient
from channels.terminal.chat.chat import OK, Chat
from channels.terminal.console.interrupts import Interrupts
from channels.terminal.console.screen import Screen
from core.ids import uuid7
from tests.channels.client.stage import Stage
from tests.support.model_server import Failure, ModelServer, ToolCall, Turn
from tests.support.workers import DEADLINE


def bash(*commands: str) -> Turn:
    return Turn(tool_calls=tuple(ToolCall("bash", {"description": "d", "command": one}) for one in commands))


COLOUR = {"question": "Which colour?", "clarification_type": "approach_choice", "options": ["red", "blue"] * 5}
CLARIFIES = Turn(tool_calls=(ToolCall("ask_clarification", COLOUR),))
ASKS = Turn(tool_calls=(ToolCall("ask", {"question": "Which one?"}), ToolCall("ask", {"question": "Why?"})))
DONE = Turn(text="All done.")
SCRIPTS: Mapping[str, Sequence[Turn]] = {
    "default": [Turn(text="Hello\nand never more", gate="default", gate_after=2)] * 2,
    "hello": [Turn(text="Hello,\nworld")] * 12,
    "judge": [Turn(text='{"verdict": "not_met", "reason": "no world was seen"}')],
    "failing": [Turn(error=Failure(status=400, message="slow\x1b[2J down"))],
    "clarifying": [CLARIFIES, CLARIFIES, DONE],
    "one": [bash("echo A1"), DONE],
    "two": [bash("echo A1", "echo B2"), DONE],
    "three": [bash("echo A1", "echo B2", "echo C3"), DONE],
    "gated": [bash("echo A1"), Turn(text="All done.", gate="end")],
    "stopping": [bash("echo A1"), Turn(text="All done.", gate="never")],
    "asking": [ASKS, DONE],
    **{
        name: [Turn(text="Hello\nand never more", gate=name, gate_after=2)]
        for name in ("busy", "stop", "leave", "line")
    },
}
RULE = {"tool": "bash", "text": "It writes.", "deadline_seconds": 3600}


class Place(NamedTuple):
    """A server of these tests, its configuration, and its models."""

    stage: Stage
    models: ModelServer
    config: Path
    url: str

    async def reached(self, gate: str) -> None:
        await asyncio.to_thread(self.stage.call, self.models.reached, gate)

    def release(self, gate: str) -> None:
        async def release() -> None:
            self.models.release(gate)

        self.stage.call(release)


class Typed:
    """Lines from a list. A callable in it is called instead of a line being typed."""

    def __init__(self, *lines: str | Callable[[], None]) -> None:
        self._lines = list(lines)

    def forget(self) -> None:
        """Nothing is typed before it is asked for."""

    async def line(self, prompt: str) -> str | None:
        if not self._lines:
            return None
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line
        line()
        await anyio.sleep_forever()
        raise AssertionError

    answer = line


class Paper(io.StringIO):
    """A file that says when something was written."""

    def __init__(self, wrote: Callable[[str], None]) -> None:
        super().__init__()
        self._wrote = wrote

    def write(self, text: str) -> int:
        self._wrote(text)
        return super().write(text)


class Talk:
    """A chat, and what it wrote. `before` is called with every prompt, `noticed` with every notice."""

    def __init__(self, place: Place, url: str, model: str, thread: str | None, latest: bool) -> None:
        self.place, self.model = place, model
        self.shown = ""
        """Answers and notices, in their order."""
        self.pressed = Interrupts()
        self.noticed: Callable[[str], None] = lambda text: None
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.forgotten: list[str] = []
        """What was shown when what was typed ahead was dropped."""
        self._changed = asyncio.Event()
        self._out, self._err = Paper(self._wrote), Paper(self._told)
        screen = Screen(self._out, self._err)
        connect = partial(AsyncSikaClient, url=url, model_name=model)
        self.chat = Chat(connect, self.pressed, screen, thread=thread, latest=latest)
        self.client = self.chat.client
        self._typed = Typed()

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def notices(self) -> list[str]:
        return self._err.getvalue().splitlines()

    @property
    def thread(self) -> str:
        assert self.chat.thread is not None
        return self.chat.thread

    async def until(self, words: str) -> None:
        """Wait for something that is shown."""
        with anyio.fail_after(DEADLINE):
            while words not in self.shown:
                self._changed.clear()
                await self._changed.wait()

    async def converse(self, *typed: str | Callable[[], None]) -> str:
        """What is shown when these lines are typed."""
        self.shown, self._typed = "", Typed(*typed)
        with anyio.fail_after(DEADLINE):
            assert await self.chat.converse(self, self.place.url) == OK
        assert await self._typed.line("") is None, "not everything was read"
        return self.shown

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Something about the thread, past the chat."""
        return await self.client._json(method, f"/api/threads/{self.thread}{path}", body)

    def forget(self) -> None:
        self.forgotten.append(self.shown)

    async def line(self, prompt: str) -> str | None:
        if self.before is not None:
            await self.before(prompt)
        return await self._typed.line(prompt)

    answer = secret = line

    def while_working(
        self, shown: Callable[[str], None], entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, text: str) -> bool:
        return False  # what is not sent is not typed again

    def _wrote(self, text: str) -> None:
        self.shown += text
        self._changed.set()

    def _told(self, text: str) -> None:
        self._wrote(text)
        self.noticed(text)


@asynccontextmanager
async def talking(
    place: Place, model: str, *, url: str | None = None, new: bool = False, latest: bool = False
) -> AsyncIterator[Talk]:
    """A talk on a thread of its own, which does not exist yet; `new`: and has no name."""
    talk = Talk(place, url or place.url, model, None if new or latest else uuid7(), latest)
    async with talk.chat:
        yield talk
