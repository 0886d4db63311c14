"""Renders the events of a run on the screen. The same events give the same screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from channels.client.events import StreamEvent, text_of
from channels.terminal.chat.questions import Question, form_of, form_text, options_of, questions_of
from channels.terminal.console.screen import ANSWER, FAILURE, OUTPUT, THOUGHT, Screen
from channels.terminal.text import about, is_done, one_line, todo_line
from core.events import ModelFailed
from core.phrases import detail

RESULT_LINES = 6
PROGRESS_LINES = 40
INDENT = "    "
_SILENT = ("write_todos",)
"""Tools whose effect is shown otherwise."""
_ASKS = ("ask_clarification",)
"""Tools whose result is for the person."""
_RETRY = ("attempt", "max_attempts", "wait_ms", "reason")
_DELEGATES = ("task", "tasks")
"""The tools whose calls subagents answer."""


@dataclass(slots=True)
class _Call:
    """The state of a tool call on the screen."""

    announced: bool = False
    text: str = ""
    """Its line: tool and subject."""
    lines: int = 0
    """Printed lines of progress."""
    printed: str = ""
    """Printed progress."""
    expected: str = ""
    """Progress that the server may send again from its beginning, after a reconnect."""
    replayed: str = ""
    """The part of it that was sent again so far."""
    subagent: str = ""
    """The type of the subagent that answers it, and what for."""


class Transcript:
    """A turn on the screen, also if it takes several runs."""

    def __init__(self, screen: Screen, locate: Callable[[str], str] = str) -> None:
        self.questions: list[Question] = []
        """Questions at which the run is paused."""
        self.asks = False
        """True if the agent asked for a clarification."""
        self.options: list[str] = []
        """The options of the clarification."""
        self.form: Mapping[str, Any] | None = None
        """The form of the clarification."""
        self._screen = screen
        self._locate = locate
        """Returns the person's path of the agent's file."""
        self._begun = False
        self._known_messages: set[str] = set()
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
        """Prepares for repeated progress: later events come over another connection."""
        for call in self._calls.values():
            call.expected, call.replayed = call.printed, ""

    def reopen(self, values: Mapping[str, Any]) -> None:
        """Shows a clarification at the end of a state, which waits for its answer."""
        last = (values.get("messages") or [{}])[-1]
        if _is_question(last):
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
        """Shows the changes of a state. The first state of a turn is its base."""
        artifacts = data["artifacts"]
        new = [message for message in data["messages"] if str(message.get("id")) not in self._known_messages]
        if self._begun:
            for message in new:
                if _is_question(message):
                    self._question(message)
            self._checklist(data.get("todos"))
            for path in artifacts:
                if path not in self._artifacts:
                    self._screen.line(f"▸ artifact: {one_line(self._locate(str(path)), 300)}", "bold")
        self._begun = True
        self.questions = questions_of(data.get("interrupts"))
        self._known_messages.update(str(message.get("id")) for message in new)
        self._todos = data.get("todos") or self._todos
        self._artifacts = list(artifacts)

    def _checklist(self, todos: Any) -> None:
        if todos and todos != self._todos:
            for todo in todos:
                self._screen.line(f"  {todo_line(todo)}", "dim" if is_done(todo) else "")

    def _question(self, message: Mapping[str, Any]) -> None:
        """Shows a clarification: its text with the options, and the fields of its form."""
        artifact = message.get("artifact")
        card = artifact.get("human_input") if isinstance(artifact, Mapping) else None
        self.asks, self.options, self.form = True, options_of(card), form_of(card)
        text = text_of(message.get("content")).strip("\n")
        self._screen.line("\n".join(part for part in (text, form_text(card)) if part))

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _announce(self, call_id: str, name: str, args: Mapping[str, Any]) -> _Call:
        call = self._calls.setdefault(call_id, _Call())
        if name in _DELEGATES and not call.subagent:
            named = (args.get("subagent_type"), args.get("description"))
            call.subagent = ": ".join(one_line(str(part), 60) for part in named if part) or "subagent"
            self._screen.begin(call_id, call.subagent)
        elif not call.announced and name not in (*_SILENT, *_ASKS, *_DELEGATES):
            subject = about(args, 100)
            text = (one_line(name, 60) or "tool") + (f": {subject}" if subject else "")
            call.text = text
            self._screen.begin(call_id, text)
            self._screen.line(f"▸ {text}", "dim")
        call.announced = True
        return call

    def _progress(self, call_id: str, name: str, text: str) -> None:
        call = self._announce(call_id, name, {})
        if call.lines >= PROGRESS_LINES:
            return
        text = _new_progress(call, text)
        visible = "\n".join(text.split("\n")[: PROGRESS_LINES - call.lines])
        call.lines += visible.count("\n")
        call.printed += visible
        self._screen.write(call_id, visible, OUTPUT)
        if call.lines + 1 >= PROGRESS_LINES:
            call.lines = PROGRESS_LINES
            self._screen.line(f"{INDENT}…", "dim")

    def _stage(self, call_id: str, name: str, text: str) -> None:
        """Shows what a call does now in the status line, behind its subject."""
        call = self._announce(call_id, name, {})
        self._screen.update(call_id, f"{call.text or one_line(name, 60)} · {one_line(text, 100)}")

    def _result(self, data: Mapping[str, Any]) -> None:
        call_id, name, failed = str(data["tool_call_id"]), str(data.get("name")), data.get("status") == "error"
        call = self._announce(call_id, name, {})
        self._screen.end(call_id)
        text = data["content"].strip("\n")
        if name in _DELEGATES:
            outcome = one_line(text, 200) if failed else "done"
            self._screen.line(f"▸ {call.subagent}: {outcome}", "red" if failed else "dim")
            return
        if not text or (not failed and (call.printed or name in _SILENT + _ASKS)):
            return
        lines = text.split("\n")
        visible = lines[:RESULT_LINES]
        if len(lines) > RESULT_LINES:
            visible.append(f"… {len(lines) - RESULT_LINES} more lines")
        body = "\n".join(one_line(line, 200) if len(line) > 200 else line for line in visible)
        self._screen.settle()
        self._screen.write(f"{call_id} result", body + "\n", FAILURE if failed else OUTPUT)

    # ── custom events ───────────────────────────────────────────────────────────────────────────────────────────────

    def _custom(self, data: Mapping[str, Any]) -> None:
        match data.get("type"):
            case "tool_progress":
                call_id = str(data.get("tool_call_id") or data.get("call_id"))
                text = data.get("text") or data.get("content") or ""
                if data.get("stage"):
                    self._stage(call_id, str(data.get("name") or ""), str(text))
                else:
                    self._progress(call_id, str(data.get("name") or ""), str(text))
            case "llm_retry":
                self._screen.line(f"  {retry_text(data)}", "yellow")
            case "event":
                name, text = (one_line(str(data.get(part) or ""), 300) for part in ("name", "text"))
                self._screen.line(f"▸ {': '.join(filter(None, (name, text)))}", "dim")
            case "task_started" | "task_running":
                call_id = str(data.get("task_id"))
                call = self._announce(call_id, _DELEGATES[0], {"description": data.get("description")})
                doing = _doing(data.get("message") or {})
                self._screen.update(call_id, f"{call.subagent}: {doing}" if doing else call.subagent)


def _doing(message: Mapping[str, Any]) -> str:
    """Returns the text of a subagent's answer, or else the tools that it calls."""
    calls = ", ".join(str(call.get("name")) for call in message.get("tool_calls") or ())
    return one_line(text_of(message.get("content", "")).strip() or calls, 100)


def _is_question(message: Mapping[str, Any]) -> bool:
    """Tells whether a message is a clarification."""
    return message.get("type") == "tool" and message.get("name") in _ASKS and message.get("status") != "error"


def _new_progress(call: _Call, text: str) -> str:
    """Returns progress without the text printed before a reconnect, which the server may send again."""
    if not call.expected:
        return text
    replayed = call.replayed + text
    if call.expected.startswith(replayed):
        call.replayed = replayed
        return ""
    again, call.expected, call.replayed = replayed.startswith(call.expected), "", ""
    return replayed[len(call.printed) :] if again else replayed


def retry_text(data: Mapping[str, Any]) -> str:
    """Returns the text of a `llm_retry` event: the phrase of the failed call, without what its provider says."""
    failed = ModelFailed.phrase
    return f"{failed.name()}: {detail(failed.template(), {name: data.get(name) for name in _RETRY})}"
