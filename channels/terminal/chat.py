"""`sika chat`: one message and its answer, or a conversation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

import anyio

from channels.terminal.client import Client
from channels.terminal.keyboard import Interrupts
from channels.terminal.render import Transcript, failure
from channels.terminal.text import Style, clean, thread_lines
from channels.terminal.turn import Turn
from core.errors import SikaError
from core.ids import safe_id, uuid7

HELP = """\
/new          begin another thread
/threads      list the latest threads; /threads N goes on with the N-th
/quit         leave (so does Ctrl-D)
/help         this list
Ctrl-C        stops the run that is going on"""

OK, FAILED, STOPPED = 0, 1, 130

Write = Callable[[str], None]


class Lines(Protocol):
    """Where a conversation's messages come from; None is the end."""

    async def line(self, prompt: str) -> str | None: ...


class Chat:
    """A person's talk with one server. `out` takes what the agent says, `notice` what the program has to say."""

    def __init__(
        self,
        client: Client,
        interrupts: Interrupts,
        *,
        out: Write,
        notice: Write,
        style: Style | None = None,
        thread: str | None = None,
        plan: bool = False,
    ) -> None:
        self.thread = safe_id(thread, "--thread") if thread else None
        self._client = client
        self._interrupts = interrupts
        self._out, self._notice = out, notice
        self._style = style or Style()
        self._plan = plan
        self._listed: list[str] = []

    async def once(self, message: str) -> int:
        """One turn; the exit code."""
        try:
            return await self._turn(message)
        finally:
            self._goodbye()

    async def converse(self, lines: Lines) -> int:
        """Turn after turn, until the input ends; the exit code."""
        while True:
            line = await self._next(lines)
            if line is None or line.strip() == "/quit":
                self._goodbye()
                return OK
            try:
                if line.startswith("/"):
                    await self._command(line.strip())
                elif line.strip():
                    await self._turn(line)
            except SikaError as error:
                self._failed(str(error))

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _next(self, lines: Lines) -> str | None:
        """The next line. Ctrl-C asks for it again; a second one in a row is the end."""
        for again in (True, False):
            found: list[str | None] = []
            async with anyio.create_task_group() as tasks:

                async def read(found: list[str | None] = found, scope: anyio.CancelScope = tasks.cancel_scope) -> None:
                    found.append(await lines.line("> "))
                    scope.cancel()

                tasks.start_soon(read)
                await self._interrupts.wait()
                tasks.cancel_scope.cancel()
            if found:
                return found[0]
            if again:
                self._notice("\n(again Ctrl-C, or /quit, to leave)")
        return None

    async def _command(self, line: str) -> None:
        match line.split():
            case ["/new"]:
                self.thread = None
            case ["/threads"]:
                threads = await self._client.threads()
                self._listed = [str(thread["thread_id"]) for thread in threads]
                self._out("\n".join(thread_lines(threads)) + "\n" if threads else "no threads yet\n")
            case ["/threads", number] if number.isdecimal() and 0 < int(number) <= len(self._listed):
                self.thread = self._listed[int(number) - 1]
                self._notice(f"thread {self.thread}")
            case _:
                self._out(HELP + "\n")

    async def _turn(self, message: str) -> int:
        new = self.thread is None
        self.thread = self.thread or uuid7()
        try:
            await self._client.ensure_thread(self.thread)
        except SikaError:
            self.thread = None if new else self.thread
            raise
        turn = Turn(self._client, self.thread, message, plan=self._plan)
        transcript = Transcript(self._style)
        problem: SikaError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_when_asked, turn, tasks.cancel_scope)
            try:
                async with aclosing(turn.frames()) as frames:
                    async for frame in frames:
                        if text := transcript.feed(frame.event, frame.data):
                            self._out(text)
                        if frame.event == "error":
                            self._out(transcript.close())
                            self._failed(failure(frame.data))
            except SikaError as error:  # a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        self._out(transcript.close())
        if problem is not None:
            raise problem
        if turn.status in (None, "interrupted"):
            self._notice("stopped")
            return STOPPED
        return OK if turn.status == "success" else FAILED

    async def _stop_when_asked(self, turn: Turn, scope: anyio.CancelScope) -> None:
        """The first Ctrl-C cancels the run, the second one stops waiting for its end."""
        await self._interrupts.wait()
        self._notice("\nstopping the run …")
        async with anyio.create_task_group() as tasks:

            async def impatient() -> None:
                await self._interrupts.wait()
                scope.cancel()

            tasks.start_soon(impatient)
            try:
                await turn.cancel()
            except SikaError as error:
                self._failed(str(error))

    def _failed(self, text: str) -> None:
        self._notice(self._style.red(f"error: {clean(text)}"))

    def _goodbye(self) -> None:
        if self.thread is not None:
            self._notice(f"thread {self.thread} (go on with: sika chat --thread {self.thread})")
