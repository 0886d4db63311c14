"""The progress of a run, as a chat shows it: the assistant's text so far, and one line about what it does now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actors.delivery.growing import Growing
from core.events import (
    Event,
    Json,
    Message,
    ModelCompleted,
    ModelFailed,
    Record,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ToolCompleted,
    ToolRequested,
)
from core.runs.follow import Batch
from core.runs.previews import Preview, RunPreview
from core.runs.previews import Progress as ToolProgress
from core.thread.entries import Delegation
from core.thread.messages import text_of
from core.thread.state import Run, ThreadState
from core.wording import is_for_chats, line_of

SUBJECT_CHARACTERS = 80
SILENT = ("write_todos", "ask_clarification", "task", "tasks")
"""Tools whose effect is shown otherwise."""


class Progress:
    """One run. Its text is by allow-list: nothing but the text parts of the assistant's newest message."""

    def __init__(self, run: str, state: ThreadState) -> None:
        self._growing = Growing(run, state)
        self._run = run
        self._subjects: dict[str, str] = {}
        """Subjects of calls, by id."""
        self._tools: dict[str, str] = {}
        """Calls at work, by id."""
        self._stages: dict[str, str] = {}
        """What those calls say that they do now."""
        self._subagents: dict[str, str] = {}
        """Subagents at work, by call."""
        self._todos: Sequence[Any] = state.values.get("todos") or ()
        self._news = ""
        """The text of the newest event that is no step of the conversation, until an answer begins."""
        self._said = ""
        """Earlier texts of the assistant."""
        if (begun := state.runs.get(run)) is not None:
            self._recollect(begun, state)

    @property
    def run(self) -> Run:
        """The run, as far as it is known."""
        return self._growing.run

    @property
    def text(self) -> str:
        return self._growing.text or self._said

    @property
    def status(self) -> str:
        """The line about what it does now: the newest tool, the subagents, how many todos are done."""
        parts = list(self._tools.values())[-1:]
        if parts and (stage := self._stages.get(next(reversed(self._tools)))):
            parts = [f"{parts[0]} · {stage}"]
        if len(self._tools) > 1:
            parts.append(f"{len(self._tools) - 1} more at work")
        parts += list(self._subagents.values()) if len(self._subagents) < 2 else [f"{len(self._subagents)} subagents"]
        if todos := [todo for todo in self._todos if isinstance(todo, Mapping)]:
            done = sum(todo.get("status") == "completed" for todo in todos)
            now = next((todo.get("content") for todo in todos if todo.get("status") == "in_progress"), None)
            parts.append(f"{done}/{len(todos)} done" + (f": {_line(now)}" if now else ""))
        if self._news:
            parts.append(self._news)
        return " · ".join(parts)

    def is_over(self) -> bool:
        return self._growing.is_whole()

    def take(self, batch: Batch) -> None:
        self._growing.take(batch)
        for item in batch:
            if isinstance(item, Record) and item.run == self._run:
                self._fact(item)
            elif isinstance(item, RunPreview) and item.run == self._run:
                self._preview(item.preview)

    def _preview(self, preview: Preview | ToolProgress) -> None:
        """Takes in what a call at work says that it does. Its output is not for a chat."""
        if not isinstance(preview, ToolProgress):
            self._news = ""
        elif preview.stage and preview.call_id in self._tools:
            self._stages[preview.call_id] = _line(preview.text)

    def _recollect(self, run: Run, state: ThreadState) -> None:
        """Takes in what is known of a run that is at work already."""
        message = next((message for message in reversed(state.messages) if message.get("id") == run.answer), None)
        if message is not None and run.answer:
            self._said = text_of(message.get("content", ""))
            self._calls(message)
        for call, intent in run.intents.items():
            self._begin(call, intent.event.name)
        for delegation in run.subagents.values():
            if not delegation.ended:
                self._delegate(delegation)

    def _calls(self, message: Message) -> None:
        for call in message.get("tool_calls") or ():
            self._subjects[str(call.get("id"))] = _subject(call.get("args") or {})

    def _begin(self, call: str, name: str) -> None:
        if name not in SILENT:
            subject = self._subjects.get(call, "")
            self._tools[call] = f"{_line(name)}: {subject}" if subject else _line(name)

    def _delegate(self, event: SubagentStarted | Delegation) -> None:
        about = f": {_line(event.description)}" if event.description else ""
        self._subagents[event.call_id] = _line(event.name) + about

    def _fact(self, record: Record) -> None:
        match record.event:
            case ModelCompleted(message=message):
                self._tools.clear()
                self._stages.clear()
                self._news = ""
                self._calls(message)
            case ToolRequested(call_id=call, name=name):
                self._begin(call, name)
            case ToolCompleted(call_id=call, update=update):
                self._tools.pop(call, None)
                self._stages.pop(call, None)
                self._subjects.pop(call, None)
                self._todos = update.get("todos", self._todos) or ()
            case SubagentStarted() as event:
                self._delegate(event)
            case SubagentProgressed(call_id=call, index=index) if call in self._subagents:
                name = self._subagents[call].partition(" (")[0]
                self._subagents[call] = f"{name} ({index})"
            case SubagentCompleted(call_id=call):
                self._subagents.pop(call, None)
            case ModelFailed(wait_ms=int()) as event:
                self._news = _line(
                    line_of(msgspec.structs.replace(event, text=""))
                )  # the provider's text is not for a chat
            case Event() as event if is_for_chats(event):
                self._news = _line(line_of(event))


def _subject(args: Json) -> str:
    """Returns what the agent says a call is for; other arguments are not for a chat."""
    description = args.get("description")
    return _line(description) if isinstance(description, str) else ""


def _line(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= SUBJECT_CHARACTERS else line[: SUBJECT_CHARACTERS - 1].rstrip() + "…"
