"""The events of a run as a person sees them. The same events give the same screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from channels.client.events import StreamEvent, text_of
from channels.terminal.questions import Question, form_text, options_of, questions_of
from channels.terminal.screen import ANSWER, FAILURE, OUTPUT, THOUGHT, Screen
from channels.terminal.text import about, is_done, one_line, todo_line

RESULT_LINES = 6
PROGRESS_LINES = 40
INDENT = "    "
_SILENT = ("write_todos",)
"""Tools whose effect is shown otherwise."""
_ASKS = ("ask_clarification",)
"""Tools whose result is meant for the person."""


@dataclass(slots=True)
class _Call:
    """A tool call as far as it is known."""

    announced: bool = False
    lines: int = 0
    """Lines of progress that were shown."""
    shown: str = ""
    """The progress that was shown."""
    expected: str = ""
    """What the command may write again from its beginning, after the connection was broken."""
    held: str = ""
    """What it wrote since, as far as it is that."""


class Transcript:
    """One turn on the screen, also if it takes several runs."""

    def __init__(self, screen: Screen, locate: Callable[[str], str] = str) -> None:
        self.questions: list[Question] = []
        """What the run is paused at."""
        self.asks = False
        """Whether the person was asked something in words."""
        self.options: list[str] = []
        """What they may choose from."""
        self._screen = screen
        self._locate = locate
        """Where a file of the agent is for the person."""
        self._begun = False
        self._seen: set[str] = set()
        self._calls: dict[str, _Call] = {}
        self._todos: Any = None
        self._artifacts: list[str] = []

    def feed(self, event: StreamEvent) -> None:
        match event.type, event.data:
            case "messages-tuple", {"type": "tool"}:
                self._result(event.data)
            case "messages-tuple", _:
                self._message(event.data)
            case "values", _:
                self._values(event.data)
            case "custom", _:
                self._custom(event.data)

    def reconnected(self) -> None:
        """The events that follow come over another connection."""
        for call in self._calls.values():
            call.expected, call.held = call.shown, ""

    def reopen(self, values: Mapping[str, Any]) -> None:
        """A clarification at the end of a state, which waits for its answer."""
        last = (values.get("messages") or [{}])[-1]
        if _asks(last):
            self._question(last)

    # ── messages and state ──────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, data: Mapping[str, Any]) -> None:
        identity = str(data.get("id"))
        if reasoning := (data.get("additional_kwargs") or {}).get("reasoning_content"):
            self._screen.write(f"{identity} thinks", str(reasoning), THOUGHT)
        if text := data["content"]:
            self._screen.write(identity, text, ANSWER)
        for call in data.get("tool_calls") or ():
            self._announce(str(call["id"]), str(call["name"]), call.get("args") or {})

    def _values(self, data: Mapping[str, Any]) -> None:
        """What the state has and was not shown. The first state of a turn is where the turn begins."""
        artifacts = data["artifacts"]
        new = [message for message in data["messages"] if str(message.get("id")) not in self._seen]
        if self._begun:
            for message in new:
                if _asks(message):
                    self._question(message)
            self._checklist(data.get("todos"))
            for path in artifacts:
                if path not in self._artifacts:
                    self._screen.line(f"▸ artifact: {one_line(self._locate(str(path)), 300)}", "bold")
        self._begun = True
        self.questions = questions_of(data.get("interrupts"))
        self._seen.update(str(message.get("id")) for message in new)
        self._todos = data.get("todos") or self._todos
        self._artifacts = list(artifacts)

    def _checklist(self, todos: Any) -> None:
        if todos and todos != self._todos:
            for todo in todos:
                self._screen.line(f"  {todo_line(todo)}", "dim" if is_done(todo) else "")

    def _question(self, message: Mapping[str, Any]) -> None:
        """A clarification, in full: the text has the options, but not the fields of a form."""
        artifact = message.get("artifact")
        card = artifact.get("human_input") if isinstance(artifact, Mapping) else None
        self.asks, self.options = True, options_of(card)
        text = text_of(message.get("content")).strip("\n")
        self._screen.line("\n".join(part for part in (text, form_text(card)) if part))

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _announce(self, call_id: str, name: str, args: Mapping[str, Any]) -> _Call:
        call = self._calls.setdefault(call_id, _Call())
        if not call.announced and name not in _SILENT + _ASKS:
            subject = about(args, 100)
            text = (one_line(name, 60) or "tool") + (f": {subject}" if subject else "")
            self._screen.line(f"▸ {text}", "dim")
            self._screen.begin(call_id, text)
        call.announced = True
        return call

    def _progress(self, call_id: str, name: str, text: str) -> None:
        call = self._announce(call_id, name, {})
        if call.lines >= PROGRESS_LINES:
            return
        text = _unseen(call, text)
        kept = "\n".join(text.split("\n")[: PROGRESS_LINES - call.lines])
        call.lines += kept.count("\n")
        call.shown += kept
        self._screen.write(call_id, kept, OUTPUT)
        if call.lines + 1 >= PROGRESS_LINES:
            call.lines = PROGRESS_LINES
            self._screen.line(f"{INDENT}…", "dim")

    def _result(self, data: Mapping[str, Any]) -> None:
        call_id, name, failed = str(data["tool_call_id"]), str(data.get("name")), data.get("status") == "error"
        call = self._announce(call_id, name, {})
        self._screen.end(call_id)
        text = data["content"].strip("\n")
        if not text or (not failed and (call.shown or name in _SILENT + _ASKS)):
            return
        lines = text.split("\n")
        kept = lines[:RESULT_LINES]
        if len(lines) > RESULT_LINES:
            kept.append(f"… {len(lines) - RESULT_LINES} more lines")
        body = "\n".join(one_line(line, 200) if len(line) > 200 else line for line in kept)
        self._screen.settle()
        self._screen.write(f"{call_id} result", body + "\n", FAILURE if failed else OUTPUT)

    # ── what tools and policies write ───────────────────────────────────────────────────────────────────────────────

    def _custom(self, data: Mapping[str, Any]) -> None:
        task = f"task {data.get('task_id')}"
        match data.get("type"):
            case "tool_progress":
                call_id = str(data.get("tool_call_id") or data.get("call_id"))
                text = data.get("text") or data.get("content") or ""
                self._progress(call_id, str(data.get("name") or ""), str(text))
            case "llm_retry":
                self._screen.line(f"  {retry_text(data)}", "yellow")
            case "task_started":
                subject = f"subagent: {one_line(str(data.get('description', '')), 100)}"
                self._screen.line(f"▸ {subject}", "dim")
                self._screen.begin(task, subject)
            case "task_running":
                if text := text_of((data.get("message") or {}).get("content", "")).strip():
                    self._screen.line(INDENT + one_line(text, 110), "dim")
            case "task_completed":
                self._screen.end(task)
            case "task_failed" | "task_cancelled" | "task_timed_out" as ended:
                self._screen.end(task)
                self._screen.line(INDENT + one_line(str(data.get("error") or ended), 110), "red")


def _asks(message: Mapping[str, Any]) -> bool:
    """Whether a message asks the person something."""
    return message.get("type") == "tool" and message.get("name") in _ASKS and message.get("status") != "error"


def _unseen(call: _Call, text: str) -> str:
    """Progress without what was shown before a break: a server that takes a command up again sends all it wrote."""
    if not call.expected:
        return text
    held = call.held + text
    if call.expected.startswith(held):
        call.held = held
        return ""
    again, call.expected, call.held = held.startswith(call.expected), "", ""
    return held[len(call.shown) :] if again else held


def retry_text(data: Mapping[str, Any]) -> str:
    """A `llm_retry` event in words."""
    seconds = int(data.get("wait_ms") or 0) / 1000
    tries = f"try {data.get('attempt')} of {data.get('max_attempts')}"
    return f"the model does not answer ({one_line(str(data.get('reason', '')), 40)}): {tries}, again in {seconds:g} s"
