"""`sika chat`: one message and its answer, or a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeVar
from urllib.parse import quote

import anyio

from channels.terminal.client import Client
from channels.terminal.keyboard import Interrupts
from channels.terminal.questions import Question, Read, answer, decision, question_text, questions_of
from channels.terminal.render import Transcript, failure
from channels.terminal.text import Style, clean, one_line, thread_lines
from channels.terminal.turn import OPEN, Turn, answered, said
from core.errors import Invalid, NotFound, Refused, SikaError
from core.ids import safe_id, uuid7

HELP = """\
/new          begin another thread
/threads      list the latest threads; /threads N goes on with the N-th
/asked        what the agent waits for: asks for it again
/quit         leave (so does Ctrl-D)
/help         this list
Ctrl-C        stops the run that is going on, or leaves a question open
A number      alone, takes that option of the agent's question"""
COMMANDS = ("/new", "/threads", "/asked", "/quit", "/help")
"""What is one also where an answer is expected."""
LEFT_OPEN = "(left open: /asked asks again, a message goes on without it)"

OK, FAILED, STOPPED = 0, 1, 130

Write = Callable[[str], None]
T = TypeVar("T")


class Stopped(Exception):
    """Ctrl-C ended the wait for the server's answer."""


class Lines(Protocol):
    """Where a conversation's messages come from; None is the end."""

    async def line(self, prompt: str) -> str | None: ...

    def forget(self) -> None:
        """What was typed before it was asked for is no answer."""
        ...


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
        latest: bool = False,
        plan: bool = False,
        locate: Callable[[str, str], str] = lambda thread, path: path,
    ) -> None:
        """`latest`: go on with the thread that changed last. `locate` says where a thread's file is for the person."""
        self.thread = safe_id(thread, "--thread") if thread else None
        self._latest = latest
        self._locate = locate
        self._client = client
        self._interrupts = interrupts
        self._out, self._notice = out, notice
        self._style = style or Style()
        self._plan = plan
        self._listed: list[str] = []
        self._transcript = self._new_transcript()
        self._waiting: list[Question] = []
        self._instead: str | None = None
        """A command that was typed where an answer was expected."""

    async def once(self, message: str) -> int:
        """One turn; the exit code."""
        try:
            await self._begin()
            code = await self._turn(message)
            for number, question in enumerate(self._waiting, 1):
                self._show(question, number)
            if self._waiting:
                self._notice(f"the agent waits for you: sika chat --thread {self.thread} asks what is to be done")
            return code
        except Stopped:
            self._notice("stopped")
            return STOPPED
        finally:
            self._goodbye()

    async def converse(self, lines: Lines) -> int:
        """Turn after turn, until the input ends; the exit code."""
        await self._do(self._greet(), lines)
        while (line := self._instead or await self._next(lines)) is not None and line.strip() != "/quit":
            self._instead = None
            await self._do(self._act(line), lines)
        self._goodbye()
        return OK

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _do(self, work: Awaitable[None], lines: Lines) -> None:
        """Something, and the questions that come of it. A failure is told, and leaves them open."""
        try:
            await work
            await self._answer_all(lines)
        except SikaError as error:
            self._waiting = []
            self._failed(str(error))
        except Stopped:
            self._waiting = []
            self._notice("stopped")

    async def _begin(self) -> None:
        """Say what is wrong with the server, and find the thread."""
        for problem in await self._ask(self._client.problems()):
            self._notice(self._style.yellow(f"the server has a problem: {one_line(problem, 500)}"))
        if self._latest:
            self._latest = False
            threads = await self._ask(self._client.threads(1))
            if not threads:
                raise NotFound("--continue: there is no thread yet")
            self.thread = str(threads[0]["thread_id"])
            self._notice(f"thread {self.thread}: {one_line(threads[0]['title'], 60) or '(empty)'}")
        elif self.thread is not None:
            try:
                await self._ask(self._client.ask("GET", f"/api/threads/{self.thread}"))
            except NotFound:
                self._notice(f"thread {self.thread} is new: there was none of this name")

    async def _greet(self) -> None:
        model = await self._ask(self._client.default_model())
        self._notice(f"Sika on {self._client.url}, model {one_line(model, 80)}. /help lists the commands.")
        await self._begin()
        await self._look()

    async def _act(self, line: str) -> None:
        if line.startswith("/"):
            await self._command(line.strip())
        elif line.strip():
            await self._turn(self._picked(line))

    async def _next(self, lines: Lines) -> str | None:
        """The next line. Ctrl-C asks for it again; a second one in a row is the end."""
        for again in (True, False):
            if found := await self._read(lines, "> "):
                return found[0]
            if again:
                self._notice("\n(again Ctrl-C, or /quit, to leave)")
        return None

    async def _ask(self, request: Awaitable[T]) -> T:
        """What the server answers. Raises `Stopped` at Ctrl-C: a server that is away is waited for."""
        answers: list[T] = []
        problem: SikaError | None = None
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await self._interrupts.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            try:
                answers.append(await request)
            except SikaError as error:  # a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        if not answers:
            raise Stopped
        return answers[0]

    async def _read(self, lines: Lines, prompt: str) -> list[str | None]:
        """What was typed; nothing after Ctrl-C."""
        found: list[str | None] = []
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                found.append(await lines.line(prompt))
                tasks.cancel_scope.cancel()

            tasks.start_soon(read)
            await self._interrupts.wait()
            tasks.cancel_scope.cancel()
        return found

    async def _command(self, line: str) -> None:
        match line.split():
            case ["/new"]:
                self.thread = None
                self._forget()
            case ["/threads"]:
                threads = await self._ask(self._client.threads())
                self._listed = [str(thread["thread_id"]) for thread in threads]
                self._out("\n".join(thread_lines(threads)) + "\n" if threads else "no threads yet\n")
            case ["/threads", number] if number.isdecimal() and 0 < int(number) <= len(self._listed):
                self.thread = self._listed[int(number) - 1]
                self._notice(f"thread {self.thread}")
                await self._look()
            case ["/asked"]:
                await self._look()
                if not self._waiting and not self._transcript.asks:
                    self._notice("nothing is asked")
            case _:
                self._out(HELP + "\n")

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _turn(self, message: str) -> int:
        new = self.thread is None
        self.thread = self.thread or uuid7()
        try:
            await self._ask(self._client.ensure_thread(self.thread))
        except (SikaError, Stopped):
            self.thread = None if new else self.thread
            raise
        self._forget()
        return await self._follow(Turn(self._client, self.thread, said(message), plan=self._plan))

    def _forget(self) -> None:
        """Something new begins."""
        self._transcript, self._waiting = self._new_transcript(), []

    def _new_transcript(self) -> Transcript:
        return Transcript(self._style, lambda path: self._locate(self.thread or "", path))

    async def _follow(self, turn: Turn) -> int:
        """Show a run until it has ended. What it is paused at is waiting then."""
        transcript, self._waiting = self._transcript, []
        transcript.questions = []
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
        if turn.status is not None and transcript.questions:
            self._waiting = transcript.questions
            return STOPPED
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

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _picked(self, line: str) -> str:
        """A message; the option, if it is the number of one."""
        number, options = line.strip(), self._transcript.options
        numbers = [str(n) for n in range(1, len(options) + 1)]
        return options[numbers.index(number)] if number in numbers else line

    async def _answer_all(self, lines: Lines) -> None:
        """Ask about what waits and follow what comes of it, until nothing waits, or a question is left open."""
        while self._waiting:
            question = self._waiting[0]
            lines.forget()
            self._show(question, 1)
            try:
                turn = await self._answered(question, partial(self._line, lines))
                if turn is None:
                    self._waiting = []
                    if self._instead is None:
                        self._notice(LEFT_OPEN)
                else:
                    await self._follow(turn)
            except (Refused, Invalid) as error:
                self._failed(str(error))
                await self._look_again()

    async def _answered(self, question: Question, read: Read) -> Turn | None:
        """The run that goes on with the person's answer; None if there is none."""
        assert self.thread is not None
        if question.approval is None:
            text = await answer(read)
            wanted = None if text is None else answered(question.id, text)
            return Turn(self._client, self.thread, wanted, plan=self._plan) if wanted else None
        decided = await decision(question, read, self._notice)
        if decided is None:
            return None
        path = f"/api/threads/{self.thread}/approvals/{quote(question.approval, safe='')}"
        run = (await self._ask(self._client.ask("POST", path, decided)))["run_id"]
        return Turn(self._client, self.thread, run=str(run))

    async def _line(self, lines: Lines, prompt: str) -> str | None:
        """An answer; None if the question is left open: after Ctrl-C, at the end of the input, for a command."""
        found = await self._read(lines, prompt)
        line = found[0] if found else None
        if line is not None and line.strip().partition(" ")[0] in COMMANDS:
            self._instead = line.strip()
            return None
        if line is None:
            self._notice("")
        return line

    async def _look(self) -> None:
        """What the thread waits for."""
        self._forget()
        if self.thread is None:
            return
        try:
            thread = await self._ask(self._client.ask("GET", f"/api/threads/{self.thread}"))
        except NotFound:
            return  # it begins with the first message
        if thread.get("status") != "busy":
            asked = [one for task in (thread.get("interrupts") or {}).values() for one in task]
            self._waiting = questions_of(asked)
            self._out(self._transcript.reopen(thread.get("values") or {}))

    async def _look_again(self) -> None:
        """Somebody was quicker: what they made of it, if it is still going on, and what waits after that."""
        runs = await self._ask(self._client.ask("GET", f"/api/threads/{self.thread}/runs?limit=10"))
        run = next((str(run["run_id"]) for run in runs if run.get("status") in OPEN), None)
        if run is None:
            await self._look()
        else:
            assert self.thread is not None
            self._notice("the thread goes on with somebody else's answer")
            await self._follow(Turn(self._client, self.thread, run=run))

    def _show(self, question: Question, number: int) -> None:
        of = len(self._waiting)
        self._out(question_text(question, f" ({number} of {of})" if of > 1 else "", self._style))

    def _failed(self, text: str) -> None:
        self._notice(self._style.red(f"error: {clean(text)}"))

    def _goodbye(self) -> None:
        if self.thread is not None:
            self._notice(f"thread {self.thread} (go on with: sika chat --thread {self.thread})")
