"""`sika chat`: a message and its answer, or a conversation."""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from anyio import to_thread

from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError, Invalid, NotFound, Refused, RunFailed, Unauthenticated, Unavailable
from channels.client.events import StreamEvent
from channels.client.here import Access, Consents, Here
from channels.client.wire import AWAY_SECONDS
from channels.terminal.chat import choices, variables
from channels.terminal.chat.attachments import check_names, named, pictures, with_files
from channels.terminal.chat.changes import change_lines, latest_changes, shown_path
from channels.terminal.chat.choices import Choices, named_options
from channels.terminal.chat.costs import cost_line
from channels.terminal.chat.goals import continuation, goal_line
from channels.terminal.chat.questions import Question, answer, card_answer, decision, question_lines, questions_of
from channels.terminal.chat.render import Transcript
from channels.terminal.chat.shown_run import ShownRun
from channels.terminal.chat.threads import latest_threads, thread_rows
from channels.terminal.console.interrupts import Interrupts, Stopped
from channels.terminal.console.lines import Lines
from channels.terminal.console.screen import Screen
from channels.terminal.text import one_line
from core.errors import SikaError
from core.ids import ordinal, safe_id, uuid7

HELP = """\
/new          begin another thread
/threads      list the latest threads; /threads N, or an id or its beginning, goes on with that one
/model        the models; /model NAME: that one answers from now on. So do /agent, /mode and /effort
/cost         tokens and cost of this conversation; /cost on: after each turn, too
/goal TEXT    go on by itself until that is reached; /goal shows it, /goal clear gives it up
/here         the folder that the agent works on; /here rw or ro: this one, /here off: none
/env          variables of the agent's commands; /env NAME=VALUE sets one, /env NAME a secret, /env NAME= removes it
/diff         what the last run changed of files; /diff NAME: of files of that name
/undo         takes that back, all or nothing; again: what the run before changed
/asked        what the agent waits for: asks for it again
/quit         leave (so does Ctrl-D)
/help         this list
/SKILL TEXT   calls a skill (`sika skill list`); /SERVER:PROMPT, a prompt of an MCP server
@file         uploads a file of this machine with the message (@"a name" with spaces)
Tab           completes commands, names, skills and files; Alt-Enter begins another line
Enter         while a run works, what you type reaches the agent before its next step
Ctrl-C        stops the run that is going on, or leaves a question open
A number      alone, takes that option of the agent's question"""
COMMANDS = (
    "/new",
    "/threads",
    *choices.COMMANDS,
    "/cost",
    "/goal",
    "/here",
    "/env",
    "/diff",
    "/undo",
    "/asked",
    "/quit",
    "/help",
)
"""Lines that are commands also where an answer is expected."""
LEFT_OPEN = "(left open: /asked asks again, a message goes on without it)"
MOST_NAMED = 100
"""The latest threads that can be named by the beginnings of their ids."""
API_KEY = "SIKA_API_KEY"
"""Environment variable: the key for a server with accounts (`sika key create`)."""
OPEN = ("pending", "running")
"""Statuses of runs that have not ended."""
OK, FAILED, WAITING, STOPPED = 0, 1, 3, 130
"""Exit codes. WAITING: the agent waits for an approval or an answer. 2 is for wrong arguments."""


class Misused(SikaError):
    """A line that begins as a command, and is none."""

    code = "invalid"


class Chat:
    """A person's conversation with a server, over a client that `connect` creates."""

    def __init__(
        self,
        connect: Callable[..., AsyncSikaClient],
        interrupts: Interrupts,
        screen: Screen,
        *,
        thread: str | None = None,
        latest: bool = False,
        here: Here | None = None,
        consents: Consents | None = None,
        locate: Callable[[str, str], str] = lambda thread, path: path,
        chosen: Choices | None = None,
        costs: bool = False,
    ) -> None:
        """`latest`: go on with the thread that changed last. `here`: the folder that the agent works on, to which the
        person has agreed; `consents`: where that is remembered. `locate` returns the person's path of a thread's file.
        `chosen`: who answers, and how. `costs`: show tokens and cost after each turn.
        """
        self.thread = safe_id(thread, "--thread") if thread else None
        self.client = connect(on_outage=self._outage)
        self._latest = latest
        self._here, self._consents = here, consents
        self._choices = chosen or Choices()
        self._costs = costs
        self._attached: set[str] = set()
        """The threads that work on `here`."""
        self._locate = locate
        self._screen = screen
        self._ask = interrupts.unless_pressed
        self._run = ShownRun(self.client, interrupts, screen)
        self._listed_threads: list[str] = []
        self._prompting = False
        self._lines: Lines | None = None
        self._transcript = self._new_transcript()
        self._waiting: list[Question] = []
        self._sent, self._unsent = False, ""
        """True if the line in hand has reached the server; the line before, if it was a message and has not."""
        self._next_command: str | None = None
        """A command typed where an answer was expected."""

    async def __aenter__(self) -> Chat:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def once(self, message: str, piped: str = "") -> int:
        """Runs a single turn, with a piped text after the message; returns the exit code. Raises `Invalid` before it
        begins, for names of files that are not here.
        """
        try:
            await _check_names(message)
            await self._begin()
            word = message.strip().partition(" ")[0]
            if word in COMMANDS or not await self._goes_to_agent(word):
                await self._command(message.strip())
                return OK
            code = await self._turn(message, piped)
            for number, question in enumerate(self._waiting, 1):
                self._show(question, number)
            if self._waiting or self._transcript.asks:
                self._screen.notice(f"the agent waits for you: {self._command_line} asks what is to be done")
                return WAITING
            return code
        except Stopped:
            self._screen.notice("stopped")
            return STOPPED
        finally:
            self._show_hint()

    async def converse(self, lines: Lines, url: str) -> int:
        """Runs turns until the input ends; returns the exit code."""
        self._lines = self._run.lines = lines
        await self._do(self._greet(url), lines)
        while (line := self._next_command or await self._next(lines)) is not None and line.strip() != "/quit":
            self._next_command = None
            await self._do(self._act(line, lines), lines)
        self._show_hint()
        return OK

    async def report(self) -> dict[str, Any]:
        """Returns the last turn for a program: `{thread_id, run_id, status, error, usage, questions}`."""
        run = await self.client.get_run(self.thread, self._run.id) if self.thread and self._run.id else {}
        waits = bool(self._waiting) or self._transcript.asks
        return {
            "thread_id": self.thread,
            "run_id": self._run.id or None,
            "status": "waiting" if waits else run.get("status"),
            "error": (run.get("error") or {}).get("message"),
            "usage": {name: run.get(f"total_{name}", 0) for name in ("input_tokens", "output_tokens", "tokens")},
            "questions": [{"id": question.id, "value": question.value} for question in self._waiting],
        }

    async def threads(self, limit: int = 20) -> list[dict[str, Any]]:
        """Returns the latest threads: `{thread_id, updated_at, title}`. The title may be that of the first message."""
        return await latest_threads(self.client, limit)

    async def words(self, command: str) -> Sequence[tuple[str, str]]:
        """Returns what can follow a command, with a line about each; after `/`, the skills. Nothing while the server is
        away.
        """
        try:
            match command:
                case "/":
                    skills = (await self.client.list_skills())["skills"]
                    return [(f"/{one['name']}", str(one.get("description"))) for one in skills if one["enabled"]]
                case "/threads":
                    return [(str(thread["thread_id"]), thread["title"]) for thread in await self.threads()]
                case _ if command in choices.COMMANDS:
                    return await named_options(self.client, command)
        except ClientError:
            pass
        return ()

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _do(self, work: Awaitable[None], lines: Lines) -> None:
        """Awaits the work, then answers its questions. An error is shown, and leaves them open."""
        try:
            await work
            await self._answer_all(lines)
        except (ClientError, SikaError) as error:
            self._waiting = []
            self._screen.error(explained(error))
        except Stopped:
            self._waiting = []
            self._screen.notice("stopped")

    async def _begin(self) -> None:
        """Shows the server's problems, and finds the thread."""
        for part in (await self._ask(self.client.readiness())).get("missing") or ():
            problem = one_line(f"{part.get('part')}: {part.get('reason')}", 500)
            self._screen.notice(f"the server has a problem: {problem}", "yellow")
        if self._latest:
            self._latest = False
            threads = await self._ask(self.threads(1))
            if not threads:
                raise NotFound("--continue: there is no thread yet")
            self.thread = str(threads[0]["thread_id"])
            self._screen.notice(f"thread {self.thread}: {one_line(threads[0]['title'], 60) or '(empty)'}")
        elif self.thread is not None:
            try:
                await self._ask(self.client.describe_thread(self.thread))
                if self._here is None:
                    self._notice_folder(await self._ask(self.client.get_folder(self.thread)))
            except NotFound:
                self._screen.notice(f"thread {self.thread} is new: there was none of this name")

    async def _greet(self, url: str) -> None:
        chosen = await self._ask(self._choices.model_in_force(self.client))
        name, model = chosen.get("name"), chosen.get("model")
        default = f"{name} ({model})" if name and model != name else str(name or "unknown")
        self._screen.notice(f"Sika on {url}, model {one_line(default, 80)}. /help lists the commands.")
        await self._begin()
        await self._look()

    async def _act(self, line: str, lines: Lines) -> None:
        """Does a command or sends a message. A message that is not sent begins the next line."""
        repeated, self._unsent, self._sent = line == self._unsent, "", False
        try:
            if not repeated:
                await _check_names(line)
            if line.startswith("/"):
                await self._command(line.strip())
            elif line.strip():
                await self._turn(self._resolve_option(line))
        except (ClientError, SikaError) as error:
            if self._sent or isinstance(error, Misused) or not _is_message(line):
                raise
            self._waiting = []
            self._screen.error(explained(error))
            if lines.begin(line):
                self._unsent = line
                self._screen.notice("(not sent: it is at the prompt again, and Enter sends it as it is)")

    async def _next(self, lines: Lines) -> str | None:
        """Returns the next line. Ctrl-C prompts again; a second one in a row ends the input."""
        for again in (True, False):
            try:
                return await self._prompted(lines.line("> "))
            except Stopped:
                if again:
                    self._screen.notice("(again Ctrl-C, or /quit, to leave)")
        return None

    async def _prompted(self, line: Awaitable[str | None]) -> str | None:
        self._prompting = True
        try:
            return await self._ask(line)
        finally:
            self._prompting = False

    def _outage(self, error: Unavailable | None) -> None:
        if self._prompting:  # a failed completion is not worth a notice
            return
        if error is None:
            self._screen.notice("connected again")
            self._transcript.reconnected()
        else:
            self._screen.notice(f"connection lost ({error}); trying again for up to {AWAY_SECONDS:g} s")

    async def _command(self, line: str) -> None:
        match line.split():
            case ["/new"]:
                self.thread = None
                self._reset()
            case ["/threads"]:
                threads = await self._ask(self.threads())
                self._listed_threads = [str(thread["thread_id"]) for thread in threads]
                if threads:
                    self._screen.table(thread_rows(threads))
                else:
                    self._screen.line("no threads yet")
            case ["/threads", name] if number := ordinal(name, len(self._listed_threads)):
                await self._turn_to(self._listed_threads[number - 1])
            case ["/threads", name]:
                await self._turn_to(await self._ask(self._thread_named(safe_id(name, "/threads"))))
            case [word] if word in choices.COMMANDS:
                self._screen.table(await self._ask(self._choices.rows(self.client, word)))
            case [word, name] if word in choices.COMMANDS:
                self._screen.notice(await self._ask(self._choices.choose(self.client, word, name)))
            case ["/cost"]:
                await self._show_cost()
            case ["/cost", "on" | "off" as switch]:
                self._costs = switch == "on"
            case ["/goal"]:
                await self._show_goal()
            case ["/goal", "clear" | "off" | "reset" | "stop"]:
                if self.thread:
                    await self._ask(self.client.clear_goal(self.thread))
                self._screen.notice("no goal")
            case ["/goal", *_]:
                await self._pursue(line.removeprefix("/goal").strip())
            case ["/here"]:
                await self._show_folder()
            case ["/here", "rw" | "ro" as access]:
                await self._work_at("read-write" if access == "rw" else "read-only")
            case ["/here", "off"]:
                await self._leave_folder()
            case ["/env", *_]:
                await self._show_variables(line.removeprefix("/env").strip())
            case ["/diff", *names]:
                await self._show_changes(" ".join(names))
            case ["/undo"]:
                await self._undo()
            case ["/asked"]:
                await self._look()
                if not self._waiting and not self._transcript.asks:
                    self._screen.notice("nothing is asked")
            case ["/help"]:
                self._screen.line(HELP)
            case [word, *_]:
                await self._call(word, line)

    async def _call(self, word: str, line: str) -> None:
        """Sends what begins with the name of a skill or prompt, or with a path. Raises `Misused` for other words."""
        if word in COMMANDS or not await self._goes_to_agent(word):
            raise Misused(_misuse(word, line))
        await self._turn(line)

    async def _goes_to_agent(self, word: str) -> bool:
        """Returns whether a message that begins with a word is for the agent, as it is no command."""
        return not word.startswith("/") or "/" in word[1:] or await self._is_called(word[1:])

    async def _thread_named(self, name: str) -> str:
        """Returns the id of a thread, by itself or by the beginning of one of the latest.

        Raises `NotFound` and `Invalid`.
        """
        try:
            return str((await self.client.describe_thread(name))["thread_id"])
        except NotFound:
            ids = [str(thread["thread_id"]) for thread in await self.threads(MOST_NAMED)]
            hits = [identity for identity in ids if identity.startswith(name)]
            if len(hits) > 1:
                raise Invalid(f"/threads: {len(hits)} of the latest ids begin with {name}") from None
            if not hits:
                raise
            return hits[0]

    async def _is_called(self, name: str) -> bool:
        """Returns whether a message begins with the name of a skill, or of a prompt of an MCP server."""
        if ":" in name:
            return True
        skills = (await self._ask(self.client.list_skills()))["skills"]
        return any(skill["name"] == name and skill["enabled"] for skill in skills)

    # ── variables ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _show_variables(self, words: str) -> None:
        """Does what follows `/env`, and shows the variables of the agent's commands."""
        if self.thread is None and not words:
            self._screen.notice(variables.NONE)
            return
        self.thread = self.thread or uuid7()
        for line in await self._ask(variables.changed(self.client, self.thread, words, self._secret)):
            self._screen.line(line)

    async def _secret(self, prompt: str) -> str | None:
        self._prompting = True
        try:
            return await self._lines.secret(prompt) if self._lines is not None else None
        finally:
            self._prompting = False

    # ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attach(self, thread: str) -> None:
        """Lets a thread work on the person's folder."""
        if self._here is None or thread in self._attached:
            return
        folder = await self._ask(self.client.get_folder(thread))
        if folder is None or (folder["path"], folder["access"], tuple(folder["show"])) != self._here:
            folder = await self._ask(self.client.attach_folder(thread, *self._here[:2], show=self._here.show))
        self._attached.add(thread)
        self._notice_folder(folder)

    async def _work_at(self, access: Access) -> None:
        here = Here(os.path.realpath(os.getcwd()), access)
        if self._consents is None:
            raise Invalid("/here: the server is on another machine, and does not see this folder")
        self.thread = self.thread or uuid7()
        self._here, self._attached = here, set()
        try:
            await self._attach(self.thread)
        except ClientError:
            self._here = None
            raise
        self._consents.agree(here)

    async def _leave_folder(self) -> None:
        self._here = None
        if self.thread is not None:
            await self._ask(self.client.detach_folder(self.thread))
        self._attached.clear()
        self._screen.notice("no folder")

    async def _show_folder(self) -> None:
        folder = await self._ask(self.client.get_folder(self.thread)) if self.thread else None
        if folder is None and self._here is not None:
            self._screen.notice(f"from the next message on: {one_line(self._here.line, 500)}")
        elif folder is None:
            self._screen.notice("no folder; /here rw (or ro) lets the agent work on this one")
        else:
            self._notice_folder(folder)

    def _notice_folder(self, folder: Mapping[str, Any] | None) -> None:
        if folder is not None:
            line = one_line(f"{folder['path']} ({folder['access']}), seen by the agent as {folder['mounted']}", 500)
            self._screen.notice(f"folder: {line}")

    async def _show_changes(self, only: str) -> None:
        latest = await self._ask(latest_changes(self.client, self.thread)) if self.thread else None
        if latest is None:
            self._screen.notice("no run has changed files, or it was taken back")
            return
        for line, style in change_lines(latest[1], only):
            self._screen.line(line, style)

    async def _undo(self) -> None:
        latest = await self._ask(latest_changes(self.client, self.thread)) if self.thread else None
        if self.thread is None or latest is None:
            self._screen.notice("no run has changed files, or it was taken back")
            return
        for path in await self._ask(self.client.undo(self.thread, latest[0])):
            self._screen.line(f"as before: {shown_path(path)}")

    # ── goals ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _pursue(self, objective: str) -> None:
        """Sets the thread's goal, begins to work for it, and follows the runs that follow by themselves."""
        thread = self.thread or uuid7()
        await self._attach(thread)
        await self._ask(self.client.set_goal(thread, objective))
        self.thread = thread
        status = await self._turn(objective)
        while status == OK and (run := await self._ask(continuation(self.client, thread, self._run.id))):
            status = await self._follow(self.client.join(thread, run), run)
        await self._show_goal()

    async def _show_goal(self) -> None:
        goal = await self._ask(self.client.get_goal(self.thread)) if self.thread else None
        self._screen.notice(goal_line(goal))

    async def _show_cost(self) -> None:
        usage = await self._ask(self.client.get_usage(self.thread)) if self.thread else {}
        self._screen.notice(cost_line(usage))

    async def _turn_to(self, thread: str) -> None:
        self.thread = thread
        self._screen.notice(f"thread {thread}")
        await self._look()

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _turn(self, message: str, piped: str = "") -> int:
        thread = self.thread or uuid7()
        await self._attach(thread)
        content: str | dict[str, Any] = f"{message}\n\n{piped}" if piped else message
        if files := await to_thread.run_sync(named, message):
            await self._notice_blindness(pictures(files))
            try:
                response = await self._ask(self.client.upload_files(thread, files))
            except OSError as error:
                place = error.filename or ", ".join(map(str, files))
                raise Invalid(f"{place}: cannot be read: {error.strerror or error}") from error
            self._screen.notice(f"sent: {', '.join(one_line(file['filename'], 80) for file in response['files'])}")
            for skipped in response.get("skipped_files") or ():
                self._screen.error(f"not sent: {one_line(str(skipped), 300)}")
            content = with_files(str(content), response)
        self._reset()
        before, self.thread, self._sent = self.thread, thread, True
        try:
            code = await self._follow(self.client.stream(content, thread_id=thread, **self._choices.overrides()))
            if self._costs:
                await self._show_cost()
            return code
        finally:
            if not self._run.id:  # it was not begun, and neither was a new thread
                self.thread = before

    async def _notice_blindness(self, names: Sequence[str]) -> None:
        """Says that the model does not see these pictures, if it does not."""
        model = await self._ask(self._choices.model_in_force(self.client)) if names else {}
        if model and not model.get("supports_vision"):
            listed, name = ", ".join(one_line(name, 80) for name in names), one_line(str(model["name"]), 80)
            self._screen.notice(f"{listed}: {name} does not see pictures; its tools can work on the file", "yellow")

    def _reset(self) -> None:
        """Starts a new transcript without questions."""
        self._transcript, self._waiting = self._new_transcript(), []

    def _new_transcript(self) -> Transcript:
        return Transcript(self._screen, lambda path: self._locate(self.thread or "", path))

    async def _follow(self, events: AsyncGenerator[StreamEvent, None], run: str = "") -> int:
        """Shows a run until it has ended; keeps the questions it is paused at."""
        self._waiting, self._run.id = [], run
        self._transcript.questions = []
        assert self.thread is not None
        try:
            with self._screen.working():
                ended = await self._run.watch(self.thread, events, self._transcript.feed)
        except RunFailed as error:
            self._screen.error(str(error))
            return FAILED
        if ended and self._transcript.questions:
            self._waiting = self._transcript.questions
            return STOPPED
        if not ended or (await self._ask(self.client.get_run(self.thread, self._run.id)))["status"] == "interrupted":
            self._screen.notice("stopped")
            return STOPPED
        return OK

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _resolve_option(self, line: str) -> str:
        """Returns the line, or the option of which it is the number."""
        number, options = line.strip(), self._transcript.options
        numbers = [str(n) for n in range(1, len(options) + 1)]
        return options[numbers.index(number)] if number in numbers else line

    async def _answer_all(self, lines: Lines) -> None:
        """Asks the waiting questions and follows the resumed runs, until none waits, or a question is left open."""
        while self._waiting:
            question = self._waiting[0]
            lines.forget()
            self._show(question, 1)
            try:
                events = await self._resume(question, lines)
                if events is None:
                    self._waiting = []
                    if self._next_command is None:
                        self._screen.notice(LEFT_OPEN)
                else:
                    await self._follow(events, self._run.id)
            except (Refused, Invalid) as error:
                self._screen.error(str(error))
                await self._look_again()
        if (form := self._transcript.form) is not None and self._next_command is None:
            await self._fill(form, lines)

    async def _fill(self, form: Mapping[str, Any], lines: Lines) -> None:
        """Asks the fields of the agent's form one by one, and sends the answer."""

        async def read(prompt: str) -> str | None:
            return await self._line(lines, prompt)

        self._transcript.form = None
        lines.forget()
        text = await card_answer(form, read, self._screen.notice)
        if text is not None:
            await self._turn(text)
            await self._answer_all(lines)
        elif self._next_command is None:
            self._screen.notice("(left open: a message answers it)")

    async def _resume(self, question: Question, lines: Lines) -> AsyncGenerator[StreamEvent, None] | None:
        """Returns the events of the run that goes on with the person's answer; None without an answer."""

        async def read(prompt: str) -> str | None:
            return await self._line(lines, prompt)

        assert self.thread is not None
        self._run.id = ""
        if question.approval is None:
            text = await answer(read)
            options = self._choices.overrides()
            return None if text is None else self.client.resume(self.thread, {question.id: text}, **options)
        body = await decision(question, read, self._screen.notice)
        if body is None:
            return None
        self._run.id = str((await self._ask(self.client.decide(self.thread, question.approval, body)))["run_id"])
        return self.client.join(self.thread, self._run.id)

    async def _line(self, lines: Lines, prompt: str) -> str | None:
        """Returns an answer; None after Ctrl-C, at the end of the input, or for a command: the question stays open."""
        try:
            line = await self._prompted(lines.answer(prompt))
        except Stopped:
            line = None
        if line is not None and line.strip().partition(" ")[0] in COMMANDS:
            self._next_command = line.strip()
            return None
        return line

    async def _look(self) -> None:
        """Loads the questions that the thread waits for."""
        self._reset()
        if self.thread is None:
            return
        try:
            thread = await self._ask(self.client.describe_thread(self.thread))
        except NotFound:
            return  # it begins with the first message
        if thread.get("status") != "busy":
            interrupts = (thread.get("interrupts") or {}).values()
            self._waiting = questions_of([interrupt for task in interrupts for interrupt in task])
            self._transcript.reopen(thread.get("values") or {})

    async def _look_again(self) -> None:
        """Follows the open run of another client's answer, if any, and loads the questions after that."""
        assert self.thread is not None
        runs = await self._ask(self.client.list_runs(self.thread))
        run = next((str(run["run_id"]) for run in runs if run.get("status") in OPEN), None)
        if run is None:
            await self._look()
        else:
            self._screen.notice("the thread goes on with somebody else's answer")
            await self._follow(self.client.join(self.thread, run), run)

    def _show(self, question: Question, number: int) -> None:
        total = len(self._waiting)
        self._screen.question(*question_lines(question, f" ({number} of {total})" if total > 1 else ""))

    def _show_hint(self) -> None:
        if self.thread is not None:
            self._screen.notice(f"thread {self.thread} (go on with: {self._command_line})")

    @property
    def _command_line(self) -> str:
        """The command that goes on with the thread; with --here it looks in the same installation."""
        return f"sika chat {'--here ' if self._here else ''}--thread {self.thread}"


def _is_message(line: str) -> bool:
    """Returns whether a line is for the agent: no command, or one that begins to work for a goal."""
    return (word := line.strip().partition(" ")[0]) not in COMMANDS or word == "/goal"


def _misuse(word: str, line: str) -> str:
    """Returns what is wrong with a command, and the commands that are like it."""
    shown = one_line(line, 60)
    if word in COMMANDS:
        usage = next((line for line in HELP.splitlines() if line.startswith(f"{word} ")), f"{word} NAME chooses one")
        return f"{shown}: is not understood; {word}: {' '.join(usage.removeprefix(word).split())}"
    close = difflib.get_close_matches(word, COMMANDS, n=2, cutoff=0.7)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; /help lists them"
    return f"{one_line(word, 60)}: there is no such command, skill or prompt{hint}"


async def _check_names(line: str) -> None:
    """Raises `Invalid` for a message that names files that are not here."""
    if _is_message(line):
        await to_thread.run_sync(check_names, line)


def explained(error: Exception) -> str:
    """Returns the text of an error, with advice where there is any."""
    text = one_line(str(error), 1000)
    if isinstance(error, Unauthenticated):
        keyed = bool(os.environ.get(API_KEY))
        hint = f"is the key in {API_KEY} still valid?" if keyed else f"put a key (sika key create) into {API_KEY}"
        return f"{text.rstrip('.')}; {hint}"
    return text
